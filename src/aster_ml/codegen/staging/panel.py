"""Packed panels: an operand that a product reads again and again, laid out as it is read.

Receives a kernel with the Opt STAGE panel; returns its graph with a load going through scratch.
Only for targets without work-groups, where scratch is a strip of stack in the cache. Which kernels
get one is decided in `policy/cpu/panel`, by what is said here of what is worth it.

rewrite: LOAD(INDEX(p, f(outer, k, lanes))) -> LOAD(INDEX(panel, g(k, lanes))), after the panel has
been filled with f over all k and lanes
when: the panel fits half of the second cache, loops that do not change it run inside, and either
its SIMD lanes are not neighbours in p or neighbours in k are far apart
why: lanes that are gathered once can be loaded whole from then on; and rows far apart fall on the
same few cache lines' places and push one another out, while packed they are one stream
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from aster_ml.codegen.kernel import Access, Kernel
from aster_ml.codegen.plans import PackedPanel, PackedWords, RowSums
from aster_ml.codegen.prefetch import APART_NBYTES, rows_to_ask_for
from aster_ml.codegen.staging.stage import Stage, new_stage
from aster_ml.codegen.transforms.trip_counts import masks_of_last, without_conditions
from aster_ml.errors import KernelOptError
from aster_ml.helpers import prod
from aster_ml.target import BLOCK_NBYTES, Target
from aster_ml.uop.graph import holds, substitute
from aster_ml.uop.node import UOp, index_alu
from aster_ml.uop.ops import AxisType, LoadArg, Ops
from aster_ml.uop.ranges import size_of
from aster_ml.uop.rules.symbolic import simplify_around

# What the axes of a panel become where it is filled, and the load in their place.
Place = tuple[dict[UOp, UOp], UOp]
# Fewer uses of a panel than this do not pay for packing it.
MIN_REUSE = 6
# Results that each gathered element has to serve, and each that is loaded in a run and transposed.
MIN_GATHERED_USES, MIN_TRANSPOSED_USES = 16, 6


def stage_panel(kernel: Kernel, slot: int) -> None:
    """A load from this slot is to go through a packed panel.

    Raises: KernelOptError where it cannot.
    """
    if kernel.plan(PackedWords) is not None or kernel.plan(RowSums) is not None:
        raise KernelOptError("sums of whole rows, and panels of words, have no panel beside")
    load_to_pack(kernel, slot)
    kernel.add(PackedPanel(slot=slot))


def pack_panels(kernel: Kernel, target: Target) -> None:
    """The operand that STAGE panel names goes through a packed panel in scratch."""
    plan = kernel.plan(PackedPanel)
    assert plan is not None
    a = load_to_pack(kernel, plan.slot)
    axes = panel_axes(a, reduced_axes(kernel))
    ahead = rows_to_ask_for(a, axes, target)

    def asking(load: UOp) -> UOp:
        return UOp(Ops.LOAD, load.dtype, load.src, LoadArg(ahead)) if ahead else load

    places = places_to_fill(kernel, a, axes)
    kernel.sink = substitute(kernel.sink, {a.node: packed_load(kernel, a, axes, places, asking)})


def max_nbytes(target: Target) -> int:
    """The largest panel: an eighth of all scratch, since kernels of a run have one each."""
    return min(target.costs.scratch_nbytes // 8, target.cache_bytes[1] * 5 // 8)


def reduced_axes(kernel: Kernel) -> list[UOp]:
    """The loops of the kernel's reduction."""
    return [r for u in kernel.reduces for r in u.src[1:] if r.arg.kind is AxisType.REDUCE]


def load_to_pack(kernel: Kernel, slot: int) -> Access:
    """The first load from a slot that has SIMD lanes and can go through a panel.

    Raises: KernelOptError where there is none.
    """
    fitting: dict[int, Access] = {}
    for a in kernel.accesses():
        if not a.is_store and has_panel(kernel, a):
            fitting.setdefault(a.buffer.arg.slot, a)
    if slot not in fitting:
        raise KernelOptError(
            f"STAGE panel: no load from slot {slot} can go through a panel, but from "
            f"{' or '.join(map(str, fitting)) or 'none'}: a load of memory with SIMD lanes at "
            "constant steps, in the one reduction of the kernel"
        )
    return fitting[slot]


def has_panel(kernel: Kernel, a: Access) -> bool:
    """Whether a load could go through a panel."""
    written = {store.src[0].src[0] for store in kernel.stores}
    return (
        reduces_alone(kernel)
        and a.buffer not in written
        and a.buffer.op is Ops.PARAM
        and a.node.arg is None
        and can_pack(a)
        and has_steps(a, reduced_axes(kernel))
    )


def reduces_alone(kernel: Kernel) -> bool:
    """Whether there is one reduction, in all loops of outputs."""
    loops = [r for r in kernel.outputs if not r.arg.kind.is_lane]
    return len(kernel.reduces) == 1 and set(loops) <= kernel.reduces[0].ranges


def wanted_panel(kernel: Kernel) -> Access | None:
    """The load that would be worth packing if there were room, if there is one."""
    if not reduces_alone(kernel):
        return None
    reduced = reduced_axes(kernel)
    found = (a for a in kernel.accesses() if is_worth_packing(a, kernel.outputs, reduced))
    return next((a for a in found if has_panel(kernel, a)), None)


def panel_axes(a: Access, reduced: list[UOp]) -> list[UOp]:
    """The axes that a panel spans: the reduced ones, then lanes, the SIMD one last."""
    lanes = [r for r in a.strides if r.arg.kind.is_lane]
    lanes.sort(key=lambda r: (r.arg.kind is AxisType.VECTOR, r.arg.id))
    return [*[r for r in reduced if r in a.strides], *lanes]


def panel_nbytes(kernel: Kernel, a: Access) -> int:
    """Room that a panel takes."""
    axes = panel_axes(a, reduced_axes(kernel))
    return int(prod([size_of(r) for r in axes])) * a.buffer.dtype.itemsize


def is_worth_packing(a: Access, outputs: list[UOp], reduced: list[UOp]) -> bool:
    """Whether the conditions at the top hold for this load, room aside."""
    if not can_pack(a) or a.node.arg is not None or not has_steps(a, reduced):
        return False
    vector = [r for r in a.strides if r.arg.kind is AxisType.VECTOR]
    axes = panel_axes(a, reduced)
    if a.strides[vector[0]] != 1:
        # The loops are ordered for such a panel, so all that do not change it use it again.
        return uses_of(a, outputs) >= least_uses(a, reduced, size_of(vector[0]))
    far = max([abs(a.strides[r] or 0) for r in axes if r in reduced], default=0)
    return far * a.buffer.dtype.itemsize >= APART_NBYTES and fill_uses(a, outputs) >= MIN_REUSE


def fill_uses(a: Access, outputs: list[UOp]) -> int:
    """Counts how often a panel is gone through once it is filled.

    Loops inside of the innermost one that the panel changes with use it again.
    """
    loops = [r for r in outputs if not r.arg.kind.is_lane]
    inside = max([i for i, r in enumerate(loops) if r in a.strides], default=-1) + 1
    return int(prod([size_of(r) for r in loops[inside:]]))


def has_steps(a: Access, reduced: list[UOp]) -> bool:
    """Whether a load has SIMD lanes of outputs, and constant steps along what a panel spans."""
    vector = [r for r in a.strides if r.arg.kind is AxisType.VECTOR]
    if len(vector) != 1 or vector[0] in reduced:
        return False
    return all([a.strides[r] is not None for r in panel_axes(a, reduced)])


def least_uses(a: Access, reduced: Iterable[UOp], lanes: int) -> int:
    """Results that each element has to serve where SIMD lanes lie apart in memory."""
    return MIN_GATHERED_USES if run_of(a, reduced, lanes) is None else MIN_TRANSPOSED_USES


def run_of(a: Access, reduced: Iterable[UOp], lanes: int) -> UOp | None:
    """A reduced axis whose steps lie side by side, as many as there are lanes, if there is one."""
    return next((r for r in reduced if a.stride(r) == 1 and size_of(r) >= lanes), None)


def uses_of(a: Access, outputs: list[UOp]) -> int:
    """Results that each loaded element serves."""
    return int(prod([size_of(r) for r in outputs if r not in a.strides]))


def can_pack(a: Access) -> bool:
    """Whether a load could go through a panel: from memory, along axes that no variable bounds."""
    return (
        not a.is_store
        and a.buffer.op is not Ops.STAGE
        and not any([holds(r.src[0], {Ops.DEFINE_VAR}) for r in a.strides])
    )


def packed_load(
    kernel: Kernel, a: Access, axes: list[UOp], places: list[Place], value: Callable[[UOp], UOp]
) -> UOp:
    """The load through a panel that is filled beforehand with what each load in its place gives."""
    panel = new_stage(kernel.facts.order, a.buffer.dtype, axes)
    fills = [filled(kernel, panel, at, value(substitute(node, at))) for at, node in places]
    return panel.after(*fills).load(panel.at())


def filled(kernel: Kernel, panel: Stage, place: dict[UOp, UOp], value: UOp) -> UOp:
    """The loops that store a value in its place."""
    # How many steps a strip has may depend on its number, whose loop is around all this.
    inside = [r for x in place.values() for r in x.ranges if r not in kernel.outputs]
    return panel.fill(panel.at(place), value, *dict.fromkeys(inside))


def places_to_fill(
    kernel: Kernel, a: Access, axes: list[UOp], width: int = 0, decoded: bool = False
) -> list[Place]:
    """The loops in which a panel is filled, as what its axes become, and what is loaded in each.

    The SIMD lanes stay lanes.
    Other lanes do so too, except where all that is done for one is much already, and nothing of the
    next lies beside it: to write that out again and again gives a compiler more and nobody less.
    Where the SIMD lanes lie apart in memory and the steps of a reduction lie side by side, so many
    of these are loaded at once, and transposed on their way into the panel. A block of them makes
    a compiler half the work, leaves less over at the end of the row, and takes no longer; with a
    gate for each row, much longer. What is computed of loads has `width` steps at once; where it is
    `decoded`, all other lanes are loops.
    """
    reduced = [r for r in axes if not r.arg.kind.is_lane]
    # Loops over what were lanes stand around the others, so that rows are read on and on.
    lanes = axes[len(reduced) :]
    vector = lanes[-1] if lanes else None
    n = size_of(vector) if vector is not None else 1
    near = vector is not None and a.strides[vector] == 1
    loops = {*reduced}
    if decoded or not near:
        simd = {r for r in lanes if r.arg.kind is AxisType.VECTOR or (r is vector and not decoded)}
        loops |= {r for r in lanes if r not in simd and abs(a.stride(r) or 0) >= n}

    def copies() -> dict[UOp, UOp]:
        kinds = {r: AxisType.LOOP if r in loops else r.arg.kind for r in (*lanes, *reduced)}
        return {r: kernel.new_range(r.src[0], kind) for r, kind in kinds.items()}

    gates = a.node.src[1:] if a.node.op is Ops.LOAD else ()
    wide = width or n
    run = run_of(a, reduced, wide) if wide > 1 else None
    if near and vector is not None and vector.arg.kind is not AxisType.VECTOR:
        return [({**copies(), vector: lane}, a.node) for lane in neighbours(kernel, n)]
    if near or run is None:
        masks = {r: masks_of_last(gates, r, axes[-1]) for r in reduced}
        step = next((r for r in reduced if masks[r]), None)
        if step is None:
            return [(copies(), a.node)]
        # The last step on its own, so that none before it is masked.
        main, rest, last = copies(), copies(), size_of(step) - 1
        main[step] = kernel.new_range(last, AxisType.LOOP)
        rest[step] = UOp.index_const(last)
        return [(main, without_conditions(a.node, masks[step])), (rest, a.node)]
    # Steps of the reduction that are loaded at once.
    count = width or min(BLOCK_NBYTES // a.buffer.dtype.itemsize, n)
    if count <= 2 or gates:
        count = wide
    blocks = UOp.index_const(count)
    whole = simplify_around(index_alu(Ops.IDIV, run.src[0], blocks))
    main, rest = copies(), copies()
    step = kernel.new_range(whole, AxisType.LOOP)
    if count == wide:
        if vector is not None and vector not in loops:
            main[vector] = kernel.new_range(n, AxisType.UPCAST)
        lane = kernel.new_range(count, AxisType.VECTOR)
    else:
        lane = kernel.new_range(count, AxisType.UPCAST)
    main[run] = index_alu(Ops.ADD, index_alu(Ops.MUL, step, blocks), lane)
    if run.src[0].op is Ops.CONST and run.src[0].arg % count == 0:
        return [(main, a.node)]
    begin = index_alu(Ops.MUL, whole, blocks)
    left = simplify_around(index_alu(Ops.SUB, run.src[0], begin))
    over = kernel.new_range(left, AxisType.LOOP)
    rest[run] = index_alu(Ops.ADD, over, begin)
    return [(main, a.node), (rest, a.node)]


def neighbours(kernel: Kernel, count: int) -> list[UOp]:
    """Lanes that are neighbours, as those of SIMD values, which have powers of two of them."""
    parts, begun = [], 0
    for size in [1 << bit for bit in reversed(range(count.bit_length())) if count >> bit & 1]:
        lane = kernel.new_range(size, AxisType.VECTOR if size > 1 else AxisType.UPCAST)
        parts.append(index_alu(Ops.ADD, lane, UOp.index_const(begun)))
        begun += size
    return parts


def lanes_of(kernel: Kernel) -> int:
    """Elements of a SIMD value of the results."""
    return max([size_of(r) for r in kernel.outputs if r.arg.kind is AxisType.VECTOR], default=1)


def panel_of(kernel: Kernel) -> Access | None:
    """The load that is worth a packed panel, found once for a graph and the order of its loops."""
    known, outputs = kernel.facts.panels, tuple(kernel.outputs)
    if outputs not in known:
        known[outputs] = wanted_panel(kernel)
    return known[outputs]
