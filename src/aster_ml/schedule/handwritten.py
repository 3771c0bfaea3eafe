"""Passes hand-written kernels to the plug-in that translates their language.

Receives the SINK of a hand-written kernel, of `Ops` and `Dialect`; returns it in kernel form. A
plug-in translates it (`plugins.ask("translate", sink)`); a kernel in kernel form stays unchanged.
"""

from __future__ import annotations

from dataclasses import dataclass

from aster_ml.dtype import DType
from aster_ml.errors import UnsupportedError
from aster_ml.plugins import MISSING, ask
from aster_ml.uop.dialect import Dialect
from aster_ml.uop.graph import reaches
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import MOVEMENT, KernelArg, Ops, RunArg


@dataclass(frozen=True)
class Handwritten:
    """A translated kernel; its PARAM i is argument `slots[i]` of the author's function.

    `values` are the values of bound variables.
    """

    ast: UOp
    slots: tuple[int, ...]
    values: tuple[tuple[str, int], ...] = ()


def as_kernel(sink: UOp) -> UOp:
    """A kernel's graph in Aster's form: as it is, or translated if it is hand-written."""
    if isinstance(sink.arg, (KernelArg, RunArg)):
        return sink
    if sink.arg is None and not reaches(sink, is_foreign):
        return sink
    return translated(sink).ast


def is_foreign(u: UOp) -> bool:
    """Whether kernel form does not allow a node."""
    if u.op in (Ops.LOAD, Ops.STORE):
        return u.src[0].op is not Ops.INDEX
    return (
        isinstance(u.op, Dialect)
        or u.dtype.__class__ is not DType
        or u.op in MOVEMENT
        or (u.op is Ops.SINK and not u.src)
        or any(s.op is Ops.INDEX for s in u.src)
        or (u.op is Ops.AFTER and any(s.op is Ops.RANGE for s in u.src))
    )


def translated(sink: UOp) -> Handwritten:
    """A hand-written kernel in Aster's kernel form.

    Raises: UnsupportedError where no plug-in translates; the plug-in's errors.
    """
    found = ask("translate", sink)
    if found is MISSING:
        raise UnsupportedError(
            "a kernel is written by hand, and no plug-in translates such; "
            '`import aster_ml` plugs one in, plugins.plug_in("module") another'
        )
    made: Handwritten = found
    return made
