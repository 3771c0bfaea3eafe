"""Products in integers with interleaved rows, against float64 NumPy.

A case draws a type, a shape, a batch, and a form: one product, two in one kernel, picked rows, a
number of rows that a variable says, a part of the rows, or experts that are chosen.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np

from aster_ml import Tensor, TinyJit, Variable
from aster_ml.formats.ggml.blocks import NAMED
from aster_ml.formats.ggml.codes import CODED
from aster_ml.formats.interleaved import INTERLEAVED, Interleaved
from tests.fuzz.budget import check_all, draws
from tests.programs.llm.random_models import quantised

FORMS = ("product", "two", "rows", "counted", "part", "experts")


def rounded(x: np.ndarray) -> np.ndarray:
    """Activations as they are after rounding, exactly."""
    blocks = x.astype(np.float64).reshape(-1, 32)
    step = np.abs(blocks).max(-1, keepdims=True) / 16256
    codes = np.round(blocks / np.where(step > 0, step, 1))
    result: np.ndarray = (codes * step).reshape(x.shape)
    return result


def judge(seed: int) -> str | None:
    """What is wrong with one product."""
    rng, numbers = random.Random(seed), np.random.default_rng(seed)
    name, form = INTERLEAVED[seed % len(INTERLEAVED)], rng.choice(FORMS)
    m = rng.choice([16, 32, 48, 80, 128, 1, 17, 61, 127])
    n, each = rng.choice([1, 1, 2, 3, 7, 8, 16, 24]), NAMED[name].elements
    k = each * rng.choice([1, 2, 3] if each > 32 else [1, 2, 5, 8, 18])
    if len(CODED[name].planes) > 1 and form == "experts":
        form = "product"
    experts = [rng.choice([1, 3, 8])] if form == "experts" else []
    drawn = Tensor(numbers.standard_normal((*experts, m, k)).astype(np.float32))
    packed = quantised(numbers, drawn, name)
    w, made = packed.dequantize().numpy().astype(np.float64), Interleaved(packed)
    Tensor.realize(*made.memory())
    scale = 10.0 ** rng.randint(-3, 3)
    x = (scale * numbers.standard_normal((n, k))).astype(np.float32)
    want = rounded(x) @ np.moveaxis(w, -1, -2)
    if form == "rows":
        index = numbers.integers(0, m, (rng.choice([1, 2, 5]),)).astype(np.int32)
        got, want = made.rows(Tensor(index)).numpy(), w[index]
    elif form == "two":
        got = (made.product(Tensor(x)).relu() * made.product(Tensor(x))).numpy()
        want = np.maximum(want, 0) * want
    elif form == "counted":
        jitted = TinyJit(lambda x: made.product(x).contiguous().realize())
        room = Tensor(np.concatenate([x, x, x])).realize()
        for count in (1, n, 3 * n, n):
            part = room[: Variable("n", 1, 3 * n).bind(count)]
            got = jitted(part).shrink(((0, count), (0, m))).numpy()
        got, want = got[:n], want[:n]
    elif form == "part":
        start = 16 * rng.randrange(-(-m // 16))
        rest = made.part(slice(start, m))
        assert isinstance(rest, Interleaved)
        got, want = rest.product(Tensor(x)).numpy(), want[:, start:]
    elif form == "experts":
        index = numbers.integers(0, experts[0], (n, rng.choice([1, 2, 5]))).astype(np.int32)
        x = (scale * numbers.standard_normal((n, rng.choice([1, index.shape[1]]), k))).astype("f")
        got = made.chosen(Tensor(x), Tensor(index)).numpy()
        want = (rounded(x)[:, :, None] * w[index]).sum(-1)
    else:
        got = made.product(Tensor(x)).numpy()
    # A half of a step may be rounded either way: 1/32512 of the largest of one block.
    most = np.abs(x).max() / 16256 * np.abs(w).max()
    error = np.abs(got - want)
    allowed = 1e-5 * np.abs(want).max() + (1e-9 if form == "rows" else 1.5 * most)
    if form == "two":
        allowed *= 2 * np.abs(rounded(x) @ w.T).max() + most
    if got.shape == want.shape and (error <= allowed).all():
        return None
    return f"{name} [{m}, {k}] x {n}, {form}: off by {error.max():g}, {allowed:g} allowed"


def test_products_in_integers(record_property: Callable[[str, str], None]) -> None:
    check_all("products in integers", draws(10, 2000), judge, record_property)
