"""Work-groups: GROUP and STAGE axes become local memory and barriers.

Receives a kernel whose Opts are applied; returns its graph with numbers of blocks and of work-items
(`gpu/numbering`) in place of output axes. Only for targets with work-groups.
"""

from __future__ import annotations

from aster_ml.codegen.gpu.group_reduce import reduce_in_groups
from aster_ml.codegen.gpu.numbering import number_work, order_of_items
from aster_ml.codegen.gpu.staged_tiles import items_in_turn, stage_loads
from aster_ml.codegen.gpu.tensor_cores import lanes_first, multiply_together, reads_boxes
from aster_ml.codegen.kernel import Kernel
from aster_ml.target import Target


def build_blocks(kernel: Kernel, target: Target) -> None:
    """Work-groups: one block number and one work-item number, local memory and barriers."""
    order = lanes_first(kernel, order_of_items(kernel))
    if kernel.roles.staged is not None and not reads_boxes(kernel):
        if kernel.roles.fragments is None:
            order = items_in_turn(kernel, order)
        stage_loads(kernel, kernel.roles.staged, order, target)
    multiply_together(kernel, target)
    reduce_in_groups(kernel, order, target)
    kernel.sink = number_work(kernel, order, target.max_grid)
