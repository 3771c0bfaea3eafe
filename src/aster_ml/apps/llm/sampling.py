"""Samples the next tokens from logits, in one jitted step: temperature, top-k, top-p, min-p,
penalties, biases, masks; and log-probabilities.

Receives logits of a few rows and, for each row, a `Draw`; returns token numbers and their odds.
Which tokens a grammar allows, and when an answer ends, does not belong here.

The order is: penalties and biases, mask, temperature, top-k, top-p, min-p. Odds that are reported
are those of the model itself, before any of these.

Source: Holtzman et al., nucleus sampling (2019); Keskar et al., CTRL (2019) for the repetition
penalty; OpenAI's API reference for presence and frequency penalties.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from aster_ml import Tensor, TinyJit, dtypes
from aster_ml.errors import ArgumentError

Array = np.ndarray[Any, np.dtype[Any]]
# Tokens whose odds are reported at most, as in OpenAI's API.
MAX_TOP = 20
# Odds are between 0 and 1, whose bits are whole numbers of so many bits, in the same order.
KEY_BITS, DIGIT_BITS = 30, 3
# The most likely token is drawn even where no odds are wanted.
LEAST = 1e-30
# How many odds are summed before the sums are summed.
BLOCK = 256
# Calls until a step is recorded: one that computes, one that is watched.
RECORDED = 2
# A bit less than the whole: rounding never leads beyond the last.
NEARLY = 1 - 2.0**-20


@dataclass(frozen=True)
class Sampling:
    """Settings of sampling; the defaults draw from the model's own probabilities.

    Raises: ArgumentError for a value out of its range.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int | None = None

    def __post_init__(self) -> None:
        for name, low, high in RANGES:
            value = getattr(self, name)
            if not low <= value <= high:
                raise ArgumentError(f"{name} is {value}; {low:g} to {high:g} is wanted")
        if self.seed is not None and self.seed < 0:
            raise ArgumentError(f"seed is {self.seed}; 0 or more is wanted")


RANGES = (
    ("temperature", 0.0, 100.0),
    ("top_k", 0, 1 << 24),
    ("top_p", 0.0, 1.0),
    ("min_p", 0.0, 1.0),
    ("repetition_penalty", 0.01, 100.0),
    ("presence_penalty", -100.0, 100.0),
    ("frequency_penalty", -100.0, 100.0),
)


class Draw:
    """State of one answer's draws: its settings, its random numbers, the tokens so far."""

    def __init__(self, sampling: Sampling, vocabulary: int, tokens: Sequence[int] = ()) -> None:
        self.sampling, self.vocabulary = sampling, vocabulary
        self.rng = np.random.default_rng(sampling.seed)
        self.mask: Array | None = None
        self.bias: Array | None = None
        self.penalty: Array | None = None
        s = sampling
        self.counts = bool(s.presence_penalty or s.frequency_penalty)
        if s.logit_bias or self.counts:
            self.bias = np.zeros(vocabulary, np.float32)
            for token, value in s.logit_bias.items():
                if not 0 <= token < vocabulary:
                    raise ArgumentError(f"logit_bias names token {token} of {vocabulary}")
                self.bias[token] += value
        if s.repetition_penalty != 1:
            self.penalty = np.ones(vocabulary, np.float32)
            self.penalty[[t for t in tokens if 0 <= t < vocabulary]] = s.repetition_penalty
        self.seen: set[int] = set()

    @property
    def is_greedy(self) -> bool:
        """Whether the most likely token is taken."""
        return self.sampling.temperature == 0 or self.sampling.top_k == 1

    def note(self, token: int) -> None:
        """Takes note of a token of the answer."""
        if self.penalty is not None:
            self.penalty[token] = self.sampling.repetition_penalty
        if self.counts and self.bias is not None:
            first = token not in self.seen
            self.seen.add(token)
            self.bias[token] -= self.sampling.frequency_penalty
            self.bias[token] -= self.sampling.presence_penalty if first else 0


class Picked(NamedTuple):
    """The token of a row, the logarithm of its odds, and of the most likely ones."""

    token: int
    logprob: float
    top: list[tuple[int, float]]


class Cuts(NamedTuple):
    """Says whether a row is drawn from its top-k, and whether one is from its top-p.

    why: each takes ten passes over all odds, more than all else of a draw
    """

    by_count: bool
    by_sum: bool


ALL_CUTS = Cuts(True, True)


def odds_above(odds: Tensor, weight: Tensor, wanted: Tensor) -> Tensor:
    """The largest number that odds, of which at least so much weight is as large, all reach.

    Found digit by digit in the bits of the odds, so it is exact and nothing is sorted.
    Shapes: odds [b, v], weight [b, v], wanted [b, 1] -> int [b, 1].
    """
    keys = odds.bitcast(dtypes.int32).unsqueeze(1)
    digits = Tensor(np.arange(1 << DIGIT_BITS, dtype=np.int32)).reshape(1, -1, 1)
    base = wanted.zeros_like().cast(dtypes.int32)
    for shift in range(KEY_BITS - DIGIT_BITS, -1, -DIGIT_BITS):
        reaches = keys >= base.unsqueeze(1) + digits * (1 << shift)
        sums = reaches.where(weight.unsqueeze(1), 0).sum(-1)
        digit = ((sums >= wanted).sum(-1, keepdim=True) - 1).maximum(0)
        base = (base + digit.cast(dtypes.int32) * (1 << shift)).contiguous()
    return base


def kept_odds(
    odds: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor, cuts: Cuts = ALL_CUTS
) -> Tensor:
    """Odds, the largest of which are 1, with those that are not drawn from set to 0.

    Tokens as likely as the last that is kept are kept too. Cuts that no row wants may be left out.
    Shapes: odds [b, v], top_k [b, 1], top_p [b, 1], min_p [b, 1] -> [b, v].
    """
    if cuts.by_count:
        count = (top_k > 0).where(top_k, odds.shape[-1])
        least = odds_above(odds, odds.ones_like(), count)
        keys = odds.bitcast(dtypes.int32)
        odds = (keys >= least).where(odds, 0).contiguous()
    if cuts.by_sum:
        # All of them, exactly, where nothing is to be cut.
        wanted = (top_p < 1).where((odds.sum(-1, keepdim=True) * top_p).maximum(LEAST), -1)
        least = odds_above(odds, odds, wanted)
        cut = (odds.bitcast(dtypes.int32) >= least).where(odds, 0)
        odds = (top_p < 1).where(cut, odds)
    return (odds >= min_p).where(odds, 0)


def place_of(odds: Tensor, at: Tensor) -> Tensor:
    """The first place at which the sum of odds passes a number.

    Shapes: odds [b, n], at [b, 1] -> int [b, 1].
    """
    sums = odds.cumsum(-1)
    return (sums <= at.minimum(sums[:, -1:] * NEARLY)).sum(-1, keepdim=True)


def draw_one(odds: Tensor, uniform: Tensor) -> Tensor:
    """A token for each row, as likely as its odds, by a uniform number from [0, 1).

    Shapes: odds [b, v], uniform [b, 1] -> int [b].
    """
    b, v = odds.shape
    blocks = odds.pad(((0, 0), (0, -v % BLOCK))).reshape(b, -1, BLOCK).contiguous()
    sums = blocks.sum(-1).contiguous()
    at = uniform * sums.sum(-1, keepdim=True)
    block = place_of(sums, at)
    number = Tensor(np.arange(sums.shape[1], dtype=np.int32)).reshape(1, -1)
    before = (number < block).where(sums, 0).sum(-1, keepdim=True)
    row = blocks.gather(1, block.unsqueeze(-1).expand(b, 1, BLOCK)).reshape(b, BLOCK)
    inside = place_of(row.contiguous(), (at - before).maximum(0))
    return (block * BLOCK + inside).reshape(b).cast(dtypes.int32)


def unpack_mask(bits: Tensor, vocabulary: int) -> Tensor:
    """The bits of whole numbers, the lowest first. Shapes: bits int32 [b, w] -> bool [b, v]."""
    shifts = Tensor(np.arange(32, dtype=np.int32)).reshape(1, 1, 32)
    spread = (bits.unsqueeze(-1) >> shifts) & 1
    return spread.reshape(bits.shape[0], -1)[:, :vocabulary] != 0


def changed(
    logits: Tensor, penalty: Tensor | None, bias: Tensor | None, bits: Tensor | None
) -> Tensor:
    """Logits after penalties, biases and the mask. Shapes: all [b, v], bits int32 [b, w]."""
    x = logits
    if penalty is not None:
        x = (x > 0).where(x / penalty, x * penalty)
    if bias is not None:
        x = x + bias
    if bits is not None:
        x = unpack_mask(bits, x.shape[-1]).where(x, -float("inf"))
    return x


class Given(NamedTuple):
    """Changes to logits before a draw, for each row, and the number of log-probabilities to report.

    All of it or nothing, so that there are few kinds of steps: where nobody wants a part it is
    neutral.
    """

    penalty: Tensor | None
    bias: Tensor | None
    bits: Tensor | None
    top: int

    @classmethod
    def of(cls, draws: Sequence[Draw | None], vocabulary: int) -> Given:
        """Collects what these draws ask for."""
        penalty = rows_of([None if d is None else d.penalty for d in draws], 1, vocabulary)
        bias = rows_of([None if d is None else d.bias for d in draws], 0, vocabulary)
        return cls(penalty, bias, mask_bits(draws, vocabulary), MAX_TOP)


NOTHING_GIVEN = Given(None, None, None, 0)


def cuts_of(draws: Sequence[Draw | None], given: Given = NOTHING_GIVEN) -> Cuts:
    """The cuts that are made for these draws; who takes the most likely token wants none.

    A cut that a draw does not want cuts nothing of it. One by count goes with one by sum, and one
    by sum alone is made where nothing else is given: kinds of steps are few.
    """
    drawn = [d.sampling for d in draws if d is not None and not d.is_greedy]
    by_count = any([s.top_k > 0 for s in drawn])
    by_sum = by_count or any([s.top_p < 1 for s in drawn])
    return Cuts(by_count or (by_sum and given.bits is not None), by_sum)


class Sampler:
    """Draws the next token of each row; one recording for each kind of step that came up."""

    def __init__(self, vocabulary: int) -> None:
        self.vocabulary = vocabulary
        self.greedy = TinyJit(self.pick_greedy)
        self.general = TinyJit(self.pick)

    def pick_greedy(self, logits: Tensor) -> list[Tensor]:
        """The most likely tokens."""
        return self.report(logits, logits.argmax(-1), 0)

    def warm(self, logits: Tensor) -> None:
        """Records every kind of step for so many rows, so that nobody waits for it later."""
        for sampling in (Sampling(0.0), Sampling(), Sampling(top_p=0.5), Sampling(top_k=1 << 24)):
            for top in (0, 1):
                for _ in range(RECORDED):
                    self(logits, [Draw(sampling, self.vocabulary)] * logits.shape[0], top)

    def report(self, logits: Tensor, tokens: Tensor, top: int) -> list[Tensor]:
        """The tokens, the logarithms of their odds, and the most likely ones."""
        tokens = tokens.cast(dtypes.int32)
        most = logits.max(-1, keepdim=True)
        total = (logits - most).exp().sum(-1, keepdim=True).log() + most
        chosen = logits.gather(-1, tokens.reshape(-1, 1).cast(dtypes.int32))
        result = [tokens, (chosen - total).reshape(-1)]
        if top:
            values, numbers = logits.topk(min(top, self.vocabulary), dim=-1)
            result += [values - total, numbers.cast(dtypes.int32)]
        return [t.contiguous() for t in result]

    def pick(
        self,
        logits: Tensor,
        numbers: Tensor,
        penalty: Tensor | None,
        bias: Tensor | None,
        bits: Tensor | None,
        by_count: bool,
        by_sum: bool,
        top: int,
    ) -> list[Tensor]:
        """Draws as `numbers` say, columns as in `columns_of`, by the `Cuts`.

        Gives tokens [b], logarithms [b], and where `top` is not 0 those of the most likely tokens
        and which they are, [b, top].
        """
        temperature, top_k, top_p, min_p, uniform = [numbers[:, i : i + 1] for i in range(5)]
        x = changed(logits, penalty, bias, bits).contiguous()
        best = x.argmax(-1).cast(dtypes.int32)
        is_greedy = temperature == 0
        scaled = (x - x.max(-1, keepdim=True)) / is_greedy.where(1, temperature)
        odds = scaled.exp().contiguous()
        cuts = Cuts(by_count, by_sum)
        odds = kept_odds(odds, top_k.cast(dtypes.int32), top_p, min_p, cuts)
        drawn = draw_one(odds.contiguous(), uniform)
        return self.report(logits, is_greedy.reshape(-1).where(best, drawn), top)

    def __call__(self, logits: Tensor, draws: Sequence[Draw | None], top: int = 0) -> list[Picked]:
        """The next token of each row; rows without a `Draw` are of no interest.

        Raises: ArgumentError where a model's logits are no numbers.
        """
        active = [draw for draw in draws if draw is not None]
        given = Given.of(draws, self.vocabulary) if wants_more(active, top) else NOTHING_GIVEN
        if given.bits is None and all([draw.is_greedy for draw in active]):
            found = self.greedy(logits)
        else:
            numbers = Tensor(columns_of(draws)).realize()
            found = self.general(logits, numbers, *given[:3], *cuts_of(draws, given), given.top)
        tokens, logprobs = found[0].tolist(), found[1].tolist()
        tops: list[list[tuple[int, float]]] = [[] for _ in tokens]
        if top:
            tops = [
                [(int(n), float(v)) for v, n in zip(values[:top], numbers)]
                for values, numbers in zip(found[2].tolist(), found[3].tolist())
            ]
        for draw, token, logprob in zip(draws, tokens, logprobs):
            if draw is not None and (logprob != logprob or not 0 <= token < self.vocabulary):
                raise ArgumentError(
                    "the model's logits are no numbers (NaN or infinite): the file is damaged, or "
                    "its numbers are beyond float16 (--dtype f32 has more)"
                )
        return [Picked(*row) for row in zip(tokens, logprobs, tops)]


def columns_of(draws: Sequence[Draw | None]) -> Array:
    """Temperature, top-k, top-p, min-p and a random number."""
    result = np.zeros((len(draws), 5), np.float32)
    for i, draw in enumerate(draws):
        if draw is not None:
            s = draw.sampling
            temperature = 0.0 if draw.is_greedy else s.temperature
            result[i] = temperature, s.top_k, s.top_p, s.min_p, draw.rng.random(dtype=np.float32)
    return result


def wants_more(draws: Sequence[Draw], top: int) -> bool:
    """Whether some draw wants logits changed, or odds reported."""
    given = [x for d in draws for x in (d.mask, d.bias, d.penalty)]
    return top > 0 or any([x is not None for x in given])


def rows_of(given: Sequence[Array | None], neutral: float, vocabulary: int) -> Tensor:
    """Stacks a value for each row, a neutral number where there is none.

    Each of b rows is [v]; the result is [b, v].
    """
    result = np.full((len(given), vocabulary), neutral, np.float32)
    for i, row in enumerate(given):
        if row is not None:
            result[i] = row
    return Tensor(result).realize()


def mask_bits(draws: Sequence[Draw | None], vocabulary: int) -> Tensor:
    """Which tokens are allowed, as bits."""
    bits = np.full((len(draws), (vocabulary + 31) // 32), -1, np.int32)
    for i, draw in enumerate(draws):
        if draw is not None and draw.mask is not None:
            bits[i] = draw.mask[: bits.shape[1]]
    return Tensor(bits).realize()
