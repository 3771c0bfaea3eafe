"""Counts how often a warp goes to the banks of local memory, by the places that a program names.

Receives a Linear; returns for each access of local memory how many turns its first warp takes, and
how many of them are conflicts. Model: 32 banks of 4 bytes; of 8 bytes a work-item half a warp is
served in one turn, of 16 a quarter, and two of these together where each work-item reads what its
neighbour reads, or each what its next neighbour but one does. Work-items of a turn that want
different words of one bank take turns.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from typing import NamedTuple

from aster_ml.uop.evaluate import evaluate_expr
from aster_ml.uop.linear import Linear
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import AxisType, Ops
from aster_ml.uop.ranges import size_of

WARP, BANKS, WORD, WIDEST = 32, 32, 4, 16


class Count(NamedTuple):
    """Accesses of a kind, of so many bytes a work-item: how many, the turns, and those too many."""

    accesses: int = 0
    turns: int = 0
    conflicts: int = 0


def turns_of(addresses: list[int], nbytes: int) -> tuple[int, int]:
    """The turns that a warp takes for so many bytes at each address, and the conflicts in them."""
    step = WARP * WORD // max(nbytes, WORD)
    pairs = [all([addresses[i] == addresses[i ^ by] for i in range(WARP)]) for by in (1, 2)]
    if nbytes > WORD and any(pairs):
        step *= 2
    turns = 0
    for first in range(0, WARP, step):
        words = defaultdict(set)
        for a in addresses[first : first + step]:
            for word in range(a // WORD, -(-(a + nbytes) // WORD)):
                words[word % BANKS].add(word)
        turns += max([len(w) for w in words.values()])
    return turns, turns - WARP // step


def memory_of(index: UOp) -> UOp:
    """The memory of an index."""
    memory = index.src[0]
    while memory.op is Ops.AFTER:
        memory = memory.src[0]
    return memory


def count_turns(linear: Linear) -> dict[tuple[Ops, int], Count]:
    """By op and bytes of a work-item: the accesses of the first warp to what its block shares."""
    found: dict[tuple[Ops, int], Count] = {}
    for u in linear.uops:
        if u.op not in (Ops.LOAD, Ops.STORE) or u.src[0].op is not Ops.INDEX:
            continue
        memory = memory_of(u.src[0])
        if memory.op is not Ops.DEFINE_LOCAL or memory.arg.private:
            continue
        for nbytes, addresses in accesses(u.src[0], memory.dtype.itemsize):
            turns, conflicts = turns_of(addresses, nbytes)
            old = found.get((u.op, nbytes), Count())
            found[u.op, nbytes] = Count(
                old.accesses + 1, old.turns + turns, old.conflicts + conflicts
            )
    return found


def accesses(index: UOp, itemsize: int) -> list[tuple[int, list[int]]]:
    """Bytes and addresses of all work-items of a warp: neighbours are one access."""
    base, offset = index.src[1:]
    ranges = {*base.ranges, *offset.ranges}
    lanes = [r for r in ranges if r.arg.kind.is_lane]
    items = [r for r in ranges if r.arg.kind is AxisType.LOCAL]
    at = dict.fromkeys(ranges, 0)
    rows = []
    for places in itertools.product(*[range(size_of(r)) for r in lanes]):
        at |= dict(zip(lanes, places, strict=True))
        row = []
        for item in range(WARP):
            at |= dict.fromkeys(items, item)
            row.append((evaluate_expr(base, at) + evaluate_expr(offset, at)) * itemsize)
        rows.append(row)
    rows = sorted({tuple(row) for row in rows})
    found, first = [], 0
    while first < len(rows):
        count = next(n for n in (16, 8, 4, 2, 1) if is_one(rows[first : first + n], n, itemsize))
        found.append((count * itemsize, list(rows[first])))
        first += count
    return found


def is_one(rows: list[tuple[int, ...]], count: int, itemsize: int) -> bool:
    """Whether so many elements are neighbours for each work-item, which one instruction moves."""
    nbytes = count * itemsize
    if len(rows) != count or nbytes > WIDEST or any([a % nbytes for a in rows[0]]):
        return count == 1
    return all([row == tuple([a + i * itemsize for a in rows[0]]) for i, row in enumerate(rows)])
