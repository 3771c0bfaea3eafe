"""Default schedules emit only what can be done: kernels that once had no schedule or no program."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from aster_ml import Context, Tensor, dtypes, nn
from aster_ml.backend import ThreadParts
from aster_ml.codegen.passes import lower, schedule_kernel
from aster_ml.device import Device
from aster_ml.engine.compile import compile_kernel
from aster_ml.engine.counters import TOTALS
from aster_ml.engine.realize import schedule_uops
from aster_ml.target import Target
from aster_ml.uop.graph import substitute, toposort
from aster_ml.uop.ops import Ops, PowerArg
from aster_ml.uop.spec.verify import verify
from tests.core.kernel_checks import SMALL_CACHES, kernel_of, memory, run_parts

# Processors with 8 lanes of float32, and with 16.
AVX2 = Target("CPU", "llvm", arch="x86_64-any", vector_bits=256, vector_registers=16)
AVX512 = replace(AVX2, vector_bits=512, vector_registers=32, masks=True, broadcasts=True)


@pytest.mark.parametrize("channels", [16, 32, 48, 64])
def test_rows_of_one_strip_are_turned_in_blocks(channels: int) -> None:
    x = memory(8, channels, 32, 32)
    ast = kernel_of(x.permute(0, 2, 3, 1))
    opts = tuple(schedule_kernel(ast, SMALL_CACHES).applied)
    linear, _ = lower(ast, SMALL_CACHES)
    verify(linear, "linear")
    if channels == 32:
        assert any(u.op is Ops.PREFETCH for u in linear.uops)
    wanted = np.ascontiguousarray(x.numpy().transpose(0, 2, 3, 1))
    assert compile_kernel(ast, Device["CPU"], opts).launch == ThreadParts()
    (out,) = run_parts(ast, opts, x, wanted, [(0, 1)])
    np.testing.assert_array_equal(out, wanted)


@pytest.mark.parametrize("target", [AVX2, AVX512], ids=["8 lanes", "16 lanes"])
@pytest.mark.parametrize("width", [9, 10, 12, 15, 20, 31, 81])
def test_lanes_that_start_early_are_no_whole_row_of_phases(width: int, target: Target) -> None:
    x = memory(width, 3)
    for t in (
        x.unfold(-1, 2, 2).sum().gradient(x)[0],
        memory(1, 2, 3, width).conv_transpose2d(memory(2, 1, 3, 4), stride=(1, 2), padding=(1, 0)),
    ):
        for step in schedule_uops([t.uop])[0].steps:
            if step.ast is not None:
                linear, applied = lower(step.ast, target)
                verify(linear, "linear")
                assert lower(step.ast, target, applied)[0] == linear


@pytest.mark.parametrize("width", [7, 16, 32, 33, 65, 100])
def test_powers_of_powers_are_the_same_wherever_they_are_read(width: int) -> None:
    x = memory(4, width)
    t = x.log_softmax().log_softmax()
    ast = kernel_of(t)
    for target in (AVX2, AVX512):
        powers = [u for u in schedule_kernel(ast, target).facts.order if u.op is Ops.EXP2]
        assert {u.arg for u in powers} == {PowerArg(True)}
        verify(lower(ast, target)[0], "linear")

    def log_softmax(a: Any) -> Any:
        return a - np.log(np.exp(a).sum(1, keepdims=True))

    wanted = log_softmax(log_softmax(x.numpy().astype(np.float64)))
    np.testing.assert_allclose(t.numpy(), wanted, rtol=1e-5, atol=1e-5)


def test_reductions_over_the_same_range_have_loops_of_their_own() -> None:
    ast = kernel_of(memory(4, 7).max(1) + memory(4, 7).sum(1))
    first, second = [u for u in toposort(ast) if u.op is Ops.REDUCE]
    shared = substitute(ast, {second.src[1]: first.src[1]})
    linear, _ = lower(shared, Device["PYTHON"].target)
    verify(linear, "linear")
    assert len([u for u in linear.uops if u.op is Ops.RANGE and u.arg.kind.name == "REDUCE"]) == 2


def test_elements_that_are_unpacked_lazily_are_gathered() -> None:
    raw = np.arange(48, dtype=np.uint8).reshape(8, 6)
    b = Tensor(raw).realize()
    scaled = b[:, 2:].bitcast(dtypes.int8).float() * b[:, :2].bitcast(dtypes.float16).float()
    scale = np.ascontiguousarray(raw[:, :2]).view(np.float16).astype(np.float32)
    wanted = raw[:, 2:].view(np.int8).astype(np.float32) * scale
    np.testing.assert_array_equal(scaled[Tensor([1, 6])].numpy(), wanted[[1, 6]])
    # And where one element becomes several.
    words = Tensor(np.arange(12, dtype=np.uint32).reshape(6, 2)).realize()
    halves = (words + 1).bitcast(dtypes.uint16)
    numbers = np.arange(12, dtype=np.uint32).reshape(6, 2) + 1
    np.testing.assert_array_equal(
        halves[Tensor([5, 0])].numpy(), numbers.view(np.uint16)[[5, 0]].astype(np.uint16)
    )


def test_work_items_share_strips_that_are_long_enough() -> None:
    target = replace(AVX2, device="OPENCL", language="opencl", has_local=True, has_barrier=True,
                     max_group=256, local_bytes=32 << 10, index_bits=32)  # fmt: skip
    # Three axes of the same size, of which the weights have one and the images the other two.
    images, weights = memory(1, 64, 32, 32), memory(32, 64, 5, 5)
    for t in (images.conv2d(weights, padding=2), images.conv2d(weights, padding=2).square().sum()):
        for step in schedule_uops([t.uop])[0].steps:
            assert step.ast is not None
            linear, applied = lower(step.ast, target)
            verify(linear, "linear")
            assert lower(step.ast, target, applied)[0] == linear


@pytest.mark.parametrize("spec", [1, 2])
def test_places_that_are_made_of_data_keep_to_the_specification(spec: int) -> None:
    x = np.float32([[3.0, 1.0, 2.0, 7.0, 5.0]])
    with Context(SPEC=spec):
        np.testing.assert_array_equal(Tensor(x).sort(1)[0].numpy(), np.sort(x, 1))
        np.testing.assert_array_equal(Tensor(x).topk(2)[0].numpy(), [[7.0, 5.0]])
        np.testing.assert_array_equal(
            Tensor(x[0]).masked_select(Tensor(x[0] > 2)).numpy(), [3, 7, 5]
        )
        block = [nn.Conv2d(4, 8, 3, stride=2, padding=1, bias=False), nn.BatchNorm(8), Tensor.relu]
        assert memory(2, 4, 9, 9).sequential(block).numpy().shape == (2, 8, 5, 5)
        # Windows in a slab, which has rows and columns.
        made = memory(2, 16, 40, 40).conv2d(memory(16, 16, 3, 3), padding=1)
        assert made.numpy().shape == (2, 16, 40, 40)


def test_the_specification_is_asked_of_what_has_been_scheduled_before() -> None:
    t = memory(3, 5) + 1
    t.realize()
    before = TOTALS.compiled_kernels
    with Context(SPEC=1):
        (memory(3, 5) + 1).realize()
    assert TOTALS.compiled_kernels == before + 1
