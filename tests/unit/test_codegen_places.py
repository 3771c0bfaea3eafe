"""Lanes of accesses at loaded places: as many as one SIMD value has of indices."""

from __future__ import annotations

import numpy as np
import pytest

from aster_ml import Tensor
from aster_ml.codegen.opts import OptOps
from aster_ml.codegen.passes import schedule_kernel
from aster_ml.engine.realize import schedule_uops
from tests.unit.kernel_checks import memory
from tests.unit.test_codegen_schedule import AVX512, CPU


def lanes_of(t: Tensor) -> list[list[int]]:
    """SIMD lanes of each kernel that a tensor takes."""
    asts = [s.ast for s in schedule_uops([t.uop])[0].steps if s.ast is not None]
    applied = [schedule_kernel(ast, AVX512).applied for ast in asts]
    return [[opt.arg for opt in opts if opt.op is OptOps.VECTOR] for opts in applied]


def places(high: int, *shape: int) -> Tensor:
    """Realized indices below `high`."""
    return Tensor(np.random.default_rng(3).integers(0, high, shape, np.int32)).realize()


def test_gathers_have_lanes_for_their_indices() -> None:
    x, at = memory(64, 512), places(512, 64, 512)
    assert lanes_of(x.gather(1, at)) == [[8]]
    assert lanes_of(x + 1) == [[16]]


def test_rows_at_loaded_places_are_read_as_wide_as_others() -> None:
    table = memory(100, 64)
    assert lanes_of(table[places(100, 300)]) == [[16]]


def test_most_accesses_in_a_row_keep_wide_lanes() -> None:
    x, at = memory(64, 512), places(512, 64, 512)
    assert lanes_of(x.gather(1, at) * x + memory(64, 512) + memory(1, 512)) == [[16]]


def test_a_scatter_has_rows_side_by_side_and_few_of_them() -> None:
    x, at = memory(256, 512), places(512, 256, 512)
    assert [8] in lanes_of(x.scatter(1, at, x))


@pytest.mark.parametrize("shape", [(5, 7), (16, 33), (33, 64)])
def test_gathers_and_scatters_are_right(shape: tuple[int, int]) -> None:
    x, at = memory(*shape), places(shape[1], *shape)
    np.testing.assert_array_equal(
        x.gather(1, at).numpy(), np.take_along_axis(x.numpy(), at.numpy().astype(np.int64), 1)
    )
    want = np.zeros(shape, np.float32)
    np.add.at(want, (np.arange(shape[0])[:, None], at.numpy()), x.numpy())
    got = Tensor.zeros(*shape).scatter_reduce(1, at, x, "sum")
    np.testing.assert_allclose(got.numpy(), want, rtol=1e-5, atol=1e-5)


def test_other_targets_have_as_many_lanes_as_fit() -> None:
    [ast] = [
        s.ast
        for s in schedule_uops([memory(64, 512).gather(1, places(512, 64, 512)).uop])[0].steps
        if s.ast is not None
    ]
    assert "VECTOR(1,4)" in [repr(opt) for opt in schedule_kernel(ast, CPU).applied]
