"""Names of the reference's low-level node API: one namespace of ops, tables of rules, programs.

Adapters over `aster_ml.compat` and Aster's own simplifier and code generator.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from typing import Any

from aster_ml.compat.dialect import Dialect
from aster_ml.compat.patterns import PatternMatcher, UPat, graph_rewrite
from aster_ml.dtype import DType, dtypes
from aster_ml.uop.evaluate import evaluate
from aster_ml.uop.ops import (
    ASSOCIATIVE,
    BINARY,
    COMMUTATIVE,
    COMPARE,
    ELEMENTWISE,
    MOVEMENT,
    TERNARY,
    UNARY,
)
from aster_ml.uop.ops import Ops as OwnOps

__all__ = ["GroupOp", "Ops", "PatternMatcher", "UPat", "exec_alu", "graph_rewrite", "python_alu"]


class OpsMeta(type):
    """Looks a name up among Aster's ops, then in the dialect."""

    def __getattr__(cls, name: str) -> Any:
        for table in (OwnOps, Dialect):
            if name in table.__members__:
                return table[name]
        raise AttributeError(name)

    def __iter__(cls) -> Iterator[Any]:
        return iter([*OwnOps, *Dialect])

    def __instancecheck__(cls, op: Any) -> bool:
        return isinstance(op, (OwnOps, Dialect))


class Ops(metaclass=OpsMeta):
    """Aster's ops and those of the dialect under one name."""


def exec_alu(op: Any, dtype: DType, operands: Sequence[Any], truncate_output: bool = True) -> Any:
    """What an elementwise op makes of Python numbers; without truncating, as if int had no end."""
    if not truncate_output and dtype.kind in ("int", "uint"):
        return evaluate(op, dtypes.index, tuple(operands), (dtypes.index,) * len(operands))
    return evaluate(op, dtype, tuple(operands), operand_dtypes(op, dtype, operands))


def operand_dtypes(op: Any, dtype: DType, operands: Sequence[Any]) -> tuple[DType, ...]:
    """Dtypes that operands have, given that of the result."""
    if op in COMPARE:
        dtype = dtypes.from_py(operands[0])
    found = [dtype] * len(operands)
    if op is OwnOps.WHERE:
        found[0] = dtypes.bool
    return tuple(found)


# Operators of Python by op, as they apply to numbers, nodes and tensors.
python_alu: dict[Any, Any] = {
    OwnOps.ADD: operator.add,
    OwnOps.SUB: operator.sub,
    OwnOps.MUL: operator.mul,
    OwnOps.AND: operator.and_,
    OwnOps.OR: operator.or_,
    OwnOps.XOR: operator.xor,
    OwnOps.SHL: operator.lshift,
    OwnOps.SHR: operator.rshift,
    OwnOps.MAX: max,
    OwnOps.CMPLT: operator.lt,
    OwnOps.CMPNE: operator.ne,
    OwnOps.CMPEQ: operator.eq,
}


class GroupOp:
    """Families of ops."""

    Unary = frozenset(UNARY - {OwnOps.CAST, OwnOps.BITCAST})
    Binary = BINARY
    Ternary = TERNARY
    ALU = frozenset(ELEMENTWISE - {OwnOps.CAST, OwnOps.BITCAST})
    Elementwise = ELEMENTWISE
    Defines = frozenset(
        {Dialect.DEFINE_GLOBAL, OwnOps.PARAM, OwnOps.DEFINE_LOCAL, OwnOps.DEFINE_REG}
    )
    Irreducible = frozenset({OwnOps.CONST, OwnOps.DEFINE_VAR, OwnOps.RANGE, Dialect.SPECIAL})
    Movement = MOVEMENT
    Buffer = frozenset({OwnOps.LOAD, OwnOps.STORE, OwnOps.CONST, OwnOps.DEFINE_VAR})
    Commutative = COMMUTATIVE
    Associative = frozenset(ASSOCIATIVE - {OwnOps.XOR})
    Idempotent = frozenset({OwnOps.OR, OwnOps.AND, OwnOps.MAX})
    Comparison = COMPARE
    UnsafePad = frozenset({OwnOps.RECIPROCAL, OwnOps.LOG2, OwnOps.EXP2, OwnOps.IDIV, OwnOps.POW})
    All = frozenset([*OwnOps, *Dialect])
