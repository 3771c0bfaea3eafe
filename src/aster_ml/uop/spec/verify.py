"""Verifies graphs and linear programs against the specification of their stage.

`verify(root, stage)` receives a graph (stages "tensor" and "kernel") or a `Linear` (stage "linear")
and returns nothing; it raises InternalError naming the stage, the node and the broken rule.
Mistakes of users are found earlier, where nodes are built.
"""

from __future__ import annotations

from typing import Any

from aster_ml.errors import AsterError, InternalError
from aster_ml.uop.graph import toposort
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import Ops
from aster_ml.uop.spec.linear import UNCLOSED, verify_linear
from aster_ml.uop.spec.rows import VOID, check_nodes, fail
from aster_ml.uop.spec.tables import KERNEL_SPEC, TENSOR_SPEC


def verify_tensor(roots: Any) -> None:
    """Verifies the tensor stage: values with shapes."""
    nodes = toposort(*roots)
    check_nodes("tensor", TENSOR_SPEC, nodes)
    for u in nodes:
        try:
            shape = u.shape
        except AsterError as error:
            raise fail("tensor", u, f"it has a shape ({error})") from error
        if u.dtype is not VOID and shape is None and u.op is not Ops.DEVICE:
            raise fail("tensor", u, "a value has a shape")


def verify_kernel(roots: Any) -> None:
    """Verifies the kernel stage: SINK of END(STORE(INDEX(PARAM, flat), value), ranges), scalars."""
    nodes = toposort(*roots)
    check_nodes("kernel", KERNEL_SPEC, nodes)
    closed_by: dict[UOp, Ops] = {}
    for u in nodes:
        if u.op in (Ops.END, Ops.REDUCE):
            for r in u.src[1:]:
                # Lanes in registers may be both folded and stored.
                if not r.arg.kind.is_lane and closed_by.setdefault(r, u.op) is not u.op:
                    raise fail("kernel", u, f"{r!r} is closed by a REDUCE and by an END")
    for root in roots:
        if root.op is not Ops.SINK:
            raise fail("kernel", root, "the root is a SINK")
        open_ranges = [r for r in root.ranges if r.arg.kind.name not in UNCLOSED]
        if open_ranges:
            raise fail("kernel", root, f"every range is closed; open: {open_ranges}")


def verify(value: Any, stage: str) -> None:
    """Verifies one or several graphs, or a Linear, against a stage: tensor, kernel or linear.

    Raises: InternalError naming the stage, the node and the broken rule.
    """
    if stage == "linear":
        verify_linear(value)
        return
    check = {"tensor": verify_tensor, "kernel": verify_kernel}.get(stage)
    if check is None:
        raise InternalError(f"verify: no stage {stage!r}; there are tensor, kernel and linear")
    check((value,) if value.__class__ is UOp else tuple(value))
