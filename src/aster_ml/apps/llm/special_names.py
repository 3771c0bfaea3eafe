"""Finds names of special tokens in texts: thousands of names, and the longest where several begin.

Receives names once; returns the places of a text where they stand. What a name stands for is in
`tokenizer`.

why: a regular expression of thousands of names takes a good part of a second to compile
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator


class Names:
    """Names that may stand in a text; none is empty."""

    def __init__(self, names: Iterable[str]) -> None:
        self.names = sorted(set(names))
        self.longest = max(map(len, self.names), default=0)
        letters = "".join(sorted({name[0] for name in self.names}))
        self.begins = re.compile(f"[{re.escape(letters)}]" if letters else "(?!)")
        # By the number of a name, that of the longest other one that it begins with; -1 for none.
        self.inner: list[int] = []
        open_ones: list[int] = []
        for i, name in enumerate(self.names):
            while open_ones and not name.startswith(self.names[open_ones[-1]]):
                open_ones.pop()
            self.inner.append(open_ones[-1] if open_ones else -1)
            open_ones.append(i)

    def name_at(self, text: str, at: int) -> str:
        """The longest name that begins at a place; "" where none does.

        All names that begin there are among those that the last one in order before the text
        begins with, or are that one.
        """
        rest = text[at : at + self.longest]
        i = bisect_right(self.names, rest) - 1
        while i >= 0 and not rest.startswith(self.names[i]):
            i = self.inner[i]
        return self.names[i] if i >= 0 else ""

    def find(self, text: str) -> Iterator[tuple[int, str]]:
        """Where names stand from left to right, none inside of another."""
        end = 0
        for match in self.begins.finditer(text):
            at = match.start()
            if at >= end and (name := self.name_at(text, at)):
                yield at, name
                end = at + len(name)

    def starts(self, text: str) -> list[int]:
        """Every place where a name begins."""
        places = [match.start() for match in self.begins.finditer(text)]
        return [at for at in places if self.name_at(text, at)]

    def is_begun(self, text: str) -> bool:
        """Whether a text is the beginning of a name, and not all of it."""
        i = bisect_right(self.names, text)
        return i < len(self.names) and self.names[i].startswith(text)
