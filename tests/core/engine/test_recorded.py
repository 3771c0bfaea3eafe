"""Sessions: a graph of a form that was realized before goes to its launch in one look-up."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable

import numpy as np
import pytest

from aster_ml import Context, GlobalCounters, Tensor, TinyJit, dtypes
from aster_ml.device import Device
from aster_ml.engine import recorded
from aster_ml.engine.caches import CACHES
from aster_ml.engine.storage import buffer_of


def draw(*shape: int, seed: int = 0) -> Tensor:
    values = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
    return Tensor(values).realize()


@pytest.fixture
def ways(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each realize since then was answered from a form that was seen."""
    seen: list[bool] = []
    real = recorded.run_recorded

    def note(tensor: Tensor) -> object:
        memory = real(tensor)
        seen.append(memory is not None)
        return memory

    monkeypatch.setattr("aster_ml.tensor.run_recorded", note)
    CACHES.graphs.clear()
    return seen


def third(make: Callable[[], Tensor], ways: list[bool]) -> bool:
    """Whether the third realize of what `make` gives is answered at once."""
    for _ in range(2):
        make().realize()
    ways.clear()
    make().realize()
    return ways == [True]


def test_the_third_time_is_a_look_up_with_the_memory_of_then(ways: list[bool]) -> None:
    for turn in range(5):
        a, b = draw(7, 5, seed=turn), draw(5, 9, seed=turn + 50)
        found = (a @ b + 2).relu().realize()
        assert ways.pop() == (turn > 1)
        wanted = np.maximum(a.numpy() @ b.numpy() + 2, 0)
        np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-5, atol=1e-5)


def test_results_have_memory_of_their_own(ways: list[bool]) -> None:
    a = draw(8)
    results = [(a * 3).realize() for _ in range(5)]
    results[3] += 1
    results[3].realize()
    for i, t in enumerate(results):
        np.testing.assert_array_equal(t.numpy(), a.numpy() * 3 + (i == 3))
    assert any(ways)


def test_forms_tell_graphs_apart(ways: list[bool]) -> None:
    a, b = draw(4, 4), draw(4, 4, seed=1)
    makers: list[tuple[Callable[[], Tensor], Callable[[], object]]] = [
        (lambda: a @ b, lambda: a.numpy() @ b.numpy()),
        (lambda: a @ a, lambda: a.numpy() @ a.numpy()),
        (lambda: b @ a, lambda: b.numpy() @ a.numpy()),
        (lambda: a.T @ b, lambda: a.numpy().T @ b.numpy()),
        (lambda: a * 2.0, lambda: a.numpy() * 2),
        (lambda: a * -0.0, lambda: a.numpy() * np.float32(-0.0)),
        (lambda: a * 0.5 + b, lambda: a.numpy() * np.float32(0.5) + b.numpy()),
        (lambda: (a > 0).cast("int32"), lambda: (a.numpy() > 0).astype(np.int32)),
        (lambda: (a > 0).cast("int8"), lambda: (a.numpy() > 0).astype(np.int8)),
        (lambda: a.sum(0), lambda: a.numpy().sum(0)),
        (lambda: a.sum(1), lambda: a.numpy().sum(1)),
        (lambda: a.max(1), lambda: a.numpy().max(1)),
        (lambda: a[1:3] + b[:2], lambda: a.numpy()[1:3] + b.numpy()[:2]),
        (lambda: a[2:4] + b[:2], lambda: a.numpy()[2:4] + b.numpy()[:2]),
    ]
    for _ in range(3):
        for make, oracle in makers:
            found = make().realize().numpy()
            np.testing.assert_allclose(found, oracle(), rtol=1e-5, atol=1e-6)  # type: ignore[arg-type]
            assert found.dtype == np.asarray(oracle()).dtype
    # What comes to a number everywhere has no kernel.
    assert sum(ways) >= len(makers) - 1


def test_what_was_realized_in_between_is_read(ways: list[bool]) -> None:
    a = draw(6)
    for turn in range(4):
        middle = a * 2 + turn
        last = middle * 3
        middle.realize()
        before = GlobalCounters.kernel_count
        last.realize()
        assert GlobalCounters.kernel_count == before + 1
        np.testing.assert_allclose(last.numpy(), (a.numpy() * 2 + turn) * 3, rtol=1e-5)


def test_whoever_has_the_same_node_reads_the_same_memory(ways: list[bool]) -> None:
    a = draw(6)
    for _ in range(4):
        first, second = a + 5, a + 5
        later = second * 2
        first.realize()
        count = GlobalCounters.kernel_count
        second.realize()
        assert GlobalCounters.kernel_count == count
        assert buffer_of(first.uop.base) is buffer_of(second.uop.base)
        np.testing.assert_allclose(later.numpy(), (a.numpy() + 5) * 2, rtol=1e-6)
        del first, second, later
    assert any(ways)


def test_memory_that_was_written_since(ways: list[bool]) -> None:
    a = draw(6)
    for turn in range(5):
        found = (a * 2).realize()
        np.testing.assert_allclose(found.numpy(), a.numpy() * 2)
        a.assign(a + turn).realize()
    b = a + 0
    pending = a.assign(a * 10)
    np.testing.assert_allclose((a * 2).realize().numpy(), pending.numpy() * 2)
    assert b.numpy().shape == (6,)


def test_views_of_memory_at_any_place(ways: list[bool]) -> None:
    base = draw(64)
    for start in (0, 3, 8, 17, 17, 40):
        part = base[start : start + 8].contiguous().realize()
        view = base.shrink(((start, start + 8),))
        np.testing.assert_array_equal((part * 2).realize().numpy(), base.numpy()[start:][:8] * 2)
        np.testing.assert_array_equal((view + 1).realize().numpy(), base.numpy()[start:][:8] + 1)


def test_several_kernels_and_their_temporaries(ways: list[bool]) -> None:
    for turn in range(4):
        x = draw(16, 32, seed=turn)
        found = ((x.softmax(1) @ x.T).softmax(1)).realize().numpy()
        e = np.exp(x.numpy() - x.numpy().max(1, keepdims=True))
        p = e / e.sum(1, keepdims=True) @ x.numpy().T
        e = np.exp(p - p.max(1, keepdims=True))
        np.testing.assert_allclose(found, e / e.sum(1, keepdims=True), rtol=1e-4)


def test_settings_and_forgotten_schedules_take_the_long_way(ways: list[bool]) -> None:
    a = draw(6)
    assert third(lambda: a * 7, ways)
    with Context(NOOPT=1):
        ways.clear()
        (a * 7).realize()
        assert ways == [False]
        assert third(lambda: a * 7, ways)
    CACHES.forget_schedules()
    ways.clear()
    (a * 7).realize()
    assert ways == [False]


def test_debugging_takes_the_long_way(ways: list[bool], capsys: pytest.CaptureFixture[str]) -> None:
    a = draw(6)
    assert third(lambda: a * 9, ways)
    with Context(DEBUG=2):
        (a * 9).realize()
    assert "***" in capsys.readouterr().out


def test_recordings_are_told(ways: list[bool]) -> None:
    a = draw(6)
    assert third(lambda: a * 11, ways)
    jitted = TinyJit(lambda x: (x * 11).realize())
    for turn in range(5):
        x = draw(6, seed=turn)
        np.testing.assert_allclose(jitted(x).numpy(), x.numpy() * 11, rtol=1e-6)


def test_gradients_go_the_long_way() -> None:
    x = draw(6)
    x.requires_grad = True
    for _ in range(4):
        y = (x * x).realize()
        x.grad = None
        y.sum().backward()
        assert x.grad is not None
        np.testing.assert_allclose(x.grad.numpy(), 2 * x.numpy(), rtol=1e-6)


def test_counters_count(ways: list[bool]) -> None:
    a = draw(6)
    assert third(lambda: a * 13, ways)
    kernels, ops, mem = (
        GlobalCounters.kernel_count,
        GlobalCounters.global_ops,
        GlobalCounters.global_mem,
    )
    (a * 13).realize()
    assert GlobalCounters.kernel_count == kernels + 1
    assert GlobalCounters.global_ops == ops + 6
    assert GlobalCounters.global_mem == mem + 48


def test_memory_goes_with_its_tensor(ways: list[bool]) -> None:
    a = draw(1000)
    assert third(lambda: a * 15, ways)
    gc.collect()
    before = GlobalCounters.mem_used
    kept = [(a * 15).realize() for _ in range(10)]
    assert GlobalCounters.mem_used == before + 10 * 4000
    del kept
    assert GlobalCounters.mem_used == before


def test_threads_take_turns() -> None:
    a = draw(32, 32)
    wanted = a.numpy() @ a.numpy() + 1
    wrong: list[str] = []

    def work() -> None:
        for _ in range(60):
            found = (a @ a + 1).realize().numpy()
            if not np.allclose(found, wanted, rtol=1e-4, atol=1e-4):
                wrong.append("another product")

    threads = [threading.Thread(target=work) for _ in range(3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_a_device_without_graphs(ways: list[bool]) -> None:
    assert Device["PYTHON"].make_graph([]) is None
    for turn in range(4):
        a = Tensor([1.0, 2.0, 3.0], device="PYTHON", dtype=dtypes.float32).realize()
        assert (a + turn).realize().tolist() == [1 + turn, 2 + turn, 3 + turn]
    assert not any(ways)
