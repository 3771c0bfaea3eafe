"""Encodes and decodes text by the vocabulary in a model's GGUF file.

Receives the metadata of a file; returns a `Tokenizer`: text to token numbers and back. Bytes are
merged by the package `tokenizers`, letters by `pieces`; what is read from the file, and which bytes
a token stands for, is settled here. Chat templates are in `template`.

Source: Sennrich et al., BPE (2016); Radford et al., GPT-2 (2019) for byte-level vocabularies; Kudo
and Richardson, SentencePiece (2018).
"""

from __future__ import annotations

import codecs
import itertools
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, overload

import numpy as np

from aster_ml.apps.llm.extras import needed
from aster_ml.apps.llm.pieces import SPACE, Pieces
from aster_ml.apps.llm.pretokenizers import WHOLE_FIRST, patterns_of
from aster_ml.apps.llm.special_names import Names
from aster_ml.errors import ArgumentError, FormatError
from aster_ml.formats.fileio import show_value

# Kinds of tokens in a file.
NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
# Tokens that end an answer, in vocabularies that name none or one of several.
ENDS = (
    "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<end_of_turn>", "<|endoftext|>",
    "<|end_of_text|>", "<｜end▁of▁sentence｜>", "<EOT>", "</s>",
)  # fmt: skip
# Letters that no text needs: one of them marks names of control that are words of a text.
SPARE = (*range(0xFDD0, 0xFDF0), *range(0x10F000, 0x10FFFE))
# Bytes of a text for each token that there is room for: prose has about four, code six.
BYTES_A_TOKEN = 32
# The beginning of a long text that is looked at first, in letters a token, and how many times as
# many tokens as there is room for it may have: those at its end may be others in the whole.
LOOKED_AT, MARGIN = 8, 2


def byte_letters() -> dict[str, int]:
    """The letter by which byte-level vocabularies show each byte -> the byte."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [b for b in range(256) if b not in shown]
    return {chr(b): b for b in shown} | {chr(256 + i): b for i, b in enumerate(hidden)}


LETTERS = byte_letters()
Array = np.ndarray[Any, np.dtype[Any]]


class Tokenizer:
    """Text to token numbers and back.

    Raises: FormatError where the vocabulary is damaged or of a kind that is not known here, and
    where the package `tokenizers` is absent.
    """

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        self.metadata = metadata
        self.tokens = self.texts("tokens")
        if not self.tokens:
            raise FormatError("the file has no vocabulary (tokenizer.ggml.tokens)", "gguf")
        self.kinds = self.numbers("token_type", len(self.tokens), NORMAL)
        self.model = metadata.get("tokenizer.ggml.model")
        # Of tokens that are there twice the first one is found.
        self.number = dict(zip(reversed(self.tokens), reversed(range(len(self.tokens)))))
        self.space_prefix = self.flag("add_space_prefix", self.model == "llama")
        self.bos, self.eos = self.special_number("bos"), self.special_number("eos")
        self.adds_bos = self.flag("add_bos_token", self.model == "llama") and self.bos is not None
        self.adds_eos = self.flag("add_eos_token", False) and self.eos is not None
        named = [self.eos, self.special_number("eot"), self.special_number("eom")]
        known = [self.number.get(text) for text in ENDS]
        self.ends = frozenset([i for i in [*named, *known] if i is not None])
        # Those that begin and end texts are of control, also in files that call them a user's.
        kinds = np.array(self.kinds)
        special = np.flatnonzero((kinds == CONTROL) | (kinds == USER)).tolist()
        own = {self.tokens[i] for i in special if self.number[self.tokens[i]] == i} - {""}
        heads = {*self.ends, self.bos}
        control = {t for t in own if kinds[self.number[t]] == CONTROL or self.number[t] in heads}
        # Tokens that are found whole: those of control only where the text may have them.
        self.all_names = Names(own)
        self.user_names = Names(own - control)
        self.control_names = Names(control)
        self.is_byte_level = self.model == "gpt2"
        # Finds the tokens of a text.
        self.engine: Callable[[str], list[int]]
        if self.is_byte_level:
            self.engine = self.byte_level()
        elif self.model == "llama":
            self.engine = self.sentencepiece(kinds)
        else:
            raise FormatError(
                f"the tokenizer is of the kind {show_value(self.model)}, which is not known here; "
                "known are gpt2 (byte-level BPE) and llama (SentencePiece)",
                "gguf",
            )
        self.bytes_of = TokenBytes(self.token_bytes, len(self.tokens))
        for i in np.flatnonzero(kinds == BYTE).tolist():
            self.token_bytes(i)
        # Lists of texts that nobody asks for again.
        del self.metadata

    # what the file says

    def get(self, key: str, default: Any = None) -> Any:
        """Value of a key of the tokenizer in the file."""
        return self.metadata.get(f"tokenizer.ggml.{key}", default)

    def flag(self, key: str, default: bool) -> bool:
        """A truth value."""
        return bool(self.get(key, default))

    def texts(self, key: str) -> list[str]:
        """A list of texts. Raises: FormatError where it is none."""
        found = self.get(key, [])
        if not isinstance(found, list) or not set(map(type, found)) <= {str}:
            raise FormatError(f"tokenizer.ggml.{key} is no list of texts", "gguf")
        return found

    def numbers(self, key: str, count: int, default: float) -> list[Any]:
        """A list of as many numbers. Raises: FormatError where it is none, or of another length."""
        found = self.get(key)
        if found is None:
            return [default] * count
        if not isinstance(found, list) or not set(map(type, found)) <= {int, float}:
            raise FormatError(f"tokenizer.ggml.{key} is no list of numbers", "gguf")
        if len(found) != count:
            raise FormatError(
                f"tokenizer.ggml.{key} has {len(found)} entries, the vocabulary {count}", "gguf"
            )
        return found

    def special_number(self, name: str) -> int | None:
        """The number of a token that has a part to play."""
        found = self.get(f"{name}_token_id")
        if found is None:
            return None
        if found.__class__ is not int or not 0 <= found < len(self.tokens):
            raise FormatError(
                f"tokenizer.ggml.{name}_token_id is {show_value(found)}, the vocabulary has "
                f"{len(self.tokens)} tokens",
                "gguf",
            )
        return int(found)

    # engines

    def byte_level(self) -> Callable[[str], list[int]]:
        """Bytes as letters, cut by the file's patterns, merged by the file's list."""
        library = needed("tokenizers", "llm")
        name, patterns = patterns_of(self.get("pre", "default"))
        cuts = [
            library.pre_tokenizers.Split(library.Regex(pattern), "isolated") for pattern in patterns
        ]
        whole = name in WHOLE_FIRST or self.flag("ignore_merges", False)
        merges = self.merges()
        try:
            made = library.models.BPE(self.number, merges, ignore_merges=whole)
            engine = library.Tokenizer(made)
        except Exception as error:
            raise FormatError(f"the vocabulary makes no tokenizer: {error}", "gguf") from error
        engine.pre_tokenizer = library.pre_tokenizers.Sequence(
            [*cuts, library.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
        )

        def tokens_of(text: str) -> list[int]:
            """The tokens that the package finds; Python's lock is free meanwhile."""
            found: list[int] = engine.encode_batch_fast([text], add_special_tokens=False)[0].ids
            return found

        return tokens_of

    def merges(self) -> list[tuple[str, str]]:
        """The merges of the file. Raises: FormatError for one of tokens that are not there."""
        number = self.number
        result = []
        for text in self.texts("merges"):
            left, _, right = text.partition(" ")
            # Two that are none make none, and what has no space has nothing right of it.
            if left not in number or right not in number or left + right not in number:
                raise FormatError(
                    f"the merge {show_value(text)} is not of two tokens that make a third", "gguf"
                )
            result.append((left, right))
        return result

    def sentencepiece(self, kinds: Array) -> Pieces:
        """Characters merged to the pieces of the best scores; what is unknown becomes bytes."""
        scores = self.numbers("scores", len(self.tokens), 0.0)
        if np.isnan(scores).any():
            raise FormatError("tokenizer.ggml.scores has what is no number", "gguf")
        mergeable = (kinds == NORMAL) | (kinds == USER)
        unknown = np.flatnonzero(kinds == UNKNOWN)[:1].tolist()
        return Pieces(self.number, mergeable.tolist(), scores, unknown[0] if unknown else None)

    # text to tokens and back

    def encode(
        self, text: str, special: bool = False, bos: bool = True, mark: str = "", room: int = 0
    ) -> list[int]:
        """The tokens of a text; with `special`, names of special tokens stand for them.

        `bos` puts the token of the beginning first, where the file wants that and it is not there.
        `mark` is left out: see `marked`. Other threads run meanwhile, or in turn.

        Raises: ArgumentError where there are more than `room` tokens, unless that is 0; a text that
        is much too long is not read to its end.
        """
        plain = text.encode("utf-8", "surrogatepass").decode("utf-8", "replace")
        if room and len(plain) > room * BYTES_A_TOKEN:
            raise too_long(f"{len(plain):,} letters", room)
        result: list[int] = []
        at = 0
        for start, name in (self.all_names if special else self.user_names).find(plain):
            result += self.merge(plain[at:start], mark, room)
            result.append(self.number[name])
            at = start + len(name)
            if room and len(result) > MARGIN * room:
                raise too_long(f"more than {len(result):,} tokens", room)
        result += self.merge(plain[at:], mark, room)
        if bos and self.adds_bos and result[:1] != [self.bos]:
            result.insert(0, self.bos or 0)
        if room and len(result) > room:
            raise too_long(f"{len(result):,} tokens", room)
        return result

    def merge(self, text: str, mark: str, room: int) -> list[int]:
        """The tokens of a text without tokens of its own in it.

        Raises: ArgumentError where a beginning has more tokens than there is room for.
        """
        if mark:
            text = text.replace(mark, "")
        if not text:
            return []
        prefixed = " " + text if self.space_prefix else text
        if room and len(prefixed) > MARGIN * LOOKED_AT * room:
            count = len(self.merged(prefixed[: LOOKED_AT * room]))
            if count > MARGIN * room:
                raise too_long(f"more than {count:,} tokens", room)
        return self.merged(prefixed)

    def merged(self, text: str) -> list[int]:
        """The tokens of a text."""
        return self.engine(text)

    # words of a text that are names of control

    def marked(self, value: Any, mark: str) -> Any:
        """A value with a mark inside of each name of control that is in its texts.

        So what is put together with it has none but its own; `encode` leaves the marks out. A text
        that ends as a name begins is marked at its end, as the next one may go on with it.
        """
        if isinstance(value, str):
            return self.marked_text(value, mark)
        if isinstance(value, Mapping):
            return {self.marked(k, mark): self.marked(v, mark) for k, v in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.marked(v, mark) for v in value]
        return value

    def marked_text(self, text: str, mark: str) -> str:
        """A text with a mark behind the first letter of each name, and of what may become one."""
        starts = [at + 1 for at in self.control_names.starts(text)]
        tails = range(max(0, len(text) - self.control_names.longest), len(text))
        if any([self.control_names.is_begun(text[at:]) for at in tails]):
            starts.append(len(text))
        if not starts:
            return text
        cuts = [0, *starts, len(text)]
        return mark.join([text[a:b] for a, b in itertools.pairwise(cuts)])

    def spare_letter(self, value: Any) -> str:
        """A letter that is in no text of a value. Raises: ArgumentError where there is none."""
        written = json.dumps(value, ensure_ascii=False)
        for code in SPARE:
            if chr(code) not in written:
                return chr(code)
        raise ArgumentError("the texts have all letters of private use; less would do")

    def token_bytes(self, i: int) -> bytes:
        """The bytes that a token stands for; none for one of control."""
        text, kind = self.tokens[i], self.kinds[i]
        if kind in (CONTROL, UNUSED):
            return b""
        if self.is_byte_level and kind != USER:
            found = [LETTERS.get(letter) for letter in text]
            if None not in found:
                return bytes([b for b in found if b is not None])
            return text.encode("utf-8", "replace")
        if kind == BYTE and len(text) == 6 and text.startswith("<0x"):
            try:
                return bytes([int(text[3:5], 16)])
            except ValueError as error:
                raise FormatError(f"token {i}, {show_value(text)}, is no byte", "gguf") from error
        return text.replace(SPACE, " ").encode("utf-8", "replace")

    def decode(self, tokens: Iterable[int]) -> str:
        """The text of tokens, those of control left out; what is no UTF-8 shows as U+FFFD."""
        return b"".join([self.bytes_of[i] for i in tokens if i < len(self.bytes_of)]).decode(
            "utf-8", "replace"
        )

    def stream(self) -> Stream:
        """Decodes tokens as they come."""
        return Stream(self.bytes_of)


def too_long(said: str, room: int) -> ArgumentError:
    """Error of a text that has no room."""
    return ArgumentError(
        f"the prompt has {said}, and there is room for {room} tokens; it has to be shorter "
        "(nothing is cut in silence), or the context longer (--context)"
    )


class TokenBytes(Sequence[bytes]):
    """The bytes of each token of a vocabulary, made when they are asked for."""

    def __init__(self, make: Callable[[int], bytes], count: int) -> None:
        self.make, self.known = make, list[bytes | None]([None]) * count

    def __len__(self) -> int:
        return len(self.known)

    @overload
    def __getitem__(self, i: int) -> bytes: ...

    @overload
    def __getitem__(self, i: slice) -> list[bytes]: ...

    def __getitem__(self, i: int | slice) -> bytes | list[bytes]:
        if isinstance(i, slice):
            return [self[n] for n in range(*i.indices(len(self)))]
        found = self.known[i]
        if found is None:
            found = self.known[i] = self.make(i)
        return found


class Stream:
    """Text of tokens as they come: a character is given when its last byte is there."""

    def __init__(self, bytes_of: Sequence[bytes]) -> None:
        self.bytes_of = bytes_of
        self.decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        """The characters that are whole with this token."""
        return self.decoder.decode(self.bytes_of[token] if token < len(self.bytes_of) else b"")

    def end(self) -> str:
        """Returns the rest: U+FFFD for a character that is cut."""
        return self.decoder.decode(b"", final=True)
