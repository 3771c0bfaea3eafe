"""What overwriting memory asks of the graph around it.

Receives bodies; returns bodies in which a value that would be destroyed too early is stored
beforehand.
"""

from __future__ import annotations

from aster_ml.errors import InternalError
from aster_ml.uop.graph import substitute_all, toposort
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import Ops


def snapshot_value(body: UOp, value: UOp) -> UOp:
    """The body with `value` stored apart before any STORE of it reaches its target."""
    changes = {}
    for u in toposort(body):
        if u.op is Ops.STORE and u.src[1] is value:
            if value.op is Ops.CONTIGUOUS:
                raise InternalError(f"effects: {value!r} collides although it is stored apart")
            changes[u] = u.replace(
                src=(u.src[0], UOp(Ops.CONTIGUOUS, value.dtype, (value,)), *u.src[2:])
            )
    return substitute_all([body], changes)[0]


def snapshot_param(body: UOp, param: UOp) -> UOp:
    """The body in which whoever wants the old content of `param` reads a copy of it.

    Only targets of STOREs and what follows an AFTER keep the memory itself.
    """
    copy = param.copy_to(str(param.device))
    new: dict[UOp, UOp] = {}
    order = toposort(body)
    if any(u.op is Ops.COPY and u.src[0] is param and u.device == param.device for u in order):
        raise InternalError(f"effects: {param!r} collides although it is copied beforehand")
    for u in order:
        if u is param:
            new[u] = copy
        elif u.op in (Ops.STORE, Ops.AFTER):
            place = keep_place(u.src[0], new)
            new[u] = u.replace(src=(place, *[new[s] for s in u.src[1:]]))
        elif u.src:
            new[u] = u.replace(src=tuple([new[s] for s in u.src]))
        else:
            new[u] = u
    return new[body]


def keep_place(u: UOp, new: dict[UOp, UOp]) -> UOp:
    """A place to write to: the memory itself under its views; effects on it updated."""
    if u.op is Ops.PARAM:
        return u
    if u.op is Ops.AFTER:
        return u.replace(src=(keep_place(u.src[0], new), *[new[s] for s in u.src[1:]]))
    return u.replace(src=(keep_place(u.src[0], new), *[new[s] for s in u.src[1:]]))
