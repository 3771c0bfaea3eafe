"""Weak references with callbacks never lie in garbage that only the cyclic collector finds.

Python 3.11 crashes where one does: an object with two such references goes, its
`PyObject_ClearWeakRefs` asks for a tuple, which may start the collector, which frees the reference
that is looked at.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from aster_ml import Tensor, TinyJit, nn


def views_that_leave() -> list[Tensor]:
    """Tensors that outlive the cell they were views of."""
    base = Tensor(np.ones((4, 4), np.float32)).realize()
    views = [base.reshape(16), base[1:], base.T]
    for t in views:
        t.replace(t + 1)
    return views


def state_of_a_jit() -> list[Tensor]:
    """The memory that a jitted function writes, which outlives the function."""
    state = Tensor(np.ones(4, np.float32)).realize()

    class Counter:
        def __init__(self) -> None:
            self.me, self.state = self, state
            self.step = TinyJit(lambda: self.state.assign(self.state + 1).realize())

    counter = Counter()
    for _ in range(3):
        counter.step()
    return [state]


def training() -> list[Tensor]:
    """Parameters after a step."""
    layer = nn.Linear(4, 4)
    optimizer = nn.optim.SGD(nn.state.get_parameters(layer))
    with Tensor.train():
        layer(Tensor.ones(2, 4)).sum().backward()
        optimizer.step()
    return nn.state.get_parameters(layer)


@pytest.mark.parametrize(
    "make", [views_that_leave, state_of_a_jit, training], ids=lambda make: make.__name__
)
def test_no_callback_is_garbage(make: Callable[[], list[Any]]) -> None:
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        kept = make()
        gc.collect()
        found = [
            ref
            for ref in gc.garbage
            if isinstance(ref, weakref.ref) and ref.__callback__ is not None
        ]
        assert kept
        assert not found, found
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
