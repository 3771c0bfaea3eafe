"""Checks of lesson 05: each receives what the learner wrote; its docstring is the hint."""

import math
import sys
from pathlib import Path
from types import ModuleType

from aster_ml import GlobalCounters, Tensor, dtypes
from aster_ml.codegen.opts import parse_opts
from aster_ml.codegen.passes import lower
from aster_ml.renderer.c import CRenderer
from aster_ml.target import Target
from aster_ml.uop.node import UOp
from aster_ml.uop.pattern import PatternMatcher

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # tests/ of this clone
from tests.core.rules.instances import fired_instances

TARGET = Target("CPU", "c", arch="lesson", vector_bits=256, vector_registers=16)


def product() -> Tensor:
    return Tensor.rand(8, 16).realize() @ Tensor.rand(16, 32).realize()


def check_kernels_planned(learner: ModuleType) -> None:
    """`schedule()` gives one step for each kernel."""
    t = (product() + 1).relu()
    GlobalCounters.reset()
    got = learner.kernels_planned(t)
    assert GlobalCounters.kernel_count == 0, "a kernel ran"
    assert got == 1, f"it says {got} of a product with relu"


def check_loops(learner: ModuleType) -> None:
    """toposort(kernel) lists the nodes; of a RANGE, arg has id and kind, src[0].arg is the size."""
    got = learner.loops(product().schedule()[0].ast)
    assert got == [(8, "loop"), (32, "loop"), (16, "reduce")], f"it gave {got}"


def check_twice_flipped(learner: ModuleType) -> None:
    """The pattern of lesson part 7 with XOR in both places; y twice is the same node twice."""
    rule = learner.twice_flipped()
    assert rule.name == "twice-flipped", f"its name is {rule.name!r}"
    assert fired_instances(rule, 60) == 60, "it hardly ever fires on what fits its pattern"
    x, y, z = (UOp.variable(name, 0, 100, dtypes.int32) for name in "xyz")
    table = PatternMatcher([rule])
    for before in ((x ^ y) ^ y, y ^ (x ^ y), y ^ (y ^ x), (y ^ x) ^ y):
        assert table.rewrite(before) is x, "one order of the operands is not found"
    assert table.rewrite((x ^ y) ^ z) is None, "it fires on (x ^ y) ^ z"


def check_refutation(learner: ModuleType) -> None:
    """What happens to a product that is too large for a float?"""
    x, y = learner.refutation()
    assert y != 0, "y is 0"
    got = x * y / y
    assert got != x or math.isnan(got), f"({x} * {y}) / {y} is {got}, which is x"


def check_least_loops(learner: ModuleType) -> None:
    """VECTOR takes 8 of the 32 columns, UPCAST can take the rest, and rows too."""
    opts = parse_opts(learner.least_loops())
    text = CRenderer(TARGET).render(lower(product().schedule()[0].ast, TARGET, opts)[0])
    count = text.count("for (")
    assert count == 1, f"its program has {count} loops"
