"""Places of temporaries: none overlap while both live, and arenas are hardly larger than that."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest

from aster_ml.dtype import dtypes
from aster_ml.engine import memory
from aster_ml.engine.memory import ALIGNMENT, check_plan, plan_memory


def schedule_of(lives: list[tuple[int, int, int]]) -> Any:
    """A schedule whose temporaries have these first and last steps and sizes, in units."""
    steps = max(stop for _, stop, _ in lives) + 1
    slots = [
        SimpleNamespace(size=size * ALIGNMENT, dtype=dtypes.uint8, device="CPU")
        for _, _, size in lives
    ]
    used = [
        [slot for slot, (start, stop, _) in enumerate(lives) if i in (start, stop)]
        for i in range(steps)
    ]
    made = [SimpleNamespace(kind="kernel", slots=tuple(u)) for u in used]
    return SimpleNamespace(steps=made, slots=slots, n_args=0)


def most_alive(lives: list[tuple[int, int, int]]) -> int:
    """Units that are alive at one step."""
    return max(
        sum(size for start, stop, size in lives if start <= i <= stop)
        for i in range(max(stop for _, stop, _ in lives) + 1)
    )


@pytest.mark.parametrize("few", [True, False])
@pytest.mark.parametrize("seed", range(40))
def test_no_two_overlap_while_both_live(
    seed: int, few: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not few:
        monkeypatch.setattr(memory, "MOST_BY_SIZE", 0)
    rng = random.Random(seed)
    lives = []
    for _ in range(rng.choice((1, 2, 5, 17, 40))):
        start = rng.randrange(12)
        lives.append((start, start + rng.choice((0, 1, 1, 2, 9)), rng.choice((1, 1, 2, 7, 16))))
    schedule = schedule_of(lives)
    plan = plan_memory(schedule)
    check_plan(schedule, plan)
    assert most_alive(lives) * ALIGNMENT <= plan.arena_nbytes["CPU"]
    assert set(plan.place) == set(range(len(lives)))


def test_small_ones_that_live_long_are_no_part_of_what_a_large_one_leaves() -> None:
    lives = [(0, 1, 16), (1, 8, 34), *[(i, 8, 1) for i in range(2, 8)], (8, 8, 16), (8, 8, 16)]
    assert plan_memory(schedule_of(lives)).arena_nbytes["CPU"] == most_alive(lives) * ALIGNMENT
