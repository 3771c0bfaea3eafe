"""Nodes: one object for one value, freed when unused, of any depth; index arithmetic folds."""

from __future__ import annotations

import gc
import math
import os
import pickle
import subprocess
import sys
from typing import Any

import pytest

from aster_ml.dtype import dtypes
from aster_ml.errors import ArgumentError, InternalError, ShapeError
from aster_ml.uop.interned import NODES
from aster_ml.uop.node import (
    UOp,
    Variable,
    need,
    need_int_shape,
    resolve,
    same_shape,
    smax,
    smin,
    to_sint,
)
from aster_ml.uop.ops import AxisType, Ops, ReduceArg

F32, I32, INDEX, BOOL = dtypes.float32, dtypes.int32, dtypes.index, dtypes.bool
R0, R1 = UOp.range(8, 0), UOp.range(6, 1)
N = Variable("n", 1, 9)


def test_the_same_value_is_the_same_object() -> None:
    assert UOp.range(8, 0) is R0
    assert UOp.const(F32, 1.5) + 2.0 is UOp.const(F32, 1.5) + 2.0
    assert UOp.range(8, 1) is not R0
    assert UOp.range(8, 0, AxisType.REDUCE) is not R0


def test_five_constants_that_are_equal_in_python_differ() -> None:
    found = {
        UOp.const(I32, 1),
        UOp.const(BOOL, True),
        UOp.const(F32, 1.0),
        UOp.const(F32, 0.0),
        UOp.const(F32, -0.0),
    }
    assert len(found) == 5
    assert UOp.const(F32, math.nan) is UOp.const(F32, float("nan"))


def test_unused_nodes_leave_the_table() -> None:
    gc.collect()
    before = len(NODES)
    u = UOp.variable("held by nobody else", 0, 3) * 5 + 1
    assert len(NODES) > before
    del u
    gc.collect()
    assert len(NODES) <= before


def test_a_chain_of_any_depth_is_inferred_and_freed() -> None:
    gc.collect()
    before = len(NODES)
    u = UOp.variable("deep", 0, 3, I32)
    for _ in range(100_000):
        u = UOp(Ops.NEG, I32, (u,))
    assert u.shape == ()
    assert u.ranges == frozenset()
    assert u.bounds == (I32.min, I32.max)
    assert len(u.digest) == 16
    assert u.device is None
    del u
    gc.collect()
    assert len(NODES) <= before + 10


def test_a_digest_is_the_same_in_every_process() -> None:
    program = (
        "from aster_ml.uop.node import UOp\n"
        "from aster_ml.dtype import dtypes\n"
        "r = UOp.range(8, 0)\n"
        "print(((r * 3 + 1).cast(dtypes.float32) * -0.5).key)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONHASHSEED": "7", "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.stdout.strip() == ((R0 * 3 + 1).cast(F32) * -0.5).key


def test_digests_tell_what_differs() -> None:
    keys = [
        u.key
        for u in (
            R0,
            R1,
            R0 + R1,
            R0 * R1,
            R0 + 1,
            R0 + 2,
            UOp.const(F32, 0.0),
            UOp.const(F32, -0.0),
            UOp.const(dtypes.float64, 0.0),
        )
    ]
    assert len(set(keys)) == len(keys)


@pytest.mark.parametrize(
    "u, expected",
    [
        (UOp.index_const(3) + 4, UOp.index_const(7)),
        (UOp.index_const(-7) // 2, UOp.index_const(-4)),
        (UOp.index_const(-7) % 4, UOp.index_const(1)),
        (R0 + 0, R0),
        (0 + R0, R0),
        (R0 * 1, R0),
        (R0 * 0, UOp.index_const(0)),
        (R0 // 1, R0),
        (R0 % 1, UOp.index_const(0)),
        ((R0 + 2) + 3, R0 + 5),
        ((R0 * 2) * 3, R0 * 6),
        (R0 + R1, R1 + R0),
        (R0 * R1, R1 * R0),
        (2 + R0, R0 + 2),
        (R0 - 2, R0 + -2),
        (R0 < 8, UOp.const(BOOL, True)),
        (R0.maximum(-1), R0),
        ((R0 + 8).minimum(R0), R0),
    ],
)
def test_index_arithmetic_folds_as_it_is_built(u: UOp, expected: UOp) -> None:
    assert u is expected


def test_division_by_a_constant_zero_stays() -> None:
    assert (UOp.index_const(3) // 0).op is Ops.IDIV


def test_float_arithmetic_does_not_fold() -> None:
    assert (UOp.const(F32, 1.0) + 2.0).op is Ops.ADD


def test_ranges_are_what_a_value_changes_with() -> None:
    k = UOp.range(4, 2, AxisType.REDUCE)
    load = UOp.param(0, 48, F32).index(R0 * 6 + k).load()
    assert load.ranges == {R0, k}
    total = UOp(Ops.REDUCE, F32, (load, k), ReduceArg(Ops.ADD))
    assert total.ranges == {R0}
    stored = UOp.param(1, 8, F32).index(R0).store(total)
    assert stored.end(R0).ranges == frozenset()
    assert stored.end() is stored
    inner = UOp.range(R0 + 1, 5)
    assert (inner + 1).ranges == {inner, R0}


def test_variables() -> None:
    assert Variable("n", 1, 9) is N
    assert N.bind(3).unbind() == (N, 3)
    assert N.bind(3).val == 3
    with pytest.raises(ArgumentError, match="bind: n takes 1 to 9, given 12"):
        N.bind(12)
    with pytest.raises(ArgumentError, match="only a Variable takes a value"):
        R0.bind(2)
    with pytest.raises(ArgumentError, match="is not bound"):
        N.unbind()
    with pytest.raises(ArgumentError, match="the least value 3 is above the greatest, 2"):
        Variable("m", 3, 2)
    with pytest.raises(ArgumentError, match="bounds are ints, given 'a' and 2"):
        Variable("m", "a", 2)  # type: ignore[arg-type]


def test_truth_is_refused_where_it_is_open() -> None:
    assert bool(R0 < 8)
    assert not bool(R0 < 0)
    with pytest.raises(ArgumentError, match="may be true or false"):
        bool(R0 < 3)
    assert resolve(R0 < 3) is True
    assert resolve(R0 < 3, False) is False
    assert resolve(R0 < 8, False) is True
    assert resolve(1 == 2) is False
    with pytest.raises(TypeError, match="not a sequence"):
        list(R0)


def test_unequal_is_a_value_and_equal_is_sameness() -> None:
    n, m = UOp.variable("n", 1, 10), UOp.variable("m", 1, 10)
    assert (n != m) is n.ne(m)
    assert (n != 3) is (3 != n) is n.ne(3)
    assert (n == n) is True
    assert (n == m) is False
    assert (n == 3) is False
    assert not n != n
    assert bool(n != 11) is True
    assert bool(UOp.const(dtypes.int32, 3) != UOp.const(dtypes.int32, 3)) is False
    for other in (None, "n", (), (n,)):
        assert (n != other) is True
    assert (n, 2) != (m, 2)
    assert not (n, 2) != (n, 2)
    with pytest.raises(ArgumentError, match="may be true or false"):
        bool(n != 3)


def test_sizes() -> None:
    assert smax(3, 5) == 5
    assert smin(3, 5) == 3
    assert smax([3, 5]) == 5
    assert smax(N, 9) == 9
    assert smin(N, 9) is N
    assert to_sint(UOp.index_const(4)) == 4
    assert to_sint(N) is N
    assert same_shape((2, N), (2, N))
    assert not same_shape((2, N), (2, N + 1))
    assert not same_shape((2,), (2, 2))
    assert need_int_shape((2, 3), "x") == (2, 3)
    with pytest.raises(ShapeError, match=r"x: size .* is symbolic"):
        need_int_shape((2, N), "x")


def test_movement_keeps_symbolic_sizes_as_sources() -> None:
    table = UOp.new_buffer("CPU", 48, F32)
    u = table._mop(Ops.SHRINK, ((0, N),))._mop(Ops.RESHAPE, (N, 1))._mop(Ops.EXPAND, (N, N * 2))
    assert u.arg == (None, None)
    assert u.marg == (N, N * 2)
    assert u.shape == (N, N * 2)
    assert u.base is table
    assert table._mop(Ops.RESHAPE, (UOp.index_const(6), 8)).arg == (6, 8)


def test_where_takes_numbers_and_drops_a_choice_of_equals() -> None:
    assert (R0 < 3).where(1, R0) is (R0 < 3).where(UOp.index_const(1), R0)
    assert (R0 < 3).where(R0, R0) is R0


def test_casts_to_the_same_dtype_are_nothing() -> None:
    u = UOp.const(F32, 1.0)
    assert u.cast(F32) is u
    assert u.cast("float32") is u
    assert u.bitcast(F32) is u
    assert u.cast("int").dtype is I32


def test_replace_and_repr() -> None:
    u = R0 + R1
    assert u.replace(op=Ops.MUL) is UOp(Ops.MUL, INDEX, u.src)
    assert repr(UOp.const(F32, 1.5)) == "<CONST float32 1.5 of 0>"
    assert repr(UOp.sink(u)) == "<SINK of 1>"


def test_need() -> None:
    assert need(True, "never") is None
    with pytest.raises(InternalError, match="always"):
        need(False, "always")


def test_new_buffers_are_unlike_any_other() -> None:
    found: set[Any] = {UOp.new_buffer("CPU", 4, F32) for _ in range(3)}
    assert len(found) == 3


def test_a_tag_marks_a_node_and_changes_no_value() -> None:
    u = UOp.variable("marked", 0, 3, I32)
    assert u.tag is None
    marked = u.rtag("x")
    assert (marked.tag, marked.op, marked.dtype, marked.arg) == ("x", u.op, u.dtype, u.arg)
    assert marked is not u
    assert marked is u.replace(tag="x")
    assert marked.rtag(None) is u
    assert u.rtag().tag is True
    assert UOp(Ops.CONST, I32, (), 3, 7).tag == 7
    assert UOp(Ops.CONST, I32, arg=3, tag=7) is UOp(Ops.CONST, I32, (), 3, 7)
    assert pickle.loads(pickle.dumps(marked)) is marked
    assert "tag='x'" in str(marked)


def test_a_stretch_of_an_axis() -> None:
    x = UOp.param(0, 12, dtypes.float32)._mop(Ops.RESHAPE, (3, 4))
    assert x.stretch(1, 1, 3) is x._mop(Ops.SHRINK, ((0, 3), (1, 3)))
    assert x.stretch(1, 1, 3).shape == (3, 2)
    assert x.stretch(0, 0, 3) is x


def test_a_node_of_one_value_is_a_number() -> None:
    assert int(UOp.const(dtypes.int32, 3)) == 3
    assert float(UOp.const(dtypes.float32, 2.5)) == 2.5
    i = UOp.variable("i", 0, 9)
    with pytest.raises(ArgumentError, match=r"int: i is no number yet .*between 0 and 9"):
        int(i)


def test_arguments_of_a_size_or_of_a_shape() -> None:
    flat = UOp.param(1, 12, dtypes.float32, "CPU")
    assert UOp.param(1, dtypes.float32, 12, "CPU") is flat
    assert UOp.param(1, dtypes.float32, (12,), "CPU") is flat
    shaped = UOp.param(1, dtypes.float32, (3, 4), "CPU")
    assert shaped.shape == (3, 4)
    assert shaped.base is flat
    assert UOp.param(0, dtypes.int32).shape == ()


def test_conditions_are_decided_in_simplest_form() -> None:
    n = UOp.variable("n", 1, 40)
    assert not (n * 16 - n * 16 < 0)
    assert not (n * -32 + (n * 32 - 2) // 2 * 2 + 2 < 0)
    assert int(n * 4 - (n * 2 + 3) * 2) == -6
    with pytest.raises(ArgumentError, match="may be true or false"):
        bool(n * 32 + (n * 32 - 3) // 3 * -3 < 4)
