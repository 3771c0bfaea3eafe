"""Levels of what is kept: their bytes, what goes past the limit, and in which order."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from aster_ml import Context, GlobalCounters, Tensor
from aster_ml.config import KEPT_BYTES
from aster_ml.dtype import dtypes
from aster_ml.engine.caches import CACHES, LARGE_BODY, Caches, Level
from aster_ml.schedule.capture import Captured
from aster_ml.schedule.steps import Schedule
from aster_ml.uop.node import UOp


def body_of(number: int, count: int) -> Captured:
    """What could have been captured: a body of so many nodes and one."""
    body = UOp.const(dtypes.int32, number)
    nodes = [UOp.const(dtypes.int64, i) for i in range(count)]
    return Captured(body, [], {}, [], [], {u: u for u in nodes})


def kernel(nbytes: int) -> Any:
    """What could be a compiled kernel."""
    return SimpleNamespace(used=0, nbytes=nbytes)


def schedule_of(*kernels: Any) -> Schedule:
    """A schedule that was run with these kernels."""
    made = Schedule([], [], 0)
    made.bound[()] = SimpleNamespace(compiled=[None, *kernels])
    return made


def all_levels(caches: Caches) -> tuple[Level[Any], ...]:
    return caches.graphs, *caches.levels


def check_bytes(caches: Caches) -> None:
    """The bytes of each level are those of its entries."""
    for level in all_levels(caches):
        assert level.nbytes == sum([kept.nbytes for kept in level.entries.values()])
    assert caches.nbytes == sum([level.nbytes for level in all_levels(caches)])


@pytest.mark.parametrize("seed", range(12))
def test_what_was_used_for_longest_goes(seed: int) -> None:
    rng, caches = random.Random(seed), Caches()
    with Context(KEPT_BYTES=rng.choice([0, 1, 100_000, 1_000_000])):
        for number in range(120):
            kernels = list(caches.kernels.entries.values())
            shared = rng.sample(kernels, min(len(kernels), rng.randrange(3)))
            captured = body_of(number, rng.choice([0, 1, 7, 64]))
            own = [kernel(rng.choice([0, 1, 5000, 20_000])) for _ in range(rng.randrange(3))]
            caches.put_schedule(captured, schedule_of(*shared, *own))
            for i, c in enumerate(own):
                caches.kernels.put((number, i), c, caches.turn)
            caches.offsets_of(captured.body, rng.randrange(40))
            for _ in range(rng.randrange(4)):
                caches.find_schedule(body_of(rng.randrange(number + 1), 0))
            check_bytes(caches)
            before = [dict(level.entries) for level in caches.levels]
            over = caches.nbytes > KEPT_BYTES.value
            caches.make_room()
            check_bytes(caches)
            left = [kept for level in caches.levels for kept in level.entries.values()]
            gone = [
                kept
                for level, entries in zip(caches.levels, before, strict=True)
                for key, kept in entries.items()
                if key not in level.entries
            ]
            assert max([k.used for k in gone], default=0) <= min([k.used for k in left])
            assert over or not gone
            if caches.nbytes > KEPT_BYTES.value:
                # What is in use stays, however much it takes.
                assert all(k.used == caches.turn for k in left)
            # The kernels of a schedule that stays stay with it.
            here = {id(k) for k in left}
            for s in caches.schedules.entries.values():
                assert all(id(c) in here for c in s.bound[()].compiled[1:])


def test_one_key_has_one_entry() -> None:
    level: Level[Any] = Level()
    level.put("a", kernel(10))
    level.put("a", kernel(3), turn=5)
    assert level.nbytes == 3
    assert level.entries["a"].used == 5
    assert level.drop("a") == 3
    assert not level.entries
    assert level.nbytes == 0


def test_a_large_body_is_kept_from_its_second_time_on_or_when_it_is_asked_for_again() -> None:
    caches, large = Caches(), body_of(1, LARGE_BODY)
    caches.put_schedule(large, schedule_of())
    assert caches.find_schedule(large) is None
    caches.put_schedule(large, schedule_of())
    assert caches.find_schedule(large) is not None
    caches.forget_schedules()
    assert caches.find_schedule(large) is None
    caches.put_schedule(large, schedule_of(), again=True)
    assert caches.find_schedule(large) is not None


def test_each_level_counts_what_it_has_saved() -> None:
    values = np.arange(6, dtype=np.float32)
    a = Tensor(values).realize()

    def counted() -> tuple[int, int, int, int]:
        GlobalCounters.reset()
        found = (a * 17.25 - 3).realize()
        c = GlobalCounters
        counts = (c.graph_hits, c.schedule_hits, c.schedule_misses, c.kernel_hits)
        np.testing.assert_allclose(found.numpy(), values * 17.25 - 3, rtol=1e-6)
        return counts

    assert counted() == (0, 0, 1, 0)
    assert counted() == (0, 1, 0, 0)
    assert counted() == (1, 1, 0, 0)
    CACHES.forget_schedules()
    assert counted() == (0, 0, 1, 1)
