"""Gradients: one rule per op, and the walk from a value back to what it was computed from.

Receives nodes of the tensor stage and returns nodes of the tensor stage. A rule builds plain graph,
so a gradient can be differentiated again. Nothing here knows of tensors, devices or memory.

A gradient that is one number everywhere stays a CONST without axes, which stands beside any shape;
only at the end does it take the shape of its target. `uop.terms` folds and gathers numbers as the
graph is built, so that the gradient of `exp` is `g * exp(x)`, and that of a mean is a number.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import TypeAlias

from aster_ml.dtype import dtypes, sum_acc_dtype
from aster_ml.errors import GradientError, InternalError
from aster_ml.helpers import argsort, prod
from aster_ml.uop.graph import toposort
from aster_ml.uop.infer import show_shape
from aster_ml.uop.node import MOVEMENT_SET, UOp
from aster_ml.uop.ops import ELEMENTWISE, DeviceArg, Ops
from aster_ml.uop.terms import (
    add,
    choose,
    convert,
    divide,
    is_number,
    is_zero,
    multiply,
    negate,
    reshape,
    scale,
    spread,
    total,
    zero,
)

# The gradient of source `i` of a node, given the gradient of the node; None where none passes.
Rule: TypeAlias = Callable[[UOp, UOp, int], UOp | None]

LN2 = math.log(2)


# elementwise


def of_mul(g: UOp, u: UOp, i: int) -> UOp | None:
    """Of x * y: g * y, g * x; of a square: 2 * g * x, once."""
    if u.src[0] is u.src[1]:
        return multiply(scale(g, 2.0), u.src[0]) if i == 0 else None
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
    if i == 0 and is_number(y):
        power = y.arg
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
    if is_number(g):
        count = prod([new[a] for a in axes])
        if isinstance(count, int):
            return scale(g, count)
        g = spread(g, new)
    return total(g, axes)


def of_permute(g: UOp, u: UOp, i: int) -> UOp:
    """Of a PERMUTE: the inverse permutation."""
    return g if is_number(g) else g.mop(Ops.PERMUTE, argsort(u.arg))


def of_pad(g: UOp, u: UOp, i: int) -> UOp:
    """Of a PAD: what is left without the padding."""
    if is_number(g):
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
    return g if is_number(g) else g.mop(Ops.FLIP, u.arg)


# reductions and places


def of_reduce(g: UOp, u: UOp, i: int) -> UOp:
    """Of a sum: g everywhere; of a maximum: shared by those that reach it; of a product: below."""
    x, op, axes = u.src[0], u.arg.op, u.arg.axes
    if op is Ops.ADD:
        return g if is_number(g) else spread(g, x.shape)
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
    return g if is_number(g) else g.gather_at(*u.src[1:])


def of_copy(g: UOp, u: UOp, i: int) -> UOp:
    """Of a copy: copied back."""
    device = u.src[0].device
    return g if is_number(g) or device in (None, u.device) else g.copy_to(device)


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
        g = g if is_number(g) else UOp(view.op, g.dtype, (g, *view.src[1:]), view.arg)
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
    if is_number(g) or g.shape == shape:
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
    if root_grad.op is Ops.CONST:
        root_grad = UOp.const(root_grad.dtype, root_grad.arg)
    start = convert(root_grad, root.dtype)
    if start.shape and start.shape != root.shape:
        raise GradientError(f"gradient: that of the root is {show_shape(start.shape)}, "
                            f"the root is {show_shape(root.shape)}; the same shape is wanted")
    found = propagate(toposort(root, enter=passes_gradient), start, targets)
    return {u: place(g, u) for u, g in found.items()}


def place(g: UOp, target: UOp) -> UOp:
    """`g` with the shape of its target; a number takes the device as well."""
    if is_number(g) and target.device is not None:
        device = UOp(Ops.DEVICE, dtypes.void, (), DeviceArg(target.device))
        g = UOp(Ops.CONST, g.dtype, (device,), g.arg)
    return spread(g, target.shape)
