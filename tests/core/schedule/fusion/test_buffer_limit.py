"""Kernels of no more buffers than a device allows: what is stored beside gives the same numbers."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from aster_ml import Tensor
from aster_ml.engine import realize
from aster_ml.engine.caches import CACHES
from aster_ml.schedule.capture import Captured
from aster_ml.schedule.steps import Schedule

LIMIT = 4
Make = Callable[[list[Any]], Any]
CASES: dict[str, tuple[Make, Make]] = {
    "sum": (lambda t: sum(t[1:], t[0]), lambda t: sum(t[1:], t[0])),
    "rows": (lambda t: sum(t[1:], t[0]).sum(1), lambda t: sum(t[1:], t[0]).sum(1)),
    "beside": (lambda t: t[0].cat(*t[1:], dim=0), np.concatenate),
    "stack": (lambda t: Tensor.stack(*t).sum(0).relu(), lambda t: np.maximum(sum(t), 0)),
    "scaled": (
        lambda t: sum([x * y.sum() for x, y in itertools.pairwise(t)]),
        lambda t: sum([x * y.sum() for x, y in itertools.pairwise(t)]),
    ),
    "chosen": (
        lambda t: (t[0] < t[1]).where(t[2] + t[3] * t[4], (t[5] < t[6]).where(t[7], t[8])),
        lambda t: np.where(t[0] < t[1], t[2] + t[3] * t[4], np.where(t[5] < t[6], t[7], t[8])),
    ),
}


@pytest.fixture
def limited(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Kernels may have LIMIT buffers; the numbers of those that are planned."""
    plain = realize.workers_of
    monkeypatch.setattr(realize, "workers_of", lambda d: plain(d)._replace(buffers=LIMIT))
    found: list[int] = []
    put = CACHES.put_schedule

    def note(captured: Captured, schedule: Schedule, again: bool = False) -> None:
        found.extend([len(step.slots) for step in schedule.steps if step.kind == "kernel"])
        put(captured, schedule, again)

    monkeypatch.setattr(CACHES, "put_schedule", note)
    CACHES.forget_schedules()
    return found


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("count", [9, 23])
def test_no_kernel_has_more(limited: list[int], name: str, count: int) -> None:
    make, wanted = CASES[name]
    rng = np.random.default_rng(count)
    arrays = [rng.uniform(-1, 1, (5, 7)).astype(np.float32) for _ in range(count)]
    found = make([Tensor(x).realize() for x in arrays]).numpy()
    np.testing.assert_allclose(found, wanted(arrays), rtol=1e-5, atol=1e-5)
    assert max(limited) <= LIMIT
    assert len(limited) > 1
    CACHES.forget_schedules()


def test_several_results_of_one_loop_share_a_kernel_as_far_as_it_goes(limited: list[int]) -> None:
    rng = np.random.default_rng(1)
    arrays = [rng.uniform(-1, 1, (6, 8)).astype(np.float32) for _ in range(8)]
    tensors = [Tensor(x).realize() for x in arrays]
    results = [a * tensors[0] + b for a, b in itertools.pairwise(tensors)]
    Tensor.realize(*results)
    for k, result in enumerate(results):
        np.testing.assert_allclose(result.numpy(), arrays[k] * arrays[0] + arrays[k + 1], rtol=1e-6)
    assert max(limited) <= LIMIT
    CACHES.forget_schedules()
