"""Python's search for circles rests during a first call, and has nothing to do after it.

`test_gc_pause.py` runs these in a process of their own: each searches all that is alive, and in a
process that has run thousands of tests that is minutes.
"""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest

from aster_ml import Context, Tensor, TinyJit
from aster_ml.codegen.lower.linearize import Scope
from aster_ml.renderer.cell import Cell
from aster_ml.uop import gc_pause
from aster_ml.uop.gc_pause import LARGE, MOVED, least_moved, uncollected


def held_by_circles(kinds: tuple[type, ...]) -> list[Any]:
    """Objects of these kinds that are alive and that the search would drop."""
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        gc.collect()
        return [x for x in gc.garbage if isinstance(x, kinds)]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()


@pytest.fixture(autouse=True)
def nothing_put_aside() -> None:
    """What `tests/conftest.py` has put aside is searched with the rest."""
    gc.unfreeze()


def test_what_is_left_counts_as_old() -> None:
    gc.collect()
    assert gc.isenabled()
    with uncollected():
        assert not gc.isenabled()
        left = [[i] for i in range(LARGE + 2000)]
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


class Circle:
    """An object that only the search for circles drops, with a tensor in hand."""

    def __init__(self, t: Tensor) -> None:
        self.me = self
        self.t = t


def most_alive(turns: int, make: Any) -> int:
    """Circles around the tensors that `make` gives are dropped: how many are alive at most."""
    alive: list[weakref.ref[Circle]] = []
    most = 0
    gc.collect()
    for i in range(turns):
        alive.append(weakref.ref(Circle(make(i))))
        if i % 100 == 0:
            alive = [ref for ref in alive if ref() is not None]
            most = max(most, len(alive))
    return most


def test_circles_of_a_program_go_while_it_realizes() -> None:
    x = Tensor([1.0, 2.0]).realize()
    assert most_alive(2000, lambda _: (x + 1).contiguous().realize()) < 600


def test_circles_of_a_program_go_while_it_replays() -> None:
    x = Tensor([1.0, 2.0]).realize()
    jitted = TinyJit(lambda t: t * 3 + 1)
    assert most_alive(2000, lambda _: jitted(x)) < 600


def test_circles_go_though_large_blocks_hide_them(monkeypatch: pytest.MonkeyPatch) -> None:
    # What else is alive in this process does not put a search off.
    monkeypatch.setattr(gc_pause, "NEW_PART", 1 << 40)
    monkeypatch.setattr(MOVED, "most", 0)
    monkeypatch.setattr(MOVED, "count", 0)
    kept = []
    alive = []
    for _ in range(3 * least_moved() // LARGE):
        alive.append(weakref.ref(Circle(Tensor([1.0]))))
        with uncollected():
            kept.append([[i] for i in range(LARGE + 100)])
        kept.clear()
    before = MOVED.count
    assert before <= least_moved() + LARGE + 1000
    assert sum(ref() is not None for ref in alive) < len(alive)
