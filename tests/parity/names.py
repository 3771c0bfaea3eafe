"""Names that the reference's tests import and Aster has no such thing for: adapters, not answers.

Each stands between a test and the part of Aster that does the work. What Aster does not have at all
is an `Absent`: it can be imported, so that the other tests of a file run, and it raises when used.
"""

from __future__ import annotations

import contextlib
import math
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import aster_ml
from aster_ml import config
from aster_ml.backend import Backend
from aster_ml.dtype import DType, dtypes, from_numpy_dtype, to_numpy_dtype, truncate
from aster_ml.engine import storage
from aster_ml.engine.graph_runner import GraphRunner
from aster_ml.engine.realize import realize_uops
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import MOVEMENT, Ops


class NotProvidedError(NotImplementedError):
    """A test used a name that Aster does not have."""


class AbsentMeta(type):
    """A class without instances: `isinstance` is False, and any other use raises."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        raise NotProvidedError(f"{cls.__qualname__} is not provided by Aster")

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise NotProvidedError(f"{cls.__qualname__}.{name} is not provided by Aster")

    def __iter__(cls) -> Iterator[Any]:
        raise NotProvidedError(f"{cls.__qualname__} is not provided by Aster")


def absent(qualname: str) -> AbsentMeta:
    """The placeholder for one name."""
    made = AbsentMeta(qualname.rsplit(".", 1)[-1], (), {"__module__": "absent"})
    made.__qualname__ = qualname
    return made


# Settings of the reference under another name here.
RENAMED_SETTINGS = {"SPLIT_REDUCEOP": "SPLIT_REDUCE"}
# Settings of the reference that steer or watch its own insides; results do not depend on them.
WITHOUT_COUNTERPART = frozenset({
    "ALL2ALL", "BEAM", "DEVECTORIZE", "IGNORE_BEAM_CACHE", "IGNORE_OOB", "IMAGE",
    "LRU", "PCONTIG", "PROFILE", "QUANTIZE", "RING", "TC", "TRACEMETA", "TRACK_MATCH_STATS",
    "TRANSCENDENTAL", "VIZ",
})  # fmt: skip


class Context(contextlib.ContextDecorator):
    """`aster_ml.Context` under the reference's names of settings."""

    def __init__(self, **values: int | str) -> None:
        self.values = {
            RENAMED_SETTINGS.get(name, name): value
            for name, value in values.items()
            if name in config.SETTINGS or name not in WITHOUT_COUNTERPART
        }
        if "PCONTIG" in values:
            # Past 1, values are computed in the loops of their readers, however often that is.
            self.values["FUSE"] = 2 if int(values["PCONTIG"]) > 1 else 1
        self.open: list[Any] = []

    def __enter__(self) -> None:
        context = config.Context(**self.values)
        context.__enter__()
        self.open.append(context)

    def __exit__(self, *error: Any) -> Any:
        return self.open.pop().__exit__(*(error or (None, None, None)))


class RendererView:
    """What the tests ask of a device's renderer, read off its Target."""

    def __init__(self, backend: Backend) -> None:
        target = backend.target
        self.language = target.language
        self.device = backend.name
        self.has_local = target.has_local
        self.has_shared = target.has_barrier
        self.supports_float4 = target.vector_bits >= 128
        self.has_threads = target.threads > 1
        self.tensor_cores: list[Any] = []
        self.shared_max = target.local_bytes
        self.suffix = ""


class DeviceView:
    """A `Backend` with the reference's attributes beside its own."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.renderer = RendererView(backend)
        # Where the runtime makes native graphs, recordings run as some.
        has_graphs = type(backend).make_graph is not Backend.make_graph
        self.graph = GraphRunner if has_graphs else None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.backend, name)


class DeviceRegistryView:
    """`aster_ml.Device`, opening `DeviceView`s."""

    def __getitem__(self, name: str) -> DeviceView:
        return DeviceView(aster_ml.Device[name])

    @property
    def DEFAULT(self) -> str:
        """The name of the default device."""
        return aster_ml.Device.DEFAULT

    @DEFAULT.setter
    def DEFAULT(self, name: str) -> None:
        aster_ml.Device.DEFAULT = name

    @property
    def default(self) -> DeviceView:
        """The default device."""
        return self[self.DEFAULT]

    def __getattr__(self, name: str) -> Any:
        return getattr(aster_ml.Device, name)


Device = DeviceRegistryView()


def graph_class(device: DeviceView) -> Any:
    """The kind of graph that recordings for a device hand out; None, as for `DeviceView.graph`."""
    return device.graph


def is_dtype_supported(dtype: DType, device: str | None = None) -> bool:
    """What the reference computes on a CPU: all but fp8, which it cannot cast there.

    Aster computes fp8 everywhere, but these tests hold it to the reference's ways on GPUs: arrays
    of bytes, and bit casts that start from float32.
    """
    return dtype in (*dtypes.floats, *dtypes.ints, dtypes.bool) and dtype not in dtypes.fp8s


def _to_np_dtype(dtype: DType) -> Any:
    """NumPy's own type for a dtype, float32 for one that it has not."""
    if dtype in (dtypes.void, dtypes.index):
        return None
    if dtype is dtypes.bfloat16 or dtype in dtypes.fp8s:
        return np.float32
    return to_numpy_dtype(dtype).type


def _from_np_dtype(dtype: Any) -> DType:
    return from_numpy_dtype(dtype)


def _torch_names() -> dict[str, DType]:
    """PyTorch's names of dtypes."""
    return {
        "uint8": dtypes.uint8,
        "bool": dtypes.bool,
        "float8_e4m3fn": dtypes.fp8e4m3,
        "float8_e5m2": dtypes.fp8e5m2,
        **{
            d.name: d
            for d in (
                *dtypes.sints,
                *dtypes.uints,
                dtypes.float16,
                dtypes.bfloat16,
                dtypes.float32,
                dtypes.float64,
            )
        },
    }


def _to_torch_dtype(dtype: DType) -> Any:
    """PyTorch's dtype; None where it has none. The reference has the bytes of fp8 there."""
    import torch

    if dtype in dtypes.fp8s:
        return torch.uint8
    return next((getattr(torch, n) for n, d in _torch_names().items() if d == dtype), None)


def _from_torch_dtype(dtype: Any) -> DType:
    """Aster's dtype for one of PyTorch's."""
    return _torch_names()[str(dtype).removeprefix("torch.")]


def float_to_fp8(value: float, dtype: DType) -> int:
    """The byte of the fp8 number next to `value`; finite values saturate."""
    kind = to_numpy_dtype(dtype)
    limit = {dtypes.fp8e4m3: 448.0, dtypes.fp8e5m2: 57344.0}[dtype]
    if math.isfinite(value):
        value = min(max(value, -limit), limit)
    return int(np.array(value, dtype=kind).view("uint8"))


def fp8_to_float(byte: int, dtype: DType) -> float:
    """The number that a byte means in an fp8 dtype."""
    return float(np.array(byte, dtype="uint8").view(to_numpy_dtype(dtype)))


def from_storage_scalar(value: int, dtype: DType) -> float:
    """The number that stored bits mean, for floats that Python has no format for."""
    return float(np.array(value, dtype=f"uint{dtype.bits}").view(to_numpy_dtype(dtype)))


class Truncations(dict[DType, Any]):
    """`truncate[dtype](x)` for each dtype."""

    def __missing__(self, dtype: DType) -> Any:
        return lambda value: truncate(value, dtype)


truncate_table = Truncations()


class Unset(str):
    """The text of a setting that is not set, which the tests read with and without `.value`."""

    @property
    def value(self) -> str:
        """The text itself."""
        return str(self)


def track_rewrites(*args: Any, **kwargs: Any) -> Callable[..., Any]:
    """A decorator that hands the function on: Aster's passes are traced by their runner."""
    return lambda function: function


def values_of(name: str) -> dict[str, Any]:
    """Reads the constants that stand for features this machine does not have."""
    return {
        "IMAGE": 0,
        # The reference's own renderer, which some tests keep away from.
        "CPU_LLVM": 0,
        "CPU_LVP": 0,
        "AMD_LLVM": 0,
        "EMULATE": Unset(),
        "PCONTIG": types.SimpleNamespace(value=0),
        "TC_SELECT": -1,
        "TC_OPT": 0,
        "SPLIT_REDUCEOP": config.SPLIT_REDUCE,
    }[name]


def realized(u: UOp) -> Any:
    """The buffer of a node that is memory; None for others."""
    return storage.BUFFERS.get(u) if u.op is Ops.BUFFER and is_realized(u) else None


def buffer_of(u: UOp) -> Any:
    """The buffer of a node; what is stored as it stands, but is no memory yet, is computed.

    Raises: AssertionError for views that show it in another order, and for what is computed.
    """
    base = u
    while base.op in (Ops.RESHAPE, Ops.AFTER):
        base = base.src[0]
    if base.op is Ops.CONTIGUOUS:
        base = realize_uops([base])[0].base
    if base.op in MOVEMENT and u.base.op is Ops.BUFFER:
        raise AssertionError(f"a view with a buffer can only be RESHAPE, this is {base.op}")
    if base.op is not Ops.BUFFER:
        raise AssertionError(f"must be BUFFER, this is {base.op}")
    return storage.buffer_of(base)


def is_realized(u: UOp) -> bool:
    """Whether a node is memory that has been filled."""
    if u.base.op is Ops.MULTI:
        parts = [storage.stand_in(s) for s in u.base.src]
        return all([is_realized(s if p is None else p) for s, p in zip(u.base.src, parts)])
    return u.base.op is Ops.BUFFER and storage.buffer_of(u.base).is_allocated()


# Attributes that the tests read off Aster's own objects: (class, name, value, why it is not there).
ATTRIBUTES: list[tuple[type, str, Any, str]] = [
    (UOp, "buffer", property(buffer_of), "nodes know no devices"),
    (UOp, "realized", property(realized), "nodes know no devices"),
    (UOp, "is_realized", property(is_realized), "nodes know no devices"),
]
