"""Recordings of a jitted function as bytes, its large memory by names, and back.

Receives a `TinyJit` and the tensors that it reads or writes besides its arguments, by name; returns
bytes without the content of these. Another process gives tensors of the same names, and replays
without running the function once. Who keeps the bytes, and for whom they fit, is not settled here.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Mapping
from typing import Any

from aster_ml.device import Buffer
from aster_ml.engine.storage import buffer_of, realized_view
from aster_ml.errors import ArgumentError
from aster_ml.jit.tiny_jit import TinyJit
from aster_ml.tensor import Tensor
from aster_ml.uop.graph import toposort
from aster_ml.uop.ops import Ops


def memory_of(tensors: Mapping[str, Tensor]) -> dict[str, Buffer]:
    """The memory that each tensor is, or is computed from, whole, under its name and a number."""
    found: dict[str, Buffer] = {}
    for name, t in tensors.items():
        # What was computed stands for what it was computed from.
        nodes = toposort(t.uop, enter=lambda u: realized_view(u) is None)
        shown = [u if (view := realized_view(u)) is None else view for u in nodes]
        places = dict.fromkeys([u.base for u in shown if u.base.op is Ops.BUFFER])
        found |= {f"{name} {i}": buffer_of(u).base for i, u in enumerate(places)}
    return found


class NamingPickler(pickle.Pickler):
    """Writes the names of known memory in place of its content."""

    def __init__(self, file: io.BytesIO, known: Mapping[str, Buffer]) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self.names = {id(b): name for name, b in known.items()}

    def persistent_id(self, obj: Any) -> str | None:
        """The name of known memory."""
        return self.names.get(id(obj)) if isinstance(obj, Buffer) else None


class NamingUnpickler(pickle.Unpickler):
    """Reads names of memory as the memory that has the name now."""

    def __init__(self, file: io.BytesIO, known: Mapping[str, Buffer]) -> None:
        super().__init__(file)
        self.known = known

    def persistent_load(self, pid: Any) -> Buffer:
        """The memory of this name. Raises: KeyError where there is none."""
        return self.known[pid]


def dump_recordings(jits: Mapping[str, TinyJit[Any]], tensors: Mapping[str, Tensor]) -> bytes:
    """The recordings of several functions.

    Raises: JitError where one has none that another process could use.
    """
    known = memory_of(tensors)
    sizes = {name: (b.device, b.size, b.dtype.name) for name, b in known.items()}
    file = io.BytesIO()
    NamingPickler(file, known).dump((sizes, dict(jits)))
    return file.getvalue()


def load_recordings(
    data: bytes, jits: Mapping[str, TinyJit[Any]], tensors: Mapping[str, Tensor]
) -> None:
    """Gives functions the recordings that they had; what is in `data` is run, so it has to be own.

    Raises: ArgumentError where the tensors are not of the sizes that were recorded, and the errors
    of `pickle` for what are no recordings.
    """
    known = memory_of(tensors)
    sizes, found = NamingUnpickler(io.BytesIO(data), known).load()
    if sizes != {name: (b.device, b.size, b.dtype.name) for name, b in known.items()}:
        raise ArgumentError("recordings of memory of other sizes")
    for name, jit in jits.items():
        jit.entries.update(found[name].entries)
        jit.latest = found[name].latest
