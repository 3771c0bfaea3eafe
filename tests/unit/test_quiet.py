"""Python's search for circles rests during a first call, and has nothing to do after it."""

from __future__ import annotations

import gc
from typing import Any

from aster_ml import Context, Tensor
from aster_ml.codegen.linearize import Scope
from aster_ml.renderer.cell import Cell
from aster_ml.uop.quiet import uncollected


def held_by_circles(kinds: tuple[type, ...]) -> list[Any]:
    """Objects of these kinds that are alive and that the search would drop."""
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        gc.collect()
        return [x for x in gc.garbage if isinstance(x, kinds)]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()


def test_what_is_left_counts_as_old() -> None:
    gc.collect()
    assert gc.isenabled()
    with uncollected():
        assert not gc.isenabled()
        left = [[i] for i in range(2000)]
    young = {id(x) for generation in (0, 1) for x in gc.get_objects(generation)}
    assert not any(id(x) in young for x in left)
    assert gc.isenabled()
    assert gc.get_freeze_count() == 0


def test_what_others_put_aside_stays_there() -> None:
    gc.freeze()
    try:
        count = gc.get_freeze_count()
        with uncollected():
            pass
        # What has been dropped by its count of references is gone from there too.
        assert 0 < gc.get_freeze_count() <= count
    finally:
        gc.unfreeze()


def test_a_compiled_kernel_leaves_no_circles() -> None:
    x = Tensor.ones(8, 6).contiguous().realize()
    gc.collect()
    gc.disable()
    try:
        with Context(CACHE=0):
            ((x @ x.T).max(1) * 3.125 - x.sum()).realize()
        assert not held_by_circles((Cell, Scope))
    finally:
        gc.enable()
