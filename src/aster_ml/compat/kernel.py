"""Defines Kernel: one kernel whose Opts a program applies step by step, as tinygrad's did.

Receives a kernel's AST and a device's renderer; returns the program that the Opts make. What an
Opt means, and whether it fits, `codegen` decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from aster_ml.codegen.opts import Opt
from aster_ml.compat.devices import RendererView
from aster_ml.compat.programs import ProgramSpec, get_program
from aster_ml.device import Device
from aster_ml.extend import as_kernel, kernel_name, schedule_kernel
from aster_ml.uop.node import UOp, to_sint


class Kernel:
    """A kernel with the Opts that have been applied so far (`applied_opts`)."""

    def __init__(self, ast: UOp, opts: RendererView | None = None) -> None:
        self.ast = as_kernel(ast)
        self.opts = RendererView(Device.default) if opts is None else opts
        self.applied_opts: list[Opt] = []
        self.arrange()

    def arrange(self) -> None:
        """The axes as the Opts leave them. Raises: KernelOptError for one that does not fit."""
        target = Device[self.opts.device].target
        self.kernel = schedule_kernel(self.ast, target, tuple(self.applied_opts), by_hand=True)

    @property
    def name(self) -> str:
        """The kernel's name: its kind and the sizes of its axes."""
        return kernel_name(self.kernel)

    @property
    def full_shape(self) -> tuple[Any, ...]:
        """The sizes of all axes, outputs first."""
        return tuple([to_sint(axis.src[0]) for axis in self.kernel.axes])

    @property
    def output_shape(self) -> tuple[Any, ...]:
        """The sizes of the axes that are not reduced."""
        return self.full_shape[: self.first_reduce]

    @property
    def shape_len(self) -> int:
        """Number of axes."""
        return len(self.kernel.axes)

    @property
    def first_reduce(self) -> int:
        """The number of the first reduced axis."""
        return self.kernel.first_reduction

    def copy(self) -> Kernel:
        """Another one with the same Opts; what is applied to it does not show here."""
        other = Kernel(self.ast, self.opts)
        other.applied_opts = list(self.applied_opts)
        other.arrange()
        return other

    def apply_opt(self, opt: Opt) -> Kernel:
        """One more Opt; returns itself. Raises: KernelOptError where it does not fit."""
        self.applied_opts.append(opt)
        try:
            self.arrange()
        except BaseException:
            self.applied_opts.pop()
            raise
        return self

    def apply_opts(self, opts: Sequence[Opt]) -> Kernel:
        """More Opts, in order; returns itself."""
        for opt in opts:
            self.apply_opt(opt)
        return self

    def hand_coded_optimizations(self) -> Kernel:
        """The Opts that the cost decides, in place of those so far; returns itself."""
        self.kernel = schedule_kernel(self.ast, Device[self.opts.device].target)
        self.applied_opts = list(self.kernel.applied)
        return self

    def linearize(self) -> Kernel:
        """Makes `uops`, the nodes of the program in the dialect; returns itself."""
        self.uops = self.to_program().uops
        return self

    def to_program(self) -> ProgramSpec:
        """Source, sizes, estimates."""
        return get_program(self.ast, self.opts, tuple(self.applied_opts))


def get_kernel(renderer: RendererView, ast: UOp) -> Kernel:
    """A kernel with the Opts that the cost decides for a device."""
    return Kernel(ast, renderer).hand_coded_optimizations()
