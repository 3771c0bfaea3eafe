"""Recordings of a model's steps on the disk: a second start traces nothing again.

Receives an `Engine`; keeps its recordings in the cache of compiled kernels, under a key that names
all that they depend on. What is damaged or of another form there counts as missing.
"""

from __future__ import annotations

import hashlib
import pickle

from aster_ml import Device, Tensor
from aster_ml.apps.llm.engine import CHUNK, Engine
from aster_ml.config import stage_key
from aster_ml.engine.sources import source_digest
from aster_ml.errors import AsterError
from aster_ml.jit.kept import dump_recordings, load_recordings
from aster_ml.jit.tiny_jit import TinyJit
from aster_ml.runtime import object_cache

# Without weights and memory a recording has less; more would be content that nobody named.
MOST_BYTES = 16 << 20
DAMAGES = (
    AsterError, pickle.PickleError, ValueError, LookupError, TypeError, AttributeError, ImportError,
    EOFError,
)  # fmt: skip


def jits_of(engine: Engine) -> dict[str, TinyJit[Tensor]]:
    """The functions whose recordings are kept."""
    return {"chunk": engine.read_chunk, "one": engine.next_one}


def tensors_of(engine: Engine) -> dict[str, Tensor]:
    """The memory that recordings name: weights, keys and values, tables."""
    model = engine.model
    return {
        **{f"weight {name}": t for name, t in model.weights.named().items()},
        **{f"memory {i}": t for i, t in enumerate(model.memory)},
        **{f"table {i}": t for i, t in enumerate(model.tables)},
        "positions": model.positions,
    }


def key_of(engine: Engine) -> str:
    """All that recordings depend on, as a digest."""
    model = engine.model
    tensors = [(name, tuple(t.shape), t.dtype.name) for name, t in tensors_of(engine).items()]
    parts = (
        "steps of a language model", source_digest(), Device[Device.DEFAULT].target.key, CHUNK,
        stage_key("schedule"), stage_key("codegen"), model.config, model.context, model.slots,
        sorted(tensors),
    )  # fmt: skip
    return hashlib.blake2b(repr(parts).encode(), digest_size=20).hexdigest()


def recall(engine: Engine) -> bool:
    """Gives an engine the recordings of an earlier start; whether there were any."""
    data = object_cache.get(key_of(engine))
    if data is None:
        return False
    try:
        load_recordings(data, jits_of(engine), tensors_of(engine))
    except DAMAGES:
        return False
    return True


def keep(engine: Engine) -> bool:
    """Keeps an engine's recordings, once there are; whether it did."""
    jits = jits_of(engine)
    if any([jit.latest is None for jit in jits.values()]):
        return False
    key = key_of(engine)
    if object_cache.get(key) is not None:
        return True
    data = dump_recordings(jits, tensors_of(engine))
    if len(data) > MOST_BYTES:
        return False
    object_cache.put(key, data)
    return True
