"""What belongs to a thread: settings, training, what is recorded. And what threads share."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from aster_ml import Context, Device, Tensor, TinyJit
from aster_ml.config import DEV, NOOPT, THREADS, stage_key
from aster_ml.errors import JitError
from aster_ml.jit.fast_path import DIFFERENT
from aster_ml.ops.handle import Handle, Touched
from tests.core.jit_helpers import vector


def in_thread(function: Callable[[], Any]) -> Any:
    """What a function returns, or raises, in a thread of its own."""
    found: list[Any] = []

    def work() -> None:
        try:
            found.append(function())
        except BaseException as error:
            found.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(60)
    assert not thread.is_alive()
    if isinstance(found[0], BaseException):
        raise found[0]
    return found[0]


# settings


def test_settings_of_one_thread_are_not_seen_by_others() -> None:
    with Context(NOOPT=1, THREADS=3):
        assert in_thread(lambda: (NOOPT.value, THREADS.value)) == (0, THREADS.initial)
        assert in_thread(lambda: stage_key("codegen")) != stage_key("codegen")

    entered, leave = threading.Event(), threading.Event()

    def hold() -> int:
        with Context(NOOPT=1):
            entered.set()
            leave.wait(60)
            return int(NOOPT.value)

    found: list[int] = []
    thread = threading.Thread(target=lambda: found.append(hold()))
    thread.start()
    entered.wait(60)
    assert NOOPT.value == 0
    leave.set()
    thread.join()
    assert found == [1]


def test_the_key_of_a_stage_follows_settings() -> None:
    before = stage_key("codegen")
    with Context(NOOPT=1):
        changed = stage_key("codegen")
        assert changed != before
        assert stage_key("codegen") is changed
    assert stage_key("codegen") == before


def test_compilers_work_under_the_settings_of_their_caller() -> None:
    """They are threads, and what is compiled depends on settings."""
    x = vector(*range(40))
    with Context(CACHE=0, ISA="avx2", THREADS=3):
        parts = [(x * float(i) + 0.375).contiguous() for i in range(7)]
        total = sum(parts[1:], parts[0])
        Tensor.realize(total, *[(p.exp() + float(i)).sum() for i, p in enumerate(parts)])
        assert total.tolist() == [21 * i + 7 * 0.375 for i in range(40)]


def test_the_default_device_is_everybodys() -> None:
    before = DEV.value
    try:
        Device.DEFAULT = "PYTHON"
        assert in_thread(lambda: (Tensor([1.0]) + 1).device) == "PYTHON"
    finally:
        DEV.set_for_all(before)


# training


def test_training_of_one_thread_is_not_seen_by_others() -> None:
    x = Tensor.ones(64).contiguous().realize()
    with Tensor.train():
        assert Tensor.training
        assert not in_thread(lambda: Tensor.training)
        assert in_thread(lambda: x.dropout(0.5).sum().item()) == 64
        assert x.training
    assert not Tensor.training

    def train() -> bool:
        Tensor.training = True
        return Tensor.training

    assert in_thread(train)
    assert not Tensor.training


# recordings


class Paused:
    """A jitted function that waits in the middle of each call for its turn."""

    def __init__(self, body: Callable[[Tensor], Tensor], calls: int) -> None:
        self.inside, self.go = threading.Event(), threading.Event()
        self.body = body
        self.jitted = TinyJit(self.call)
        self.input = vector(1, 2, 3)
        for _ in range(calls):
            self.go.set()
            self.jitted(self.input)
        self.go.clear()
        self.inside.clear()

    def call(self, x: Tensor) -> Tensor:
        self.inside.set()
        assert self.go.wait(60)
        return self.body(x)


@pytest.fixture(params=[0, 1], ids=["first call", "recording"])
def paused(request: pytest.FixtureRequest) -> Iterator[Paused]:
    """A jitted function in the middle of a call, in another thread; the end of it is looked at."""
    made = Paused(lambda x: (x * 2 + 1).realize(), request.param)
    found: list[Any] = []

    def work() -> None:
        try:
            found.append(made.jitted(made.input).tolist())
        except BaseException as error:
            found.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    assert made.inside.wait(60)
    yield made
    made.go.set()
    thread.join(60)
    assert found == [[3, 5, 7]]
    for _ in range(4):
        assert made.jitted(vector(4, 5, 6)).tolist() == [9, 11, 13]
    assert made.jitted.captured is not None
    assert len(made.jitted.jit_cache) == 1, "what others ran is no part of the recording"


def test_reading_while_another_thread_records(paused: Paused) -> None:
    assert (Tensor([1.0, 2.0]) + 1).tolist() == [2, 3]
    assert paused.input.tolist() == [1, 2, 3]
    assert (paused.input + 1).sum().item() == 9


def test_writing_while_another_thread_records(paused: Paused) -> None:
    x = vector(1, 2)
    x += 1
    assert x.tolist() == [2, 3]
    lazy = Tensor([1.0, 2.0]) * 3
    lazy.realize()
    x.assign(lazy)
    assert x.tolist() == [3, 6]
    kept = [Tensor([float(i)]) + x for i in range(5)]
    assert [t.tolist() for t in kept][4] == [7, 10]


def test_what_existed_before_is_changed_while_another_thread_records() -> None:
    before = [vector(1, 2), Tensor([3.0, 4.0]) * 2, Tensor.zeros(2)]
    made = Paused(lambda x: (x * 2 + 1).realize(), 1)
    thread = threading.Thread(target=lambda: made.jitted(made.input))
    thread.start()
    assert made.inside.wait(60)
    before[0].replace(Tensor([5.0, 6.0]))
    before[1].realize()
    before[2] += 1
    del before[1]
    made.go.set()
    thread.join(60)
    assert made.jitted.captured is not None
    assert [t.tolist() for t in before] == [[5, 6], [1, 1]]
    assert Touched.LISTENING == {}
    assert Handle.__dict__["uop"] is Touched.SLOT


def test_random_numbers_while_another_thread_records(paused: Paused) -> None:
    Tensor.manual_seed(3)
    assert 0 <= Tensor.rand(4).max().item() < 1


def test_recording_while_another_thread_records(paused: Paused) -> None:
    jitted = TinyJit(lambda x: x * 3)
    for _ in range(4):
        assert jitted(vector(1, 2)).tolist() == [3, 6]
    assert jitted.captured is not None


def test_a_function_that_replaces_a_tensor_is_still_refused(paused: Paused) -> None:
    kept = [vector(1, 2)]

    def replaces(x: Tensor) -> Tensor:
        kept[0].replace(Tensor([7.0, 8.0]).contiguous())
        return (x + 1).realize()

    jitted = TinyJit(replaces)
    with pytest.raises(JitError, match="replaces"):
        for _ in range(3):
            jitted(vector(1, 2))


def test_a_quick_way_that_another_thread_has_overtaken() -> None:
    """It was asked for before the other thread put memory of its own into the replay."""
    jitted = TinyJit(lambda x: x * 2)
    x, y = vector(1, 2), vector(3, 4)
    for _ in range(4):
        jitted(x)
    quick = jitted.again
    assert quick is not None
    assert in_thread(lambda: jitted.call_anew((y,), {}).tolist()) == [6, 8]
    assert jitted.again is not quick
    assert quick.call((x,), {}) is DIFFERENT
    assert jitted(x).tolist() == [2, 4]


def test_a_thread_knows_its_own_handles_alone() -> None:
    """Also where another one's lies where one of its own was."""
    with Touched() as touched:
        mine = vector(1)
        others = in_thread(lambda: [vector(i) for i in range(2)])
        assert touched.has(mine)
        assert not any(touched.has(t) for t in others)
        # As it is where `mine` is gone and its place was taken.
        touched.seen[id(others[0])] = touched.seen[id(mine)]
        assert not touched.has(others[0])


def test_threads_share_a_jitted_function() -> None:
    jitted = TinyJit(lambda x, y: (x @ y).relu())
    y = Tensor(np.eye(8, dtype=np.float32)).realize()
    wrong: list[Any] = []

    def work(number: int) -> None:
        x = Tensor(np.full((8, 8), float(number), np.float32)).realize()
        for _ in range(60):
            made = jitted(x, y).numpy()
            if not (made == number).all():
                wrong.append((number, made))

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
    finally:
        sys.setswitchinterval(before)
    assert not wrong
    assert jitted.cnt == 360
    assert len(jitted.entries) == 1


# processes


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_fork_while_other_threads_compute() -> None:
    """The child has this thread alone, and computes, compiles and replays as ever."""
    stop = threading.Event()
    jitted = TinyJit(lambda x: (x * 2 + 1).sum())

    def work(number: int) -> None:
        turn = 0
        while not stop.is_set():
            turn += 1
            x = Tensor(np.full(50 + number, turn, np.float32))
            assert (x + number).sum().item() == (turn + number) * (50 + number)
            assert jitted(Tensor.ones(16).contiguous().realize()).item() == 48

    threads = [threading.Thread(target=work, args=(i,)) for i in range(3)]
    for thread in threads:
        thread.start()
    ended = []
    try:
        for i in range(6):
            number = os.fork()
            if number == 0:
                code = 1
                try:
                    with Context(CACHE=0):
                        y = (Tensor.ones(300, 7 + i).contiguous() * 2).sum(0) + i
                        right = y.tolist() == [600 + i] * (7 + i)
                    right &= jitted(Tensor.ones(16).contiguous().realize()).item() == 48
                    code = 0 if right else 2
                finally:
                    os._exit(code)
            ended.append(os.waitpid(number, 0)[1])
    finally:
        stop.set()
    for thread in threads:
        thread.join(60)
    assert ended == [0] * 6
