"""Builds the loops around the stores of a translated kernel: one nest for all, or an order of their
own.

Receives STOREs, ENDs and BARRIERs in Aster's form; says whether the kernel's axes may be split,
merged and moved, and brings kernels of both kinds into the form that codegen takes.
"""

from __future__ import annotations

from aster_ml.errors import ArgumentError
from aster_ml.uop.graph import substitute, toposort
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import AxisType, Ops, RangeArg

# Kinds that stay where axes run as they are written.
WORK_ITEMS = frozenset({AxisType.GLOBAL, AxisType.LOCAL})


def flattened(effect: UOp) -> UOp:
    """END of END as one END, outermost axis first."""
    axes: tuple[UOp, ...] = ()
    while effect.op is Ops.END:
        axes, effect = (*axes, *effect.src[1:]), effect.src[0]
    return effect.end(*dict.fromkeys(axes))


def is_one_nest(roots: tuple[UOp, ...]) -> bool:
    """Whether stores run inside the same loops and none has to see what another has done.

    why: such a kernel's axes may be split, merged and moved; others run as they are written
    """
    stores: list[UOp] = []
    nests = set()
    for effect in roots:
        flat = flattened(effect)
        if flat.op is Ops.BARRIER:
            return False
        stores.append(flat.src[0] if flat.op is Ops.END else flat)
        nests.add(frozenset(flat.src[1:] if flat.op is Ops.END else ()))
    order = toposort(*roots)
    if len(nests) > 1 or any(u.op in (Ops.AFTER, Ops.BARRIER, Ops.DEFINE_LOCAL) for u in order):
        return False
    places = {s.src[0].src[0]: s.src[0] for s in stores}
    if len(places) != len(stores):
        return False
    loads = [u for u in order if u.op is Ops.LOAD and u.src[0].src[0] in places]
    if any(u.src[0] is not places[u.src[0].src[0]] for u in loads):
        return False
    # What one store overwrites another may not want.
    return not loads or len(stores) == 1


def as_loops(roots: tuple[UOp, ...]) -> tuple[UOp, ...]:
    """The stores of one nest, each under one END; which axes are blocks is decided later."""
    items = [u for u in toposort(*roots) if u.op is Ops.RANGE and u.arg.kind in WORK_ITEMS]
    loops = {r: r.replace(arg=RangeArg(r.arg.id, AxisType.LOOP)) for r in items}
    return tuple([flattened(substitute(e, loops).end(*loops.values())) for e in roots])


def check_closed(sink: UOp) -> None:
    """Raises ArgumentError where an axis is used and nothing ends it."""
    lost = [r for r in sink.ranges if r.arg.kind not in WORK_ITEMS]
    if lost:
        sizes = ", ".join([str(r.src[0].arg) for r in lost])
        raise ArgumentError(
            f"a kernel uses {len(lost)} axes (of size {sizes}) that nothing ends; "
            "close them: m[i].store(x).end(i)"
        )


def numbered(sink: UOp) -> tuple[UOp, tuple[int, ...]]:
    """The kernel with PARAMs numbered without gaps, and the numbers that they had."""
    params = sorted({u for u in toposort(sink) if u.op is Ops.PARAM}, key=lambda u: u.arg.slot)
    slots = tuple([p.arg.slot for p in params])
    if len(set(slots)) != len(slots):
        raise ArgumentError(f"two arguments of a kernel have one number: {params}")
    changes = {p: p.replace(arg=p.arg._replace(slot=i)) for i, p in enumerate(params)}
    return substitute(sink, changes), slots
