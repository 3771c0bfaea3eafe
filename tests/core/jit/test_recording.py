"""What can be done to a recording: steps left out, memory given back, moved, pickled."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

from aster_ml import Context, GlobalCounters, Tensor, TinyJit
from aster_ml.engine.items import CompiledRunner
from aster_ml.errors import ArgumentError, JitError
from aster_ml.jit.graph_runner import GraphRunner
from tests.core.jit_helpers import vector


def recorded(function: Any, *args: Any, prune: bool = False) -> TinyJit[Any]:
    """The jitted function after three calls."""
    jitted: TinyJit[Any] = TinyJit(function, prune=prune)
    for _ in range(3):
        jitted(*args)
    return jitted


def test_pruned_steps_are_those_that_no_argument_reaches() -> None:
    w = Tensor.randn(64, 64).realize()

    def f(x: Tensor) -> Tensor:
        return x @ (w @ w).contiguous()

    whole, pruned = recorded(f, Tensor.randn(64, 64)), recorded(f, Tensor.randn(64, 64), prune=True)
    assert len(pruned.captured.jit_cache) == len(whole.captured.jit_cache) - 1
    for _ in range(3):
        x = Tensor.randn(64, 64)
        want = x.numpy().astype(np.float64) @ w.numpy() @ w.numpy()
        np.testing.assert_allclose(pruned(x).numpy(), want, atol=1e-3)


def test_pruning_keeps_what_changes_from_call_to_call() -> None:
    count, w = vector(0.0), Tensor.randn(64, 64).realize()

    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        count.assign(count + 1)
        fixed = (w @ w).contiguous()
        return x @ fixed + count, (Tensor.rand(64, 64) @ w).sum()

    pruned = recorded(f, Tensor.ones(64, 64).contiguous(), prune=True)
    seen = []
    for i in range(3):
        x = Tensor.randn(64, 64)
        first, second = pruned(x)
        want = x.numpy().astype(np.float64) @ w.numpy() @ w.numpy() + 4 + i
        np.testing.assert_allclose(first.numpy(), want, atol=1e-3)
        seen.append(second.item())
    assert count.item() == 6
    assert len(set(seen)) == 3


def test_pruned_scatters_keep_both_of_their_kernels_or_none() -> None:
    at, values = Tensor([0, 2, 2, 1]).realize(), Tensor.randn(4, 512).realize()

    def f(x: Tensor) -> Tensor:
        table = Tensor.zeros(3, 512).contiguous().realize()
        gradient = table[at].mul(values).sum().gradient(table)[0].contiguous().realize()
        return x + gradient.sum(0).contiguous()

    pruned = recorded(f, Tensor.zeros(512).contiguous(), prune=True)
    x = Tensor.randn(512)
    np.testing.assert_allclose(pruned(x).numpy(), x.numpy() + values.numpy().sum(0), atol=1e-5)


def test_a_method_is_pruned_too() -> None:
    class Model:
        def __init__(self) -> None:
            self.w = Tensor.randn(64, 64).realize()

        def run(self, x: Tensor) -> Tensor:
            return x @ (self.w @ self.w).contiguous()

        run = TinyJit(run, prune=True)  # type: ignore[assignment]

    model: Any = Model()
    for _ in range(3):
        x = Tensor.randn(64, 64)
        want = x.numpy().astype(np.float64) @ model.w.numpy() @ model.w.numpy()
        np.testing.assert_allclose(model.run(x).numpy(), want, atol=1e-3)
    assert len(model.run.captured.jit_cache) == 1


def test_intermediates_are_given_back_and_taken_again() -> None:
    add = vector(*range(100))

    def f(x: Tensor) -> Tensor:
        double = (x * 2).contiguous().realize()
        return (double + add).contiguous().realize().sum().realize()

    jitted = recorded(f, vector(*range(100)))
    for i in range(3):
        out = jitted(Tensor.full((100,), float(i)).contiguous().realize())
        before = GlobalCounters.mem_used
        jitted.captured.free_intermediates()
        jitted.captured.free_intermediates()
        # Two of 400 bytes, and the result, whose value moves to memory of the host.
        assert before - GlobalCounters.mem_used >= 804
        assert out.item() == 4950 + 200 * i


def test_freeing_leaves_states_results_and_other_users_of_the_memory() -> None:
    total = vector(0.0, 0.0)

    def f(x: Tensor) -> Tensor:
        total.assign(total + (x @ x).sum(0))
        return total * 2

    jitted = recorded(f, Tensor.ones(2, 2).contiguous())
    outs = [jitted(Tensor.ones(2, 2).contiguous()) for _ in range(2)]
    jitted.captured.free_intermediates()
    assert total.tolist() == [20.0, 20.0]
    assert [out.tolist() for out in outs] == [[32.0, 32.0], [40.0, 40.0]]
    np.testing.assert_allclose(f(Tensor.ones(2, 2).contiguous()).tolist(), [48.0, 48.0])
    assert jitted(Tensor.ones(2, 2).contiguous()).tolist() == [56.0, 56.0]


def test_memory_is_put_together() -> None:
    scale, shift = vector(2, 2, 2), vector(1, 24, 23)

    def f(x: Tensor) -> Tensor:
        wide = (x * scale + shift).reshape(3, 1).expand(3, 100).contiguous().realize()
        return wide.sum(1)

    jitted = recorded(f, vector(1, 2, 3))

    def bases() -> set[Any]:
        return {b.base for item in jitted.captured.jit_cache for b in item.bufs if b is not None}

    before = len(bases())
    jitted.captured.replan_buffers_memory_layout()
    assert len(bases()) < before
    for x in (vector(4, 5, 6), vector(7, 8, 9)):
        want = (x.numpy() * 2 + np.array([1, 24, 23], dtype=np.float32)) * 100
        np.testing.assert_allclose(jitted(x).numpy(), want)
    assert scale.tolist() == [2, 2, 2]
    assert shift.tolist() == [1, 24, 23]
    jitted.captured.free_intermediates()
    np.testing.assert_allclose(jitted(x).numpy(), want)


def test_other_recordings_find_memory_that_one_has_moved() -> None:
    w = vector(1, 2, 3)
    first, second = recorded(lambda x: x * w, vector(1, 1, 1)), recorded(lambda x: x + w, vector(1))
    first.captured.replan_buffers_memory_layout()
    assert second(vector(1)).tolist() == [2, 3, 4]
    w.assign(w + 1).realize()
    assert first(vector(1, 1, 1)).tolist() == [2, 3, 4]
    assert second(vector(1)).tolist() == [3, 4, 5]


def test_a_pickled_recording_runs_without_its_function() -> None:
    w, count = Tensor.randn(4, 4).realize(), vector(0)

    def f(x: Tensor, k: int = 2) -> dict[str, Tensor]:
        count.assign(count + 1)
        return {"y": (x @ w).relu() * k, "n": count, "r": Tensor.rand(3), "x": x}

    data = pickle.dumps(recorded(f, Tensor.randn(4, 4)))
    again = pickle.loads(data)
    drawn = set()
    for i in range(3):
        x = Tensor.randn(4, 4).realize()
        out = again(x)
        np.testing.assert_allclose(out["y"].numpy(), np.maximum(x.numpy() @ w.numpy(), 0) * 2, 1e-5)
        assert out["n"].item() == 4 + i
        assert out["x"] is x
        drawn.add(tuple(out["r"].tolist()))
    assert len(drawn) == 3
    assert count.item() == 3
    assert again.__name__ == "f"
    with pytest.raises(JitError, match="the function is not"):
        again(Tensor.randn(3, 4))
    assert pickle.loads(pickle.dumps(again))(x)["n"].item() == 7


def test_scratch_memory_is_not_pickled() -> None:
    def f(x: Tensor) -> Tensor:
        return (x * 2).expand(1000, 1000).contiguous().realize().sum()

    assert len(pickle.dumps(recorded(f, vector(1)))) < 100_000


def test_what_has_no_recording_is_not_pickled() -> None:
    with pytest.raises(JitError, match="call it three times"):
        pickle.dumps(TinyJit(lambda x: x + 1))

    class Setting:
        value = 3

    setting = Setting()
    jitted: TinyJit[Any] = TinyJit(lambda x, s: x + s.value)
    for _ in range(3):
        jitted(vector(1), setting)
    with pytest.raises(JitError, match="another process"):
        pickle.dumps(jitted)


def test_what_is_not_captured_is_not_repeated() -> None:
    made = []

    def f(x: Tensor) -> Tensor:
        with Context(CAPTURING=0):
            made.append(Tensor.arange(4).sum().item())
            offset = (Tensor.ones(4) * 3).contiguous().realize()
        return x + offset

    jitted = recorded(f, vector(1, 2, 3, 4))
    assert made == [6, 6]
    assert len(jitted.captured.jit_cache) == 1
    assert jitted(vector(5, 6, 7, 8)).tolist() == [8, 9, 10, 11]


def test_recordings_are_shown_as_items() -> None:
    def f(x: Tensor) -> Tensor:
        for _ in range(5):
            x = (x @ x).realize()
        return x

    x = Tensor.eye(32).contiguous().realize()
    jitted = recorded(f, x)
    items = jitted.captured.jit_cache
    assert len(items) == 5
    assert all(isinstance(item.prg, CompiledRunner) for item in items)
    assert None in items[0].bufs
    assert items[-1].bufs[0] is not None
    [graph] = jitted.jit_cache
    assert isinstance(graph.prg, GraphRunner)
    assert len(graph.prg.jit_cache) == 5
    with pytest.raises(ArgumentError, match="call that function"):
        graph.run()
    with Context(JIT_BATCH_SIZE=2):
        again = recorded(f, x)
    assert [len(item.prg.jit_cache) for item in again.jit_cache] == [2, 3]
    np.testing.assert_allclose(again(x).numpy(), np.eye(32))
    assert jitted.func.__self__ is jitted


def test_items_run_as_one_graph() -> None:
    a, b = vector(1, 2, 3), vector(4, 5, 6)
    first = (a * b).schedule()
    second = (a.exp2() + b.exp2()).schedule()
    runner = GraphRunner([*first, *second])
    runner([])
    assert first[0].bufs[0].numpy().tolist() == [4, 10, 18]
    assert second[0].bufs[0].numpy().tolist() == [18, 36, 72]
    assert runner.estimates.ops >= 6


def test_memory_that_one_function_gives_back_is_not_used_by_another() -> None:
    x = Tensor(np.full((64, 64), 1 / 64, np.float32)).realize()

    def products(x: Tensor) -> Tensor:
        y = (x @ x).contiguous()
        return ((y @ y).contiguous() @ x).realize()

    # The same schedule, with temporaries that stay with it between runs.
    first, second = TinyJit(lambda x: products(x)), TinyJit(lambda x: products(x))
    for _ in range(3):
        first(x)
        second(x)
    first.captured.free_intermediates()
    sizes = [b.nbytes // 4 for b in first.captured.replay.scratch]
    others = [Tensor.ones(n).contiguous().realize() for n in sizes for _ in range(8)]
    second(x)
    products(x)
    assert all((t.numpy() == 1).all() for t in others)
    np.testing.assert_allclose(first(x).numpy(), np.full((64, 64), 1 / 64), rtol=1e-5)


def test_recordings_of_many_shapes_keep_intermediates_of_a_few() -> None:
    @TinyJit
    def function(x: Tensor) -> Tensor:
        return (x.softmax().contiguous().T.contiguous() @ x).contiguous().sum(0).realize()

    arrays = [np.random.default_rng(n).random((n, 256), np.float32) for n in range(1000, 1012)]
    expected = [function.function(Tensor(a)).numpy() for a in arrays]
    with Context(JIT_BYTES=4 << 20):
        for a in arrays:
            x = Tensor(a).realize()
            for _ in range(3):
                function(x)
        replays = [r.replay for e in function.entries.values() for r in e.recordings]
        assert len(replays) == len(arrays)
        most = max(sum([b.nbytes for b in replay.scratch]) for replay in replays)
        assert most > 1 << 20
        assert sum(replay.scratch_nbytes for replay in replays) <= (4 << 20) + most
        assert replays[-1].scratch_nbytes > 0
        for a, wanted in zip(arrays, expected, strict=True):
            np.testing.assert_allclose(function(Tensor(a).realize()).numpy(), wanted, rtol=1e-4)


@pytest.mark.parametrize("before", [0, 1, 4])
def test_a_jitted_function_in_another_one_and_by_itself(before: int) -> None:
    rng = np.random.default_rng(0)
    weights = rng.standard_normal((24, 24)).astype(np.float32)
    w = Tensor(weights).realize()

    def plain(x):
        h = np.maximum(x @ weights, 0)
        return h @ weights - h.max(1, keepdims=True)

    @TinyJit
    def inner(x: Tensor) -> Tensor:
        h = (x @ w).relu()
        return (h @ w - h.max(1, keepdim=True)).realize()

    @TinyJit
    def outer(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        a, b, c = inner(x), inner(y), inner((x + y).realize())
        return (a + b * 2).realize(), c, inner((a * 0.01).realize())

    def check(got, want) -> None:
        np.testing.assert_allclose(got.numpy(), want, rtol=1e-4, atol=1e-3)

    def drawn():
        return rng.standard_normal((24, 24)).astype(np.float32)

    for _ in range(before):
        x = drawn()
        check(inner(Tensor(x).realize()), plain(x))
    for turn in range(6):
        x, y = drawn(), drawn()
        got = outer(Tensor(x).realize(), Tensor(y).realize())
        if turn % 2:
            z = drawn()
            check(inner(Tensor(z).realize()), plain(z))
        a, b = plain(x), plain(y)
        for found, wanted in zip(got, (a + b * 2, plain(x + y), plain(a * np.float32(0.01)))):
            check(found, wanted)
