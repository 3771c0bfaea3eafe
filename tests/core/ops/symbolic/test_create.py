"""New tensors of symbolic size, against NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aster_ml import Tensor, Variable, dtypes
from aster_ml.engine import storage
from aster_ml.errors import ArgumentError, ShapeError, SymbolicSizeError


def test_memory_has_room_for_the_largest_size() -> None:
    n = Variable("n", 1, 10).bind(3)
    t = Tensor.empty(3, n)
    assert t.shape == (3, n)
    assert storage.buffer_of(t.uop).size == 30
    result = (Tensor.ones(4, 10).contiguous()[:, :n] + 1).realize()
    assert result.shape == (4, n)
    assert storage.buffer_of(result.uop).size == 40
    assert (Tensor.empty(n, n, dtype="int8").nbytes()).sym_infer({}) == 9


@pytest.mark.parametrize("size", [1, 3, 10])
def test_constants(size: int) -> None:
    n = Variable("n", 1, 10).bind(size)
    for made, want in (
        (Tensor.full((n, 2), 7), np.full((size, 2), 7)),
        (Tensor.ones(2, n), np.ones((2, size))),
        (Tensor.zeros(n), np.zeros(size)),
        (Tensor.full((3,), n), np.full(3, size)),
        (Tensor.ones(n, 4).contiguous(), np.ones((size, 4))),
        (Tensor.ones(n, 4).clone(), np.ones((size, 4))),
        (Tensor.eye(n), np.eye(size)),
        (Tensor.ones(3, n).zeros_like(), np.zeros((3, size))),
        (Tensor.ones(3, n).full_like(2), np.full((3, size), 2)),
    ):
        whole = [slice(0, s) for s in want.shape]
        np.testing.assert_array_equal(made[tuple(whole)].numpy(), want)
        assert made.sum().item() == want.sum()


ARANGES: list[tuple[Any, Any, Any]] = [
    (0, "n", 1), ("n", 20, 1), ("n", "m", 1), (0, "n", 2), ("n", 20, 3), (0, 10, "s"),
    ("n", "m", "s"), ("m", 0, -1), ("m", "n", -3), (20, 0, "-s"), (-5, "n", "s"), ("n", 5, 1),
    ("m", 11, 2),
]  # fmt: skip


@pytest.mark.parametrize("ends", ARANGES, ids=str)
def test_arange(ends: tuple[Any, Any, Any]) -> None:
    for n, m, s in ((1, 10, 1), (4, 12, 2), (7, 19, 3)):
        numbers = {"n": n, "m": m, "s": s, "-s": -s}
        bound = {
            "n": Variable("n", 1, 8).bind(n),
            "m": Variable("m", 10, 20).bind(m),
            "s": Variable("s", 1, 3).bind(s),
        }
        bound["-s"] = -bound["s"]
        want = np.arange(*[numbers.get(e, e) for e in ends])
        made = Tensor.arange(*[bound.get(e, e) for e in ends])
        assert made.shape[0].sym_infer({}) == len(want)
        assert made.sum().item() == want.sum()
        assert made[: len(want)].tolist() == want.tolist()


def test_arange_of_other_dtypes() -> None:
    n = Variable("n", 1, 10).bind(3)
    assert Tensor.arange(n, dtype=dtypes.float32)[:3].tolist() == [0.0, 1.0, 2.0]
    assert Tensor.arange(n, n + 2, dtype="int64")[:2].tolist() == [3, 4]
    far = Variable("far", 0, 1 << 40).bind(1 << 35)
    assert Tensor.arange(far, far + 2, dtype="int64").tolist() == [1 << 35, (1 << 35) + 1]


def test_arange_that_cannot_be() -> None:
    n, s = Variable("n", 1, 10).bind(3), Variable("s", -1, 3).bind(1)
    with pytest.raises(ArgumentError, match=r"step s=1 lies between -1 and 3"):
        Tensor.arange(0, n, s)
    with pytest.raises(ArgumentError, match=r"0\.5 beside a symbolic number"):
        Tensor.arange(0, n, 0.5)


def test_random_numbers_want_a_known_size() -> None:
    n = Variable("n", 1, 10).bind(3)
    with pytest.raises(SymbolicSizeError, match="draw the largest and shrink it"):
        Tensor.rand(n, 3)
    with pytest.raises(ValueError, match="symbolic"):
        Tensor.randn(3, n)
    drawn = Tensor.rand(10, 3)[:n]
    assert 0 <= drawn.min().item() <= drawn.max().item() < 1


def test_values_of_symbolic_shape_are_not_read() -> None:
    n = Variable("n", 1, 10).bind(3)
    t = Tensor.ones(3, 10).contiguous()[:, :n]
    for read in (t.numpy, t.tolist, t.data, t.item):
        for kind in (ShapeError, AssertionError, ValueError):
            with pytest.raises(kind, match=r"symbolic|one is wanted"):
                read()


def test_a_variable_beyond_the_dtype_of_a_tensor_beside_it_makes_that_wider() -> None:
    far = Variable("far", 1, 1 << 40).bind(1 << 33)
    product = Tensor([3]) * far
    assert (product.dtype.name, product.tolist()) == ("int64", [3 << 33])
    some = Variable("some", 1, 300).bind(290)
    sum_ = Tensor([3], dtype="uint8") + some
    assert (sum_.dtype.name, sum_.tolist()) == ("int32", [293])
    assert (Tensor([1.0]) * far).dtype.name == "float32"
    few = Variable("few", 1, 200).bind(7)
    assert (Tensor([3], dtype="uint8") * few).dtype.name == "uint8"
