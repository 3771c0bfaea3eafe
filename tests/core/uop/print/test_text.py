"""Text of every stage parses back to the same objects, and says what is wrong when it does not."""

from __future__ import annotations

import math
import struct
from typing import Any

import pytest

from aster_ml.dtype import dtypes
from aster_ml.errors import FormatError, InternalError
from aster_ml.uop.node import MINUS_ONE, UOp
from aster_ml.uop.ops import (
    AxisType,
    BodyArg,
    DeviceArg,
    Memory,
    Ops,
    ReduceArg,
    ScatterArg,
    ScratchArg,
    StageArg,
)
from aster_ml.uop.print.infix import render_expr
from aster_ml.uop.print.text import linear_from_text, linear_to_text, parse, parse_all, to_text
from tests.core.linear_builder import LOCAL, LOOP, REDUCE, THREAD, UNROLL, UPCAST, Builder, at

F32, VOID = dtypes.float32, dtypes.void
R0, R1 = UOp.range(8, 0), UOp.range(6, 1)
N = UOp.variable("n", 1, 9)
BUFFER = UOp.new_buffer("CPU:1", 48, F32)
TABLE = BUFFER._mop(Ops.RESHAPE, (8, 6))
PARAM = UOp.param(2, 48, F32, "CPU")


def kernel() -> UOp:
    """A kernel that adds up rows."""
    k = UOp.range(6, 2, AxisType.REDUCE)
    total = UOp(Ops.REDUCE, F32, (PARAM.index(R0 * 6 + k).load(R0 < 7), k), ReduceArg(Ops.ADD))
    return UOp.sink(UOp.param(0, 8, F32).index(R0).store(total).end(R0))


GRAPHS: dict[str, UOp] = {
    "constant": UOp.const(dtypes.int8, -5),
    "true": UOp.const(dtypes.bool, True),
    "index": R0 * 6 + R1 // 2 % 4,
    "variable": (N.bind(3) < 4).where(N, R0),
    "buffer": TABLE,
    "param": PARAM,
    "movement": TABLE._mop(Ops.PAD, ((1, 0), (0, 2)))
    ._mop(Ops.FLIP, (1,))
    ._mop(Ops.PERMUTE, (1, 0)),
    "symbolic": BUFFER._mop(Ops.SHRINK, ((0, N),))
    ._mop(Ops.RESHAPE, (N, 1))
    ._mop(Ops.EXPAND, (N, N + 1)),
    "reduce": TABLE._rop(Ops.MAX, (0, 1)),
    "scatter": UOp(Ops.SCATTER, F32, (TABLE, UOp.range(4, 0)), ScatterArg(Ops.ADD, (9,))),
    "stage": UOp(Ops.STAGE, F32, (PARAM.index(R0).load(), R0), StageArg(Memory.LOCAL)),
    "stage on a device": UOp(Ops.STAGE, F32, (PARAM, R0), StageArg(Memory.GLOBAL, "CPU")),
    "copy": TABLE.copy_to("DISK:/tmp/a file, with (odd) = names#1")._mop(Ops.RESHAPE, (48,)),
    "quotes": TABLE.copy_to('it\'s "so" \\ # no comment'),
    "device": UOp(Ops.CONST, F32, (UOp(Ops.DEVICE, VOID, (), DeviceArg("CPU")),), 1.5),
    "marks": UOp(Ops.DETACH, F32, (UOp(Ops.CONTIGUOUS, F32, (TABLE,)),)),
    "assign": TABLE.after(TABLE.store(TABLE + 1.0)),
    "cast": TABLE.cast(dtypes.bfloat16).cast(dtypes.fp8e4m3).bitcast(dtypes.uint8),
    "where": (TABLE < 0.0).where(TABLE, 0.0),
    "iota": UOp(Ops.IOTA, dtypes.index, (N,)),
    "kernel": kernel(),
    "body": UOp(Ops.SINK, VOID, (PARAM.store(PARAM + 1.0),), BodyArg(1)),
    "scratch": UOp(Ops.DEFINE_LOCAL, F32, (), ScratchArg(3, 64)),
    "accumulator": UOp(
        Ops.ACCUMULATE,
        F32,
        (UOp(Ops.DEFINE_REG, F32, (UOp.const(F32, 0.0),), ScratchArg(0)), TABLE),
        Ops.ADD,
    ),
    "same node twice": TABLE * TABLE,
}


@pytest.mark.parametrize("u", GRAPHS.values(), ids=GRAPHS.keys())
def test_a_graph_parses_back_to_the_same_object(u: UOp) -> None:
    text = to_text(u)
    assert parse(text) is u, text
    assert to_text(parse(text)) == text


@pytest.mark.parametrize(
    "value", [0.0, -0.0, math.inf, -math.inf, math.nan, 0.1, 1e-320, 3.4028234663852886e38]
)
def test_floats_keep_their_bits(value: float) -> None:
    u = UOp.const(dtypes.float64, value)
    assert parse(to_text(u)) is u


def test_a_nan_keeps_its_payload() -> None:
    odd = struct.unpack("<d", struct.pack("<Q", 0x7FF8000000000123))[0]
    u = UOp.const(dtypes.float64, odd)
    assert u is not UOp.const(dtypes.float64, math.nan)
    assert "nan:7ff8000000000123" in to_text(u)
    assert parse(to_text(u)) is u


def test_a_node_is_a_line_that_reads() -> None:
    u = UOp(Ops.ADD, dtypes.index, (R0 * 6, R1))
    assert to_text(u) == (
        "%0 = CONST index 8\n"
        "%1 = RANGE index (%0) id=0 kind=LOOP\n"
        "%2 = CONST index 6\n"
        "%3 = MUL index (%1, %2)  # r0*6\n"
        "%4 = RANGE index (%2) id=1 kind=LOOP\n"
        "%5 = ADD index (%3, %4)  # r0*6+r1\n"
    )
    lines = to_text(kernel()).splitlines()
    assert any(" = REDUCE float32 (" in line and line.endswith(") op=ADD") for line in lines)
    assert any(line.endswith("PARAM float32 slot=2 size=48 device='CPU'") for line in lines)


def test_several_roots() -> None:
    a, b = TABLE + 1.0, TABLE * 2.0
    text = to_text(a, b, TABLE)
    assert parse_all(text) == [a, b, TABLE]
    with pytest.raises(FormatError, match="one root is wanted, there are 3"):
        parse(text)


def test_blank_lines_and_comments_are_nothing() -> None:
    text = "\n# a remark\n" + to_text(TABLE).replace("\n", "  # more\n\n")
    assert parse(text) is TABLE


def test_a_chain_of_any_depth() -> None:
    u = PARAM
    for _ in range(30_000):
        u = UOp(Ops.NEG, F32, (u,))
    assert parse(to_text(u)) is u


@pytest.mark.parametrize(
    "text, message",
    [
        ("", "no node in it"),
        ("%0 = CONST index", "line 1"),
        ("%0 = CONST index 1\n%1 = NEG index (%2)", "line 2: %2 is in no line above it"),
        ("%0 = NOTHING index 1", "line 1.*NOTHING"),
        ("%0 = CONST quaternion 1", "quaternion"),
        ("%0 = PARAM float32 slot=1", "size"),
        ("%0 = PARAM float32 place=1 size=2", "place"),
        ("what is this", "line 1: no node: 'what is this'"),
        ("%0 = RANGE index id=0 kind=SIDEWAYS", "SIDEWAYS"),
    ],
)
def test_what_does_not_read_is_named(text: str, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        parse(text)


def test_an_argument_without_written_form_is_an_error_of_ours() -> None:
    with pytest.raises(InternalError, match="has no written form"):
        to_text(UOp(Ops.NEG, F32, (PARAM,), object()))
    with pytest.raises(InternalError, match="is no RangeArg"):
        to_text(UOp(Ops.RANGE, dtypes.index, (UOp.index_const(2),), 7))


def program() -> Any:
    """A program with threads, a loop, lanes, an accumulator, a gate and a variable."""
    b = Builder("rows")
    out, table = b.param(8), b.param(64)
    n = b.variable("n", 1, 8)
    t = b.axis(n, THREAD)
    zero = UOp.const(F32, 0.0)
    lane = b.axis(2, UPCAST)
    acc = b.reg(zero, lane)
    k = b.axis(4, REDUCE)
    unrolled = b.axis(2, UNROLL)
    value = b.load(at(table, b.add(t * 8 + k * 2), lane * 4 + unrolled), b.add(k < 3))
    b.accumulate(acc, value, unrolled)
    b.end(k)
    b.store(at(out, t), b.reduce(acc, lane))
    b.end(t)
    return b.build()


def blocks() -> Any:
    """A program of work-groups with scratch and a barrier."""
    b = Builder("blocks")
    out, item = b.param(8), b.axis(8, LOCAL)
    local = b.local(8)
    first = b.store(at(local, item), UOp.const(F32, 1.0))
    barrier = b.add(UOp(Ops.BARRIER, VOID, (first,)))
    b.store(at(out, item), b.load(at(local.after(barrier), item)))
    loop = b.axis(3, LOOP)
    b.end(loop)
    return b.build()


@pytest.mark.parametrize("make", [program, blocks])
def test_a_linear_program_parses_back(make: Any) -> None:
    linear = make()
    text = linear_to_text(linear)
    again = linear_from_text(text)
    assert again == linear, text
    assert all(a is b for a, b in zip(again.uops, linear.uops, strict=True))
    assert again.thread is linear.thread
    assert linear_to_text(again) == text


def test_a_linear_program_shows_its_loops_and_what_is_read_inline() -> None:
    lines = linear_to_text(program()).splitlines()
    assert lines[0] == "kernel rows"
    load = next(line for line in lines if " = LOAD " in line)
    end = next(line for line in lines if " = END " in line)
    assert load.startswith("      %")
    assert end.startswith("    %")
    assert any(":= INDEX" in line for line in lines)


@pytest.mark.parametrize(
    "text, message",
    [
        ("kernel k\n  nonsense", "line 2: unknown kind of line: 'nonsense'"),
        ("kernel k\n", "needs a line for params, variables, written"),
        ("kernel k\n  params (%3)", "line 2: %3 is in no line above it"),
    ],
)
def test_a_damaged_program_is_named(text: str, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        linear_from_text(text)


@pytest.mark.parametrize(
    "u, expected",
    [
        ((R0 * 3 + R1) // 4, "(r0*3+r1)//4"),
        (UOp(Ops.ADD, dtypes.index, (R0, UOp.index_const(-17))), "r0-17"),
        (
            UOp(Ops.ADD, dtypes.index, (R0, UOp(Ops.MUL, dtypes.index, (R1 + 1, MINUS_ONE)))),
            "r0-(r1+1)",
        ),
        (R0 * (R1 + 1), None),
        (UOp(Ops.SUB, dtypes.index, (R0, UOp(Ops.ADD, dtypes.index, (R1, N)))), "r0-(r1+n)"),
        ((R0 < 4) & (R1.ne(3)), "r0 < 4 & r1 != 3"),
        (((R0 < 4) | (R1 < 3)).logical_not(), "not (r0 < 4 | r1 < 3)"),
        ((R0 < 4).where(R0 + 1, R1), "r0+1 if r0 < 4 else r1"),
        ((R0 < 4).where(R0, R1) * 2, "(r0 if r0 < 4 else r1)*2"),
        (R0.maximum(R1 - 3), None),
        (R0.cast(dtypes.int32), "int32(r0)"),
        (PARAM.index(R0 * 2).load(), "p2[r0*2]"),
        (PARAM.index(R0).load(R0 < 3), "load(p2[r0], r0 < 3)"),
        (N.bind(3) * 2, "(n=3)*2"),
        (UOp(Ops.NEG, F32, (UOp.const(F32, -1.5),)), "--1.5"),
        (R0 % 4 % 3, "r0%4%3"),
        (UOp(Ops.MUL, dtypes.index, (R0, R1 % 4)), "r0*(r1%4)"),
    ],
)
def test_expressions_for_people(u: UOp, expected: str | None) -> None:
    shown = render_expr(u)
    if expected is None:
        names = {"r0": 3, "r1": 5, "max": max}
        total = ast_value(shown, names)
        assert total == {Ops.MUL: 18, Ops.MAX: 3}[u.op], shown
    else:
        assert shown == expected


def ast_value(text: str, names: dict[str, Any]) -> Any:
    """The value of Python arithmetic, without running it as a program."""
    import ast
    import operator

    ops = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul}

    def value(node: ast.AST) -> Any:
        if isinstance(node, ast.Expression):
            return value(node.body)
        if isinstance(node, ast.BinOp):
            return ops[type(node.op)](value(node.left), value(node.right))
        if isinstance(node, ast.Call):
            return value(node.func)(*[value(a) for a in node.args])
        if isinstance(node, ast.Name):
            return names[node.id]
        assert isinstance(node, ast.Constant)
        return node.value

    return value(ast.parse(text, mode="eval"))


def test_a_shared_expression_does_not_explode() -> None:
    u = PARAM.index(R0).load()
    for _ in range(100):
        u = u * u
    assert len(render_expr(u)) < 2100
