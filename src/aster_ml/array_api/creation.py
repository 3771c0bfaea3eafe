"""Making arrays: of data, of numbers, like others; and what their dtypes are.

Receives shapes, numbers, data, dtypes; returns arrays, and facts on dtypes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from aster_ml import Tensor, dtypes
from aster_ml.array_api.array import Array, as_array, dtype_of
from aster_ml.dtype import DType, least_upper_dtype, number_dtype, to_numpy_dtype

KINDS = {
    "bool": (dtypes.bool,),
    "signed integer": dtypes.sints,
    "unsigned integer": dtypes.uints,
    "integral": dtypes.ints,
    "real floating": dtypes.floats,
    "complex floating": (),
    "numeric": (*dtypes.ints, *dtypes.floats),
}


def asarray(
    obj: Any, /, *, dtype: Any = None, device: str | None = None, copy: bool | None = None
) -> Any:
    """An array of numbers, lists, or of another array, which shares its memory unless copied."""
    if isinstance(obj, Tensor):
        found = as_array(obj)
        found = found if device is None else found.to(device)
        wanted = dtype_of(dtype) or found.dtype
        if copy is False and (found.dtype is not wanted or found.device != obj.device):
            raise ValueError("asarray: this dtype or device takes a copy, and copy=False")
        return found.cast(wanted).clone() if copy else found.cast(wanted)
    if hasattr(obj, "__dlpack__") and not copy:
        found = Array.from_dlpack(obj, device=device, copy=copy)
        return found if dtype is None else found.cast(dtype_of(dtype))
    if copy is False:
        raise ValueError("asarray: numbers are copied to make an array, and copy=False")
    return Array(obj, device, dtype_of(dtype))


def from_dlpack(x: Any, /, *, device: str | None = None, copy: bool | None = None) -> Any:
    """An array over the memory of one of another package; see `Tensor.from_dlpack`."""
    return Array.from_dlpack(x, device=device, copy=copy)


def arange(
    start: Any, /, stop: Any = None, step: Any = 1, *, dtype: Any = None, device: Any = None
) -> Any:
    """Numbers from `start` up to `stop`, which is left out."""
    return Array.arange(start, stop, step, dtype=dtype_of(dtype), device=device)


def shape_of(shape: Any) -> tuple[int, ...]:
    """An int is a shape of one axis."""
    return (shape,) if isinstance(shape, int) else tuple(shape)


def empty(shape: Any, *, dtype: Any = None, device: Any = None) -> Any:
    """An array with no particular elements."""
    return Array.empty(*shape_of(shape), dtype=dtype_of(dtype), device=device)


def zeros(shape: Any, *, dtype: Any = None, device: Any = None) -> Any:
    """Zeros."""
    return Array.zeros(*shape_of(shape), dtype=dtype_of(dtype), device=device)


def ones(shape: Any, *, dtype: Any = None, device: Any = None) -> Any:
    """Ones."""
    return Array.ones(*shape_of(shape), dtype=dtype_of(dtype), device=device)


def full(shape: Any, fill_value: Any, *, dtype: Any = None, device: Any = None) -> Any:
    """One number everywhere."""
    return Array.full(shape_of(shape), fill_value, dtype=dtype_of(dtype), device=device)


def full_like(x: Any, /, fill_value: Any, *, dtype: Any = None, device: Any = None) -> Any:
    """One number everywhere, in the shape of `x`."""
    return full(x.shape, fill_value, dtype=dtype or x.dtype, device=device or x.device)


def empty_like(x: Any, /, *, dtype: Any = None, device: Any = None) -> Any:
    """An array with no particular elements, in the shape of `x`."""
    return empty(x.shape, dtype=dtype or x.dtype, device=device or x.device)


def zeros_like(x: Any, /, *, dtype: Any = None, device: Any = None) -> Any:
    """Zeros, in the shape of `x`."""
    return full_like(x, 0, dtype=dtype, device=device)


def ones_like(x: Any, /, *, dtype: Any = None, device: Any = None) -> Any:
    """Ones, in the shape of `x`."""
    return full_like(x, 1, dtype=dtype, device=device)


def eye(
    n_rows: int, n_cols: int | None = None, /, *, k: int = 0, dtype: Any = None, device: Any = None
) -> Any:
    """Ones on a diagonal, zeros elsewhere."""
    rows = Array.arange(n_rows, device=device).reshape((n_rows, 1))
    columns = Array.arange(n_rows if n_cols is None else n_cols, device=device)
    return (rows + k).eq(columns).cast(dtype_of(dtype) or dtypes.default_float)


def linspace(
    start: Any, stop: Any, /, num: int, *, dtype: Any = None, device: Any = None,
    endpoint: bool = True,
) -> Any:  # fmt: skip
    """`num` numbers at equal distances; the last one is `stop` where it is an `endpoint`."""
    wanted = dtype_of(dtype) or dtypes.default_float
    values = np.linspace(start, stop, num, endpoint=endpoint, dtype=to_numpy_dtype(wanted))
    return Array(values, device)


def meshgrid(*arrays: Any, indexing: str = "xy") -> tuple[Any, ...]:
    """Each array spread over the axes of all."""
    if not arrays:
        return ()
    first, *rest = [as_array(a) for a in arrays]
    return tuple(first.meshgrid(*rest, indexing=indexing))


def tril(x: Any, /, *, k: int = 0) -> Any:
    """Zeros above a diagonal."""
    return as_array(x).tril(k)


def triu(x: Any, /, *, k: int = 0) -> Any:
    """Zeros below a diagonal."""
    return as_array(x).triu(k)


def astype(x: Any, dtype: Any, /, *, copy: bool = True, device: Any = None) -> Any:
    """The elements as another dtype."""
    return asarray(x, dtype=dtype, device=device, copy=copy or None)


def result_type(*arrays_and_dtypes: Any) -> DType:
    """The dtype that a result of these has."""
    given = [x.dtype if isinstance(x, Tensor) else x for x in arrays_and_dtypes]
    kinds = [dtype_of(x) for x in given if not isinstance(x, (bool, int, float))]
    numbers = [number_dtype(x) for x in given if isinstance(x, (bool, int, float))]
    found: DType = least_upper_dtype(*(kinds or numbers))
    rank = ("bool", "uint", "int", "float")
    wider = [n for n in numbers if rank.index(n.kind) > max(rank.index(found.kind), 1)]
    return least_upper_dtype(found, *wider)


def can_cast(from_: Any, to: Any, /) -> bool:
    """Whether the rules of promotion lead from one dtype to the other."""
    source = from_.dtype if isinstance(from_, Tensor) else dtype_of(from_)
    target = dtype_of(to)
    return least_upper_dtype(source, target) is target


def isdtype(dtype: Any, kind: Any) -> bool:
    """Whether a dtype is of a kind, or of one of several."""
    found = dtype_of(dtype)
    known: list[DType] = []
    for one in kind if isinstance(kind, tuple) else (kind,):
        if isinstance(one, str) and one not in KINDS:
            raise ValueError(f"isdtype: kind {one!r}; there are {', '.join(KINDS)}")
        known += KINDS[one] if isinstance(one, str) else (dtype_of(one),)
    return any([found is d for d in known])


class FloatInfo(NamedTuple):
    """What a float dtype holds."""

    bits: int
    eps: float
    max: float
    min: float
    smallest_normal: float
    dtype: DType


class IntInfo(NamedTuple):
    """What an int dtype holds."""

    bits: int
    max: int
    min: int
    dtype: DType


def finfo(type: Any, /) -> FloatInfo:
    """What a float dtype, or that of an array, holds."""
    dtype = type.dtype if isinstance(type, Tensor) else dtype_of(type)
    info: Any = np.finfo(to_numpy_dtype(dtype))
    eps, least = float(info.eps), float(info.smallest_normal)
    return FloatInfo(dtype.bits, eps, float(info.max), float(info.min), least, dtype)


def iinfo(type: Any, /) -> IntInfo:
    """What an int dtype, or that of an array, holds."""
    dtype = type.dtype if isinstance(type, Tensor) else dtype_of(type)
    return IntInfo(dtype.bits, int(dtype.max), int(dtype.min), dtype)


def broadcast_arrays(*arrays: Any) -> list[Any]:
    """The arrays, each repeated to the shape of all."""
    shape = np.broadcast_shapes(*[a.shape for a in arrays])
    return [as_array(a).expand(shape) for a in arrays]


def broadcast_to(x: Any, /, shape: Sequence[int]) -> Any:
    """The array repeated to a shape."""
    return as_array(x).expand(tuple(shape))
