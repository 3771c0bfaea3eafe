"""Answers that are being made: what is asked, and the text that comes of tokens one by one.

Receives tokens as they are drawn; gives pieces of text, until a stop string, an end token or a
limit. Who computes the tokens is in `engine`, where pieces go is the business of who asked.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple, Protocol

from aster_ml.apps.llm.sampling import Array, Draw, Picked, Sampling
from aster_ml.apps.llm.tokenizer import Tokenizer
from aster_ml.errors import ArgumentError


class Grammar(Protocol):
    """Constraint of an answer, token by token."""

    def mask(self) -> Array:
        """The tokens that may come next, as bits of int32."""
        ...

    def accept(self, token: int) -> None:
        """Takes note of a token."""
        ...

    @property
    def may_end(self) -> bool:
        """Whether what there is so far is valid as it is."""
        ...

    @property
    def is_done(self) -> bool:
        """Whether nothing may follow."""
        ...


class Piece(NamedTuple):
    """Text that is certain, the tokens that it came with, and why the answer ends, if it does.

    `reason` is "stop", "length", "cancelled", "error" or None; `said` is what an error says.
    """

    text: str
    tokens: list[Picked]
    reason: str | None = None
    said: str = ""


class Answer:
    """One answer: what it is to be, and how far it is.

    `deliver` gets every piece, in the thread that computes. `client` is whose turn it is. `ends`
    are the tokens that end it; without them those of the tokenizer.
    Raises: ArgumentError for an empty prompt, and for limits out of range.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompt: Sequence[int],
        sampling: Sampling,
        deliver: Callable[[Piece], None],
        max_tokens: int = 0,
        stop: Sequence[str] = (),
        top: int | None = None,
        grammar: Grammar | None = None,
        client: str = "",
        vocabulary: int = 0,
        ends: Collection[int] | None = None,
    ) -> None:
        if not prompt:
            raise ArgumentError("the prompt is empty; at least one token is wanted")
        if max_tokens < 0:
            raise ArgumentError(f"max_tokens is {max_tokens}; 0 or more is wanted")
        if any([not text for text in stop]):
            raise ArgumentError("stop: texts that are not empty are wanted")
        self.tokenizer, self.prompt, self.deliver = tokenizer, list(prompt), deliver
        self.max_tokens, self.stop, self.top = max_tokens, tuple(stop), top
        self.grammar, self.client = grammar, client
        self.ends = tokenizer.ends if ends is None else ends
        self.draw = Draw(sampling, vocabulary or len(tokenizer.tokens), self.prompt)
        self.tokens: list[int] = []
        self.stream = tokenizer.stream()
        self.held, self.held_tokens = "", list[Picked]()
        self.reason: str | None = None
        self.is_cancelled = False
        self.reused = 0
        self.ended = threading.Event()

    def cancel(self) -> None:
        """Ends it before the next step; from any thread."""
        self.is_cancelled = True

    def prepare(self) -> None:
        """Sets what may come next."""
        if self.grammar is not None:
            self.draw.mask = self.grammar.mask()

    def take(self, picked: Picked, room: int) -> None:
        """The next token; `room` is how many more the memory holds."""
        token = picked.token
        if token in self.ends:
            # A mask lets an end through only where what there is is valid: closed otherwise.
            valid = self.grammar is None or self.grammar.may_end
            self.finish("stop" if valid else "error", "" if valid else "the answer is not whole")
            return
        self.tokens.append(token)
        self.draw.note(token)
        self.held += self.stream.push(token)
        self.held_tokens.append(picked)
        done = False
        if self.grammar is not None:
            self.grammar.accept(token)
            done = self.grammar.is_done
        at = min([i for i in [self.held.find(s) for s in self.stop] if i >= 0], default=-1)
        if at >= 0:
            self.held = self.held[:at]
            self.finish("stop")
        elif done:
            self.finish("stop")
        elif room <= 0 or len(self.tokens) == self.max_tokens:
            self.finish("length")
        else:
            self.give(len(self.held) - self.may_begin())

    def may_begin(self) -> int:
        """Length of the held text's end that may begin a stop string."""
        return max(
            [
                n
                for text in self.stop
                for n in range(1, min(len(text), len(self.held) + 1))
                if self.held.endswith(text[:n])
            ],
            default=0,
        )

    def give(self, count: int) -> None:
        """Delivers so many characters, with all tokens so far."""
        if count > 0:
            text, self.held = self.held[:count], self.held[count:]
            tokens, self.held_tokens = self.held_tokens, []
            self.deliver(Piece(text, tokens))

    def finish(self, reason: str, said: str = "") -> None:
        """The last piece."""
        if self.reason is not None:
            return
        self.reason = reason
        tail = self.stream.end() if reason == "length" else ""
        self.deliver(Piece(self.held + tail, self.held_tokens, reason, said))
        self.held, self.held_tokens = "", []
        self.ended.set()


def collect() -> tuple[list[Piece], Callable[[Piece], None]]:
    """A list of pieces and what fills it: for answers that are wanted whole."""
    pieces: list[Piece] = []
    return pieces, pieces.append
