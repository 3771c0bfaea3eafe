"""Matrix products and einsum against NumPy and PyTorch; shape, dtype and error rules."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aster_ml.dtype import dtypes
from aster_ml.errors import ArgumentError, DeviceError, ShapeError
from aster_ml.tensor import Tensor
from aster_ml.uop.graph import toposort
from aster_ml.uop.ops import Ops
from tests.core.numerics import check_torch, leaf, tensor, value


def random(*shape: int, seed: int = 0) -> Any:
    """Normal numbers."""
    return np.random.RandomState(seed + len(shape)).randn(*shape)


SHAPES = [
    ((3,), (3,)), ((2, 3), (3,)), ((3,), (3, 4)), ((2, 3), (3, 4)), ((1, 1), (1, 1)),
    ((5, 2, 3), (3, 4)), ((5, 1, 2, 3), (4, 3, 2)), ((3,), (4, 3, 2)), ((2, 3), (4, 3, 2)),
    ((4, 2, 3), (3,)), ((0, 3), (3, 2)),
]  # fmt: skip


@pytest.mark.parametrize("left, right", SHAPES)
def test_matmul_is_that_of_numpy(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    a, b = random(*left), random(*right, seed=1)
    np.testing.assert_allclose(value(tensor(a) @ tensor(b)), a @ b, atol=1e-12)
    np.testing.assert_allclose(value(tensor(b).matmul(tensor(a), reverse=True)), a @ b, atol=1e-12)


@pytest.mark.parametrize("m, n, k", [(396, 1717, 2054), (57, 17, 2433), (33, 70, 3001)])
def test_long_odd_products_with_a_turned_operand(m: int, n: int, k: int) -> None:
    # The panel of such an operand is larger than the cache, and no tile divides the sizes.
    a, b = random(m, k).astype(np.float32), random(n, k, seed=1).astype(np.float32)
    exact = a.astype(np.float64) @ b.astype(np.float64).T
    np.testing.assert_allclose((Tensor(a) @ Tensor(b).T).numpy(), exact, atol=1e-3)
    np.testing.assert_allclose((Tensor(b) @ Tensor(a).T).numpy(), exact.T, atol=1e-3)


@pytest.mark.torch
@pytest.mark.parametrize("left, right", SHAPES[:-1])
def test_matmul_gradients(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    pytest.importorskip("torch")
    check_torch(lambda a, b: a.dot(b), lambda a, b: a @ b, random(*left), random(*right, seed=1))


def test_matmul_is_one_product_of_two_views_and_one_sum() -> None:
    a, b = tensor(random(2, 3)), tensor(random(3, 4))
    ops = [u.op for u in toposort((a @ b).uop)]
    assert ops.count(Ops.MUL) == ops.count(Ops.REDUCE) == 1
    product = next(u for u in toposort((a @ b).uop) if u.op is Ops.MUL)
    assert [s.op for s in product.src] == [Ops.EXPAND, Ops.EXPAND]
    assert product.shape == (2, 4, 3)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_halves_accumulate_in_float32(dtype: str) -> None:
    ones = Tensor.ones(1, 4096, dtype=dtype)
    product = ones @ ones.transpose()
    assert product.dtype is getattr(dtypes, dtype)
    assert float(value(product)[0, 0]) == 4096
    sums = [u for u in toposort(product.uop) if u.op is Ops.REDUCE]
    assert [u.dtype for u in sums] == [dtypes.float32]


def test_small_ints_wrap_only_at_the_end() -> None:
    a = tensor(np.array([100, 100, 56], np.int8))
    assert value(a.dot(tensor(np.array([1, 1, 1], np.int8)))) == 0  # 256 as int8
    assert value(a.dot(tensor(np.array([100, 1, 1], np.int8)), dtype=dtypes.int32)) == 10156


def test_dtype_is_that_of_accumulation_and_result() -> None:
    a = tensor(np.full((1, 8), 300, np.float16))
    wide = a.matmul(a.transpose(), dtype="float32")
    assert wide.dtype is dtypes.float32
    assert value(wide)[0, 0] == 8 * 90000
    assert tensor(np.ones((2, 2), np.int32)).dot(tensor(np.ones((2, 2)))).dtype is dtypes.float64


@pytest.mark.parametrize(
    "left, right, message",
    [
        ((2, 3), (4, 5), r"matmul: k differs, 3 against 4, in \[2,3\] @ \[4,5\]"),
        ((3,), (4,), r"matmul: k differs, 3 against 4, in \[3\] @ \[4\]"),
        ((), (3,), r"matmul: each side needs an axis, in \[\] @ \[3\]"),
        ((2, 5, 3), (4, 3, 2), r"matmul: shapes \[2\] and \[4\] do not broadcast"),
    ],
)
def test_matmul_refuses(left: Any, right: Any, message: str) -> None:
    with pytest.raises(ShapeError, match=message):
        tensor(np.zeros(left)).dot(tensor(np.zeros(right)))


def test_matmul_of_two_devices_is_refused() -> None:
    a, b = Tensor.from_uop(leaf(np.ones((2, 2)))), Tensor.from_uop(leaf(np.ones((2, 2)), "CPU:1"))
    with pytest.raises(DeviceError, match="matmul: one value is on CPU, the other on CPU:1"):
        a.dot(b)


@pytest.mark.torch
def test_linear() -> None:
    pytest.importorskip("torch")
    check_torch(
        lambda x, w, b: x.linear(w, b),
        lambda x, w, b: x @ w + b,
        random(4, 3),
        random(3, 5),
        random(5),
    )
    check_torch(lambda x, w: x.linear(w), lambda x, w: x * w, random(4, 3), random(3))
    half = tensor(random(2, 3)).linear(tensor(random(3, 2)), tensor(random(2)), dtype="half")
    assert half.dtype is dtypes.float16


def test_in_place_product() -> None:
    a = Tensor(np.eye(2, dtype=np.float32) * 2)
    before = a
    a @= Tensor(np.ones((2, 2), np.float32))
    assert a is before
    np.testing.assert_array_equal(value(a), np.full((2, 2), 2))


# einsum

FORMULAS = [
    ("ij,jk->ik", (2, 3), (3, 4)),
    ("ij->ji", (2, 3)),
    ("ij->", (2, 3)),
    ("ij->j", (2, 3)),
    ("ii->i", (3, 3)),
    ("ii", (3, 3)),
    ("iij->j", (3, 3, 2)),
    ("iji->ij", (3, 2, 3)),
    ("iii->i", (3, 3, 3)),
    ("ji", (2, 3)),
    ("jk,ij", (3, 4), (2, 3)),
    ("...ij,...jk->...ik", (5, 2, 3), (3, 4)),
    ("...ij,...jk->...ik", (5, 1, 2, 3), (4, 3, 2)),
    ("...->...", (2, 3)),
    ("a...b->b...a", (2, 3, 4)),
    ("...i->...", (2, 3, 4)),
    ("i...", (2, 3)),
    ("bhqd,bhkd->bhqk", (2, 3, 4, 5), (2, 3, 6, 5)),
    ("ij,ij->", (2, 3), (2, 3)),
    ("i,j->ij", (2,), (3,)),
    ("ij,kl->", (2, 3), (4, 2)),
    ("ij,jk,kl->il", (2, 3), (3, 4), (4, 5)),
    ("i,ij,j->", (2,), (2, 3), (3,)),
    ("ijk,jil->kl", (2, 3, 4), (3, 2, 5)),
    ("b i j, b j -> b i", (2, 3, 4), (2, 4)),
    ("ij,j->ij", (2, 3), (1,)),
    (",->", (), ()),
]


@pytest.mark.parametrize("case", FORMULAS, ids=lambda case: case[0])
def test_einsum_is_that_of_numpy(case: tuple[Any, ...]) -> None:
    formula, *shapes = case
    arrays = [np.asarray(random(*s, seed=i)) for i, s in enumerate(shapes)]
    have = value(Tensor.einsum(formula, *[tensor(a) for a in arrays]))
    np.testing.assert_allclose(have, np.einsum(formula, *arrays), atol=1e-12)


@pytest.mark.torch
@pytest.mark.parametrize(
    "formula, shapes",
    [
        ("ij,jk->ik", [(2, 3), (3, 4)]),
        ("ii->i", [(3, 3)]),
        ("ij,jk,kl->il", [(2, 3), (3, 4), (4, 5)]),
        ("...ij,...jk->...ik", [(5, 2, 3), (3, 4)]),
    ],
)
def test_einsum_gradients(formula: str, shapes: list[tuple[int, ...]]) -> None:
    torch = pytest.importorskip("torch")
    check_torch(
        lambda *x: Tensor.einsum(formula, *x),
        lambda *x: torch.einsum(formula, *x),
        *[random(*s, seed=i) for i, s in enumerate(shapes)],
    )


def test_einsum_takes_a_list_and_a_dtype() -> None:
    a, b = random(2, 3), random(3, 4)
    np.testing.assert_allclose(value(Tensor.einsum("ij,jk->ik", [tensor(a), tensor(b)])), a @ b)
    half = tensor(np.ones((2, 3), np.float16))
    assert Tensor.einsum("ij,ij->", half, half, dtype="float32").dtype is dtypes.float32
    assert Tensor.einsum("ij,ij->", half, half).dtype is dtypes.float16


def test_einsum_sums_early() -> None:
    # No product is larger than the largest of what goes in and what comes out of one step.
    shapes = [(2, 30), (30, 30), (30, 2)]
    root = Tensor.einsum("ab,bc,cd->ad", *[tensor(np.zeros(s)) for s in shapes]).uop
    largest = max(u.numel() for u in toposort(root) if u.op is Ops.MUL and u.shape)
    assert largest == 2 * 30 * 30


@pytest.mark.parametrize(
    "formula, shapes, error, message",
    [
        ("ij,jk->ik", [(2, 3)], ArgumentError, "names 2 operands, given 1"),
        ("ij->i", [(2, 3, 4)], ArgumentError, "names 2 axes, the operand has 3"),
        ("...ijk->i", [(2, 3)], ArgumentError, "names 3 axes, the operand has 2"),
        ("ij->ik", [(2, 3)], ArgumentError, "k is in no operand"),
        ("ij->ii", [(2, 3)], ArgumentError, "twice"),
        ("i1->i", [(2, 3)], ArgumentError, "letters"),
        ("ij,jk->ik", [(2, 3), (4, 5)], ShapeError, "j has sizes 3 and 4"),
        ("ii->i", [(2, 3)], ShapeError, "i has sizes 2 and 3"),
    ],
)
def test_einsum_refuses(formula: str, shapes: Any, error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        Tensor.einsum(formula, *[tensor(np.zeros(s)) for s in shapes])
