"""A reduction read as an index, as a condition and as a value stays one reduction; what is written
just before is read as other memory is.
"""

from __future__ import annotations

import numpy as np
import pytest

from aster_ml import Context, GlobalCounters, Tensor


@pytest.mark.parametrize("settings", [{}, {"NOOPT": 1}, {"THREADS": 1}])
def test_reduction_in_an_index_and_beside_it(settings) -> None:
    with Context(**settings):
        i = Tensor([0, 0])
        x = Tensor([0.0, 1, 2, 3]) + 0
        row = i.reshape(1, 2) * 1
        same = row.eq(Tensor.arange(4).reshape(4, 1)) & (row >= 0) & (row < 4)
        last = same.where(Tensor.arange(1, 3), 0).max(1)
        picked = Tensor([10.0, 20])[(last - 1).maximum(0)]
        assert (last > 0).where(picked, x).tolist() == [20, 1, 2, 3]


@pytest.mark.parametrize("settings", [{}, {"NOOPT": 1}])
def test_two_gathers_by_one_argmax(settings) -> None:
    with Context(**settings):
        x = Tensor([[1.0, 5, 2], [7, 0, 3]])
        best = x.argmax(1)
        table = Tensor([10.0, 20, 30])
        assert (table[best] + table[(best + 1) % 3]).tolist() == [50, 30]


def test_a_position_that_is_a_value_too() -> None:
    values = [0, 1] * 9
    order = sorted(range(18), key=lambda i: values[i])
    assert Tensor(values).sort()[1].tolist() == order


def kernels_of(x: Tensor) -> int:
    """How many kernels run to compute a tensor."""
    GlobalCounters.reset()
    x.realize()
    return GlobalCounters.kernel_count


def test_memory_that_was_written_is_widened_where_it_is_multiplied() -> None:
    rng = np.random.default_rng(0)
    held = rng.normal(size=(3, 512, 64)).astype(np.float16)
    row = rng.normal(size=(3, 1, 64)).astype(np.float32)
    q = Tensor(rng.normal(size=(3, 12, 64)).astype(np.float32)).realize()
    memory, new = Tensor(held).realize(), Tensor(row).realize().sin().exp()
    plain = kernels_of(q @ memory.float().transpose(-2, -1))
    memory[:, 511:] = new.cast(memory.dtype)
    found = q @ memory.float().transpose(-2, -1)
    # One kernel writes the row; no copy of all as float32 is stored beside.
    assert kernels_of(found) == plain + 1
    held[:, 511:] = np.exp(np.sin(row))
    want = q.numpy() @ held.astype(np.float32).transpose(0, 2, 1)
    np.testing.assert_allclose(found.numpy(), want, rtol=1e-5, atol=1e-4)
