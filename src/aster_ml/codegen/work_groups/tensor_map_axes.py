"""Derives the axes of tensor maps (TMA): their ranges, strides, and start of a tile.

Receives the linear form of an address; returns a `Side`, or refuses an address that TMA cannot
copy. Operands (`tma_tiles`) and results (`tma_epilogue`) have two sides each.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from aster_ml.errors import KernelOptError
from aster_ml.target.tensor_cores import TensorCore
from aster_ml.target.tensor_maps import ALIGNMENT
from aster_ml.uop.node import UOp, index_sum, index_times
from aster_ml.uop.ops import AxisType, Ops
from aster_ml.uop.ranges import size_of
from aster_ml.uop.rules.conditions import conditions_of
from aster_ml.uop.rules.linear_form import Form
from aster_ml.uop.rules.symbolic import affine_form, simplify

TILE_KINDS = (AxisType.LOCAL, AxisType.UPCAST, AxisType.UNROLL)


class Side(NamedTuple):
    """One of two axes: its ranges with their steps, in elements of the axis.

    `stride` is the distance of two elements in memory, `size` the length of the axis, `tile` the
    length of a tile.
    """

    steps: dict[UOp, int]
    stride: int
    size: int
    tile: int

    def at(self, kinds: Iterable[UOp]) -> UOp:
        """The coordinate along the axis from some of its ranges."""
        return index_sum([index_times(r, n) for r, n in self.steps.items() if r in kinds])

    @property
    def tiles(self) -> dict[UOp, int]:
        """The ranges within a tile."""
        return {r: n for r, n in self.steps.items() if r.arg.kind in TILE_KINDS}

    @property
    def first(self) -> UOp:
        """The start of a tile along the axis."""
        return self.at([r for r in self.steps if r.arg.kind not in TILE_KINDS])


def refuse(core: TensorCore, why: str) -> KernelOptError:
    """The error for an operand that TMA cannot copy."""
    return KernelOptError(f"{core.name} wants operands that are boxes of tensors: {why}")


def refuse_result(core: TensorCore, why: str) -> KernelOptError:
    """The error for results that cannot be stored through local memory."""
    return KernelOptError(f"STAGE out has no way for results of {core.name}: {why}")


def whole_strides(strides: Iterable[int], itemsize: int) -> bool:
    """Whether a tensor map can have these strides."""
    return all([n > 0 and n * itemsize % ALIGNMENT == 0 for n in strides])


def side_of(core: TensorCore, form: Form, mine: list[UOp]) -> Side:
    """The axis formed by these ranges of an address. Raises: KernelOptError where there is none."""
    strides = {r: form.terms[r] for r in mine if r in form.terms}
    tiles = sorted([r for r in strides if r.arg.kind in TILE_KINDS], key=strides.__getitem__)
    if not tiles:
        raise refuse(core, "one of them does not change along m, n or k")
    stride, tile = strides[tiles[0]], 1
    for r in tiles:
        if strides[r] != stride * tile:
            raise refuse(core, "a tile of one of them has holes")
        tile *= size_of(r)
    rest = [r for r in strides if r not in tiles]
    if any([strides[r] % (stride * tile) for r in rest]):
        raise refuse(core, "its tiles do not follow one another")
    steps = {r: n // stride for r, n in strides.items()}
    size = 1 + sum([(size_of(r) - 1) * n for r, n in steps.items()])
    return Side(steps, stride, size, tile)


def bounded(core: TensorCore, sides: tuple[Side, ...], gates: Iterable[UOp]) -> tuple[Side, Side]:
    """Both axes, shortened to their masks. Raises: KernelOptError for a mask of another form."""
    found = list(sides)
    for gate in [c for g in gates for c in conditions_of(g)]:
        left, right = gate.src if gate.op is Ops.CMPLT else (gate, gate)
        form = affine_form(simplify(left), set())[0]
        steps = [i for i, s in enumerate(found) if s.steps == form.terms]
        if gate.op is not Ops.CMPLT or right.op is not Ops.CONST or not steps:
            raise refuse(core, "a mask of one of them is none of an end")
        i = steps[0]
        found[i] = found[i]._replace(size=min(found[i].size, right.arg - form.const))
    return found[0], found[1]
