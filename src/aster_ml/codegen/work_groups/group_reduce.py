"""Lowers reductions by work-items of a block together: warp shuffles, then local memory.

Receives a kernel with GROUP axes; returns its graph with work-item numbers in place of these axes.
Each result is folded from the partial results of the work-items.
"""

from __future__ import annotations

from math import isqrt
from typing import NamedTuple

from aster_ml.codegen.kernel import Kernel
from aster_ml.codegen.staging.stage import ZERO, new_stage
from aster_ml.codegen.work_groups.numbering import items_in, ranges_of_kind, size, store_where
from aster_ml.dtype import dtypes
from aster_ml.helpers import prod
from aster_ml.target import Target
from aster_ml.uop.graph import substitute, toposort
from aster_ml.uop.node import UOp, index_alu
from aster_ml.uop.ops import AxisType, Ops, ReduceArg

# Dtypes that a shuffle exchanges.
SHUFFLED = frozenset({dtypes.int32, dtypes.uint32, dtypes.float32})


class Team(NamedTuple):
    """The work-items that fold a result together.

    Numbers of neighbouring work-items differ by `step`. With `everyone`, all of them need the
    result; else only the first.
    """

    item: UOp
    step: int
    everyone: bool


def reduce_in_groups(kernel: Kernel, order: list[int], target: Target) -> None:
    """Reduces a part in each work-item, then the parts.

    rewrite: REDUCE(v, k, g) -> fold over g of REDUCE(v, k); `g` becomes the work-item's number
    why: a reduction with few results would leave most work-items without work
    """
    grouped = [u for u in kernel.reduces if group_of(u) is not None]
    if not grouped:
        return
    teams, gates = assign_teams(kernel, grouped, order)
    items = items_in(kernel, order, gates)
    total = prod([size(r) for r in items])
    taken = list(kernel.facts.order)
    changes: dict[UOp, UOp] = {}
    for u in grouped:
        g, (item, everyone) = group_of(u), teams[u]
        assert g is not None
        step = prod([size(r) for r in items[items.index(item) + 1 :]])
        team = Team(item, step, everyone)
        value = substitute(u.src[0], {**changes, g: item})
        rest = tuple([r for r in u.src[1:] if r is not g])
        value, rest = in_registers(kernel, u, value, rest)
        part = UOp(Ops.REDUCE, u.dtype, (value, *rest), u.arg) if rest else value
        warp = target.warp if "shuffle" in target.features and u.dtype in SHUFFLED else 0
        count = neighbours_in_warp(item, step, warp) if total % max(warp, 1) == 0 else 1
        part = fold_in_warp(part, team, count, u.arg.op)
        changes[u] = fold_in_memory(kernel, taken, part, team, count, u.arg.op)
    kernel.sink = substitute(kernel.sink, changes)
    for item in gates:
        # One work-item of the team stores the result.
        kernel.sink = store_where(kernel, item.alu(Ops.CMPLT, UOp.index_const(1)))


def group_of(u: UOp) -> UOp | None:
    """The GROUP axis of a reduction."""
    return next((r for r in u.src[1:] if r.arg.kind is AxisType.GROUP), None)


def in_registers(
    kernel: Kernel, u: UOp, value: UOp, lanes: tuple[UOp, ...]
) -> tuple[UOp, tuple[UOp, ...]]:
    """Reduces a row over the lanes of the results in place of its own lanes.

    rewrite: REDUCE(v(k), k) -> REDUCE(v(o), o), for lanes o of results that the sum does not depend
    on
    why: several sums and the results then read the same nodes, which are loaded and computed once
    when: the row has only lanes left, as many as the results have
    """
    free = [
        r
        for r in kernel.outputs
        if r.arg.kind.is_lane and r not in u.ranges and r not in value.ranges
    ]
    twins: dict[UOp, UOp] = {}
    for r in lanes:
        kinds = (AxisType.VECTOR,) if r.arg.kind is AxisType.VECTOR else (AxisType.UPCAST,)
        same = [o for o in free if o.arg.kind in kinds and size(o) == size(r)]
        if not r.arg.kind.is_lane or not same:
            return value, lanes
        twins[r] = same[0]
        free.remove(same[0])
    return substitute(value, dict(twins)), tuple(twins.values())


def assign_teams(
    kernel: Kernel, grouped: list[UOp], order: list[int]
) -> tuple[dict[UOp, tuple[UOp, bool]], list[UOp]]:
    """For each reduction the work-item axis that replaces its GROUP axis, and all new axes.

    Work-items along results that need the same reduction compute that reduction too. All
    work-items of a later reduction need the results of an earlier one.
    """
    read = {r for u in grouped for r in toposort(u.src[0]) if r in grouped}
    outputs = ranges_of_kind(kernel, AxisType.LOCAL)
    teams: dict[UOp, tuple[UOp, bool]] = {}
    fresh: list[UOp] = []
    for u in grouped:
        g = group_of(u)
        assert g is not None
        twin = [r for r in outputs if size(r) == size(g) and r not in u.ranges]
        if twin:
            teams[u] = (twin[0], True)
            continue
        if not fresh or size(fresh[-1]) != size(g):
            fresh.append(kernel.new_range(size(g), AxisType.LOCAL))
            order[order.index(g.arg.id)] = fresh[-1].arg.id
        teams[u] = (fresh[-1], u in read)
    return teams, fresh


def neighbours_in_warp(item: UOp, step: int, warp: int) -> int:
    """Counts the work-items of a team, each `step` from the next, that are in one warp.

    The count is a power of two that divides the team, so that numbers of two work-items of an
    exchange differ in one bit; 1 where there is no such count.
    """
    if step & (step - 1):
        return 1
    n, count = size(item), 1
    while 2 * count * step <= warp and n % (2 * count) == 0:
        count *= 2
    return count


def fold_in_warp(part: UOp, team: Team, count: int, op: Ops) -> UOp:
    """Folds over `count` neighbours of a team, a power of two, by butterfly exchange.

    rewrite: v -> v + SHUFFLE(v, d) for d of count / 2 to 1, times the step of the team
    """
    while count > 1:
        count //= 2
        part = part.alu(op, UOp(Ops.SHUFFLE, part.dtype, (part,), count * team.step))
    return part


def fold_in_memory(
    kernel: Kernel, taken: list[UOp], part: UOp, team: Team, count: int, op: Ops
) -> UOp:
    """Folds through local memory; each `count` neighbours of a team have the same part.

    rewrite: v(item) -> REDUCE(LOAD(local at r), r), after one of each `count` work-items has stored
    v in `local`, and a barrier. Many parts take two rounds: some work-items reduce several parts
    each, and after another barrier all that need the result reduce those
    """
    item, _, everyone = team
    left = size(item) // count
    kinds = [r for r in part.ranges if r.arg.kind is AxisType.LOCAL or r.arg.kind.is_lane]
    axes = sorted([r for r in kinds if r is not item], key=lambda r: r.arg.id)
    place, mine = item, None
    if count > 1:
        place = index_alu(Ops.IDIV, item, UOp.index_const(count))
        mine = index_alu(Ops.MOD, item, UOp.index_const(count)).alu(Ops.CMPLT, UOp.index_const(1))
    for several in rounds(left) if left > 1 else []:
        room = UOp(Ops.RANGE, item.dtype, (UOp.index_const(left),), item.arg)
        local = new_stage(taken, part.dtype, [*axes, room])
        taken.append(local.memory)
        left //= several
        fill = local.memory.index(local.at({room: place})).store(part)
        if mine is not None:
            fill = UOp(Ops.STORE, fill.dtype, (*fill.src, mine))
        # A work-item folds each value of this round; in the last round all work-items that need the
        # result fold the rest.
        folding = left if left > 1 else size(item) if everyone else 1
        again = kernel.new_range(turns(item, folding, several), AxisType.REDUCE)
        stride = index_alu(Ops.MUL, again, UOp.index_const(left))
        at = index_alu(Ops.ADD, stride, item if left > 1 else ZERO)
        read = local.after_all(fill).load(local.at({room: at}))
        part = UOp(Ops.REDUCE, part.dtype, (read, again), ReduceArg(op))
        place, mine = item, item.alu(Ops.CMPLT, UOp.index_const(left))
    return part


def rounds(count: int) -> list[int]:
    """Lists how many of `count` values each work-item folds in each round.

    Two rounds if they have at most half as many steps together, since a barrier takes time, too.
    """
    first = next((n for n in range(isqrt(count), 1, -1) if count % n == 0), 1)
    second = count // first
    return [second, first] if 2 * (first + second) <= count else [count]


def turns(item: UOp, folding: int, count: int) -> UOp:
    """The trip count of a loop: `count` for the first work-items, 0 for the others."""
    whole = UOp.index_const(count)
    if folding == size(item):
        return whole
    return item.alu(Ops.CMPLT, UOp.index_const(folding)).where(whole, UOp.index_const(0))
