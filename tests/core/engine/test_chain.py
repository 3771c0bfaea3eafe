"""Long chains: every walk is iterative and linear, and nothing stays behind."""

from __future__ import annotations

import gc
import time

import numpy as np

from aster_ml import Context, Tensor, TinyJit
from aster_ml.allocator import MEMORY
from aster_ml.engine.caches import CACHES, LARGE_BODY
from aster_ml.uop.interned import NODES

LENGTH = 100_000


def run_chain(length: int) -> tuple[float, float]:
    """The value and the gradient of a chain, in which no two neighbours cancel out."""
    x = Tensor([1.0], requires_grad=True).realize()
    y = x
    for i in range(length // 2):
        y = y * 0.99999 + (0.5 if i % 2 else 0.25)
    (gradient,) = y.sum().gradient(x)
    Tensor.realize(y, gradient)
    return y.item(), gradient.item()


def expected(length: int) -> tuple[float, float]:
    value, factor = np.float32(1), np.float32(0.99999)
    slope = np.float32(1)
    for i in range(length // 2):
        value = value * factor + np.float32(0.5 if i % 2 else 0.25)
        slope *= factor
    return float(value), float(slope)


def test_a_chain_of_100_000_ops_is_computed_differentiated_and_freed() -> None:
    gc.collect()
    CACHES.forget_schedules()
    CACHES.kernels.clear()
    gc.collect()
    nodes, memory = len(NODES), MEMORY.in_use()
    start = time.process_time()
    value, gradient = run_chain(LENGTH)
    seconds = time.process_time() - start
    want_value, want_gradient = expected(LENGTH)
    np.testing.assert_allclose(value, want_value, rtol=1e-3)
    np.testing.assert_allclose(gradient, want_gradient, rtol=1e-3)
    gc.collect()
    # The kernels stay, which are few and small; of the graph nothing does.
    assert len(NODES) - nodes < 5000
    assert MEMORY.in_use() == memory
    CACHES.kernels.clear()
    gc.collect()
    assert len(NODES) - nodes < 200
    # Twenty times what it takes; a walk that is quadratic takes hours.
    assert seconds < 120


def test_time_grows_with_the_length_and_not_with_its_square() -> None:
    def seconds(length: int) -> float:
        CACHES.forget_schedules()
        start = time.process_time()
        run_chain(length)
        return time.process_time() - start

    seconds(2000)
    # The least of some, as other work on the machine takes the caches away.
    short, long = (min([seconds(n) for _ in range(3)]) for n in (2000, 20_000))
    assert long < 40 * short


def test_a_large_graph_is_kept_from_its_second_time_on() -> None:
    CACHES.forget_schedules()
    kept = []
    for _ in range(3):
        y = Tensor([1.0]).realize()
        for _ in range(LARGE_BODY // 2 + 100):
            y = y * 0.5 + 1
        y.realize()
        kept.append(len(CACHES.schedules.entries))
    CACHES.forget_schedules()
    assert kept == [0, 1, 1]


def test_a_large_graph_of_a_jitted_function_is_kept_at_once() -> None:
    def long(t: Tensor) -> Tensor:
        for _ in range(LARGE_BODY // 2 + 100):
            t = t * 0.5 + 1
        return t

    CACHES.forget_schedules()
    jitted = TinyJit(long)
    for _ in range(2):
        result = jitted(Tensor([1.0]).realize())
    CACHES.forget_schedules()
    assert jitted.latest is not None
    np.testing.assert_allclose(result.numpy(), [2.0])


def test_schedules_past_the_limit_go() -> None:
    CACHES.forget_schedules()
    for length in range(1, 30):
        y = Tensor([1.0]).realize()
        for _ in range(length):
            y = y * 0.5 + 1
        with Context(KEPT_BYTES=500_000):
            y.realize()
        assert CACHES.nbytes <= 500_000
        for level in (CACHES.graphs, *CACHES.levels):
            assert level.nbytes == sum(kept.nbytes for kept in level.entries.values())
    CACHES.forget_schedules()


def test_a_wide_graph() -> None:
    x = Tensor([1.0, 2.0]).realize()
    parts = [x * float(i) for i in range(2000)]
    while len(parts) > 1:
        parts = [a + b for a, b in zip(parts[::2], parts[1::2] + [x * 0], strict=False)]
    np.testing.assert_allclose(parts[0].numpy(), np.array([1, 2]) * (2000 * 1999 / 2), rtol=1e-5)


def test_a_chain_of_movements() -> None:
    x = Tensor(np.arange(6, dtype=np.float32).reshape(2, 3)).realize()
    y = x
    for _ in range(300):
        y = y.T.reshape(2, 3).flip(0)
    want = np.arange(6).reshape(2, 3)
    for _ in range(300):
        want = want.T.reshape(2, 3)[::-1]
    np.testing.assert_array_equal(y.numpy(), want)


def test_a_chain_of_updates_in_place() -> None:
    x = Tensor([0.0]).realize()
    for _ in range(300):
        x += 1
    assert x.tolist() == [300]


def test_a_chain_inside_a_jitted_function() -> None:
    def function(x: Tensor) -> Tensor:
        for _ in range(2000):
            x = x * 0.5 + 1
        return x

    jitted = TinyJit(function)
    for i in range(4):
        np.testing.assert_allclose(jitted(Tensor([float(i)]).realize()).numpy(), [2], rtol=1e-6)
