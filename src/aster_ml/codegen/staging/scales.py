"""Scales of blocks, made for a row of them at once, with SIMD lanes, in scratch.

Receives a kernel whose sums over blocks are written out; returns factors of the products that are
left as loads of scratch. Which factors are those of a block is said in `transforms/factored_sums`.

rewrite: s(b, rows) -> LOAD(INDEX(scratch, b * R + rows)), after scratch has been filled with s over
all b and rows, and before that other scratch with the integers that s is made of
when: s is made of bytes, and is the same in all SIMD lanes
why: SIMD units widen a number for all lanes, whether one of them is wanted or all; and what lies
side by side in memory is broadcast as it is loaded
"""

from __future__ import annotations

from aster_ml.codegen.kernel import Kernel
from aster_ml.codegen.staging.row import max_nbytes
from aster_ml.codegen.staging.stage import Stage, new_stage
from aster_ml.codegen.transforms.decoded import codes_of
from aster_ml.helpers import ceildiv, prod
from aster_ml.target import Target
from aster_ml.uop.graph import substitute, toposort
from aster_ml.uop.node import UOp, index_alu
from aster_ml.uop.ops import AxisType, Ops
from aster_ml.uop.ranges import size_of


class Scales:
    """The scratch of one kernel."""

    def __init__(self, kernel: Kernel, target: Target) -> None:
        self.kernel, self.target = kernel, target
        # What scratch is numbered after.
        self.made: list[UOp] = [*kernel.facts.order]
        self.found: dict[UOp, UOp] = {}

    def staged(self, factor: UOp, loops: list[UOp]) -> UOp:
        """A factor as a load of scratch, where that pays; as it is where not."""
        if factor not in self.found:
            self.found[factor] = self.stage(factor, loops)
        return self.found[factor]

    def inside(self, value: UOp, loops: list[UOp]) -> dict[UOp, UOp]:
        """Finds the largest staged parts of a value, and the loads in their place."""
        found: dict[UOp, UOp] = {}
        stack = [value]
        while stack:
            u = stack.pop()
            if u in found or u.dtype.kind != "float" or u.op is Ops.LOAD:
                continue
            load = self.staged(u, loops)
            if load is not u:
                found[u] = load
            else:
                stack.extend(u.src)
        return found

    def stage(self, factor: UOp, loops: list[UOp]) -> UOp:
        """`staged` of what is not known yet."""
        kinds = {r.arg.kind for r in factor.ranges}
        loops = [r for r in loops if r in factor.ranges and r.arg.kind is AxisType.REDUCE]
        lanes = [r for r in factor.ranges if r.arg.kind is AxisType.UPCAST]
        lanes.sort(key=lambda r: r.arg.id)
        if AxisType.VECTOR in kinds or AxisType.UNROLL in kinds or not codes_of(factor):
            return factor
        axes = [*loops, *lanes]
        if not loops or any([r.src[0].op is not Ops.CONST for r in axes]):
            return factor
        width = self.target.lanes(factor.dtype.itemsize)
        count = prod([size_of(r) for r in axes])
        room = ceildiv(count, width) * width
        if count < width or room * 4 > max_nbytes(self.target) // 4:
            return factor
        turn = self.kernel.new_range(UOp.index_const(room // width), AxisType.LOOP)
        lane = self.kernel.new_range(UOp.index_const(width), AxisType.VECTOR)
        step = index_alu(Ops.ADD, index_alu(Ops.MUL, turn, UOp.index_const(width)), lane)
        parts = {u: self.filled(u, axes, room).load(step) for u in integers_of(factor)}
        row = self.scratch(factor, axes, room)
        row = row.after(row.fill(step, substitute(factor, parts), turn, lane))
        return row.load(row.at())

    def filled(self, whole: UOp, axes: list[UOp], room: int) -> Stage:
        """Scratch with an integer for each place of the axes."""
        row = self.scratch(whole, axes, room)
        kinds = {r: AxisType.LOOP if r.arg.kind is AxisType.REDUCE else r.arg.kind for r in axes}
        at = {r: self.kernel.new_range(r.src[0], kind) for r, kind in kinds.items()}
        return row.after(row.fill(row.at(at), substitute(whole, at), *at.values()))

    def scratch(self, like: UOp, axes: list[UOp], room: int) -> Stage:
        """New scratch for elements of a dtype."""
        row = new_stage(self.made, like.dtype, axes, room)
        self.made.append(row.memory)
        return row


def integers_of(factor: UOp) -> list[UOp]:
    """The integers that a float is made of, those alone that it is made of at once."""
    order = toposort(factor, enter=lambda u: u.dtype.kind == "float")
    return [u for u in order if u.dtype.kind != "float" and u.op is not Ops.CONST]
