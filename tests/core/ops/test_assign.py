"""Writing: assignment by index against NumPy, in-place operators, who sees what."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from aster_ml import Tensor, Variable
from aster_ml.errors import DTypeError
from tests.core.tensor_checks import assert_near, check_tensor, int_tensor
from tests.oracle import evaluate

RNG = np.random.default_rng(6)
A = RNG.normal(size=(4, 5, 6)).astype(np.float32)
BASIC = [
    slice(None), slice(1, 3), slice(None, None, 2), slice(None, None, -1), slice(-1, 0, -2),
    slice(1, 100, 3), slice(2, 2), 0, -1, slice(1, 4, 2), slice(4, None, -3),
]  # fmt: skip
ROWS = np.array([0, 2, 3, -1])
COLUMNS = np.array([1, 0, 4, -5])


def stored() -> Tensor:
    """A tensor that is memory, so that it is written in place."""
    return Tensor(A.copy())


def computed() -> Tensor:
    """A tensor that is an expression, so that writing makes another one."""
    return Tensor(A) + 0


@pytest.mark.parametrize("make", [stored, computed])
def test_basic_indices(make: Any) -> None:
    for index in itertools.product(BASIC, BASIC):
        want = A.copy()
        value = RNG.normal(size=want[index].shape).astype(np.float32)
        want[index] = value
        x = make()
        x[index] = Tensor(value)
        assert_near(evaluate(x.uop), want, 0, 0, str(index))
        x[index] = 2.5
        want[index] = 2.5
        assert_near(evaluate(x.uop), want, 0, 0, str(index))


INDICES = [
    (slice(None, None, 2), slice(None, None, -1)), (Ellipsis, 1), (1, slice(4, None, -3)),
    (slice(None), None, 0), (ROWS,), (ROWS, slice(None), COLUMNS), (slice(1, 3), COLUMNS),
    (np.array([[0], [1]]), ROWS), ([0, 0, 1],), (slice(None, None, 2), slice(None), ROWS),
]  # fmt: skip


@pytest.mark.parametrize("make", [stored, computed])
@pytest.mark.parametrize("index", INDICES, ids=str)
def test_assign_by_index(index: Any, make: Any) -> None:
    want = A.copy()
    value = RNG.normal(size=want[index].shape).astype(np.float32)
    want[index] = value
    x = make()
    x[tuple([int_tensor(i) if isinstance(i, np.ndarray) else i for i in index])] = Tensor(value)
    check_tensor(x, want, rtol=0, atol=0)
    want[index] = 2.5
    x[index] = 2.5
    check_tensor(x, want, rtol=0, atol=0)


def test_value_is_repeated_and_cast() -> None:
    x = Tensor.zeros(2, 3).contiguous()
    x[:] = Tensor([1, 2, 3])
    check_tensor(x, [[1, 2, 3], [1, 2, 3]], dtype="float32")
    x[0, 1:] = [7.5, 8.5]
    check_tensor(x, [[1, 7.5, 8.5], [1, 2, 3]])
    x[1] = np.array([4, 5, 6])
    check_tensor(x, [[1, 7.5, 8.5], [4, 5, 6]])
    x[:, 0] = Tensor([[1.5]])
    check_tensor(x, [[1.5, 7.5, 8.5], [1.5, 5, 6]])


def test_masks() -> None:
    x = Tensor([1.0, 2.0, 3.0])
    x[Tensor([True, False, True])] = 0
    check_tensor(x, [0, 2, 0])
    y = Tensor(A.copy())
    mask = A > 0
    y[Tensor(mask)] = -1
    check_tensor(y, np.where(mask, -1, A))
    z = Tensor([1.0, 2.0, 3.0])
    z[[True, False, True]] = Tensor([10.0, 30.0])
    check_tensor(z, [10, 2, 30])


def test_write_reads_old_values() -> None:
    x = Tensor([1, 2, 3, 4, 5])
    x[1:] = x[:-1]
    check_tensor(x, [1, 1, 2, 3, 4])
    y = Tensor([1, 2, 3, 4, 5])
    y[:] = y.flip(0)
    check_tensor(y, [5, 4, 3, 2, 1])
    z = Tensor([1, 2, 3, 4, 5])
    z.assign(z + z.flip(0))
    check_tensor(z, [6, 6, 6, 6, 6])


def test_program_order_of_writes() -> None:
    x = Tensor.zeros(4).contiguous().realize()
    x[0] = 1
    x[1] = x[0] + 1
    x += 10
    x[2] = x[1] * 2
    check_tensor(x, [11, 12, 24, 10])
    for step in range(3):
        x[step] = x[step + 1] + step
    check_tensor(x, [12, 25, 12, 10])


def test_what_was_built_before_keeps_its_value() -> None:
    x = Tensor([1.0, 2.0, 3.0])
    doubled = x * 2
    x += 1
    assert x.tolist() == [2, 3, 4]
    assert doubled.tolist() == [2, 4, 6]
    y = Tensor([1.0, 2.0, 3.0])
    later = y * 2
    y.assign(Tensor([5.0, 5.0, 5.0]))
    assert later.tolist() == [2, 4, 6]
    assert y.tolist() == [5, 5, 5]


def test_writing_to_a_view_is_writing_to_its_tensor() -> None:
    x = Tensor([1, 2, 3, 4, 5])
    x[1:3].assign(Tensor([7, 8]))
    check_tensor(x, [1, 7, 8, 4, 5])
    view = x.reshape(5, 1)
    view += 1
    check_tensor(x, [2, 8, 9, 5, 6])
    detached = x.detach()
    detached.assign(Tensor([0, 0, 0, 0, 0]))
    check_tensor(x, [0, 0, 0, 0, 0])


def test_copies_are_apart() -> None:
    x = Tensor([1, 2, 3])
    copy, other = x.clone(), x.clone()
    copy += 1
    assert (x.tolist(), copy.tolist(), other.tolist()) == ([1, 2, 3], [2, 3, 4], [1, 2, 3])


def test_equal_expressions_are_apart_once_written() -> None:
    x = Tensor([1, 2, 3])
    one, two = (x + 1).realize(), (x + 1).realize()
    one += 1
    assert (one.tolist(), two.tolist()) == ([3, 4, 5], [2, 3, 4])
    two[0] = 9
    assert (one.tolist(), two.tolist()) == ([3, 4, 5], [9, 3, 4])
    buffers = [Tensor.zeros(3).contiguous() for _ in range(2)]
    buffers[0].realize(buffers[1])
    buffers[0] += 1
    assert [b.tolist() for b in buffers] == [[1, 1, 1], [0, 0, 0]]


def test_unrealized_equal_expression_keeps_its_value() -> None:
    x = Tensor([1, 2, 3])
    one, two = x + 1, x + 1
    one.realize()
    one += 1
    assert one.tolist() == [3, 4, 5]
    assert two.tolist() == [2, 3, 4]


def test_memory_of_others_is_not_written() -> None:
    array = np.array([1.0, 2.0, 3.0], dtype=np.float32)
    x = Tensor(array)
    x += 1
    assert x.tolist() == [2, 3, 4]
    assert array.tolist() == [1, 2, 3]
    before = x.numpy()
    x += 1
    assert x.tolist() == [3, 4, 5]
    assert before.tolist() == [2, 3, 4]


OPERATORS = [
    ("__iadd__", 7.0, 3.0), ("__isub__", 3.0, 3.0), ("__imul__", 3.0, 3.0),
    ("__itruediv__", 3.0, 2.0), ("__ifloordiv__", 7.0, 2.0), ("__imod__", 7.0, 4.0),
    ("__ipow__", 3.0, 2.0), ("__iand__", 6, 3), ("__ior__", 6, 3), ("__ixor__", 6, 3),
    ("__ilshift__", 3, 2), ("__irshift__", 13, 2),
]  # fmt: skip


@pytest.mark.parametrize("name, start, other", OPERATORS, ids=[o[0] for o in OPERATORS])
def test_in_place_operator(name: str, start: Any, other: Any) -> None:
    x = Tensor([start])
    same = getattr(x, name)(other)
    assert same is x
    want = getattr(start, name.replace("__i", "__", 1))(other)
    assert x.tolist() == [want]


def test_assign_to_an_expression_copies_the_value() -> None:
    x, value = Tensor([1.0]) + 1, Tensor([5.0])
    x.assign(value)
    assert storage_of(x) != storage_of(value)
    x += 1
    assert (x.tolist(), value.tolist()) == ([6], [5])
    assert x.assign(7).tolist() == [7]


def storage_of(x: Tensor) -> int:
    """Which memory a tensor is."""
    return id(x._memory().base)


def test_symbolic_window_of_a_cache() -> None:
    cache = Tensor.zeros(6, 2).contiguous().realize()
    start = Variable("start", 0, 4)
    for position in (0, 3):
        cache[start.bind(position) : start.bind(position) + 2] = Tensor.full((2, 2), position + 1.0)
        cache.realize()
    assert cache.tolist() == [[1, 1], [1, 1], [0, 0], [4, 4], [4, 4], [0, 0]]


def test_gradient_through_a_write() -> None:
    value = Tensor([1.0, 2.0], requires_grad=True)
    x = Tensor([1.0, 2.0, 3.0])
    x[1:] = value * 3
    (x * Tensor([1.0, 10.0, 100.0])).sum().backward()
    assert value.grad.tolist() == [30, 300]


def test_replace() -> None:
    x, y = Tensor([1, 2]), Tensor([3, 4])
    assert x.replace(y) is x
    assert x.uop is y.uop


@pytest.mark.parametrize("run_first", [False, True])
def test_an_expression_built_again_is_not_what_was_written_to_its_memory(run_first: bool) -> None:
    x, w = Tensor([1.0, 2.0]).realize(), Tensor([3.0, 4.0]).realize()
    y = x * 2 + 1
    ratio = y / w
    y.realize()
    y.assign(x)
    if run_first:
        y.realize()
    again = x * 2 + 1
    y.realize()
    assert again.tolist() == [3, 5]
    assert y.tolist() == [1, 2]
    assert ratio.tolist() == [1, 1.25]


def test_ints_that_a_float_holds_are_assigned_to_it() -> None:
    t = Tensor.zeros(2, 5)
    t.assign(Tensor.arange(5))
    assert t.tolist() == [[0, 1, 2, 3, 4]] * 2
    for dtype in ("int32", "int64"):
        with pytest.raises(DTypeError, match=f"assign: {dtype} to float32"):
            Tensor.zeros(1).assign(Tensor([16777217], dtype=dtype))
