"""Specifies the nodes of tensor graphs and kernels: op -> rules that a node of it keeps.

Tables only; `uop/spec/verify.py` verifies graphs. The table of linear programs is in
`uop/spec/linear.py`, beside the rules of their order.
"""

from __future__ import annotations

from aster_ml.uop.node import UOp, same_shape
from aster_ml.uop.ops import ANEW, ASSOCIATIVE, ELEMENTWISE, BodyArg, KernelArg, Memory, Ops
from aster_ml.uop.spec.rows import (
    ALU_ROWS,
    ARG_TYPE,
    BOOL,
    CONST_ROWS,
    CUSTOM_GRADIENT_ROWS,
    HAS_PLACES,
    HINT,
    INDEX,
    IS_VOID,
    LEAF,
    NO_ARG,
    OF_INDEX,
    ONE_SOURCE,
    PARAM_ROWS,
    SAME_DTYPE,
    SAME_RESULT,
    SCALAR,
    VARIABLE_ROWS,
    VOID,
    Table,
    are_ranges,
    at_least,
    equal_shapes,
    equal_sizes,
    has_memory,
    is_word,
    keeps_axes,
    product,
)

TENSOR_SPEC: Table = {
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
    Ops.CONTIGUOUS_BACKWARD: (
        ONE_SOURCE,
        SAME_DTYPE,
        ("its argument is ANEW or none", lambda u: u.arg in (None, ANEW)),
    ),
    Ops.DETACH: (ONE_SOURCE, SAME_DTYPE),
    Ops.CUSTOM_GRADIENT: CUSTOM_GRADIENT_ROWS,
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
    Ops.NAME: (SAME_DTYPE, ONE_SOURCE, ARG_TYPE),
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
        ("it adds or takes the greatest", lambda u: u.arg.op in (Ops.ADD, Ops.MAX)),
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


def is_product_of_parts(u: UOp) -> bool:
    """Whether the operands of an MMA are numbers of one width."""
    a, b = u.src[:2]
    return bool(a.shape == b.shape == () and a.dtype.itemsize == b.dtype.itemsize)


def is_box(u: UOp) -> bool:
    """Whether a TMA_LOAD has both ends, of one dtype."""
    to, source = u.src[:2]
    return to.op is Ops.INDEX and source.op is Ops.PARAM and to.dtype is source.dtype


def is_local(u: UOp) -> bool:
    """Whether a node is an INDEX of local memory that a block shares."""
    memory = u.src[0] if u.op is Ops.INDEX else u
    while memory.op is Ops.AFTER:
        memory = memory.src[0]
    return memory.op is Ops.DEFINE_LOCAL and u.op is Ops.INDEX


def is_short_range(r: UOp) -> bool:
    """Whether a node is a range of lanes."""
    return r.op is Ops.RANGE and bool(r.arg.kind.is_lane)


OF_MATRICES = "behind it stand lanes of a word and of up to four matrices, of 2 each"


def are_matrices(u: UOp, lanes: tuple[UOp, ...]) -> bool:
    """Whether lanes are those of a 32-bit word, and of up to four matrices of such words."""
    return (
        u.src[0].dtype.itemsize << u.arg.word == 4
        and 0 <= len(lanes) - u.arg.word <= 2
        and all([is_short_range(r) and r.src[0].arg == 2 for r in lanes])
    )


# What an AFTER of a kernel waits for.
MARKS = frozenset({Ops.BARRIER, Ops.STORE, Ops.STMATRIX, Ops.TMA_LOAD, Ops.END, Ops.RANGE})
KERNEL_SPEC: Table = {
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
        ("its size may be 0 or more", lambda u: u.src[0].vmax >= 0),
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
    Ops.PREFETCH: (
        IS_VOID,
        NO_ARG,
        ("it names an INDEX", lambda u: len(u.src) == 1 and u.src[0].op is Ops.INDEX),
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
        (
            "it ends a STORE, a TMA_STORE, a PREFETCH, or what ends one",
            lambda u: u.src[0].op in (Ops.STORE, Ops.TMA_STORE, Ops.PREFETCH, Ops.END),
        ),
        ("it closes ranges, each once", lambda u: len(u.src) > 1 and are_ranges(u.src[1:])),
    ),
    Ops.STAGE: (
        SAME_DTYPE,
        ("it is kept in scratch", lambda u: u.arg.memory is Memory.LOCAL),
        ("it closes ranges, each once", lambda u: len(u.src) > 1 and are_ranges(u.src[1:])),
    ),
    Ops.AFTER: (
        SAME_DTYPE,
        (
            "it is memory after barriers or stores, or in each turn of a loop",
            lambda u: has_memory(u.src[0]) and all([s.op in MARKS for s in u.src[1:]]),
        ),
    ),
    Ops.BARRIER: (IS_VOID,),
    Ops.TMA_LOAD: (
        IS_VOID,
        ARG_TYPE,
        ("it copies from a PARAM to local memory", lambda u: is_box(u)),
        HAS_PLACES,
    ),
    Ops.TMA_STORE: (
        IS_VOID,
        ARG_TYPE,
        ("it copies from local memory to a PARAM", lambda u: is_box(u)),
        HAS_PLACES,
    ),
    Ops.FENCE: (IS_VOID, NO_ARG),
    Ops.SHUFFLE: (
        ONE_SOURCE,
        SAME_DTYPE,
        ("work-items differ in bits of their numbers", lambda u: type(u.arg) is int and u.arg > 0),
    ),
    Ops.LDMATRIX: (
        SAME_DTYPE,
        ARG_TYPE,
        ("it reads an INDEX of memory that a block shares", lambda u: is_local(u.src[0])),
        (OF_MATRICES, lambda u: are_matrices(u, u.src[1:])),
    ),
    Ops.STMATRIX: (
        IS_VOID,
        ARG_TYPE,
        ("it writes to an INDEX of memory that a block shares", lambda u: is_local(u.src[0])),
        ("the value has its dtype", lambda u: u.src[1].dtype is u.src[0].dtype),
        (OF_MATRICES, lambda u: are_matrices(u, u.src[2:])),
    ),
    Ops.MMA: (
        ARG_TYPE,
        ("its operands are scalars of one size", lambda u: is_product_of_parts(u)),
        (
            "behind its operands stand lanes of both and of the result",
            lambda u: (
                len(u.src) > 2 + u.arg.a + u.arg.b and all([is_short_range(r) for r in u.src[2:]])
            ),
        ),
    ),
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
