"""Lowers GROUP and STAGE of work-groups to local memory and barriers.

Receives a kernel whose Opts are applied; returns its graph with block and work-item numbers
(`work_groups/numbering`) in place of output axes. Only for targets with work-groups.
"""

from __future__ import annotations

from aster_ml.codegen.kernel import Kernel
from aster_ml.codegen.plans import Fragments, ResultTile, SharedTile
from aster_ml.codegen.work_groups.group_reduce import reduce_in_groups
from aster_ml.codegen.work_groups.numbering import items_in, number_work, order_of_items
from aster_ml.codegen.work_groups.staged_tiles import items_in_turn, stage_loads
from aster_ml.codegen.work_groups.tensor_cores import lanes_first, multiply_together, reads_boxes
from aster_ml.errors import KernelOptError
from aster_ml.helpers import prod
from aster_ml.target import Target
from aster_ml.uop.linear import shared_nbytes
from aster_ml.uop.ranges import size_of


def build_blocks(kernel: Kernel, target: Target) -> None:
    """Lowers a kernel to work-groups: block and work-item numbers, local memory, barriers."""
    order = lanes_first(kernel, order_of_items(kernel))
    shared, fragments = kernel.plan(SharedTile), kernel.plan(Fragments)
    if shared is not None and not reads_boxes(kernel):
        if fragments is None:
            order = items_in_turn(kernel, order)
        stage_loads(kernel, shared.axis, order, target)
    multiply_together(kernel, order, target)
    reduce_in_groups(kernel, order, target)
    if kernel.plan(ResultTile) is not None and fragments is None:
        raise KernelOptError("STAGE out wants a product on tensor cores (TC), and there is none")
    check_room(kernel, order, target)
    kernel.sink = number_work(kernel, order, target.max_grid)


def check_room(kernel: Kernel, order: list[int], target: Target) -> None:
    """Raises KernelOptError where a block has more work-items or memory than the target has."""
    items = prod([size_of(r) for r in items_in(kernel, order)])
    if items > target.max_group:
        raise KernelOptError(
            f"a block of {items:,} work-items is asked for, and one has {target.max_group:,} at "
            "most; fewer LOCAL or GROUP would do"
        )
    nbytes = shared_nbytes(kernel.facts.order)
    if target.local_bytes and nbytes > target.local_bytes:
        raise KernelOptError(
            f"a block is to have {nbytes:,} bytes of local memory, and there are "
            f"{target.local_bytes:,}; shorter strips or smaller tiles would do (STAGE, LOCAL, "
            "UPCAST)"
        )
