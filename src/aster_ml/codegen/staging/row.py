"""Values of a row that are costly and read twice, kept in scratch: the terms of a softmax.

Receives a kernel with the Opt STAGE row (`keep_row`), and again when all its Opts are applied
(`fill_rows`); in between, such a value is a STAGE that is read like memory, so schedules are chosen
for what then remains. Only for targets without work-groups. Which rows are kept is decided in
`policy/cpu/staging`.

rewrite: v(r) in a reduction over r and v(o) in an output axis o of that size
-> LOAD(INDEX(STAGE(v(s), s), r)) and LOAD(INDEX(STAGE(v(s), s), o))
when: v has an op that takes long, and a row fits the cache
why: without that each element is computed twice
"""

from __future__ import annotations

from aster_ml.codegen.decompose.slots import LONG, more_slots
from aster_ml.codegen.kernel import Kernel
from aster_ml.codegen.pipeline.plan import stored_row
from aster_ml.codegen.policy.cpu.costs import unroll_for_ilp
from aster_ml.codegen.staging.stage import Stage, new_stage
from aster_ml.codegen.transforms.axes import simplify_indices
from aster_ml.dtype import dtypes
from aster_ml.errors import KernelOptError
from aster_ml.helpers import ceildiv, prod
from aster_ml.target import Target
from aster_ml.uop.graph import substitute, toposort
from aster_ml.uop.node import UOp, index_alu
from aster_ml.uop.ops import ELEMENTWISE, VALUES, AxisType, Memory, Ops, StageArg
from aster_ml.uop.ranges import size_of

# A name of a module is found faster than a member of an Enum, and every node is asked for its op.
STAGE = Ops.STAGE
# SIMD values of a short row that are written out.
# Measured: lines and cycles, 2026-11-28 (docs/explanation/tuning/limits.md).
MAX_TURNS = 4


def max_nbytes(target: Target) -> int:
    """The most scratch for a row."""
    return min(target.costs.scratch_nbytes // 16, target.cache_bytes[1] // 4)


def shared_value(kernel: Kernel, r: UOp, o: UOp) -> UOp | None:
    """The largest value in a reduction over `r` that takes long and is computed along `o` too."""
    if r.src[0].op is not Ops.CONST or o.src[0] is not r.src[0]:
        return None
    for u in [u for u in kernel.reduces if u.src[1:] == (r,) and o not in u.ranges]:
        for v in reversed(toposort(u.src[0])):
            if v.op not in ELEMENTWISE or r not in v.ranges or v.ranges - u.ranges != {r}:
                continue
            if any(x.op in LONG and r in x.ranges for x in toposort(v)):
                if moved(v, r, o) in kernel.facts.order:
                    return v
    return None


def moved(v: UOp, r: UOp, o: UOp) -> UOp:
    """A value along another axis, with its indices in simplest form as all of the kernel are."""
    return simplify_indices(substitute(v, {r: o}))


def keep_row(kernel: Kernel, r: UOp, o: UOp) -> None:
    """A costly value of a row, which a reduction and outputs read, becomes a STAGE over the row."""
    v = shared_value(kernel, r, o)
    if v is None:
        raise KernelOptError(
            "a reduction and an axis of outputs, both as long, are wanted that share a value that "
            "takes long"
        )
    s = kernel.new_range(size_of(r), AxisType.LOOP)
    stage = UOp(Ops.STAGE, v.dtype, (substitute(v, {r: s}), s), StageArg(Memory.LOCAL))
    changes = {v: stage.index(r).load(), moved(v, r, o): stage.index(o).load()}
    kernel.sink = substitute(kernel.sink, changes)


def fill_rows(kernel: Kernel, target: Target) -> None:
    """Fills the scratch of each STAGE in a loop of its own, or computes the value where read."""
    slab, late = kernel.slab_stage(), stored_row(kernel)
    for stage in [u for u in kernel.facts.by_op[STAGE] if u is not slab]:
        v, s = stage.src
        nodes = kernel.facts.order
        reads = [u for u in nodes if u.op is Ops.LOAD and u.src[0].src[0] is stage]
        at = {u: u.src[0].src[1] for u in reads}
        lanes = sorted(
            [x for x in v.ranges if x.arg.kind.is_lane],
            key=lambda x: (x.arg.kind is AxisType.VECTOR, x.arg.id),
        )
        simd = any(x.arg.kind is AxisType.VECTOR for x in lanes)
        width = 1 if simd else target.lanes(v.dtype.itemsize)
        steps = max([size_of(s), *[int(i.vmax) + 1 for i in at.values()]])
        size = ceildiv(steps, width) * width * prod([size_of(x) for x in lanes])
        if size * v.dtype.itemsize > max_nbytes(target):
            again = {u: substitute(v, {s: i}) for u, i in at.items()}
            kernel.sink = substitute(kernel.sink, again)
            continue
        local = new_stage(nodes, v.dtype, (s, *lanes), size)
        whole = size_of(s) // width * width
        if late is not None and late[0] is stage:
            filled = [fill_alike(kernel, local, stage, late[1].src[0].src[1])]
        else:
            filled = [
                fill(kernel, target, local, stage, start, length, width)
                for start, length in ((0, whole), (whole, size_of(s) - whole))
                if length
            ]
        ready = local.after(*filled)
        kernel.sink = substitute(
            kernel.sink, {u: ready.load(ready.at({s: i})) for u, i in at.items()}
        )


def fill_alike(kernel: Kernel, local: Stage, stage: UOp, step: UOp) -> UOp:
    """The loop that stores a row with the lanes with which stores of results read it."""
    v, s = stage.src
    axes = [r for r in kernel.outputs if r in step.ranges]
    own = {r: kernel.new_range(size_of(r), r.arg.kind) for r in axes}
    at = substitute(step, own)
    return local.fill(at, substitute(v, {s: at}), *own.values())


def fill(
    kernel: Kernel, target: Target, local: Stage, stage: UOp, start: int, length: int, width: int
) -> UOp:  # fmt: skip
    """The loop that stores `length` steps from `start`, in SIMD values where lanes have none.

    Several of these stand side by side where one would wait for itself.
    """
    v, s = stage.src
    turns = ceildiv(length, width)
    kind = AxisType.UPCAST if turns <= MAX_TURNS else AxisType.LOOP
    beside = 1 if kind is AxisType.UPCAST or local.axes[1:] else bodies_of(v, turns, target)
    loop = kernel.new_range(turns // beside, kind)
    closed, step = [loop], index_alu(Ops.MUL, loop, UOp.index_const(beside))
    if beside > 1:
        closed.append(kernel.new_range(beside, AxisType.UPCAST))
        step = index_alu(Ops.ADD, step, closed[-1])
    step = index_alu(
        Ops.ADD, UOp.index_const(start), index_alu(Ops.MUL, step, UOp.index_const(width))
    )
    if width > 1:
        closed.append(kernel.new_range(width, AxisType.VECTOR))
        step = index_alu(Ops.ADD, step, closed[-1])
    value = substitute(v, {s: step})
    if length < width:
        inside = closed[-1] < length
        value = substitute(
            value,
            {
                u: UOp(Ops.LOAD, u.dtype, (u.src[0], kernel.both(inside, *u.src[1:])), u.arg)
                for u in toposort(value)
                if u.op is Ops.LOAD and closed[-1] in u.ranges
            },
        )
    return local.fill(local.at({s: step}), value, *closed)


def bodies_of(v: UOp, turns: int, target: Target) -> int:
    """Counts the SIMD values of a row to compute side by side, in iterations of one each."""
    nodes = [u for u in toposort(v) if u.op in VALUES and u.dtype is not dtypes.index]
    most = unroll_for_ilp(target, len(nodes) + more_slots(nodes, target))
    return next((n for n in (4, 3, 2) if n <= most and turns % n == 0), 1)
