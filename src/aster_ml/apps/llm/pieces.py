"""Merges the letters of texts to the pieces of the best scores, as vocabularies of pieces want it.

Receives the numbers, kinds and scores of tokens; returns the numbers of a text's tokens. Of two
neighbours whose texts together are a piece those are merged first whose piece has the best score;
of equal ones, the leftmost. A letter that is no token becomes the tokens of its bytes.

why: the package `tokenizers` wants to have every pair of tokens that makes a piece, half a million
of them for 262,144 tokens, which takes longer than to read the rest of a model, and 100 MB

Source: Kudo and Richardson, SentencePiece (2018).
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Mapping, Sequence
from heapq import heapify, heappop, heappush

SPACE = "\u2581"
# Where no piece has a blank behind another letter, nothing is merged across a word's beginning.
WORD = re.compile(f"{SPACE}*[^{SPACE}]+|{SPACE}+")


class Pieces:
    """Text to the tokens of a vocabulary of pieces.

    `number` has each token's number, `mergeable` by the number whether it is a piece that others
    are merged to, and `scores` how good it is. `unknown` is the token of a letter that has none,
    not even for its bytes; without one such letters are left out.
    """

    def __init__(
        self,
        number: Mapping[str, int],
        mergeable: Sequence[bool],
        scores: Sequence[float],
        unknown: int | None,
    ) -> None:
        self.number = number
        self.mergeable = bytes(mergeable)
        self.scores = array("d", scores)
        self.otherwise = [] if unknown is None else [unknown]
        self.bytes = [number.get(f"<0x{b:02X}>") for b in range(256)]
        pieces = [text for text, i in number.items() if SPACE in text and self.mergeable[i]]
        self.has_words = not any([SPACE in text.lstrip(SPACE) for text in pieces])

    def __call__(self, text: str) -> list[int]:
        """The tokens of a text."""
        text = text.replace(" ", SPACE)
        if not self.has_words:
            return self.merged(text)
        return [token for word in WORD.findall(text) for token in self.merged(word)]

    def merged(self, text: str) -> list[int]:
        """The tokens of a text, or of a word."""
        number, mergeable, scores = self.number, self.mergeable, self.scores
        count = len(text)
        # By where a symbol begins, where it ends, and where the one before it begins. What begins
        # no symbol any more, and the end of the text, lead to no end.
        gone = count + 1
        ends = [*range(1, count + 1), -1, -1]
        before = list(range(-1, count))
        waiting: list[tuple[float, int, int]] = []
        for at in range(count - 1):
            found = number.get(text[at : at + 2])
            if found is not None and mergeable[found]:
                waiting.append((-scores[found], at, at + 2))
        heapify(waiting)
        while waiting:
            _, at, end = heappop(waiting)
            middle = ends[at]
            if ends[middle] != end:
                # One of the two has become longer, or is a part of another.
                continue
            ends[at], ends[middle] = end, gone
            before[end] = at
            for first, last in ((at, ends[end]), (before[at], end)):
                if first < 0 or last < 0:
                    continue
                found = number.get(text[first:last])
                if found is not None and mergeable[found]:
                    heappush(waiting, (-scores[found], first, last))
        result: list[int] = []
        at = 0
        while at < count:
            found = number.get(text[at : ends[at]])
            if found is None:
                result += self.spelt(text[at : ends[at]])
            else:
                result.append(found)
            at = ends[at]
        return result

    def spelt(self, letter: str) -> list[int]:
        """The tokens of a letter's bytes, or what stands for letters that are not known."""
        found = [self.bytes[b] for b in letter.encode("utf-8", "replace")]
        known = [i for i in found if i is not None]
        return known if len(known) == len(found) else self.otherwise
