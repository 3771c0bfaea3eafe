"""Checks of lesson 00: each receives what the learner wrote; its docstring is the hint."""

from types import ModuleType

import numpy as np

from aster_ml import GlobalCounters, Tensor


def check_kernels_of(learner: ModuleType) -> None:
    """GlobalCounters.reset() starts the count, GlobalCounters.kernel_count has it."""
    x = Tensor.rand(8, 8).realize()
    assert learner.kernels_of(lambda: x + 1) == 1, "x + 1 is one kernel"
    assert learner.kernels_of(lambda: x.T) == 0, "a transposed view is no kernel"


def check_one_pass(learner: ModuleType) -> None:
    """Write the expression as it stands; fusion does the rest. Realize nothing on the way."""
    values = np.random.default_rng(0).normal(size=(50, 7)).astype(np.float32)
    x = Tensor(values).realize()
    GlobalCounters.reset()
    got = learner.one_pass(x).realize()
    assert GlobalCounters.kernel_count == 1, f"it took {GlobalCounters.kernel_count} kernels"
    assert np.isclose(got.item(), np.abs(values - 3).mean(), rtol=1e-5), f"it gave {got.item()}"


def check_border(learner: ModuleType) -> None:
    """Index the column first, then flip it; neither moves a byte."""
    image = Tensor(np.arange(12, dtype=np.float32).reshape(3, 4)).realize()
    GlobalCounters.reset()
    got = learner.border(image).realize()
    assert GlobalCounters.kernel_count == 0, "a kernel ran"
    assert got.tolist() == [11.0, 7.0, 3.0], f"it gave {got.tolist()}"


def check_same_node(learner: ModuleType) -> None:
    """Nodes are interned: compare the objects behind Tensor.uop with `is`, once `without_names` of
    uop/graph has taken off the names of tensors.
    """
    x = Tensor.rand(4).realize()
    assert learner.same_node(x * 2, x * 2), "x * 2 and x * 2 are one node"
    assert not learner.same_node(x * 2, x * 3), "x * 2 and x * 3 are two"
