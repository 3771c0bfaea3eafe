"""Products of a model's packed weights as they are chosen for a processor, against float64 NumPy.

A case draws a type, a shape, instructions that are left out, which products are wanted, and a
number of rows: of a token, of a prompt, or as many as a variable says.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np

from aster_ml import Context, Tensor, TinyJit, Variable
from aster_ml.apps.llm.weights import AUTO, FLOAT, INT8, linear, load_weights
from aster_ml.formats.ggml.blocks import NAMED
from aster_ml.nn.state import QuantTensor
from tests.fuzz.budget import check_all, draws
from tests.fuzz.test_fuzz_unpacked import QUANTISED, some_blocks

ISAS = ("avx2", "avxvnni", "")
M = (1, 2, 13, 16, 17, 64, 127, 256)
ROWS = (1, 1, 2, 3, 7, 8, 16, 31, 64)


def judge(seed: int) -> str | None:
    """What is wrong with one product."""
    rng, bits = random.Random(seed), np.random.default_rng(seed)
    name, isa = QUANTISED[seed % len(QUANTISED)], rng.choice(ISAS)
    products, m, n = rng.choice([AUTO, AUTO, INT8, FLOAT]), rng.choice(M), rng.choice(ROWS)
    row, (blocks, numbers) = NAMED[name], some_blocks(name)
    count = rng.choice([1, 2, 3] if row.elements > 32 else [1, 2, 5, 8, 16, 20])
    picked = bits.integers(0, len(blocks), (m, count))
    w = numbers[picked].reshape(m, -1).astype(np.float64)
    scale = 10.0 ** rng.randint(-3, 3)
    x = (scale * bits.standard_normal((n, w.shape[1]))).astype(np.float32)
    with Context(ISA=isa):
        packed = QuantTensor(name, Tensor(blocks[picked]).realize())
        weights = load_weights({"x.weight": packed}, products=products)
        matrix = weights.matrix("x.weight", *w.shape)
        if rng.random() < 0.5:
            jitted = TinyJit(lambda x: linear(x, matrix).contiguous().realize())
            room = Tensor(np.concatenate([x, x])).realize()
            for rows in (1, n, 2 * n, n):
                part = room[: Variable("n", 1, 2 * n).bind(rows)]
                got = jitted(part).shrink(((0, rows), (0, m))).numpy()
        else:
            got = linear(Tensor(x), matrix).numpy()
    want = x.astype(np.float64) @ w.T
    # A half of a step either way in each block, or the rounding of float32.
    steps = np.abs(x).max() / 16256
    allowed = (steps if products != FLOAT else 0) * np.abs(w).sum(1) + 1e-5 * (
        np.abs(x).astype(np.float64) @ np.abs(w).T
    )
    error = np.abs(got - want)
    if got.shape == want.shape and (error <= allowed).all():
        return None
    worst = float((error / allowed).max())
    return f"{name} {list(w.shape)} x {n}, {products}, ISA={isa}: {worst:g} times what is allowed"


def test_products_as_they_are_chosen(record_property: Callable[[str, str], None]) -> None:
    check_all("packed products, chosen", draws(12, 1500), judge, record_property)
