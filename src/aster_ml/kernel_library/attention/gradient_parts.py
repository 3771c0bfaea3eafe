"""Recognises the dQ, dK and dV kernels, which compute scores again.

Receives a kernel that computes the gradient of queries, or those of keys and values together;
names its parts. What the Opt TC chain makes of them is in `gradient_kernel`.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from aster_ml.codegen.kernel import Kernel
from aster_ml.codegen.transforms.axes import simplify_indices
from aster_ml.kernel_library.attention.parts import before_casts, factors
from aster_ml.target.tensor_cores import TensorCore
from aster_ml.uop.graph import substitute, toposort
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import Ops
from aster_ml.uop.ranges import size_of


class Inner(NamedTuple):
    """A product that others are made of: its node, operands along rows and along keys, its axis."""

    node: UOp
    a: UOp
    b: UOp
    depth: UOp


class Mixed(NamedTuple):
    """A sum over keys: its node, what is made of inner products and rounded, and a LOAD."""

    node: UOp
    narrow: UOp
    load: UOp


class Slopes(NamedTuple):
    """The sums of a kernel, what they are made of, and the axes.

    The axis of `keys` is that of all sums, which queries may lie along, and `rows` and `columns`
    are those of outputs.
    """

    stores: tuple[UOp, ...]
    mixed: tuple[Mixed, ...]
    inner: tuple[Inner, ...]
    rows: UOp
    columns: UOp
    keys: UOp

    @property
    def depth(self) -> UOp:
        """The axis of the first inner product."""
        return self.inner[0].depth

    @property
    def is_triangular(self) -> bool:
        """Whether scores of keys behind their row are minus infinity."""
        return self.is_nothing(self.rows, self.keys)

    def is_nothing(self, low: UOp, high: UOp) -> bool:
        """Whether powers of scores are 0 where one axis is below another."""
        return all([hides(m.narrow, low, high) for m in self.mixed])


def hides(value: UOp, low: UOp, high: UOp) -> bool:
    """Whether scores in a value are minus infinity where one axis is below another."""
    for u in toposort(value):
        if u.op is Ops.WHERE and u.src[0].op is Ops.CMPLT:
            cond, then, _ = u.src
            axes = tuple([before_casts(s) for s in cond.src])
            if then.op is Ops.CONST and then.arg == -math.inf and axes == (low, high):
                return True
    return False


def find_slopes(kernel: Kernel, core: TensorCore) -> Slopes | None:
    """The gradient of attention that a kernel is, if a tensor core multiplies its operands."""
    if not core.chains or len(kernel.reduces) < 2:
        return None
    if any([u.arg.op is not Ops.ADD or len(u.src) != 2 for u in kernel.reduces]):
        return None
    outer = {u: found for u in kernel.reduces if (found := outer_factors(u, core)) is not None}
    if not outer:
        return None
    keys = next(iter(outer)).src[1]
    inner: list[Inner] = []
    mixed: list[Mixed] = []
    for u, (narrow, load) in outer.items():
        if size_of(u.src[1]) != size_of(keys):
            return None
        changes = {u.src[1]: keys}
        for x in toposort(narrow):
            if x.op is Ops.REDUCE:
                product = inner_product(x, keys, u.src[1], core, inner)
                if product is None:
                    return None
                if product not in inner:
                    inner.append(product)
                changes[x] = product.node
        made = [simplify_indices(substitute(s, changes)) for s in (narrow, load)]
        mixed.append(Mixed(u, made[0], made[1]))
    if len(kernel.reduces) != len(outer) + len(
        {x for u in outer for x in toposort(u.src[0]) if x.op is Ops.REDUCE}
    ):
        return None
    return with_axes(kernel, mixed, inner, keys)


def with_axes(kernel: Kernel, mixed: list[Mixed], inner: list[Inner], keys: UOp) -> Slopes | None:
    """The parts with the axes of outputs that each operand has; None where it has others."""
    loops = kernel.output_loops
    along_rows = frozenset().union(*[x.a.ranges for x in inner])
    along_keys = frozenset().union(*[x.b.ranges for x in inner], *[m.load.ranges for m in mixed])
    rows = [r for r in loops if r in along_rows and r not in along_keys]
    columns = [
        r for r in loops if all([r in m.load.ranges and r not in m.narrow.ranges for m in mixed])
    ]
    if not rows or len(columns) != 1 or not all([keys in m.load.ranges for m in mixed]):
        return None
    # Heads that share keys are rows, too: those of one head have a warp.
    row = max(rows, key=size_of)
    if not all([row in x.a.ranges for x in inner]):
        return None
    return Slopes(tuple(kernel.stores), tuple(mixed), tuple(inner), row, columns[0], keys)


def outer_factors(u: UOp, core: TensorCore) -> tuple[UOp, UOp] | None:
    """Factors of an outer product: what is made of inner products and rounded, and the other."""
    found = factors(u, core)
    if found is None:
        return None
    loads = [x for x in found if x.op is Ops.LOAD]
    narrow = [
        x for x in found if x.op is Ops.CAST and any([s.op is Ops.REDUCE for s in toposort(x)])
    ]
    return (narrow[0], loads[0]) if len(loads) == len(narrow) == 1 else None


def inner_product(
    x: UOp, own: UOp, keys: UOp, core: TensorCore, known: list[Inner]
) -> Inner | None:
    """A product inside of a sum over `keys`, over the axis `own` in place of that.

    It is one of those that are known, if its operands are.
    """
    operands = factors(x, core)
    if operands is None or not all([u.op is Ops.LOAD for u in operands]):
        return None
    for y in known:
        if size_of(y.depth) == size_of(x.src[1]):
            places = {keys: own, x.src[1]: y.depth}
            if simplify_indices(substitute(x.src[0], places)) is y.node.src[0]:
                return y
    node = simplify_indices(substitute(x, {keys: own}))
    a, b = factors(node, core) or operands
    a, b = (b, a) if own in a.ranges else (a, b)
    if own in a.ranges or own not in b.ranges:
        return None
    return Inner(node, a, b, node.src[1])
