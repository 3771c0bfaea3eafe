"""Recordings of a model's steps on the disk: a second start traces nothing again.

Receives an `Engine`; keeps what it has recorded in the cache of compiled kernels, each function
under a key that names all that its recordings depend on. What is damaged or of another form there
counts as missing.
"""

from __future__ import annotations

import hashlib
import pickle
from typing import Any

from aster_ml import Device, Tensor
from aster_ml.apps.llm.engine import CHUNK, Engine
from aster_ml.config import stage_key
from aster_ml.errors import AsterError, JitError
from aster_ml.extend import (
    current_cache,
    dump_recordings,
    load_recordings,
    named_memory,
    source_digest,
)
from aster_ml.jit.tiny_jit import TinyJit

DAMAGES = (
    AsterError, pickle.PickleError, ValueError, LookupError, TypeError, AttributeError, ImportError,
    EOFError, ArithmeticError, MemoryError, RecursionError,
)  # fmt: skip
# The steps that every answer takes.
NEEDED = ("chunk", "one")


def jits_of(engine: Engine) -> dict[str, TinyJit[Any]]:
    """The functions whose recordings are kept."""
    return {
        "chunk": engine.read_chunk,
        "one": engine.next_one,
        "rows": engine.next_rows,
        "greedy": engine.sampler.greedy,
        "general": engine.sampler.general,
    }


def tensors_of(engine: Engine) -> dict[str, Tensor]:
    """The memory that recordings name: weights, keys and values, tables."""
    model = engine.model
    return {
        **{f"weight {name}": t for name, t in model.weights.named().items()},
        **{f"memory {i}": t for i, t in enumerate(model.memory)},
        **{f"table {i}": t for i, t in enumerate(model.tables)},
        "positions": model.positions,
    }


class Recordings:
    """Recordings of an engine, in memory and on disk."""

    def __init__(self, engine: Engine) -> None:
        self.jits = jits_of(engine)
        self.known = named_memory(tensors_of(engine))
        model = engine.model
        parts = (
            "steps of a language model", source_digest(), Device[Device.DEFAULT].target.key, CHUNK,
            stage_key("schedule"), stage_key("codegen"), model.config, model.context, model.slots,
            self.known.form, sorted(model.weights.interleaved),
        )  # fmt: skip
        self.key = hashlib.blake2b(repr(parts).encode(), digest_size=20).hexdigest()
        # By function, how many of its recordings are on the disk.
        self.kept = dict.fromkeys(self.jits, 0)

    def key_of(self, name: str) -> str:
        """Where the recordings of a function lie."""
        return f"{self.key}-{name}"

    def recall(self) -> bool:
        """Gives the functions the recordings of an earlier start; whether the needed ones are."""
        cache = current_cache()
        for name, jit in self.jits.items():
            data = None if cache is None else cache.get(self.key_of(name))
            if data is None:
                continue
            try:
                load_recordings(data, {name: jit}, self.known)
            except DAMAGES:
                continue
            self.kept[name] = len(jit.portable())
        return all([self.kept[name] for name in NEEDED])

    def keep(self) -> bool:
        """Keeps what is new; whether the needed recordings are on the disk now."""
        cache = current_cache()
        for name, jit in self.jits.items():
            count = len(jit.portable())
            if count > self.kept[name]:
                try:
                    data = dump_recordings({name: jit}, self.known)
                except JitError:
                    # It would have content; whoever starts next traces again.
                    continue
                if cache is not None:
                    cache.put(self.key_of(name), data)
                self.kept[name] = count
        return all([self.kept[name] for name in NEEDED])
