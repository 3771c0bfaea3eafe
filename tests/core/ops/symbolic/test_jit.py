"""Recordings that are replayed for other values of their variables, against NumPy.

There is one of each function, and nothing is compiled after it. A toy transformer decodes so.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from aster_ml import GlobalCounters, Tensor, TinyJit, Variable
from aster_ml.errors import JitError

RNG = np.random.default_rng(0)
A, B = [RNG.standard_normal((10, 10)).astype(np.float32) for _ in range(2)]


def check_replays(
    function: Callable[..., Tensor],
    theirs: Callable[..., np.ndarray],
    arguments: Callable[..., tuple[Any, ...]],
    calls: list[tuple[int, ...]],
) -> TinyJit:
    """Calls the jitted function with each of the sizes; it is recorded once."""
    runs = [0]

    def counted(*args: Any) -> Tensor:
        runs[0] += 1
        return function(*args)

    jitted = TinyJit(counted)
    for number, sizes in enumerate(calls):
        variables = [Variable(name, 0, 10).bind(s) for name, s in zip("nm", sizes)]
        compiled = GlobalCounters.compiled_kernels
        got = jitted(*arguments(*variables))
        assert number < 2 or GlobalCounters.compiled_kernels == compiled
        want = theirs(*sizes)
        part = got.shrink([(0, s) for s in want.shape]).numpy()
        np.testing.assert_allclose(part, want, rtol=1e-5, atol=1e-5)
    assert runs[0] == 2
    return jitted


SIZES = [(3,), (1,), (10,), (7,), (2,)]
PAIRS = [(3, 4), (4, 3), (10, 1), (1, 10), (5, 5)]


def test_elementwise() -> None:
    a = Tensor(A).realize()
    jitted = check_replays(
        lambda x: (x + 1).realize(), lambda n: A[:, :n] + 1, lambda n: (a[:, :n],), SIZES
    )
    assert len(jitted.captured.jit_cache) == 1


def test_a_reduction_beside_and_one_along() -> None:
    a = Tensor(A).realize()
    for axis in (0, 1, None):
        check_replays(
            lambda x, axis=axis: x.sum(axis),
            lambda n, axis=axis: np.asarray(A[:n].sum(axis)),
            lambda n: (a[:n],),
            SIZES,
        )


def test_two_variables() -> None:
    a, b = Tensor(A).realize(), Tensor(B).realize()
    check_replays(
        lambda x, y: x @ y + 1,
        lambda n, m: A[:n] @ B[:, :m] + 1,
        lambda n, m: (a[:n], b[:, :m]),
        PAIRS,
    )
    check_replays(
        lambda x, y: x.cat(y * 2, dim=1),
        lambda n, m: np.concatenate([A[:, :n], B[:, :m] * 2], 1),
        lambda n, m: (a[:, :n], b[:, :m]),
        PAIRS,
    )


def test_results_of_symbolic_shape_go_on_into_another_jit() -> None:
    a = Tensor(A).realize()
    first, second = TinyJit(lambda x: x * 2), TinyJit(lambda x: x.sum(1))
    for size in (3, 1, 10, 7):
        got = second(first(a[:, : Variable("n", 0, 10).bind(size)]))
        np.testing.assert_allclose(got.numpy(), A[:, :size].sum(1) * 2, rtol=1e-5, atol=1e-6)


def test_results_are_kept_apart() -> None:
    a = Tensor(A).realize()
    jitted = TinyJit(lambda x: (x * 2).realize())
    kept = [jitted(a[:, : Variable("n", 1, 10).bind(s)]) for s in (3, 1, 10, 7)]
    for size, t in zip((3, 1, 10, 7), kept, strict=True):
        np.testing.assert_array_equal(t[:, :size].numpy(), A[:, :size] * 2)


def test_a_variable_as_an_argument() -> None:
    a = Tensor(A).realize()
    check_replays(
        lambda x, n: x[n : n + 1] * n, lambda n: A[n : n + 1] * n, lambda n: (a, n),
        [(3,), (1,), (9,), (7,)],
    )  # fmt: skip
    check_replays(lambda n: Tensor.arange(n) * 3, lambda n: np.arange(n) * 3, lambda n: (n,), SIZES)


def test_sizes_that_differ_are_an_error() -> None:
    a, b = Tensor(A).realize(), Tensor(B).realize()
    add = TinyJit(lambda x, y: x + y)
    n, m = Variable("n", 1, 10).bind(4), Variable("m", 1, 10).bind(4)
    for _ in range(3):
        add(a[:, :n], b[:, :n])
    with pytest.raises(ValueError, match="do not broadcast"):
        add(a[:, :n], b[:, :m])
    with pytest.raises(JitError, match="binds n to 5"):
        add(a[:, :n], b[:, : Variable("n", 1, 10).bind(5)])


# A toy transformer.

WIDTH, HEADS, LAYERS, ROOM, WORDS = 16, 4, 2, 32, 11
DEPTH = WIDTH // HEADS


def weight(*shape: int) -> np.ndarray:
    return (RNG.standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float32)


class Block:
    """Attention with a cache of keys and values, and a layer after it; in Aster and in NumPy."""

    def __init__(self) -> None:
        self.arrays = [
            weight(3 * WIDTH, WIDTH), weight(WIDTH, WIDTH), weight(4 * WIDTH, WIDTH),
            weight(WIDTH, 4 * WIDTH),
        ]  # fmt: skip
        self.weights = [Tensor(a) for a in self.arrays]
        self.cache = Tensor.zeros(2, 1, ROOM, HEADS, DEPTH).contiguous().realize()

    def __call__(self, x: Tensor, start: Any) -> Tensor:
        qkv, out, up, down = self.weights
        count = x.shape[1]
        parts = (x.layernorm() @ qkv.T).reshape(1, count, 3, HEADS, DEPTH)
        q, k, v = [parts[:, :, i] for i in range(3)]
        self.cache[:, :, start : start + count].assign(Tensor.stack(k, v))
        keys, values = [self.cache[i, :, : start + count].transpose(1, 2) for i in range(2)]
        mask = None
        if count > 1:
            mask = Tensor.full((1, 1, count, start + count), float("-inf")).triu(start + 1)
        mixed = q.transpose(1, 2).scaled_dot_product_attention(keys, values, attn_mask=mask)
        x = x + mixed.transpose(1, 2).reshape(1, count, WIDTH) @ out.T
        return x + (x.layernorm() @ up.T).relu() @ down.T

    def in_numpy(self, x: np.ndarray) -> np.ndarray:
        qkv, out, up, down = self.arrays
        count = len(x)
        q, k, v = (norm(x) @ qkv.T).reshape(count, 3, HEADS, DEPTH).transpose(1, 2, 0, 3)
        scores = q @ k.transpose(0, 2, 1) / np.sqrt(DEPTH)
        scores = np.where(np.tril(np.ones((count, count), bool)), scores, -np.inf)
        e = np.exp(scores - scores.max(-1, keepdims=True))
        mixed = e / e.sum(-1, keepdims=True) @ v
        x = x + mixed.transpose(1, 0, 2).reshape(count, WIDTH) @ out.T
        return x + np.maximum(norm(x) @ up.T, 0) @ down.T


def norm(x: np.ndarray) -> np.ndarray:
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)


def test_a_toy_transformer_decodes_with_one_recording() -> None:
    blocks = [Block() for _ in range(LAYERS)]
    words = weight(WORDS, WIDTH)
    table = Tensor(words)
    runs = [0]

    def step(tokens: Tensor, start: Any) -> Tensor:
        runs[0] += 1
        x = table[tokens]
        for block in blocks:
            x = block(x, start)
        return (x[:, -1] @ table.T).realize()

    def in_numpy(tokens: list[int]) -> np.ndarray:
        x = words[tokens]
        for block in blocks:
            x = block.in_numpy(x)
        return x[-1] @ words.T

    tokens = [1, 4, 2]
    logits = step(Tensor([tokens]), 0).numpy()[0]
    np.testing.assert_allclose(logits, in_numpy(tokens), atol=1e-5)
    decode = TinyJit(step)
    position = Variable("position", 0, ROOM - 1)
    compiled, kernels = [], []
    for _ in range(20):
        tokens.append(int(logits.argmax()))
        before = GlobalCounters.kernel_count
        result = decode(Tensor([[tokens[-1]]]), position.bind(len(tokens) - 1))
        kernels.append(GlobalCounters.kernel_count - before)
        logits = result.numpy()[0]
        np.testing.assert_allclose(logits, in_numpy(tokens), atol=2e-5)
        compiled.append(GlobalCounters.compiled_kernels)
    # Once for the words that are given, once plainly, once to record.
    assert runs[0] == 3
    assert len(set(compiled[1:])) == 1
    assert len(set(kernels[2:])) == 1
    assert kernels[-1] <= 12 * LAYERS


def test_a_cache_costs_no_more_than_what_is_written() -> None:
    cache = Tensor.zeros(64, 8).contiguous().realize()
    position = Variable("position", 0, 63)
    rows = [Tensor(np.full((1, 8), i + 1.0, np.float32)).realize() for i in range(5)]

    @TinyJit
    def write(row: Tensor, start: Any) -> None:
        cache[start : start + 1].assign(row * 2).realize()

    for i, row in enumerate(rows):
        GlobalCounters.reset()
        write(row, position.bind(i * 3))
        assert GlobalCounters.kernel_count == 1
        assert GlobalCounters.global_mem <= 2 * 8 * 4
    want = np.zeros((64, 8))
    want[0:15:3] = 2 * np.arange(1, 6)[:, None]
    np.testing.assert_array_equal(cache.numpy(), want)


def test_replays_stay_inside_of_memory() -> None:
    far = Variable("far", 0, 20)
    x = Tensor(A).realize()
    cache = Tensor.zeros(10, 16).contiguous().realize()
    row = Tensor.ones(2, 16).contiguous().realize()
    read = TinyJit(lambda n: x[n : n + 2] * 2)

    @TinyJit
    def write(value: Tensor, n: Any) -> None:
        cache[n : n + 2].assign(value).realize()

    for n in (0, 3, 8):
        np.testing.assert_array_equal(read(far.bind(n)).numpy(), A[n : n + 2] * 2)
        write(row, far.bind(n))
    # What lies outside reads as 0 and is not written.
    np.testing.assert_array_equal(read(far.bind(9)).numpy(), np.stack([A[9] * 2, A[9] * 0]))
    for n in (9, 20):
        write(row * 2, far.bind(n))
    want = np.repeat([1.0, 1, 0, 1, 1, 0, 0, 0, 1, 2], 16).reshape(10, 16)
    np.testing.assert_array_equal(cache.numpy(), want)


@pytest.mark.parametrize("most", [2**31 - 1, 2**31, 2**40])
def test_a_variable_as_a_value_beyond_the_default_int(most: int) -> None:
    """Its range decides on the dtype, since a replay has other values."""
    jitted = TinyJit(lambda x, n: [x * 0 + Tensor(n), Tensor.full((2,), n) - 1])
    for value in (1, 5, most - 1, most, 3, most):
        n = Variable("n", 0, most).bind(value)
        got = jitted(Tensor([7], dtype="int64").realize(), n)
        assert [t.tolist() for t in got] == [[value], [value - 1] * 2]
        assert Tensor(n).item() == value
    assert Tensor(Variable("n", 0, most).bind(3)).dtype.itemsize == (4 if most < 2**31 else 8)
