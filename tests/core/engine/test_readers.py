"""Writes find the tensors that still read memory, at a cost that nothing else alive adds to."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable

import numpy as np
import pytest

from aster_ml import Tensor, TinyJit, nn
from aster_ml.engine.readers import enter_new, nodes_above, shown_above
from aster_ml.ops import handle
from aster_ml.ops.live import MAX_NEW, NEW, wake
from aster_ml.ops.views import ONE_TO_ONE
from benchmarks.calls import count_calls


def memory(*shape: int) -> Tensor:
    return Tensor(np.ones(shape, np.float32)).realize()


def test_those_above_memory_are_found() -> None:
    x, other = memory(3), memory(3)
    y = (x * 2 + 1).sum()
    kept = other * 3
    found = nodes_above([x.uop.base])
    assert y.uop in found
    assert kept.uop not in found


def test_a_value_is_found_by_the_memory_that_it_was_computed_to() -> None:
    x = memory(3)
    y = x * 2
    z = y + 1
    y.realize()
    assert z.uop in nodes_above([y.uop.base])
    assert z.uop not in nodes_above([x.uop.base])
    y.assign(memory(3) * 100).realize()
    assert z.tolist() == [3, 3, 3]


def test_a_tensor_that_is_gone_is_not_found() -> None:
    x = memory(3)
    y = x + 5
    node = y.uop
    assert node in nodes_above([x.uop.base])
    del y
    assert node not in nodes_above([x.uop.base])


def test_a_view_shows_its_whole() -> None:
    x = memory(4)
    y = x.reshape(2, 2)
    assert y._ref in list(shown_above(x.uop, ONE_TO_ONE))


def replay() -> Callable[[], object]:
    c, x = Tensor.zeros(4, 4).contiguous().realize(), memory(1, 4)

    @TinyJit
    def step(x: Tensor) -> Tensor:
        c[0:1] = x
        return (c.sum() + x.sum()).realize()

    return lambda: step(x)


def assign() -> Callable[[], object]:
    c, x = Tensor.zeros(4, 4).contiguous().realize(), memory(1, 4)

    def step() -> None:
        c[0:1] = x
        c.realize()

    return step


def realize() -> Callable[[], object]:
    x = memory(4)
    return lambda: (x * 2 + 1).realize()


def training() -> Callable[[], object]:
    model = nn.Linear(4, 4)
    optimiser = nn.optim.Adam(nn.state.get_parameters(model), lr=0.1)
    x = memory(2, 4)

    @Tensor.train()
    def step() -> None:
        optimiser.zero_grad()
        model(x).sum().backward()
        optimiser.step()

    return step


def test_a_step_costs_the_same_whatever_else_is_alive(
    record_property: Callable[[str, str], None],
) -> None:
    steps = {make.__name__: make() for make in (replay, assign, realize, training)}

    def calls_of(step: Callable[[], object]) -> int:
        return count_calls(lambda: [step() for _ in range(5)])

    for step in steps.values():
        for _ in range(6):
            step()
    alone = {name: calls_of(step) for name, step in steps.items()}
    w = memory(4, 4)
    lazy = [w + i for i in range(10_000)]
    kept = [Tensor([float(i)]).realize() for i in range(200)]
    kept += [nn.Linear(2, 2).weight for _ in range(20)]
    recorded = [TinyJit(lambda x, i=i: (x + i).realize()) for i in range(5)]
    v = memory(4, 4)
    kept += [function(v) for function in recorded for _ in range(4)]
    beside = {name: calls_of(step) for name, step in steps.items()}
    assert len(lazy) == 10_000
    assert len(kept) == 240
    ratios = {name: beside[name] / alone[name] for name in steps}
    told = ", ".join([f"{name} {ratio:.3f}" for name, ratio in ratios.items()])
    record_property("fuzz", f"calls beside 10,000 lazy tensors to calls alone: {told}")
    assert all(ratio <= 1.2 for ratio in ratios.values()), told


def test_views_that_are_gone_do_not_gather() -> None:
    x = memory(8)
    for i in range(3 * MAX_NEW):
        (x[i % 8 : i % 8 + 1]).contiguous().realize()
        wake(x[0:1])
    assert len(NEW) <= MAX_NEW + 1


def test_one_of_equal_tensors_is_entered_whenever_another_thread_asks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def wake_and_ask(tensor: Tensor) -> None:
        # As a thread does that writes just then.
        wake(tensor)
        enter_new()

    x = Tensor([1, 2, 3]).realize()
    first = x + 1
    monkeypatch.setattr(handle, "wake", wake_and_ask)
    second = x + 1
    assert second.uop is first.uop
    del first
    x.assign(Tensor([0, 0, 0])).realize()
    assert second.tolist() == [2, 3, 4]


@pytest.mark.parametrize("dtype", ["int32", "float32"])
def test_what_threads_build_of_one_memory_keeps_its_numbers(dtype: str) -> None:
    """Each round, threads build equal tensors at once; all but one go, and memory is written."""
    count, rounds = 3, 40
    x = Tensor([1, 2, 3], dtype=dtype).realize()
    other = Tensor([1, 2, 3], dtype=dtype).realize()
    start, built = threading.Barrier(count + 1), threading.Barrier(count + 1)
    made: list[list[Tensor]] = [[] for _ in range(count)]
    errors: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for turn in range(rounds):
                start.wait(60)
                for i in range(4):
                    made[number].append((x * (turn + 2) + i) * 3)
                # Asks for readers while others are built.
                other[0:1] = number
                other.realize()
                built.wait(60)
        except BaseException as error:
            errors.append(error)
            built.abort()
            start.abort()

    threads = [threading.Thread(target=work, args=(i,)) for i in range(count)]
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for turn in range(rounds):
            now = np.array([turn, turn + 1, turn + 2])
            x.assign(Tensor(now.tolist(), dtype=dtype)).realize()
            start.wait(60)
            built.wait(60)
            for number in range(count):
                if number != turn % count:
                    made[number].clear()
            x.assign(Tensor([-1, -1, -1], dtype=dtype)).realize()
            left = made[turn % count]
            for i, tensor in enumerate(left):
                assert tensor.tolist() == ((now * (turn + 2) + i) * 3).tolist()
            left.clear()
            del tensor
    finally:
        sys.setswitchinterval(before)
        start.abort()
        for thread in threads:
            thread.join(60)
    assert all(isinstance(e, threading.BrokenBarrierError) for e in errors)
