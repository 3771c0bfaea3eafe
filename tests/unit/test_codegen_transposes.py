"""Transposes: blocks that are asked for while others are read, and tiles at any size."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from aster_ml import Tensor
from aster_ml.codegen.lower import lower, schedule_kernel
from aster_ml.codegen.next_blocks import ask_for_next_blocks
from aster_ml.dtype import dtypes
from aster_ml.engine.compile import render
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import Ops
from aster_ml.uop.spec import verify
from aster_ml.uop.text import linear_from_text, linear_to_text
from tests.unit.kernel_checks import SMALL_CACHES as CPU
from tests.unit.kernel_checks import kernel_of, memory, places_of

LINE = 16


def lines_of(index: UOp) -> list[int]:
    """The lines that an index names, for every step of its ranges."""
    return [place // LINE for place in places_of(index)]


def test_every_line_but_those_of_the_first_block_is_asked_for_once() -> None:
    kernel = schedule_kernel(kernel_of(memory(64, 1024).T), CPU)
    assert "AHEAD" in [o.op.name for o in kernel.applied]
    (ask,) = [u.src[0] for u in ask_for_next_blocks(kernel).src if u.src[0].op is Ops.ASK]
    asked = lines_of(ask.src[0].src[1])
    # Blocks of 32 rows and 512 columns; what would follow the last one is beyond the end.
    first = {row * 1024 // LINE + i for row in range(32) for i in range(512 // LINE)}
    inside = [x for x in asked if x < 64 * 1024 // LINE]
    assert len(inside) == len(set(inside))
    assert set(inside) == set(range(64 * 1024 // LINE)) - first


def test_asking_is_valid_at_every_stage_and_prints_in_both_languages() -> None:
    ast = kernel_of(memory(64, 1024).T)
    linear, _ = lower(ast, CPU)
    verify(linear, "linear")
    assert any(u.op is Ops.ASK for u in linear.uops)
    assert linear_from_text(linear_to_text(linear)) == linear
    assert render(linear, CPU).count("call void @llvm.prefetch.p0") == LINE
    target = replace(CPU, language="c")
    assert render(lower(ast, target)[0], target).count("__builtin_prefetch(") == LINE


def test_some_is_asked_for_after_each_few_stores() -> None:
    source = render(lower(kernel_of(memory(64, 1024).T), CPU)[0], CPU)
    words = [w for line in source.splitlines() for w in ("prefetch", "!nontemporal") if w in line]
    calls = [w for w in words if w][: 4 * (LINE // 4) * 2]
    assert calls[:8] == ["!nontemporal"] * 4 + ["prefetch"] * 4


@pytest.mark.parametrize(
    ("shape", "asks"),
    [
        ((64, 1024), True),  # blocks that divide
        ((64, 1000), True),  # the last tiles and blocks start early
        ((64, 100), False),  # rows of less than two blocks
        ((72, 1024), False),  # rows of results that are no whole lines
    ],
)
def test_blocks_are_asked_for_where_results_are_whole_lines(
    shape: tuple[int, int], asks: bool
) -> None:
    applied = schedule_kernel(kernel_of(memory(*shape).T), CPU).applied
    assert ("AHEAD" in [o.op.name for o in applied]) is asks


@pytest.mark.parametrize("shape", [(37, 41), (129, 160), (100, 130), (17, 300), (515, 67)])
def test_tiles_of_any_size_have_no_gathers(shape: tuple[int, int]) -> None:
    applied = [o.op.name for o in schedule_kernel(kernel_of(memory(*shape).T), CPU).applied]
    assert {"OVERLAP", "UPCAST"} & set(applied)


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
