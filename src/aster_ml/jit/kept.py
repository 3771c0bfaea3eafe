"""Recordings of a jitted function as bytes, its large memory by names, and back.

Receives `TinyJit`s and the tensors that they read or write besides arguments, by name; returns
bytes without the content of these. Another process gives tensors of the same names, and replays
without running the function once. Who keeps the bytes, and for whom they fit, is not settled here.
"""

from __future__ import annotations

import hashlib
import io
import pickle
from collections.abc import Container, Mapping
from typing import Any, NamedTuple

from aster_ml.device import Buffer
from aster_ml.engine.storage import buffer_of, realized_view
from aster_ml.errors import ArgumentError, JitError
from aster_ml.jit.tiny_jit import TinyJit
from aster_ml.tensor import Tensor
from aster_ml.uop.graph import toposort
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import Ops


class Named(NamedTuple):
    """Memory by name, and a digest of how the tensors that have the names are made of it.

    A weight that is unpacked in another way, or lies elsewhere in its file, has another digest: a
    recording knows both.
    """

    memory: dict[str, Buffer]
    form: str


def named_memory(tensors: Mapping[str, Tensor]) -> Named:
    """The memory that each tensor is, or is computed from, whole, under its name and a number."""
    known: dict[UOp, int] = {}
    memory: dict[str, Buffer] = {}
    made = hashlib.blake2b(digest_size=16)
    for name, t in tensors.items():
        places: dict[UOp, None] = {}
        for u in toposort(t.uop, enter=lambda u: realized_view(u) is None):
            # What was computed stands for what it was computed from.
            view = realized_view(u)
            for node in (u,) if view is None else toposort(view):
                if node in known:
                    continue
                number = known[node] = len(known)
                argument: Any = node.arg
                if node.op is Ops.BUFFER:
                    b = buffer_of(node).base
                    memory[f"{name} {len(places)}"] = b
                    argument = b.device, b.size
                    places[node] = None
                sources = [known[s] for s in node.src]
                made.update(f"{number} {node.op} {node.dtype} {argument!r} {sources}\n".encode())
            if view is not None:
                known[u] = known[view]
        made.update(f"{name} {known[t.uop]}\n".encode())
    return Named(memory, made.hexdigest())


class NamingPickler(pickle.Pickler):
    """Writes the names of known memory in place of its content.

    Of other memory the content goes along, such as tables that a function makes itself. Raises:
    JitError for `states` (ids of memory that was there before it) without a name.
    """

    def __init__(
        self, file: io.BytesIO, known: Mapping[str, Buffer], states: Container[int]
    ) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self.states = states
        self.names = {id(b): name for name, b in known.items()}

    def persistent_id(self, obj: Any) -> str | None:
        """The name of known memory."""
        if not isinstance(obj, Buffer):
            return None
        name = self.names.get(id(obj))
        if name is None and id(obj) in self.states:
            raise JitError(
                f"a recording reads {obj.nbytes} bytes of memory that has no name, and only names "
                "are kept: those of the tensors that are given"
            )
        return name


class NamingUnpickler(pickle.Unpickler):
    """Reads names of memory as the memory that has the name now."""

    def __init__(self, file: io.BytesIO, known: Mapping[str, Buffer]) -> None:
        super().__init__(file)
        self.known = known

    def persistent_load(self, pid: Any) -> Buffer:
        """The memory of this name. Raises: KeyError where there is none."""
        return self.known[pid]


def dump_recordings(jits: Mapping[str, TinyJit[Any]], known: Named) -> bytes:
    """The recordings of several functions that read or write named memory.

    Raises: JitError where one has none that another process could use, or one reads memory that
    has no name.
    """
    file = io.BytesIO()
    recordings = [r for jit in jits.values() for found in jit.portable().values() for r in found]
    states = {number for r in recordings for number in r.state_ids}
    NamingPickler(file, known.memory, states).dump((known.form, dict(jits)))
    return file.getvalue()


def load_recordings(data: bytes, jits: Mapping[str, TinyJit[Any]], known: Named) -> None:
    """Gives functions the recordings that they had; what is in `data` is run, so it has to be own.

    Raises: ArgumentError where the tensors are made in another way, or of other memory, than those
    that were recorded, and the errors of `pickle` for what are no recordings.
    """
    form, found = NamingUnpickler(io.BytesIO(data), known.memory).load()
    if form != known.form:
        raise ArgumentError("recordings of tensors that are made in another way")
    for name, jit in jits.items():
        jit.entries.update(found[name].entries)
        jit.latest = found[name].latest
