"""Makes new tensors: constants, ranges, memory without content, memory that others lend.

Receives shapes, numbers and where the tensor is to live; returns tensors. Constants and ranges take
no memory; random numbers stand in `ops.random`.
"""

from __future__ import annotations

import ctypes
import math
import pathlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from aster_ml.device import Buffer, Device, Lent
from aster_ml.dtype import (
    DType,
    DTypeLike,
    dtypes,
    from_numpy_dtype,
    number_dtype,
    to_dtype,
)  # fmt: skip
from aster_ml.errors import ArgumentError, AsterError, DeviceError, DTypeError
from aster_ml.helpers import argfix, kind_of, prod
from aster_ml.late import late
from aster_ml.ops.data import copied_node, node_of_map, shaped_buffer
from aster_ml.ops.handle import Handle, device_constant, name_of, number_node
from aster_ml.ops.movement import check_size, is_symbolic, show_size
from aster_ml.ops.sizes import size_between
from aster_ml.uop.node import UOp, smax
from aster_ml.uop.ops import Ops

if TYPE_CHECKING:
    from aster_ml.runtime import dlpack, foreign
else:
    dlpack, foreign = late("runtime.dlpack"), late("runtime.foreign")


def shape_of(what: str, shape: Sequence[Any]) -> tuple[Any, ...]:
    """Sizes given one by one or as one tuple, checked."""
    return tuple([check_size(what, size) for size in argfix(*shape)])


class CreateMixin(Handle):
    """Tensors made of nothing."""

    __slots__ = ()

    @classmethod
    def empty(
        cls,
        *shape: Any,
        device: str | None = None,
        dtype: DTypeLike | None = None,
        requires_grad: bool | None = None,
    ) -> Self:
        """Memory with no particular content; for symbolic sizes, enough for the largest.

        Shapes: shape=(n, m) -> [n, m].
        """
        sizes = shape_of("empty", shape)
        element = dtypes.default_float if dtype is None else to_dtype(dtype)
        uop = UOp.new_memory(Device.canonicalize(device), sizes, element)
        return cls._naming(uop, requires_grad)

    @classmethod
    def full(
        cls,
        shape: Any,
        fill_value: Any,
        *,
        device: str | None = None,
        dtype: DTypeLike | None = None,
        requires_grad: bool | None = None,
    ) -> Self:
        """`fill_value` everywhere; takes no memory.

        Shapes: shape=(n, m), fill_value=2 -> [n, m].
        Dtype: `dtype`, else what the number asks for.
        """
        sizes = shape_of("full", shape if isinstance(shape, (tuple, list)) else (shape,))
        if isinstance(fill_value, Handle):
            made = cls._naming(name_of(fill_value.uop, "view"), fill_value._requires_grad)
            value = made if dtype is None else made.cast(dtype)
        elif is_symbolic(fill_value):
            element = None if dtype is None else to_dtype(dtype)
            value = cls.from_uop(number_node(fill_value, element, Device.canonicalize(device)))
        else:
            if isinstance(fill_value, np.generic):
                fill_value = fill_value.item()
            element = number_dtype(fill_value) if dtype is None else to_dtype(dtype)
            value = cls.from_uop(device_constant(fill_value, element, Device.canonicalize(device)))
        result = value.expand(sizes)
        result._rename(result.uop)
        result.requires_grad = requires_grad
        return result

    @classmethod
    def zeros(cls, *shape: Any, dtype: DTypeLike | None = None, **kwargs: Any) -> Self:
        """Zeros.

        Shapes: shape=(n, m) -> [n, m].
        """
        return cls.full(argfix(*shape), 0.0, dtype=dtype or dtypes.default_float, **kwargs)

    @classmethod
    def ones(cls, *shape: Any, dtype: DTypeLike | None = None, **kwargs: Any) -> Self:
        """Ones.

        Shapes: shape=(n, m) -> [n, m].
        """
        return cls.full(argfix(*shape), 1.0, dtype=dtype or dtypes.default_float, **kwargs)

    @classmethod
    def arange(
        cls,
        start: Any,
        stop: Any = None,
        step: Any = 1,
        *,
        device: str | None = None,
        dtype: DTypeLike | None = None,
        requires_grad: bool | None = None,
    ) -> Self:
        """start, start + step, ... below `stop` (above it for a negative step).

        With one argument, 0, 1, ... below it. Each may be a symbolic whole number, and then so is
        the size.

        Shapes: start=n -> [n]; start=n, stop=n + m -> [m].
        Dtype: `dtype`, else the default float if any argument is a float, else the default int.
        Raises: ArgumentError for a step of 0, or one that may be of either sign; for a float
        beside a symbolic number; and for numbers that an int dtype does not hold.
        """
        if stop is None:
            start, stop = 0, start
        for value in (start, stop, step):
            if not is_symbolic(value) and not (
                isinstance(value, (int, float, np.number)) and math.isfinite(value)
            ):
                raise ArgumentError(f"arange: {value!r} is no finite number")
        if not is_symbolic(step) and step == 0:
            raise ArgumentError("arange: step is 0; a positive or negative one is wanted")
        floating = any(isinstance(v, float) for v in (start, stop, step))
        element = (
            to_dtype(dtype)
            if dtype is not None
            else (dtypes.default_float if floating else dtypes.default_int)
        )
        if any(is_symbolic(v) for v in (start, stop, step)):
            count: Any = symbolic_count(start, stop, step)
        else:
            count = max(math.ceil((stop - start) / step), 0)
            check_range(start, start + step * (count - 1), element, count)
        place = Device.canonicalize(device)
        result = cls.from_uop(arange_node(start, step, count, element, place))
        result.requires_grad = requires_grad
        return result

    @classmethod
    def linspace(
        cls,
        start: float,
        stop: float,
        steps: int,
        *,
        device: str | None = None,
        dtype: DTypeLike | None = None,
        requires_grad: bool | None = None,
    ) -> Self:
        """`steps` values from `start` to `stop`, both included, equally far apart.

        Shapes: start=0, stop=1, steps=n -> [n].
        Raises: ArgumentError where an int dtype does not hold both.
        """
        if not isinstance(steps, int) or steps < 0:
            raise ArgumentError(f"linspace: {steps!r} steps; a whole number from 0 on is wanted")
        element = dtypes.default_float if dtype is None else to_dtype(dtype)
        if element is dtypes.bool:
            raise DTypeError("linspace: dtype bool has no values between two; ints or floats have")
        check_range(start, stop if steps > 1 else start, element, steps, "linspace")
        if steps == 1:
            return cls.full((1,), start, device=device, dtype=element, requires_grad=requires_grad)
        wide = element if element is dtypes.float64 else dtypes.float32
        index = cls.arange(steps, device=device).cast(wide)
        values = index * ((stop - start) / max(steps - 1, 1)) + start
        # The last one is what was asked for, not what the sum of roundings makes of it.
        result = index.eq(steps - 1).where(stop, values).cast(element)
        result.requires_grad = requires_grad
        return result

    @classmethod
    def eye(
        cls,
        n: int,
        m: int | None = None,
        dtype: DTypeLike | None = None,
        device: str | None = None,
        requires_grad: bool | None = None,
    ) -> Self:
        """Ones on the diagonal, zeros elsewhere.

        Shapes: n=n, m=m -> [n, m]; n=n -> [n, n].
        """
        columns = n if m is None else m
        for size in (n, columns):
            check_size("eye", size)
        row = cls.arange(n, device=device).reshape((n, 1))
        found = row.eq(cls.arange(columns, device=device).reshape((1, columns)))
        result = found.cast(dtypes.default_float if dtype is None else to_dtype(dtype))
        result.requires_grad = requires_grad
        return result

    @classmethod
    def from_blob(
        cls,
        ptr: int,
        shape: tuple[int, ...],
        *,
        dtype: DTypeLike | None = None,
        device: str | None = None,
    ) -> Self:
        """Memory of the host at address `ptr`, used in place: the caller keeps it alive."""
        element = dtypes.default_float if dtype is None else to_dtype(dtype)
        if not isinstance(ptr, int) or ptr == 0:
            raise ArgumentError(f"from_blob: address {ptr!r}; that of memory, an int, is wanted")
        sizes = shape_of("from_blob", tuple(shape))
        count = prod(sizes)
        if count == 0:
            return cls.empty(sizes, dtype=element, device=device)
        memory = (ctypes.c_uint8 * (count * element.itemsize)).from_address(ptr)
        buffer = Buffer(
            Device.canonicalize(device), count, element, opaque=np.ctypeslib.as_array(memory)
        )
        return cls._naming(shaped_buffer(buffer, sizes))

    @classmethod
    def from_file(
        cls,
        filename: str | pathlib.Path,
        *,
        dtype: DTypeLike | None = None,
        device: str | None = None,
    ) -> Self:
        """A file as memory that kernels read where it lies: nothing is copied, or read before use.

        One axis of `dtype`, by default bytes. The file stays open, and is never written to: who
        assigns gets a copy. It has to stay as long as it is, since the system ends a process that
        touches what is cut off; `Tensor(pathlib.Path(filename))` reads by calls that raise instead.
        A device that does not see the host's memory gets a copy.

        Raises: FileMissingError; FileKindError for a folder, pipe or device; DiskError for a file
        that is empty or cannot be mapped; ShapeError where it is no whole number of elements.
        Source: PyTorch's documentation of from_file.
        """
        if not isinstance(filename, (str, pathlib.Path)):
            raise ArgumentError(f"from_file: {filename!r}; the name of a file is wanted")
        element = dtypes.uint8 if dtype is None else to_dtype(dtype)
        place = Device.canonicalize(device)
        return cls._naming(node_of_map(pathlib.Path(filename), element, place))

    @classmethod
    def from_dlpack(cls, x: Any, *, device: str | None = None, copy: bool | None = None) -> Self:
        """A tensor over the memory of an array of another package (NumPy, PyTorch, JAX, ...).

        Nothing is copied where the elements lie densely, in whatever order of axes: what is written
        on one side, by `assign` as well, is seen on the other. Read-only memory is copied when it
        is written to. `x` has `__dlpack__`, or is a DLPack capsule; `copy=True` copies always,
        `copy=False` never.

        Raises: BufferError where that cannot be; DTypeError for complex numbers.
        Source: DLPack 1.0; Array API 2024.12, from_dlpack.
        """
        place = Device.canonicalize(device)
        plain = foreign.resolved(x)
        if copy is False and plain is not x and type(plain) is type(x):
            raise BufferError(
                "from_dlpack: the array is marked (negated, conjugated, zeros), which only a copy "
                "carries out; copy=None copies"
            )
        try:
            array = dlpack.array_from(plain, copy)
        except (BufferError, AsterError):
            raise
        except Exception as error:
            raise BufferError(f"from_dlpack: {kind_of(x)} gives no capsule: {error}") from error
        node = lent_node(array, place) if isinstance(place, str) and not copy else None
        if node is None:
            if copy is False:
                raise BufferError(
                    f"from_dlpack: strides {array.strides} of {array.shape} on {place} cannot be "
                    "shared; copy=None copies"
                )
            node = copied_node(array, place)
        return cls._naming(node)

    # like another tensor

    def full_like(self, fill_value: Any, **kwargs: Any) -> Self:
        """`fill_value` everywhere, with the shape, dtype and device of self unless given.

        Shapes: self [*s], fill_value=1 -> [*s].
        """
        kwargs.setdefault("dtype", self.dtype)
        if self.device.__class__ is tuple and not isinstance(fill_value, Handle):
            return self._made_on_each(
                "full_like", lambda shape, **at: self.full(shape, fill_value, **at), kwargs
            )
        kwargs.setdefault("device", self.device)
        return self.full(self.shape, fill_value, **kwargs)

    def _made_on_each(self, what: str, make: Callable[..., Any], kwargs: dict[str, Any]) -> Self:
        """Calls `make(shape, device=...)` for the part of self that each device has."""
        devices, axis = self.device, self.uop.axis
        if "device" in kwargs:
            raise DeviceError(
                f"{what}: device {kwargs['device']!r} for a tensor on {', '.join(devices)}; what "
                "is made like it is where it is, .to(...) moves the result"
            )
        flag = kwargs.pop("requires_grad", None)
        count = len(devices)
        local = tuple([s // count if i == axis else s for i, s in enumerate(self.shape)])
        first, *rest = [make(local, device=d, **kwargs).uop for d in devices]
        result = self._naming(first.beside(rest, axis))
        result.requires_grad = flag
        return result

    def zeros_like(self, **kwargs: Any) -> Self:
        """Zeros with the shape, dtype and device of self unless given.

        Shapes: self [*s] -> [*s].
        """
        return self.full_like(0, **kwargs)

    def ones_like(self, **kwargs: Any) -> Self:
        """Ones with the shape, dtype and device of self unless given.

        Shapes: self [*s] -> [*s].
        """
        return self.full_like(1, **kwargs)

    def empty_like(self, **kwargs: Any) -> Self:
        """Memory without content, with the shape, dtype and device of self unless given.

        Shapes: self [*s] -> [*s].
        """
        kwargs.setdefault("dtype", self.dtype)
        if self.device.__class__ is tuple:
            return self._made_on_each("empty_like", self.empty, kwargs)
        kwargs.setdefault("device", self.device)
        return self.empty(self.shape, **kwargs)


def lent_node(array: np.ndarray[Any, Any], device: str) -> UOp | None:
    """The node of memory that another package lends, in place; None where it has to be copied."""
    dtype = from_numpy_dtype(array.dtype)
    if not array.size:
        return None
    order = sorted(range(array.ndim), key=lambda i: -array.strides[i])
    dense = array.transpose(order)
    if not dense.flags.c_contiguous or not dense.flags.aligned or not array.dtype.isnative:
        return None
    flat = dense.reshape(-1).view(Lent)
    if not Device[device].allocator.can_wrap(flat, dtype.itemsize):
        return None
    node = shaped_buffer(Buffer(device, flat.size, dtype, opaque=flat), dense.shape)
    if order == sorted(order):
        return node
    back = tuple(int(i) for i in np.argsort(order))
    return node._mop(Ops.PERMUTE, back)


def symbolic_count(start: Any, stop: Any, step: Any) -> Any:
    """Counts the values of `arange`, where at least one of its arguments is symbolic."""
    for v in (start, stop, step):
        if isinstance(v, float) and not v.is_integer():
            raise ArgumentError(f"arange: {v} beside a symbolic number; whole numbers are wanted")
    start, stop, step = [v if is_symbolic(v) else int(v) for v in (start, stop, step)]
    low, high = (step, step) if isinstance(step, int) else step.bounds
    if low <= 0 <= high:
        raise ArgumentError(
            f"arange: step {show_size(step)} lies between {low} and {high}; it has to be positive "
            "or negative for certain"
        )
    if high < 0:
        start, stop, step = stop, start, 0 - step
    between = size_between(start, stop)
    return smax(0, between if isinstance(step, int) and step == 1 else (between + step - 1) // step)


def check_range(first: Any, last: Any, dtype: DType, count: int, what: str = "arange") -> None:
    """Raises ArgumentError where numbers from `first` to `last` leave the range of an int dtype."""
    if count and dtype.kind in ("int", "uint"):
        if min(first, last) < dtypes.min(dtype) or max(first, last) > dtypes.max(dtype):
            raise ArgumentError(
                f"{what}: {first} to {last} leave {dtype.name}, which holds {dtypes.min(dtype)} to "
                f"{dtypes.max(dtype)}; a wider dtype would do"
            )


def arange_node(start: Any, step: Any, count: Any, dtype: DType, device: str) -> UOp:
    """`count` values from `start`, `step` apart, as a node.

    Counted in ints as far as possible; a constant in the sum says on which device it all is.
    """
    if isinstance(count, int) and count == 0:
        return device_constant(0, dtype, device)._mop(Ops.RESHAPE, (1,))._mop(Ops.EXPAND, (0,))
    whole = all(isinstance(v, int) or is_symbolic(v) for v in (start, step))
    far = 0
    if whole:
        first, by, number = [v if isinstance(v, int) else furthest(v) for v in (start, step, count)]
        far = max(abs(number), abs(first + by * number))
    wide = dtypes.int32
    if dtype in (dtypes.int64, dtypes.uint64) or far >= 1 << 31:
        wide = dtypes.int64
    index = UOp.iota(count).cast(wide)
    if whole:
        if not (isinstance(step, int) and step == 1):
            factor = step.cast(wide) if is_symbolic(step) else UOp.const(wide, step)
            index = index.alu(Ops.MUL, factor)
        zero = device_constant(0 if is_symbolic(start) else start, wide, device)
        index = index.alu(Ops.ADD, zero)
        if is_symbolic(start):
            index = index.alu(Ops.ADD, start.cast(wide))
        return index.cast(dtype)
    index = index.alu(Ops.ADD, device_constant(0, wide, device))
    real = dtypes.float64 if dtype is dtypes.float64 else dtypes.float32
    scaled = index.cast(real).alu(Ops.MUL, UOp.const(real, step))
    return scaled.alu(Ops.ADD, UOp.const(real, start)).cast(dtype)


def furthest(size: UOp) -> int:
    """The value of a symbolic number that is furthest from 0."""
    low, high = size.bounds
    return int(max(low, high, key=abs))
