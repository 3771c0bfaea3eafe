"""Writes find the tensors that still read memory, at a cost that nothing else alive adds to."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from aster_ml import Tensor, TinyJit, nn
from aster_ml.engine.readers import nodes_above, shown_above
from aster_ml.mixin.live import MAX_NEW, NEW, wake
from aster_ml.mixin.views import ONE_TO_ONE
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
    assert y.ref in list(shown_above(x.uop, ONE_TO_ONE))


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


@pytest.mark.parametrize("make", [replay, assign, realize, training])
def test_a_step_costs_the_same_whatever_else_is_alive(
    make: Callable[[], Callable[[], object]],
) -> None:
    step = make()
    for _ in range(6):
        step()

    def steps() -> None:
        for _ in range(5):
            step()

    few = count_calls(steps)
    w = memory(4, 4)
    kept = [(w + i) * 2 for i in range(2000)]
    kept += [Tensor([float(i)]).realize() for i in range(200)]
    kept += [nn.Linear(2, 2).weight for _ in range(20)]
    assert count_calls(steps) <= 1.2 * few + 25
    assert len(kept) == 2220


def test_views_that_are_gone_do_not_gather() -> None:
    x = memory(8)
    for i in range(3 * MAX_NEW):
        (x[i % 8 : i % 8 + 1]).contiguous().realize()
        wake(x[0:1])
    assert len(NEW) <= MAX_NEW + 1
