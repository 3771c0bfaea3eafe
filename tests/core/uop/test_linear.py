"""What a linear program says of itself."""

from __future__ import annotations

from aster_ml.uop.ops import AxisType
from tests.core.linear_builder import GLOBAL, LOCAL, Builder, at

LOOP, REDUCE = AxisType.LOOP, AxisType.REDUCE


def test_turns_of_loops_are_those_of_one_work_item() -> None:
    """Of nested loops and of those that follow each other; blocks and work-items are no loops."""
    b = Builder()
    out, n = b.param(64), b.variable("n", 1, 9)
    block, item = b.axis(4, GLOBAL), b.axis(16, LOCAL)
    assert b.build().turns() == 0
    outer = b.axis(5, LOOP)
    first = b.axis(7, REDUCE)
    b.end(first)
    second = b.axis(n, LOOP)
    b.store(at(out, block * 16 + item), b.load(at(out, second)))
    b.end(second, outer)
    b.end(b.axis(3, LOOP))
    # Of an axis that a variable bounds, the most that there can be.
    assert b.build().turns() == 5 + 5 * 7 + 5 * 9 + 3
