"""Movement, joining, padding and creation of tensors against NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aster_ml import Tensor, UOp, Variable, dtypes
from aster_ml.uop.ops import Ops
from tests.core.tensor_checks import check_tensor

A = np.random.default_rng(3).normal(size=(4, 5, 6)).astype(np.float32)
B = np.random.default_rng(4).normal(size=(4, 2, 6)).astype(np.float32)


def windows(x: Any, axis: int, size: int, step: int) -> Any:
    """Windows along an axis, on a new last axis."""
    found = np.lib.stride_tricks.sliding_window_view(x, size, axis)
    return np.take(found, range(0, found.shape[axis], step), axis)


MOVES = [
    ("reshape", lambda a: a.reshape(20, 6), lambda a: a.reshape(20, 6)),
    ("reshape to -1", lambda a: a.reshape(4, -1), lambda a: a.reshape(4, 30)),
    ("reshape with None", lambda a: a.reshape(None, 5, 2, 3), lambda a: a.reshape(4, 5, 2, 3)),
    ("view", lambda a: a.view((10, 12)), lambda a: a.reshape(10, 12)),
    ("expand", lambda a: a[:, :1].expand(3, 4, -1, 6)[:, :, 0],
     lambda a: np.broadcast_to(a[:, 0], (3, 4, 6))),
    ("permute", lambda a: a.permute(2, 0, -2), lambda a: a.transpose(2, 0, 1)),
    ("transpose", lambda a: a.transpose(), lambda a: a.swapaxes(0, 1)),
    ("transpose of two", lambda a: a.transpose(0, -1), lambda a: a.swapaxes(0, 2)),
    ("T", lambda a: a.T, lambda a: a.T),
    ("flip", lambda a: a.flip(0, -1), lambda a: np.flip(a, (0, 2))),
    ("flip of one", lambda a: a.flip(1), lambda a: np.flip(a, 1)),
    ("shrink", lambda a: a.shrink(((1, 3), None, (0, 2))), lambda a: a[1:3, :, :2]),
    ("squeeze", lambda a: a[:1].squeeze(), lambda a: a[0]),
    ("squeeze of one", lambda a: a[:1, :1].squeeze(1), lambda a: a[:1, 0]),
    ("squeeze of none", lambda a: a.squeeze(1), lambda a: a),
    ("unsqueeze", lambda a: a.unsqueeze(-1).unsqueeze(0), lambda a: a[None, ..., None]),
    ("flatten", lambda a: a.flatten(1), lambda a: a.reshape(4, 30)),
    ("flatten inside", lambda a: a.flatten(0, 1), lambda a: a.reshape(20, 6)),
    ("unflatten", lambda a: a.unflatten(2, (2, -1)), lambda a: a.reshape(4, 5, 2, 3)),
    ("shrink_to", lambda a: a.shrink_to(2, None, 3), lambda a: a[:2, :, :3]),
    ("pad_to", lambda a: a.pad_to(None, 7, 6), lambda a: np.pad(a, ((0, 0), (0, 2), (0, 0)))),
    ("repeat", lambda a: a.repeat(2, 1, 3), lambda a: np.tile(a, (2, 1, 3))),
    ("repeat in front", lambda a: a.repeat(2, 1, 1, 1), lambda a: np.tile(a, (2, 1, 1, 1))),
    ("repeat_interleave", lambda a: a.repeat_interleave(3, 1), lambda a: np.repeat(a, 3, 1)),
    ("repeat_interleave of all", lambda a: a.repeat_interleave(2), lambda a: np.repeat(a, 2)),
    ("unfold", lambda a: a.unfold(1, 3, 2), lambda a: windows(a, 1, 3, 2)),
    ("unfold at once", lambda a: a.unfold(0, 4, 1), lambda a: windows(a, 0, 4, 1)),
    ("rearrange", lambda a: a.rearrange("a b (c d) -> d (b a) c", d=2),
     lambda a: a.reshape(4, 5, 3, 2).transpose(3, 1, 0, 2).reshape(2, 20, 3)),
    ("rearrange dots", lambda a: a.rearrange("... c -> c ..."), lambda a: a.transpose(2, 0, 1)),
    ("rearrange into one", lambda a: a.rearrange("a ... -> (a ...) 1"),
     lambda a: a.reshape(120, 1)),
    ("roll", lambda a: a.roll(1, 0), lambda a: np.roll(a, 1, 0)),
    ("roll back", lambda a: a.roll(-2, 1), lambda a: np.roll(a, -2, 1)),
    ("roll of two", lambda a: a.roll((1, 8), (0, 2)), lambda a: np.roll(a, (1, 8), (0, 2))),
    ("roll of all", lambda a: a.roll(7), lambda a: np.roll(a, 7)),
    ("cat", lambda a: a.cat(Tensor(B), dim=1), lambda a: np.concatenate([a, B], 1)),
    ("cat of three", lambda a: a.cat(a, a, dim=-1), lambda a: np.concatenate([a, a, a], 2)),
    ("cat with nothing", lambda a: a.cat(a[:, :0], dim=1), lambda a: a),
    ("stack", lambda a: a.stack(a, a, dim=-1), lambda a: np.stack([a, a, a], -1)),
    ("stack of a list", lambda a: Tensor.stack(a[0], a[1]), lambda a: np.stack([a[0], a[1]])),
    ("cat promotes", lambda a: Tensor([1, 2]).cat(Tensor([0.5])), lambda a: np.array([1, 2, 0.5])),
    ("tril", lambda a: a.tril(1), lambda a: np.tril(a, 1)),
    ("triu", lambda a: a.triu(-1), lambda a: np.triu(a, -1)),
    ("triu of ints", lambda a: Tensor([[1, 2], [3, 4]]).triu(), lambda a: [[1, 2], [0, 4]]),
    ("diag", lambda a: a[0, 0].diag(), lambda a: np.diag(a[0, 0])),
    ("diagonal", lambda a: a.diagonal(), lambda a: np.diagonal(a)),
    ("diagonal above", lambda a: a.diagonal(2, 1, 2), lambda a: np.diagonal(a, 2, 1, 2)),
    ("diagonal below", lambda a: a.diagonal(-2, 1, 2), lambda a: np.diagonal(a, -2, 1, 2)),
    ("diagonal far off", lambda a: a.diagonal(9), lambda a: np.diagonal(a, 9)),
]  # fmt: skip


@pytest.mark.parametrize("name, move, want", MOVES, ids=[m[0] for m in MOVES])
def test_move(name: str, move: Any, want: Any) -> None:
    check_tensor(move(Tensor(A)), want(A), rtol=0, atol=0)


def test_no_op_makes_no_node() -> None:
    a = Tensor(A)
    assert a.reshape(4, 5, 6) is a
    assert a.permute(0, 1, 2) is a
    assert a.expand(4, -1, 6) is a
    assert a.shrink(((0, 4), None, (0, 6))) is a
    assert a.cast("float32") is a
    assert a.contiguous() is a


@pytest.mark.parametrize("dim, sizes, cuts", [(1, 2, [2, 4]), (2, [1, 3, 2], [1, 4]), (0, 4, [])])
def test_split(dim: int, sizes: Any, cuts: list[int]) -> None:
    got, want = Tensor(A).split(sizes, dim), np.split(A, cuts, dim)
    assert len(got) == len(want)
    for one, other in zip(got, want):
        check_tensor(one, other)


@pytest.mark.parametrize("chunks, sizes", [(2, [3, 2]), (4, [2, 2, 1]), (5, [1] * 5), (9, [1] * 5)])
def test_chunk(chunks: int, sizes: list[int]) -> None:
    assert [part.shape[1] for part in Tensor(A).chunk(chunks, 1)] == sizes


def test_meshgrid() -> None:
    for indexing in ("ij", "xy"):
        got = Tensor([1, 2, 3]).meshgrid(Tensor([4, 5]), indexing=indexing)
        for one, other in zip(got, np.meshgrid([1, 2, 3], [4, 5], indexing=indexing)):
            check_tensor(one, other)


MODES = {"constant": "constant", "reflect": "reflect", "replicate": "edge", "circular": "wrap"}


@pytest.mark.parametrize("pairs", [((0, 0), (0, 0), (1, 2)), ((0, 0), (3, 0), (2, 1))])
@pytest.mark.parametrize("mode", MODES)
def test_pad(mode: str, pairs: Any) -> None:
    check_tensor(Tensor(A).pad(pairs, mode=mode), np.pad(A, pairs, mode=MODES[mode]))


def test_pad_forms() -> None:
    a = Tensor(A)
    check_tensor(a.pad((1, 2)), np.pad(A, ((0, 0), (0, 0), (1, 2))))
    check_tensor(a.pad((1, 2, 0, 3)), np.pad(A, ((0, 0), (0, 3), (1, 2))))
    check_tensor(a.pad((None, (1, 1), None)), np.pad(A, ((0, 0), (1, 1), (0, 0))))
    check_tensor(a.pad((-1, 2, 2, -1)), np.pad(A[:, :4, 1:], ((0, 0), (2, 0), (0, 2))))
    check_tensor(
        a.pad((1, -2), value=-3.0), np.pad(A[..., :4], ((0, 0), (0, 0), (1, 0)), constant_values=-3)
    )
    check_tensor(a.pad((1, 1), value=-np.inf)[..., 0], np.full((4, 5), -np.inf))
    check_tensor(Tensor([1, 2]).pad((1, 0), value=7), [7, 1, 2], dtype="int32")
    check_tensor(Tensor([1, 2]).pad((2, 1), mode="circular"), np.pad([1, 2], (2, 1), mode="wrap"))


CREATED = [
    ("arange", Tensor.arange(5), np.arange(5), "int32"),
    ("arange from to", Tensor.arange(3, 10, 2), np.arange(3, 10, 2), "int32"),
    ("arange down", Tensor.arange(5, 0, -2), np.arange(5, 0, -2), "int32"),
    ("arange of floats", Tensor.arange(0, 1, 0.3), np.arange(0, 1, 0.3), "float32"),
    ("arange of halves", Tensor.arange(2049, 2052, dtype="float16"), [2048, 2050, 2052], "float16"),
    ("arange wide", Tensor.arange(2**33, 2**33 + 3, dtype="int64"), 2**33 + np.arange(3), "int64"),
    ("arange of none", Tensor.arange(4, 2), np.zeros(0), "int32"),
    ("linspace", Tensor.linspace(-1, 1, 7), np.linspace(-1, 1, 7), "float32"),
    ("linspace of one", Tensor.linspace(3, 5, 1), [3], "float32"),
    ("eye", Tensor.eye(3), np.eye(3), "float32"),
    ("eye of two sizes", Tensor.eye(2, 4, dtype="int32"), np.eye(2, 4), "int32"),
    ("full", Tensor.full((2, 3), 7), np.full((2, 3), 7), "int32"),
    ("full of bool", Tensor.full((2,), True), [True, True], "bool"),
    ("zeros", Tensor.zeros(2, 3), np.zeros((2, 3)), "float32"),
    ("zeros of ints", Tensor.zeros((2,), dtype="int8"), [0, 0], "int8"),
    ("ones", Tensor.ones(2, 0), np.ones((2, 0)), "float32"),
    ("ones_like", Tensor(A).ones_like(dtype="int32"), np.ones((4, 5, 6)), "int32"),
    ("zeros_like", Tensor([1, 2]).zeros_like(), [0, 0], "int32"),
    ("full_like", Tensor([1.0, 2]).full_like(4), [4, 4], "float32"),
]  # fmt: skip


@pytest.mark.parametrize("name, got, want, dtype", CREATED, ids=[c[0] for c in CREATED])
def test_create(name: str, got: Tensor, want: Any, dtype: str) -> None:
    check_tensor(got, want, dtype=dtype)


def test_constants_take_no_memory() -> None:
    assert Tensor.full((1000, 1000), 3.0).uop.base.op is Ops.CONST
    assert Tensor.zeros(4).realize().uop.base.op is Ops.CONST
    assert Tensor.zeros(4).contiguous().realize().uop.base.op is Ops.BUFFER


def test_empty_has_shape_and_memory() -> None:
    x = Tensor.empty(2, 3, dtype="int16")
    assert (x.shape, x.dtype) == ((2, 3), dtypes.int16)
    assert x.uop.base.op is Ops.BUFFER
    assert x.empty_like().uop.base is not x.uop.base


# symbolic sizes


def bound(name: str, value: int, least: int = 1, most: int = 10) -> UOp:
    """A variable with a value."""
    return Variable(name, least, most).bind(value)


def rows(n: UOp) -> Tensor:
    """The first rows of eight."""
    return Tensor.arange(24).reshape(8, 3)[:n].float()


SYMBOLIC = [
    ("slice and sum", lambda n: Tensor.arange(10)[:n].sum(), 3),
    ("int index", lambda n: Tensor.arange(10)[n], 3),
    ("window", lambda n: Tensor.arange(10)[n:n + 2], [3, 4]),
    ("from there", lambda n: Tensor.arange(10)[n:].sum(), 42),
    ("iota", lambda n: Tensor.arange(n).sum(), 3),
    ("value", lambda n: Tensor(n) + 1, 4),
    ("factor", lambda n: Tensor([1.0, 2.0]) * n, [3, 6]),
    ("rows", lambda n: Tensor.arange(40).reshape(10, 4)[:n].sum(0), [12, 15, 18, 21]),
    ("mean", lambda n: Tensor.arange(10)[:n].mean(), 1),
    ("reshape", lambda n: Tensor.arange(40).reshape(10, 4)[:n].reshape(-1).sum(), 66),
    ("there and back", lambda n: Tensor.arange(40).reshape(10, 4)[:n].reshape(-1).reshape(-1, 2)
     .max(0), [10, 11]),
    ("full", lambda n: Tensor.full((n, 2), 2.0).sum(), 12),
    ("cat", lambda n: rows(n).cat(rows(n), rows(n), dim=0).sum(0), [27, 36, 45]),
    ("pad_to", lambda n: rows(n).pad_to(4, 3), [[0, 1, 2], [3, 4, 5], [6, 7, 8], [0, 0, 0]]),
    ("pad", lambda n: rows(n).pad(((n, 1), None)).sum(0), [9, 12, 15]),
    ("var", lambda n: rows(n).var(0), [9, 9, 9]),
    ("argmax", lambda n: rows(n).argmax(0), [2, 2, 2]),
    ("expand", lambda n: rows(n).expand(2, n, 3).sum((0, 1)), [18, 24, 30]),
    ("beside an arange", lambda n: (rows(n) * Tensor.arange(n).reshape(n, 1)).sum(), 54),
    ("product", lambda n: rows(n).T @ rows(n), np.arange(9).reshape(3, 3).T @ np.arange(9)
     .reshape(3, 3)),
    ("max of masked", lambda n: (Tensor.arange(5) < n).where(1, 0).sum(), 3),
]  # fmt: skip


@pytest.mark.parametrize("name, make, want", SYMBOLIC, ids=[s[0] for s in SYMBOLIC])
def test_symbolic_sizes(name: str, make: Any, want: Any) -> None:
    check_tensor(make(bound("n", 3)), want)


def test_windows_of_no_elements() -> None:
    assert Tensor.zeros(3, 0).unfold(-1, 0, 1).numpy().shape == (3, 1, 0)
    assert Tensor.zeros(3, 4).unfold(-1, 0, 1).numpy().shape == (3, 5, 0)
