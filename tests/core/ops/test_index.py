"""Reading by index, gather, scatter and masks against NumPy, whose results are the reference."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from aster_ml import Context, Tensor, TinyJit
from aster_ml.uop.ops import MOVEMENT, Ops
from tests.core.tensor_checks import assert_near, check_tensor, int_tensor

A = np.random.default_rng(5).normal(size=(4, 5, 6)).astype(np.float32)
BASIC = [
    slice(None), slice(1, 3), slice(None, None, 2), slice(None, None, -1), slice(-1, 0, -2),
    slice(1, 100, 3), slice(2, 2), 0, -1, 3, slice(1, 4, 2), slice(4, None, -3),
]  # fmt: skip
ROWS = np.array([0, 2, 3, -1])
COLUMNS = np.array([1, 0, 4, -5])
COLUMN = np.array([[0], [1], [2]])


def evaluated(x: Tensor) -> Any:
    """The value by the oracle alone: many small cases, none of which needs a compiler."""
    from tests.oracle import evaluate

    return evaluate(x.uop)


def test_basic_indices_of_two_axes() -> None:
    a = Tensor(A)
    for index in itertools.product(BASIC, BASIC):
        got, want = evaluated(a[index]), A[index]
        assert got.shape == want.shape, index
        assert_near(got, want, 0, 0, str(index))


def test_new_axes_and_dots() -> None:
    a = Tensor(A)
    for index in itertools.product(BASIC[:8], [None, Ellipsis], BASIC[:8]):
        assert_near(evaluated(a[index]), A[index], 0, 0, str(index))
    assert a[...].shape == a[()].shape == A.shape
    assert a[None, ..., None].shape == (1, 4, 5, 6, 1)


@pytest.mark.parametrize("index", [
    (slice(None, None, 2), slice(None, None, -1)), (1, slice(-1, 0, -2)), (slice(4, None, -3), 0),
    (slice(1, 4, 2), None, 2),
], ids=str)  # fmt: skip
def test_basic_indices_compiled(index: Any) -> None:
    check_tensor(Tensor(A)[index], A[index], rtol=0, atol=0)


def test_basic_indices_are_movement() -> None:
    uop = Tensor(A)[::2, -1, None, 1:4:2].uop
    while uop.op is not Ops.BUFFER:
        assert uop.op in MOVEMENT
        uop = uop.src[0]


# Each index and, where it stands apart from NumPy's rule, the result in NumPy's terms.
ADVANCED = [
    ("one axis", (ROWS,), None),
    ("two axes", (ROWS, COLUMNS), None),
    ("three axes", (ROWS, COLUMNS, ROWS), None),
    ("second axis", (slice(None), COLUMNS), None),
    ("last axis", (Ellipsis, ROWS), None),
    ("apart", (ROWS, slice(None), COLUMNS), None),
    ("broadcast", (COLUMN, ROWS), None),
    ("matrix of rows", (COLUMN,), None),
    ("with a new axis", (ROWS, None, COLUMNS), None),
    ("with steps", (slice(None, None, 2), COLUMNS[:3], slice(None, None, -2)), None),
    ("beside an int", (ROWS, 0), lambda a: a[:, 0][ROWS]),
    ("an int first", (0, slice(1, 4), ROWS), lambda a: a[0][1:4, ROWS]),
]  # fmt: skip


@pytest.mark.parametrize("name, index, other", ADVANCED, ids=[a[0] for a in ADVANCED])
def test_tensor_indices(name: str, index: Any, other: Any) -> None:
    want = A[index] if other is None else other(A)
    tensors = tuple([int_tensor(i) if isinstance(i, np.ndarray) else i for i in index])
    check_tensor(Tensor(A)[tensors], want, rtol=0, atol=0)
    lists = tuple([i.tolist() if isinstance(i, np.ndarray) else i for i in index])
    check_tensor(Tensor(A)[lists], want, rtol=0, atol=0)


def test_indices_outside_give_zero() -> None:
    check_tensor(Tensor([1, 2, 3])[Tensor([-1, -4, 7, 2])], [3, 0, 0, 3])
    check_tensor(Tensor([[1.0, 2], [3, 4]])[Tensor([5, 1])], [[0, 0], [3, 4]])
    check_tensor(Tensor([5, 6])[Tensor([0, 200, 1], dtype="uint8")], [5, 0, 6])


def test_index_known_to_be_inside_needs_no_mask() -> None:
    found = Tensor(A)[Tensor.arange(3)]
    assert found.uop.op is Ops.INDEX
    check_tensor(found, A[:3])


def test_masks() -> None:
    mask = A > 0
    check_tensor(Tensor(A)[Tensor(mask)], A[mask])
    check_tensor(Tensor(A)[[True, False, True, False]], A[[True, False, True, False]])
    check_tensor(Tensor(A)[:, Tensor([True, False, True, False, True])], A[:, ::2])
    check_tensor(Tensor(A)[Tensor(mask[:, :, 0]), 1], A[mask[:, :, 0], 1])
    check_tensor(Tensor(A).masked_select(Tensor(mask)), A[mask])
    check_tensor(Tensor(A).masked_select(Tensor(mask[0])), A[:, mask[0]].reshape(-1))
    check_tensor(Tensor(A).masked_fill(Tensor(mask), -1), np.where(mask, -1, A))


def test_iteration_and_length() -> None:
    a = Tensor([[1, 2], [3, 4], [5, 6]])
    assert len(a) == 3
    assert [row.tolist() for row in a] == [[1, 2], [3, 4], [5, 6]]


# gather and scatter


def test_gather() -> None:
    index = np.random.default_rng(1).integers(0, 4, size=(3, 5, 6))
    check_tensor(Tensor(A).gather(0, int_tensor(index)), np.take_along_axis(A, index, 0))
    small = np.random.default_rng(2).integers(0, 6, size=(2, 3, 9))
    check_tensor(Tensor(A).gather(-1, int_tensor(small)), np.take_along_axis(A[:2, :3], small, 2))


def scattered(x: Any, axis: int, index: Any, values: Any, combine: Any) -> Any:
    """What scatter means, element by element in order."""
    result = x.copy()
    for place in np.ndindex(*index.shape):
        at = (*place[:axis], index[place], *place[axis + 1 :])
        result[at] = combine(result[at], values[place])
    return result


COMBINE = {"add": lambda old, new: old + new, "multiply": lambda old, new: old * new}


@pytest.mark.parametrize("axis, shape", [(0, (3, 4, 5)), (1, (4, 7, 2)), (-1, (4, 5, 6))])
def test_scatter(axis: int, shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(3)
    index = rng.integers(0, A.shape[axis], size=shape)
    values = rng.normal(size=shape).astype(np.float32)
    want = scattered(A, axis % 3, index, values, lambda old, new: new)
    check_tensor(Tensor(A).scatter(axis, int_tensor(index), Tensor(values)), want)


@pytest.mark.parametrize("reduce", COMBINE)
def test_scatter_a_number_onto_what_is_there(reduce: str) -> None:
    index = np.array([[0, 2, 2], [1, 2, 0]])
    want = scattered(A[0, :, :4], 1, index, np.full((2, 3), 1.5), COMBINE[reduce])
    got = Tensor(A[0, :, :4]).scatter(1, int_tensor(index), 1.5, reduce=reduce)
    check_tensor(got, want, rtol=1e-5)


def test_scatter_a_number() -> None:
    check_tensor(Tensor.zeros(2, 3).scatter(1, Tensor([[0], [2]]), 5.0), [[5, 0, 0], [0, 0, 5]])


REDUCE = {"sum": np.sum, "prod": np.prod, "mean": np.mean, "amax": np.max, "amin": np.min}


@pytest.mark.parametrize("include_self", [True, False])
@pytest.mark.parametrize("reduce", REDUCE)
def test_scatter_reduce(reduce: str, include_self: bool) -> None:
    rng = np.random.default_rng(4)
    x = rng.normal(size=(4, 3)).astype(np.float32)
    index = rng.integers(0, 4, size=(6, 3))
    values = rng.normal(size=(6, 3)).astype(np.float32)
    want = x.copy()
    for row, column in np.ndindex(4, 3):
        met = [values[k, column] for k in range(6) if index[k, column] == row]
        if met:
            want[row, column] = REDUCE[reduce](met + [x[row, column]] * include_self)
    got = Tensor(x).scatter_reduce(0, int_tensor(index), Tensor(values), reduce, include_self)
    check_tensor(got, want, rtol=1e-5, atol=1e-6)


def test_one_hot() -> None:
    check_tensor(Tensor([0, 2, 1]).one_hot(4), np.eye(4)[[0, 2, 1]], dtype="int32")
    check_tensor(Tensor([[0], [2]]).one_hot(), np.eye(3)[[[0], [2]]])


def test_gradient_of_an_index_adds_up() -> None:
    x = Tensor(A[0, 0], requires_grad=True)
    (x[Tensor([0, 2, 0])] * Tensor([1.0, 2.0, 4.0])).sum().backward()
    check_tensor(x.grad, [5, 0, 2, 0, 0, 0])


def test_gradient_of_a_slice() -> None:
    x = Tensor(A[0, 0], requires_grad=True)
    (x[::-2] * Tensor([1.0, 2.0, 4.0])).sum().backward()
    check_tensor(x.grad, [0, 4, 0, 2, 0, 1])


@pytest.mark.parametrize("shape, index", [((1,), (5,)), ((2, 1), (2, 6)), ((3, 1, 2), (3, 4, 2))])
def test_gradients_that_meet_at_one_place_add_up(
    shape: tuple[int, ...], index: tuple[int, ...]
) -> None:
    axis = shape.index(1)
    x = Tensor(np.random.randn(*shape).astype(np.float32))
    weights = np.random.randn(*index).astype(np.float32)
    mask = np.random.rand(*index) > 0.4
    read = x.gather(axis, Tensor(np.zeros(index, dtype=np.int32)))
    found = Tensor(mask).where(read, 3.0).gradient(x, gradient=Tensor(weights))[0]
    want = np.where(mask, weights, 0).sum(axis, keepdims=True)
    np.testing.assert_allclose(found.numpy(), want, rtol=1e-5)


def test_indices_outside_read_and_write_nothing() -> None:
    """What docs/how-to/coming-from-pytorch.md says of tensors of indices that nobody looks at."""
    x, i = Tensor([1.0, 2.0, 3.0]), Tensor([0, 7, -4])
    assert x[i].tolist() == x.gather(0, i).tolist() == [1, 0, 0]
    written = x.clone().realize()
    written[i] = 9.0
    assert written.tolist() == x.scatter(0, i, 9.0).tolist() == [9, 2, 3]
    assert i.one_hot(3).tolist() == [[1, 0, 0], [0, 0, 0], [0, 0, 0]]
    assert x.expand(2, 3).cross_entropy(Tensor([7, 7])).item() == 0


def test_check_index_names_the_place() -> None:
    x, i = Tensor.zeros(4, 5).contiguous(), Tensor([[1, 2], [3, 5]])
    with Context(CHECK_INDEX=1):
        with pytest.raises(IndexError, match=r"index 5, which stands at \[1, 1\] of \[2,2\]") as e:
            x[:, i]
        assert "axis 1, which has size 5, of [4,5] (1 of 4 are)" in str(e.value)
        with pytest.raises(IndexError, match="class 5"):
            x.cross_entropy(Tensor([0, 1, 2, 5]))
        labels = Tensor([0, -1, 2, 3])
        x.sparse_categorical_crossentropy(labels).realize()


def test_check_index_looks_into_jitted_functions() -> None:
    @TinyJit
    def f(x: Tensor, i: Tensor) -> Tensor:
        return x[i].realize()

    x = Tensor([1.0, 2.0]).realize()
    for _ in range(3):
        assert f(x, Tensor([1]).realize()).tolist() == [2]
    with Context(CHECK_INDEX=1):
        assert f(x, Tensor([0]).realize()).tolist() == [1]
        with pytest.raises(IndexError, match="index 2"):
            f(x, Tensor([2]).realize())
    assert f(x, Tensor([2]).realize()).tolist() == [0]
