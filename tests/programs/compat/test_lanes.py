"""Programs as the reference lists them: each lane a node of its own, sources above readers."""

from __future__ import annotations

import pytest

from aster_ml import Tensor
from aster_ml.compat.lanes import Listing
from aster_ml.compat.programs import get_program
from aster_ml.dtype import dtypes
from aster_ml.uop.linear import Linear
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import Ops


@pytest.mark.parametrize(
    "make",
    [
        lambda: Tensor.empty(6, 9).exp().sum(1),
        lambda: Tensor.empty(33, 40) @ Tensor.empty(40, 17),
        lambda: Tensor.empty(5, 64).max(1) + 1,
        lambda: Tensor.empty(8, 16)[Tensor.empty(3, dtype=dtypes.int32)],
    ],
    ids=["sum", "product", "maximum", "gather"],
)
def test_sources_stand_above_what_reads_them(make) -> None:
    kernels = [item.ast for item in make().schedule() if item.ast.op is Ops.SINK]
    assert kernels
    for uops in [get_program(ast).uops for ast in kernels]:
        above: set[UOp] = set()
        for u in uops:
            assert above.issuperset(u.src), u
            above.add(u)
        assert uops[-1].op is Ops.SINK


def test_a_value_of_any_depth() -> None:
    """What is read inline is found by a loop: a chain as deep as somebody writes it."""
    value = UOp.param(0, 8, dtypes.int32).index(UOp.index_const(0))
    for i in range(5000):
        value = UOp(Ops.ADD, dtypes.int32, (value, UOp.const(dtypes.int32, i)))
    listing = Listing(Linear("deep", (), (), (), frozenset()))
    made = listing.value(value, {})
    assert listing.uops[-1] is made
    assert len([u for u in listing.uops if u.op is Ops.ADD]) == 5000
