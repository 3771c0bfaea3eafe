"""Programs, memory plans and compilers as the reference's tests look at them.

Adapters between those tests and `aster_ml.engine`: each does its work through what the engine runs
itself. What a program is made of is shown in the reference's dialect, lane by lane.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Sequence
from typing import Any

from aster_ml import config, trace
from aster_ml.allocator import Allocator
from aster_ml.backend import Backend
from aster_ml.codegen.lower import lower
from aster_ml.codegen.opts import Opt, parse_opts
from aster_ml.compat.dialect import Dialect
from aster_ml.device import Buffer, Device
from aster_ml.dtype import AddrSpace, dtypes
from aster_ml.engine import estimate, items, program
from aster_ml.engine.graph_runner import GraphRunner
from aster_ml.engine.memory import ALIGNMENT, Arena
from aster_ml.helpers import round_up
from aster_ml.uop.graph import toposort
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import ELEMENTWISE, KernelArg, Ops
from tests.parity import lanes


class ProgramView(program.ProgramSpec):
    """A `ProgramSpec` whose nodes are those of the reference's dialect."""

    @property
    def uops(self) -> list[UOp]:
        """The program with its lanes apart, for vectors of four floats and narrow indices."""
        target = Device[self.device].target
        bits = 32 if fits_32_bits(self.ast) else 64
        narrow = dataclasses.replace(
            target, index_bits=bits, vector_bits=min(target.vector_bits, 128)
        )
        return lanes.nodes_of(lower(self.ast, narrow, self.opts, by_hand=True)[0])


def fits_32_bits(ast: UOp) -> bool:
    """Whether 32 bits hold every index of a kernel."""
    indices = [u for u in toposort(ast) if u.dtype is dtypes.index]
    return all(-(1 << 31) <= u.vmin and u.vmax < 1 << 31 for u in indices)


def view(found: program.ProgramSpec) -> ProgramView:
    """A program as the tests look at it."""
    return ProgramView(**{f.name: getattr(found, f.name) for f in dataclasses.fields(found)})


def get_program(
    ast: UOp, renderer: Any = None, opts: Sequence[Opt] | None = None
) -> program.ProgramSpec:
    """`engine.program.get_program` for the device of a renderer."""
    return view(program.get_program(ast, None if renderer is None else renderer.device, opts))


class Estimates(estimate.Estimates):
    """`engine.estimate.Estimates`, also of a list of nodes."""

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


def plan_buffers(
    buffers: Sequence[Sequence[Buffer]], noopt_buffers: Any = None
) -> dict[Buffer, Buffer]:
    """For each buffer that may move its place in an arena, planned by the engine's `Arena`.

    `buffers[i]` are those that step i touches. What is allocated, or that somebody holds, stays.
    """
    kept = {id(b.base) for b in noopt_buffers or ()}
    first: dict[Buffer, int] = {}
    last: dict[Buffer, int] = {}
    for i, step in enumerate(buffers):
        for b in step:
            base = b.base
            if base.is_allocated() or base.uop_refcount > 0 or id(base) in kept:
                continue
            first.setdefault(base, i)
            last[base] = i
    arenas: dict[str, Arena] = {}
    offsets: dict[Buffer, int] = {}
    for i in range(len(buffers)):
        for base in [b for b, at in first.items() if at == i]:
            arena = arenas.setdefault(base.device, Arena())
            offsets[base] = arena.take(round_up(max(base.nbytes, 1), ALIGNMENT))
        for base in [b for b, at in last.items() if at == i]:
            arenas[base.device].give(offsets[base], round_up(max(base.nbytes, 1), ALIGNMENT))
    memory = {device: Buffer(device, a.nbytes, dtypes.uint8) for device, a in arenas.items()}
    placed = {b: memory[b.device].view(b.size, b.dtype, at) for b, at in offsets.items()}
    for b in {b for step in buffers for b in step} - set(placed):
        if b.base in placed:
            placed[b] = placed[b.base].view(b.size, b.dtype, b.offset)
    return placed


class MultiGraphRunner(GraphRunner):
    """A graph over several devices; Aster makes one for each."""


class HCQGraph(GraphRunner):
    """A graph of hardware queues; no device of Aster has them."""


class MetadataVar:
    """The variable that has the call that is going on; who sets it wants calls to be noted.

    The reference notes them always, Aster when TRACEMETA says so.
    """

    def set(self, value: Any) -> Any:
        """Sets it, and turns noting on."""
        config.set_value(config.TRACEMETA, 1)
        return trace._METADATA.set(value)

    def get(self) -> Any:
        """The call that is going on."""
        return trace._METADATA.get()


class CompilerView:
    """A backend's compiler: who replaces `compile_cached` replaces what the engine calls."""

    def __init__(self, backend: Backend) -> None:
        self.__dict__["backend"] = backend

    @property
    def compile_cached(self) -> Any:
        """What turns source into a binary."""
        return self.__dict__["backend"].compile

    @compile_cached.setter
    def compile_cached(self, function: Any) -> None:
        self.__dict__["backend"].compile = function


def opts_to_apply(arg: KernelArg) -> tuple[Opt, ...] | None:
    """The Opts that somebody asked for."""
    return None if arg.opts is None else parse_opts(arg.opts)


# Attributes that the tests read off Aster's own objects: (class, name, value, why it is not there).
ATTRIBUTES: list[tuple[type, str, Any, str]] = [
    (Allocator, "_offset", Allocator.offset, "a public name here"),
    (Backend, "compiler", property(CompilerView), "a backend compiles by itself"),
    (
        items.CompiledRunner,
        "p",
        functools.cached_property(lambda self: view(program.get_program(self.ast, self.device))),
        "the tests look at it in the dialect",
    ),
    (KernelArg, "opts_to_apply", property(opts_to_apply), "Opts in the graph are text"),
]
