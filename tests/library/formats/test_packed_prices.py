"""Which way products with packed matrices are computed, by type, shape, rows and processor."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from aster_ml.formats.interleaved import INTERLEAVED
from aster_ml.formats.packed_prices import PROMPT, TOKEN, prefers_integers, ways_of
from aster_ml.target import Target
from tests.fuzz.random_kernels import AVX2, AVX512, NEON

TARGETS: dict[str, Target] = {
    "avx512": AVX512,
    "avx512 without VNNI": replace(AVX512, features=frozenset()),
    "avx2": AVX2,
    "avx2 with VNNI": replace(AVX2, features=frozenset({"vnni"})),
    "neon": NEON,
    "avx2 in C": replace(AVX2, language="c", dot_dtypes=frozenset()),
}
# From a head of one class to a vocabulary, and the shapes of small language models.
SHAPES = [(1, 1024), (16, 512), (192, 576), (256, 768), (640, 2048), (1536, 768), (49152, 768)]
# What a choice for a token and a prompt may lose at one of them, where it gains more at the other.
LOSS = 1.3


def chosen(name: str, shape: tuple[int, int], target: Target, rows: int) -> tuple[float, float]:
    """The price of what is chosen, and of the other way."""
    ways = ways_of(name, *shape, rows, target)
    pair = ways.integers, ways.floats
    return pair if prefers_integers(name, *shape, target) else (pair[1], pair[0])


@pytest.mark.parametrize("target", TARGETS)
def test_no_choice_costs_more_than_the_other_way(target: str) -> None:
    for name, shape in itertools.product(INTERLEAVED, SHAPES):
        pairs = [chosen(name, shape, TARGETS[target], rows) for rows in (TOKEN, PROMPT)]
        mine, other = [a * b for a, b in zip(*pairs, strict=True)]
        assert mine <= other, (name, shape)
        if target in ("avx2", "avx2 with VNNI", "avx512") and shape[0] >= 192:
            assert all([a <= LOSS * b for a, b in pairs]), (name, shape, pairs)


@pytest.mark.parametrize("target", TARGETS)
def test_a_token_of_a_prompt_costs_no_more_than_one_alone(target: str) -> None:
    for name, shape in itertools.product(INTERLEAVED, SHAPES):
        alone, many = [chosen(name, shape, TARGETS[target], n)[0] for n in (TOKEN, PROMPT)]
        assert many / PROMPT <= alone, (name, shape)


def test_the_table_of_choices() -> None:
    """Integers where a DOT, or pairs of narrow codes, are fewer instructions than floats."""
    table = {
        target: {n for n in INTERLEAVED if prefers_integers(n, 640, 2048, TARGETS[target])}
        for target in TARGETS
    }
    every, wide = {*INTERLEAVED}, {"Q8_0"}
    assert table["avx512"] == table["avx2 with VNNI"] == every
    # Products of pairs of bytes take as many instructions as there are floats, twice.
    assert table["avx2"] == table["avx512 without VNNI"] == every - wide
    assert table["neon"] == table["avx2 in C"] == set()


def test_a_matrix_of_one_row_is_multiplied_as_floats() -> None:
    for name, target in itertools.product(INTERLEAVED, TARGETS.values()):
        assert not prefers_integers(name, 1, 1024, target)
        assert ways_of(name, 1, 1024, 1, target).floats > 0
