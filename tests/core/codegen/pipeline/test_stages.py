"""Where warps meet between parts of an iteration, against all orders of what two warps may do."""

from __future__ import annotations

from itertools import combinations, product

import pytest

from aster_ml.codegen.pipeline.stages import Part, meetings

# By letter: fills stages, reads them, does neither.
KINDS = {"f": (True, False), "r": (False, True), "-": (False, False)}
ORDERS = ["".join(p) for n in (1, 2, 3, 4) for p in product(KINDS, repeat=n) if {"f", "r"} <= {*p}]
ITERATIONS = 12


def parts_of(order: str, stages: int) -> list[Part]:
    """Parts in an order, of which those that fill run as far ahead as there is room."""
    return [
        Part([], (stages - 1) * (c == "f"), *KINDS[c], producer=False, fenced=False) for c in order
    ]


def is_safe(order: str, stages: int, before: set[int], counts_bytes: bool) -> bool:
    """Whether all warps meet between a fill of a stage and each read of it, and the next fill.

    What one warp does at a time comes before what another does later where they meet in between.
    """
    at: dict[tuple[str, int], list[int]] = {}
    met, now = [], 0
    for loop in range(ITERATIONS):
        for i, part in enumerate(parts_of(order, stages)):
            if i in before:
                met.append(now)
                now += 1
            at.setdefault((order[i], loop + part.ahead), []).append(now)
            now += 1
    for iteration in range(stages, ITERATIONS - 1):
        reads, fills = at.get(("r", iteration), []), at.get(("f", iteration), [])
        pairs = [] if counts_bytes else [(f, r) for f in fills for r in reads]
        pairs += [(r, f) for r in reads for f in at.get(("f", iteration + stages), [])]
        if not all([any(first < m < second for m in met) for first, second in pairs]):
            return False
    return True


@pytest.mark.parametrize("counts_bytes", [False, True])
@pytest.mark.parametrize("stages", [2, 3, 5])
def test_warps_meet_as_often_as_they_must(stages: int, counts_bytes: bool) -> None:
    for order in ORDERS:
        found = set(meetings(parts_of(order, stages), counts_bytes))
        assert is_safe(order, stages, found, counts_bytes), order
        fewer = [set(c) for c in combinations(range(len(order)), len(found) - 1)]
        assert not any(is_safe(order, stages, c, counts_bytes) for c in fewer), order


@pytest.mark.parametrize("stages", [2, 3, 5])
def test_a_meeting_waits_for_the_copies_that_are_read_behind_it(stages: int) -> None:
    for order in [o for o in ORDERS if o.count("f") == 1]:
        found = meetings(parts_of(order, stages), counts_bytes=False)
        # As many groups as a prologue begins; what an iteration reads was waited for, and no more.
        begun, there = stages - 1, 0
        for iteration in range(ITERATIONS):
            for i, kind in enumerate(order):
                left = found.get(i)
                if left is not None:
                    there = max(there, begun - left)
                if kind == "r":
                    assert there == iteration + 1, order
                begun += kind == "f"


def test_the_parts_of_each_kind_of_copies() -> None:
    # cp.async; registers, where loads come first; barriers that count bytes.
    assert meetings(parts_of("fr", 4), counts_bytes=False) == {0: 2}
    assert list(meetings(parts_of("-rf", 2), counts_bytes=False)) == [1]
    assert meetings(parts_of("rf", 4), counts_bytes=True) == {1: None}
    # A producer warp has its own loop: nobody meets there.
    assert meetings(parts_of("r-r", 4), counts_bytes=True) == {}
