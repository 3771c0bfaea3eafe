"""Decides which operators of a graph Aster computes, and which are left to PyTorch.

Receives a graph of torch.fx; returns it with the parts that are Aster's as modules of their own. It
says of each other operator why it is left.
"""

from __future__ import annotations

import operator
import warnings
from typing import Any

from aster_ml.torch_backend.aten.families import FAMILIES
from aster_ml.torch_backend.aten.registry import OPERATORS
from aster_ml.torch_backend.graph import SIZES, is_number, name_of
from aster_ml.torch_backend.types import spec_of

assert FAMILIES
# What was told already.
TOLD: set[str] = set()


def reason_against(node: Any) -> str | None:
    """Why a node is left to PyTorch; None if it is not."""
    while node.target is operator.getitem:
        node = node.args[0]
    value = node.meta.get("val")
    if name_of(node) in SIZES:
        return None
    if is_number(value) and not any(
        hasattr(n.meta.get("val"), "dtype") for n in node.all_input_nodes
    ):
        return None
    row = OPERATORS.get(name_of(node))
    if row is None:
        return "is not there"
    values = [value, *[n.meta.get("val") for n in node.all_input_nodes]]
    for found in values:
        for v in found if isinstance(found, (list, tuple)) else [found]:
            why = reason_against_value(v)
            if why is not None:
                return why
    return None if row.refuses is None else row.refuses(node)


def reason_against_value(value: Any) -> str | None:
    """Why a tensor is none for Aster; None if it is one, or no tensor."""
    if value is None or is_number(value):
        return None
    if not hasattr(value, "dtype"):
        return f"takes or gives {type(value).__name__}"
    if spec_of(value) is None:
        return f"has {str(value.dtype).removeprefix('torch.')}"
    if value.device.type != "cpu":
        return f"is on {value.device}"
    if str(value.layout) != "torch.strided":
        return f"has {value.layout}"
    return None


def left_to_torch(module: Any) -> dict[str, str]:
    """The operators of a graph that are left to PyTorch, and why."""
    found = {}
    for node in module.graph.nodes:
        if node.op == "call_function" and node.target is not operator.getitem:
            reason = reason_against(node)
            if reason is not None:
                found[str(node.target)] = reason
    return found


def tell(left: dict[str, str]) -> None:
    """Warns, once of each operator, of what PyTorch computes."""
    new = {name: why for name, why in left.items() if name not in TOLD}
    if new:
        TOLD.update(new)
        listed = "; ".join(f"{name} ({why})" for name, why in sorted(new.items()))
        warnings.warn(f"torch.compile: left to PyTorch: {listed}", UserWarning, stacklevel=2)


def partitioned(module: Any) -> Any:
    """The graph with Aster's parts as modules `fused_0` and so on."""
    from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner
    from torch.fx.passes.operator_support import create_op_support

    support = create_op_support(
        lambda modules, node: node.op == "call_function" and reason_against(node) is None
    )
    return CapabilityBasedPartitioner(
        module, support, allows_single_node_partition=True
    ).partition_and_fuse()
