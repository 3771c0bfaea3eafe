"""Stores results of a product by TMA, through local memory.

Receives a kernel whose operands TMA loads (`tma_tiles`) and the Opt STAGE out; returns its graph.
Each work-item stores its part of a tile to local memory, in swizzled rows of 128 bytes, with
STMATRIX for 16-bit elements. After a barrier the block issues TMA stores, and continues with its
next tile. TMA clips to the bounds of the tensor, so gates of the store are dropped.

rewrite: STORE(INDEX(p, f(m, n)), value) -> TMA_STORE(local, p, places) after BARRIER(FENCE(STORE(
INDEX(local, place in the tile), value)))
when: m or n is contiguous in p, and all other strides are multiples of 16 bytes; p is not read

On the list, `await_tma_stores` has the next tile wait until boxes were read, and the block at its
end.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from aster_ml.codegen.kernel import Kernel
from aster_ml.codegen.lower.linearize import memory_of
from aster_ml.codegen.plans import ProducerWarp, ResultsOverOperands
from aster_ml.codegen.staging.stage import Stage, new_stage
from aster_ml.codegen.work_groups.swizzle import xor_of_rows
from aster_ml.codegen.work_groups.tensor_map_axes import Side, bounded, refuse_result, whole_strides
from aster_ml.dtype import dtypes
from aster_ml.target import Target
from aster_ml.target.costs import H100
from aster_ml.target.tensor_cores import TensorCore
from aster_ml.target.tensor_maps import ALIGNMENT, DTYPES, MOST_BOX, MOST_DIMS, ROW_NBYTES
from aster_ml.uop.graph import substitute
from aster_ml.uop.linear import Linear
from aster_ml.uop.node import UOp, index_alu, index_sum, index_times
from aster_ml.uop.ops import AxisType, LdmatrixArg, Ops, TmaArg
from aster_ml.uop.ranges import size_of
from aster_ml.uop.rules.linear_form import Form
from aster_ml.uop.rules.symbolic import affine_form, simplify

LOOPS = (AxisType.LOOP, AxisType.REDUCE)


class Result(NamedTuple):
    """A tile of results in a tensor: `near` is its contiguous axis, `far` the other.

    `others` are axes beside m and n with their strides, `start` is the first element.
    """

    store: UOp
    near: Side
    far: Side
    others: dict[UOp, int]
    start: int

    @property
    def row(self) -> int:
        """Elements of a row of local memory."""
        return ROW_NBYTES // self.store.src[1].dtype.itemsize


# Contiguous results that a warp holds in one register of each work-item.
# Source: PTX ISA 8.7, "wgmma.mma_async", layout of matrix D (four work-items have eight columns).
NEIGHBOURS = 8


def fills_sectors(itemsize: int) -> bool:
    """Whether a store of a warp from its registers fills whole sectors of memory.

    why: results of 16 bits fill halves, so that each sector takes two stores
    """
    return NEIGHBOURS * itemsize % H100.sector_nbytes == 0


def can_leave(kernel: Kernel, axes: tuple[UOp, UOp]) -> bool:
    """Whether results with axes m and n can leave by vector or TMA stores, before any split."""
    stores = kernel.stores
    if len(stores) != 1 or len(kernel.sink.src) != 1 or len(stores[0].src) != 2:
        return False
    store = stores[0]
    param, dtype = store.src[0].src[0], store.src[1].dtype
    form = affine_form(simplify(store.src[0].src[1]), set())[0]
    near = [r for r in axes if form.terms.get(r) == 1]
    whole = all([size_of(r) * dtype.itemsize % ALIGNMENT == 0 for r in near])
    far = [n for r, n in form.terms.items() if r not in near]
    fixed = [r.op is Ops.RANGE and r.src[0].op is Ops.CONST for r in form.terms]
    read = any([a.buffer is param and not a.is_store for a in kernel.accesses()])
    return (
        len(near) == 1
        and whole
        and all(fixed)
        and all([r in form.terms for r in axes])
        and whole_strides(far, dtype.itemsize)
        and form.const >= 0
        and len(form.terms) <= MOST_DIMS
        and dtype.name in DTYPES
        and not read
    )


def along(core: TensorCore, side: Side, strides: dict[UOp, int]) -> Side:
    """An axis of a product in the tensor of results. Raises: KernelOptError where it has none."""
    first = next(r for r, n in side.steps.items() if n == 1)
    stride = strides.get(first, 0)
    if stride <= 0 or any([strides.get(r) != n * stride for r, n in side.steps.items()]):
        raise refuse_result(core, "results are not laid out as a matrix")
    size = 1 + sum([(size_of(r) - 1) * n for r, n in side.steps.items()])
    return Side(side.steps, stride, size, side.tile)


def refuse_unless_result(kernel: Kernel, core: TensorCore) -> Form:
    """The address of the only store of a kernel. Raises: KernelOptError for another form."""
    if len(kernel.stores) != 1 or len(kernel.sink.src) != 1:
        raise refuse_result(core, "a kernel stores to one tensor")
    store = kernel.stores[0]
    param = store.src[0].src[0]
    if param.op is not Ops.PARAM or any(
        [a.buffer is param and not a.is_store for a in kernel.accesses()]
    ):
        raise refuse_result(core, "a tensor is read and stored")
    form = affine_form(simplify(store.src[0].src[1]), set())[0]
    if form.const < 0 or any([r.op is not Ops.RANGE for r in form.terms]):
        raise refuse_result(core, "results are stored by an index that is not affine")
    return form


def result_of(kernel: Kernel, core: TensorCore, sides: tuple[Side, Side]) -> Result:
    """The tile of results of a kernel. Raises: KernelOptError for strides that TMA cannot have."""
    form, store = refuse_unless_result(kernel, core), kernel.stores[0]
    dtype = store.src[1].dtype
    m, n = bounded(core, tuple([along(core, s, form.terms) for s in sides]), store.src[2:])
    near, far = (n, m) if n.stride == 1 else (m, n)
    others = {r: a for r, a in form.terms.items() if r not in m.steps and r not in n.steps}
    if near.stride != 1 or not whole_strides([far.stride, *others.values()], dtype.itemsize):
        raise refuse_result(core, "results have strides that are not multiples of 16 bytes")
    if any([r.src[0].op is not Ops.CONST for r in form.terms]):
        raise refuse_result(core, "results have an axis of symbolic size")
    return Result(store, near, far, others, form.const)


def check_tma_store(core: TensorCore, result: Result) -> None:
    """Raises: KernelOptError where TMA cannot store a tile of results."""
    if 2 + len(result.others) > MOST_DIMS:
        raise refuse_result(core, "results have too many axes")
    row, near, far = result.row, result.near, result.far
    if result.store.src[1].dtype.name not in DTYPES or near.tile % row or far.tile > MOST_BOX:
        raise refuse_result(core, "results have no tiles of whole rows")
    if any([a < row < a * size_of(r) for r, a in near.steps.items() if r.arg.kind.is_lane]):
        raise refuse_result(core, "lanes of results go over the end of a row")


def place_in(result: Result) -> UOp:
    """The offset of an element of a tile in local memory, before the swizzle."""
    row, column = result.row, result.row * result.far.tile
    near = [
        index_times(r, n if n < row else n // row * column) for r, n in result.near.tiles.items()
    ]
    return index_sum([*near, *[index_times(r, n * row) for r, n in result.far.tiles.items()]])


def tma_stores(result: Result, local: Stage) -> list[UOp]:
    """The TMA stores of a tile, one for each 128 contiguous bytes."""
    near, far, row = result.near, result.far, result.row
    arg = TmaArg(
        result.start,
        (near.size, far.size, *[size_of(r) for r in result.others]),
        (1, far.stride, *result.others.values()),
        (row, far.tile, *[1] * len(result.others)),
    )
    param, places = result.store.src[0].src[0], [near.first, far.first, *result.others]
    boxes = []
    for i in range(near.tile // row):
        start = index_alu(Ops.ADD, places[0], UOp.index_const(i * row))
        at = local.memory.index(UOp.index_const(i * row * far.tile))
        boxes.append(UOp(Ops.TMA_STORE, dtypes.void, (at, param, start, *places[1:]), arg))
    return boxes


def store_by_tma(
    kernel: Kernel, core: TensorCore, axes: dict[str, UOp], result: Result, own: list[UOp],
    target: Target,
) -> None:  # fmt: skip
    """Stores a kernel's results by TMA; `own` are the arrays of the operands."""
    check_tma_store(core, result)
    value, ended = kernel.stores[0].src[1], kernel.sink.src[0].src[1:]
    over = tuple([u.arg.id for u in own]) if kernel.plan(ResultsOverOperands) is not None else ()
    if over and kernel.plan(ProducerWarp) is not None:
        raise refuse_result(
            core, "a producer warp fills the memory of operands while results are stored"
        )
    local = new_stage(
        [*kernel.facts.order, *own], value.dtype, size=result.near.tile * result.far.tile,
        xor=xor_of_rows(result.row, value.dtype.itemsize), over=over,
    )  # fmt: skip
    place = place_in(result)
    if "stmatrix" in target.features and value.dtype.itemsize == 2:
        fill = fill_matrices(core, axes, local, place, value, result)
    else:
        fill = local.fill(place, value)
    ready = local.after_all(UOp(Ops.FENCE, dtypes.void, (fill,)))
    ends = [box.end(*ended) for box in tma_stores(result, ready)]
    kernel.sink = kernel.sink.replace(src=tuple(ends))


def fill_matrices(
    core: TensorCore, axes: dict[str, UOp], local: Stage, place: UOp, value: UOp, result: Result
) -> UOp:
    """Stores 8 x 8 matrices of results by STMATRIX, of which each work-item addresses a row.

    Four matrices are two of rows by two of columns, where a lane leads to the next eight columns.
    """
    numbers = [axes[word] for word in core.bits("c")[0]]
    transposed = axes["n0"] not in result.near.steps
    columns, rows = ("m", "n") if transposed else ("n", "m")
    side = result.far if transposed else result.near
    beside = [r for r, n in side.steps.items() if n == 8 and size_of(r) == 2]
    matrices = [axes["m3"], *[r for r in beside if r.arg.kind is AxisType.UPCAST]]
    moves = dict.fromkeys([axes[f"{columns}{i}"] for i in range(3)], UOp.index_const(0))
    moves |= {axes[f"{rows}{i}"]: numbers[i] for i in range(3)}
    moves |= {r: numbers[3 + i] for i, r in enumerate(matrices)}
    at = local.memory.index(substitute(place, moves))
    words = (at, value, axes["n0"], *matrices)
    return UOp(Ops.STMATRIX, dtypes.void, words, LdmatrixArg(1, transposed))


# on the list


def await_tma_stores(linear: Linear, kernel: Kernel, target: Target) -> Linear:
    """Waits for asynchronous stores (TMA) before their memory is filled anew, and at the end."""
    uops = linear.uops
    boxes = [u for u in uops if u.op is Ops.TMA_STORE]
    over = [u for u in uops if u.op is Ops.DEFINE_LOCAL and u.arg.over]
    if not boxes and not over:
        return linear
    memory = memory_of(boxes[0]) if boxes else over[0]
    fills = (Ops.STORE, Ops.STMATRIX)
    first = next(i for i, u in enumerate(uops) if u.op in fills and memory_of(u) is memory)
    loops = [u for u in uops[:first] if u.op is Ops.RANGE and u.arg.kind in LOOPS]
    open_loops = len(loops) - len([u for u in uops[:first] if u.op is Ops.END])
    barrier = UOp(Ops.BARRIER, dtypes.void, ())
    wait = [UOp(Ops.TMA_STORE_WAIT, dtypes.void, ())] if boxes else []
    before = [*wait, barrier] if open_loops else [barrier] if over else []
    return replace(linear, uops=(*uops[:first], *before, *uops[first:], *wait))
