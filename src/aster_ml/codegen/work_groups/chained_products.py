"""Finds kernels that chain two products on a tensor core, and has the kernel library build them.

Receives a kernel and the number of a row of `target/tensor_cores`. The Opt TC chain says of the
kernel that the row computes it; its graph is built later, when all Opts are known. Which kernels
these are, and how each is built, say the rows of `kernel_library`, of which nothing here knows one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple, Protocol

from aster_ml.codegen.kernel import Kernel
from aster_ml.codegen.plans import (
    ChainedProducts,
    ChainedTiles,
    CopyPipeline,
    OverlappedExp,
    ProducerWarp,
)
from aster_ml.errors import KernelOptError
from aster_ml.helpers import ceildiv
from aster_ml.kernel_library.rows import parts_of
from aster_ml.target import Target
from aster_ml.target.tensor_cores import ROWS, TensorCore
from aster_ml.uop.node import UOp
from aster_ml.uop.ranges import size_of


class ChainBuilder(Protocol):
    """Builds a kernel: `loop` is over tiles of an axis, of which each has `tile` steps."""

    loop: UOp
    tile: int

    def build(self) -> UOp:
        """The graph in program order."""


class Match(NamedTuple):
    """A kernel that a row of the library computes on a tensor core, in a loop over `axis`.

    `why_not` names what keeps the tensor core from computing it, "" where nothing does; in
    `overlaps_exp` a producer warp lets exponentials overlap the product before. `stages` gives the
    number of tiles that local memory has room for, 1 where copies cannot run ahead.
    """

    axis: UOp
    why_not: str
    overlaps_exp: bool
    stages: Callable[[Target], int]
    builder: Callable[[Target], ChainBuilder]


def find_chain(kernel: Kernel, core: TensorCore) -> Match | None:
    """The first match of a kernel among the rows of the library."""
    # One product alone is no chain.
    if not core.chains or len(kernel.reduces) < 2:
        return None
    found = (row.find_chain(kernel, core) for row in parts_of("chain"))
    return next((match for match in found if match is not None), None)


def chain_products(kernel: Kernel, axis: UOp, number: int) -> None:
    """Says of a kernel that a row of tensor cores computes it in a loop over an axis.

    Raises: KernelOptError where no row of the library matches, or something keeps the tensor core
        from computing it.
    """
    core = ROWS[number]
    found = find_chain(kernel, core)
    if found is None or found.axis is not axis:
        wanted = [row.WANTED.format(dtype=core.dtype) for row in parts_of("chain")]
        raise KernelOptError("; ".join(wanted) or "the kernel library has no row")
    if found.why_not:
        raise KernelOptError(found.why_not)
    kind = ChainedTiles if core.in_group else ChainedProducts
    kernel.add(kind(axis=axis.arg.id, core=number))


def producer_kind(kernel: Kernel) -> type[ProducerWarp]:
    """Chooses how a producer warp is used: exp overlaps a product where registers have room."""
    plan = kernel.plan(ChainedTiles)
    found = None if plan is None else find_chain(kernel, ROWS[plan.core])
    return OverlappedExp if found is not None and found.overlaps_exp else ProducerWarp


def build_chain(kernel: Kernel, target: Target) -> None:
    """Builds the graph in program order of chained products that an Opt has asked for.

    Raises: KernelOptError where stages are more than there are tiles, or nothing says how many.
    """
    plan, copies = kernel.plan(ChainedProducts), kernel.plan(CopyPipeline)
    assert plan is not None
    core = ROWS[plan.core]
    found = find_chain(kernel, core)
    assert found is not None
    builder = found.builder(target)
    if copies is not None:
        stages, tiles = copies.count, ceildiv(size_of(found.axis), builder.tile)
        if tiles < stages:
            raise KernelOptError(f"{stages} stages are more than the {tiles} tiles of the loop")
        kernel.add(replace(copies, axis=builder.loop.arg.id))
    elif core.in_group:
        raise KernelOptError(f"{core.name} wants PIPELINE copies or PIPELINE producer")
    kernel.sink = builder.build()
    kernel.outputs = []
