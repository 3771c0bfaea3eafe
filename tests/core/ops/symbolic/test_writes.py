"""Memory written where variables say, and who reads it before and after; against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from aster_ml import GlobalCounters, Tensor, Variable

N = Variable("n", 0, 9)


def fresh() -> Tensor:
    return Tensor.arange(10).contiguous().realize()


def test_windows_that_are_written_one_after_the_other() -> None:
    for realized in (True, False):
        cache = Tensor.zeros(10, 2).contiguous().realize()
        kept = []
        for i in range(5):
            n = N.bind(i)
            cache[n : n + 1].assign(Tensor.full((1, 2), i + 1.0))
            if realized:
                cache.realize()
            # Lazy sums over another part each, of the memory as it is now.
            kept.append(cache[: n + 1].sum(0))
        assert [k.tolist() for k in kept] == [[i * (i + 1) / 2] * 2 for i in range(1, 6)]
        assert cache[:, 0].tolist() == [1, 2, 3, 4, 5, 0, 0, 0, 0, 0]


def test_writes_that_were_all_pending() -> None:
    x = fresh()
    for i in range(4):
        n = N.bind(i)
        x[n : n + 2].assign(x[n : n + 2] * 10)
    want = np.arange(10)
    for i in range(4):
        want[i : i + 2] *= 10
    assert x.tolist() == want.tolist()


def test_who_has_a_lazy_value_keeps_it() -> None:
    x = fresh()
    total, doubled = x[: N.bind(3)].sum(), x[: N.bind(5)] * 2
    x.assign(x + 1).realize()
    assert total.item() == 3
    assert doubled[:5].tolist() == [0, 2, 4, 6, 8]
    assert x.tolist() == list(range(1, 11))
    assert x[: N.bind(3)].sum().item() == 6


def test_a_whole_tensor_of_symbolic_shape_is_assigned() -> None:
    n = Variable("n", 1, 10).bind(4)
    x = (Tensor.ones(3, 10).contiguous()[:, :n] * 2).realize()
    memory = x.uop.base
    x.assign(x + 3)
    x += 1
    x.realize()
    assert x.uop.base is memory
    assert x[:, :4].tolist() == [[6.0] * 4] * 3
    made = Tensor.empty(3, n)
    made.assign(Tensor.full((3, n), 7.0)).realize()
    assert made.sum().item() == 84


def test_a_window_takes_a_value_of_symbolic_shape() -> None:
    for size in (1, 4, 9):
        n = Variable("m", 1, 9).bind(size)
        x = fresh()
        x[:n] = x[1 : n + 1] * 2
        want = np.arange(10)
        want[:size] = np.arange(1, size + 1) * 2
        assert x.tolist() == want.tolist()


def test_a_cache_that_is_rebuilt_around_its_old_content() -> None:
    cache = Tensor.zeros(2, 8).contiguous().realize()
    want = np.zeros((2, 8))
    for start in range(1, 6):
        n = Variable("start", 1, 7).bind(start)
        keys = cache.shrink((None, (0, n))).cat(Tensor.full((2, 1), float(start)), dim=1)
        cache.assign(keys.pad((None, (0, 7 - n)))).realize()
        want[:, start] = start
        want[:, start + 1 :] = 0
        np.testing.assert_array_equal(cache.numpy(), want)


@pytest.mark.parametrize("size", [1, 3])
def test_a_write_is_one_kernel(size: int) -> None:
    cache = Tensor.zeros(64, 8).contiguous().realize()
    x = Tensor.ones(size, 8).contiguous().realize()
    n = Variable("n", 0, 60)
    for start in (0, 7, 60):
        GlobalCounters.reset()
        cache[n.bind(start) : n.bind(start) + size].assign(x + 1).realize()
        assert GlobalCounters.kernel_count == 1
        assert GlobalCounters.global_mem <= 2 * size * 8 * 4
    assert cache.sum().item() == 3 * size * 8 * 2
