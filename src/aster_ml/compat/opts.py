"""Opts that programs of tinygrad name and that no device here can do: each is refused when applied.

`compat.names` installs them beside the members of `codegen.opts.OptOps`.
"""

from __future__ import annotations

from enum import Enum

from aster_ml.codegen.opts import OptOps


class UnknownOpts(Enum):
    """Kernels without work-items."""

    NOLOCALS = "NOLOCALS"


def install() -> None:
    """Makes them attributes of `OptOps`, of which they are no members."""
    for op in UnknownOpts:
        type.__setattr__(OptOps, op.name, op)
