"""Operations on tensors of symbolic shape, realized, against NumPy on the sizes that are bound."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from aster_ml import Tensor, Variable
from aster_ml.errors import BindError, ShapeError, SymbolicSizeError
from aster_ml.runtime import opencl

X = np.random.default_rng(0).standard_normal((3, 10)).astype(np.float32)
Y = np.random.default_rng(1).standard_normal((3, 10)).astype(np.float32)
INTS = np.random.default_rng(2).integers(-50, 50, (3, 10)).astype(np.int32)
SIZES = (1, 4, 10)

Pair = tuple[Callable[[Tensor], Tensor], Callable[[np.ndarray], np.ndarray]]


def softmax(x: np.ndarray, axis: int) -> np.ndarray:
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


# Each on x of shape (3, n).
LAST_AXIS: dict[str, Pair] = {
    "plus": (lambda x: x + 1, lambda x: x + 1),
    "permuted": (lambda x: x.T + 0, lambda x: x.T),
    "flipped": (lambda x: x.flip(1) + 0, lambda x: x[:, ::-1]),
    "flat": (lambda x: (x + 1).reshape(-1), lambda x: (x + 1).reshape(-1)),
    "regrouped": (lambda x: (x + 1).reshape(x.shape[1], 3), lambda x: (x + 1).reshape(-1, 3)),
    "new axis": (lambda x: x.unsqueeze(1).expand(3, 2, x.shape[1]) + 0,
                 lambda x: np.repeat(x[:, None], 2, 1)),
    "padded": (lambda x: x.pad(((0, 0), (1, 2))), lambda x: np.pad(x, ((0, 0), (1, 2)))),
    "filled up": (lambda x: x.pad(((0, 0), (0, 10 - x.shape[1])), value=3.0),
                  lambda x: np.pad(x, ((0, 0), (0, 10 - x.shape[1])), constant_values=3)),
    "last": (lambda x: x[:, -1] + 0, lambda x: x[:, -1]),
    "row": (lambda x: x[1] * 2, lambda x: x[1] * 2),
    "all but the last": (lambda x: x[:, :-1] + 1, lambda x: x[:, :-1] + 1),
    "sum of each row": (lambda x: x.sum(1), lambda x: x.sum(1)),
    "sum of each column": (lambda x: x.sum(0), lambda x: x.sum(0)),
    "sum": (lambda x: x.sum(), lambda x: x.sum()),
    "mean": (lambda x: x.mean(1), lambda x: x.mean(1)),
    "variance": (lambda x: x.var(0), lambda x: x.var(0, ddof=1)),
    "greatest": (lambda x: x.max(1), lambda x: x.max(1)),
    "place of the greatest": (lambda x: x.argmax(1), lambda x: x.argmax(1)),
    "softmax along": (lambda x: x.softmax(1), lambda x: softmax(x, 1)),
    "softmax beside": (lambda x: x.softmax(0), lambda x: softmax(x, 0)),
    "cumulative sum": (lambda x: x.cumsum(1), lambda x: x.cumsum(1)),
    "cumulative maximum": (lambda x: x.cummax(1)[0], lambda x: np.maximum.accumulate(x, 1)),
    "log of cumulative sum": (lambda x: x.logcumsumexp(1),
                              lambda x: np.logaddexp.accumulate(x, 1)),
    "product with itself": (lambda x: x @ x.T, lambda x: x @ x.T),
    "outer product": (lambda x: x.T @ x, lambda x: x.T @ x),
    "joined with itself": (lambda x: x.cat(x * 2, dim=1), lambda x: np.concatenate([x, x * 2], 1)),
    "joined with rows": (lambda x: x.cat(x.sum(0, keepdim=True)),
                         lambda x: np.concatenate([x, x.sum(0, keepdims=True)])),
    "joined with what is fixed": (lambda x: x.cat(Tensor(Y[:, :4]), dim=1),
                                  lambda x: np.concatenate([x, Y[:, :4]], 1)),
    "stacked": (lambda x: Tensor.stack(x, x + 1), lambda x: np.stack([x, x + 1])),
    "stacked inside": (lambda x: Tensor.stack(x, x + 1, dim=2), lambda x: np.stack([x, x + 1], 2)),
    "repeated": (lambda x: x.repeat(2, 3), lambda x: np.tile(x, (2, 3))),
    "chosen": (lambda x: (x > 0).where(x, -1.0), lambda x: np.where(x > 0, x, -1)),
    "gathered": (lambda x: x[Tensor([2, 0, 2])], lambda x: x[[2, 0, 2]]),
    "triangle": (lambda x: (x.T @ x).tril(), lambda x: np.tril(x.T @ x)),
    "bytes": (lambda x: x.T.contiguous().bitcast("uint8"),
              lambda x: np.ascontiguousarray(x.T).view(np.uint8)),
}  # fmt: skip


def part(t: Tensor, like: np.ndarray) -> np.ndarray:
    """What is bound of a tensor of symbolic shape."""
    assert tuple(s if isinstance(s, int) else s.sym_infer({}) for s in t.shape) == like.shape
    return t.shrink([(0, s) for s in like.shape]).numpy()


@pytest.mark.parametrize("name", LAST_AXIS)
def test_on_a_symbolic_last_axis(name: str) -> None:
    ours, theirs = LAST_AXIS[name]
    whole = Tensor(X)
    for size in SIZES:
        n = Variable("n", 1, 10).bind(size)
        want = np.asarray(theirs(X[:, :size]))
        got = ours(whole[:, :n]).realize()
        assert_part(got, want)
        assert_part((got + got).realize(), want + want)


def assert_part(got: Tensor, want: np.ndarray) -> None:
    if want.dtype == np.uint8:
        np.testing.assert_array_equal(part(got, want), want)
    else:
        np.testing.assert_allclose(part(got, want), want, rtol=2e-5, atol=2e-6)


ON_TWO_AXES = [
    "plus", "permuted", "flat", "sum of each row", "softmax along", "cumulative sum",
    "product with itself", "joined with itself",
]  # fmt: skip


@pytest.mark.parametrize("name", ON_TWO_AXES)
def test_on_two_symbolic_axes(name: str) -> None:
    ours, theirs = LAST_AXIS[name]
    for rows, columns in ((1, 1), (2, 7), (3, 10), (3, 1)):
        i, j = Variable("i", 1, 3).bind(rows), Variable("j", 1, 10).bind(columns)
        got = ours(Tensor(X)[:i, :j]).realize()
        assert_part(got, theirs(X[:rows, :columns]))


def test_one_compiled_kernel_serves_every_size() -> None:
    whole = Tensor(X)
    kernels = set()
    for size in range(1, 11):
        n = Variable("n", 1, 10).bind(size)
        (item,) = (whole[:, :n].exp() + 1).schedule()
        kernels.add(item.ast)
    assert len(kernels) == 1


@pytest.mark.parametrize("low, high", [(0, 4), (2, 5), (6, 9)])
def test_windows(low: int, high: int) -> None:
    whole = Tensor(INTS)
    i, j = Variable("i", 0, 6).bind(low), Variable("j", 4, 9).bind(high)
    for got, want in (
        (whole[:, i:j], INTS[:, low:high]),
        (whole[:, i:], INTS[:, low:]),
        (whole[:, i : i + 2], INTS[:, low : low + 2]),
        (whole[:, :-j], INTS[:, :-high]),
        (whole[:, -j:], INTS[:, -high:]),
        (whole[:, i], INTS[:, low]),
        (whole.shrink(((0, 2), (i, i + 3))), INTS[:2, low : low + 3]),
    ):
        np.testing.assert_array_equal(part((got * 2).realize(), want), want * 2)


def test_parts_and_pieces() -> None:
    n = Variable("n", 1, 8).bind(3)
    whole = Tensor(X)
    parts = whole[:, :n].split(2)
    assert [p.shape[0] for p in parts] == [2, 1]
    np.testing.assert_array_equal(part(parts[1], X[2:, :3]), X[2:, :3])
    one, rest = whole.split([n, 10 - n], dim=1)
    np.testing.assert_array_equal(part(one, X[:, :3]), X[:, :3])
    np.testing.assert_array_equal(part(rest, X[:, 3:]), X[:, 3:])
    np.testing.assert_array_equal(part(whole[:, :n].chunk(3)[2], X[2:, :3]), X[2:, :3])
    for wrong in (lambda: whole[:, :n].split(2, 1), lambda: whole[:, :n].chunk(2, 1),
                  lambda: whole[:, :n].sort(1), lambda: whole[:, :n].topk(1)):  # fmt: skip
        with pytest.raises(SymbolicSizeError, match="symbolic size"):
            wrong()
    with pytest.raises(ShapeError, match=r"add up to \(n=3\)\+5, axis 1"):
        whole.split([n, 5], dim=1)


def test_attention() -> None:
    rng = np.random.default_rng(3)
    q, k, v = [rng.standard_normal((2, 4, s, 8)).astype(np.float32) for s in (1, 10, 10)]
    for size in SIZES:
        n = Variable("n", 1, 10).bind(size)
        got = Tensor(q).scaled_dot_product_attention(Tensor(k)[:, :, :n], Tensor(v)[:, :, :n])
        weights = softmax(q @ k[:, :, :size].transpose(0, 1, 3, 2) / np.sqrt(8), -1)
        np.testing.assert_allclose(got.numpy(), weights @ v[:, :, :size], rtol=1e-5, atol=1e-6)


def test_convolution() -> None:
    rng = np.random.default_rng(4)
    x, w = [rng.standard_normal(s).astype(np.float32) for s in ((1, 2, 20), (3, 2, 4))]
    for size in (5, 11, 20):
        n = Variable("n", 4, 20).bind(size)
        got = Tensor(x)[:, :, :n].conv2d(Tensor(w), stride=3, padding=(1, 1)).realize()
        wide = np.pad(x[:, :, :size], ((0, 0), (0, 0), (1, 1)))
        windows = np.lib.stride_tricks.sliding_window_view(wide, 4, 2)[:, :, ::3]
        want = np.einsum("bcik,ock->boi", windows, w)
        np.testing.assert_allclose(part(got, want), want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("stride", [1, 2, 3, 5])
def test_transposed_convolution(stride: int) -> None:
    rng = np.random.default_rng(4)
    x, w = [rng.standard_normal(s).astype(np.float32) for s in ((1, 2, 20), (2, 3, 4))]
    for size in (1, 11, 20):
        n = Variable("n", 1, 20).bind(size)
        given = {"stride": stride, "padding": 1, "output_padding": stride - 1}
        got = Tensor(x)[:, :, :n].conv_transpose2d(Tensor(w), **given).realize()
        want = np.zeros((1, 3, size * stride + 4), np.float32)
        for i in range(size):
            want[:, :, i * stride : i * stride + 4] += np.einsum("bc,cok->bok", x[:, :, i], w)
        want = want[:, :, 1 : (size - 1) * stride - 2 + 4 + stride]
        np.testing.assert_allclose(part(got, want), want, rtol=1e-4, atol=1e-5)


def test_what_was_realized_stays_what_it_is() -> None:
    n = Variable("n", 1, 10)
    whole = Tensor(X)
    kept = [(whole[:, : n.bind(size)] * size).realize() for size in SIZES]
    for size, t in zip(SIZES, kept, strict=True):
        np.testing.assert_array_equal(part(t, X[:, :size]), X[:, :size] * size)
        assert t.contiguous() is t
        copy = t.clone().realize()
        assert copy.uop.base is not t.uop.base
        np.testing.assert_array_equal(part(copy, X[:, :size]), X[:, :size] * size)
        moved = t.to("PYTHON")[:, :size]
        np.testing.assert_array_equal(moved.numpy(), X[:, :size] * size)


def test_one_variable_with_two_values() -> None:
    n = Variable("n", 1, 10)
    whole = Tensor(X)
    one, other = whole[:, : n.bind(3)].sum(), whole[:, : n.bind(5)].sum()
    Tensor.realize(one, other)
    assert one.item() == pytest.approx(X[:, :3].sum(), rel=1e-5)
    assert other.item() == pytest.approx(X[:, :5].sum(), rel=1e-5)
    mixed = whole[:, : n.bind(3)].sum() - whole[:, : n.bind(5)].sum()
    for kind in (BindError, AssertionError):
        with pytest.raises(kind, match="bind mismatch on n"):
            mixed.item()


def test_a_variable_without_a_value() -> None:
    t: Any = Tensor(X)[:, : Variable("n", 1, 10)].sum()
    with pytest.raises(ValueError, match=r"variable n has no value; bind one"):
        t.item()


def test_parts_outside_of_the_tensor() -> None:
    whole = Tensor(X)
    n = Variable("n", 0, 20)
    assert whole[:, : n.bind(10)].sum().item() == pytest.approx(X.sum(), rel=1e-5)
    for wrong in (
        lambda: whole[:, : n.bind(11)],
        lambda: whole[:, n.bind(10) : n.bind(10) + 1],
        lambda: whole[:, n.bind(4) : 3],
        lambda: whole[:, : n.bind(4)][:, :5],
    ):
        with pytest.raises(ShapeError, match=r"shrink: part .* of axis 1"):
            wrong()


@pytest.mark.opencl
@pytest.mark.skipif(opencl.missing() is not None, reason=f"OpenCL: {opencl.missing()}")
def test_work_groups_over_two_symbolic_axes() -> None:
    whole = Tensor(X, device="OPENCL")
    for rows, columns in ((1, 4), (3, 10), (2, 1)):
        i, j = Variable("i", 1, 3).bind(rows), Variable("j", 1, 10).bind(columns)
        assert_part((whole[:i, :j] * 2).realize(), X[:rows, :columns] * 2)
        assert_part(whole[:i, :j].softmax(1).realize(), softmax(X[:rows, :columns], 1))
