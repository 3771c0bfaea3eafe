"""Accesses at loaded places are right."""

from __future__ import annotations

import numpy as np
import pytest

from aster_ml import Tensor
from tests.core.kernel_checks import memory


def places(high: int, *shape: int) -> Tensor:
    """Realized indices below `high`."""
    return Tensor(np.random.default_rng(3).integers(0, high, shape, np.int32)).realize()


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
