"""Loads a model from its file, ready to answer.

Receives a path and how much memory it may take; returns an `Engine` with its tokenizer and chat
template.
"""

from __future__ import annotations

import pathlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aster_ml.apps.llm.adapters import load_adapters
from aster_ml.apps.llm.architectures import read_config
from aster_ml.apps.llm.engine import Engine
from aster_ml.apps.llm.extras import needed
from aster_ml.apps.llm.model import Model
from aster_ml.apps.llm.recordings import Recordings
from aster_ml.apps.llm.tokenizer import BYTES_A_TOKEN, Tokenizer, too_long
from aster_ml.apps.llm.weights import AUTO, PACKED, load_weights
from aster_ml.errors import ArgumentError, FormatError
from aster_ml.nn.state import gguf_load

if TYPE_CHECKING:
    from aster_ml.apps.llm.template import ChatTemplate

DEFAULT_CONTEXT = 4096


@dataclass(frozen=True)
class Language:
    """A model that answers: its engine, its words, and how a chat is written for it."""

    name: str
    path: pathlib.Path
    engine: Engine
    recordings: Recordings
    tokenizer: Tokenizer
    template: ChatTemplate

    def prompt_of(
        self, messages: list[dict[str, Any]], tools: list[Any] | None = None
    ) -> list[int]:
        """The tokens of a chat, up to where the answer begins.

        Names of control are those of the template alone: in messages they are words like others.

        Raises: ArgumentError where the template refuses the messages, and where the context has no
        room for them.
        """
        words = self.tokenizer
        check_size([messages, tools], self.room)
        mark = words.spare_letter([messages, tools])
        text = self.template.render(words.marked(messages, mark), words.marked(tools, mark))
        return words.encode(text, special=True, bos=self.begins(text), mark=mark, room=self.room)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the model: its own, and that of its file."""
        return self.name, self.path.name, self.path.stem

    @property
    def room(self) -> int:
        """Most tokens of a prompt: one place is left for an answer."""
        return self.engine.model.context - 1

    def keep(self) -> bool:
        """Keeps what was recorded for the next start; whether there was enough."""
        self.engine.record()
        return self.recordings.keep()

    def begins(self, text: str) -> bool:
        """Whether the token of the beginning is still to be put before a chat's text."""
        bos = self.tokenizer.bos
        return bos is None or not text.startswith(self.tokenizer.tokens[bos])


def load_language(
    path: str | pathlib.Path,
    dtype: str = PACKED,
    context: int = 0,
    slots: int = 1,
    memory: str = "f16",
    progress: bool = False,
    adapter: str | pathlib.Path | None = None,
    mapped: bool = True,
    products: str = AUTO,
) -> Language:
    """Reads a model; a context of 0 is the model's own, or 4096 where that is more.

    `adapter` is a folder in PEFT's layout, as `aster finetune` writes them. Weights that stay as
    the file has them are read where they lie in it, unless `mapped` is False: the file has to stay
    as it is (`Tensor.from_file`). With `products` "int8" what packed weights multiply is rounded,
    in two digits of int8, to 127 * 128 steps either way of the largest in each block of 32, where
    the processor multiplies int8; with "auto" where it is quicker so for the type and shape, too;
    with "float" never.

    Raises: FormatError for a file that is damaged or of a model that is not known here.
    ArgumentError for a context that is longer than the model's.
    """
    place = pathlib.Path(path)
    metadata, tensors = gguf_load(place, raw=True, mapped=mapped)
    config = read_config(metadata)
    if context > config.context:
        raise ArgumentError(
            f"a context of {context} is asked for, the model was made for {config.context}"
        )
    tokenizer = Tokenizer(metadata)
    embedding = tensors.get("token_embd.weight")
    if embedding is not None and embedding.shape[0] < len(tokenizer.tokens):
        raise FormatError(
            f"the vocabulary has {len(tokenizer.tokens)} tokens, the embedding "
            f"{embedding.shape[0]} rows",
            "gguf",
        )
    template = make_template(metadata, tokenizer)
    weights = load_weights(tensors, dtype, progress, products)
    if adapter is not None:
        for name, added in load_adapters(adapter, config).items():
            weights.adapt(name, added)
    length = context or min(config.context, DEFAULT_CONTEXT)
    model = Model(config, weights, length, slots, memory)
    engine = Engine(model)
    recordings = Recordings(engine)
    recordings.recall()
    name = config.name or place.stem
    return Language(name, place, engine, recordings, tokenizer, template)


def check_size(value: Any, room: int) -> None:
    """Raises ArgumentError where the texts of a value are too long before they are tokenized."""
    stack, letters = [value], 0
    while stack:
        top = stack.pop()
        if isinstance(top, str):
            letters += len(top)
        elif isinstance(top, Mapping):
            stack += [*top.keys(), *top.values()]
        elif isinstance(top, (list, tuple)):
            stack += top
    if letters > room * BYTES_A_TOKEN:
        raise too_long(f"{letters:,} letters", room)


def make_template(metadata: Mapping[str, Any], tokenizer: Tokenizer) -> ChatTemplate:
    """The file's chat template, or the form that most models know."""
    templates = needed("aster_ml.apps.llm.template", "llm")
    source = metadata.get("tokenizer.chat_template", templates.CHATML)
    if not isinstance(source, str):
        raise FormatError("tokenizer.chat_template is no text", "gguf")
    names = {
        f"{name}_token": tokenizer.tokens[number]
        for name, number in (("bos", tokenizer.bos), ("eos", tokenizer.eos))
        if number is not None
    }
    found: ChatTemplate = templates.ChatTemplate(
        source, {"bos_token": "", "eos_token": "", **names}
    )
    return found
