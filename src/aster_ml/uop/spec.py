"""Which nodes may exist at which stage, as tables: op -> rules that a node of it keeps.

`verify(root, stage)` receives a graph (stages "tensor" and "kernel") or a `Linear` (stage "linear")
and returns nothing; it raises InternalError naming the stage, the node and the rule that is broken.
A user's mistake is no matter for this module: that is found where the node is built.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

from aster_ml.dtype import dtypes
from aster_ml.errors import AsterError, InternalError
from aster_ml.uop.graph import toposort
from aster_ml.uop.infer import alu_dtype, check_alu
from aster_ml.uop.linear import Linear
from aster_ml.uop.node import UOp, same_shape, to_uop
from aster_ml.uop.ops import (
    ASSOCIATIVE,
    BINARY,
    ELEMENTWISE,
    TERNARY,
    UNARY,
    BodyArg,
    KernelArg,
    Memory,
    Ops,
)
from aster_ml.uop.rewrite import VERIFIERS
from aster_ml.uop.symbolic import simplify
from aster_ml.uop.text import ARG_TYPES, node_text

# What a rule says, and whether a node keeps it.
Row = tuple[str, Callable[[UOp], Any]]
Table = dict[Ops, tuple[Row, ...]]

INDEX, BOOL, VOID = dtypes.index, dtypes.bool, dtypes.void
ARITY = {**dict.fromkeys(UNARY, 1), **dict.fromkeys(BINARY, 2), **dict.fromkeys(TERNARY, 3)}


def sources_mix(u: UOp) -> bool:
    """Whether the dtypes of an elementwise node's sources go together and give the node's."""
    if u.op in (Ops.CAST, Ops.BITCAST):
        return u.dtype is not VOID
    if u.op is Ops.DOT:
        words = all([s.dtype is dtypes.uint32 for s in u.src])
        return words and u.dtype in (dtypes.int32, dtypes.float32)
    try:
        check_alu(u.op, u.src)
    except AsterError:
        return False
    return u.dtype is alu_dtype(u.op, u.src)


def is_const_arg(u: UOp) -> bool:
    """Whether a constant's value is of the Python type and within the bounds of its dtype."""
    kind = {"float": float, "bool": bool}.get(u.dtype.kind, int)
    if u.arg.__class__ is not kind:
        return False
    return kind is float or u.dtype is INDEX or bool(u.dtype.min <= u.arg <= u.dtype.max)


def is_word(u: UOp) -> bool:
    """Whether a LOAD reads neighbours of a narrow dtype as one word."""
    return u.dtype is dtypes.uint32 and u.src[0].dtype.itemsize < u.dtype.itemsize


def are_ranges(uops: tuple[UOp, ...]) -> bool:
    """Whether all are RANGE nodes, each once."""
    return all([r.op is Ops.RANGE for r in uops]) and len(set(uops)) == len(uops)


def equal_sizes(a: Any, b: Any) -> bool:
    """Whether two sizes are equal, as far as simplifying tells."""
    if isinstance(a, int) and isinstance(b, int):
        return a == b
    return simplify(to_uop(a) - to_uop(b)).bounds == (0, 0)


def equal_shapes(a: Any, b: Any) -> bool:
    """Whether two shapes are equal; scalars stand beside any shape."""
    if a is None or b is None:
        return False
    return len(a) == len(b) and all([equal_sizes(x, y) for x, y in zip(a, b)])


def at_least(a: Any, b: Any) -> bool:
    """Whether a >= b is not ruled out."""
    return bool(simplify(to_uop(a) - to_uop(b)).vmax >= 0)


def product(shape: Iterable[Any]) -> UOp:
    """The number of elements."""
    total = UOp.index_const(1)
    for s in shape:
        total = total * s
    return total


def keeps_axes(u: UOp) -> bool:
    """Whether the argument of a movement op has an entry an axis."""
    return len(u.arg) == len(u.src[0].shape)


def has_memory(u: UOp) -> bool:
    """Whether what is indexed is memory of a kernel, after its effects or not."""
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
    NO_ARG,
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

MARK_ROWS: tuple[Row, ...] = (ONE_SOURCE, SAME_DTYPE, NO_ARG)

TENSOR: Table = {
    **dict.fromkeys(ELEMENTWISE, ALU_ROWS),
    Ops.CONST: CONST_ROWS,
    Ops.BUFFER: (LEAF, ARG_TYPE, ("its size is not negative", lambda u: u.arg.size >= 0)),
    Ops.PARAM: PARAM_ROWS,
    Ops.DEFINE_VAR: VARIABLE_ROWS,
    Ops.BIND: (
        (
            "it binds a DEFINE_VAR to a CONST",
            lambda u: [s.op for s in u.src] == [Ops.DEFINE_VAR, Ops.CONST],
        ),
        (
            "the value lies within the bounds of the variable",
            lambda u: u.src[0].arg.min <= u.src[1].arg <= u.src[0].arg.max,
        ),
        SAME_DTYPE,
    ),
    Ops.DEVICE: (LEAF, ARG_TYPE),
    Ops.IOTA: (ONE_SOURCE, OF_INDEX, ("its size is an index", lambda u: u.src[0].dtype is INDEX)),
    Ops.CONTIGUOUS: (SAME_DTYPE,),
    Ops.CONTIGUOUS_BACKWARD: MARK_ROWS,
    Ops.DETACH: MARK_ROWS,
    Ops.COPY: (ONE_SOURCE, SAME_DTYPE, ARG_TYPE),
    Ops.MULTI: (
        ARG_TYPE,
        SAME_DTYPE,
        (
            "its sources are alike, each on one device",
            lambda u: all(
                [
                    isinstance(s.device, str)
                    and s.dtype is u.dtype
                    and same_shape(s.shape, u.src[0].shape)
                    for s in u.src
                ]
            ),
        ),
        (
            "its axis is one of theirs",
            lambda u: u.arg.axis is None or 0 <= u.arg.axis < len(u.src[0].shape),
        ),
    ),
    Ops.AFTER: (
        SAME_DTYPE,
        (
            "what it waits for are effects",
            lambda u: all([s.dtype is VOID or s.op is Ops.AFTER for s in u.src[1:]]),
        ),
    ),
    Ops.RESHAPE: (
        SAME_DTYPE,
        (
            "it keeps the number of elements",
            lambda u: equal_sizes(product(u.src[0].shape), product(u.shape)),
        ),
    ),
    Ops.EXPAND: (
        SAME_DTYPE,
        ("it has a size for each axis", keeps_axes),
        (
            "it changes axes of size 1 alone",
            lambda u: all(
                [
                    equal_sizes(a, b) or (isinstance(a, int) and a == 1)
                    for a, b in zip(u.src[0].shape, u.shape)
                ]
            ),
        ),
    ),
    Ops.PERMUTE: (
        SAME_DTYPE,
        ONE_SOURCE,
        ("it names every axis once", lambda u: sorted(u.arg) == list(range(len(u.src[0].shape)))),
    ),
    Ops.PAD: (
        SAME_DTYPE,
        ("it has a pair for each axis", keeps_axes),
        (
            "it adds no negative number of elements",
            lambda u: all([at_least(n, 0) for pair in u.marg for n in pair]),
        ),
    ),
    Ops.SHRINK: (
        SAME_DTYPE,
        ("it has a pair for each axis", keeps_axes),
        (
            "0 <= start <= stop <= size on every axis",
            lambda u: all(
                [
                    at_least(a, 0) and at_least(b, a) and at_least(s, b)
                    for (a, b), s in zip(u.marg, u.src[0].shape)
                ]
            ),
        ),
    ),
    Ops.FLIP: (
        SAME_DTYPE,
        ONE_SOURCE,
        (
            "it names axes that there are, each once",
            lambda u: (
                len(set(u.arg)) == len(u.arg) and all([0 <= a < len(u.src[0].shape) for a in u.arg])
            ),
        ),
    ),
    Ops.REDUCE: (
        SAME_DTYPE,
        ONE_SOURCE,
        ARG_TYPE,
        ("its op is associative", lambda u: u.arg.op in ASSOCIATIVE),
        (
            "it names axes that there are, each once",
            lambda u: (
                len(set(u.arg.axes)) == len(u.arg.axes) > 0
                and all([0 <= a < len(u.src[0].shape) for a in u.arg.axes])
            ),
        ),
    ),
    Ops.INDEX: (
        SAME_DTYPE,
        ("it has one index an axis", lambda u: len(u.src) == 1 + len(u.src[0].shape)),
        ("its indices are of dtype index", lambda u: all([i.dtype is INDEX for i in u.src[1:]])),
        (
            "its indices share one shape",
            lambda u: all([not i.shape or same_shape(i.shape, u.shape) for i in u.src[1:]]),
        ),
    ),
    Ops.SCATTER: (
        SAME_DTYPE,
        ARG_TYPE,
        ("it has one index an axis of its result", lambda u: len(u.src) == 1 + len(u.arg.shape)),
        ("its indices are of dtype index", lambda u: all([i.dtype is INDEX for i in u.src[1:]])),
    ),
    Ops.CALL: (
        SAME_RESULT,
        ARG_TYPE,
        (
            "its kernel has a source for each argument",
            lambda u: max(u.arg.slots, default=0) < len(u.src),
        ),
    ),
    Ops.STORE: (
        IS_VOID,
        ("it has a target and a value", lambda u: len(u.src) == 2),
        ("the value has the dtype of the target", lambda u: u.src[0].dtype is u.src[1].dtype),
        (
            "the value has the shape of the target, or none",
            lambda u: u.src[1].shape == () or equal_shapes(u.src[0].shape, u.src[1].shape),
        ),
    ),
    Ops.SINK: (
        IS_VOID,
        (
            "of a body it says how many of its stores fill new memory",
            lambda u: u.arg is None or (type(u.arg) is BodyArg and 0 <= u.arg.fresh <= len(u.src)),
        ),
    ),
}

# What an AFTER of a kernel waits for.
MARKS = frozenset({Ops.BARRIER, Ops.STORE, Ops.END, Ops.RANGE})
KERNEL: Table = {
    **dict.fromkeys(ELEMENTWISE, (*ALU_ROWS, SCALAR)),
    Ops.CONST: (*CONST_ROWS[:1], LEAF),
    Ops.PARAM: PARAM_ROWS,
    Ops.DEFINE_VAR: VARIABLE_ROWS,
    Ops.DEFINE_LOCAL: (LEAF, ARG_TYPE, ("it has room for one element", lambda u: u.arg.size > 0)),
    Ops.RANGE: (
        ONE_SOURCE,
        ARG_TYPE,
        OF_INDEX,
        ("its size is an index", lambda u: u.src[0].dtype is INDEX),
        ("its size may be above 0", lambda u: u.src[0].vmax > 0),
    ),
    Ops.INDEX: (
        SAME_DTYPE,
        (
            "it indexes a PARAM, a DEFINE_LOCAL or a STAGE",
            lambda u: has_memory(u.src[0]) or u.src[0].op is Ops.STAGE,
        ),
        (
            "it has one flat index, of dtype index",
            lambda u: len(u.src) == 2 and u.src[1].dtype is INDEX and u.src[1].shape == (),
        ),
    ),
    Ops.LOAD: (
        (
            "it has the dtype of what it reads, or is a word of several of its elements",
            lambda u: u.dtype is u.src[0].dtype or is_word(u),
        ),
        HINT,
        ("it reads an INDEX", lambda u: u.src[0].op is Ops.INDEX),
        (
            "its gate, if any, is a bool",
            lambda u: len(u.src) <= 2 and all([g.dtype is BOOL for g in u.src[1:]]),
        ),
    ),
    Ops.STORE: (
        IS_VOID,
        HINT,
        ("it writes to an INDEX", lambda u: u.src[0].op is Ops.INDEX),
        (
            "the value has the dtype of what it writes to",
            lambda u: u.src[1].dtype is u.src[0].dtype,
        ),
        ("the value is a scalar", lambda u: u.src[1].shape == ()),
        (
            "its gate, if any, is a bool",
            lambda u: len(u.src) in (2, 3) and all([g.dtype is BOOL for g in u.src[2:]]),
        ),
    ),
    Ops.REDUCE: (
        SAME_DTYPE,
        ARG_TYPE,
        (
            "its op is associative and it names no axes",
            lambda u: u.arg.op in ASSOCIATIVE and not u.arg.axes,
        ),
        ("it folds over ranges, each once", lambda u: len(u.src) > 1 and are_ranges(u.src[1:])),
        ("its value is a scalar", lambda u: u.src[0].shape == ()),
    ),
    Ops.END: (
        IS_VOID,
        NO_ARG,
        ("it ends a STORE, or what ends one", lambda u: u.src[0].op in (Ops.STORE, Ops.END)),
        ("it closes ranges, each once", lambda u: len(u.src) > 1 and are_ranges(u.src[1:])),
    ),
    Ops.STAGE: (
        SAME_DTYPE,
        ("it is kept in scratch", lambda u: u.arg.memory is Memory.LOCAL),
        ("it closes one range", lambda u: len(u.src) == 2 and are_ranges(u.src[1:])),
    ),
    Ops.AFTER: (
        SAME_DTYPE,
        (
            "it is memory after barriers or stores, or in each turn of a loop",
            lambda u: has_memory(u.src[0]) and all([s.op in MARKS for s in u.src[1:]]),
        ),
    ),
    Ops.BARRIER: (IS_VOID,),
    Ops.SINK: (
        IS_VOID,
        (
            "it says no more than its name, Opts and order",
            lambda u: u.arg is None or type(u.arg) is KernelArg,
        ),
        (
            "it holds stores and their ends",
            lambda u: all([s.op in (Ops.STORE, Ops.END) for s in u.src]),
        ),
    ),
}


def fail(stage: str, u: UOp, rule: str) -> InternalError:
    """The error for a broken rule: the node as text over what its sources are."""
    numbers = {s: i for i, s in enumerate(dict.fromkeys(u.src))}
    try:
        text = node_text(u, len(numbers), numbers)
    except InternalError:
        text = f"%{len(numbers)} = {u!r}"  # an argument that has no written form
    over = ", ".join([f"%{i} is {s!r}" for s, i in numbers.items()])
    return InternalError(f"{stage} stage: {text}{' where ' + over if over else ''}: {rule}")


def check_nodes(stage: str, table: Table, nodes: Iterable[UOp]) -> None:
    """Every node against the rows of its op."""
    for u in nodes:
        rows = table.get(u.op)
        if rows is None:
            raise fail(stage, u, f"there is no {u.op.name} at this stage")
        for rule, keeps in rows:
            try:
                kept = keeps(u)
            except (AttributeError, IndexError, TypeError, ValueError, AsterError) as error:
                # A rule may ask of a malformed node what it does not have.
                raise fail(stage, u, f"{rule} ({error})") from error
            if not kept:
                raise fail(stage, u, rule)


def verify_tensor(roots: Any) -> None:
    """The tensor stage: values with shapes."""
    nodes = toposort(*roots)
    check_nodes("tensor", TENSOR, nodes)
    for u in nodes:
        try:
            shape = u.shape
        except AsterError as error:
            raise fail("tensor", u, f"it has a shape ({error})") from error
        if u.dtype is not VOID and shape is None and u.op is not Ops.DEVICE:
            raise fail("tensor", u, "a value has a shape")


def verify_kernel(roots: Any) -> None:
    """The kernel stage: SINK of END(STORE(INDEX(PARAM, flat), value), ranges), all scalars."""
    nodes = toposort(*roots)
    check_nodes("kernel", KERNEL, nodes)
    closed_by: dict[UOp, Ops] = {}
    for u in nodes:
        if u.op in (Ops.END, Ops.REDUCE):
            for r in u.src[1:]:
                if closed_by.setdefault(r, u.op) is not u.op:
                    raise fail("kernel", u, f"{r!r} is closed by a REDUCE and by an END")
    for root in roots:
        if root.op is not Ops.SINK:
            raise fail("kernel", root, "the root is a SINK")
        open_ranges = [r for r in root.ranges if r.arg.kind.name not in UNCLOSED]
        if open_ranges:
            raise fail("kernel", root, f"every range is closed; open: {open_ranges}")


# Work-items have these as numbers; nothing runs over them, so nothing has to close them.
UNCLOSED = frozenset({"GLOBAL", "LOCAL", "GROUP"})

LISTED = ELEMENTWISE | {
    Ops.PARAM,
    Ops.DEFINE_VAR,
    Ops.DEFINE_LOCAL,
    Ops.RANGE,
    Ops.END,
    Ops.LOAD,
    Ops.STORE,
    Ops.DEFINE_REG,
    Ops.ACCUMULATE,
    Ops.REDUCE,
    Ops.BARRIER,
}
LINEAR: Table = {
    **dict.fromkeys(ELEMENTWISE, (*ALU_ROWS,)),
    Ops.CONST: (*CONST_ROWS[:1], LEAF),
    Ops.PARAM: PARAM_ROWS,
    Ops.DEFINE_VAR: VARIABLE_ROWS,
    Ops.DEFINE_LOCAL: KERNEL[Ops.DEFINE_LOCAL],
    Ops.RANGE: (
        ONE_SOURCE,
        ARG_TYPE,
        ("its size has its own dtype", lambda u: u.src[0].dtype is u.dtype),
    ),
    Ops.INDEX: (
        SAME_DTYPE,
        ("it indexes a PARAM or a DEFINE_LOCAL", lambda u: has_memory(u.src[0])),
        (
            "it has a base and an offset, both integers",
            lambda u: len(u.src) == 3 and all([i.dtype.kind in ("int", "uint") for i in u.src[1:]]),
        ),
    ),
    Ops.LOAD: KERNEL[Ops.LOAD],
    Ops.STORE: KERNEL[Ops.STORE],
    Ops.DEFINE_REG: (
        SAME_DTYPE,
        ARG_TYPE,
        (
            "behind its start stand lanes",
            lambda u: are_ranges(u.src[1:]) and all([r.arg.kind.is_lane for r in u.src[1:]]),
        ),
    ),
    Ops.ACCUMULATE: (
        (
            "it folds into a DEFINE_REG by an associative op",
            lambda u: u.src[0].op is Ops.DEFINE_REG and u.arg in ASSOCIATIVE,
        ),
        ("value and accumulator have one dtype", lambda u: u.src[0].dtype is u.src[1].dtype),
        (
            "behind its value stand lanes",
            lambda u: are_ranges(u.src[2:]) and all([r.arg.kind.is_lane for r in u.src[2:]]),
        ),
    ),
    Ops.REDUCE: (
        SAME_DTYPE,
        ARG_TYPE,
        (
            "it folds lanes",
            lambda u: (
                len(u.src) > 1
                and are_ranges(u.src[1:])
                and all([r.arg.kind.is_lane for r in u.src[1:]])
            ),
        ),
    ),
    Ops.END: (
        IS_VOID,
        ("it ends one RANGE", lambda u: len(u.src) == 1 and u.src[0].op is Ops.RANGE),
    ),
    Ops.AFTER: (SAME_DTYPE,),
    Ops.BARRIER: (IS_VOID,),
}


def is_lane(u: UOp) -> bool:
    """Whether a node is a lane range."""
    return u.op is Ops.RANGE and bool(u.arg.kind.is_lane)


def is_inline(u: UOp) -> bool:
    """Whether a node is read where it is used instead of listed."""
    return u.op in (Ops.CONST, Ops.INDEX, Ops.AFTER) or is_lane(u)


def offset_is_of_lanes(u: UOp) -> bool:
    """Whether an offset is made of lanes and constants alone."""
    return all(
        [
            x.op is Ops.CONST or is_lane(x) or x.op in (Ops.ADD, Ops.MUL, Ops.CAST)
            for x in toposort(u)
        ]
    )


class Scope:
    """The loops that are open in a linear program, and in which each listed node stands."""

    def __init__(self) -> None:
        self.loops: list[UOp] = []
        self.home: dict[UOp, UOp | None] = {}

    def enter(self, u: UOp) -> None:
        """Lists a node here."""
        self.home[u] = self.loops[-1] if self.loops else None

    def check_source(self, u: UOp, s: UOp) -> None:
        """Raises unless `s` may be read by `u` here, itself or through what is read inline."""
        if is_inline(s):
            sources = s.src
            if s.op is Ops.INDEX:
                if not offset_is_of_lanes(s.src[2]):
                    raise fail("linear", s, "its offset is a sum of lanes times constants")
                sources = s.src[:2]
            elif s.op is Ops.AFTER:
                sources = s.src[:1]
            for inner in sources:
                self.check_source(u, inner)
            return
        if s not in self.home:
            raise fail("linear", u, f"its source {s!r} is listed above it")
        home = self.home[s]
        if home is not None and home not in self.loops:
            raise fail("linear", u, f"its source {s!r} stands in a loop that is still open")


def verify_linear(linear: Linear) -> None:
    """The linear stage, as the reading rules of `uop/linear` have it."""
    scope = Scope()
    inline = [x for u in linear.uops for x in toposort(u)]
    for u in dict.fromkeys(inline):
        if u.dtype is INDEX and u.op is not Ops.DEFINE_VAR:
            raise fail("linear", u, "no node has dtype index any more")
    check_nodes("linear", LINEAR, dict.fromkeys(inline))
    written = set()
    for u in linear.uops:
        if u.op not in LISTED or is_lane(u):
            raise fail("linear", u, f"{u.op.name} is not listed, it is read where it is used")
        if u.op is Ops.END:
            if not scope.loops or scope.loops[-1] is not u.src[0]:
                raise fail("linear", u, "loops nest: the innermost open loop ends first")
            scope.loops.pop()
            continue
        if u.op is not Ops.BARRIER:
            for s in u.src:
                scope.check_source(u, s)
        if u.op is Ops.RANGE and u.arg.kind.name not in UNCLOSED:
            if u in scope.home:
                raise fail("linear", u, "each loop opens once")
            scope.loops.append(u)
        if u.op is Ops.STORE:
            memory = u.src[0].src[0]
            while memory.op is Ops.AFTER:
                memory = memory.src[0]
            if memory.op is Ops.PARAM:
                written.add(memory.arg.slot)
        scope.enter(u)
    if scope.loops:
        raise fail("linear", scope.loops[-1], "every loop has its END")
    if written != set(linear.written):
        raise InternalError(
            f"linear stage: {linear.name} says that it writes slots "
            f"{sorted(linear.written)}, and stores to {sorted(written)}"
        )
    slots = [p.arg.slot for p in linear.params]
    if slots != sorted(set(slots)):
        raise InternalError(f"linear stage: {linear.name} has params of slots {slots}")


def verify(value: Any, stage: str) -> None:
    """Holds a graph, several, or a Linear to the rules of a stage: tensor, kernel or linear.

    Raises: InternalError naming the stage, the node and the rule that is broken.
    """
    if stage == "linear":
        verify_linear(value)
        return
    check = {"tensor": verify_tensor, "kernel": verify_kernel}.get(stage)
    if check is None:
        raise InternalError(f"verify: no stage {stage!r}; there are tensor, kernel and linear")
    check((value,) if value.__class__ is UOp else tuple(value))


VERIFIERS.update(
    {stage: functools.partial(verify, stage=stage) for stage in ("tensor", "kernel", "linear")}
)
