"""Each stage takes what it should and names the rule that a wrong node breaks."""

from __future__ import annotations

from typing import Any

import pytest

from aster_ml.dtype import dtypes
from aster_ml.errors import InternalError
from aster_ml.uop.linear import Linear
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import AxisType, DeviceArg, Ops, ReduceArg, ScratchArg
from aster_ml.uop.spec.verify import verify
from tests.core.linear_builder import Builder, at
from tests.core.uop.print.test_text import blocks, kernel, program

F32, I32, INDEX, BOOL, VOID = (dtypes.float32, dtypes.int32, dtypes.index, dtypes.bool, dtypes.void)
TABLE = UOp.new_buffer("CPU", 48, F32)._mop(Ops.RESHAPE, (8, 6))
R0, R1 = UOp.range(8, 0), UOp.range(6, 1)
P, Q = UOp.param(0, 48, F32), UOp.param(1, 48, F32)
N = UOp.variable("n", 1, 9)


@pytest.mark.parametrize(
    "u",
    [
        TABLE,
        TABLE + 1.0,
        TABLE._mop(Ops.PAD, ((1, 2), (0, 0)))
        ._mop(Ops.SHRINK, ((0, 4), (1, 6)))
        ._mop(Ops.FLIP, (0,)),
        TABLE._mop(Ops.RESHAPE, (8, 1, 6))._mop(Ops.EXPAND, (8, 5, 6))._rop(Ops.ADD, (0, 2)),
        TABLE._mop(Ops.SHRINK, ((0, N.bind(3)), (0, 6))),
        TABLE.index(UOp.range(8, 0), UOp.index_const(3)),
        TABLE.after(TABLE.store(TABLE * 2.0)),
        TABLE.copy_to("CPU:1"),
        UOp(Ops.CONST, F32, (UOp(Ops.DEVICE, VOID, (), DeviceArg("CPU")),), 1.0),
        TABLE.cast(I32).bitcast(F32),
        UOp.sink(TABLE.store(TABLE)),
    ],
)
def test_values_of_the_tensor_stage(u: UOp) -> None:
    leaves = [s for s in u.src if s.op is Ops.RANGE]
    if leaves:  # ranges are no tensors; an index stands in
        u = UOp(u.op, u.dtype, (u.src[0], *[UOp.index_const(1)] * (len(u.src) - 1)), u.arg)
    assert verify(u, "tensor") is None


@pytest.mark.parametrize(
    "u, message",
    [
        (UOp.range(3, 0), "there is no RANGE at this stage"),
        (UOp(Ops.ADD, F32, (TABLE,)), "as many sources as its op takes"),
        (UOp(Ops.ADD, F32, (TABLE, TABLE.cast(I32))), "the dtypes of its sources go together"),
        (UOp(Ops.CMPLT, F32, (TABLE, TABLE)), "the dtypes of its sources go together"),
        (UOp(Ops.WHERE, F32, (TABLE, TABLE, TABLE)), "the dtypes of its sources go together"),
        (UOp(Ops.ADD, F32, (TABLE, TABLE._mop(Ops.PERMUTE, (1, 0)))), "it has a shape.*differ"),
        (UOp(Ops.RESHAPE, F32, (TABLE,), (7, 7)), "keeps the number of elements"),
        (UOp(Ops.RESHAPE, I32, (TABLE,), (48,)), "its dtype is that of its first source"),
        (UOp(Ops.EXPAND, F32, (TABLE,), (8, 12)), "changes axes of size 1 alone"),
        (UOp(Ops.PERMUTE, F32, (TABLE,), (0, 0)), "names every axis once"),
        (UOp(Ops.PAD, F32, (TABLE,), ((-1, 0), (0, 0))), "no negative number"),
        (UOp(Ops.PAD, F32, (TABLE,), ((1, 0),)), "a pair for each axis"),
        (UOp(Ops.SHRINK, F32, (TABLE,), ((0, 9), (0, 6))), "0 <= start <= stop <= size"),
        (UOp(Ops.SHRINK, F32, (TABLE,), ((4, 3), (0, 6))), "0 <= start <= stop <= size"),
        (UOp(Ops.FLIP, F32, (TABLE,), (2,)), "names axes that there are"),
        (UOp(Ops.REDUCE, F32, (TABLE,), ReduceArg(Ops.ADD, (2,))), "names axes that there are"),
        (UOp(Ops.REDUCE, F32, (TABLE,), ReduceArg(Ops.SUB, (0,))), "its op is associative"),
        (UOp(Ops.REDUCE, F32, (TABLE,), Ops.ADD), "of the type for its op"),
        (UOp(Ops.INDEX, F32, (TABLE, UOp.index_const(0))), "one index an axis"),
        (UOp(Ops.INDEX, F32, (TABLE, *[UOp.const(I32, 0)] * 2)), "of dtype index"),
        (UOp(Ops.CONST, F32, (), 1), "a Python number of its dtype"),
        (UOp(Ops.CONST, dtypes.int8, (), 300), "a Python number of its dtype"),
        (UOp(Ops.BIND, INDEX, (N, UOp.index_const(12))), "within the bounds of the variable"),
        (UOp(Ops.STORE, VOID, (TABLE, TABLE.cast(I32))), "the dtype of the target"),
        (UOp(Ops.STORE, VOID, (TABLE, TABLE._mop(Ops.PERMUTE, (1, 0)))), "the shape of the target"),
        (UOp(Ops.AFTER, F32, (TABLE, TABLE)), "what it waits for are effects"),
        (UOp(Ops.DETACH, F32, (TABLE, TABLE)), "it has one source"),
        (UOp(Ops.CUSTOM_GRADIENT, F32, (TABLE, TABLE)), "pairs of a source and the derivative"),
        (UOp(Ops.PERMUTE, F32, (TABLE,), None), "names every axis once"),
    ],
)
def test_what_the_tensor_stage_refuses(u: UOp, message: str) -> None:
    with pytest.raises(InternalError, match=f"^tensor stage: %.*{message}"):
        verify(UOp.sink(u) if u.dtype is VOID else u, "tensor")


def stored(value: UOp, *ranges: UOp, flat: Any = None) -> UOp:
    """A kernel that stores this value."""
    return UOp.sink(P.index(R0 if flat is None else flat).store(value).end(*(ranges or (R0,))))


def test_kernels() -> None:
    assert verify(kernel(), "kernel") is None
    assert verify([kernel(), stored(Q.index(R0).load(R0 < 3) + 1.0)], "kernel") is None
    local = UOp(Ops.DEFINE_LOCAL, F32, (), ScratchArg(0, 8))
    filled = UOp(Ops.BARRIER, VOID, (local.index(R0).store(Q.index(R0).load()),))
    assert verify(stored(local.after(filled).index(R0).load()), "kernel") is None
    block = UOp.range(8, 0, AxisType.GLOBAL)
    assert verify(UOp.sink(P.index(block).store(UOp.const(F32, 0.0))), "kernel") is None


K = UOp.range(6, 2, AxisType.REDUCE)
LOAD = Q.index(R0).load()


@pytest.mark.parametrize(
    "root, message",
    [
        (LOAD, "the root is a SINK"),
        (stored(TABLE), "there is no BUFFER at this stage|the value is a scalar"),
        (stored(LOAD, R0, flat=R0 * 6 + R1), "every range is closed"),
        (stored(Q.index(R1).load()), "every range is closed"),
        (UOp.sink(P.index(R0).store(LOAD).end(R0, R0)), "closes ranges, each once"),
        (UOp.sink(UOp(Ops.END, VOID, (P.index(R0).store(LOAD), LOAD))), "closes ranges"),
        (UOp.sink(UOp(Ops.END, VOID, (LOAD, R0))), "it ends a STORE"),
        (UOp.sink(LOAD), "holds stores and their ends"),
        (stored(UOp(Ops.REDUCE, F32, (LOAD,), ReduceArg(Ops.ADD))), "folds over ranges"),
        (stored(UOp(Ops.REDUCE, F32, (LOAD, K), ReduceArg(Ops.ADD, (0,)))), "names no axes"),
        (
            stored(UOp(Ops.REDUCE, F32, (LOAD, R0), ReduceArg(Ops.ADD))),
            "closed by a REDUCE and by an END",
        ),
        (stored(Q.index(R0, R1).load(), R0, R1), "one flat index, of dtype index"),
        (stored(Q.index(R0.cast(I32)).load()), "one flat index, of dtype index"),
        (stored(UOp(Ops.LOAD, F32, (Q,))), "it reads an INDEX"),
        (stored(UOp(Ops.LOAD, F32, (Q.index(R0), R0))), "its gate, if any, is a bool"),
        (stored(UOp(Ops.INDEX, F32, (LOAD, R0)).load()), "indexes a PARAM, a DEFINE_LOCAL"),
        (stored(LOAD.cast(I32)), "the dtype of what it writes to"),
        (UOp.sink(P.index(R0).store(LOAD, R0).end(R0)), "its gate, if any, is a bool"),
        (UOp.sink(UOp(Ops.STORE, VOID, (P, LOAD)).end(R0)), "it writes to an INDEX"),
        (stored(N.bind(3).cast(F32)), "there is no BIND at this stage"),
        (stored(UOp(Ops.NEG, F32, (Q,))), "it is a scalar"),
        (
            stored(UOp.const(F32, 0.0), UOp(Ops.RANGE, INDEX, (UOp.index_const(-1),), R0.arg)),
            "its size may be 0 or more",
        ),
    ],
)
def test_what_the_kernel_stage_refuses(root: UOp, message: str) -> None:
    with pytest.raises(InternalError, match=f"^kernel stage: .*({message})"):
        verify(root, "kernel")


@pytest.mark.parametrize("make", [program, blocks])
def test_linear_programs(make: Any) -> None:
    assert verify(make(), "linear") is None


def changed(linear: Linear, uops: list[UOp], **fields: Any) -> Linear:
    """The program with another list."""
    return Linear(
        linear.name,
        tuple(uops),
        linear.params,
        linear.variables,
        fields.get("written", linear.written),
        linear.thread,
    )


def position(uops: list[UOp], op: Ops) -> int:
    """Where the first node of an op stands."""
    return next(i for i, u in enumerate(uops) if u.op is op)


def swap_ends(uops: list[UOp]) -> list[UOp]:
    """Closes the outer loop first."""
    ends = [i for i, u in enumerate(uops) if u.op is Ops.END]
    uops[ends[0]], uops[ends[1]] = uops[ends[1]], uops[ends[0]]
    return uops


def without(op: Ops) -> Any:
    """Leaves out the first node of an op."""
    return lambda uops: uops[: position(uops, op)] + uops[position(uops, op) + 1 :]


def use_after_loop(uops: list[UOp]) -> list[UOp]:
    """Uses a value of a loop behind it."""
    load = uops[position(uops, Ops.LOAD)]
    store = uops[position(uops, Ops.STORE)]
    i = position(uops, Ops.STORE)
    return [*uops[:i], UOp(Ops.STORE, VOID, (store.src[0], load)), *uops[i + 1 :]]


@pytest.mark.parametrize(
    "change, message",
    [
        (swap_ends, "the innermost open loop ends first"),
        (lambda uops: uops[:-1], "every loop has its END"),
        (without(Ops.LOAD), "is listed above it"),
        (without(Ops.DEFINE_REG), "is listed above it"),
        (use_after_loop, "stands in a loop that is still open"),
        (lambda uops: [UOp.const(F32, 1.0), *uops], "CONST is not listed"),
        (lambda uops: [*uops, UOp.index_const(2) + N], "there is no|dtype index any more"),
        (lambda uops: [*uops, UOp.range(3, 9)], "no node has dtype index any more"),
        (lambda uops: [*uops, UOp.sink()], "there is no SINK at this stage"),
        (lambda uops: [*uops, UOp(Ops.END, VOID, (uops[0],))], "it ends one RANGE"),
        (lambda uops: [*uops, uops[position(uops, Ops.RANGE)]], "each loop opens once"),
    ],
)
def test_what_the_linear_stage_refuses(change: Any, message: str) -> None:
    linear = program()
    with pytest.raises(InternalError, match=f"^linear stage: .*({message})"):
        verify(changed(linear, change(list(linear.uops))), "linear")


def test_offsets_are_of_lanes_alone() -> None:
    b = Builder()
    out, r = b.param(8), b.axis(8, AxisType.LOOP)
    b.store(at(out, 0, r), UOp.const(F32, 1.0))
    b.end(r)
    with pytest.raises(InternalError, match="its offset is a sum of lanes times constants"):
        verify(b.build(), "linear")


def test_a_program_says_what_it_writes() -> None:
    linear = program()
    message = r"says that it writes slots \[1\], and stores to \[0\]"
    with pytest.raises(InternalError, match=message):
        verify(changed(linear, list(linear.uops), written=frozenset({1})), "linear")


def test_stages_have_names() -> None:
    with pytest.raises(InternalError, match="no stage 'sideways'"):
        verify(TABLE, "sideways")
    with pytest.raises(InternalError, match="kernel stage"):
        verify(LOAD, "kernel")


def test_every_broken_rule_shows_the_node_and_its_sources() -> None:
    with pytest.raises(InternalError) as caught:
        verify(UOp(Ops.RESHAPE, F32, (TABLE,), (7, 7)), "tensor")
    assert str(caught.value) == (
        "tensor stage: %1 = RESHAPE float32 (%0) (7, 7) where %0 is "
        "<RESHAPE float32 (8, 6) of 1>: it keeps the number of elements"
    )
