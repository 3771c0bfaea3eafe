"""Row accumulators: reductions over whole rows of outputs, partial sums of a row in scratch.

Receives a kernel whose Opts are applied, one of them KBLOCK row; returns its graph with the
reduction going through DEFINE_LOCAL. Only for targets without work-groups, where scratch is stack.
Which kernels gain by it is said in `policy/cpu/heuristic`.

rewrite: f(REDUCE(v(r, o), r)) -> f(LOAD(sums at o)), after loops over the first rows have stored
REDUCE(v(k, o), k) in `sums` at each o, and loops over the others, n at a time, have added theirs
why: memory is read in runs as long as the rows, which prefetchers and page tables like; sums in
scratch need no masks and no values to begin with, and what follows the reduction is done once
"""

from __future__ import annotations

from aster_ml.codegen.kernel import Kernel
from aster_ml.codegen.plans import RowSums
from aster_ml.codegen.staging.row import max_nbytes
from aster_ml.codegen.staging.stage import Stage, new_stage
from aster_ml.codegen.transforms.k_blocking import can_sum_rows
from aster_ml.dtype import dtypes
from aster_ml.errors import KernelOptError
from aster_ml.target import Target
from aster_ml.uop.graph import substitute
from aster_ml.uop.node import UOp, index_alu
from aster_ml.uop.ops import AxisType, Ops
from aster_ml.uop.ranges import iterations, size_of

FUSED_DTYPES = (dtypes.float32, dtypes.float64)


def sum_rows(kernel: Kernel, target: Target) -> None:
    """Partial sums of a whole row of outputs lie in scratch while the reduction goes on.

    Raises: KernelOptError where other Opts have left no row, or the row is too long for scratch.
    """
    axes = row_axes(kernel)
    if not can_sum_rows(kernel) or not axes:
        raise KernelOptError(
            "KBLOCK row: a loop over a row of outputs is wanted; other Opts left none"
        )
    (u,) = kernel.reduces
    (axis,) = u.src[1:]
    nbytes, room = iterations(axes) * u.dtype.itemsize, max_nbytes(target)
    if nbytes > room:
        raise KernelOptError(
            f"KBLOCK row: sums of a row are {nbytes:,} bytes, and scratch has room for {room:,}; a "
            "SPLIT of the row would do"
        )
    sums = new_stage(kernel.facts.order, u.dtype, axes)
    n, fused = kernel.count(RowSums), target.has_op("MULACC")
    first = size_of(axis) % n or n
    ready = sums.after(fill(kernel, sums, u, fused, first))
    strips = (size_of(axis) - first) // n
    if strips:
        strip = kernel.new_range(strips, AxisType.LOOP)
        ready = sums.after(fill(kernel, ready, u, fused, n, strip, first))
    kernel.sink = substitute(kernel.sink, {u: ready.load(ready.at())})


def row_axes(kernel: Kernel) -> list[UOp]:
    """The output axes whose sums are in scratch together: the innermost loop, and lanes."""
    last = [r for r in kernel.outputs if not r.arg.kind.is_lane][-1:]
    lanes = [r for r in kernel.outputs if r.arg.kind.is_lane]
    if not last or last[0] not in kernel.output_loops or size_of(last[0]) < 2:
        return []
    return last + sorted(lanes, key=lambda r: (r.arg.kind is AxisType.VECTOR, r.arg.id))


def fill(
    kernel: Kernel,
    sums: Stage,
    u: UOp,
    fused: bool,
    count: int,
    strip: UOp | None = None,
    start: int = 0,
) -> UOp:
    """Loops that reduce `count` rows: the first of all, or those of each strip from `start` on."""
    own = {r: kernel.new_range(size_of(r), r.arg.kind) for r in sums.axes}
    row = UOp.index_const(0)
    if strip is not None:
        row = index_alu(Ops.MUL, strip, UOp.index_const(count))
        row = index_alu(Ops.ADD, row, UOp.index_const(start))

    def step(k: UOp) -> UOp:
        return substitute(u.src[0], {**own, u.src[1]: index_alu(Ops.ADD, row, k)})

    total = folded([step(UOp.index_const(i)) for i in range(count)], u.arg.op, fused)
    at = sums.at(own)
    if strip is None:
        return sums.fill(at, total, *own.values())
    return sums.fill(at, total.alu(u.arg.op, sums.load(at)), strip, *own.values())


def folded(values: list[UOp], op: Ops, fused: bool) -> UOp:
    """The values in two chains, in which loads are operands and products part of the addition.

    why: the fewer instructions, the more loads are on their way at a time
    """
    chains = values[:2]
    for i, v in enumerate(values[2:]):
        before = chains[i % 2]
        product = fused and op is Ops.ADD and v.op is Ops.MUL and v.dtype in FUSED_DTYPES
        chains[i % 2] = UOp(Ops.MULACC, v.dtype, (*v.src, before)) if product else before.alu(op, v)
    return chains[0] if len(chains) == 1 else chains[0].alu(op, chains[1])
