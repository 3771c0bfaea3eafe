"""Boolean masks in square brackets, read and written, against NumPy; what a jit makes of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from aster_ml import Tensor, TinyJit
from aster_ml.errors import DTypeError, IndexRangeError, JitError, ShapeError, UnsupportedError
from tests.core.tensor_checks import check_tensor

A = np.random.default_rng(0).normal(size=(3, 4, 2)).astype(np.float32)
FULL = A > 0
ROWS, COLUMNS = np.array([True, False, True]), np.array([True, False, True, True])
BOTH = FULL[..., 0]
NONE = np.zeros(3, dtype=bool)

# What stands in the brackets; masks are put in as tensors for us, as arrays for NumPy.
PLACES: dict[str, Any] = {
    "all axes": FULL, "leading axes": BOTH, "one axis": ROWS, "nothing": NONE,
    "everything": ~NONE, "nothing of all": np.zeros_like(FULL),
    "inner axis": (slice(None), COLUMNS), "inner axes": (slice(None), FULL[0]),
    "beside an int": (ROWS, 1), "before an int, apart": (ROWS, slice(None), 0),
    "beside a slice": (ROWS, slice(1, 3)), "beside a step": (ROWS, slice(None, None, 2)),
    "beside ints": (ROWS, np.array([3, 0])), "with a new axis": (None, ROWS),
    "after an ellipsis": (..., FULL[0, 0]), "two masks": (ROWS, COLUMNS & ~COLUMNS[[1, 1, 1, 0]]),
}  # fmt: skip


def as_tensors(index: Any) -> Any:
    """The index with tensors in place of arrays."""
    if isinstance(index, tuple):
        return tuple(as_tensors(i) for i in index)
    return Tensor(index) if isinstance(index, np.ndarray) else index


@pytest.mark.parametrize("index", PLACES.values(), ids=PLACES)
def test_read(index: Any) -> None:
    check_tensor(Tensor(A)[as_tensors(index)], A[index])


@pytest.mark.parametrize("index", PLACES.values(), ids=PLACES)
def test_gradient(index: Any) -> None:
    x = Tensor(A, requires_grad=True)
    weights = np.arange(1, A[index].size + 1, dtype=np.float32).reshape(A[index].shape)
    ((x[as_tensors(index)] * Tensor(weights)).sum() + x.sum()).backward()
    want = np.ones_like(A)
    np.add.at(want, index, weights)
    check_tensor(x.grad, want)


@pytest.mark.parametrize("index", PLACES.values(), ids=PLACES)
def test_write_a_number(index: Any) -> None:
    x, want = Tensor(A.copy()), A.copy()
    x[as_tensors(index)] = -7.5
    want[index] = -7.5
    check_tensor(x, want)


@pytest.mark.parametrize("index", PLACES.values(), ids=PLACES)
def test_write_one_value_for_each_place(index: Any) -> None:
    x, want = Tensor(A.copy()), A.copy()
    values = np.arange(A[index].size, dtype=np.float32).reshape(A[index].shape)
    x[as_tensors(index)] = Tensor(values)
    want[index] = values
    check_tensor(x, want)


@pytest.mark.parametrize("index", [BOTH, ROWS, BOTH.tolist(), ROWS.tolist()], ids=str)
def test_masks_that_are_arrays_and_lists(index: Any) -> None:
    x, want = Tensor(A.copy()), A.copy()
    check_tensor(x[index], A[np.array(index)])
    x[index] = [1.0, 2.0]
    want[np.array(index)] = [1.0, 2.0]
    check_tensor(x, want)


def test_write_of_what_was_picked() -> None:
    x, want = Tensor(A.copy()), A.copy()
    x[x > 0] = x[x > 0] * 2 + 1
    want[want > 0] = want[want > 0] * 2 + 1
    check_tensor(x, want)
    x[x < 0] = 0
    check_tensor(x, np.maximum(want, 0))


def test_write_casts_to_the_target() -> None:
    x = Tensor([1, 2, 3])
    x[Tensor([True, False, True])] = 2.75
    check_tensor(x, [2, 2, 2], dtype="int32")


def test_gradient_of_what_was_written() -> None:
    kept, value = Tensor(A, requires_grad=True), Tensor(A[FULL] * 2, requires_grad=True)
    x = kept + 0
    x[Tensor(FULL)] = value
    (x * Tensor(A)).sum().backward()
    check_tensor(value.grad, A[FULL])
    check_tensor(kept.grad, np.where(FULL, 0, A))


def test_what_is_written_to_a_view_is_seen_by_its_source() -> None:
    x, want = Tensor(A.copy()).contiguous().realize(), A.copy()
    row = x[1]
    row[Tensor(FULL[1])] = 0
    want[1][FULL[1]] = 0
    check_tensor(x, want)


def test_nonzero() -> None:
    for x in (A, FULL, NONE, np.array([[0, 3], [-1, 0]]), np.array([0.0, -0.0, np.nan])):
        check_tensor(Tensor(x).nonzero(), np.argwhere(x), dtype="int32")
    assert Tensor(5).nonzero().shape == (1, 0)
    assert Tensor(0).nonzero().shape == (0, 0)


def test_masked_select() -> None:
    check_tensor(Tensor(A).masked_select(Tensor(FULL)), A[FULL])
    spread = np.broadcast_to(FULL[0], A.shape)
    check_tensor(Tensor(A).masked_select(Tensor(FULL[0])), A[spread])
    with pytest.raises(DTypeError, match="the mask is int32; bool is wanted"):
        Tensor(A).masked_select(Tensor([1, 0]))


READS: dict[str, Callable[[Tensor], Any]] = {
    "index": lambda x: x[x > 0] + 1,
    "masked_select": lambda x: x.masked_select(x > 0) + 1,
    "nonzero": lambda x: x.nonzero() + 1,
}


@pytest.mark.parametrize("what", READS)
def test_a_size_that_depends_on_data_in_a_jit(what: str) -> None:
    jitted = TinyJit(READS[what])
    with pytest.raises(JitError, match=f"{what}: how many elements a mask picks depends on data"):
        for _ in range(3):
            jitted(Tensor(A).realize())


def test_writing_as_many_values_as_a_mask_picks_in_a_jit() -> None:
    def write(x: Tensor) -> Tensor:
        y = x + 0
        y[x > 0] = Tensor.arange(int(FULL.sum())).float()
        return y

    jitted = TinyJit(write)
    with pytest.raises(JitError, match="assign: how many elements a mask picks depends on data"):
        for _ in range(3):
            jitted(Tensor(A).realize())


def test_writing_a_number_in_a_jit() -> None:
    def write(x: Tensor) -> Tensor:
        y = x + 0
        y[y > 0] = 0
        return y

    jitted = TinyJit(write)
    for seed in range(5):
        x = np.random.default_rng(seed).normal(size=(3, 4)).astype(np.float32)
        check_tensor(jitted(Tensor(x).realize()), np.minimum(x, 0))


def write(index: Any, value: Any) -> None:
    """Writes to a part of a tensor of the shape of `A`."""
    x = Tensor(A.copy())
    x[index] = value


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: Tensor(A)[Tensor(COLUMNS)], IndexRangeError, r"a mask of \[4\] for axes of \[3\]"),
        (lambda: Tensor(A)[Tensor(True)], IndexRangeError, r"a mask of \[\] for axes of \[\]"),
        (lambda: write(Tensor(COLUMNS), 0), IndexRangeError, r"a mask of \[4\] for axes of \[3\]"),
        (lambda: write(Tensor(ROWS), Tensor.ones(3, 4, 2)), ShapeError, r"\[3,4,2\] and \[2,4,2\]"),
        (lambda: write(Tensor(ROWS), Tensor.ones(4, 3)), ShapeError, r"\[4,3\] and \[4,2\]"),
        (
            lambda: write(Tensor(ROWS), Tensor.ones(1, 5, 4, 2)), ShapeError,
            r"\[5,4,2\] and \[2,4,2\]",
        ),
        (
            lambda: Tensor(A, requires_grad=True).__setitem__(0, 1.0), UnsupportedError,
            r"whose gradient would be that of another value; write to x\.detach\(\)",
        ),
    ],
)  # fmt: skip
def test_misuse(call: Callable[[], Any], error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        call()
