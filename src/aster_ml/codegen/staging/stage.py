"""Staging: values in scratch, between the loops that fill it and the loops that read it.

Receives nodes that may hold scratch already, a dtype and the axes that values lie along; returns a
`Stage`, which gives the nodes that fill and read it. All scratch of a kernel is made and numbered
here. What is worth staging, along which axes, and by which loops it is filled is said by its users:
panels, packed words, rows, halos, row accumulators, epilogues, pipelined rows, local memory.

rewrite: v(axes) -> LOAD(INDEX(AFTER(scratch, fill), at(axes)))
where fill is END(STORE(INDEX(scratch, at(own)), v(own)), own), own ranges in place of the axes
when: the loops around both the fill and the read are those that v depends on beside its axes
why: what is loaded or computed once is read often, in the order and with the lanes of its readers
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from aster_ml.dtype import DType, dtypes
from aster_ml.helpers import prod
from aster_ml.uop.node import UOp, index_alu
from aster_ml.uop.ops import Ops, ScratchArg
from aster_ml.uop.ranges import size_of

ZERO = UOp.index_const(0)


class Stage(NamedTuple):
    """Scratch whose elements lie along `axes`, row-major: those of the last are neighbours.

    `memory` is the scratch, or what stands for it once it is filled.
    """

    memory: UOp
    axes: tuple[UOp, ...] = ()

    def at(self, place: Mapping[UOp, UOp] | None = None) -> UOp:
        """The index of an element, with other values in place of some axes."""
        return position(self.axes, place)

    def fill(self, at: UOp, value: UOp, *loops: UOp) -> UOp:
        """The loops that store a value at an index."""
        return self.memory.index(at).store(value).end(*loops)

    def after(self, *fills: UOp) -> Stage:
        """The same scratch once it has been filled: in order, by each work-item for itself."""
        return self._replace(memory=self.memory.after(*fills))

    def after_all(self, *fills: UOp) -> Stage:
        """The same once all work-items of a block have filled it."""
        return self.after(UOp(Ops.BARRIER, dtypes.void, fills))

    def load(self, at: UOp) -> UOp:
        """The element at an index."""
        return self.memory.index(at).load()


def new_stage(
    nodes: Iterable[UOp], dtype: DType, axes: Iterable[UOp] = (), size: int | None = None,
    xor: tuple[int, int, int] | None = None, private: bool = False, over: tuple[int, ...] = (),
) -> Stage:  # fmt: skip
    """New scratch over these axes, or of so many elements, with a number that no node here has."""
    axes = tuple(axes)
    number = 1 + max([u.arg.id for u in nodes if u.op is Ops.DEFINE_LOCAL], default=-1)
    room = prod([size_of(r) for r in axes]) if size is None else size
    return Stage(
        UOp(Ops.DEFINE_LOCAL, dtype, (), ScratchArg(number, room, private, xor, over)), axes
    )


def position(axes: Iterable[UOp], place: Mapping[UOp, UOp] | None = None, start: UOp = ZERO) -> UOp:
    """The row-major place in the space of these axes, within the one `start` of those before."""
    place = {} if place is None else place
    for r in axes:
        # Of a loop whose length changes there is room for the longest.
        size = UOp.index_const(size_of(r))
        start = index_alu(Ops.ADD, index_alu(Ops.MUL, start, size), place.get(r, r))
    return start
