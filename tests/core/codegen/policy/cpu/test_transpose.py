"""Transposes: blocks that are asked for while others are read, and tiles at any size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from aster_ml import Tensor
from aster_ml.codegen.passes import lower, schedule_kernel
from aster_ml.codegen.prefetch import ask_for_next_blocks, step_on
from aster_ml.device import Device
from aster_ml.dtype import dtypes
from aster_ml.engine import storage
from aster_ml.engine.compile import compile_kernel, render
from aster_ml.runtime.cpu.program import CpuProgram, slot_packer
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import AxisType, Ops
from aster_ml.uop.print.text import linear_from_text, linear_to_text
from aster_ml.uop.spec.verify import verify
from tests.core.kernel_checks import SMALL_CACHES as CPU
from tests.core.kernel_checks import kernel_of, memory, places_of

LINE = 16


def lines_of(index: UOp) -> list[int]:
    """The lines that an index names, for every step of its ranges."""
    return [place // LINE for place in places_of(index)]


@pytest.mark.parametrize(
    ("rows", "first_rows"),
    [
        (64, range(32)),  # a block is a strip of 32 rows
        (256, [*range(32), *range(64, 96)]),  # and of two runs of them where there are enough
    ],
)
def test_every_line_but_those_of_the_first_block_is_asked_for(
    rows: int, first_rows: Sequence[int]
) -> None:
    kernel = schedule_kernel(kernel_of(memory(rows, 1024).T), CPU)
    ask_for_next_blocks(kernel, CPU)
    (ask,) = [u.src[0] for u in kernel.sink.src if u.src[0].op is Ops.PREFETCH]
    asked = lines_of(ask.src[0].src[1])
    first = {row * 1024 // LINE + i for row in first_rows for i in range(512 // LINE)}
    everything = set(range(rows * 1024 // LINE))
    assert set(asked) >= everything - first
    # As many asks as lines: those of the last block alone ask for what nobody reads next.
    assert len(asked) == len(everything)


def test_after_the_last_strip_of_a_block_the_next_block_is_asked_for() -> None:
    x = UOp.range(3, 0, AxisType.LOOP)
    y = UOp.range(2, 1, AxisType.LOOP)
    now = x * 10 + y
    later = places_of(step_on(now, [x, y]))
    assert later[:-1] == places_of(now)[1:]
    assert places_of(step_on(now, [])) == places_of(now)


def test_asking_is_valid_at_every_stage_and_prints_in_both_languages() -> None:
    ast = kernel_of(memory(64, 1024).T)
    linear, _ = lower(ast, CPU)
    verify(linear, "linear")
    assert any(u.op is Ops.PREFETCH for u in linear.uops)
    assert linear_from_text(linear_to_text(linear)) == linear
    assert render(linear, CPU).count("call void @llvm.prefetch.p0") == LINE
    target = replace(CPU, language="c")
    assert render(lower(ast, target)[0], target).count("__builtin_prefetch(") == LINE


def test_some_is_asked_for_after_each_few_stores() -> None:
    source = render(lower(kernel_of(memory(64, 1024).T), CPU)[0], CPU)
    words = [w for line in source.splitlines() for w in ("prefetch", "!nontemporal") if w in line]
    calls = [w for w in words if w][: 4 * (LINE // 4) * 2]
    assert calls[:8] == ["!nontemporal"] * 4 + ["prefetch"] * 4


@pytest.mark.parametrize("dtype", ["int8", "float16", "float32", "float64"])
@pytest.mark.parametrize(
    ("shape", "order"),
    [
        ((131, 257), (1, 0)),
        ((192, 2000), (1, 0)),
        ((3, 65, 130), (0, 2, 1)),
        ((2, 48, 9, 11), (0, 2, 3, 1)),
        ((2, 9, 11, 48), (0, 3, 1, 2)),
    ],
)
def test_permutes_of_any_size_and_dtype_are_right(
    shape: tuple[int, ...], order: tuple[int, ...], dtype: str
) -> None:
    values: Any = np.random.default_rng(1).integers(-100, 100, shape).astype(dtype)
    found = Tensor(values, dtype=getattr(dtypes, dtype)).permute(*order).contiguous().numpy()
    np.testing.assert_array_equal(found, values.transpose(order))


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
def test_blocks_of_any_shape_and_dtype_are_right(
    dtype: str, shape: tuple[int, ...], added: int
) -> None:
    values: Any = np.random.default_rng(2).integers(0, 100, shape).astype(dtype)
    x = Tensor(values, dtype=getattr(dtypes, dtype)).realize()
    turned = x.transpose(-1, -2)
    ast = kernel_of(turned + added if added else turned)
    wanted = np.ascontiguousarray(np.swapaxes(values, -1, -2)) + values.dtype.type(added)
    opts = tuple(schedule_kernel(ast, CPU).applied)
    linear, _ = lower(ast, replace(Device["CPU"].target, language="llvm"), opts)
    assert any(u.op is Ops.PREFETCH for u in linear.uops)
    program = compile_kernel(ast, Device["CPU"], opts).program
    assert isinstance(program, CpuProgram)
    source = storage.buffer_of(x.uop.base).ensure_allocated().handle
    # Rows that are whole lines of memory, and rows that are not.
    for over in (0, values.itemsize):
        out = zeros_at(wanted, over)
        program.function(slot_packer(2)(out.ctypes.data, source.address), 0, 1)
        np.testing.assert_array_equal(out, wanted)
