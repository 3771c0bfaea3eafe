"""Every op is in every table, or is listed here as absent from it, with the reason.

A new op fails here until each table has its row. An exception that no longer holds fails too.
"""

from __future__ import annotations

import pytest

from aster_ml.gradient import GRADIENT, NO_GRADIENT
from aster_ml.renderer.cstyle_rules import CSTYLE_RULES
from aster_ml.renderer.llvm.rules import LLVM_RULES
from aster_ml.runtime.python import TARGET as PYTHON
from aster_ml.target import PLAIN_DTYPES, PLAIN_OPS
from aster_ml.uop.evaluate import IDENTITY, MEANING
from aster_ml.uop.infer import SHAPE_RULES
from aster_ml.uop.ops import (
    ASSOCIATIVE,
    COMMUTATIVE,
    COMPARE,
    ELEMENTWISE,
    MOVEMENT,
    OP_TABLE,
    Group,
    Ops,
    of_group,
)
from aster_ml.uop.spec import linear, tables

# A cast is a matter of two dtypes, so `evaluate` hands these on to `aster_ml.dtype`.
CASTS = {Ops.CAST, Ops.BITCAST}
# Nothing is reduced by exclusive or.
NO_REDUCTION = {Ops.XOR}
# No language has it: it is decomposed for every target but the interpreter.
NO_RULE = {Ops.THREEFRY}
# These are no values, so they have no shape.
NO_SHAPE = {
    Ops.DEVICE, Ops.STORE, Ops.PREFETCH, Ops.END, Ops.BARRIER, Ops.SINK, Ops.COMMIT, Ops.WAIT,
    Ops.TMA_LOAD, Ops.MMA_WAIT, Ops.WARP_ROLE, Ops.ACQUIRE, Ops.RELEASE, Ops.TMA_STORE, Ops.FENCE,
    Ops.TMA_STORE_WAIT, Ops.STMATRIX,
}  # fmt: skip
# These come after the tensor stage, and a gradient is taken there.
LATER = {
    Ops.RANGE, Ops.DEFINE_LOCAL, Ops.DEFINE_REG, Ops.STAGE, Ops.LOAD, Ops.PREFETCH, Ops.ACCUMULATE,
    Ops.END, Ops.BARRIER, Ops.SINK, Ops.SHUFFLE, Ops.MMA, Ops.COMMIT, Ops.WAIT,
    Ops.TMA_LOAD, Ops.MMA_WAIT, Ops.WARP_ROLE, Ops.ACQUIRE, Ops.RELEASE, Ops.LDMATRIX, Ops.STMATRIX,
    Ops.TMA_STORE, Ops.FENCE, Ops.TMA_STORE_WAIT,
}  # fmt: skip


def names(ops: set[Ops]) -> list[str]:
    """The names of some ops, sorted, for a message."""
    return sorted(op.name for op in ops)


@pytest.mark.parametrize(
    "table, covered, exceptions, wanted",
    [
        ("uop.ops.OP_TABLE", set(OP_TABLE), set(), set(Ops)),
        ("uop.evaluate.MEANING", set(MEANING), CASTS, set(ELEMENTWISE)),
        ("uop.evaluate.IDENTITY", set(IDENTITY), NO_REDUCTION, set(ASSOCIATIVE)),
        (
            "uop.infer.SHAPE_RULES",
            set(SHAPE_RULES),
            NO_SHAPE,
            set(Ops) - set(ELEMENTWISE) - set(MOVEMENT),  # whose families have one rule each
        ),
        (
            "uop.spec.tables",
            {*tables.TENSOR_SPEC, *tables.KERNEL_SPEC, *linear.LINEAR},
            set(),
            set(Ops),
        ),
        ("renderer.llvm_rules.LLVM_RULES", set(LLVM_RULES), NO_RULE, set(ELEMENTWISE)),
        (
            "renderer.cstyle_rules.CSTYLE_RULES",
            set(CSTYLE_RULES),
            # instructions of x86, which C has no word for
            NO_RULE | {Ops.DOT, Ops.LDEXP, Ops.EXP2_32NDS},
            set(ELEMENTWISE),
        ),
        ("runtime.python.TARGET", {Ops[n] for n in PYTHON.native_ops}, set(), set(ELEMENTWISE)),
        ("gradient.GRADIENT and NO_GRADIENT", {*GRADIENT, *NO_GRADIENT}, LATER, set(Ops)),
    ],
)
def test_table_has_every_op(
    table: str, covered: set[Ops], exceptions: set[Ops], wanted: set[Ops]
) -> None:
    missing = names(wanted - covered - exceptions)
    assert not missing, f"{table} has no row for {missing}"
    strangers = names(covered - wanted)
    assert not strangers, f"{table} has rows for ops that are none of its own: {strangers}"
    stale = names(covered & exceptions)
    assert not stale, f"{table} has {stale}, which this test lists as absent"


def test_an_op_has_a_gradient_or_none_but_not_both() -> None:
    assert not names(set(GRADIENT) & NO_GRADIENT)


def test_every_row_has_words() -> None:
    silent = [op.name for op, row in OP_TABLE.items() if not row.doc.endswith(".")]
    assert not silent, f"no sentence in OP_TABLE: {silent}"
    rows = [row.doc for row in OP_TABLE.values()]
    assert len(set(rows)) == len(rows), "two ops have the same meaning"


def test_families_hold_what_they_say() -> None:
    binary = of_group(Group.BINARY)
    assert COMPARE <= binary
    assert COMMUTATIVE <= binary
    assert ASSOCIATIVE <= binary


def test_targets_name_ops_and_dtypes_that_exist() -> None:
    from aster_ml.dtype import dtypes

    assert not PLAIN_OPS - {op.name for op in ELEMENTWISE}
    assert all(hasattr(dtypes, name) for name in PLAIN_DTYPES)
