"""What runs side by side: groups against a definition that looks at every pair, byte by byte."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from aster_ml.errors import InternalError
from aster_ml.runtime.dependencies import Access, Bytes, Span, check_groups, groups_of

CASES = 300


def draw_spans(rng: random.Random, most: int) -> tuple[Span, ...]:
    """A few spans, also empty ones and ones that only meet."""
    begins = [rng.randrange(24) for _ in range(rng.randint(0, most))]
    return tuple([(begin, begin + rng.randint(0, 5)) for begin in begins])


def draw_calls(seed: int) -> list[Access]:
    rng = random.Random(seed)
    calls = []
    for _ in range(rng.randint(0, 12)):
        writes = draw_spans(rng, 1)
        calls.append(Access((*writes, *draw_spans(rng, 2)), writes, rng.choice([1, 1, 2, 3])))
    return calls


def bytes_of(spans: tuple[Span, ...]) -> set[int]:
    return {byte for span in spans for byte in range(*span)}


def must_wait(a: Access, b: Access) -> bool:
    """Whether two calls in one group could give another result than one after the other."""
    shared = bytes_of(a.touches) & bytes_of(b.touches)
    return bool(shared & (bytes_of(a.writes) | bytes_of(b.writes))) and max(a.parts, b.parts) > 1


@pytest.mark.parametrize("seed", range(CASES))
def test_groups_are_right_and_no_more_than_needed(seed: int) -> None:
    calls = draw_calls(seed)
    groups = groups_of(calls)
    assert [i for begin, end in groups for i in range(begin, end)] == list(range(len(calls)))
    for begin, end in groups:
        assert begin < end
        for j in range(begin, end):
            assert not any(must_wait(calls[i], calls[j]) for i in range(begin, j))
        # The call behind a group has to wait for one in it.
        assert end == len(calls) or any(must_wait(calls[i], calls[end]) for i in range(begin, end))
    check_groups(calls, groups)


def test_the_check_finds_what_the_definition_finds() -> None:
    """On groups of any sort, most of them wrong."""
    found = {True: 0, False: 0}
    for seed in range(CASES):
        calls = draw_calls(seed)
        rng = random.Random(seed)
        cuts = sorted(rng.sample(range(1, len(calls)), rng.randint(0, min(4, len(calls) - 1)))
                      if len(calls) > 1 else [])  # fmt: skip
        bounds = [0, *cuts, len(calls)] if calls else [0]
        groups = list(pairwise(bounds))
        right = not any(
            must_wait(calls[i], calls[j])
            for begin, end in groups
            for j in range(begin, end)
            for i in range(begin, j)
        )
        found[right] += 1
        if right:
            check_groups(calls, groups)
        else:
            with pytest.raises(InternalError, match="run side by side"):
                check_groups(calls, groups)
    assert min(found.values()) > 50


def test_a_read_of_what_ran_two_calls_before() -> None:
    """(1 part) -> (1 part) -> (2 parts): the third waits though the second does not for it."""
    first = Access(((0, 8),), ((0, 8),), 1)
    second = Access(((0, 8), (8, 16)), ((8, 16),), 1)
    third = Access(((0, 8), (16, 24)), ((16, 24),), 2)
    assert groups_of([first, second, third]) == [(0, 2), (2, 3)]
    with pytest.raises(InternalError, match="calls 0 and 2 run side by side"):
        check_groups([first, second, third], [(0, 3)])


def test_calls_on_the_calling_thread_are_in_order_anyway() -> None:
    calls = [Access(((0, 8),), ((0, 8),), 1)] * 50
    assert groups_of(calls) == [(0, 50)]


@pytest.mark.parametrize("groups", [[], [(0, 1)], [(0, 1), (0, 2)], [(1, 2)], [(0, 2), (2, 3)]])
def test_groups_have_every_call_once(groups: list[Span]) -> None:
    calls = [Access((), (), 2)] * 2
    with pytest.raises(InternalError, match="are not 2 calls in order"):
        check_groups(calls, groups)


def test_sets_of_bytes() -> None:
    for seed in range(CASES):
        rng = random.Random(seed)
        found, want = Bytes(), set()
        for _ in range(8):
            spans = draw_spans(rng, 3)
            assert found.meets(spans) == bool(bytes_of(spans) & want)
            found.add(spans)
            want |= bytes_of(spans)
        pairs = list(zip(found.begins, found.ends))
        assert bytes_of(tuple(pairs)) == want
        assert all(end < begin for (_, end), (begin, _) in pairwise(pairs))
