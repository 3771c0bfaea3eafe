"""Implements protocols of other packages: arrays, functions of NumPy, shared memory.

Receives what other packages ask a tensor; returns our elements as arrays and capsules. What is
shared is seen by both sides: what one writes, the other reads. How capsules are made stands in
`runtime.dlpack`, tensors over memory of others in `ops.create`.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from aster_ml.device import STORAGE_KINDS
from aster_ml.dtype import NUMPY_TYPES
from aster_ml.engine import storage
from aster_ml.engine.launch import is_recording
from aster_ml.engine.realized import find_realized
from aster_ml.helpers import all_int
from aster_ml.late import late
from aster_ml.ops import Self
from aster_ml.ops.assign import place_to_write
from aster_ml.ops.handle import Handle, described
from aster_ml.ops.shown import array_through, numpy_dtype, without_marks
from aster_ml.ops.views import is_view
from aster_ml.plugins import provider

if TYPE_CHECKING:
    from aster_ml.runtime import dlpack
else:
    dlpack = late("runtime.dlpack")

# NumPy's functions by element, and ours of the same meaning: of one operand, and of two with the
# one for a tensor on the right.
UNARY = {
    "absolute": "abs", "arccos": "acos", "arccosh": "acosh", "arcsin": "asin", "arcsinh": "asinh",
    "arctan": "atan", "arctanh": "atanh", "bitwise_not": "bitwise_not", "ceil": "ceil",
    "cos": "cos", "cosh": "cosh", "exp": "exp", "exp2": "exp2", "floor": "floor",
    "isfinite": "isfinite", "isinf": "isinf", "isnan": "isnan", "log": "log", "log2": "log2",
    "logical_not": "logical_not", "negative": "__neg__", "reciprocal": "reciprocal",
    "sign": "sign", "sin": "sin", "sinh": "sinh", "sqrt": "sqrt", "square": "square", "tan": "tan",
    "tanh": "tanh", "trunc": "trunc",
}  # fmt: skip
BINARY = {
    "add": ("__add__", "__radd__"), "subtract": ("__sub__", "__rsub__"),
    "multiply": ("__mul__", "__rmul__"), "divide": ("__truediv__", "__rtruediv__"),
    "floor_divide": ("__floordiv__", "__rfloordiv__"), "remainder": ("__mod__", "__rmod__"),
    "power": ("__pow__", "__rpow__"), "matmul": ("__matmul__", "__rmatmul__"),
    "bitwise_and": ("__and__", "__rand__"), "bitwise_or": ("__or__", "__ror__"),
    "bitwise_xor": ("__xor__", "__rxor__"), "left_shift": ("__lshift__", "__rlshift__"),
    "right_shift": ("__rshift__", "__rrshift__"), "maximum": ("maximum", "maximum"),
    "minimum": ("minimum", "minimum"), "equal": ("__eq__", "__eq__"),
    "not_equal": ("__ne__", "__ne__"), "less": ("__lt__", "__gt__"),
    "less_equal": ("__le__", "__ge__"), "greater": ("__gt__", "__lt__"),
    "greater_equal": ("__ge__", "__le__"),
}  # fmt: skip


def to_dlpack(
    self: Self,
    *,
    stream: Any = None,
    max_version: tuple[int, int] | None = None,
    dl_device: tuple[int, int] | None = None,
    copy: bool | None = None,
) -> Any:
    """A DLPack capsule of our elements, which are computed first.

    It is our own memory where strides can show it, and a copy elsewhere (devices that the host
    does not see, several devices, files).

    Raises: BufferError where only a copy could be and `copy` is False, for a tensor that
    requires a gradient, and for a device other than the host.
    Source: DLPack 1.0; Array API 2024.12, __dlpack__.
    """
    if self.requires_grad:
        raise BufferError(
            "__dlpack__: this tensor requires a gradient, which capsules cannot carry; "
            "export t.detach()"
        )
    if dl_device is not None and tuple(map(int, dl_device)) != dlpack.CPU:
        raise BufferError(
            f"__dlpack__: device {tuple(map(int, dl_device))} is asked for; capsules of Aster "
            f"are in the memory of the host, {dlpack.CPU}"
        )
    if stream is not None and stream != -1:
        raise BufferError(f"__dlpack__: stream {stream!r}; the memory of the host has none")
    array = None if copy else shared_array(self)
    if array is not None and min(array.strides, default=0) >= 0:
        return dlpack.capsule_of(array, max_version, False)
    if copy is False:
        raise BufferError(f"__dlpack__: {described(self)} cannot be shared; copy=None copies it")
    return dlpack.capsule_of(own_array(self), max_version, False)


def array_namespace(self: Self, *, api_version: str | None = None) -> Any:
    """The functions of the array API standard on tensors: `aster_ml.array_api`.

    Raises: ValueError for a version that it does not have.
    """
    namespace = provider("array_api")
    if api_version not in (None, *namespace.VERSIONS):
        raise ValueError(
            f"__array_namespace__: version {api_version!r} of the array API; there are "
            f"{', '.join(namespace.VERSIONS)}"
        )
    return namespace


def dlpack_device(self: Self) -> tuple[int, int]:
    """Device of our capsules: `__dlpack_device__`."""
    return dlpack.CPU


def own_array(self: Self) -> np.ndarray[Any, Any]:
    """A copy of our elements, of the NumPy dtype that holds the same bits."""
    flat = self._memory().numpy(copy=True)
    array: np.ndarray[Any, Any] = flat.reshape(self.shape)
    return array


def shared_array(self: Self) -> np.ndarray[Any, Any] | None:
    """Our elements where they lie, computed and in memory of their own; None if not visible.

    Whoever has it may write to it at any time, so nobody else's value is there, and what is
    computed from it is computed anew each time.
    """
    device = self.device
    if device.__class__ is tuple or device.partition(":")[0] in STORAGE_KINDS:
        return None
    if self.requires_grad or is_recording() or not all_int(self.shape):
        return None
    if 0 in self.shape:
        return np.empty(self.shape, NUMPY_TYPES[self.dtype])
    self.realize()
    place = place_to_write(self)
    if place is not self._whole:
        self._whole = place
        self.realize()
    node = find_realized(self.uop)
    if node is None or not is_view(node):
        return None
    found = storage.buffers_below(without_marks(node))
    buffer = storage.buffer_of(found[0]).ensure_allocated()
    if not buffer.is_seen_by_host():
        return None
    storage.forget_readers([buffer])
    return array_through(buffer.numpy(copy=False), node)


# numpy


def array_ufunc(self: Self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
    """A tensor where one of our methods means the same, else what NumPy makes of arrays."""
    if method == "__call__" and not kwargs:
        name = ufunc.__name__
        if len(inputs) == 1 and name in UNARY:
            return getattr(self, UNARY[name])()
        if len(inputs) == 2 and name in BINARY:
            left, right = inputs
            if isinstance(left, Handle):
                return getattr(left, BINARY[name][0])(right)
            return getattr(right, BINARY[name][1])(left)
    return getattr(ufunc, method)(*as_numpy(inputs), **kwargs)


def array_function(self: Self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
    """Applies a function of NumPy to our elements as arrays."""
    return func(*as_numpy(args), **dict(zip(kwargs, as_numpy(kwargs.values()))))


def to_buffer(self: Self, flags: int) -> memoryview:
    """The buffer protocol, for Python 3.12 and later: as `np.asarray` has the elements."""
    array: Any = np.asarray(self)
    return memoryview(array)


def to_bytes(self: Self) -> bytes:
    """Bytes of our elements: `bytes(self)`."""
    return own_array(self).tobytes()


def arrow_stream(self: Self, requested_schema: Any = None) -> Any:
    """The elements as a stream of Arrow, made by whichever of its packages is there.

    Raises: ImportError where there is none.
    """
    array = np.asarray(self)
    if array.ndim != 1:
        raise ValueError(
            f"a column of Arrow has one axis, and {described(self)} has {array.ndim}; "
            "flatten() it, or give it column by column"
        )
    for name, make in (("polars", "Series"), ("pyarrow", "chunked_array")):
        if name in sys.modules or importlib.util.find_spec(name) is not None:
            package = importlib.import_module(name)
            column = getattr(package, make)([array] if name == "pyarrow" else array)
            return column.__arrow_c_stream__(requested_schema)
    raise ImportError("Arrow's columns are made by polars or pyarrow; pip install one of them")


def to_array(self: Self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
    """Our elements as an array: our own memory where that is possible and `copy` is not True.

    Raises: ValueError where `copy` is False and it is not.
    """
    array = None if copy else shared_array(self)
    wanted = np.dtype(numpy_dtype(self.dtype) if dtype is None else dtype)
    if array is not None and array.dtype == wanted:
        return array
    if copy is False:
        raise ValueError(
            f"__array__: {described(self)} as an array of {wanted} is a copy, and copy=False"
        )
    own = own_array(self)
    return own if own.dtype == wanted else own.astype(wanted)


def as_numpy(values: Any) -> Any:
    """Arguments of NumPy's functions: tensors, also those in a list or tuple, as arrays."""
    found = []
    for value in values:
        if isinstance(value, Handle):
            value = np.asarray(value)
        elif value.__class__ in (list, tuple):
            parts = [np.asarray(v) if isinstance(v, Handle) else v for v in value]
            value = value.__class__(parts)
        found.append(value)
    return found
