"""Shows a compiled kernel: its source, name, Opts, sizes and estimates.

Receives a kernel AST and a device; returns a `ProgramSpec`. Nothing is compiled to machine code
here: `engine/compile` does that when something is to run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aster_ml.device import Device
from aster_ml.engine.compile import render
from aster_ml.engine.estimate import Estimates, bytes_of_accesses, estimate
from aster_ml.errors import ArgumentError
from aster_ml.late import late
from aster_ml.schedule.handwritten import as_kernel
from aster_ml.uop.linear import Linear
from aster_ml.uop.node import UOp, sint
from aster_ml.uop.ops import Ops, RunArg

if TYPE_CHECKING:
    from aster_ml.codegen import passes
    from aster_ml.codegen.opts import Opt
else:
    passes = late("codegen.passes")


@dataclass(frozen=True)
class ProgramSpec:
    """One kernel for one device.

    `src` is source text in the device's language, `linear` the list of nodes that it was written
    from. `opts` are the Opts that were asked for (None: the cost decided), `applied_opts` those
    that were applied. `global_size` counts work-groups (threads have it in pieces), `local_size`
    is None where the device has no work-groups.
    """

    name: str
    src: str
    device: str
    ast: UOp
    linear: Linear
    estimates: Estimates
    global_size: tuple[sint, ...]
    local_size: tuple[int, ...] | None
    opts: tuple[Opt, ...] | None
    applied_opts: tuple[Opt, ...]

    @property
    def function_name(self) -> str:
        """The name of the function in the source."""
        return self.linear.name

    @property
    def uops(self) -> list[UOp]:
        """The nodes of the program in running order."""
        return list(self.linear.uops)

    @property
    def vars(self) -> list[UOp]:
        """The variables, in the order of the arguments behind the buffers."""
        return list(self.linear.variables)

    @property
    def globals(self) -> list[int]:
        """The slots of the buffers."""
        return [p.arg.slot for p in self.linear.params]

    @property
    def outs(self) -> list[int]:
        """The slots that are written."""
        return sorted(self.linear.written)

    @property
    def ins(self) -> list[int]:
        """The slots that are read."""
        read = {u.src[0].src[0] for u in self.linear.uops if u.op is Ops.LOAD}
        return [p.arg.slot for p in self.linear.params if p in read]


def get_program(
    ast: UOp, device: str | None = None, opts: Sequence[Opt] | None = None
) -> ProgramSpec:
    """The program of a kernel (the `ast` of an item of `Tensor.schedule`) on a device.

    Without `opts` the kernel's own are applied, or else the cost decides; with () none is.

    Raises: ArgumentError for a node that is no kernel; KernelOptError for an Opt that does not fit.
    """
    if not isinstance(ast, UOp) or ast.op is not Ops.SINK:
        raise ArgumentError(
            f"get_program: {ast!r} is no kernel; the `ast` of an item of Tensor.schedule is one, "
            "unless the item is a copy or a view"
        )
    if isinstance(ast.arg, RunArg):
        raise ArgumentError(
            f"get_program: this is a run of {len(ast.src)} kernels (DEPTH_FIRST=0 schedules none); "
            "give one of them, ast.src[0]"
        )
    ast = as_kernel(ast)
    name = Device.canonicalize(device)
    target = Device[name].target
    asked = None if opts is None else tuple(opts)
    linear, applied = passes.lower(ast, target, asked, by_hand=True)
    counted = estimate(ast)._replace(lds=bytes_of_accesses(linear))
    return ProgramSpec(
        linear.name,
        render(linear, target),
        name,
        ast,
        linear,
        counted,
        tuple(linear.global_size),
        tuple(linear.local_size) if target.has_local else None,
        asked,
        applied,
    )
