"""Memory plan of a recording: its temporaries packed into one block a device.

Receives recorded steps; gives them memory that lies together: what lives on between runs first,
with its content, then intermediates, which have a part for as long as a step needs them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from aster_ml.device import Buffer
from aster_ml.dtype import dtypes
from aster_ml.engine import storage
from aster_ml.engine.memory import ALIGNMENT, Arena
from aster_ml.helpers import round_up


def written_slots(item: Any) -> list[int]:
    """The slots of recorded memory that a step writes to; a copy writes its first."""
    written = [0] if item.compiled is None else sorted(item.compiled.written)
    return [i for i in written if isinstance(item.buffers[i], Buffer)]


def may_move(base: Buffer, nodes: Sequence[Any]) -> bool:
    """Whether everybody who reads this memory asks a node for it, so that it can be elsewhere."""
    return bool(nodes) and base.opaque is None and not base.is_exported()


def move_together(items: Iterable[Any], scratch: Iterable[Buffer]) -> None:
    """Moves what the `buffers` of these steps lie in. `scratch` is memory without content."""
    items = list(items)
    nodes: dict[int, list[Any]] = {}
    for node, b in list(storage.BUFFERS.items()):
        if b is b.base:
            nodes.setdefault(id(b), []).append(node)
    bases: dict[int, Buffer] = {}
    last: dict[int, int] = {}
    first: dict[int, int] = {}
    for i, item in enumerate(items):
        for b in item.buffers:
            if isinstance(b, Buffer):
                bases[id(b.base)] = b.base
                first.setdefault(id(b.base), i)
                last[id(b.base)] = i
    free = {id(b) for b in scratch} - set(nodes)
    # What is written stays: a caller may pass it, and is told by its address.
    fixed = {id(item.buffers[i].base) for item in items for i in written_slots(item)} - free
    moved = [
        n
        for n, b in bases.items()
        if n in free or (n not in fixed and may_move(b, nodes.get(n, ())))
    ]
    arenas = {bases[n].device: Arena() for n in moved}
    offset: dict[int, int] = {}

    def take(number: int) -> None:
        nbytes = round_up(max(bases[number].nbytes, 1), ALIGNMENT)
        offset[number] = arenas[bases[number].device].take(nbytes)

    for number in moved:
        if number not in free:
            take(number)
    for i in range(len(items)):
        for number in moved:
            if number in free and first[number] == i:
                take(number)
        for number in moved:
            if number in free and last[number] == i:
                nbytes = round_up(max(bases[number].nbytes, 1), ALIGNMENT)
                arenas[bases[number].device].give(offset[number], nbytes)
    blocks = {d: Buffer(d, a.nbytes, dtypes.uint8).allocate() for d, a in arenas.items()}
    places: dict[int, Buffer] = {}
    for number in moved:
        base = bases[number]
        places[number] = blocks[base.device].view(base.size, base.dtype, offset[number])
        if number not in free:
            places[number].copy_from(base)
            for node in nodes[number]:
                storage.attach(node, places[number])
    for item in items:
        item.buffers = [
            places[id(b.base)].view(b.size, b.dtype, b.offset)
            if isinstance(b, Buffer) and id(b.base) in places
            else b
            for b in item.buffers
        ]
