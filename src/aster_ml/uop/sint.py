"""Converts symbolic sizes: ints or index nodes.

Receives either; returns ints where possible. Methods of nodes are in `ops.symbol`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aster_ml.dtype import DType, dtypes
from aster_ml.errors import BindError
from aster_ml.ops.symbol import two_values
from aster_ml.uop.node import UOp, sint
from aster_ml.uop.ops import Ops


def sint_to_uop(x: sint, dtype: DType = dtypes.index) -> UOp:
    """A size as a node."""
    return x.cast(dtype) if isinstance(x, UOp) else UOp.const(dtype, x)


def sym_infer(uop: sint, var_vals: Mapping[str, int]) -> int:
    """The value of a size, given values of variables by name."""
    return uop.sym_infer(var_vals) if isinstance(uop, UOp) else uop


def ssimplify(uop: sint) -> sint:
    """A simplified size, as an int if it is constant."""
    return uop.ssimplify() if isinstance(uop, UOp) else uop


def srender(x: sint) -> str:
    """A size as text."""
    return x.render() if isinstance(x, UOp) else str(x)


def do_unbind(ctx: dict[UOp, int], x: UOp) -> Any:
    """The variable of a BIND, whose value is recorded in `ctx`; None for other nodes.

    Raises: BindError for a value that differs from the recorded one.
    """
    if x.op is not Ops.BIND:
        return None
    variable, value = x.unbind()
    if ctx.setdefault(variable, value) != value:
        raise BindError(two_values(variable.expr, ctx[variable], value))
    return variable
