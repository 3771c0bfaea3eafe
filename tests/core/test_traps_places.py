"""Traps of places, each against NumPy or PyTorch: indices, orders, windows, empty values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from aster_ml import Tensor
from tests.core.tensor_checks import check_tensor

RNG = np.random.default_rng(5)
X = RNG.normal(size=(4, 5)).astype(np.float32)


def check_beside_torch(
    ours: Callable[..., Tensor], theirs: Callable[..., Any], *arrays: Any, tolerance: float = 2e-5
) -> None:
    """Asserts that values, and gradients of each array, are PyTorch's."""
    torch = pytest.importorskip("torch")
    inputs = [Tensor(a.copy(), requires_grad=True) for a in arrays]
    others = [torch.tensor(a, requires_grad=True) for a in arrays]
    got, want = ours(*inputs), theirs(*others)
    assert got.shape == tuple(want.shape)
    weights = np.random.default_rng(0).normal(size=got.shape).astype(np.float32)
    np.testing.assert_allclose(
        got.numpy(), want.detach().numpy(), rtol=tolerance, atol=tolerance, equal_nan=True
    )
    (ours(*inputs) * Tensor(weights)).sum().backward()
    (want * torch.tensor(weights)).sum().backward()
    for x, other in zip(inputs, others, strict=True):
        assert x.grad is not None
        np.testing.assert_allclose(
            x.grad.numpy(), other.grad.numpy(), rtol=tolerance, atol=tolerance
        )


# duplicates


def test_scatter_to_one_place_keeps_the_last() -> None:
    index = np.array([[1, 1, 1, 0, 1], [3, 3, 0, 0, 3]])
    values = np.arange(10, dtype=np.float32).reshape(2, 5)
    want = X.copy()
    for row in range(2):
        for column in range(5):
            want[index[row, column], column] = values[row, column]
    check_tensor(Tensor(X).scatter(0, Tensor(index), Tensor(values)), want)


@pytest.mark.parametrize("reduce", ["sum", "prod", "mean", "amax", "amin"])
@pytest.mark.parametrize("include_self", [True, False])
def test_scatter_reduce_of_duplicates(reduce: str, include_self: bool) -> None:
    torch = pytest.importorskip("torch")
    index = np.array([[1, 1, 1, 0, 1], [3, 1, 0, 0, 3], [1, 1, 1, 1, 1]])
    check_beside_torch(
        lambda x, v: x.scatter_reduce(0, Tensor(index), v, reduce, include_self),
        lambda x, v: x.scatter_reduce(0, torch.tensor(index), v, reduce, include_self=include_self),
        X, RNG.normal(size=(3, 5)).astype(np.float32),
    )  # fmt: skip


def test_written_twice_by_index_keeps_the_last() -> None:
    x, want = Tensor(X.copy()), X.copy()
    x[Tensor([2, 0, 2])] = Tensor(np.arange(15, dtype=np.float32).reshape(3, 5))
    want[[2, 0, 2]] = np.arange(15, dtype=np.float32).reshape(3, 5)
    check_tensor(x, want)


def test_gradients_of_what_is_picked_twice_add_up() -> None:
    torch = pytest.importorskip("torch")
    rows, columns = np.array([3, 0, 3, -1]), np.array([1, 4, 1, -4])
    check_beside_torch(
        lambda x: x[Tensor(rows), Tensor(columns)],
        lambda x: x[torch.tensor(rows), torch.tensor(columns)], X,
    )  # fmt: skip
    index = np.array([[0, 0, 4, 0, 1]] * 4)
    check_beside_torch(
        lambda x: x.gather(1, Tensor(index)), lambda x: x.gather(1, torch.tensor(index)), X
    )
    check_beside_torch(
        lambda x: x[:, Tensor([[0, 1], [1, 1]])][::2], lambda x: x[:, [[0, 1], [1, 1]]][::2], X
    )


# order


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("size", [1, 2, 7, 64, 100])
def test_sort_is_stable(size: int, descending: bool) -> None:
    torch = pytest.importorskip("torch")
    x = np.random.default_rng(size).integers(0, 4, size=(3, size)).astype(np.float32)
    values, places = Tensor(x).sort(1, descending)
    want = torch.sort(torch.tensor(x), dim=1, descending=descending, stable=True)
    np.testing.assert_array_equal(values.numpy(), want.values.numpy())
    np.testing.assert_array_equal(places.numpy(), want.indices.numpy())
    order = Tensor(x).argsort(1, descending)
    np.testing.assert_array_equal(order.numpy(), want.indices.numpy())


def test_first_of_equal_ones() -> None:
    x = np.array([[1.0, 3, 3, 0], [2, 2, 2, 2], [0, -1, -1, 5]], dtype=np.float32)
    np.testing.assert_array_equal(Tensor(x).argmax(1).numpy(), x.argmax(1))
    np.testing.assert_array_equal(Tensor(x).argmin(1).numpy(), x.argmin(1))
    np.testing.assert_array_equal(Tensor(x).argmax().numpy(), x.argmax())
    _, places = Tensor(x).topk(2, 1)
    assert places.tolist() == [[1, 2], [0, 1], [3, 0]]


def test_gradient_of_a_maximum_is_shared() -> None:
    torch = pytest.importorskip("torch")
    x = np.array([[1.0, 3, 3], [2, 2, 2], [0, -1, 5]], dtype=np.float32)
    check_beside_torch(lambda v: v.max(1), lambda v: torch.amax(v, 1), x)
    check_beside_torch(lambda v: v.min(0), lambda v: torch.amin(v, 0), x)


# windows

CONVOLUTIONS: list[dict[str, Any]] = [
    {"dilation": 2}, {"dilation": (1, 3), "padding": (0, 2)}, {"stride": 2, "dilation": 2},
    {"groups": 2}, {"groups": 4, "padding": 1}, {"groups": 2, "stride": (2, 1), "dilation": (1, 2)},
    {"padding": (2, 1), "stride": 3},
]  # fmt: skip


@pytest.mark.parametrize("options", CONVOLUTIONS, ids=str)
def test_convolutions(options: dict[str, Any]) -> None:
    torch = pytest.importorskip("torch")
    groups = options.get("groups", 1)
    weight = RNG.normal(size=(8, 4 // groups, 3, 2)).astype(np.float32)
    check_beside_torch(
        lambda x, w, b: x.conv2d(w, b, **options),
        lambda x, w, b: torch.nn.functional.conv2d(x, w, b, **options),
        RNG.normal(size=(2, 4, 9, 8)).astype(np.float32), weight,
        RNG.normal(size=8).astype(np.float32), tolerance=1e-4,
    )  # fmt: skip


@pytest.mark.parametrize("pads", [(1, 0, 0, 2), (0, 2, 1, 0), (-1, 0, 0, -2)])
def test_a_convolution_padded_unevenly(pads: tuple[int, ...]) -> None:
    torch = pytest.importorskip("torch")
    check_beside_torch(
        lambda x, w: x.pad(pads).conv2d(w) if min(pads) < 0 else x.conv2d(w, padding=pads),
        lambda x, w: torch.nn.functional.conv2d(torch.nn.functional.pad(x, pads), w),
        RNG.normal(size=(1, 2, 6, 5)).astype(np.float32),
        RNG.normal(size=(3, 2, 3, 2)).astype(np.float32), tolerance=1e-4,
    )  # fmt: skip


@pytest.mark.parametrize(
    "options",
    [
        {"stride": 2}, {"stride": 2, "padding": 1, "output_padding": 1}, {"dilation": 2},
        {"groups": 2, "stride": (1, 2)}, {"stride": 3, "output_padding": (2, 1), "padding": (1, 0)},
    ],
    ids=str,
)  # fmt: skip
def test_transposed_convolutions(options: dict[str, Any]) -> None:
    torch = pytest.importorskip("torch")
    check_beside_torch(
        lambda x, w: x.conv_transpose2d(w, **options),
        lambda x, w: torch.nn.functional.conv_transpose2d(x, w, **options),
        RNG.normal(size=(2, 4, 5, 4)).astype(np.float32),
        RNG.normal(size=(4, 2, 3, 3)).astype(np.float32), tolerance=1e-4,
    )  # fmt: skip


POOLS: list[dict[str, Any]] = [
    {"kernel_size": 2, "stride": 2, "ceil_mode": True},
    {"kernel_size": 3, "stride": 2, "padding": 1},
    {"kernel_size": (3, 2), "stride": (2, 3), "padding": (1, 0), "ceil_mode": True},
    {"kernel_size": 2, "stride": 3, "ceil_mode": True},
]  # fmt: skip


@pytest.mark.parametrize("options", POOLS, ids=str)
def test_pools(options: dict[str, Any]) -> None:
    torch = pytest.importorskip("torch")
    x = RNG.normal(size=(2, 3, 7, 8)).astype(np.float32)
    check_beside_torch(
        lambda v: v.max_pool2d(**options), lambda v: torch.nn.functional.max_pool2d(v, **options), x
    )
    check_beside_torch(
        lambda v: v.max_pool2d(**options, dilation=2),
        lambda v: torch.nn.functional.max_pool2d(v, **options, dilation=2), x,
    )  # fmt: skip
    for counted in (True, False):
        check_beside_torch(
            lambda v, c=counted: v.avg_pool2d(**options, count_include_pad=c),
            lambda v, c=counted: torch.nn.functional.avg_pool2d(v, **options, count_include_pad=c),
            x,
        )  # fmt: skip


# decompositions


@pytest.mark.parametrize("shape", [(4, 4), (6, 3), (3, 6), (2, 4, 3), (1, 1), (5, 1)])
def test_qr_and_svd(shape: tuple[int, ...]) -> None:
    x = np.random.default_rng(sum(shape)).normal(size=shape).astype(np.float32)
    rows, columns = shape[-2:]
    q, r = [t.numpy() for t in Tensor(x).qr()]
    np.testing.assert_allclose(q @ r, x, atol=2e-5)
    eye = np.broadcast_to(np.eye(q.shape[-1], dtype=np.float32), (*shape[:-2], *[q.shape[-1]] * 2))
    np.testing.assert_allclose(np.swapaxes(q, -1, -2) @ q, eye, atol=2e-5)
    assert np.allclose(np.tril(r, -1), 0, atol=1e-5)
    u, s, v = [t.numpy() for t in Tensor(x).svd(full_matrices=False)]
    np.testing.assert_allclose(u * s[..., None, :] @ v, x, atol=5e-5)
    np.testing.assert_allclose(s, np.linalg.svd(x, compute_uv=False), atol=2e-4)
    full, _, right = [t.numpy() for t in Tensor(x).svd()]
    assert full.shape[-2:] == (rows, rows)
    assert right.shape[-2:] == (columns, columns)


def test_decompositions_of_deficient_matrices() -> None:
    for x in (np.zeros((3, 3)), np.ones((3, 2)), np.diag([2.0, 0, 1])):
        q, r = [t.numpy() for t in Tensor(x.astype(np.float32)).qr()]
        np.testing.assert_allclose(q @ r, x, atol=1e-5)
        s = Tensor(x.astype(np.float32)).svd()[1].numpy()
        np.testing.assert_allclose(s, np.linalg.svd(x, compute_uv=False), atol=1e-5)


# empty and 0-d

EMPTY: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "sum": (lambda x: x.sum(), np.sum), "sum of an axis": (lambda x: x.sum(0), lambda x: x.sum(0)),
    "prod": (lambda x: x.prod(1), lambda x: x.prod(1)), "all": (lambda x: x.all(), np.all),
    "any": (lambda x: x.any(), np.any), "add a row": (lambda x: x + 1, lambda x: x + 1),
    "add one of size 1": (lambda x: x + x[:1, :1].sum(0), lambda x: x + x[:1, :1].sum(0)),
    "turn": (lambda x: x.T, lambda x: x.T),
    "join": (lambda x: x.cat(x), lambda x: np.concatenate([x, x])),
    "flip": (lambda x: x.flip(0), lambda x: x[::-1]), "where": (lambda x: (x > 0).where(x, 1), abs),
}  # fmt: skip


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0, 0)])
@pytest.mark.parametrize("name", EMPTY)
def test_empty(name: str, shape: tuple[int, int]) -> None:
    ours, theirs = EMPTY[name]
    check_tensor(ours(Tensor.zeros(*shape)), theirs(np.zeros(shape, dtype=np.float32)))


def test_products_over_nothing() -> None:
    check_tensor(Tensor.zeros(2, 0) @ Tensor.zeros(0, 3), np.zeros((2, 3)))
    check_tensor(Tensor.zeros(0, 2) @ Tensor.ones(2, 3), np.zeros((0, 3)))
    check_tensor(Tensor.zeros(0).dot(Tensor.zeros(0)), np.float32(0))


def test_values_without_axes() -> None:
    x, y = np.float32(2.5), np.ones((2, 3), dtype=np.float32)
    check_tensor(Tensor(x) + Tensor(y), x + y)
    check_tensor(Tensor(y) * Tensor(x), x * y)
    assert (Tensor(x) * Tensor(x)).shape == ()
    for name in ("sum", "max", "min", "mean", "prod", "exp", "relu", "argmax"):
        assert getattr(Tensor(x), name)().shape == (), name
    assert Tensor(x).sum(axis=()).item() == 2.5
    assert Tensor(x).reshape(1, 1).shape == (1, 1)
    assert Tensor(x).expand(2, 3).tolist() == [[2.5] * 3] * 2
    assert Tensor(x).unsqueeze(0).cat(Tensor(x).unsqueeze(0)).tolist() == [2.5, 2.5]
    check_beside_torch(lambda a, b: (a * b).sum(), lambda a, b: (a * b).sum(), np.array(x), y)
