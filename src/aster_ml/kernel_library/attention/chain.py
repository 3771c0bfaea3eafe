"""Matches kernels of attention and of its gradients, and builds them for a tensor core.

Receives a kernel and a row of `target/tensor_cores`; returns a Match, as
`work_groups/chained_products` asks of it. Its graph is built by `kernel` and `gradient_kernel` of
operands in registers, by `boxes` of operands that TMA brings.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeAlias

from aster_ml.codegen.kernel import Kernel
from aster_ml.codegen.work_groups.chained_products import Match
from aster_ml.kernel_library.attention import boxes, gradient_kernel, kernel
from aster_ml.kernel_library.attention.gradient_parts import Slopes, find_slopes
from aster_ml.kernel_library.attention.parts import Attention, find_attention
from aster_ml.target.tensor_cores import TensorCore
from aster_ml.uop.ranges import size_of

WANTED = (
    "attention is wanted: powers of scores of {dtype} less their maximum, over the keys, times "
    "values, over the sum of these powers; or a gradient of it"
)
# The widest heads of which registers have sums. Source: 16 rows of a warp (PTX ISA 8.7,
# "mma.m16n8k16") by 256 columns are 128 registers of a work-item, of 255 that it can have.
WIDEST = 256
# Number of stages, and the builder.
Kind: TypeAlias = tuple[Callable[..., int], Callable[..., kernel.Builder]]
OF_REGISTERS: Kind = kernel.stages_of, kernel.Builder
OF_BOXES: Kind = boxes.stages_of, boxes.BoxBuilder
OF_GRADIENTS: Kind = gradient_kernel.stages_of, gradient_kernel.SlopeBuilder


def find_chain(given: Kernel, core: TensorCore) -> Match | None:
    """The attention that a kernel is, or the gradient of it."""
    parts = find_attention(given, core) or find_slopes(given, core)
    if parts is None:
        return None
    stages, builder = OF_GRADIENTS
    if isinstance(parts, Attention):
        stages, builder = OF_BOXES if core.in_group else OF_REGISTERS
    overlaps = isinstance(parts, Attention) and boxes.overlaps_exp(parts)
    made = partial(stages, parts, core), partial(builder, given, parts, core)
    return Match(parts.keys, why_not(parts, core), overlaps, *made)


def why_not(parts: Attention | Slopes, core: TensorCore) -> str:
    """Names what keeps a tensor core from computing attention; "" where nothing does."""
    if core.in_group:
        why = "it is a gradient"
        if isinstance(parts, Attention):
            why = boxes.why_no_boxes(parts, core)
        return why and f"{core.name} wants operands that are boxes of tensors: {why}"
    wide = [size_of(r) for r in (parts.depth, parts.columns) if size_of(r) > WIDEST]
    return f"heads up to {WIDEST} wide are wanted, not of {wide[0]}" if wide else ""
