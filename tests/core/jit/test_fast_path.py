"""A jitted function called again: the quick way gives what the long way gives, and no more.

Each test first calls a function until the quick way answers, which `quick` asserts.
"""

from __future__ import annotations

import gc
import random
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from aster_ml import Context, Device, GlobalCounters, Tensor, TinyJit, dtypes
from aster_ml.allocator import MEMORY
from aster_ml.engine import storage
from aster_ml.jit.fast_path import DIFFERENT, STEADY, FastPath
from benchmarks.calls import count_calls
from tests.core.jit_helpers import ramp, vector


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether the quick way answered, call by call."""
    found: list[bool] = []
    plain = FastPath.call

    def call(self: FastPath, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = plain(self, args, kwargs)
        found.append(result is not DIFFERENT)
        return result

    monkeypatch.setattr(FastPath, "call", call)
    return found


def quick(function: Callable[..., Any], *args: Any) -> TinyJit:
    """The jitted function, after calls with these arguments that leave it with a quick way."""
    jitted = TinyJit(function)
    for _ in range(3 + STEADY):
        jitted(*args)
    assert jitted.again is not None
    assert jitted.again.is_same is not None
    return jitted


def read(t: Tensor) -> list[float]:
    return t.numpy().copy().tolist()


def test_a_result_that_somebody_has_is_not_written_again(answers) -> None:
    x = vector(1, 2)
    jitted = quick(lambda x: x * 2, x)
    held = []
    for i in range(6):
        x.assign(vector(i, i + 1)).realize()
        held.append(jitted(x))
    assert [read(t) for t in held] == [[2.0 * i, 2.0 * i + 2] for i in range(6)]
    assert all(answers[-6:])


def test_results_in_turn_cost_no_memory(answers) -> None:
    x = vector(*range(64))
    jitted = quick(lambda x: x + 1, x)
    y = jitted(x)
    y = jitted(x)
    before = MEMORY.in_use()
    for _ in range(50):
        y = jitted(x)
    assert MEMORY.in_use() == before
    assert read(y) == [float(i + 1) for i in range(64)]
    assert all(answers[-50:])


def test_a_lazy_value_of_a_result_keeps_its_memory(answers) -> None:
    x, other = vector(1, 2), vector(5, 6)
    jitted = quick(lambda x: x + 1, x)
    lazy = jitted(x) * 10
    del_me = jitted(other)
    del del_me
    jitted(other)
    jitted(other)
    assert read(lazy) == [20, 30]
    assert all(answers[-3:])


def test_bytes_seen_from_outside_stay(answers) -> None:
    x, other = vector(1, 2), vector(5, 6)
    jitted = quick(lambda x: x + 1, x)
    seen = jitted(x)._memory().numpy()
    jitted(other)
    jitted(other)
    assert seen.tolist() == [2, 3]
    assert all(answers[-2:])


def test_a_result_as_the_next_argument(answers) -> None:
    x = vector(0, 1)
    jitted = quick(lambda x: x + 1, x)
    for _ in range(20):
        x = jitted(x)
    assert read(x) == [20, 21]
    assert all(answers[-20:])


def test_a_result_that_was_written_to(answers) -> None:
    x = vector(1, 2)
    jitted = quick(lambda x: x + 1, x)
    for _ in range(4):
        y = jitted(x)
        y.assign(y * 100).realize()
        assert read(y) == [200, 300]
    assert read(jitted(x)) == [2, 3]


def test_views_of_a_result(answers) -> None:
    x = vector(1, 2, 3, 4)
    jitted = quick(lambda x: x + 1, x)
    views = [jitted(x).reshape(2, 2).permute(1, 0) for _ in range(3)]
    x.assign(vector(0, 0, 0, 0)).realize()
    assert read(jitted(x)) == [1, 1, 1, 1]
    assert [read(v) for v in views] == [[[2, 4], [3, 5]]] * 3


def test_new_memory_for_every_call(answers) -> None:
    jitted = quick(lambda x, y: x.reshape(2, 3) @ y, Tensor(ramp(6)).realize(),
                   Tensor(ramp(6).reshape(3, 2)).realize())  # fmt: skip
    for start in range(5):
        a, b = ramp(6, start), ramp(6, start + 1).reshape(3, 2)
        got = jitted(Tensor(a).realize(), Tensor(b).realize())
        np.testing.assert_allclose(got.numpy(), a.reshape(2, 3) @ b)
    assert all(answers[-5:])


@pytest.mark.parametrize(
    "other",
    [
        lambda: Tensor([[1.0, 2.0]]).realize(),
        lambda: Tensor([1, 2]).realize(),
        lambda: vector(1, 2, 3),
        lambda: vector(1, 2, 3)[1:],
        lambda: vector(1, 2).requires_grad_(),
        lambda: Tensor([1.0, 2.0], device="PYTHON").realize(),
        lambda: vector(1) + vector(2, 3),
    ],
)
def test_an_argument_of_another_kind_goes_the_long_way(other, answers) -> None:
    jitted = quick(lambda x: x * 3, vector(1, 2))
    x = other()
    want = (x.numpy() * 3).tolist()
    answers.clear()
    assert read(jitted(x)) == want
    assert answers == [False] or (x.device == "CPU" and x.dtype is dtypes.float32)
    assert read(jitted(vector(1, 2))) == [3, 6]


def test_two_arguments_in_one_memory() -> None:
    x, y = vector(1, 2), vector(10, 20)
    jitted = quick(lambda x, y: x * 2 + y, x, y)
    assert read(jitted(x, x)) == [3, 6]
    assert read(jitted(y, x)) == [21, 42]
    assert read(jitted(y, y)) == [30, 60]
    assert read(jitted(x, y)) == [12, 24]


def test_plain_values(answers) -> None:
    x = vector(1, 2)
    jitted = quick(lambda x, n, text: x * n + len(text), x, 3, "ab")
    assert read(jitted(x, 3, "ab")) == [5, 8]
    assert answers[-1]
    assert read(jitted(x, 4, "ab")) == [6, 10]
    assert read(jitted(x, 3, "abc")) == [6, 9]
    assert answers[-2:] == [True, False]


def test_no_more_and_no_fewer_arguments() -> None:
    x = vector(1, 2)
    jitted = quick(lambda x, y=None: x + 1 if y is None else x + y, x)
    assert read(jitted(x, x)) == [2, 4]
    assert read(jitted(x)) == [2, 3]
    assert read(jitted(x, y=x)) == [2, 4]


def test_arguments_by_name(answers) -> None:
    x, y = vector(1, 2), vector(10, 20)
    jitted = TinyJit(lambda x, y: x - y)
    for _ in range(4):
        jitted(x=x, y=y)
    assert read(jitted(x=x, y=y)) == [-9, -18]
    assert answers[-1]
    assert read(jitted(y=x, x=y)) == [9, 18]
    assert read(jitted(x, y=y)) == [-9, -18]
    assert read(jitted(x, y)) == [-9, -18]
    assert read(jitted(x=x, y=y)) == [-9, -18]


def test_settings_are_part_of_the_call() -> None:
    x = vector(1, 2)
    jitted = quick(lambda x: x + 1 if Tensor.training else x - 1, x)
    assert read(jitted(x)) == [0, 1]
    with Tensor.train():
        assert read(jitted(x)) == [2, 3]
    assert read(jitted(x)) == [0, 1]


def test_jit_off_runs_the_function() -> None:
    runs = []

    def function(x: Tensor) -> Tensor:
        runs.append(None)
        return x + 1

    jitted = quick(function, vector(1))
    count = len(runs)
    with Context(JIT=0):
        assert read(jitted(vector(4))) == [5]
    assert len(runs) == count + 1


def test_what_the_function_reads_besides() -> None:
    factor, weight = 2, vector(1, 1)

    def function(x: Tensor) -> Tensor:
        return x * factor + weight

    x = vector(1, 2)
    jitted = quick(function, x)
    factor = 3
    assert read(jitted(x)) == [4, 7]
    weight.assign(vector(5, 5)).realize()
    assert read(jitted(x)) == [8, 11]
    weight = vector(7, 7)
    assert read(jitted(x)) == [10, 13]


def test_a_weight_whose_write_is_pending() -> None:
    weight = vector(1, 1)
    x = vector(1, 2)
    jitted = quick(lambda x: x + weight, x)
    weight.assign(weight + 1)
    assert read(jitted(x)) == [3, 4]


def test_memory_of_an_argument_that_was_exchanged() -> None:
    data = ramp(4)
    x = Tensor(data).realize()
    jitted = quick(lambda x: x + 1, x)
    x.assign(Tensor(ramp(4, 10)).realize()).realize()
    assert read(jitted(x)) == [11, 12, 13, 14]
    storage.attach(x.uop.base, Tensor(ramp(4, 20)).contiguous().realize()._memory())
    assert read(jitted(x)) == [21, 22, 23, 24]


def test_arguments_are_not_kept_alive() -> None:
    jitted = quick(lambda x: x.sum(), vector(1, 2))
    jitted(Tensor(ramp(1 << 16)).contiguous().realize())
    gc.collect()
    before = MEMORY.in_use()
    x = Tensor.ones(2).contiguous().realize()
    jitted(x)
    assert MEMORY.in_use() - before < 1024


def test_several_results_and_an_argument_among_them(answers) -> None:
    x = vector(1, 2)
    jitted = quick(lambda x: {"both": (x + 1, x), "sum": [x.sum(), None]}, x)
    for start in (3, 4):
        y = vector(start, 1)
        got = jitted(y)
        assert read(got["both"][0]) == [start + 1, 2]
        assert got["both"][1] is y
        assert got["sum"][0].item() == start + 1
        assert got["sum"][1] is None
    assert all(answers[-2:])


def test_one_memory_under_two_results() -> None:
    x = vector(1, 2, 3, 4)

    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        y = (x + 1).contiguous().realize()
        return y, y.reshape(2, 2)

    jitted = quick(function, x)
    held = [jitted(vector(i, 0, 0, 0)) for i in range(4)]
    assert [read(a) for a, _ in held] == [[i + 1, 1, 1, 1] for i in range(4)]
    assert [read(b) for _, b in held] == [[[i + 1, 1], [1, 1]] for i in range(4)]


def test_counters(answers) -> None:
    x = vector(1, 2)
    jitted = quick(lambda x: (x + 1).realize() * 2, x)
    counts = []
    for quickly in (True, False):
        jitted(x)
        if not quickly:
            jitted.again = None
        GlobalCounters.reset()
        jitted(x)
        c = GlobalCounters
        counts.append((c.kernel_count, c.global_ops, c.global_mem))
    assert counts[0] == counts[1]
    assert counts[0][0] == 2
    assert jitted.cnt == 3 + STEADY + 4


def test_memory_given_back_and_moved(answers) -> None:
    x = vector(1, 2)
    jitted = quick(lambda x: (x + 1).realize() * 2, x)
    captured = jitted.captured
    assert captured is not None
    held = jitted(x)
    captured.free_intermediates()
    assert read(held) == [4, 6]
    assert read(jitted(vector(2, 3))) == [6, 8]
    captured.replan_buffers_memory_layout()
    assert read(jitted(vector(3, 4))) == [8, 10]
    assert read(jitted(vector(4, 5))) == [10, 12]
    assert read(held) == [4, 6]
    assert answers[-1]


def test_inside_of_another_jitted_function() -> None:
    x = vector(1, 2)
    inner = quick(lambda x: x + 1, x)
    outer = TinyJit(lambda x: inner(x) * 2)
    for start in range(5):
        assert read(outer(vector(start, 1))) == [2 * start + 2, 4]
        assert read(inner(vector(start, 1))) == [start + 1, 2]


def test_methods_have_ways_of_their_own() -> None:
    class Model:
        def __init__(self, factor: float) -> None:
            self.weight = vector(factor, factor)

        @TinyJit
        def run(self, x: Tensor) -> Tensor:
            return x * self.weight

    models = [Model(2), Model(3)]
    for start in range(6):
        for factor, model in zip((2, 3), models):
            assert read(model.run(vector(start, 1))) == [factor * start, factor]


def test_another_device() -> None:
    x = Tensor([1.0, 2.0], device="PYTHON").realize()
    jitted = TinyJit(lambda x: x + 1)
    for i in range(5):
        assert read(jitted(x)) == [2, 3], i
    assert "PYTHON" in Device.get_available_devices()


@pytest.mark.parametrize("seed", range(4))
def test_random_programs(seed: int, answers) -> None:
    """Arguments and results are kept, dropped, written to and passed on in any order."""
    pick = random.Random(seed)
    weight = vector(1, 2, 3)
    jitted = TinyJit(lambda x, y: x * 2 + y * weight)
    shown = weight.numpy().copy()
    pool = [(vector(i, 1, 0), np.array([i, 1, 0], dtype=np.float32)) for i in range(3)]
    for _ in range(120):
        (x, a), (y, b) = pick.choice(pool), pick.choice(pool)
        if x is y and pick.random() < 0.8:
            continue
        got, want = jitted(x, y), a * 2 + b * shown
        if np.abs(want).max() > 1e4:
            got, want = vector(1, 2, 3), np.array([1, 2, 3], dtype=np.float32)
        what = pick.random()
        if what < 0.3:
            pool[pick.randrange(len(pool))] = got, want
        elif what < 0.4:
            pool[pick.randrange(len(pool))] = got - 1, want - 1
        elif what < 0.5:
            got.assign(got + 3).realize()
            pool.append((got, want + 3))
        elif what < 0.55:
            weight.assign(weight + 1).realize()
            shown = shown + 1
        elif what < 0.6 and len(pool) > 3:
            pool.pop(pick.randrange(len(pool)))
        np.testing.assert_allclose(got.numpy(), pool[-1][1] if 0.4 <= what < 0.5 else want)
        for t, v in pool:
            np.testing.assert_allclose(t.numpy() if pick.random() < 0.5 else v, v, rtol=1e-6)
    assert sum(answers) > 10


def test_arguments_in_turn_and_again() -> None:
    """What was written for some arguments says nothing once others had their places."""
    x, y = vector(1, 2), vector(3, 4)
    jitted = quick(lambda x, y: x * 2 + y, x, y)
    for a, b in [(x, y)] * (STEADY + 1) + [(y, x), (x, y), (y, y), (x, y), (y, x)] * 3:
        assert read(jitted(a, b)) == [2 * i + j for i, j in zip(read(a), read(b))]


def test_a_result_is_the_same_object_only_when_nobody_can_tell() -> None:
    x = vector(1, 2)
    jitted = quick(lambda x: x + 1, x)
    seen = weakref.ref(jitted(x))
    first = jitted(x)
    assert jitted(x) is not first
    assert seen() is not first
    first.assign(first * 5).realize()
    kept = jitted(x)
    assert (read(first), read(kept)) == ([10, 15], [2, 3])
    first.grad = first
    del first, kept
    again = [jitted(x) for _ in range(3)]
    assert [read(t) for t in again] == [[2, 3]] * 3
    assert [t.grad for t in again] == [None] * 3
    assert len({id(t) for t in again}) == 3


def test_python_calls_of_a_replay() -> None:
    x, y = vector(1, 2), vector(3, 4)
    jitted = quick(lambda x, y: x + y, x, y)
    assert 0 < count_calls(lambda: jitted(x, y)) - 1 <= 4
    result = [jitted(x, y)]

    def keep() -> None:
        result[0] = jitted(x, y)

    keep()
    assert 0 < count_calls(keep) - 1 <= 12
