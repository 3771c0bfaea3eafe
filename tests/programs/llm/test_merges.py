"""Merges of vocabularies of pieces, found and kept."""

from __future__ import annotations

import random

import pytest

from aster_ml.apps.llm import merges as module
from aster_ml.apps.llm.merges import find_merges, key_of, merges_of, read_merges
from aster_ml.runtime import object_cache

LETTERS = "ab\u2581\u00e9\U0001f600\ud800"


def vocabulary(seed: int) -> tuple[list[str], dict[str, int]]:
    """Random tokens with their numbers, and the pieces among them in some order."""
    rng = random.Random(seed)
    count = rng.choice([0, 1, 2, 50, 300])
    texts = {"".join(rng.choices(LETTERS, k=rng.randint(1, 6))) for _ in range(count)}
    numbers = rng.sample(range(10 * len(texts)), len(texts))
    number = dict(zip(sorted(texts), numbers, strict=True))
    pieces = [text for text in number if len(text) > 1]
    rng.shuffle(pieces)
    return pieces, number


def plain_merges(pieces: list[str], number: dict[str, int]) -> list[tuple[str, str]]:
    """The same, by looking at every pair of tokens."""
    known = sorted(number, key=number.__getitem__)
    return [(a, b) for text in pieces for a in known for b in known if a + b == text]


@pytest.mark.parametrize("seed", range(12))
def test_all_pairs_that_make_a_piece_are_found_and_kept(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    pieces, number = vocabulary(seed)
    want = plain_merges(pieces[:20], number)
    assert find_merges(pieces[:20], number) == want
    first = merges_of(pieces, number)
    assert first[: len(want)] == want
    if pieces:
        with monkeypatch.context() as patch:
            patch.setattr(module, "find_merges", lambda *a: pytest.fail("they were not kept"))
            assert merges_of(pieces, number) == first


def test_other_pieces_orders_and_numbers_have_other_lists() -> None:
    pieces, number = ["ab", "abb"], {"a": 0, "b": 1, "ab": 2, "bb": 3, "abb": 4}
    other = {**number, "a": 1, "b": 0}
    keys = {key_of(*case) for case in (
        (pieces, number), (pieces[::-1], number), (["ab"], number), (["a", "babb"], number),
        (pieces, other),
    )}  # fmt: skip
    assert len(keys) == 5


@pytest.mark.parametrize("data", [b"1234", b"12345678", bytes([0] * 4 + [9, 0, 0, 0]), b"\xff" * 8])
def test_what_is_damaged_counts_as_missing(data: bytes) -> None:
    pieces, number = ["ab"], {"a": 0, "b": 1, "ab": 2}
    assert read_merges(data, number) is None
    object_cache.put(key_of(pieces, number), data)
    assert merges_of(pieces, number) == [("a", "b")]
