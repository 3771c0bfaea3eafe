"""Divisions by a divisor that several results share, as a reciprocal and two products.

Receives a kernel without reductions. Before its axes have lanes it tells which quotients have such
a divisor, so that rows which share it come to stand side by side; after that it rewrites those of
which the divisor is prepared for several results. Only for targets that round MULACC once.

rewrite: FDIV(x, d) -> MULACC(y, high, y * low) with y = x * scale
where high + low is 1 / (d * scale) to twice the digits, worked out once for all that share d
when: division and square roots are what the kernel waits for
why: a processor has one unit for them, which stands in the way of half of its other arithmetic

Source: N. Brisebarre, J.-M. Muller, S. K. Raina, Accelerating Correctly Rounded Floating-Point
Division when the Divisor Is Known in Advance, IEEE Transactions on Computers 53 (2004).

Error: the exact quotient is rounded where a float is equal to it, and else right but for about one
float32 of 10**8, which is off by 0.5000001 ULP. Below 2**-100 in float32 and 2**-900 in float64 it
is off by less than 1 ULP. Infinities, zeros with their signs and NaN are those of a division.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from aster_ml.codegen.decompose.slots import more_slots
from aster_ml.codegen.decompose.transcendental import mulacc
from aster_ml.codegen.kernel import Kernel
from aster_ml.dtype import DType, dtypes
from aster_ml.helpers import prod
from aster_ml.target import Target
from aster_ml.uop.graph import substitute
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import ELEMENTWISE, AxisType, Ops
from aster_ml.uop.ranges import size_of

# Results side by side for which preparing a divisor pays.
LEAST_SHARED = 4


class Form(NamedTuple):
    """A float dtype: divisors beyond 2**-far and 2**far are scaled; half of an ULP of 1; less than
    what 1 and a product near it can differ by.
    """

    far: int
    half: float
    nothing: float


FORMS: dict[DType, Form] = {
    dtypes.float32: Form(96, 2.0**-24, 2.0**-60),
    dtypes.float64: Form(900, 2.0**-53, 2.0**-120),
}


def shared_quotients(kernel: Kernel, target: Target) -> list[UOp]:
    """The FDIV nodes whose divisor changes with fewer axes than the dividend, where that counts."""
    if not target.fused or kernel.reduces:
        return []
    order = kernel.facts.order
    found = [u for u in order if u.op is Ops.FDIV and u.dtype in FORMS]
    found = [u for u in found if u.src[1].op is not Ops.CONST]
    found = [u for u in found if u.src[1].ranges < u.src[0].ranges]
    return found if found and waits_for_divisions(order, found[0].ranges, target) else []


def waits_for_divisions(order: Iterable[UOp], ranges: frozenset[UOp], target: Target) -> bool:
    """Whether what is computed inside of these loops waits for the unit that divides.

    It does where other arithmetic takes less than half as long: it is held up for the other half,
    since that unit is part of one of two.
    """
    known = target.costs.busy
    mine = [u for u in order if u.dtype in FORMS and u.op in ELEMENTWISE and u.ranges >= ranges]
    busy = [known[u.op.name] for u in mine if u.op.name in known]
    others = len(mine) - len(busy) + more_slots(mine, target)
    return len(busy) > 1 and 2 * others < sum(busy)


def axes_sharing(quotients: list[UOp], outputs: list[UOp], vector_id: int) -> list[UOp]:
    """Those of the output axes along which divisors that differ by SIMD lane are the same."""
    divisors = [u.src[1].ranges for u in quotients]
    differing = [
        ranges
        for ranges in divisors
        if any([r.arg.kind is AxisType.VECTOR or r.arg.id == vector_id for r in ranges])
    ]
    return [r for r in outputs if differing and not any([r in ranges for ranges in differing])]


def prepare_divisors(kernel: Kernel, target: Target) -> None:
    """Replaces quotients by a shared divisor with products with its reciprocal, corrected."""
    changes: dict[UOp, UOp] = {}
    for u in shared_quotients(kernel, target):
        if is_prepared(kernel, u):
            # Sources come first: a dividend may be a quotient too.
            changes[u] = by_products(*[substitute(s, changes) for s in u.src])
    if changes:
        kernel.sink = substitute(kernel.sink, changes)


def is_prepared(kernel: Kernel, quotient: UOp) -> bool:
    """Whether a divisor is that of enough results before it is worked out again."""
    dividend, divisor = quotient.src
    free = dividend.ranges - divisor.ranges
    beside = prod([size_of(r) for r in free if r.arg.kind is AxisType.UPCAST])
    if beside >= LEAST_SHARED:
        return True
    loops = [r for r in kernel.outputs if not r.arg.kind.is_lane]
    inner = [r for r in kernel.outputs if r.arg.kind.is_lane] + loops[-1:]
    return bool(loops) and not any([r in divisor.ranges for r in inner])


def by_products(x: UOp, d: UOp) -> UOp:
    """x / d, of float32 or float64; see the module for its error.

    The parts of the reciprocal have one sign, so that no infinity meets another: the first is
    rounded towards 0, hence a place down where it is not below 1 / d. Of divisors that are 0,
    infinite or NaN both parts are the reciprocal.
    """
    form = FORMS[d.dtype]
    one, large, small = d.const_like(1.0), 2.0**form.far, 2.0**-form.far
    size = (d < 0.0).where(-d, d)
    scale = (size < small).where(d.const_like(large), (size > large).where(small, one))
    divisor = d * scale
    inverse = divisor.alu(Ops.RECIPROCAL)
    rest = mulacc(-inverse, divisor, 1.0)
    high = (rest < form.nothing).where(mulacc(inverse, -form.half, inverse), inverse)
    low = mulacc(-high, divisor, 1.0) * inverse
    low = rest.alu(Ops.CMPEQ, rest).where(low, inverse)
    y = x * scale
    return mulacc(y, high, y * low)
