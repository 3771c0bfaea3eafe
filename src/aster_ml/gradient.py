"""Gradients: one rule per op, and the walk from a value back to what it was computed from.

Receives nodes of the tensor stage and returns nodes of the tensor stage. A rule builds plain graph,
so a gradient can be differentiated again. Nothing here knows of tensors, devices or memory.

A gradient that is one number everywhere stays a CONST without axes, which stands beside any shape;
only at the end does it take the shape of its target. Constant factors are gathered as the graph is
built, so that the gradient of `exp` is `g * exp(x)`, and that of a mean is a number.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

from aster_ml.dtype import DType, can_lossless_cast, dtypes, sum_acc_dtype, truncate
from aster_ml.errors import GradientError, InternalError
from aster_ml.helpers import argsort, prod
from aster_ml.uop.graph import toposort
from aster_ml.uop.infer import Shape, show_shape
from aster_ml.uop.node import MOVEMENT_SET, UOp
from aster_ml.uop.ops import ELEMENTWISE, DeviceArg, Ops

# The gradient of source `i` of a node, given the gradient of the node; None where none passes.
Rule: TypeAlias = Callable[[UOp, UOp, int], UOp | None]

LN2 = math.log(2)
# Factors are gathered while their product stays far from overflow and underflow, float16 included.
LEAST_FACTOR, GREATEST_FACTOR = 1e-4, 1e4


# how gradients are written down: folds constants, drops what changes nothing


def number_of(u: UOp) -> Any:
    """The number that `u` is everywhere, or None."""
    while u.op in SPREADS:
        u = u.src[0]
    return u.arg if u.op is Ops.CONST else None


SPREADS = frozenset({Ops.RESHAPE, Ops.EXPAND, Ops.PERMUTE, Ops.FLIP, Ops.SHRINK, Ops.DETACH})


def is_zero(u: UOp) -> bool:
    """Whether `u` is the constant zero."""
    return u.op is Ops.CONST and u.arg == 0


def constant(dtype: DType, value: Any) -> UOp:
    """The number `value` as `dtype` holds it."""
    return UOp.const(dtype, truncate(value, dtype))


def convert(u: UOp, dtype: DType) -> UOp:
    """`u` as `dtype`; there and back through a wider type is no conversion."""
    if u.dtype is dtype:
        return u
    if u.op is Ops.CONST:
        return constant(dtype, u.arg)
    if u.op is Ops.CAST and u.src[0].dtype is dtype and can_lossless_cast(dtype, u.dtype):
        return u.src[0]
    return u.cast(dtype)


def scale(u: UOp, factor: float) -> UOp:
    """`u * factor`, gathered with a factor that `u` has already."""
    if factor == 1 or is_zero(u):
        return u
    if u.op is Ops.CONST:
        return constant(u.dtype, u.arg * factor)
    if factor == 0:
        return UOp.const(u.dtype, 0)
    if u.op is Ops.MUL and u.src[1].op is Ops.CONST:
        both = u.src[1].arg * factor
        if LEAST_FACTOR < abs(both) < GREATEST_FACTOR:
            # A factor and its reciprocal, each rounded, are one where the dtype cannot tell.
            return scale(u.src[0], 1.0 if truncate(both, u.dtype) == 1 else both)
    return negate(u) if factor == -1 else u.alu(Ops.MUL, UOp.const(u.dtype, factor))


def negate(u: UOp) -> UOp:
    """`-u`, the sign put into a constant factor where there is one."""
    if u.op is Ops.NEG:
        return u.src[0]
    if u.op is Ops.CONST or (u.op is Ops.MUL and u.src[1].op is Ops.CONST):
        return scale(u, -1.0)
    return u.alu(Ops.NEG)


def add(a: UOp, b: UOp) -> UOp:
    """`a + b` of two gradients of one value."""
    if is_zero(a):
        return b
    if is_zero(b):
        return a
    if a is b:
        return scale(a, 2.0)
    if a.op is Ops.CONST:
        a, b = b, a
    if a.op is Ops.CONST:
        return constant(a.dtype, a.arg + b.arg)
    return a.alu(Ops.SUB, b.src[0]) if b.op is Ops.NEG else a.alu(Ops.ADD, b)


def multiply(g: UOp, x: UOp) -> UOp:
    """`g * x`."""
    number = number_of(x)
    if number is not None:
        return scale(g, number)
    return scale(x, g.arg) if g.op is Ops.CONST else g.alu(Ops.MUL, x)


def divide(g: UOp, x: UOp) -> UOp:
    """`g / x`."""
    if is_zero(g):
        return g
    number = number_of(x)
    if number is None:
        return g.alu(Ops.FDIV, x)
    if g.op is Ops.CONST and number != 0:
        return constant(g.dtype, g.arg / number)
    if number != 0 and math.frexp(number)[0] in (0.5, -0.5) and math.isfinite(1 / number):
        return scale(g, 1 / number)
    return g.alu(Ops.FDIV, UOp.const(g.dtype, number))


def choose(condition: UOp, x: UOp, y: UOp) -> UOp:
    """`x` where the condition holds, else `y`."""
    return x if x is y else condition.alu(Ops.WHERE, x, y)


def zero(u: UOp) -> UOp:
    """The number zero of the dtype of `u`."""
    return UOp.const(u.dtype, 0)


def reshape(u: UOp, shape: Shape) -> UOp:
    """`u` with another shape; a number needs none."""
    if u.op is Ops.CONST or u.shape == shape:
        return u
    if u.op is Ops.RESHAPE:
        return reshape(u.src[0], shape)
    return u.mop(Ops.RESHAPE, shape)


def spread(u: UOp, shape: Shape) -> UOp:
    """`u`, whose sizes are those of `shape` or 1, or which has no axes, with this shape."""
    if u.shape == shape:
        return u
    if u.op is Ops.CONST or not u.shape:
        u = u.mop(Ops.RESHAPE, (1,) * len(shape))
    return u if u.shape == shape else u.mop(Ops.EXPAND, shape)


def total(u: UOp, axes: tuple[int, ...]) -> UOp:
    """Sum over `axes`, which stay with size 1; halves are added up in float32."""
    wide = sum_acc_dtype(u.dtype)
    return convert(convert(u, wide).rop(Ops.ADD, axes), u.dtype)


# elementwise


def of_mul(g: UOp, u: UOp, i: int) -> UOp:
    """Of x * y: g * y, g * x."""
    return multiply(g, u.src[1 - i])


def of_fdiv(g: UOp, u: UOp, i: int) -> UOp:
    """Of x / y: g / y, -(g / y) * (x / y)."""
    quotient = divide(g, u.src[1])
    return quotient if i == 0 else negate(multiply(quotient, u))


def of_sin(g: UOp, u: UOp, i: int) -> UOp:
    """Of sin(x): g * cos(x), as 1 - 2 * sin(x / 2)**2, which keeps a large x exact."""
    half = scale(u.src[0], 0.5).alu(Ops.SIN)
    return multiply(g, UOp.const(u.dtype, 1).alu(Ops.SUB, scale(half.alu(Ops.MUL, half), 2.0)))


def of_max(g: UOp, u: UOp, i: int) -> UOp | None:
    """Of max(x, y): g to the larger, half to each where they are equal."""
    x, y = u.src[i], u.src[1 - i]
    below = x.alu(Ops.CMPLT, y)
    if x.op is Ops.NEG and x.src[0] is y:
        return None
    if y.op is Ops.NEG and y.src[0] is x:
        # |x|, whose slope is the sign of x; the two halves at 0 cancel out.
        flat = choose(x.alu(Ops.CMPEQ, y), zero(g), g)
        return choose(below, negate(g), flat)
    return choose(below, zero(g), choose(x.alu(Ops.CMPEQ, y), scale(g, 0.5), g))


def of_pow(g: UOp, u: UOp, i: int) -> UOp:
    """Of x**y: g * y * x**(y-1), g * x**y * log(x); both 0 where the limit is, at x = 0."""
    x, y = u.src
    power = number_of(y)
    if i == 0 and power is not None:
        if power in (0, 1, 2):
            return scale(g if power < 2 else multiply(g, x), power)
        return scale(multiply(g, x.alu(Ops.POW, UOp.const(u.dtype, power - 1))), power)
    at_zero = x.alu(Ops.CMPEQ, zero(x))
    one = UOp.const(u.dtype, 1)
    if i == 0:
        # 0 * 0**-1 is 0 here, as y * x**(y-1) is for every other x at y = 0.
        base = choose(at_zero.alu(Ops.AND, y.alu(Ops.CMPEQ, zero(y))), one, x)
        return multiply(multiply(g, y), base.alu(Ops.POW, y.alu(Ops.SUB, one)))
    flat = at_zero.alu(Ops.AND, y.alu(Ops.CMPLT, zero(y)).alu(Ops.CMPNE, TRUE))
    return scale(multiply(multiply(g, u), choose(flat, one, x).alu(Ops.LOG2)), LN2)


TRUE = UOp.const(dtypes.bool, True)


def of_where(g: UOp, u: UOp, i: int) -> UOp:
    """Of where(c, x, y): where(c, g, 0), where(c, 0, g)."""
    return choose(u.src[0], g, zero(g)) if i == 1 else choose(u.src[0], zero(g), g)


def of_mulacc(g: UOp, u: UOp, i: int) -> UOp:
    """Of x * y + z: g * y, g * x, g."""
    return g if i == 2 else multiply(g, u.src[1 - i])


def of_bitcast(g: UOp, u: UOp, i: int) -> UOp:
    """Of the bits read as another type: bits have no slope."""
    raise GradientError(f"gradient: bitcast from {u.src[0].dtype.name} to {u.dtype.name} has none; "
                        "detach its source, or cast instead")


# movement: the same movement backwards


def of_expand(g: UOp, u: UOp, i: int) -> UOp:
    """Of an EXPAND: the sum over the axes that it repeats."""
    old, new = u.src[0].shape, u.shape
    axes = tuple([a for a in range(len(new)) if not (old[a] is new[a] or old[a] == new[a])])
    if not axes:
        return g
    if g.op is Ops.CONST:
        count = prod([new[a] for a in axes])
        if isinstance(count, int):
            return scale(g, count)
        g = spread(g, new)
    return total(g, axes)


def of_permute(g: UOp, u: UOp, i: int) -> UOp:
    """Of a PERMUTE: the inverse permutation."""
    return g if g.op is Ops.CONST else g.mop(Ops.PERMUTE, argsort(u.arg))


def of_pad(g: UOp, u: UOp, i: int) -> UOp:
    """Of a PAD: what is left without the padding."""
    if g.op is Ops.CONST:
        return g
    kept = [(before, before + size) for (before, _), size in zip(u.marg, u.src[0].shape)]
    return g.mop(Ops.SHRINK, tuple(kept))


def of_shrink(g: UOp, u: UOp, i: int) -> UOp:
    """Of a SHRINK: zeros where elements were cut off."""
    if is_zero(g):
        return g
    cut = [(start, size - stop) for (start, stop), size in zip(u.marg, u.src[0].shape)]
    return spread(g, u.shape).mop(Ops.PAD, tuple(cut))


def of_flip(g: UOp, u: UOp, i: int) -> UOp:
    """Of a FLIP: the same FLIP."""
    return g if g.op is Ops.CONST else g.mop(Ops.FLIP, u.arg)


# reductions and places


def of_reduce(g: UOp, u: UOp, i: int) -> UOp:
    """Of a sum: g everywhere; of a maximum: shared by those that reach it; of a product: below."""
    x, op, axes = u.src[0], u.arg.op, u.arg.axes
    if op is Ops.ADD:
        return g if g.op is Ops.CONST else spread(g, x.shape)
    if op is Ops.MAX:
        reached = x.alu(Ops.CMPEQ, spread(u, x.shape))
        count = reached.cast(sum_acc_dtype(u.dtype)).rop(Ops.ADD, axes)
        share = divide(convert(g, count.dtype), count)
        return choose(reached, spread(convert(share, u.dtype), x.shape), zero(g))
    if op is Ops.MUL:
        tree = product_tree(x, axes)
        return propagate(toposort(tree, enter=lambda v: v is not x), g, {x})[x]
    raise GradientError(f"gradient: a reduction with {op.name} has none")


def product_tree(x: UOp, axes: tuple[int, ...]) -> UOp:
    """The product over `axes` as multiplications of halves.

    Their gradients multiply the other factors instead of dividing by one's own, and so are right
    at zeros, at every order.
    """
    for axis in axes:
        size = x.shape[axis]
        if not isinstance(size, int):
            raise GradientError(f"gradient: the product over axis {axis} of "
                                f"{show_shape(x.shape)} has none, as the size is symbolic")
        odd: list[UOp] = []
        while size > 1:
            half = size // 2
            if size % 2:
                odd.append(cut_axis(x, axis, size - 1, size))
            x = cut_axis(x, axis, 0, half).alu(Ops.MUL, cut_axis(x, axis, half, 2 * half))
            size = half
        for factor in odd:
            x = x.alu(Ops.MUL, factor)
    return x


def cut_axis(u: UOp, axis: int, start: int, stop: int) -> UOp:
    """`u` from `start` to `stop` along one axis."""
    kept = [(start, stop) if a == axis else (0, size) for a, size in enumerate(u.shape)]
    return u.mop(Ops.SHRINK, tuple(kept))


def of_index(g: UOp, u: UOp, i: int) -> UOp:
    """Of elements taken at indices: added up where they were taken; none for the indices."""
    shape = u.src[0].shape
    if not all(isinstance(size, int) for size in shape):
        raise GradientError(f"gradient: indexing {show_shape(shape)} has none, as a size is "
                            "symbolic")
    wide = convert(spread(g, u.shape), sum_acc_dtype(u.dtype))
    return convert(wide.scatter_at(shape, *u.src[1:]), u.dtype)


def of_scatter(g: UOp, u: UOp, i: int) -> UOp:
    """Of elements added up at indices: what stands there; none for the indices."""
    return g if g.op is Ops.CONST else g.gather_at(*u.src[1:])


def of_copy(g: UOp, u: UOp, i: int) -> UOp:
    """Of a copy: copied back."""
    device = u.src[0].device
    return g if g.op is Ops.CONST or device in (None, u.device) else g.copy_to(device)


def of_contiguous_backward(g: UOp, u: UOp, i: int) -> UOp:
    """Of the mark that asks for it: g, stored."""
    return UOp(Ops.CONTIGUOUS, g.dtype, (spread(g, u.shape),))


def of_after(g: UOp, u: UOp, i: int) -> UOp | None:
    """Of memory after it was written to: to each write what it wrote that still stands, to the
    old content what no write reached.
    """
    for effect in reversed(u.src[i + 1:]):
        views = written_views(u, effect)
        if not any(view.op is Ops.SHRINK for view in views):
            return None
        mask = spread(TRUE, views[0].shape)
        for view in views:
            back = GRADIENT[view.op](mask, view, 0)
            mask = mask if back is None else back
        g = choose(mask, zero(g), g)
    if i == 0:
        return g
    for view in reversed(written_views(u, u.src[i])):
        g = g if g.op is Ops.CONST else UOp(view.op, g.dtype, (g, *view.src[1:]), view.arg)
    return g


def written_views(after: UOp, effect: UOp) -> list[UOp]:
    """The movement ops between what a STORE writes to and the memory under AFTER, last first."""
    if effect.op is not Ops.STORE:
        raise GradientError(f"gradient: {effect.op.name}, an effect on memory, has none")
    views = []
    place = effect.src[0]
    while place is not after.src[0]:
        if place.op not in MOVEMENT_SET:
            raise GradientError("gradient: a write through another view of the same memory has "
                                "none; assign to the tensor itself, or detach the value")
        views.append(place)
        place = place.src[0]
    return views


GRADIENT: dict[Ops, Rule] = {
    Ops.ADD: lambda g, u, i: g,
    Ops.SUB: lambda g, u, i: g if i == 0 else negate(g),
    Ops.MUL: of_mul,
    Ops.FDIV: of_fdiv,
    Ops.NEG: lambda g, u, i: negate(g),
    Ops.RECIPROCAL: lambda g, u, i: negate(multiply(multiply(g, u), u)),
    Ops.EXP2: lambda g, u, i: scale(multiply(g, u), LN2),
    Ops.LOG2: lambda g, u, i: divide(scale(g, 1 / LN2), u.src[0]),
    Ops.SIN: of_sin,
    Ops.SQRT: lambda g, u, i: divide(scale(g, 0.5), u),
    Ops.TRUNC: lambda g, u, i: zero(g),
    Ops.MAX: of_max,
    Ops.POW: of_pow,
    Ops.WHERE: of_where,
    Ops.MULACC: of_mulacc,
    Ops.CAST: lambda g, u, i: g,
    Ops.BITCAST: of_bitcast,
    Ops.RESHAPE: lambda g, u, i: reshape(g, u.src[0].shape),
    Ops.EXPAND: of_expand,
    Ops.PERMUTE: of_permute,
    Ops.PAD: of_pad,
    Ops.SHRINK: of_shrink,
    Ops.FLIP: of_flip,
    Ops.REDUCE: of_reduce,
    Ops.INDEX: of_index,
    Ops.SCATTER: of_scatter,
    Ops.CONTIGUOUS: lambda g, u, i: g,
    Ops.CONTIGUOUS_BACKWARD: of_contiguous_backward,
    Ops.COPY: of_copy,
    Ops.AFTER: of_after,
    Ops.STORE: lambda g, u, i: g if i == 1 else None,
}

# Ops that no gradient passes: leaves, marks that stop it, and what only integers and bools have.
# Comparisons and integers end the walk by their dtype. Every op that is neither here nor above is
# of a later stage and an error on the way.
NO_GRADIENT = frozenset({
    Ops.CONST, Ops.BUFFER, Ops.PARAM, Ops.DEFINE_VAR, Ops.IOTA, Ops.BIND, Ops.DEVICE, Ops.DETACH,
    Ops.CMPLT, Ops.CMPNE, Ops.CMPEQ, Ops.XOR, Ops.OR, Ops.AND, Ops.SHL, Ops.SHR, Ops.THREEFRY,
    Ops.IDIV, Ops.MOD,
})


# the walk


def passes_gradient(u: UOp) -> bool:
    """Whether a gradient can go from this node to its sources."""
    return (u.dtype.kind == "float" or u.op is Ops.STORE) and u.op not in NO_GRADIENT


def fit(g: UOp, source: UOp, node: UOp) -> UOp:
    """`g`, which `node` gives to `source`, with the dtype of `source` and its shape."""
    if source.op is Ops.STORE:
        return g
    g = convert(g, source.dtype)
    shape = source.shape
    if not shape and node.op in ELEMENTWISE and node.shape:
        # A source without axes stands beside every element, so what all of them give adds up.
        g = spread(g, node.shape)
        return reshape(total(g, tuple(range(len(node.shape)))), ())
    if g.op is Ops.CONST or g.shape == shape:
        return g
    if g.shape:
        raise InternalError(f"gradient: {node!r} gives {show_shape(g.shape)} to a source of "
                            f"{show_shape(shape)}")
    return spread(g, shape)


def propagate(order: Iterable[UOp], root_grad: UOp, targets: set[UOp]) -> dict[UOp, UOp]:
    """Gradients of the targets that the last node of `order` depends on.

    `order` has sources before those that use them. What the rules return is fitted and added up.
    """
    path: dict[UOp, None] = {}
    for u in order:
        if u in targets or (passes_gradient(u) and any(s in path for s in u.src)):
            path[u] = None
    if not path or next(reversed(path)) is not u:
        return {}
    result: dict[UOp, UOp] = {}
    grads = {u: root_grad}
    for u in reversed(path):
        g = grads.pop(u, None)
        if g is None:
            continue
        if u in targets:
            result[u] = g
        if not passes_gradient(u):
            continue
        rule = GRADIENT.get(u.op)
        for i, source in enumerate(u.src):
            if source not in path:
                continue
            if rule is None:
                raise GradientError(f"gradient: {u.op.name}, of {u.dtype.name} "
                                    f"{show_shape(u.shape or ())}, has none; detach what goes "
                                    "into it where it should count as a constant")
            part = rule(g, u, i)
            if part is not None:
                part = fit(part, source, u)
                before = grads.get(source)
                grads[source] = part if before is None else add(before, part)
    return result


def compute_gradient(root: UOp, root_grad: UOp, targets: set[UOp]) -> dict[UOp, UOp]:
    """The gradient of `root` for each of the targets that it depends on.

    `root_grad` is the gradient of `root` itself: one number, or of its shape. A target that `root`
    depends on through integers, comparisons or DETACH alone is not in the result.

    Dtype: those of the targets.
    Raises: GradientError for a root or target that is no float, and where an op without a gradient
    stands between.
    """
    for u in (root, *targets):
        if u.dtype.kind != "float":
            what = "the root" if u is root else "a target"
            raise GradientError(f"gradient: {what} is {u.dtype.name}; only floats have gradients, "
                                "cast it to one")
    number = number_of(root_grad)
    start = convert(root_grad if number is None else UOp.const(root_grad.dtype, number),
                    root.dtype)
    if start.shape and start.shape != root.shape:
        raise GradientError(f"gradient: that of the root is {show_shape(start.shape)}, "
                            f"the root is {show_shape(root.shape)}; the same shape is wanted")
    found = propagate(toposort(root, enter=passes_gradient), start, targets)
    return {u: place(g, u) for u, g in found.items()}


def place(g: UOp, target: UOp) -> UOp:
    """`g` with the shape of its target; a number takes the device as well."""
    if g.op is Ops.CONST and target.device is not None:
        device = UOp(Ops.DEVICE, dtypes.void, (), DeviceArg(target.device))
        g = UOp(Ops.CONST, g.dtype, (device,), g.arg)
    return spread(g, target.shape)
