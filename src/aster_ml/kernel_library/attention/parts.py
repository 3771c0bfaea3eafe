"""Recognises kernels of attention, two products in a row whose scores lie between them.

Receives a kernel that computes a maximum of scores, a sum of powers and a product of powers with
values, each of which computes the scores by itself (`pattern` leaves them so);
names its parts. What the Opt TC chain makes of them is in `kernel` and `boxes`.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from aster_ml.codegen.kernel import Kernel
from aster_ml.codegen.transforms.axes import simplify_indices
from aster_ml.codegen.work_groups.tensor_cores import uncast
from aster_ml.target.tensor_cores import TensorCore
from aster_ml.uop.graph import substitute, toposort
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import Ops
from aster_ml.uop.ranges import size_of


class Attention(NamedTuple):
    """The sums of a kernel, what they are made of, and the axes.

    `tops` and `totals` are all nodes of the maximum and of the sum of powers: what is stored of a
    row has its own. `score` is what the maximum `top` is taken of, made of the product `scores`;
    `power` is what is made of both. `q`, `k` and `v` are LOADs; `keys` and `depth` are the axes of
    `product` and of `scores`, `rows` and `columns` those of outputs that q and v have.
    """

    stores: tuple[UOp, ...]
    product: UOp
    total: UOp
    top: UOp
    power: UOp
    score: UOp
    scores: UOp
    q: UOp
    k: UOp
    v: UOp
    rows: UOp
    columns: UOp
    keys: UOp
    depth: UOp
    tops: tuple[UOp, ...]
    totals: tuple[UOp, ...]

    @property
    def is_triangular(self) -> bool:
        """Whether scores of keys behind their row are minus infinity."""
        if self.score.op is not Ops.WHERE or self.score.src[0].op is not Ops.CMPLT:
            return False
        cond, then, _ = self.score.src
        low, high = (before_casts(s) for s in cond.src)
        return (
            then.op is Ops.CONST and then.arg == -math.inf and (low, high) == (self.rows, self.keys)
        )


def find_attention(kernel: Kernel, core: TensorCore) -> Attention | None:
    """The attention that a kernel is, if a tensor core multiplies its operands."""
    if len(kernel.reduces) < 6 or not core.chains:
        return None
    stores, loops = tuple(kernel.stores), kernel.output_loops
    tops = [u for u in kernel.reduces if u.arg.op is Ops.MAX]
    totals = [u for u in kernel.reduces if u.src[0].op is Ops.EXP2]
    products = [u for u in kernel.reduces if is_last(u)]
    if len(products) != 1 or len(kernel.reduces) != 2 * (1 + len(tops) + len(totals)):
        return None
    product = products[0]
    found = factors(product, core)
    if found is None or not all([len(u.src) == 2 for u in kernel.reduces]):
        return None
    powers = [u for u in found if u.op is Ops.CAST and u.src[0].op is Ops.EXP2]
    values = [u for u in found if u.op is Ops.LOAD]
    if len(powers) != 1 or len(values) != 1:
        return None
    power, keys, v = powers[0].src[0], product.src[1], values[0]
    inside = toposort(power)
    top = next((u for u in tops if u in inside), product)
    below_top = toposort(power, enter=lambda u: u is not top)
    mine = [u for u in below_top if u.op is Ops.REDUCE and u is not top]
    if len(mine) != 1:
        return None
    scores = mine[0]
    operands = factors(scores, core)
    if operands is None or not all([u.op is Ops.LOAD for u in operands]):
        return None
    score = same_at(top, scores, keys) if top is not product else None
    same = dict.fromkeys(tops, top)
    if score is None or any([same_at(u, scores, keys) is not score for u in tops]):
        return None
    sums = [same_at(u, scores, keys) for u in totals]
    if not sums or any([u is None or substitute(u, same) is not power for u in sums]):
        return None
    total = totals[0]
    k, q = operands if keys in operands[0].ranges else (operands[1], operands[0])
    rows = [r for r in loops if r in q.ranges and r not in k.ranges and r not in v.ranges]
    columns = [r for r in loops if r in v.ranges and r not in q.ranges and r not in k.ranges]
    if not rows or len(columns) != 1 or keys in q.ranges or keys not in v.ranges:
        return None
    # Heads that share keys are rows, too: those of one head have a warp.
    row = max(rows, key=size_of)
    # Nothing but the product goes along columns, and powers depend on scores alone.
    depends = substitute(power, {score: UOp.const(score.dtype, 0.0)})
    if keys in depends.ranges or columns[0] in power.ranges | total.ranges:
        return None
    return Attention(
        stores, product, total, top, power, score, scores, q, k, v, row, columns[0], keys,
        scores.src[1], tuple(tops), tuple(totals),
    )  # fmt: skip


def is_last(u: UOp) -> bool:
    """Whether a sum is one of products with powers."""
    value = u.src[0]
    return value.op is Ops.MUL and any([before_casts(s).op is Ops.EXP2 for s in value.src])


def before_casts(u: UOp) -> UOp:
    """Value below CASTs."""
    while u.op is Ops.CAST:
        u = u.src[0]
    return u


def factors(u: UOp, core: TensorCore) -> tuple[UOp, UOp] | None:
    """Factors of a sum of products, before they are made wider."""
    value = u.src[0]
    if u.arg.op is not Ops.ADD or value.op is not Ops.MUL or u.dtype.name != core.result:
        return None
    a, b = uncast(value.src[0]), uncast(value.src[1])
    return (a, b) if {a.dtype.name, b.dtype.name} == {core.dtype} else None


def same_at(u: UOp, scores: UOp, keys: UOp) -> UOp | None:
    """Operand of a reduction over keys, with its axes and those of its scores renamed.

    None where it has no scores of its own, over as many steps.
    """
    own = [x for x in toposort(u.src[0]) if x.op is Ops.REDUCE and u.src[1] in x.ranges]
    if len(own) != 1 or own[0].src[0].op is not Ops.MUL or len(own[0].src) != 2:
        return None
    axes = {u.src[1]: keys, own[0].src[1]: scores.src[1]}
    if any([size_of(a) != size_of(b) for a, b in axes.items()]):
        return None
    return simplify_indices(substitute(u.src[0], axes))
