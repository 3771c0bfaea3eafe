"""Shows kernels as programs of tinygrad's look at them: ProgramSpec, Estimates.

The work is the engine's; what a program is made of is shown in the dialect, lane by lane.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Sequence
from typing import Any

from aster_ml import extend
from aster_ml.codegen.opts import Opt
from aster_ml.compat import lanes
from aster_ml.compat.devices import RendererView
from aster_ml.device import Device
from aster_ml.dtype import AddrSpace, dtypes
from aster_ml.uop.dialect import Dialect
from aster_ml.uop.graph import toposort
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import ELEMENTWISE, Ops
from aster_ml.uop.sint import sym_infer


class ProgramSpec(extend.ProgramSpec):
    """One kernel for one device: source, name, sizes, Opts, estimates (`engine.program`).

    `uops` are the nodes of the program in the dialect, every lane one of its own.
    """

    @property
    def uops(self) -> list[UOp]:
        """The program with its lanes apart, for vectors of four floats and narrow indices."""
        target = Device[self.device].target
        bits = 32 if fits_32_bits(self.ast) else 64
        narrow = dataclasses.replace(
            target, index_bits=bits, vector_bits=min(target.vector_bits, 128)
        )
        return lanes.nodes_of(extend.lower(self.ast, narrow, self.opts, by_hand=True)[0])

    @functools.cached_property
    def lib(self) -> bytes:
        """Binary that the device's compiler makes of the source."""
        return Device[self.device].compile(self.src)

    @property
    def aux(self) -> list[Any]:
        """Arguments of a launch beside buffers and variables: none."""
        return []

    def launch_dims(self, var_vals: dict[str, int]) -> tuple[list[int], list[int] | None]:
        """Work-groups and work-items of a launch with these values of variables."""
        whole = [sym_infer(size, var_vals) for size in self.global_size]
        return whole, None if self.local_size is None else list(self.local_size)


def fits_32_bits(ast: UOp) -> bool:
    """Whether 32 bits hold every index of a kernel."""
    indices = [u for u in toposort(ast) if u.dtype is dtypes.index]
    return all(-(1 << 31) <= u.vmin and u.vmax < 1 << 31 for u in indices)


def get_program(
    ast: UOp, renderer: RendererView | str | None = None, opts: Sequence[Opt] | None = None
) -> ProgramSpec:
    """The program of a kernel for the device of a renderer, or of that name.

    Without `opts` the kernel's own are applied, or else the cost decides; with () none is.

    Raises: ArgumentError for a node that is no kernel; KernelOptError for an Opt that does not fit.
    """
    device = renderer.device if isinstance(renderer, RendererView) else renderer
    found = extend.get_program(ast, device, opts)
    return ProgramSpec(**{f.name: getattr(found, f.name) for f in dataclasses.fields(found)})


class Estimates(extend.Estimates):
    """Estimate of what a kernel computes and moves, also of a list of the dialect's nodes."""

    @classmethod
    def from_uops(cls, uops: Iterable[UOp], ignore_indexing: bool = False) -> Estimates:
        """Operations, and bytes of loads and stores, of a list of the dialect's nodes.

        With `ignore_indexing` arithmetic that only addresses are made of is not counted.
        """
        nodes = list(uops)
        places = [u for u in nodes if u.op is Ops.INDEX]
        skipped = set(toposort(*[s for u in places for s in u.src[1:]])) if places else set()
        ops, lds, times = 0, 0, 1
        open_loops: list[int] = []
        for u in nodes:
            if u.op is Ops.RANGE or u.op is Dialect.SPECIAL:
                size = int(u.src[0].vmax)
                times *= size
                if u.op is Ops.RANGE:
                    open_loops.append(size)
            elif u.op is Ops.END:
                times //= open_loops.pop()
            elif u.op in ELEMENTWISE and u.op not in (Ops.CAST, Ops.BITCAST):
                if not (ignore_indexing and u in skipped):
                    ops += times * u.dtype.vcount * (2 if u.op.name == "MULACC" else 1)
            elif u.op in (Ops.LOAD, Ops.STORE):
                value = u if u.op is Ops.LOAD else u.src[1]
                if getattr(u.src[0].dtype, "addrspace", None) is not AddrSpace.REG:
                    lds += times * value.dtype.itemsize
        return cls(ops=ops, lds=lds)

    def simplify(self) -> Estimates:
        """Itself: counts are numbers."""
        return self
