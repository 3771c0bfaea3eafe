"""Twice the work costs about twice the Python calls, for the first call and for later ones.

The cases stand in `tools/growth.py`, which prints their curves. Calls are counted as the profiler
sees them, those of built-in functions included; a walk over all there is for each of n things shows
as a ratio near 4.
"""

from __future__ import annotations

import numpy as np
import pytest

from aster_ml import Tensor
from tools.growth import CASES, MOST, calls_of, tensors

# What takes long for each of its things.
FEW = {
    "training_of_layers": 8,
    "models_trained_and_kept": 20,
    "models_trained_and_dropped": 20,
    "models_kept": 30,
    "models_dropped": 30,
    "loading_a_state_dict": 30,
    "training_step": 30,
}


@pytest.mark.parametrize("name", CASES)
def test_twice_the_work_costs_twice_the_calls(name: str) -> None:
    n, case = FEW.get(name, 60), CASES[name]
    # Kernels of the sizes that are counted are compiled before, as far as they are the same.
    case(n // 2)()
    for size in (n, n + 1):
        few, many = case(size), case(2 * size)
        once, twice = calls_of(few), calls_of(many)
        # Which kernels are built together, and what of them is read meanwhile, depends on when the
        # compilers beside this process end. What grows does so for other sizes too, whose kernels
        # are new.
        if twice <= MOST * once:
            break
    assert twice <= MOST * once, f"first call: {once} calls for {size}, {twice} for {2 * size}"
    if name in FEW and name != "training_step":
        return  # a later call does what the first did
    # A small graph may be known by its form from the second time on, and now and then what is gone
    # is swept out: of two calls the one that says less.
    once = max(calls_of(few), calls_of(few))
    twice = min(calls_of(many), calls_of(many))
    assert twice <= MOST * once, f"later call: {once} calls for {size}, {twice} for {2 * size}"


def test_a_write_costs_the_same_beside_many_tensors() -> None:
    x = Tensor(np.zeros(4, np.float32)).realize()

    def work() -> None:
        x.assign(x + 1).realize()

    for _ in range(3):
        work()
    few = calls_of(work)
    kept = tensors(500, 4)
    work()
    assert calls_of(work) <= few + 20
    assert len(kept) == 500
