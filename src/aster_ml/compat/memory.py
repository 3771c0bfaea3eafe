"""Places of buffers in shared arenas, planned for items of a schedule.

Receives the buffers that steps touch, or `ExecItem`s; returns buffers that share memory where they
are not needed at the same time. Where the engine's own temporaries lie is `engine.memory`'s.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from aster_ml.device import Buffer
from aster_ml.dtype import dtypes
from aster_ml.engine.items import ExecItem
from aster_ml.extend import Arena
from aster_ml.helpers import round_up

__all__ = ["_internal_memory_planner", "memory_planner"]


def _internal_memory_planner(
    buffers: Sequence[Sequence[Buffer]], noopt_buffers: Any = None
) -> dict[Buffer, Buffer]:
    """For each buffer that may move its place in an arena, planned by the engine's `Arena`.

    `buffers[i]` are those that step i touches. What is allocated, or that somebody holds, stays.
    """
    kept = {id(b.base) for b in noopt_buffers or ()}
    first: dict[Buffer, int] = {}
    last: dict[Buffer, int] = {}
    for i, step in enumerate(buffers):
        for b in step:
            base = b.base
            if base.is_allocated() or base.uop_refcount > 0 or id(base) in kept:
                continue
            first.setdefault(base, i)
            last[base] = i
    arenas: dict[str, Arena] = {}
    offsets: dict[Buffer, int] = {}
    for i in range(len(buffers)):
        for base in [b for b, at in first.items() if at == i]:
            arena = arenas.setdefault(base.device, Arena())
            offsets[base] = arena.take(round_up(max(base.nbytes, 1), Arena.alignment))
        for base in [b for b, at in last.items() if at == i]:
            arenas[base.device].give(offsets[base], round_up(max(base.nbytes, 1), Arena.alignment))
    memory = {device: Buffer(device, a.nbytes, dtypes.uint8) for device, a in arenas.items()}
    placed = {b: memory[b.device].view(b.size, b.dtype, at) for b, at in offsets.items()}
    for b in {b for step in buffers for b in step} - set(placed):
        if b.base in placed:
            placed[b] = placed[b.base].view(b.size, b.dtype, b.offset)
    return placed


def memory_planner(schedule: Sequence[ExecItem]) -> list[ExecItem]:
    """The items of a schedule, whose temporaries share memory now; results stay where they are."""
    placed = _internal_memory_planner([[b for b in i.bufs if b is not None] for i in schedule])
    for item in schedule:
        item.bufs = [None if b is None else placed.get(b, b) for b in item.bufs]
    return list(schedule)
