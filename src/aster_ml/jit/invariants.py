"""Loop-invariant steps of a recording, whose results are the same in every replay: run once.

Receives recorded steps and which memory may be exchanged or rewritten between replays; runs the
steps that depend on none of it once more, into memory that stays, and returns the others, which
read that memory.
"""

from __future__ import annotations

from aster_ml.device import Buffer
from aster_ml.engine.launch import run_step
from aster_ml.helpers import prod
from aster_ml.jit.repack import written_slots
from aster_ml.jit.replay import Recorded
from aster_ml.uop.graph import toposort
from aster_ml.uop.ops import Ops, RunArg


def span(b: Buffer) -> tuple[int, int, int]:
    """Which memory, and which bytes of it."""
    return id(b.base), b.offset, b.offset + b.nbytes


def overlap(a: tuple[int, int, int], b: tuple[int, int, int]) -> bool:
    """Whether two spans share a byte."""
    return a[0] == b[0] and a[1] < b[2] and b[1] < a[2]


class Fixed:
    """Memory with the results of steps that have been run for good, by where it was recorded."""

    def __init__(self) -> None:
        self.found: dict[tuple[int, int, int], Buffer] = {}

    def read(self, b: Buffer) -> Buffer | None:
        """Finds the buffer of this part of memory, if it is a fixed result."""
        base, start, stop = wanted = span(b)
        for where, memory in self.found.items():
            if where[0] == base and where[1] <= start and stop <= where[2]:
                return memory if where == wanted else memory.view(b.size, b.dtype, start - where[1])
        return None

    def overwrite(self, b: Buffer) -> None:
        """Something else is there from now on."""
        gone = span(b)
        for where in [where for where in self.found if overlap(where, gone)]:
            del self.found[where]


def fills(item: Recorded, slot: int) -> bool:
    """Whether a step writes every element of a slot and reads none of it."""
    ast = item.step.ast
    if ast is None:
        return bool(item.step.nbytes == item.buffers[slot].nbytes)
    if isinstance(ast.arg, RunArg):
        # Its kernels write each other's sources.
        return False
    for u in toposort(ast):
        if u.op is Ops.LOAD and u.src[0].src[0].op is Ops.PARAM:
            if u.src[0].src[0].arg.slot == slot:
                return False
    for end in ast.src:
        store, ranges = (end.src[0], end.src[1:]) if end.op is Ops.END else (end, ())
        if store.src[0].src[0].arg.slot == slot:
            count = prod([int(r.src[0].vmax) for r in ranges])
            return bool(len(store.src) == 2 and count == item.buffers[slot].size)
    return False


def prune(items: list[Recorded], changing: set[int]) -> list[Recorded]:
    """The steps that have to run in each replay. `changing` has ids of memory that may change."""
    rewritten = {id(item.buffers[i].base) for item in items for i in written_slots(item)}
    fixed = Fixed()
    left: list[Recorded] = []
    for item in items:
        written = written_slots(item)
        memory = [fixed.read(b) for b in item.buffers]
        stays = not item.values
        for i, (b, found) in enumerate(zip(item.buffers, memory, strict=True)):
            if i in written:
                stays &= id(b.base) not in changing and (found is not None or fills(item, i))
            else:
                stays &= found is not None or id(b.base) not in changing | rewritten
        for i in written:
            b = item.buffers[i]
            if not stays or memory[i] is None:
                fixed.overwrite(b)
                memory[i] = None
            if stays and memory[i] is None:
                memory[i] = fixed.found[span(b)] = Buffer(b.device, b.size, b.dtype).allocate()
        item.buffers = [
            b if found is None else found for b, found in zip(item.buffers, memory, strict=True)
        ]
        if stays:
            run_step(item.step, item.compiled, item.buffers, item.values)
        else:
            left.append(item)
    return left
