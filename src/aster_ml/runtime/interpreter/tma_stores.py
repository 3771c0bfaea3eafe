"""Interprets TMA stores: copies from local memory that happen as late as they may.

Receives nodes of a linear program and returns the steps of the interpreter for them. A TMA store
reads local memory at its TMA_STORE_WAIT, and writes the tensor when its block ends. Elements that
were not fenced, or have changed since the TMA store was started, are poison.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from aster_ml.errors import InternalError
from aster_ml.runtime.interpreter.stages import ROWS, gate_of, one_of, poison_of
from aster_ml.runtime.interpreter.state import Block, Compiling, Item, Step, strip_after
from aster_ml.target.tensor_maps import ROW_NBYTES
from aster_ml.uop.node import UOp


class Stored(NamedTuple):
    """A TMA store in flight: the elements at its start, its source and its target."""

    was: Any
    local: Any
    places: Any
    memory: Any
    elements: Any
    inside: Any
    poison: Any


def is_first(item: Item) -> bool:
    """Whether a work-item is the one that starts TMA stores of its block."""
    return item.number == 0 and not item.is_more


def compile_tma_store(program: Compiling, u: UOp) -> Step:
    """TMA_STORE: what local memory holds is on its way to a tensor."""
    locate, arg = program.compile_place(u.src[0], ()), u.arg
    count = len(arg.sizes)
    places = [one_of(program, s) for s in u.src[2 : 2 + count]]
    gate = gate_of(program, u.src[2 + count :])
    slot, dtype = program.linear.params.index(u.src[1]), u.src[1].dtype
    steps = np.indices(arg.box[::-1]).reshape(count, -1)[::-1]
    where = f"{program.linear.name}: TMA_STORE to buffer {slot}"
    xor = strip_after(u.src[0].src[0]).arg.xor

    def step(item: Item) -> None:
        if not is_first(item) or not gate(item):
            return
        local, (first,) = locate(item)
        if first < 0 or first + steps.shape[1] > len(local):
            raise InternalError(f"{where}: elements from {first} on of {len(local)} are read")
        if first * dtype.itemsize % (ROWS * ROW_NBYTES):
            raise InternalError(f"{where}: it begins between the rows of its memory")
        lying = first + np.arange(steps.shape[1])
        if xor is not None:
            n, to, off = xor
            lying = lying ^ (lying >> off & (1 << n) - 1) << to
        at = [steps[i] + int(places[i](item)) for i in range(count)]
        inside = np.logical_and.reduce(
            [(x >= 0) & (x < n) for x, n in zip(at, arg.sizes, strict=True)]
        )
        to = arg.start + sum([x * n for x, n in zip(at, arg.strides, strict=True)])
        memory, poison = item.arrays[slot], poison_of(dtype)
        if inside.any() and not 0 <= to[inside].min() <= to[inside].max() < len(memory):
            raise InternalError(f"{where}: it writes outside of {len(memory)} elements")
        was = local[lying].copy()
        if item.block.unfenced or item.block.fenced:
            was[:] = poison
        item.block.boxes.append([Stored(was, local, lying, memory, to, inside, poison), None])

    return step


def compile_fence(program: Compiling, u: UOp) -> Step:
    """FENCE: makes stores of this work-item visible to TMA stores."""

    def step(item: Item) -> None:
        item.block.unfenced.discard(item.number)
        item.block.fenced.add(item.number)

    return step


def compile_tma_store_wait(program: Compiling, u: UOp) -> Step:
    """TMA_STORE_WAIT: all boxes are read, those that are still what they were."""

    def step(item: Item) -> None:
        for box in item.block.boxes if is_first(item) else ():
            stored, read = box
            if read is None:
                found = stored.local[stored.places].copy()
                if found.tobytes() != stored.was.tobytes():
                    found[:] = stored.poison
                box[1] = found

    return step


def write_tma_stores(name: str, block: Block) -> None:
    """Writes TMA stores of an ended block. Raises: InternalError for one without a wait."""
    for stored, read in block.boxes:
        if read is None:
            raise InternalError(f"{name}: a box is stored that no TMA_STORE_WAIT waits for")
        stored.memory[stored.elements[stored.inside]] = read[stored.inside]
    block.boxes.clear()
