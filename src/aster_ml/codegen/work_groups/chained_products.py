"""Matches kernels that chain two products on a tensor core to rows of the kernel library.

Receives a kernel and the number of a row of `target/tensor_cores`. The Opt TC chain selects that
row; the graph is built after all Opts are applied. Rows of `kernel_library` define which kernels
match and how each is built; no row is named here.
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

    `why_not` is the reason why the tensor core cannot compute it, or "". `overlaps_exp` says that
    with a producer warp, exponentials may overlap the previous product. `stages` gives the number
    of tiles that fit local memory, 1 where copies cannot run ahead.
    """

    axis: UOp
    why_not: str
    overlaps_exp: bool
    stages: Callable[[Target], int]
    builder: Callable[[Target], ChainBuilder]


def find_chain(kernel: Kernel, core: TensorCore) -> Match | None:
    """The first match of a kernel among the rows of the library."""
    # A chain has two products.
    if not core.chains or len(kernel.reduces) < 2:
        return None
    found = (row.find_chain(kernel, core) for row in parts_of("chain"))
    return next((match for match in found if match is not None), None)


def chain_products(kernel: Kernel, axis: UOp, number: int) -> None:
    """Selects a row of tensor cores to compute a kernel in a loop over an axis.

    Raises: KernelOptError where no row of the library matches, or the tensor core cannot compute
        the match.
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
    """The kind of producer warp: exp overlaps a product where enough registers are left."""
    plan = kernel.plan(ChainedTiles)
    found = None if plan is None else find_chain(kernel, ROWS[plan.core])
    return OverlappedExp if found is not None and found.overlaps_exp else ProducerWarp


def build_chain(kernel: Kernel, target: Target) -> None:
    """Builds the graph, in program order, of chained products that an Opt asks for.

    Raises: KernelOptError for more stages than tiles, or without a PIPELINE.
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
