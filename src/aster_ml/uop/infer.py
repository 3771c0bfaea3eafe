"""Infers dtype, shape, device and integer bounds of a node from its op, sources and argument.

Receives nodes (anything with op, dtype, src, arg and the inferred properties of its sources) and
returns plain values. It builds no nodes except arithmetic on symbolic sizes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from aster_ml.dtype import DType, dtypes
from aster_ml.errors import DTypeError, ShapeError
from aster_ml.helpers import cdiv, cmod, prod
from aster_ml.uop.ops import BINARY, COMPARE, ELEMENTWISE, MOVEMENT, Ops
from aster_ml.uop.print.infix import render_expr

if TYPE_CHECKING:
    from aster_ml.uop.node import UOp

# Globals are faster to look up than members of an Enum, and every node is tested for its op.
(
    ADD, AND, BIND, BITCAST, CAST, CMPEQ, CMPLT, CMPNE, CONST, DEFINE_VAR, IDIV, IOTA, MAX, MOD,
    MUL, NAME, OR, RANGE, SHL, SHR, SUB, WHERE, XOR,
) = (
    Ops.ADD, Ops.AND, Ops.BIND, Ops.BITCAST, Ops.CAST, Ops.CMPEQ, Ops.CMPLT, Ops.CMPNE, Ops.CONST,
    Ops.DEFINE_VAR, Ops.IDIV, Ops.IOTA, Ops.MAX, Ops.MOD, Ops.MUL, Ops.NAME, Ops.OR, Ops.RANGE,
    Ops.SHL, Ops.SHR, Ops.SUB, Ops.WHERE, Ops.XOR,
)  # fmt: skip
Shape = tuple[Any, ...]


def alu_dtype(op: Ops, src: tuple[UOp, ...]) -> DType:
    """Dtype of an elementwise node (CAST and BITCAST have it as their own)."""
    if op in COMPARE:
        return dtypes.bool.vec(src[0].dtype.count)
    return src[1].dtype if op is WHERE else src[0].dtype


def check_alu(op: Ops, src: tuple[UOp, ...]) -> None:
    """Raises DTypeError for dtypes of sources that an elementwise op cannot combine."""
    values = src[1:] if op is WHERE else src
    first = values[0].dtype
    if op is WHERE and src[0].dtype is not dtypes.bool:
        raise DTypeError(f"where: the condition is {src[0].dtype.name}; bool is wanted")
    if op in (SHL, SHR):
        values = values[:1]
    for value in values:
        if value.dtype is not first:
            names = ", ".join(v.dtype.name for v in values)
            raise DTypeError(f"{op.name.lower()}: dtypes differ ({names}); cast them to one")


def show_shape(shape: Shape) -> str:
    """A shape as text, `[2,3]`; symbolic sizes as expressions."""
    return "[" + ",".join([str(s) if isinstance(s, int) else render_expr(s) for s in shape]) + "]"


def max_shape(shape: Shape) -> tuple[int, ...]:
    """The shape with each symbolic size at its largest, for which memory is allocated."""
    return tuple([s if isinstance(s, int) else max(int(s.bounds[1]), 0) for s in shape])


def merged_arg(u: UOp) -> Any:
    """The argument of a movement op with its symbolic sizes (sources from 1 on) filled in."""
    if len(u.src) == 1:
        return u.arg
    rest = iter(u.src[1:])
    if u.op in (Ops.RESHAPE, Ops.EXPAND):
        return tuple([next(rest) if a is None else a for a in u.arg])
    return tuple(
        [(next(rest) if a is None else a, next(rest) if b is None else b) for a, b in u.arg]
    )


def movement_shape(u: UOp) -> Shape:
    """Shape after a movement op."""
    op = u.op
    if op is Ops.RESHAPE or op is Ops.EXPAND:
        return u.arg if len(u.src) == 1 else tuple(merged_arg(u))
    shape = u.src[0]._shape
    if op is Ops.PERMUTE:
        return tuple([shape[i] for i in u.arg])
    if op is Ops.FLIP or op is Ops.NAME:
        return tuple(shape)
    arg = merged_arg(u)
    if op is Ops.PAD:
        return tuple([s + b + a for s, (b, a) in zip(shape, arg, strict=True)])
    return tuple([b - a for a, b in arg])


def infer_shape(u: UOp) -> Shape | None:
    """Shape of a node, given those of its sources; None for what has no value."""
    op = u.op
    if op in ELEMENTWISE:
        if op is Ops.BITCAST and u.dtype.itemsize != u.src[0].dtype.itemsize:
            shape = u.src[0].shape
            nbytes = shape[-1] * u.src[0].dtype.itemsize
            return (*shape[:-1], nbytes // u.dtype.itemsize)
        # Scalars (constants) broadcast to any shape; other sources must have equal shapes.
        best: Shape = ()
        for s in u.src:
            shape = s._shape
            if shape:
                if best and shape != best:
                    raise ShapeError(
                        f"{op.name.lower()}: shapes {show_shape(best)} and "
                        f"{show_shape(shape)} differ; broadcast them first"
                    )
                best = shape
        return best
    if op in MOVEMENT:
        return movement_shape(u)
    rule = SHAPE_RULES.get(op)
    return None if rule is None else rule(u)


def shape_of_reduce(u: UOp) -> Shape:
    """Tensor stage: reduced axes become 1. Kernel stage: the shape of the value."""
    axes = u.arg.axes
    return tuple([1 if i in axes else s for i, s in enumerate(u.src[0].shape)])


def shape_of_index(u: UOp) -> Shape:
    """The common shape of all indices (scalars broadcast), then the axes without an index."""
    source: Shape = u.src[0].shape or ()
    rest = source[len(u.src) - 1 :]
    for i in u.src[1:]:
        shape: Shape = i.shape
        if shape:
            return shape + rest
    return rest


def shape_of_multi(u: UOp) -> Shape:
    """The shape of a source, with the sharded axis as long as all parts together."""
    shape = u.src[0].shape
    axis = u.arg.axis
    if axis is None:
        return tuple(shape)
    return (*shape[:axis], shape[axis] * len(u.src), *shape[axis + 1 :])


SHAPE_RULES: dict[Ops, Callable[[Any], Shape | None]] = {
    Ops.CONST: lambda u: (),
    Ops.BUFFER: lambda u: (u.arg.size,),
    Ops.PARAM: lambda u: (u.arg.size,),
    Ops.DEFINE_VAR: lambda u: (),
    Ops.IOTA: lambda u: (u.src[0].arg if u.src[0].op is Ops.CONST else u.src[0],),
    Ops.RANGE: lambda u: (),
    Ops.DEFINE_LOCAL: lambda u: (u.arg.size,),
    Ops.DEFINE_REG: lambda u: (),
    Ops.BIND: lambda u: (),
    Ops.CONTIGUOUS: lambda u: u.src[0].shape,
    Ops.CONTIGUOUS_BACKWARD: lambda u: u.src[0].shape,
    Ops.DETACH: lambda u: u.src[0].shape,
    Ops.CUSTOM_GRADIENT: lambda u: u.src[0].shape,
    Ops.COPY: lambda u: u.src[0].shape,
    Ops.MULTI: shape_of_multi,
    Ops.AFTER: lambda u: u.src[0].shape,
    Ops.REDUCE: shape_of_reduce,
    Ops.SCATTER: lambda u: u.arg.shape,
    Ops.CALL: lambda u: u.src[u.arg.output].shape,
    Ops.STAGE: lambda u: tuple(
        [r.src[0].arg if r.src[0].op is Ops.CONST else r.src[0] for r in u.src[1:]]
    ),
    Ops.INDEX: shape_of_index,
    Ops.LOAD: lambda u: (),
    Ops.ACCUMULATE: lambda u: (),
    Ops.SHUFFLE: lambda u: (),
    Ops.LDMATRIX: lambda u: (),
    Ops.MMA: lambda u: (),
}


def infer_device(u: UOp) -> str | tuple[str, ...] | None:
    """The device (or devices) of a tensor-stage value; None if it has none, as constants."""
    if u.op is Ops.MULTI:
        return tuple([s.device for s in u.src])
    if u.op in (Ops.BUFFER, Ops.COPY, Ops.DEVICE, Ops.PARAM, Ops.STAGE):
        own: str | tuple[str, ...] | None = u.arg.device
        if own is not None or not u.src:
            return own
    for s in u.src:
        found: str | tuple[str, ...] | None = s._device
        if found is not None:
            return found
    return None


def bounds_of_alu(u: UOp) -> tuple[Any, Any] | None:
    """Bounds of an integer or boolean elementwise node, or None where nothing is known."""
    op = u.op
    if op is WHERE:
        condition, x, y = u.src
        c0, c1 = condition._bounds
        if c0 == c1:
            taken: tuple[Any, Any] = (x if c0 else y)._bounds
            return taken
        (a0, a1), (b0, b1) = bounds_where(condition, x, True), bounds_where(condition, y, False)
        return min(a0, b0), max(a1, b1)
    if op not in BINARY or len(u.src) != 2:
        return None
    (a0, a1), (b0, b1) = u.src[0]._bounds, u.src[1]._bounds
    if op is ADD:
        return a0 + b0, a1 + b1
    if op is SUB:
        return a0 - b1, a1 - b0
    if op is MUL:
        ends = (a0 * b0, a0 * b1, a1 * b0, a1 * b1)
        return min(ends), max(ends)
    if op is MAX:
        return max(a0, b0), max(a1, b1)
    if op is CMPLT:
        return a1 < b0, a0 < b1
    if op is CMPNE:
        return a1 < b0 or b1 < a0, not a0 == a1 == b0 == b1
    if op is CMPEQ:
        return a0 == a1 == b0 == b1, not (a1 < b0 or b1 < a0)
    if op is AND and u.dtype is dtypes.bool:
        return a0 and b0, a1 and b1
    if op is OR and u.dtype is dtypes.bool:
        return a0 or b0, a1 or b1
    if (op is XOR or op is OR) and a0 >= 0 and b0 >= 0:
        return 0, (1 << int(max(a1, b1)).bit_length()) - 1
    if op is AND and b0 == b1 >= 0:
        return 0, (min(b0, a1) if a0 >= 0 else b0)
    if u.dtype is dtypes.index and op in (IDIV, MOD):
        return bounds_of_floor(op, a0, a1, b0, b1) if b0 > 0 or b1 < 0 else None
    if op is IDIV and (b0 > 0 or b1 < 0):
        ends = (cdiv(a0, b0), cdiv(a0, b1), cdiv(a1, b0), cdiv(a1, b1))
        return (
            min(*ends, 0) if a0 <= 0 <= a1 else min(ends),
            max(*ends, 0) if a0 <= 0 <= a1 else max(ends),
        )
    if op is MOD and b0 > 0:
        if b0 == b1 and cdiv(a0, b0) == cdiv(a1, b0) and (a0 >= 0) == (a1 >= 0):
            return cmod(a0, b0), cmod(a1, b0)
        return (0 if a0 >= 0 else -(min(b1 - 1, -a0))), (min(b1 - 1, a1) if a1 >= 0 else 0)
    if op is SHL and b0 == b1 and 0 <= b0 < 64:
        return a0 << b0, a1 << b0
    if op is SHR and b0 == b1 and 0 <= b0 < 64 and a0 >= 0:
        return a0 >> b0, a1 >> b0
    return None


def bounds_where(condition: UOp, value: UOp, holds: bool) -> tuple[Any, Any]:
    """Bounds of `value`, given whether a comparison of index values holds.

    A comparison of the value, or of the value minus a constant, with a constant narrows its bounds:
    the form of clamps and minima.
    """
    low, high = value._bounds
    if condition.op is not Ops.CMPLT or value.dtype is not dtypes.index:
        return low, high
    x, y = condition.src
    above = x.op is Ops.CONST
    term, limit = (y, x.arg) if above else (x, y.arg)
    if not above and y.op is not Ops.CONST:
        return low, high
    shift = 0
    if value is not term:
        if value.op is not Ops.ADD or value.src[0] is not term or value.src[1].op is not Ops.CONST:
            return low, high
        shift = value.src[1].arg
    if above is holds:
        # limit < term, or not term < limit
        low = max(low, limit + shift + (1 if holds else 0))
    else:
        high = min(high, limit + shift - (1 if holds else 0))
    # Crossed bounds mean that the branch is never taken.
    return (low, high) if low <= high else value._bounds


def bounds_of_floor(op: Ops, a0: int, a1: int, b0: int, b1: int) -> tuple[int, int]:
    """Bounds of an index division or remainder, which round down; the divisor's sign is fixed."""
    if op is Ops.IDIV:
        ends = (a0 // b0, a0 // b1, a1 // b0, a1 // b1)
        return min(ends), max(ends)
    if b0 == b1 and a0 // b0 == a1 // b0:
        return a0 % b0, a1 % b0
    if b1 < 0:
        return b0 + 1, 0
    return 0, (min(b1 - 1, a1) if a0 >= 0 else b1 - 1)


def infer_bounds(u: UOp) -> tuple[Any, Any]:
    """Least and greatest value of an integer or boolean node; of others, those of the dtype."""
    op, dtype = u.op, u.dtype
    if op is CONST:
        return u.arg, u.arg
    if op is RANGE or op is IOTA:
        return 0, max(u.src[0]._bounds[1] - 1, 0)
    if op is DEFINE_VAR:
        return u.arg.min, u.arg.max
    if op is BIND or op is NAME:
        bound: tuple[Any, Any] = u.src[0]._bounds
        return bound
    low, high = dtypes.min(dtype), dtypes.max(dtype)
    if dtype.kind in ("int", "uint", "index", "bool"):
        found: tuple[Any, Any] | None = None
        if op is CAST and u.src[0].dtype.kind in ("int", "uint", "index", "bool"):
            a0, a1 = u.src[0]._bounds
            found = (int(a0), int(a1)) if dtype.kind != "bool" else None
        elif op in ELEMENTWISE and op not in (CAST, BITCAST):
            if op in COMPARE and u.src[0].dtype.kind == "float":
                return False, True
            found = bounds_of_alu(u)
        # Arithmetic that may leave the dtype wraps, so nothing is known of it then.
        if found is not None and low <= found[0] and found[1] <= high:
            return found
    return low, high


def check_reshape(old: Shape, new: Shape) -> None:
    """Raises ShapeError unless both shapes hold the same number of elements."""
    if not prod(old) == prod(new):
        raise ShapeError(
            f"reshape: {show_shape(old)} has {prod(old)} elements, "
            f"{show_shape(new)} has {prod(new)}"
        )
