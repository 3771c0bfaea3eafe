"""Defines the functions that make arrays, and those that describe dtypes.

Receives shapes, numbers, data, dtypes; returns arrays, and facts on dtypes.
"""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from aster_ml import Tensor, dtypes
from aster_ml.array_api.array import Array, as_array, by_parts, complex_beside, dtype_of
from aster_ml.complex import ComplexTensor, complex64, complex128
from aster_ml.complex.dtype import ComplexDType, known_complex_dtype
from aster_ml.dtype import DType, least_upper_dtype, number_dtype, to_numpy_dtype

__all__ = [
    "arange", "asarray", "astype", "broadcast_arrays", "broadcast_to", "can_cast", "empty",
    "empty_like", "eye", "finfo", "from_dlpack", "full", "full_like", "iinfo", "isdtype",
    "linspace", "meshgrid", "ones", "ones_like", "result_type", "tril", "triu", "zeros",
    "zeros_like",
]  # fmt: skip

ARRAYS = (Tensor, ComplexTensor)
NUMBERS = (bool, int, float, complex)
KINDS: dict[str, tuple[Any, ...]] = {
    "bool": (dtypes.bool,),
    "signed integer": dtypes.sints,
    "unsigned integer": dtypes.uints,
    "integral": dtypes.ints,
    "real floating": dtypes.floats,
    "complex floating": (complex64, complex128),
    "numeric": (*dtypes.ints, *dtypes.floats, complex64, complex128),
}


def asarray(
    obj: Any, /, *, dtype: Any = None, device: str | None = None, copy: bool | None = None
) -> Any:
    """An array of numbers, lists, or of another array, which shares its memory unless copied."""
    if is_complex_data(obj, dtype):
        return complex_array(obj, dtype_of(dtype), device, copy)
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


def is_complex_data(obj: Any, dtype: Any) -> bool:
    """Whether an array of these is complex: by its dtype, or by what it is made of."""
    wanted = dtype_of(dtype)
    if isinstance(obj, ComplexTensor) or isinstance(wanted, ComplexDType):
        return True
    if isinstance(obj, Tensor | bool | int | float):
        return False
    found = getattr(obj, "dtype", None)
    if found is None and isinstance(obj, complex | list | tuple):
        return bool(np.asarray(obj).dtype.kind == "c")
    return known_complex_dtype(found) is not None


def complex_array(obj: Any, dtype: Any, device: Any, copy: bool | None) -> Any:
    """A complex array. Raises: TypeError for a real dtype."""
    if dtype is not None and not isinstance(dtype, ComplexDType):
        raise TypeError(f"complex numbers as {dtype}; take real(x), imag(x) or abs(x)")
    if copy is False and not (isinstance(obj, ComplexTensor) and dtype in (None, obj.dtype)
                              and device in (None, obj.device)):  # fmt: skip
        raise ValueError("asarray: a complex array of this is a copy, and copy=False")
    if not isinstance(obj, ComplexTensor):
        real = isinstance(obj, Tensor)
        obj = ComplexTensor(obj, device=device) if real else complex_of(obj, dtype, device)
    found = as_array(obj if device is None else obj.to(device))
    found = found if dtype is None else found.cast(dtype)
    return found.clone() if copy else found


def complex_of(obj: Any, dtype: Any, device: Any) -> Any:
    """Numbers, lists or an array of another package as a complex tensor."""
    if hasattr(obj, "dtype"):
        return ComplexTensor(obj, device=device)
    wanted = dtype or complex_beside(dtypes.default_float)
    return ComplexTensor(np.asarray(obj, dtype=wanted.name), device=device)


def from_dlpack(x: Any, /, *, device: str | None = None, copy: bool | None = None) -> Any:
    """An array over the memory of one of another package; see `Tensor.from_dlpack`."""
    if isinstance(x, ComplexTensor) or known_complex_dtype(getattr(x, "dtype", None)):
        if copy is False:
            raise BufferError("from_dlpack: complex numbers are copied, and copy=False")
        made = x if isinstance(x, ComplexTensor) else ComplexTensor.from_dlpack(x)
        return complex_array(made, None, device, copy)
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
    if isinstance(dtype_of(dtype), ComplexDType):
        return full(shape, 0, dtype=dtype, device=device)
    return Array.empty(*shape_of(shape), dtype=dtype_of(dtype), device=device)


def zeros(shape: Any, *, dtype: Any = None, device: Any = None) -> Any:
    """Zeros."""
    return full(shape, 0, dtype=dtype or dtypes.default_float, device=device)


def ones(shape: Any, *, dtype: Any = None, device: Any = None) -> Any:
    """Ones."""
    return full(shape, 1, dtype=dtype or dtypes.default_float, device=device)


def full(shape: Any, fill_value: Any, *, dtype: Any = None, device: Any = None) -> Any:
    """One number everywhere."""
    wanted = dtype_of(dtype)
    if isinstance(fill_value, complex) and wanted is None:
        wanted = complex_beside(dtypes.default_float)
    if isinstance(wanted, ComplexDType):
        number = complex(fill_value)
        parts = [
            Array.full(shape_of(shape), p, dtype=wanted.part, device=device)
            for p in (number.real, number.imag)
        ]
        return ComplexTensor(*parts)
    return Array.full(shape_of(shape), fill_value, dtype=wanted, device=device)


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
    return astype((rows + k).eq(columns), dtype_of(dtype) or dtypes.default_float)


def linspace(
    start: Any, stop: Any, /, num: int, *, dtype: Any = None, device: Any = None,
    endpoint: bool = True,
) -> Any:  # fmt: skip
    """`num` numbers at equal distances; the last one is `stop` where it is an `endpoint`."""
    wanted = dtype_of(dtype) or dtypes.default_float
    if isinstance(start, complex) or isinstance(stop, complex):
        wanted = dtype_of(dtype) or complex_beside(wanted)
    values = np.linspace(start, stop, num, endpoint=endpoint, dtype=np.dtype(wanted))
    return asarray(values, device=device, dtype=wanted)


def meshgrid(*arrays: Any, indexing: str = "xy") -> tuple[Any, ...]:
    """Each array spread over the axes of all."""
    if not arrays:
        return ()
    found = [as_array(a) for a in arrays]
    if not builtins.any([isinstance(a, ComplexTensor) for a in found]):
        return tuple(found[0].meshgrid(*found[1:], indexing=indexing))
    reals = [a.real if isinstance(a, ComplexTensor) else a for a in found]
    imags = [a.imag if isinstance(a, ComplexTensor) else a.zeros_like() for a in found]
    spread = [p[0].meshgrid(*p[1:], indexing=indexing) for p in (reals, imags)]
    return tuple([ComplexTensor(re, im) if isinstance(a, ComplexTensor) else re
                  for a, re, im in zip(found, *spread)])  # fmt: skip


@by_parts
def tril(x: Any, /, *, k: int = 0) -> Any:
    """Zeros above a diagonal."""
    return as_array(x).tril(k)


@by_parts
def triu(x: Any, /, *, k: int = 0) -> Any:
    """Zeros below a diagonal."""
    return as_array(x).triu(k)


def astype(x: Any, dtype: Any, /, *, copy: bool = True, device: Any = None) -> Any:
    """The elements as another dtype."""
    return asarray(x, dtype=dtype, device=device, copy=copy or None)


def result_type(*arrays_and_dtypes: Any) -> Any:
    """The dtype that a result of these has."""
    given = [x.dtype if isinstance(x, ARRAYS) else x for x in arrays_and_dtypes]
    kinds = [dtype_of(x) for x in given if not isinstance(x, NUMBERS)]
    numbers = [x for x in given if isinstance(x, NUMBERS)]
    if builtins.any([isinstance(x, ComplexDType | complex) for x in (*kinds, *numbers)]):
        wide = [k in (dtypes.float64, complex128) for k in kinds or [dtypes.default_float]]
        return complex128 if builtins.any(wide) else complex64
    known = [number_dtype(x) for x in numbers]
    found: DType = least_upper_dtype(*(kinds or known))
    rank = ("bool", "uint", "int", "float")
    wider = [n for n in known if rank.index(n.kind) > max(rank.index(found.kind), 1)]
    return least_upper_dtype(found, *wider)


def can_cast(from_: Any, to: Any, /) -> bool:
    """Whether the rules of promotion lead from one dtype to the other."""
    source = from_.dtype if isinstance(from_, ARRAYS) else dtype_of(from_)
    target = dtype_of(to)
    return result_type(source, target) is target


def isdtype(dtype: Any, kind: Any) -> bool:
    """Whether a dtype is of a kind, or of one of several."""
    found = dtype_of(dtype)
    known: list[Any] = []
    for one in kind if isinstance(kind, tuple) else (kind,):
        if isinstance(one, str) and one not in KINDS:
            raise ValueError(f"isdtype: kind {one!r}; there are {', '.join(KINDS)}")
        known += KINDS[one] if isinstance(one, str) else (dtype_of(one),)
    return any([found is d for d in known])


class FloatInfo(NamedTuple):
    """Limits of a float dtype."""

    bits: int
    eps: float
    max: float
    min: float
    smallest_normal: float
    dtype: DType


class IntInfo(NamedTuple):
    """Limits of an int dtype."""

    bits: int
    max: int
    min: int
    dtype: DType


def finfo(type: Any, /) -> FloatInfo:
    """Returns the limits of a float dtype or an array's; of a complex one, those of its parts."""
    dtype = type.dtype if isinstance(type, ARRAYS) else dtype_of(type)
    dtype = dtype.part if isinstance(dtype, ComplexDType) else dtype
    info: Any = np.finfo(to_numpy_dtype(dtype))
    eps, least = float(info.eps), float(info.smallest_normal)
    return FloatInfo(dtype.bits, eps, float(info.max), float(info.min), least, dtype)


def iinfo(type: Any, /) -> IntInfo:
    """Returns the limits of an int dtype or of an array's."""
    dtype = type.dtype if isinstance(type, Tensor) else dtype_of(type)
    return IntInfo(dtype.bits, int(dtype.max), int(dtype.min), dtype)


def broadcast_arrays(*arrays: Any) -> list[Any]:
    """The arrays, each repeated to the shape of all."""
    shape = np.broadcast_shapes(*[a.shape for a in arrays])
    return [as_array(a).expand(shape) for a in arrays]


@by_parts
def broadcast_to(x: Any, /, shape: Sequence[int]) -> Any:
    """The array repeated to a shape."""
    return as_array(x).expand(tuple(shape))
