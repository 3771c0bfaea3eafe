"""Reads lines of JSON as rows of tokens to train on.

Receives a JSONL file, a tokenizer and a chat template; returns `Example`s, and these packed in rows
of one length. A line is a chat, `{"messages": [{"role": ..., "content": ...}, ...]}`, of which the
assistant's words are learned, or `{"text": ...}`, which is learned whole. What a model makes of the
rows is in `train`.
"""

from __future__ import annotations

import json
import pathlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from aster_ml.apps.llm.tokenizer import Tokenizer
from aster_ml.errors import ArgumentError, AsterError, FormatError
from aster_ml.formats.fileio import show_value

if TYPE_CHECKING:
    from aster_ml.apps.llm.template import ChatTemplate

Array = np.ndarray[Any, np.dtype[Any]]

# A longer line is no example, and so many wrong lines are shown.
MAX_LINE_BYTES, SHOWN = 4 << 20, 8
ROLES = ("system", "user", "assistant", "tool")
# What a row has of each token: the token, the one to learn after it, its position, its text.
TOKENS, TARGETS, POSITIONS, TEXTS = range(4)
# In the place of a token that is not learned.
NOTHING = -100
MULTIPLE, LEAST, MOST = 32, 128, 1024


class Example(NamedTuple):
    """A text: its tokens, and for each whether it is learned."""

    tokens: list[int]
    learned: list[bool]


class Rejected(AsterError):
    """A line that is no example; it says why."""


class Reader:
    """Makes examples of lines, in the words of a model."""

    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate) -> None:
        self.tokenizer, self.template = tokenizer, template

    def read(self, path: str | pathlib.Path) -> list[Example]:
        """All examples of a file.

        Raises: FormatError that names the lines that are none, by number, and says why.
        """
        wrong: list[str] = []
        result: list[Example] = []
        for number, line in self.lines(path):
            try:
                result.append(self.example(line))
            except AsterError as error:
                wrong.append(f"line {number}: {error}")
        if wrong:
            shown = "\n".join(wrong[:SHOWN])
            more = f"\nand {len(wrong) - SHOWN} more" if len(wrong) > SHOWN else ""
            raise FormatError(f"{len(wrong)} lines are no examples\n{shown}{more}", str(path))
        if not result:
            raise FormatError("no line is an example", str(path))
        return result

    def lines(self, path: str | pathlib.Path) -> Iterator[tuple[int, bytes]]:
        """The lines that are not empty, with their numbers from 1 on."""
        with pathlib.Path(path).open("rb") as file:
            number = 0
            while line := file.readline(MAX_LINE_BYTES):
                number += 1
                if len(line) == MAX_LINE_BYTES and not line.endswith(b"\n"):
                    raise FormatError(
                        f"line {number} has more than {MAX_LINE_BYTES:,} bytes", str(path)
                    )
                if line.strip():
                    yield number, line

    def example(self, line: bytes) -> Example:
        """The example of a line. Raises: Rejected, ArgumentError where it is none."""
        try:
            value = json.loads(line.decode("utf-8"))
        except (ValueError, RecursionError) as error:
            raise Rejected(f"it is no JSON: {error}") from error
        if not isinstance(value, dict) or ("messages" in value) == ("text" in value):
            raise Rejected('an object with either "messages" or "text" is wanted')
        found = self.chat(value["messages"]) if "messages" in value else self.text(value["text"])
        if not any(found.learned):
            raise Rejected("nothing in it is learned")
        return found

    def text(self, text: Any) -> Example:
        """A text, and its end; all but the first token is learned."""
        if not isinstance(text, str) or not text:
            raise Rejected(f"text is {show_value(text)}; a text is wanted")
        tokens = self.tokenizer.encode(text)
        if self.tokenizer.eos is not None and tokens[-1:] != [self.tokenizer.eos]:
            tokens.append(self.tokenizer.eos)
        return Example(tokens, [i > 0 for i in range(len(tokens))])

    def chat(self, messages: Any) -> Example:
        """A chat, up to its last answer; each answer up to the token that ends it is learned."""
        check_messages(messages)
        # Names of control in what somebody says are words like others, as they are in a chat.
        mark = self.tokenizer.spare_letter(messages)
        messages = self.tokenizer.marked(messages, mark)
        tokens: list[int] = []
        learned: list[bool] = []
        written = ""
        for i, message in enumerate(messages):
            if message["role"] != "assistant":
                continue
            for part, prompt in ((messages[:i], True), (messages[: i + 1], False)):
                text = self.template.render(part, prompt=prompt)
                if not text.startswith(written):
                    raise Rejected(
                        "the model's template writes the messages before an answer in another way "
                        "once it is there; one answer a line would do"
                    )
                found = self.encode(text[len(written) :], first=not tokens, mark=mark)
                tokens += found
                learned += self.learned(found) if not prompt else [False] * len(found)
                written = text
        return Example(tokens, learned)

    def encode(self, text: str, first: bool, mark: str) -> list[int]:
        """Tokens of a part of a chat, as a chat is written for the model."""
        bos = self.tokenizer.bos
        begun = bos is not None and text.startswith(self.tokenizer.tokens[bos])
        return self.tokenizer.encode(text, special=True, bos=first and not begun, mark=mark)

    def learned(self, tokens: Sequence[int]) -> list[bool]:
        """An answer is learned up to the token that ends it."""
        ends = [i for i, token in enumerate(tokens) if token in self.tokenizer.ends]
        last = ends[0] if ends else len(tokens) - 1
        return [i <= last for i in range(len(tokens))]


def check_messages(messages: Any) -> None:
    """Raises: Rejected for what is no chat with an answer in it."""
    if not isinstance(messages, list) or not messages:
        raise Rejected(f"messages is {show_value(messages)}; a list of messages is wanted")
    for i, message in enumerate(messages):
        role = message.get("role") if isinstance(message, dict) else None
        if role not in ROLES:
            raise Rejected(f"message {i}: role is {show_value(role)}; known are {', '.join(ROLES)}")
        if not isinstance(message.get("content"), str):
            raise Rejected(f"message {i}: content is {show_value(message.get('content'))}, no text")
    if not any([message["role"] == "assistant" and message["content"] for message in messages]):
        raise Rejected("no message is an answer of the assistant")


def length_for(examples: Sequence[Example], context: int, wanted: int = 0) -> int:
    """Length of rows: as asked for, or enough for the longest example.

    Raises: ArgumentError where an example is longer, or the model's context is shorter.
    """
    longest = max([len(example.tokens) for example in examples])
    length = wanted or min(context, MOST, max(LEAST, -(-longest // MULTIPLE) * MULTIPLE))
    if length > context:
        raise ArgumentError(f"rows of {length} tokens; the model was made for {context}")
    if longest > length:
        i = next(i for i, example in enumerate(examples) if len(example.tokens) > length)
        fits = f"--length {longest} holds it" if longest <= context else f"the model has {context}"
        raise ArgumentError(
            f"example {i + 1} has {len(examples[i].tokens)} tokens, a row {length}; {fits}"
        )
    return length


def pack(examples: Sequence[Example], length: int) -> Array:
    """Examples in rows, the longest first, each in the first row with room for it.

    The result is int32 [rows, 4, length]: tokens, targets, positions and texts of each row.
    """
    order = sorted(range(len(examples)), key=lambda i: -len(examples[i].tokens))
    rows: list[list[int]] = []
    room: list[int] = []
    for i in order:
        size = len(examples[i].tokens)
        at = next((r for r, free in enumerate(room) if free >= size), len(rows))
        if at == len(rows):
            rows.append([])
            room.append(length)
        rows[at].append(i)
        room[at] -= size
    return np.stack([fill([examples[i] for i in row], length) for row in rows])


def fill(examples: Sequence[Example], length: int) -> Array:
    """A row of these examples; what is left over is one more text that nobody learns."""
    row = empty_row(length)
    at = 0
    for text, (tokens, learned) in enumerate(examples, 1):
        end = at + len(tokens)
        row[TOKENS, at:end] = tokens
        row[POSITIONS, at:end] = range(len(tokens))
        row[TEXTS, at:end] = text
        row[TARGETS, at : end - 1] = [
            token if use else NOTHING for token, use in zip(tokens[1:], learned[1:])
        ]
        at = end
    return row


def empty_row(length: int) -> Array:
    """A row that teaches nothing."""
    row = np.zeros((4, length), np.int32)
    row[TARGETS] = NOTHING
    return row
