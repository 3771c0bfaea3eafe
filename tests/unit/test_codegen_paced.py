"""Tiles that are stored from scratch in a loop: when, in which form, and with what values."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from aster_ml import Tensor
from aster_ml.codegen.kernel import Kernel
from aster_ml.codegen.linearize import memory_of
from aster_ml.codegen.lower import lower, schedule_kernel
from aster_ml.codegen.next_blocks import ask_for_next_blocks
from aster_ml.codegen.opts import parse_opts
from aster_ml.codegen.paced import pace_stores
from aster_ml.codegen.prices import PACED_ROWS
from aster_ml.device import Device
from aster_ml.dtype import dtypes
from aster_ml.engine import storage
from aster_ml.engine.compile import compile_kernel, render
from aster_ml.runtime.cpu_program import CpuProgram, slot_packer
from aster_ml.target import Target
from aster_ml.uop.graph import substitute
from aster_ml.uop.linear import Linear
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import AxisType, Ops
from aster_ml.uop.ranges import size_of
from aster_ml.uop.spec import verify
from aster_ml.uop.text import linear_from_text, linear_to_text
from tests.unit.kernel_checks import SMALL_CACHES as CPU
from tests.unit.kernel_checks import kernel_of, memory, places_of

# So many rows of float32 make rows of results that lie half a page apart.
ROWS = 512


def stores_by_loop(linear: Linear) -> list[tuple[int, Ops, int]]:
    """For each STORE: how many loops it stands in, where it goes, and its rows at once."""
    found, depth = [], 0
    for u in linear.uops:
        depth += (u.op is Ops.RANGE) - (u.op is Ops.END)
        if u.op is Ops.STORE:
            lanes = [r for r in u.ranges if r.arg.kind is AxisType.UPCAST]
            found.append((depth, memory_of(u).op, size_of(lanes[0])))
    return found


def asked_index(kernel: Kernel, sink: UOp) -> UOp:
    """Where the one ASK of a graph asks, in the first rows of the blocks."""
    (ask,) = [u.src[0] for u in sink.src if u.src[0].op is Ops.ASK]
    index = ask.src[0].src[1]
    outer = [r for r in kernel.outputs if r in index.ranges and size_of(r) > 4]
    return substitute(index, {r: UOp.index_const(1) for r in outer})


@pytest.mark.parametrize("columns", [1024, 1000])
def test_a_tile_goes_to_scratch_at_once_and_from_there_in_a_loop(columns: int) -> None:
    linear, applied = lower(kernel_of(memory(ROWS, columns).T), CPU)
    assert "AHEAD" in [o.op.name for o in applied]
    assert stores_by_loop(linear) == [(4, Ops.DEFINE_LOCAL, 16), (5, Ops.PARAM, PACED_ROWS)]
    (scratch,) = [u for u in linear.uops if u.op is Ops.DEFINE_LOCAL]
    assert scratch.arg.size == 16 * 16
    verify(linear, "linear")
    assert linear_from_text(linear_to_text(linear)) == linear


def test_a_step_of_the_loop_asks_for_as_large_a_part_as_it_stores() -> None:
    linear, _ = lower(kernel_of(memory(ROWS, 1024).T), CPU)
    source = render(linear, CPU)
    assert source.count("!nontemporal !0") == PACED_ROWS
    assert source.count("call void @llvm.prefetch.p0") == PACED_ROWS
    # 256 of a tile, behind half of a page.
    assert source.rindex("alloca [768 x float]") < source.index("!nontemporal !0")


def test_the_same_is_asked_for_with_and_without_the_loop() -> None:
    kernel = schedule_kernel(kernel_of(memory(ROWS, 1024).T), CPU)
    sink = ask_for_next_blocks(kernel)
    before = asked_index(kernel, sink)
    after = asked_index(kernel, pace_stores(kernel, sink))
    assert sorted(places_of(before)) == sorted(places_of(after))


@pytest.mark.parametrize(
    ("shape", "target"),
    [
        ((64, 1024), CPU),  # rows of results that share pages
        ((ROWS, 100), CPU),  # nothing is asked for
        ((ROWS, 1024), replace(CPU, threads=2)),  # two threads keep memory busy
        ((ROWS, 1024), replace(CPU, language="c")),  # gathers, not shuffles
        ((ROWS, 1024), replace(CPU, cache_bytes=(1 << 10, 64 << 10, 1 << 30))),  # stays in a cache
    ],
)
def test_other_tiles_are_stored_at_once(shape: tuple[int, int], target: Target) -> None:
    linear, _ = lower(kernel_of(memory(*shape).T), target)
    assert not [u for u in linear.uops if u.op is Ops.DEFINE_LOCAL]
    assert {where for _, where, _ in stores_by_loop(linear)} == {Ops.PARAM}


def test_few_rows_of_a_tile_are_stored_at_once() -> None:
    ast = kernel_of(memory(ROWS, 1024).T)
    opts = "VECTOR(1,16) UPCAST(0,8) TILE(1,4) TILE(0,64) SWAP(0,2) SWAP(1,2) AHEAD(1,1)"
    linear, _ = lower(ast, CPU, parse_opts(f"{opts} STREAM(0,0)"))
    assert any(u.op is Ops.ASK for u in linear.uops)
    assert not any(u.op is Ops.DEFINE_LOCAL for u in linear.uops)


def zeros_at(like: Any, over: int) -> Any:
    """Zeros that begin so many bytes after the beginning of a line of memory."""
    memory = np.zeros(like.nbytes + 128, np.uint8)
    first = -memory.ctypes.data % 64 + over
    return memory[first : first + like.nbytes].view(like.dtype).reshape(like.shape)


@pytest.mark.parametrize(
    ("dtype", "shape", "added"),
    [
        ("float32", (512, 1024), 0),
        ("float32", (544, 777), 1),
        ("int32", (528, 1000), 0),
        ("uint8", (2048, 4096), 0),
        ("int8", (2176, 4001), 0),
        ("float64", (256, 512), 1),
        ("int64", (264, 500), 0),
        ("float64", (2, 272, 501), 0),
    ],
)
def test_values_of_any_shape_and_dtype(dtype: str, shape: tuple[int, ...], added: int) -> None:
    values: Any = np.random.default_rng(2).integers(0, 100, shape).astype(dtype)
    x = Tensor(values, dtype=getattr(dtypes, dtype)).realize()
    turned = x.transpose(-1, -2)
    ast = kernel_of(turned + added if added else turned)
    wanted = np.ascontiguousarray(np.swapaxes(values, -1, -2)) + values.dtype.type(added)
    opts = tuple(schedule_kernel(ast, CPU).applied)
    linear, _ = lower(ast, replace(Device["CPU"].target, language="llvm"), opts)
    assert [where for _, where, _ in stores_by_loop(linear)] == [Ops.DEFINE_LOCAL, Ops.PARAM]
    program = compile_kernel(ast, Device["CPU"], opts).program
    assert isinstance(program, CpuProgram)
    source = storage.buffer_of(x.uop.base).ensure_allocated().handle
    # Rows that are whole lines of memory, and rows that are not.
    for over in (0, values.itemsize):
        out = zeros_at(wanted, over)
        program.function(slot_packer(2)(out.ctypes.data, source.address), 0, 1)
        np.testing.assert_array_equal(out, wanted)
