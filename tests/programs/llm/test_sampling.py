"""Drawing tokens: how often each comes, against NumPy; settings, penalties, masks, odds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aster_ml import Tensor
from aster_ml.apps.llm.sampling import Cuts, Draw, Picked, Sampler, Sampling, cuts_of, kept_odds
from aster_ml.errors import ArgumentError
from tests.fuzz.budget import check_all, draws

ROWS, V = 64, 300
LOGITS = (np.random.default_rng(0).normal(size=V) * 2).astype(np.float32)


def wanted_odds(logits: np.ndarray, s: Sampling) -> np.ndarray:
    """The odds to draw by, in plain NumPy: temperature, top-k, top-p, min-p in this order."""
    odds = np.exp((logits.astype(np.float64) - logits.max()) / s.temperature)
    kept = odds.copy()
    if s.top_k:
        kept[logits < np.sort(logits)[-min(s.top_k, len(logits))]] = 0
    if s.top_p < 1:
        order = np.argsort(-kept, kind="stable")
        sums = np.cumsum(kept[order])
        count = min(len(order), int(np.searchsorted(sums, s.top_p * sums[-1])) + 1)
        kept[order[count:]] = 0
    kept[odds < s.min_p] = 0
    return kept / kept.sum()


def draw_many(sampler: Sampler, logits: np.ndarray, sampling: Sampling, times: int) -> np.ndarray:
    """How often each token came."""
    rows = Tensor(np.repeat(logits[None], ROWS, 0)).realize()
    draw = Draw(sampling, len(logits))
    counts = np.zeros(len(logits))
    for _ in range(times):
        for picked in sampler(rows, [draw] * ROWS):
            counts[picked.token] += 1
    return counts


@pytest.fixture(scope="module")
def sampler() -> Sampler:
    """One for all tests of this size, so that steps are recorded once."""
    return Sampler(V)


@pytest.mark.parametrize(
    "options",
    [
        {}, {"top_k": 5}, {"top_p": 0.5}, {"min_p": 0.2}, {"top_p": 0.0}, {"top_k": V + 5},
        {"temperature": 0.5, "top_k": 50, "top_p": 0.9}, {"temperature": 2.0, "top_p": 0.3},
    ],
)  # fmt: skip
def test_each_token_comes_as_often_as_its_odds_say(
    options: dict[str, Any], sampler: Sampler
) -> None:
    sampling = Sampling(**options, seed=3)
    want = wanted_odds(LOGITS, sampling)
    counts = draw_many(sampler, LOGITS, sampling, 30)
    assert not counts[want == 0].any(), "a token that was cut was drawn"
    expected = want * counts.sum()
    often = expected > 5
    chi = ((counts - expected)[often] ** 2 / expected[often]).sum()
    # Five standard deviations of the sum of squares.
    assert chi < often.sum() + 5 * np.sqrt(2 * often.sum()), (chi, often.sum())


def test_random_settings_never_draw_what_is_cut(record_property: Any) -> None:
    small = Sampler(37)

    def check(seed: int) -> str | None:
        rng = np.random.default_rng(seed)
        logits = (rng.normal(size=37) * rng.choice([0.1, 1, 20])).astype(np.float32)
        sampling = Sampling(
            float(rng.choice([0.2, 1, 3])), int(rng.integers(0, 40)),
            float(rng.choice([0.1, 0.9, 1])),
            float(rng.choice([0, 0.1, 1])), seed=seed,
        )  # fmt: skip
        # What rounding may keep or cut is left open.
        least = wanted_odds(logits, sampling)
        more = wanted_odds(
            logits, Sampling(sampling.temperature, sampling.top_k, min(1, sampling.top_p + 1e-5))
        )
        counts = draw_many(small, logits, sampling, 2)
        wrong = np.flatnonzero((counts > 0) & (least == 0) & (more == 0))
        return f"{sampling} drew {wrong}" if len(wrong) else None

    check_all("settings of sampling", draws(12, 2000), check, record_property)


def test_the_same_seed_draws_the_same(sampler: Sampler) -> None:
    rows = Tensor(LOGITS[None]).realize()

    def tokens(seed: int) -> list[int]:
        draw = Draw(Sampling(seed=seed), V)
        return [sampler(rows, [draw])[0].token for _ in range(12)]

    assert tokens(1) == tokens(1)
    assert tokens(1) != tokens(2)
    # Neighbours in the batch change nothing.
    draw, other = Draw(Sampling(seed=1), V), Draw(Sampling(seed=9, temperature=3.0), V)
    both = Tensor(np.stack([LOGITS, -LOGITS])).realize()
    assert [sampler(both, [draw, other])[0].token for _ in range(12)] == tokens(1)


def test_greedy_and_the_logarithms_of_odds(sampler: Sampler) -> None:
    rows = Tensor(np.stack([LOGITS, LOGITS[::-1]])).realize()
    for options in (
        {"temperature": 0.0},
        {"top_k": 1},
        {"temperature": 0.0, "logit_bias": {3: 0.0}},
    ):
        draw = Draw(Sampling(**options), V)
        first, second = sampler(rows, [draw, draw], 3)
        odds = LOGITS.astype(np.float64) - np.log(np.exp(LOGITS.astype(np.float64)).sum())
        order = np.argsort(-odds)[:3]
        assert first.token == order[0]
        assert second.token == V - 1 - order[0]
        assert [token for token, _ in first.top] == list(order)
        np.testing.assert_allclose([x for _, x in first.top], odds[order], atol=1e-5)
        assert first.logprob == pytest.approx(odds[order[0]], abs=1e-5)


def test_penalties_and_biases(sampler: Sampler) -> None:
    rows = Tensor(LOGITS[None]).realize()
    best = [int(i) for i in np.argsort(-LOGITS)]

    def picked(draw: Draw) -> Picked:
        return sampler(rows, [draw])[0]

    assert picked(Draw(Sampling(0.0, logit_bias={best[0]: -100.0}), V)).token == best[1]
    assert picked(Draw(Sampling(0.0, logit_bias={best[200]: 100.0}), V)).token == best[200]
    assert picked(Draw(Sampling(0.0, repetition_penalty=50.0), V, best[:3])).token == best[3]
    presence = Draw(Sampling(0.0, presence_penalty=50.0), V)
    assert [(t := picked(presence).token, presence.note(t))[0] for _ in range(3)] == best[:3]
    gap = LOGITS[best[0]] - LOGITS[best[1]]
    frequency = Draw(Sampling(0.0, frequency_penalty=float(gap) * 0.6), V)
    tokens = []
    for _ in range(3):
        tokens.append(picked(frequency).token)
        frequency.note(tokens[-1])
    assert tokens == [best[0], best[0], best[1]]


def test_masks_leave_what_they_allow(sampler: Sampler) -> None:
    rows = Tensor(np.repeat(LOGITS[None], 2, 0)).realize()
    allowed = [5, 31, 32, 299]
    bits = np.zeros((V + 31) // 32 * 32, np.uint8)
    bits[allowed] = 1
    masked, free = Draw(Sampling(3.0, seed=0), V), Draw(Sampling(0.0), V)
    masked.mask = np.packbits(bits, bitorder="little").view(np.int32)
    seen = set()
    for _ in range(60):
        first, second = sampler(rows, [masked, free])
        seen.add(first.token)
        assert second.token == LOGITS.argmax()
    assert seen == set(allowed)


def test_logits_that_are_no_numbers_are_told(sampler: Sampler) -> None:
    rows = Tensor(np.full((1, V), np.nan, np.float32)).realize()
    with pytest.raises(ArgumentError, match="no numbers"):
        sampler(rows, [Draw(Sampling(0.0), V)])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"temperature": -1.0}, "temperature is -1"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"top_p": 1.5}, "top_p is 1.5; 0 to 1"),
        ({"top_k": -1}, "top_k"),
        ({"min_p": 2.0}, "min_p"),
        ({"repetition_penalty": 0.0}, "repetition_penalty"),
    ],
)
def test_settings_out_of_range(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ArgumentError, match=said):
        Sampling(**options)


def test_a_bias_for_no_token() -> None:
    with pytest.raises(ArgumentError, match="token 300 of 300"):
        Draw(Sampling(logit_bias={300: 1.0}), V)


def test_cuts_that_no_row_wants_change_nothing() -> None:
    rng = np.random.default_rng(3)
    odds = Tensor(np.exp(-rng.exponential(3, (4, V))).astype(np.float32))
    count, whole, least = Tensor([[0]] * 4), Tensor([[1.0]] * 4), Tensor([[0.0], [0.1], [0.5], [1]])
    want = kept_odds(odds, count, whole, least).numpy()
    found = kept_odds(odds, count, whole, least, Cuts(False, False)).numpy()
    assert found.tobytes() == want.tobytes()
    assert (want == 0).any()
    assert (want[0] > 0).all()


def test_cuts_are_those_of_rows_that_are_drawn() -> None:
    draws = [Draw(Sampling(**s), V) for s in ({"top_k": 3}, {"top_p": 0.5}, {"min_p": 0.5})]
    # A cut by count goes with one by sum, which cuts nothing where none is wanted.
    assert [cuts_of([d]) for d in draws] == [(True, True), (False, True), (False, False)]
    assert cuts_of([draws[0], None, draws[1]]) == (True, True)
    greedy = [Draw(Sampling(temperature=0.0, top_p=0.5), V), Draw(Sampling(top_k=1), V)]
    assert cuts_of(greedy) == (False, False)


def test_the_likeliest_token_is_taken_without_a_draw() -> None:
    sampler = Sampler(V)
    rows = Tensor(LOGITS[None]).realize()
    best = [int(t) for t in np.argsort(-LOGITS)]
    biased = Draw(Sampling(temperature=0.0, logit_bias={best[0]: -100.0}), V)
    punished = Draw(Sampling(temperature=0.0, repetition_penalty=100.0), V, best[:2])
    allowed = Draw(Sampling(temperature=0.0), V)
    bits = np.zeros((V + 31) // 32, np.uint32)
    bits[best[3] // 32] = 1 << best[3] % 32
    allowed.mask = bits.view(np.int32)
    for draw, token in ((biased, best[1]), (punished, best[2]), (allowed, best[3])):
        assert sampler(rows, [draw])[0].token == token
    calls = sampler.general.calls
    assert sampler(rows, [Draw(Sampling(temperature=0.0), V)])[0].token == best[0]
    assert sampler.general.calls == calls, "a draw where nothing is drawn"
