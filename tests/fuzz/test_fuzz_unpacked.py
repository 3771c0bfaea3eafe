"""Products with quantised weights, unpacked where they are used, against float64 NumPy.

A case draws a type, a shape, a batch, and a form: a product, one with the weight turned round, two
in one kernel, one with picked rows, one jitted, with the blocks in memory of their own or somewhere
in a larger buffer.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable

import numpy as np
import pytest

from aster_ml import Context, Tensor, TinyJit, Variable
from aster_ml.formats.ggml.blocks import NAMED
from aster_ml.nn.state import QuantTensor
from tests.fuzz.budget import check_all, draws

QUANTISED = [row.name for row in NAMED.values() if row.elements > 1]
BATCHES = [1, 1, 1, 2, 3, 5, 8, 9, 16, 33, 70]


@functools.cache
def some_blocks(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Blocks of a type with numbers of ordinary size, and these numbers."""
    from gguf import GGMLQuantizationType, quants

    row = NAMED[name]
    data = np.random.default_rng(row.kind).integers(0, 256, (6000, row.nbytes)).astype(np.uint8)
    with np.errstate(all="ignore"):
        numbers = quants.dequantize(data, GGMLQuantizationType[name]).reshape(-1, row.elements)
        most = np.abs(numbers).max(1)
    fitting = np.isfinite(most) & (most < 100) & (most > 1e-3)
    return data[fitting], numbers[fitting]


def judge(seed: int) -> str | None:
    """What is wrong with one product."""
    rng, bits = random.Random(seed), np.random.default_rng(seed)
    name = QUANTISED[seed % len(QUANTISED)]
    row, (blocks, numbers) = NAMED[name], some_blocks(name)
    n, m = rng.choice([1, 2, 7, 16, 24, 33, 64]), rng.choice(BATCHES)
    count = rng.choice([1, 2, 3, 5] if row.elements > 32 else [1, 2, 3, 8, 16])
    picked = bits.integers(0, len(blocks), (n, count))
    packed, w = blocks[picked], numbers[picked].reshape(n, -1).astype(np.float64)
    weight = QuantTensor(name, in_memory(packed, rng))
    most = np.repeat(np.abs(numbers[picked]).max(2), row.elements, axis=1)
    form = rng.choice(["product", "product", "turned", "two", "rows", "jitted", "gated", "counted"])
    if form == "rows":
        index = [rng.randrange(n) for _ in range(rng.choice([1, 3]))]
        got, want = weight.dequantize()[Tensor(index)].numpy(), w[index]
        # As many of more as a variable says.
        more = Tensor(index + [0] * 4).realize()[: Variable("n", 1, 4).bind(len(index))]
        some = weight.dequantize()[more].shrink(((0, len(index)), (0, w.shape[1]))).contiguous()
        got = got if np.array_equal(got, some.numpy()) else got + np.nan
        same = np.array_equal(got.astype(np.float64), want)
        return None if same else f"{name} [{n}, {count}]: picked rows differ"
    length = n if form == "turned" else w.shape[1]
    x = bits.standard_normal((m, length)).astype(np.float32)
    t, wide = Tensor(x).realize(), x.astype(np.float64)
    if form == "turned":
        got, want, scale = t @ weight.dequantize(), wide @ w, np.abs(wide) @ most
    elif form == "two":
        got = t @ weight.dequantize().T + (t * 2) @ weight.dequantize().T
        want, scale = 3 * wide @ w.T, 3 * np.abs(wide) @ most.T
    elif form == "gated":
        first, second = t @ weight.dequantize().T, (t + 1) @ weight.dequantize().T
        got, a, b = first.relu() + second, wide @ w.T, (wide + 1) @ w.T
        want, scale = np.maximum(a, 0) + b, (2 * np.abs(wide) + 1) @ most.T
    elif form == "counted":
        # So many rows, or groups of rows, as a variable says.
        each = rng.choice([n for n in (1, 2, 4, 8) if n <= m])
        groups = Variable("groups", 1, m // each)
        product = TinyJit(
            lambda x, g: ((x[: g * each] @ weight.dequantize().T).relu()
                          + (x[: g * each] + 1) @ weight.dequantize().T).realize()
        )  # fmt: skip
        for count in [1, m // each, rng.randint(1, m // each)]:
            found = product(t, groups.bind(count))
        got = found.shrink(((0, count * each), (0, n))).contiguous()
        wide = wide[: count * each]
        a, b = wide @ w.T, (wide + 1) @ w.T
        want, scale = np.maximum(a, 0) + b, (2 * np.abs(wide) + 1) @ most.T
    elif form == "jitted":
        product = TinyJit(lambda x: (x @ weight.dequantize().T).realize())
        for _ in range(3):
            got = product(t)
        want, scale = wide @ w.T, np.abs(wide) @ most.T
    else:
        got, want, scale = t @ weight.dequantize().T, wide @ w.T, np.abs(wide) @ most.T
    error = np.abs(got.numpy() - want) / (scale + 1e-9)
    if error.max() > 2e-6:
        return f"{name} {form} [{m}, {length}] with [{n}, {count} blocks]: off by {error.max():.2g}"
    return None


def in_memory(packed: np.ndarray, rng: random.Random) -> Tensor:
    """Blocks in a buffer of their own, or from some byte on in a larger one."""
    if rng.random() < 0.6:
        return Tensor(packed).realize()
    before, after = rng.randrange(100), rng.randrange(100)
    whole = np.concatenate([np.zeros(before, np.uint8), packed.ravel(), np.ones(after, np.uint8)])
    part = Tensor(whole).realize().shrink(((before, before + packed.size),))
    return part.reshape(*packed.shape)


def test_products_with_unpacked_weights(record_property: Callable[[str, str], None]) -> None:
    pytest.importorskip("gguf")
    check_all("products with unpacked weights", draws(12, 4800), judge, record_property)


@pytest.mark.parametrize("isa", ["", "avx2"])
@pytest.mark.parametrize("seed", [65, 2108])
def test_rows_of_two_sums_take_no_plainer_way(seed: int, isa: str) -> None:
    """Two sums over decoded numbers in a row: their folds are not pipelined."""
    pytest.importorskip("gguf")
    with Context(ISA=isa, STRICT=1):
        assert judge(seed) is None
