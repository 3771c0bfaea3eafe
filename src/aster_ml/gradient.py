"""Computes gradients by reverse-mode differentiation: one rule per op, and a walk over the graph.

Receives nodes of the tensor stage and returns nodes of the tensor stage. Rules build ordinary
nodes, so a gradient can be differentiated again. Tensors, devices and memory do not belong here.

A gradient that is one number everywhere stays a CONST without axes, which broadcasts to any shape;
it takes the shape of its target at the end. `Term` folds numbers while the graph is built, so that
the gradient of `exp` is `g * exp(x)`, and the gradient of a mean is a number.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterable
from typing import TYPE_CHECKING, Any, TypeAlias

from aster_ml.dtype import dtypes, sum_acc_dtype
from aster_ml.errors import GradientError, InternalError
from aster_ml.helpers import argsort, prod
from aster_ml.late import late
from aster_ml.uop.gradient_terms import Term, is_number, moved
from aster_ml.uop.graph import substitute_all, toposort
from aster_ml.uop.infer import max_shape, show_shape
from aster_ml.uop.interned import NODES
from aster_ml.uop.node import MOVEMENT_SET, UOp
from aster_ml.uop.ops import ANEW, ELEMENTWISE, DeviceArg, Ops

# Few values have a rule of their own.
if TYPE_CHECKING:
    from aster_ml import matrix_gradient as matrices
    from aster_ml.kernel_library import rows
else:
    matrices, rows = late("matrix_gradient"), late("kernel_library.rows")

# The gradient of source `i` of a node, given the gradient of the node; None where none passes.
Rule: TypeAlias = Callable[[Term, UOp, int], Term | None]

LN2 = math.log(2)
TRUE = UOp.const(dtypes.bool, True)


# elementwise


def of_mul(g: Term, u: UOp, i: int) -> Term | None:
    """Of x * y: g * y, g * x; of a square: 2 * g * x, once."""
    if u.src[0] is u.src[1]:
        return g.scale(2.0) * u.src[0] if i == 0 else None
    return g * u.src[1 - i]


def of_fdiv(g: Term, u: UOp, i: int) -> Term:
    """Of x / y: g / y, -(g / y) * (x / y)."""
    quotient = g / u.src[1]
    return quotient if i == 0 else -(quotient * u)


def of_sin(g: Term, u: UOp, i: int) -> Term:
    """Of sin(x): g * cos(x), as 1 - 2 * sin(x / 2)**2, which keeps a large x exact."""
    x = u.src[0]
    half = x.alu(Ops.MUL, UOp.const(x.dtype, 0.5)).alu(Ops.SIN)
    square = half.alu(Ops.MUL, half).alu(Ops.MUL, UOp.const(x.dtype, 2))
    return g * UOp.const(x.dtype, 1).alu(Ops.SUB, square)


def of_tanh(g: Term, u: UOp, i: int) -> Term:
    """Of tanh(x): g * (1 - tanh(x)**2)."""
    return g * UOp.const(u.dtype, 1).alu(Ops.SUB, u.alu(Ops.MUL, u))


def of_max(g: Term, u: UOp, i: int) -> Term | None:
    """Of max(x, y): g to the larger, half to each where they are equal."""
    x, y = u.src[i], u.src[1 - i]
    below = x.alu(Ops.CMPLT, y)
    if x.op is Ops.NEG and x.src[0] is y:
        return None
    if y.op is Ops.NEG and y.src[0] is x:
        # |x|, whose derivative is the sign of x, and 0 for NaN; the two halves at 0 cancel out.
        return (-g).where(below, g.where(y.alu(Ops.CMPLT, x)))
    return g.scale(0.5).where(x.alu(Ops.CMPEQ, y), g).unless(below)


def of_pow(g: Term, u: UOp, i: int) -> Term:
    """Of x**y: g * y * x**(y-1), g * x**y * log(x); at x = 0 both are 0 where the limit is 0."""
    x, y = u.src
    one, zero = UOp.const(u.dtype, 1), UOp.const(u.dtype, 0)
    if i == 0 and is_number(y):
        power = y.arg
        if power in (0, 1, 2):
            return (g if power < 2 else g * x).scale(power)
        return (g * x.alu(Ops.POW, UOp.const(u.dtype, power - 1))).scale(power)
    at_zero = x.alu(Ops.CMPEQ, zero)
    if i == 0:
        # 0 * 0**-1 is 0 here, as y * x**(y-1) is for every other x at y = 0.
        base = at_zero.alu(Ops.AND, y.alu(Ops.CMPEQ, zero)).alu(Ops.WHERE, one, x)
        return g * y * base.alu(Ops.POW, y.alu(Ops.SUB, one))
    flat = at_zero.alu(Ops.AND, y.alu(Ops.CMPLT, zero).alu(Ops.CMPNE, TRUE))
    return (g * u * flat.alu(Ops.WHERE, one, x).alu(Ops.LOG2)).scale(LN2)


def of_where(g: Term, u: UOp, i: int) -> Term:
    """Of where(c, x, y): where(c, g, 0), where(c, 0, g)."""
    return g.where(u.src[0]) if i == 1 else g.unless(u.src[0])


def of_mulacc(g: Term, u: UOp, i: int) -> Term:
    """Of x * y + z: g * y, g * x, g."""
    return g if i == 2 else g * u.src[1 - i]


def of_bitcast(g: Term, u: UOp, i: int) -> Term:
    """Of a BITCAST: raises GradientError, since bits have no derivative."""
    raise GradientError(
        f"gradient: bitcast from {u.src[0].dtype.name} to {u.dtype.name} has none; "
        "detach its source, or cast instead"
    )


# movement: the same movement backwards


def of_expand(g: Term, u: UOp, i: int) -> Term:
    """Of an EXPAND: the sum over the axes that it repeats."""
    old, new = u.src[0].shape, u.shape
    axes = tuple([a for a in range(len(new)) if not (old[a] is new[a] or old[a] == new[a])])
    if g.is_number:
        count = prod([new[a] for a in axes])
        if isinstance(count, int):
            return g.scale(count)
        g = g.spread(new)
    return g.total(axes) if axes else g


def of_pad(g: Term, u: UOp, i: int) -> Term:
    """Of a PAD: g without the padding."""
    shape = u.src[0].shape
    kept = [(before, before + size) for (before, _), size in zip(u.marg, shape)]
    return g.move(Ops.SHRINK, tuple(kept)).reshape(shape)


def of_shrink(g: Term, u: UOp, i: int) -> Term:
    """Of a SHRINK: zeros where elements were cut off."""
    if g.is_zero:
        return g
    shape = u.src[0].shape
    cut = [(start, size - stop) for (start, stop), size in zip(u.marg, shape)]
    # The sum of symbolic sizes may differ in form from the size of the source.
    return g.of(g.spread(u.shape).node._mop(Ops.PAD, tuple(cut))).reshape(shape)


# reductions and places


def of_reduce(g: Term, u: UOp, i: int) -> Term:
    """Of a sum: g, broadcast; of a maximum: divided among all maxima; of a product: a tree."""
    x, op, axes = u.src[0], u.arg.op, u.arg.axes
    if op is Ops.ADD:
        return g if g.is_number else g.spread(x.shape)
    if op is Ops.MAX:
        reached = x.alu(Ops.CMPEQ, g.of(u).spread(x.shape).node)
        if not any([size != 1 for size in u.shape]):
            # NaNs share the gradient of a maximum that is NaN; maxima of rows skip this for speed.
            reached = reached.alu(Ops.OR, x.alu(Ops.CMPNE, x))
        count = reached.cast(sum_acc_dtype(u.dtype))._rop(Ops.ADD, axes)
        share = (g.convert(count.dtype) / count).convert(u.dtype)
        return share.spread(x.shape).where(reached)
    if op is Ops.MUL:
        tree = product_tree(x, axes)
        return propagate(toposort(tree, enter=lambda v: v is not x), g, {x})[x]
    raise GradientError(f"gradient: a reduction with {op.name} has none; detach its source")


def product_tree(x: UOp, axes: tuple[int, ...]) -> UOp:
    """The product over `axes` as a tree of multiplications of halves.

    Gradients then multiply the other factors instead of dividing by a factor, and so are right at
    zeros, for every order of derivative.
    """
    for axis in axes:
        if not isinstance(x.shape[axis], int):
            x = filled_with_ones(x, axis)
        size = x.shape[axis]
        odd: list[UOp] = []
        while size > 1:
            half = size // 2
            if size % 2:
                odd.append(x.stretch(axis, size - 1, size))
            x = x.stretch(axis, 0, half).alu(Ops.MUL, x.stretch(axis, half, 2 * half))
            size = half
        for factor in odd:
            x = x.alu(Ops.MUL, factor)
    return x


def filled_with_ones(x: UOp, axis: int) -> UOp:
    """`x` with an axis of symbolic size padded with ones to its largest size."""
    size, room = x.shape[axis], max_shape(x.shape)[axis]
    pairs = tuple([(0, room - size) if a == axis else (0, 0) for a in range(len(x.shape))])
    shape = tuple([room if a == axis else s for a, s in enumerate(x.shape)])
    count = tuple([size if a == axis else 1 for a in range(len(x.shape))])
    marks = TRUE._mop(Ops.RESHAPE, (1,) * len(count))._mop(Ops.EXPAND, count)
    inside = marks._pad_zeros(pairs)._broadcast_to(shape)
    return inside.where(x._pad_zeros(pairs)._broadcast_to(shape), x.const_like(1))


def of_index(g: Term, u: UOp, i: int) -> Term:
    """Of a gather: g added at the indices; None for the indices."""
    shape = u.src[0].shape
    wide = g.spread(u.shape).convert(sum_acc_dtype(u.dtype)).node
    added = wide.scatter_at(max_shape(shape), *u.src[1:])
    if added.shape != shape:
        added = added._mop(Ops.SHRINK, tuple([(0, size) for size in shape]))
    return g.of(added).convert(u.dtype)


def of_scatter(g: Term, u: UOp, i: int) -> Term:
    """Of a scatter-add: g gathered at the indices; None for the indices.

    Of a scatter-max: divided among all maxima.
    """
    if u.arg.op is Ops.ADD:
        return g if g.is_number else g.of(g.node.gather_at(*u.src[1:]))
    x, at, wide = u.src[0], u.src[1:], sum_acc_dtype(u.dtype)
    reached = x.alu(Ops.CMPEQ, u.gather_at(*at))
    count = reached.cast(wide).scatter_at(u.arg.shape, *at)
    share = (g.spread(u.shape).convert(wide) / count).convert(u.dtype)
    return g.of(share.node.gather_at(*at)).where(reached)


def of_copy(g: Term, u: UOp, i: int) -> Term:
    """Of a COPY: g copied back, in parts to the devices of the parts."""
    device = u.src[0].device
    if g.is_number or device in (None, u.device):
        return g
    if isinstance(device, tuple):
        return g.of(g.spread(u.shape).node.shard(device, u.src[0].axis))
    return g.of(g.node.copy_to(device))


def of_multi(g: Term, u: UOp, i: int) -> Term | None:
    """Of a MULTI: to each source its part of g; of a replicated value, g to the first source."""
    if u.arg.axis is None and i > 0:
        return None
    if g.is_number:
        return g
    part = g.spread(u.shape).node.shard_part(u.arg.axis, i, len(u.src))
    return g.of(part if part.device is None else part.copy_to(u.src[i].device))


def of_custom_gradient(g: Term, u: UOp, i: int) -> Term | None:
    """Of a value with its own derivatives: g * derivative for the source before it.

    A bool passes g where it is false, since 0 times an infinite g would be NaN. A RuleArg names a
    rule that gives the gradients instead.
    """
    if u.arg is not None:
        name = u.arg.rule
        rule = matrices.of_matrices if name in matrices.RULES else rows.gradient_rule(name)
        if rule is None:
            raise GradientError(f"gradient: no rule is named {name!r}; detach the value")
        return rule(g, u, i)
    if not i % 2:
        return None
    derivative = u.src[i + 1]
    return g.unless(derivative) if derivative.dtype is dtypes.bool else g * derivative


def of_contiguous_backward(g: Term, u: UOp, i: int) -> Term:
    """Of CONTIGUOUS_BACKWARD: g, stored."""
    return g.of(UOp(Ops.CONTIGUOUS, u.dtype, (g.spread(u.shape).node,)))


def of_after(g: Term, u: UOp, i: int) -> Term | None:
    """Of memory after writes: to each write, g of the elements that no later write replaced; to the
    old content, g of the elements that no write replaced.
    """
    for effect in reversed(u.src[i + 1 :]):
        views = written_views(u, effect)
        if not any(view.op is Ops.SHRINK for view in views):
            return None
        mask: Term | None = Term(TRUE, ()).spread(views[0].shape)
        for view in views:
            mask = None if mask is None else GRADIENT[view.op](mask, view, 0)
        g = g if mask is None else g.unless(mask.node)
    if i == 0:
        return g
    for view in reversed(written_views(u, u.src[i])):
        g = g if g.is_number else g.of(moved(view, g.node))
    return g


def written_views(after: UOp, effect: UOp) -> list[UOp]:
    """The movement ops between the target of a STORE and the memory below AFTER, last first."""
    if effect.op is not Ops.STORE:
        raise GradientError(f"gradient: the effect {effect.op.name} has none; detach the value")
    views = []
    place = effect.src[0]
    while place is not after.src[0]:
        if place.op not in MOVEMENT_SET:
            raise GradientError(
                "gradient: a write through another view of the same memory has "
                "none; assign to the tensor itself, or detach the value"
            )
        views.append(place)
        place = place.src[0]
    return views


def of_call(g: Term, u: UOp, i: int) -> Term | None:
    """Of a hand-written kernel: the result of its `grad_fxn`, called once for all sources."""
    if u.arg.grad_fxn is None:
        raise GradientError(
            "gradient: a hand-written kernel has none; pass grad_fxn=... to custom_kernel, or "
            "detach its inputs"
        )
    asked, answer = getattr(g, "answer", (None, ()))
    if asked is not u:
        answer = u.arg.grad_fxn(g.spread(u.shape).node, u)
        g.answer = u, answer
    return None if answer[i] is None else g.of(answer[i])


GRADIENT: dict[Ops, Rule] = {
    Ops.CALL: of_call,
    Ops.ADD: lambda g, u, i: g,
    Ops.SUB: lambda g, u, i: g if i == 0 else -g,
    Ops.MUL: of_mul,
    Ops.FDIV: of_fdiv,
    Ops.NEG: lambda g, u, i: -g,
    Ops.RECIPROCAL: lambda g, u, i: -(g * u * u),
    Ops.EXP2: lambda g, u, i: (g * u).scale(LN2),
    Ops.LOG2: lambda g, u, i: g.scale(1 / LN2) / u.src[0],
    Ops.SIN: of_sin,
    Ops.TANH: of_tanh,
    Ops.SQRT: lambda g, u, i: g.scale(0.5) / u,
    Ops.TRUNC: lambda g, u, i: g.number(0),
    Ops.MAX: of_max,
    Ops.POW: of_pow,
    Ops.WHERE: of_where,
    Ops.MULACC: of_mulacc,
    Ops.CAST: lambda g, u, i: g,
    Ops.BITCAST: of_bitcast,
    Ops.RESHAPE: lambda g, u, i: g.reshape(u.src[0].shape),
    Ops.EXPAND: of_expand,
    Ops.PERMUTE: lambda g, u, i: g.move(Ops.PERMUTE, argsort(u.arg)),
    Ops.PAD: of_pad,
    Ops.SHRINK: of_shrink,
    Ops.FLIP: lambda g, u, i: g.move(Ops.FLIP, u.arg),
    Ops.NAME: lambda g, u, i: g,
    Ops.REDUCE: of_reduce,
    Ops.INDEX: of_index,
    Ops.SCATTER: of_scatter,
    Ops.CONTIGUOUS: lambda g, u, i: g,
    Ops.CONTIGUOUS_BACKWARD: of_contiguous_backward,
    Ops.CUSTOM_GRADIENT: of_custom_gradient,
    Ops.COPY: of_copy,
    Ops.MULTI: of_multi,
    Ops.AFTER: of_after,
    Ops.STORE: lambda g, u, i: g if i == 1 else None,
}

# Ops that pass no gradient: leaves, DETACH, ops of integers and bools, and ops that codegen makes.
# An op that is neither here nor above belongs to a later stage, and is an error in a graph.
NO_GRADIENT = frozenset(
    {
        Ops.CONST,
        Ops.BUFFER,
        Ops.PARAM,
        Ops.DEFINE_VAR,
        Ops.IOTA,
        Ops.BIND,
        Ops.DEVICE,
        Ops.DETACH,
        Ops.CMPLT,
        Ops.CMPNE,
        Ops.CMPEQ,
        Ops.XOR,
        Ops.OR,
        Ops.AND,
        Ops.SHL,
        Ops.SHR,
        Ops.THREEFRY,
        Ops.DOT,
        Ops.LDEXP,
        Ops.EXP2_32NDS,
        Ops.IDIV,
        Ops.MOD,
    }
)


# the walk


def passes_gradient(u: UOp) -> bool:
    """Whether a gradient can pass from this node to its sources."""
    if u.op is Ops.NAME and u.arg.kind == "detached":
        return False
    return (u.dtype.kind == "float" or u.op is Ops.STORE) and u.op not in NO_GRADIENT


def fit(g: Term, source: UOp, node: UOp) -> Term:
    """`g`, the gradient from `node` for `source`, in the dtype and shape of `source`."""
    if source.op is Ops.STORE:
        return g
    g = g.convert(source.dtype)
    shape = source.shape
    if not shape and node.op in ELEMENTWISE and node.shape:
        # A source without axes was broadcast, so gradients of all elements add up.
        return g.spread(node.shape).total(tuple(range(len(node.shape)))).reshape(())
    if g.is_number or g.node.shape == shape:
        return g
    if g.node.shape:
        raise InternalError(
            f"gradient: {node!r} gives {show_shape(g.node.shape)} to a source of "
            f"{show_shape(shape)}"
        )
    return g.spread(shape)


def joined_names(
    order: Iterable[UOp], targets: Container[UOp], values: dict[UOp, UOp]
) -> dict[UOp, UOp]:
    """Nodes that differ from an earlier node only in names that are no targets -> that node.

    `values` maps memory to the value that it was computed from.

    why: equal values of several tensors then share one gradient, summed once
    """
    same: dict[UOp, UOp] = {}
    made: dict[Any, UOp] = {}
    seen: set[UOp] = set()
    for u in order:
        seen.add(u)
        if u in targets:
            continue
        if u.op is Ops.NAME:
            kind = u.arg.kind
            asked = u.src[0] in targets or value_of(u.src[0], values) in targets
            if kind == "view" or (kind == "equal" and not asked):
                same[u] = same.get(u.src[0], u.src[0])
        elif same and u.src and u.is_current:
            # A node from before a write differs in value from the same expression built now.
            if any([s in same for s in u.src]):
                key = (u.op, u.dtype, tuple([same.get(s, s) for s in u.src]), *u._key[3:])
                ref = NODES.get(key)
                found = None if ref is None else ref()
                if found not in seen or found in targets:
                    found = made.setdefault(key, u)
            else:
                found = made.get(u._key, u)
            if found is not u:
                same[u] = same.get(found, found)
    return same


def value_of(u: UOp, values: dict[UOp, UOp]) -> UOp | None:
    """The value that memory, or a RESHAPE of all of it, was computed from; else None."""
    if u.op is Ops.RESHAPE:
        value = values.get(u.src[0])
        return value if value is not None and value.shape == u.shape else None
    return values.get(u)


def add_to(sums: dict[UOp, Term], u: UOp, part: Term) -> None:
    """Adds to the sum of a node."""
    before = sums.get(u)
    sums[u] = part if before is None else before + part


def propagate(
    order: Iterable[UOp],
    root_grad: Term,
    targets: Container[UOp],
    values: dict[UOp, UOp] | None = None,
    ends: Container[UOp] = (),
) -> dict[UOp, Term]:
    """Gradients of the targets that the last node of `order` depends on.

    `order` has sources before their users. Results of the rules are fitted and summed. Memory
    passes its gradient to the value that it was computed from, if `values` has it. The `ends` pass
    none.
    """
    values = values or {}
    order = list(order)
    same = joined_names(order, targets, values)
    path: dict[UOp, None] = {}
    for u in order:
        if u in same:
            continue
        if u in targets or (
            passes_gradient(u) and any(same.get(s, s) in path for s in u.src) and u not in ends
        ):
            path[u] = None
        elif u in values and same.get(values[u], values[u]) in path:
            path[u] = None
    root = same.get(order[-1], order[-1]) if order else None
    if root is None or not path or next(reversed(path)) is not root:
        return {}
    result: dict[UOp, Term] = {}
    grads = {root: root_grad}
    # Gradients that reach a target from equal tensors: not part of its own gradient.
    of_equals: dict[UOp, Term] = {}
    for u in reversed(path):
        g, more = grads.pop(u, None), of_equals.pop(u, None)
        if g is not None and u in targets:
            result[u] = g
        if u in values:
            value = same.get(values[u], values[u])
            if value in path:
                for part, sums in ((g, grads), (more, of_equals)):
                    if part is not None:
                        add_to(sums, value, part.reshape(value.shape))
            continue
        if more is not None and value_of(u, values) is not None:
            # The memory of an equal tensor, in the tensor's shape.
            source = u.src[0]
            if source in path:
                add_to(of_equals, source, more.reshape(source.shape))
        elif more is not None:
            g = more if g is None else g + more
        if g is None:
            continue
        if not passes_gradient(u) or u in ends:
            continue
        rule = GRADIENT.get(u.op)
        for i, source in enumerate(u.src):
            source = same.get(source, source)
            if source not in path:
                continue
            if rule is None:
                raise GradientError(
                    f"gradient: {u.op.name}, of {u.dtype.name} "
                    f"{show_shape(u.shape or ())}, has none; detach its source "
                    "if it should count as a constant"
                )
            part = rule(g, u, i)
            if part is not None:
                part = fit(part, source, u)
                is_equal = u.op is Ops.NAME and u.arg.kind == "equal"
                add_to(of_equals if is_equal else grads, source, part)
    return result


def compute_gradient(
    root: UOp,
    root_grad: UOp,
    targets: set[UOp],
    order: dict[UOp, None] | None = None,
    values: dict[UOp, UOp] | None = None,
    ends: Container[UOp] = (),
) -> dict[UOp, UOp]:
    """The gradient of `root` for each of the targets that it depends on.

    `root_grad` is the gradient of `root` itself: one number, or of its shape. The result lacks
    targets that `root` depends on only through integers, comparisons or DETACH. `order` and
    `values`, the nodes below `root` and the values of memory among them, extend the walk beyond
    memory. No gradient passes a node of `ends`.

    Dtype: those of the targets.
    Raises: GradientError for a root or target that is no float, and for an op without a gradient
    in between.
    """
    for u in (root, *targets):
        if u.dtype.kind != "float":
            what = "the root" if u is root else "a target"
            raise GradientError(
                f"gradient: {what} is {u.dtype.name}; only floats have gradients, cast it to one"
            )
    if root_grad.shape and root_grad.shape != root.shape:
        raise GradientError(
            f"gradient: that of the root is {show_shape(root_grad.shape)}, "
            f"the root is {show_shape(root.shape)}; the same shape is wanted"
        )
    order = toposort(root, enter=passes_gradient) if order is None else order
    known = {**order, root_grad: None}
    if root_grad.op is Ops.CONST:
        root_grad = UOp.const(root_grad.dtype, root_grad.arg)
    found = propagate(order, Term(root_grad, known).convert(root.dtype), targets, values, ends)
    grads = {u: g.spread(u.shape).node for u, g in found.items()}
    anew = recomputed_values(order)
    if anew:
        nodes = substitute_all(grads.values(), anew, lambda u: u not in known)
        grads = dict(zip(grads, nodes, strict=True))
    homes = {u: root.device if u.device is None else u.device for u in grads}
    placed: dict[UOp, UOp] = {}
    for device in set(homes.values()):
        here = {u: g for u, g in grads.items() if homes[u] == device}
        placed.update(place(here, device, known))
    return placed


def recomputed_values(order: Iterable[UOp]) -> dict[UOp, UOp]:
    """Marks with ANEW, and views of them -> recomputed copies of their values (checkpointing).

    Gradients read the copies, so the values need not stay in memory: they are computed again from
    the nearest marks below.
    """
    anew: dict[UOp, UOp] = {}
    for u in order:
        if u.op is Ops.CONTIGUOUS_BACKWARD and u.arg == ANEW:
            value = u.src[0]
            below = toposort(value, enter=lambda v: v.op is not Ops.CONTIGUOUS_BACKWARD)
            marks = [v for v in below if v.op is Ops.CONTIGUOUS_BACKWARD]
            own = {v: UOp(v.op, v.dtype, (v,)) for v in marks}
            anew[u] = substitute_all([value], own)[0]
        elif u.op in MOVEMENT_SET and u.src[0] in anew:
            anew[u] = UOp(u.op, u.dtype, (anew[u.src[0]], *u.src[1:]), u.arg)
    return anew


def place(grads: dict[UOp, UOp], device: Any, known: Container[UOp]) -> dict[UOp, UOp]:
    """The gradients, with a device for constant expressions that may have to be stored.

    The gradient of a roll, of a padding, of a sum of sums does not depend on any value. Nodes of
    the differentiated graph (`known`) stay the same: a copy of a write would write again, and a
    copy of a value would be computed again.
    """

    def enter(u: UOp) -> bool:
        return u not in known or u.device is None

    order = toposort(*grads.values(), enter=enter)
    alone = [u for u in order if u.op is Ops.REDUCE and u.device is None]
    alone += [g for g in grads.values() if g.device is None]
    if not alone or device is None:
        return grads
    where = UOp(Ops.DEVICE, dtypes.void, (), DeviceArg(device))
    placed = {
        u: UOp(Ops.CONST, u.dtype, (where,), u.arg)
        for u in toposort(*alone)
        if u.op is Ops.CONST and not u.src and u.dtype.kind == "float"
    }
    return dict(zip(grads, substitute_all(grads.values(), placed, enter), strict=True))
