"""Learning-rate schedules: the rates, and that an optimiser gets them by assign."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from aster_ml import Tensor, TinyJit
from aster_ml.errors import ArgumentError
from aster_ml.nn import optim
from aster_ml.nn.schedule import ConstantLR, CosineLR, LRSchedule, OneCycleLR


def one_parameter(lr: float = 1.0) -> optim.SGD:
    """An optimiser to hang a schedule on."""
    return optim.SGD([Tensor([1.0])], lr=lr)


def rates_of(schedule: LRSchedule, steps: int) -> list[float]:
    """The rate the optimiser has before each of some steps."""
    rates = []
    for _ in range(steps):
        rates.append(schedule.optimizers[0].lr.item())
        schedule.step()
    return rates


def test_constant_with_warmup() -> None:
    got = rates_of(ConstantLR(one_parameter(), 0.8, warmup_steps=4), 7)
    np.testing.assert_allclose(got, [0.2, 0.4, 0.6, 0.8, 0.8, 0.8, 0.8], rtol=1e-6)


def test_constant_without_warmup_overrides_the_optimizer_s_rate() -> None:
    assert rates_of(ConstantLR(one_parameter(lr=3.0), 0.5), 3) == [0.5, 0.5, 0.5]


def test_cosine_with_warmup() -> None:
    got = rates_of(CosineLR(one_parameter(), 1.0, 7, warmup_steps=2, end_lr=0.1), 9)
    fall = [0.1 + 0.9 * (1 + math.cos(math.pi * i / 4)) / 2 for i in range(5)]
    np.testing.assert_allclose(got, [0.5, 1.0, *fall, 0.1, 0.1], rtol=1e-6)


@pytest.mark.torch
@pytest.mark.parametrize("anneal", ["cos", "linear"])
@pytest.mark.parametrize(("total", "pct"), [(10, 0.3), (37, 0.25), (12, 0.5)])
def test_one_cycle_beside_torch(total: int, pct: float, anneal: str) -> None:
    torch = pytest.importorskip("torch")
    got = rates_of(OneCycleLR(one_parameter(), 0.4, total, pct_start=pct, anneal=anneal), total)
    twin = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        twin, 0.4, total_steps=total, pct_start=pct, anneal_strategy=anneal, cycle_momentum=False
    )
    want = []
    for step in range(total):
        want.append(twin.param_groups[0]["lr"])
        twin.step()
        if step + 1 < total:
            schedule.step()
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-8)


def test_one_cycle_of_two_steps() -> None:
    rates = rates_of(OneCycleLR(one_parameter(), 1.0, 2, pct_start=0.5), 3)
    assert rates[0] == 1.0
    assert rates[1] == rates[2] == pytest.approx(1 / 25 / 1e4)


def test_all_optimizers_of_a_group_get_the_rate() -> None:
    group = optim.OptimizerGroup(one_parameter(), optim.OptimizerGroup(one_parameter()))
    schedule = ConstantLR(group, 0.5, warmup_steps=2)
    schedule.step()
    assert [o.lr.item() for o in schedule.optimizers] == [0.5, 0.5]
    assert len(schedule.optimizers) == 2


def test_rates_move_the_parameter() -> None:
    optimizer = one_parameter()
    schedule = ConstantLR(optimizer, 0.5, warmup_steps=2)
    t = optimizer.params[0]
    with Tensor.train():
        for want in (0.75, 0.25, -0.25):
            t.grad = Tensor([1.0])
            optimizer.step()
            schedule.step()
            assert t.item() == want


def test_rates_move_inside_a_jitted_step() -> None:
    optimizer = one_parameter()
    schedule = CosineLR(optimizer, 1.0, 5)

    @TinyJit
    def step(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        (optimizer.params[0] * x).sum().backward()
        optimizer.step()
        schedule.step()
        return optimizer.lr * 1

    want = [(1 + math.cos(math.pi * i / 4)) / 2 for i in range(5)]
    with Tensor.train():
        got = [step(Tensor([0.0]).realize()).item() for _ in range(5)]
    np.testing.assert_allclose(got, [*want[1:], want[-1]], atol=1e-6)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda o: CosineLR(o, 1.0, 0), "total_steps=0 and warmup_steps=0"),
        (lambda o: CosineLR(o, 1.0, 5, warmup_steps=5), "total_steps=5 and warmup_steps=5"),
        (lambda o: OneCycleLR(o, 1.0, 1), "total_steps=1 and pct_start=0.3"),
        (lambda o: OneCycleLR(o, 1.0, 9, pct_start=1.0), "fraction between 0 and 1"),
        (lambda o: OneCycleLR(o, 1.0, 9, anneal="sine"), "anneal='sine', 'cos' or 'linear'"),
        (lambda o: ConstantLR(o, -1.0), "the rate of step 0 is -1.0"),
        (lambda o: LRSchedule(o, []), "at least one rate"),
    ],
)
def test_senseless_schedules_are_named(make: Callable[[Any], Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        make(one_parameter())
