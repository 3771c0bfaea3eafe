"""Joined tensors, bit for bit: signs of zeros, what stands beside infinities, all dtypes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from aster_ml import Tensor, Variable, dtypes
from aster_ml.dtype import to_numpy_dtype

A = np.array([[-0.0, 1.0, -np.inf], [0.0, -0.0, np.nan]], dtype=np.float32)
B = np.array([[-0.0, -0.0, 2.0], [np.inf, 0.0, -0.0]], dtype=np.float32)


def assert_same_bits(got: Tensor, want: Any) -> None:
    """Asserts shape, dtype and every bit; NaNs count as equal."""
    found, wanted = got.numpy(), np.asarray(want)
    assert found.shape == wanted.shape
    assert found.dtype == wanted.dtype
    np.testing.assert_array_equal(found, wanted)
    np.testing.assert_array_equal(np.signbit(found)[found == 0], np.signbit(wanted)[wanted == 0])


JOINS: list[tuple[str, Callable[..., Tensor], Callable[..., Any]]] = [
    ("rows", lambda a, b: a.cat(b), lambda a, b: np.concatenate([a, b])),
    ("columns", lambda a, b: a.cat(b, dim=1), lambda a, b: np.concatenate([a, b], 1)),
    ("three", lambda a, b: a.cat(b, a, dim=1), lambda a, b: np.concatenate([a, b, a], 1)),
    (
        "of joined",
        lambda a, b: a.cat(b, dim=1).cat(b.cat(a, dim=1)),
        lambda a, b: np.concatenate(
            [np.concatenate([a, b], 1), np.concatenate([b, a], 1)],
        ),
    ),
    ("stack", lambda a, b: a.stack(b, a, dim=-1), lambda a, b: np.stack([a, b, a], -1)),
    ("reflect", lambda a, b: a.pad((1, 1), mode="reflect"), lambda a, b: pad(a, "reflect")),
    ("replicate", lambda a, b: b.pad((1, 1), mode="replicate"), lambda a, b: pad(b, "edge")),
    ("circular", lambda a, b: b.pad((1, 1), mode="circular"), lambda a, b: pad(b, "wrap")),
    (
        "padded with -0.0",
        lambda a, b: b.pad((1, 1), value=-0.0),
        lambda a, b: np.pad(b, ((0, 0), (1, 1)), constant_values=-0.0),
    ),
    ("rolled", lambda a, b: a.roll(1, 1), lambda a, b: np.roll(a, 1, 1)),
    (
        "permuted and cut",
        lambda a, b: a.cat(b, dim=1).permute(1, 0)[1:5],
        lambda a, b: np.concatenate([a, b], 1).T[1:5],
    ),
    (
        "computed",
        lambda a, b: (-a).cat(b * -1.0, dim=0),
        lambda a, b: np.concatenate([-a, -b]),
    ),
]


def pad(a: Any, mode: Any) -> Any:
    """One column more at each end."""
    return np.pad(a, ((0, 0), (1, 1)), mode=mode)


@pytest.mark.parametrize("join", JOINS, ids=[name for name, _, _ in JOINS])
def test_parts_come_through_bit_for_bit(join: Any) -> None:
    _, ours, theirs = join
    assert_same_bits(ours(Tensor(A), Tensor(B)), theirs(A, B))


@pytest.mark.parametrize("name", ["float16", "float64", "int8", "uint64", "bool"])
def test_of_other_dtypes(name: str) -> None:
    dtype = to_numpy_dtype(getattr(dtypes, name))
    with np.errstate(invalid="ignore"):
        a, b = A.astype(dtype), B.astype(dtype)
    assert_same_bits(Tensor(a).cat(Tensor(b), dim=1), np.concatenate([a, b], 1))


def test_bfloat16_comes_through() -> None:
    got = Tensor(A).cast("bfloat16").cat(Tensor(B).cast("bfloat16"))
    assert_same_bits(got.float(), np.concatenate([A, B]))


def test_many_parts() -> None:
    """More than one kernel takes, so that some are joined in memory first."""
    parts = [np.array([-0.0, float(i)], dtype=np.float32) for i in range(150)]
    assert_same_bits(Tensor.cat(*[Tensor(p) for p in parts]), np.concatenate(parts))


def test_parts_that_were_reduced_or_multiplied_do_not_meet() -> None:
    """0 * inf in one part is no NaN in the next."""
    big = np.full((2, 3), np.inf, dtype=np.float32)
    ours = (Tensor(A) * Tensor(big)).cat(Tensor(B).exp(), Tensor(A).max(0, keepdim=True))
    with np.errstate(invalid="ignore"):
        want = np.concatenate([A * big, np.exp(B), A.max(0, keepdims=True)])
    np.testing.assert_allclose(ours.numpy(), want, rtol=1e-6)


def test_parts_of_symbolic_size() -> None:
    n = Variable("n", 1, 4).bind(2)
    rows = np.array([[-0.0, 1.0]] * 4, dtype=np.float32)
    got = Tensor(rows)[:n].cat(Tensor(B[:, :2]), dim=0)
    assert_same_bits(got.shrink(((0, 4), None)), np.concatenate([rows[:2], B[:, :2]]))


def test_gradients_of_slices_are_joined_bit_for_bit() -> None:
    x = Tensor(np.ones((4, 3), dtype=np.float32), requires_grad=True)
    first, second = Tensor(A), Tensor(B)
    (grad,) = ((x[:2] * first).sum() + (x[2:] * second).sum()).gradient(x)
    assert_same_bits(grad, np.concatenate([A, B]))


def test_gradients_of_a_join_are_its_parts() -> None:
    a, b = Tensor(np.ones((2, 3), np.float32)), Tensor(np.ones((2, 3), np.float32))
    above = np.concatenate([A, B], 1)
    found = a.cat(b, dim=1).gradient(a, b, gradient=Tensor(above))
    assert_same_bits(found[0], A)
    assert_same_bits(found[1], B)


def test_paddings_that_meet_are_added() -> None:
    a, b = Tensor([1.0, 2.0, 3.0]), Tensor([10.0, 20.0, 30.0])
    assert (a.pad((0, 2)) + b.pad((2, 0))).tolist() == [1.0, 2.0, 13.0, 20.0, 30.0]
    assert (a.pad((0, 3)) + b.pad((3, 0))).tolist() == [1.0, 2.0, 3.0, 10.0, 20.0, 30.0]
    gap = a.pad((0, 5)) + b.pad((5, 0))
    assert gap.tolist() == [1.0, 2.0, 3.0, 0.0, 0.0, 10.0, 20.0, 30.0]
    both = gap + Tensor([7.0, 8.0]).pad((3, 3))
    assert both.tolist() == [1.0, 2.0, 3.0, 7.0, 8.0, 10.0, 20.0, 30.0]


def test_an_assigned_part_is_written_bit_for_bit() -> None:
    x = Tensor(np.zeros((4, 3), np.float32)).contiguous().realize()
    x[1:3] = Tensor(B)
    lazy = Tensor(np.zeros((4, 3), np.float32)) * 1.0
    lazy[1:3] = Tensor(B)
    want = np.zeros((4, 3), np.float32)
    want[1:3] = B
    assert_same_bits(x, want)
    assert_same_bits(lazy, want)
