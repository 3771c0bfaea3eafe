"""Dtype, shape and bounds of nodes; bounds hold for every value that an op can give."""

from __future__ import annotations

import random
from typing import Any

import pytest

from aster_ml.dtype import DType, dtypes
from aster_ml.errors import DTypeError, ShapeError
from aster_ml.uop.evaluate import evaluate
from aster_ml.uop.infer import check_reshape, show_shape
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import COMPARE, AxisType, Ops, ReduceArg, VarArg

F32, INDEX, BOOL = dtypes.float32, dtypes.index, dtypes.bool
TABLE = UOp.new_buffer("CPU", 48, F32)._mop(Ops.RESHAPE, (8, 6))
N = UOp.variable("n", 1, 9)

WHOLE_OPS = [
    Ops.ADD,
    Ops.SUB,
    Ops.MUL,
    Ops.MAX,
    Ops.IDIV,
    Ops.MOD,
    Ops.AND,
    Ops.OR,
    Ops.XOR,
    Ops.SHL,
    Ops.SHR,
    Ops.CMPLT,
    Ops.CMPNE,
    Ops.CMPEQ,
]
BOOL_OPS = [Ops.ADD, Ops.MUL, Ops.MAX, Ops.AND, Ops.OR, Ops.XOR, Ops.CMPLT, Ops.CMPNE, Ops.CMPEQ]


def variable(name: str, dtype: DType, rng: random.Random) -> UOp:
    """A variable of a dtype with bounds near 0 or anywhere."""
    least, most = (-20, 20) if dtype is INDEX else (int(dtype.min), int(dtype.max))
    near = rng.random() < 0.5
    ends = [
        rng.randint(max(least, -6 if near else least), min(most, 6 if near else most))
        for _ in range(2)
    ]
    low, high = sorted(bool(e) if dtype is BOOL else e for e in ends)
    return UOp(Ops.DEFINE_VAR, dtype, (), VarArg(name, low, high))


def values_of(u: UOp, rng: random.Random) -> Any:
    """A value within the bounds of a variable."""
    value = rng.choice([u.arg.min, u.arg.max, rng.randint(u.arg.min, u.arg.max)])
    return bool(value) if u.dtype is BOOL else int(value)


@pytest.mark.parametrize(
    "op, dtype",
    [(op, d) for d in (INDEX, dtypes.int8, dtypes.uint8) for op in WHOLE_OPS]
    + [(op, BOOL) for op in BOOL_OPS],
    ids=lambda x: x.name,
)
def test_bounds_hold(op: Ops, dtype: DType) -> None:
    rng = random.Random(f"{op} {dtype}")
    tight = 0
    for _ in range(400):
        x, y = variable("x", dtype, rng), variable("y", dtype, rng)
        u = UOp(op, BOOL if op in COMPARE else dtype, (x, y))
        low, high = u.bounds
        tight += (low, high) != (u.dtype.min, u.dtype.max)
        for _ in range(8):
            a, b = values_of(x, rng), values_of(y, rng)
            value = evaluate(op, u.dtype, (a, b), (dtype, dtype))
            assert low <= value <= high, f"{x.arg} {op.name} {y.arg}: {a}, {b} give {value}"
    known = op not in (Ops.XOR, Ops.SHL, Ops.SHR, Ops.OR, Ops.AND)
    assert tight > 0 or not known


def test_bounds_of_choices() -> None:
    r = UOp.range(8, 0)
    assert (r < 3).where(r, UOp.index_const(2)).bounds == (0, 2)
    assert (r < 3).where(UOp.index_const(2), r).bounds == (2, 7)
    assert r.minimum(5).bounds == (0, 5)
    assert (r - 3).maximum(0).bounds == (0, 4)
    assert (UOp.index_const(2) < r).where(r - 3, UOp.index_const(0)).bounds == (0, 4)
    assert (UOp.index_const(2) < r).where(UOp.index_const(0), r - 3).bounds == (-3, 0)
    # A condition on something else tells nothing.
    assert (N < 3).where(r, UOp.index_const(2)).bounds == (0, 7)


def test_bounds_that_may_be_left_are_unknown() -> None:
    x = UOp.variable("x", 0, 100, dtypes.int8)
    assert (x + x).bounds == (-128, 127)
    assert (x.cast(dtypes.int16) + 1).bounds == (1, 101)
    assert UOp.variable("y", -1, 1, dtypes.int32).cast(dtypes.uint8).bounds == (0, 255)
    assert (TABLE < 0.0).bounds == (False, True)


def test_bounds_of_leaves() -> None:
    assert UOp.range(8, 0).bounds == (0, 7)
    assert UOp.range(N, 0).bounds == (0, 8)
    assert N.bind(3).bounds == (1, 9)
    assert UOp.const(F32, 2.5).bounds == (2.5, 2.5)
    assert TABLE.cast(dtypes.uint8).bounds == (0, 255)


@pytest.mark.parametrize(
    "u, shape",
    [
        (TABLE + 1.0, (8, 6)),
        (TABLE._mop(Ops.PERMUTE, (1, 0)), (6, 8)),
        (TABLE._mop(Ops.PAD, ((1, 2), (0, 3))), (11, 9)),
        (TABLE._mop(Ops.SHRINK, ((1, 4), (0, 6))), (3, 6)),
        (TABLE._mop(Ops.FLIP, (0,)), (8, 6)),
        (TABLE._mop(Ops.RESHAPE, (48, 1))._mop(Ops.EXPAND, (48, 5)), (48, 5)),
        (TABLE._rop(Ops.ADD, (1,)), (8, 1)),
        (TABLE._mop(Ops.RESHAPE, (N, 1)), (N, 1)),
        (TABLE._mop(Ops.SHRINK, ((0, N), (1, 6))), (N, 5)),
        (TABLE._mop(Ops.PAD, ((0, N), (0, 0))), (N + 8, 6)),
        (TABLE.bitcast(dtypes.int32), (8, 6)),
        (UOp(Ops.BITCAST, dtypes.uint8, (TABLE,)), (8, 24)),
        (TABLE.after(TABLE.store(TABLE)), (8, 6)),
        (TABLE.store(TABLE), None),
        (UOp.sink(TABLE), None),
        (TABLE.index(UOp.index_const(1), UOp.index_const(2)), ()),
        (UOp(Ops.STAGE, F32, (TABLE, UOp.range(4, 0), UOp.range(N, 1))), (4, N)),
    ],
)
def test_shapes(u: UOp, shape: Any) -> None:
    assert u.shape == shape


def test_kernel_reductions_are_scalars() -> None:
    k = UOp.range(4, 0, AxisType.REDUCE)
    assert UOp(Ops.REDUCE, F32, (k.cast(F32), k), ReduceArg(Ops.ADD)).shape == ()


def test_shapes_that_differ_are_named() -> None:
    flipped = TABLE._mop(Ops.PERMUTE, (1, 0))
    with pytest.raises(ShapeError, match=r"add: shapes \[8,6\] and \[6,8\] differ"):
        _ = (TABLE + flipped).shape
    with pytest.raises(ShapeError, match=r"reshape: \[8,6\] has 48 elements, \[7,7\] has 49"):
        check_reshape((8, 6), (7, 7))
    assert check_reshape((8, 6), (48,)) is None


def test_symbolic_sizes_show_their_expression() -> None:
    assert show_shape((3, N, N * 2 + 1)) == "[3,n,n*2+1]"
    assert show_shape(()) == "[]"


@pytest.mark.parametrize(
    "op, src, message",
    [
        (Ops.ADD, (TABLE, TABLE.cast(dtypes.int32)), "add: dtypes differ .float32, int32.; cast"),
        (Ops.WHERE, (TABLE, TABLE, TABLE), "where: the condition is float32; bool is wanted"),
    ],
)
def test_dtypes_that_do_not_mix_are_named(op: Ops, src: tuple[UOp, ...], message: str) -> None:
    with pytest.raises(DTypeError, match=message):
        src[0].alu(op, *src[1:])


def test_dtypes_of_results() -> None:
    assert (TABLE < 0.0).dtype is BOOL
    assert (TABLE < 0.0).where(TABLE, TABLE).dtype is F32
    x = UOp.variable("x", 0, 9, dtypes.int32)
    assert x.alu(Ops.SHL, UOp.const(dtypes.uint8, 3)).dtype is dtypes.int32


def test_devices() -> None:
    assert (UOp.const(F32, 1.0) + TABLE).device == "CPU"
    assert TABLE.copy_to("CPU:1").device == "CPU:1"
    assert UOp.const(F32, 1.0).device is None
