"""Stores results of a product by vectors of 16 bytes, transposed through local memory.

Receives a kernel whose product is an MMA of warps (`tensor_cores`) and the Opt STAGE out; returns
its graph. Each work-item stores its part of a tile to swizzled local memory; after a barrier
consecutive work-items store consecutive vectors of rows.

rewrite: STORE(INDEX(p, f(m, n)), value, gate) -> STORE(INDEX(p, f(row, column)), LOAD(INDEX(local,
row, column)), gate) after BARRIER(STORE(INDEX(local, m, n), value))
when: m or n is contiguous in p, and all other strides are multiples of 16 bytes; p is not read
why: registers of a warp hold 8 contiguous results, which at 16 bits fill half a sector
"""

from __future__ import annotations

from aster_ml.codegen.kernel import Kernel
from aster_ml.codegen.plans import ResultsOverOperands
from aster_ml.codegen.staging.stage import new_stage, position
from aster_ml.codegen.work_groups.numbering import items_in
from aster_ml.codegen.work_groups.swizzle import xor_of_rows
from aster_ml.codegen.work_groups.tensor_map_axes import TILE_KINDS, Side, refuse_result, side_of
from aster_ml.codegen.work_groups.tma_epilogue import (
    Result,
    fill_matrices,
    refuse_unless_result,
    result_of,
)
from aster_ml.helpers import prod
from aster_ml.target import Target
from aster_ml.target.tensor_cores import TensorCore
from aster_ml.uop.linear import shared_nbytes
from aster_ml.uop.node import UOp, index_alu, index_sum, index_times
from aster_ml.uop.ops import AxisType, Ops
from aster_ml.uop.ranges import size_of
from aster_ml.uop.rules.linear_form import Form

# Source: PTX ISA 8.7, "st" (vectors of 128 bits).
PIECE_NBYTES = 16


def sides_of(core: TensorCore, form: Form, ids: dict[str, int]) -> tuple[Side, Side]:
    """The axes m and n of a store of results. Raises: KernelOptError where it has other axes."""
    strides = {w: form.terms.get(r, 0) for w, i in ids.items() for r in form.terms if r.arg.id == i}
    steps = strides.get("m0", 0), strides.get("n0", 0)
    if min(steps) != 1 or max(steps) == 1:
        raise refuse_result(core, "results are not laid out as a matrix")
    near, far = ("m", "n") if steps[0] == 1 else ("n", "m")
    # Axes within a row, and axes from row to row.
    mine: dict[str, list[UOp]] = {"m": [], "n": []}
    for r, n in form.terms.items():
        if r.arg.kind in TILE_KINDS:
            mine[near if n < max(steps) else far].append(r)
        elif r.arg.id in (ids["m"], ids["n"]):
            mine["m" if r.arg.id == ids["m"] else "n"].append(r)
    return side_of(core, form, mine["m"]), side_of(core, form, mine["n"])


def store_vectors(
    kernel: Kernel, core: TensorCore, ids: dict[str, int], axes: dict[str, UOp], order: list[int],
    target: Target,
) -> None:  # fmt: skip
    """Stores a kernel's results in pieces of 16 bytes.

    Raises: KernelOptError where it cannot.
    """
    form = refuse_unless_result(kernel, core)
    result = result_of(kernel, core, sides_of(core, form, ids))
    value, ended = result.store.src[1], kernel.sink.src[0].src[1:]
    lanes, items = PIECE_NBYTES // value.dtype.itemsize, items_in(kernel, order)
    run, rows = result.near.tile, result.far.tile
    n_items = int(prod([size_of(r) for r in items]))
    if run % lanes or run * rows % (n_items * lanes) or result.near.size % lanes:
        raise refuse_result(core, "a work-item does not have whole vectors of 16 bytes")
    own = [u for u in kernel.facts.order if u.op is Ops.DEFINE_LOCAL and not u.arg.private]
    over = tuple([u.arg.id for u in own]) if kernel.plan(ResultsOverOperands) is not None else ()
    local = new_stage(
        kernel.facts.order, value.dtype, size=run * rows,
        xor=xor_of_rows(run, value.dtype.itemsize), over=over,
    )  # fmt: skip
    if shared_nbytes([*own, local.memory]) > target.local_bytes:
        raise refuse_result(core, "a tile of results does not fit local memory")
    place = index_sum([
        *[index_times(r, n) for r, n in result.near.tiles.items()],
        *[index_times(r, n * run) for r, n in result.far.tiles.items()],
    ])  # fmt: skip
    if "stmatrix" in target.features and value.dtype.itemsize == 2:
        fill = fill_matrices(core, axes, local, place, value, result)
    else:
        fill = local.fill(place, value)
    turn = kernel.new_range(run * rows // (n_items * lanes), AxisType.UPCAST)
    piece = index_alu(Ops.ADD, index_times(turn, n_items), position(items))
    pieces = UOp.index_const(run // lanes)
    row = index_alu(Ops.IDIV, piece, pieces)
    column = index_times(index_alu(Ops.MOD, piece, pieces), lanes)
    lane = kernel.new_range(lanes, AxisType.VECTOR)
    along = index_alu(Ops.ADD, column, lane)
    loaded = local.after_all(fill).load(index_sum([index_times(row, run), along]))
    at = index_sum([address(result), index_times(row, result.far.stride), along])
    to = result.store.src[0].src[0].index(at)
    store = UOp(Ops.STORE, result.store.dtype, (to, loaded, *gates_of(result, row, column)))
    kernel.sink = kernel.sink.replace(src=(store.end(*ended),))


def address(result: Result) -> UOp:
    """The address of the first element of a tile."""
    return index_sum([
        UOp.index_const(result.start), result.near.first,
        index_times(result.far.first, result.far.stride),
        *[index_times(r, n) for r, n in result.others.items()],
    ])  # fmt: skip


def gates_of(result: Result, row: UOp, column: UOp) -> list[UOp]:
    """The bounds checks of a vector, where a tile may exceed the tensor."""
    gates = []
    for side, at in ((result.far, row), (result.near, column)):
        if 1 + sum([(size_of(r) - 1) * n for r, n in side.steps.items()]) > side.size:
            place = index_alu(Ops.ADD, side.first, at)
            gates.append(place.alu(Ops.CMPLT, UOp.index_const(side.size)))
    return [gates[0].alu(Ops.AND, gates[1])] if len(gates) > 1 else gates
