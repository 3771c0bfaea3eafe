"""What a compiled kernel tells its launcher: into how many parts threads share it out."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from aster_ml import Context, Tensor
from aster_ml.codegen.opts import parse_opts
from aster_ml.codegen.passes import lower
from aster_ml.device import Device
from aster_ml.engine.compile import PARTS_EACH, Compiled, compile_kernel, part_count
from aster_ml.engine.estimate import Estimates
from tests.core.kernel_checks import SMALL_CACHES, kernel_of, memory


def compiled(t: Tensor, opts: str | None = None, threads: int = 2) -> Compiled:
    with Context(THREADS=threads):
        given = None if opts is None else parse_opts(opts)
        return compile_kernel(kernel_of(t), Device["CPU"], given)


@pytest.mark.parametrize("threads", [2, 3])
def test_long_kernels_have_several_parts_for_each_thread_and_short_ones_one(threads: int) -> None:
    long, short = Tensor.empty(1 << 22), Tensor.empty(1 << 16)
    assert compiled(long * 2, "THREAD(0,0)", threads).launch.parts == PARTS_EACH * threads
    assert compiled(short * 2, "THREAD(0,0)", threads).launch.parts == threads
    assert compiled(short * 2, "VECTOR(0,8)", threads).launch.parts == 1
    some = compiled(Tensor.empty(3 << 18) * 2, "THREAD(0,0)", threads).launch.parts
    assert threads < some < PARTS_EACH * threads
    assert some % threads == 0


TILE = "VECTOR(1,16) UPCAST(1,2) UPCAST(2,11,shift)"


def test_what_each_part_would_begin_with_is_not_done_more_often() -> None:
    """Weights that lie 800 apart are packed once a part, before the loop over images."""
    target = replace(SMALL_CACHES, cache_bytes=(32 << 10, 1 << 20, 16 << 20), threads=2)

    def parts(t: Tensor, opts: str) -> int:
        linear, _ = lower(kernel_of(t), target, parse_opts(opts))
        return part_count(linear, target, Estimates(1 << 30, 1 << 22))

    x, w = memory(8, 32, 36, 36), memory(32, 32, 5, 5)
    assert parts(x.conv2d(w), f"{TILE} THREAD(0,0) STAGE(0,2,panel)") == 2
    assert parts(x.conv2d(w), "VECTOR(3,16) THREAD(0,0)") == 16


def test_parts_that_do_not_divide_the_axis_give_every_result() -> None:
    with Context(THREADS=2):
        for rows in (1, 2, 3, 15, 17, 33):
            x = memory(rows, 100_003)
            np.testing.assert_array_equal((x * 2 + 1).numpy(), x.numpy() * 2 + 1)
            np.testing.assert_allclose(x.sum(1).numpy(), x.numpy().sum(1), rtol=1e-4)
