"""Verifies linear programs: which nodes they may list, their order, and what each may read.

Receives a `Linear`; raises InternalError for the first node that breaks a rule.
"""

from __future__ import annotations

from aster_ml.errors import InternalError
from aster_ml.uop.graph import toposort
from aster_ml.uop.linear import Linear
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import ASSOCIATIVE, ELEMENTWISE, Ops
from aster_ml.uop.spec.rows import (
    ALU_ROWS,
    ARG_TYPE,
    CONST_ROWS,
    INDEX,
    IS_VOID,
    LEAF,
    NO_ARG,
    ONE_SOURCE,
    PARAM_ROWS,
    SAME_DTYPE,
    VARIABLE_ROWS,
    Table,
    are_ranges,
    check_nodes,
    fail,
    has_memory,
)
from aster_ml.uop.spec.tables import KERNEL_SPEC

# Number of work-items whose registers are reallocated together (a warp group).
GROUP = 128
# Kinds of ranges that are block or work-item numbers, which no END closes.
UNCLOSED = frozenset({"GLOBAL", "LOCAL", "GROUP"})

LISTED = ELEMENTWISE | {
    Ops.PARAM,
    Ops.DEFINE_VAR,
    Ops.DEFINE_LOCAL,
    Ops.RANGE,
    Ops.END,
    Ops.LOAD,
    Ops.STORE,
    Ops.PREFETCH,
    Ops.DEFINE_REG,
    Ops.ACCUMULATE,
    Ops.REDUCE,
    Ops.BARRIER,
    Ops.TMA_LOAD,
    Ops.COMMIT,
    Ops.WAIT,
    Ops.MMA_WAIT,
    Ops.WARP_ROLE,
    Ops.ACQUIRE,
    Ops.RELEASE,
    Ops.TMA_STORE,
    Ops.FENCE,
    Ops.TMA_STORE_WAIT,
    Ops.SHUFFLE,
    Ops.LDMATRIX,
    Ops.STMATRIX,
    Ops.MMA,
}
LINEAR: Table = {
    **dict.fromkeys(ELEMENTWISE, (*ALU_ROWS,)),
    Ops.CONST: (*CONST_ROWS[:1], LEAF),
    Ops.PARAM: PARAM_ROWS,
    Ops.DEFINE_VAR: VARIABLE_ROWS,
    Ops.DEFINE_LOCAL: KERNEL_SPEC[Ops.DEFINE_LOCAL],
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
    Ops.LOAD: KERNEL_SPEC[Ops.LOAD],
    Ops.STORE: KERNEL_SPEC[Ops.STORE],
    Ops.PREFETCH: KERNEL_SPEC[Ops.PREFETCH],
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
    Ops.TMA_LOAD: KERNEL_SPEC[Ops.TMA_LOAD],
    Ops.TMA_STORE: KERNEL_SPEC[Ops.TMA_STORE],
    Ops.FENCE: KERNEL_SPEC[Ops.FENCE],
    Ops.TMA_STORE_WAIT: (IS_VOID, NO_ARG, LEAF),
    Ops.MMA_WAIT: (
        IS_VOID,
        ("its arg is a number of products", lambda u: type(u.arg) is int and u.arg >= 0),
    ),
    Ops.WARP_ROLE: (
        IS_VOID,
        ARG_TYPE,
        ("its work-items are groups", lambda u: u.arg.items >= 0 and u.arg.items % GROUP == 0),
    ),
    Ops.ACQUIRE: (
        IS_VOID,
        ("it names a stage and a turn", lambda u: len(u.src) == 2 and are_integers(u.src)),
    ),
    Ops.RELEASE: (
        IS_VOID,
        ("it names a stage and a gate", lambda u: len(u.src) == 2 and are_integers(u.src[:1])),
    ),
    Ops.COMMIT: (
        IS_VOID,
        (
            "it names a stage of how many, and a gate, if anything",
            lambda u: len(u.src) <= 2 and are_integers(u.src[:1]) and bool(u.src) is bool(u.arg),
        ),
    ),
    Ops.WAIT: (
        IS_VOID,
        ("its arg is a number of groups", lambda u: type(u.arg) is int and u.arg >= 0),
        (
            "it names a stage and a turn, or nothing",
            lambda u: len(u.src) in (0, 2) and are_integers(u.src),
        ),
    ),
    Ops.SHUFFLE: KERNEL_SPEC[Ops.SHUFFLE],
    Ops.LDMATRIX: KERNEL_SPEC[Ops.LDMATRIX],
    Ops.STMATRIX: KERNEL_SPEC[Ops.STMATRIX],
    Ops.MMA: KERNEL_SPEC[Ops.MMA],
}


def are_integers(uops: tuple[UOp, ...]) -> bool:
    """Whether all are integers."""
    return all([u.dtype.kind in ("int", "uint") for u in uops])


def is_lane(u: UOp) -> bool:
    """Whether a node is a lane range."""
    return u.op is Ops.RANGE and bool(u.arg.kind.is_lane)


# Number of checked sources of inlined nodes; of other ops all.
INLINE_SOURCES = {Ops.INDEX: 2, Ops.AFTER: 1}


def is_inline(u: UOp) -> bool:
    """Whether a node is inlined where it is used instead of listed."""
    return u.op in (Ops.CONST, Ops.INDEX, Ops.AFTER) or is_lane(u)


def offset_is_of_lanes(u: UOp) -> bool:
    """Whether an offset consists of lanes and constants."""
    return all(
        [
            x.op is Ops.CONST or is_lane(x) or x.op in (Ops.ADD, Ops.MUL, Ops.CAST)
            for x in toposort(u)
        ]
    )


class Scope:
    """The open loops of a linear program, and the loops around each listed node."""

    def __init__(self) -> None:
        self.loops: list[UOp] = []
        self.home: dict[UOp, UOp | None] = {}

    def enter(self, u: UOp) -> None:
        """Records a listed node."""
        self.home[u] = self.loops[-1] if self.loops else None

    def check_source(self, u: UOp, s: UOp) -> None:
        """Raises unless `u` may read `s` here, directly or through inlined nodes."""
        seen: set[UOp] = set()
        stack = [s]
        while stack:
            s = stack.pop()
            if s in seen:
                continue
            seen.add(s)
            if is_inline(s):
                if s.op is Ops.INDEX and not offset_is_of_lanes(s.src[2]):
                    raise fail("linear", s, "its offset is a sum of lanes times constants")
                stack.extend(s.src[: INLINE_SOURCES.get(s.op)])
                continue
            if s not in self.home:
                raise fail("linear", u, f"its source {s!r} is listed above it")
            home = self.home[s]
            if home is not None and home not in self.loops:
                raise fail("linear", u, f"its source {s!r} stands in a loop that is still open")


def verify_linear(linear: Linear) -> None:
    """Verifies a linear program by the rules of `uop/linear`."""
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
        if u.op not in (Ops.BARRIER, Ops.FENCE):
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
        if u.op is Ops.TMA_STORE:
            written.add(u.src[1].arg.slot)
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
