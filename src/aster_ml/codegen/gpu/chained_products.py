"""The Opt TC chain: attention whose scores stay in registers, and which tensor core computes it.

Receives a kernel and the number of a row of `target/tensor_cores`; says of the kernel that the row
computes it, and later has its graph built: by `gpu/attention_kernel` of operands in registers, by
`gpu/attention_boxes` of operands that boxes bring. What attention is says `gpu/attention`.
"""

from __future__ import annotations

from typing import NamedTuple

from aster_ml.codegen.gpu.attention import Attention, find_attention
from aster_ml.codegen.gpu.attention_boxes import (
    BoxBuilder,
    overlaps_exp,
    stages_of_boxes,
    why_no_boxes,
)
from aster_ml.codegen.gpu.attention_kernel import Builder, stages_of
from aster_ml.codegen.gpu.attention_slopes import Slopes, find_slopes
from aster_ml.codegen.gpu.attention_slopes_kernel import SlopeBuilder
from aster_ml.codegen.gpu.attention_slopes_kernel import stages_of as stages_of_slopes
from aster_ml.codegen.kernel import Kernel
from aster_ml.codegen.plans import (
    ChainedProducts,
    ChainedTiles,
    CopyPipeline,
    OverlappedExp,
    ProducerWarp,
)
from aster_ml.config import BOXES
from aster_ml.errors import KernelOptError
from aster_ml.helpers import ceildiv
from aster_ml.target import Target
from aster_ml.target.tensor_cores import ROWS, TensorCore
from aster_ml.uop.node import UOp
from aster_ml.uop.ranges import size_of

# The widest heads of which registers have sums. Source: 16 rows of a warp (PTX ISA 8.7,
# "mma.m16n8k16") by 256 columns are 128 registers of a work-item, of 255 that it can have.
WIDEST = 256


class Chain(NamedTuple):
    """A choice: a row, the parts of a kernel, stages, and which PIPELINE fills them."""

    number: int
    parts: Attention | Slopes
    stages: int
    how: str


def find_chain(kernel: Kernel, core: TensorCore) -> Attention | Slopes | None:
    """The attention that a kernel is, or the gradient of it."""
    return find_attention(kernel, core) or find_slopes(kernel, core)


def chain_products(kernel: Kernel, axis: UOp, number: int) -> None:
    """Says of a kernel that a row of tensor cores computes it as attention over an axis of keys.

    Raises: KernelOptError where it is none, or its heads are too wide.
    """
    core = ROWS[number]
    found = find_chain(kernel, core)
    if found is None or found.keys is not axis:
        raise KernelOptError(
            f"attention is wanted: powers of scores of {core.dtype} less their maximum, over the "
            "keys, times values, over the sum of these powers; or a gradient of it"
        )
    if core.in_group:
        why = "it is a gradient" if isinstance(found, Slopes) else why_no_boxes(found, core)
        if why:
            raise KernelOptError(f"{core.name} wants operands that are boxes of tensors: {why}")
    else:
        for r in (found.depth, found.columns):
            if size_of(r) > WIDEST:
                raise KernelOptError(f"heads up to {WIDEST} wide are wanted, not of {size_of(r)}")
    kind = ChainedTiles if core.in_group else ChainedProducts
    kernel.add(kind(axis=axis.arg.id, core=number))


def best_chain(kernel: Kernel, target: Target) -> Chain | None:
    """Attention on the tensor core with the longest sum that its dtypes have, if it is attention.

    Boxes bring operands where the setting BOXES asks for what nobody has run.
    """
    there = [(core.size("k"), i) for i, core in enumerate(ROWS) if core.name in target.tensor_cores]
    for _, number in sorted(there, reverse=True):
        core = ROWS[number]
        if core.in_group and BOXES < 2:
            continue
        found = find_chain(kernel, core)
        if found is None:
            continue
        if isinstance(found, Slopes):
            if not core.in_group:
                return Chain(number, found, stages_of_slopes(found, core, target), "copies")
        elif not core.in_group:
            return Chain(number, found, stages_of(found, core, target), "copies")
        elif not why_no_boxes(found, core) and (stages := stages_of_boxes(found, target)) > 1:
            return Chain(number, found, stages, "producer")
    return None


def attend_in_order(kernel: Kernel, target: Target) -> None:
    """The graph in program order of attention that an Opt has asked for.

    Raises: KernelOptError where stages are more than there are tiles, or nothing says how many.
    """
    plan, copies = kernel.plan(ChainedProducts), kernel.plan(CopyPipeline)
    assert plan is not None
    core = ROWS[plan.core]
    found = find_chain(kernel, core)
    assert found is not None
    kinds = SlopeBuilder if isinstance(found, Slopes) else Builder
    builder = (BoxBuilder if core.in_group else kinds)(kernel, found, core, target)
    if copies is not None:
        stages, tiles = copies.count, ceildiv(size_of(found.keys), builder.tile)
        if tiles < stages:
            raise KernelOptError(f"{stages} stages are more than the {tiles} tiles of keys")
        kind = type(copies)
        if kind is ProducerWarp and isinstance(found, Attention) and overlaps_exp(found):
            kind = OverlappedExp
        kernel.add(kind(axis=builder.turn.arg.id, count=stages))
    elif core.in_group:
        raise KernelOptError(f"{core.name} wants PIPELINE copies or PIPELINE producer")
    kernel.sink = builder.build()
    kernel.outputs = []
