"""Adds tinygrad's names to `uop.ops`: nodes, rules, arithmetic on Python numbers.

`aster_ml.uop.ops` passes these names on; the ops of the dialect are attributes of its `Ops`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from aster_ml.compat.dtypes import ConstType
from aster_ml.compat.kernels import KernelInfo
from aster_ml.compat.patterns import PatternMatcher, UPat, graph_rewrite
from aster_ml.compat.timing import TracingKey
from aster_ml.dtype import AddrSpace, DType, PtrDType, dtypes
from aster_ml.trace import Metadata
from aster_ml.uop.dialect import Dialect
from aster_ml.uop.evaluate import evaluate
from aster_ml.uop.node import UOp, Variable, resolve, sint, smax, smin
from aster_ml.uop.ops import (
    ASSOCIATIVE,
    BINARY,
    COMMUTATIVE,
    COMPARE,
    ELEMENTWISE,
    MOVEMENT,
    TERNARY,
    UNARY,
    Ops,
)
from aster_ml.uop.sint import do_unbind, sint_to_uop, srender, ssimplify, sym_infer

__all__ = [
    "AddrSpace", "ConstType", "DType", "GroupOp", "KernelInfo", "Metadata", "PatternMatcher",
    "PtrDType", "TracingKey", "UOp", "UPat", "Variable", "consumer_map_from_toposort",
    "do_unbind", "dtypes", "exec_alu", "graph_rewrite", "identity_element", "print_uops",
    "python_alu", "resolve", "sint", "sint_to_uop", "smax", "smin", "srender", "ssimplify",
    "sym_infer", "track_rewrites",
]  # fmt: skip


def exec_alu(op: Any, dtype: DType, operands: Sequence[Any], truncate_output: bool = True) -> Any:
    """Applies an elementwise op to Python numbers; without truncating, as if int had no end."""
    if not truncate_output and dtype.kind in ("int", "uint"):
        return evaluate(op, dtypes.index, tuple(operands), (dtypes.index,) * len(operands))
    return evaluate(op, dtype, tuple(operands), operand_dtypes(op, dtype, operands))


def operand_dtypes(op: Any, dtype: DType, operands: Sequence[Any]) -> tuple[DType, ...]:
    """Dtypes that operands have, given that of the result."""
    if op in COMPARE:
        dtype = dtypes.from_py(operands[0])
    found = [dtype] * len(operands)
    if op is Ops.WHERE:
        found[0] = dtypes.bool
    return tuple(found)


# Operators of Python by op, as they apply to numbers, nodes and tensors.
python_alu: dict[Any, Any] = {
    Ops.ADD: operator.add,
    Ops.SUB: operator.sub,
    Ops.MUL: operator.mul,
    Ops.AND: operator.and_,
    Ops.OR: operator.or_,
    Ops.XOR: operator.xor,
    Ops.SHL: operator.lshift,
    Ops.SHR: operator.rshift,
    Ops.MAX: max,
    Ops.CMPLT: operator.lt,
    Ops.CMPNE: operator.ne,
    Ops.CMPEQ: operator.eq,
}


class GroupOp:
    """Families of ops."""

    Unary = frozenset(UNARY - {Ops.CAST, Ops.BITCAST})
    Binary = BINARY
    Ternary = TERNARY
    ALU = frozenset(ELEMENTWISE - {Ops.CAST, Ops.BITCAST})
    Elementwise = ELEMENTWISE
    Defines = frozenset({Dialect.DEFINE_GLOBAL, Ops.PARAM, Ops.DEFINE_LOCAL, Ops.DEFINE_REG})
    Irreducible = frozenset({Ops.CONST, Ops.DEFINE_VAR, Ops.RANGE, Dialect.SPECIAL})
    Movement = MOVEMENT
    Buffer = frozenset({Ops.LOAD, Ops.STORE, Ops.CONST, Ops.DEFINE_VAR})
    Commutative = COMMUTATIVE
    Associative = frozenset(ASSOCIATIVE - {Ops.XOR})
    Idempotent = frozenset({Ops.OR, Ops.AND, Ops.MAX})
    Comparison = COMPARE
    UnsafePad = frozenset({Ops.RECIPROCAL, Ops.LOG2, Ops.EXP2, Ops.IDIV, Ops.POW})
    All = frozenset([*Ops, *Dialect])


def identity_element(op: Any, dt: DType) -> Any:
    """Neutral element of an associative op: 0 of ADD, 1 of MUL, least of MAX."""
    return dtypes.as_const({Ops.ADD: 0, Ops.MUL: 1, Ops.MAX: dtypes.min(dt)}[op], dt)


def consumer_map_from_toposort(lst: Iterable[UOp]) -> dict[UOp, dict[UOp, None]]:
    """Who reads each node, of nodes listed sources first."""
    found: dict[UOp, dict[UOp, None]] = {}
    for u in lst:
        found[u] = {}
        for source in u.src:
            found[source][u] = None
    return found


def print_uops(uops: Sequence[UOp]) -> None:
    """Prints a line for each node: number, op, dtype, numbers of its sources, argument."""
    number = {u: i for i, u in enumerate(uops)}
    for i, u in enumerate(uops):
        sources = [repr(s.arg) if s.op is Ops.CONST else str(number.get(s, "--")) for s in u.src]
        print(f"{i:4d} {u.op!s:20}: {u.dtype!s:40} [{', '.join(sources)}]".ljust(100), u.arg)


def track_rewrites(name: Any = True, replay: bool = False) -> Callable[..., Any]:
    """A decorator that hands the function on: Aster's passes are traced by their runner."""
    return lambda function: function
