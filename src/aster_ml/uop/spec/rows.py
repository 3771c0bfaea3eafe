"""Checks nodes by tables of rules: the part that the tables of all stages share.

Receives nodes and a table, op -> rules for its nodes; raises InternalError for the first node that
breaks a rule. The tables are in `uop/spec/tables`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from aster_ml.dtype import dtypes
from aster_ml.errors import AsterError, InternalError
from aster_ml.uop.infer import alu_dtype, check_alu
from aster_ml.uop.node import UOp, to_uop
from aster_ml.uop.ops import BINARY, TERNARY, UNARY, Ops, RuleArg
from aster_ml.uop.print.text import ARG_TYPES, node_text
from aster_ml.uop.rules.symbolic import simplify

# The text of a rule, and its predicate.
Row = tuple[str, Callable[[UOp], Any]]
Table = dict[Ops, tuple[Row, ...]]

INDEX, BOOL, VOID = dtypes.index, dtypes.bool, dtypes.void
ARITY = {**dict.fromkeys(UNARY, 1), **dict.fromkeys(BINARY, 2), **dict.fromkeys(TERNARY, 3)}


def sources_mix(u: UOp) -> bool:
    """Whether dtypes of an elementwise node's sources fit together and imply the node's dtype."""
    if u.op in (Ops.CAST, Ops.BITCAST):
        return u.dtype is not VOID
    if u.op is Ops.DOT:
        words = all([s.dtype is dtypes.uint32 for s in u.src])
        return words and u.dtype in (dtypes.int32, dtypes.float32)
    if u.op is Ops.EXP2_32NDS and u.dtype is not dtypes.float32:
        return False
    try:
        check_alu(u.op, u.src)
    except AsterError:
        return False
    return u.dtype is alu_dtype(u.op, u.src)


def has_no_arg_or_promise(u: UOp) -> bool:
    """Whether an elementwise node has no argument, except the PowerArg of an EXP2."""
    return u.arg is None or (u.op is Ops.EXP2 and type(u.arg) is ARG_TYPES[u.op])


def is_const_arg(u: UOp) -> bool:
    """Whether a constant's value is of the Python type and within the bounds of its dtype."""
    kind = {"float": float, "bool": bool}.get(u.dtype.kind, int)
    if u.arg.__class__ is not kind:
        return False
    return kind is float or u.dtype is INDEX or bool(u.dtype.min <= u.arg <= u.dtype.max)


def is_word(u: UOp) -> bool:
    """Whether a LOAD reads consecutive elements of a narrow dtype as one word."""
    return u.dtype is dtypes.uint32 and u.src[0].dtype.itemsize < u.dtype.itemsize


def are_ranges(uops: tuple[UOp, ...]) -> bool:
    """Whether all are RANGE nodes, each once."""
    return all([r.op is Ops.RANGE for r in uops]) and len(set(uops)) == len(uops)


def equal_sizes(a: Any, b: Any) -> bool:
    """Whether the simplifier proves two sizes equal."""
    if isinstance(a, int) and isinstance(b, int):
        return a == b
    return simplify(to_uop(a) - to_uop(b)).bounds == (0, 0)


def equal_shapes(a: Any, b: Any) -> bool:
    """Whether two shapes are equal, or one is a scalar's."""
    if a is None or b is None:
        return False
    return len(a) == len(b) and all([equal_sizes(x, y) for x, y in zip(a, b)])


def at_least(a: Any, b: Any) -> bool:
    """Whether a >= b is possible."""
    return bool(simplify(to_uop(a) - to_uop(b)).vmax >= 0)


def product(shape: Iterable[Any]) -> UOp:
    """The number of elements."""
    total = UOp.index_const(1)
    for s in shape:
        total = total * s
    return total


def keeps_axes(u: UOp) -> bool:
    """Whether the argument of a movement op has an entry for each axis."""
    return len(u.arg) == len(u.src[0].shape)


def has_memory(u: UOp) -> bool:
    """Whether an INDEX refers to memory of a kernel, possibly after effects."""
    while u.op is Ops.AFTER:
        u = u.src[0]
    return u.op in (Ops.PARAM, Ops.DEFINE_LOCAL)


# rules that several tables share

LEAF: Row = ("it has no sources", lambda u: not u.src)
NO_ARG: Row = ("it has no argument", lambda u: u.arg is None)
IS_VOID: Row = ("it has no value, so its dtype is void", lambda u: u.dtype is VOID)
OF_INDEX: Row = ("its dtype is index", lambda u: u.dtype is INDEX)
SAME_DTYPE: Row = ("its dtype is that of its first source", lambda u: u.dtype is u.src[0].dtype)
SAME_RESULT: Row = (
    "it has the dtype of the source that it is",
    lambda u: u.dtype is u.src[u.arg.output].dtype,
)
ONE_SOURCE: Row = ("it has one source", lambda u: len(u.src) == 1)
HINT: Row = (
    "it has no argument, or the hint of its op",
    lambda u: u.arg is None or type(u.arg) is ARG_TYPES[u.op],
)
ARG_TYPE: Row = ("its argument is of the type for its op", lambda u: type(u.arg) is ARG_TYPES[u.op])
HAS_PLACES: Row = (
    "it has a place in each dimension of the tensor",
    lambda u: len(u.src) - 2 - len(u.arg.sizes) in (0, 1),
)
SCALAR: Row = ("it is a scalar", lambda u: u.shape == ())

CONST_ROWS: tuple[Row, ...] = (
    ("its value is a Python number of its dtype", is_const_arg),
    (
        "its only source may be a DEVICE",
        lambda u: all([s.op is Ops.DEVICE for s in u.src]) and len(u.src) <= 1,
    ),
)
ALU_ROWS: tuple[Row, ...] = (
    ("it has as many sources as its op takes", lambda u: len(u.src) == ARITY[u.op]),
    ("it has no argument, or is EXP2 with a promise", has_no_arg_or_promise),
    ("no source is without a value", lambda u: all([s.dtype is not VOID for s in u.src])),
    ("the dtypes of its sources go together and give its own", sources_mix),
)
VARIABLE_ROWS: tuple[Row, ...] = (
    LEAF,
    ARG_TYPE,
    ("its dtype is an integer type", lambda u: dtypes.is_int(u.dtype)),
    ("its least value is not above its greatest", lambda u: u.arg.min <= u.arg.max),
)
PARAM_ROWS: tuple[Row, ...] = (
    LEAF,
    ARG_TYPE,
    ("its slot and size are not negative", lambda u: u.arg.slot >= 0 and u.arg.size >= 0),
)

CUSTOM_GRADIENT_ROWS: tuple[Row, ...] = (
    (
        "it has a value, and pairs of a source and the derivative for it",
        lambda u: len(u.src) % 2 or u.arg is not None,
    ),
    (
        "sources have its dtype, derivatives that or bool",
        lambda u: (
            u.arg is not None
            or all(
                [
                    s.dtype in (u.dtype, *([dtypes.bool] if i and not i % 2 else ()))
                    for i, s in enumerate(u.src)
                ]
            )
        ),
    ),
    (
        "it has a source beside the value, and no argument or a rule",
        lambda u: len(u.src) > 1 and (u.arg is None or isinstance(u.arg, RuleArg)),
    ),
)


def fail(stage: str, u: UOp, rule: str) -> InternalError:
    """The error for a broken rule, with the node and its sources as text."""
    numbers = {s: i for i, s in enumerate(dict.fromkeys(u.src))}
    try:
        text = node_text(u, len(numbers), numbers)
    except InternalError:
        text = f"%{len(numbers)} = {u!r}"  # an argument that has no written form
    over = ", ".join([f"%{i} is {s!r}" for s, i in numbers.items()])
    return InternalError(f"{stage} stage: {text}{' where ' + over if over else ''}: {rule}")


def check_nodes(stage: str, table: Table, nodes: Iterable[UOp]) -> None:
    """Checks every node against the rows of its op. Raises: InternalError."""
    for u in nodes:
        rows = table.get(u.op)
        if rows is None:
            raise fail(stage, u, f"there is no {u.op.name} at this stage")
        for rule, keeps in rows:
            try:
                kept = keeps(u)
            except (AttributeError, IndexError, TypeError, ValueError, AsterError) as error:
                # A rule may access something that a malformed node lacks.
                raise fail(stage, u, f"{rule} ({error})") from error
            if not kept:
                raise fail(stage, u, rule)
