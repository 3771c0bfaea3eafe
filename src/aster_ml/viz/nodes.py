"""Nodes as columns of numbers: every graph of a run in one table, each node once.

Receives nodes of any stage; gives them numbers, sources first, and returns the table as plain data.
A graph is then the number of its root. Which graphs there are is not known here.
"""

from __future__ import annotations

from typing import Any

from aster_ml.dtype import dtypes
from aster_ml.errors import AsterError
from aster_ml.extend import render_expr
from aster_ml.uop.graph import toposort
from aster_ml.uop.node import UOp
from aster_ml.uop.print.text import SHOWN, arg_text

# Characters of an argument, or of an expression beside it, that are kept.
MOST_CHARACTERS = 400


class Words:
    """Texts by number, each once."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}

    def add(self, text: str) -> int:
        """The number of a text."""
        return self.numbers.setdefault(text, len(self.numbers))

    @property
    def texts(self) -> list[str]:
        """All of them by number."""
        return [*self.numbers]


def shortened(text: str) -> str:
    """A text that is not too long, with its end cut off."""
    return text if len(text) <= MOST_CHARACTERS else text[: MOST_CHARACTERS - 3] + "..."


def argument_text(u: UOp) -> str:
    """The argument of a node as the text form has it; of what has no such form, its repr."""
    if u.arg is None:
        return ""
    try:
        return arg_text(u)
    except AsterError:
        return shortened(repr(u.arg))


def expression_text(u: UOp) -> str:
    """Text of the expression of an index."""
    if u.dtype is not dtypes.index or u.op not in SHOWN or not any([s.src for s in u.src]):
        return ""
    return render_expr(u)


class NodeTable:
    """The nodes of all graphs; `number` adds what is below a node, too."""

    def __init__(self) -> None:
        self.numbers: dict[UOp, int] = {}
        self.ops, self.dtypes, self.args = Words(), Words(), Words()
        self.op: list[int] = []
        self.dtype: list[int] = []
        self.src: list[list[int]] = []
        self.arg: list[int] = []
        self.note: dict[int, str] = {}

    def number(self, root: UOp) -> int:
        """The number of a node."""
        found = self.numbers.get(root)
        if found is not None:
            return found
        numbers = self.numbers
        for u in toposort(root, enter=lambda x: x not in numbers):
            if u not in numbers:
                self.add(u)
        return numbers[root]

    def add(self, u: UOp) -> None:
        """Enters a node whose sources are there."""
        number = self.numbers[u] = len(self.numbers)
        self.op.append(self.ops.add(u.op.name))
        self.dtype.append(self.dtypes.add(u.dtype.name))
        self.src.append([self.numbers[s] for s in u.src])
        self.arg.append(self.args.add(argument_text(u)))
        note = expression_text(u)
        if note:
            self.note[number] = note

    def data(self) -> dict[str, Any]:
        """The whole table."""
        return {
            "ops": self.ops.texts,
            "dtypes": self.dtypes.texts,
            "args": self.args.texts,
            "op": self.op,
            "dtype": self.dtype,
            "src": self.src,
            "arg": self.arg,
            "note": self.note,
        }
