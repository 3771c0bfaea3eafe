"""Defines KernelInfo: what the author of a kernel says about it, beside its nodes.

It is the argument of a kernel's SINK: its name and how its axes are to run. Whoever writes kernels
by hand (`Tensor.custom_kernel`) or asks for Opts by hand (`Tensor.contiguous(arg=...)`) makes one;
engine and translator read it. Plain data: nothing here builds or compiles anything.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from aster_ml.uop.ops import AxisType


@dataclass(frozen=True)
class KernelInfo:
    """Name and schedule of one kernel.

    `opts_to_apply` is None where the cost decides, () for the loops as they are written, else the
    Opts in order. `applied_opts` are those that have been applied, `axis_types` what the axes have
    become.
    """

    name: str = "test"
    axis_types: tuple[AxisType, ...] = ()
    dont_use_locals: bool = False
    applied_opts: tuple[Any, ...] = ()
    opts_to_apply: tuple[Any, ...] | None = None

    @property
    def function_name(self) -> str:
        """The name as an identifier: terminal colours off, other characters by their code."""
        plain = re.sub("\x1b\\[(?:K|.*?m)", "", self.name)
        return "".join(
            [c if c.isascii() and (c.isalnum() or c == "_") else f"{ord(c):02X}" for c in plain]
        )
