"""Makes nodes from outside data: numbers, lists, NumPy arrays, bytes, files.

Receives what a user gave to `Tensor(...)`; returns the node that holds it. What may change later
(arrays, lists, bytearrays) is copied here, whatever its layout, dtype and device; bytes, which
never change, are used in place on a CPU. Knows nothing of operations on tensors.
"""

from __future__ import annotations

import contextlib
import pathlib
import warnings
from array import array as PythonArray
from typing import TYPE_CHECKING, Any

import numpy as np

from aster_ml.device import Buffer, Device
from aster_ml.dtype import (
    COMPLEX_ADVICE,
    LARGEST_FP8,
    DType,
    dtypes,
    from_numpy_dtype,
    number_dtype,
    stored_number,
    to_numpy_dtype,
)
from aster_ml.engine import storage
from aster_ml.errors import (
    ArgumentError,
    DTypeError,
    NodeDTypeError,
    NumberRangeError,
    NumberRangeWarning,
    ShapeError,
)
from aster_ml.frames import user_line
from aster_ml.helpers import kind_of
from aster_ml.late import late
from aster_ml.ops.handle import Handle, cast_node, device_constant, number_node
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import Ops

if TYPE_CHECKING:
    from aster_ml.runtime import disk, foreign
else:
    disk, foreign = late("runtime.disk"), late("runtime.foreign")

# As many axes as NumPy has.
MAX_AXES = 64
# By which arrays of other packages are known.
PROTOCOLS = ("__dlpack__", "__array__", "__array_interface__")
FITS_NO_INT = (
    "Tensor: the list holds numbers that no int dtype holds together; int64 goes from -2**63 to "
    "2**63 - 1, uint64 from 0 to 2**64 - 1"
)
# Ints up to here are floats as they are.
FLOATS_HOLD = 1 << 53
KIND_DTYPES = {"b": "bool", "i": "default_int", "u": "default_int", "f": "default_float"}


def node_of(data: Any, dtype: DType | None, device: str | tuple[str, ...]) -> UOp:
    """The node that holds `data`.

    Raises: DTypeError, ShapeError or ArgumentError for what is no data, saying which part.
    """
    if isinstance(data, np.generic):
        return device_constant(data.item(), dtype or from_numpy_dtype(data.dtype), device)
    if isinstance(data, (bool, int, float)):
        return device_constant(data, dtype or number_dtype(data), device)
    if isinstance(data, (list, tuple)):
        return copied_node(array_of_list(data, dtype), device)
    if isinstance(data, np.ndarray):
        return array_node(data, dtype, device)
    if data is None:
        return device_constant(0, dtype or dtypes.default_float, device)
    if isinstance(data, UOp):
        return node_of_node(data, dtype, device)
    if isinstance(data, (bytes, bytearray, memoryview)):
        return node_of_bytes(data, dtype, device)
    if isinstance(data, pathlib.Path):
        return node_of_file(data, dtype or dtypes.uint8)
    if any([hasattr(data, name) for name in PROTOCOLS]):
        return array_node(foreign.array_of(data), dtype, device)
    if isinstance(data, range):
        return copied_node(array_of_list(list(data), dtype), device)
    if isinstance(data, PythonArray):
        return array_node(np.asarray(data), dtype, device)
    raise DTypeError(
        f"Tensor: {kind_of(data)} ({str(data)[:40]}) is no data; a number, list, tuple, "
        f"NumPy array, bytes, memoryview, pathlib.Path or node is wanted{what_would_do(data)}"
    )


def what_would_do(value: Any) -> str:
    """Advice for a value that is no data, as the end of a message; empty where there is none.

    Sparse matrices of SciPy and their like have a method for it.
    """
    if isinstance(value, complex):
        return COMPLEX_ADVICE
    if isinstance(value, (type, str, dict)):
        return ""
    for name in ("toarray", "to_numpy", "todense"):
        if callable(getattr(value, name, None)):
            return f"; x.{name}() makes an array of it"
    if hasattr(value, "__float__"):
        return "; float(x) makes a number of it"
    return "; list(x) makes a list of it" if hasattr(value, "__iter__") else ""


def node_of_node(uop: UOp, dtype: DType | None, device: str | tuple[str, ...]) -> UOp:
    """A node as data: tensors as they are, sizes and variables as the default int, or int64."""
    if uop.shape is None:
        raise ArgumentError(f"Tensor: {uop!r} has no value to make a tensor of")
    if uop.dtype is dtypes.index:
        return number_node(uop, dtype, device)
    if dtype is not None and uop.dtype is not dtype:
        raise NodeDTypeError(
            f"Tensor: the node is {uop.dtype.name} and {dtype.name} is asked for; cast it"
        )
    return uop


def node_of_bytes(data: Any, dtype: DType | None, device: str | tuple[str, ...]) -> UOp:
    """Raw bytes read as elements of `dtype`, or as uint8; other memory as the numbers in it."""
    view = memoryview(data)
    if isinstance(data, memoryview):
        if view.format not in ("B", "c") or view.ndim != 1:
            return array_node(np.asarray(view), dtype, device)
        view = view if view.c_contiguous else memoryview(view.tobytes())
    dtype = dtype or dtypes.uint8
    if view.nbytes % dtype.itemsize:
        raise ShapeError(
            f"Tensor: {view.nbytes} bytes are no whole number of {dtype.name} "
            f"elements of {dtype.itemsize} bytes"
        )
    array = np.frombuffer(view, dtype=to_numpy_dtype(dtype))
    return wrapped_node(array, device) if isinstance(data, bytes) else copied_node(array, device)


def node_of_file(path: pathlib.Path, dtype: DType) -> UOp:
    """A file as memory of the DISK device; nothing is read before it is used.

    Raises: FileMissingError; FileKindError for a folder, pipe or device.
    """
    count = elements_in(path, dtype)
    # Allocated while the file is there: one that is gone when it is read is an error.
    return shaped_buffer(Buffer(f"DISK:{path}", count, dtype).allocate(), (count,))


def elements_in(path: pathlib.Path, dtype: DType) -> int:
    """Counts the elements of a file. Raises: as `node_of_file` does, and ShapeError for a part."""
    size = disk.plain_file_size(path)
    if size % dtype.itemsize:
        raise ShapeError(
            f"Tensor: file {path} has {size} bytes, no whole number of {dtype.name} "
            f"elements of {dtype.itemsize} bytes"
        )
    return size // dtype.itemsize


def node_of_map(path: pathlib.Path, dtype: DType, device: str) -> UOp:
    """A file as memory of a device that sees the host's, read where it lies; a copy elsewhere."""
    count = elements_in(path, dtype)
    memory = np.frombuffer(disk.map_file(path), to_numpy_dtype(dtype), count)
    return wrapped_node(memory, device)


def array_node(
    array: np.ndarray[Any, Any], dtype: DType | None, device: str | tuple[str, ...]
) -> UOp:
    """A copy of a NumPy array."""
    own = from_numpy_dtype(array.dtype)
    if array.__class__ is not np.ndarray and isinstance(array, np.ma.MaskedArray):
        array = foreign.unmasked(array)
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    if array.shape == ():
        node = device_constant(array.item(), own, device)
        return node if dtype is None else cast_node(node, dtype)
    if dtype is None or dtype is own:
        return copied_node(array, device)
    return copied_node(converted(array, dtype), device)


def wrapped_node(array: np.ndarray[Any, Any], device: str | tuple[str, ...]) -> UOp:
    """A new buffer that is the array's memory, which never changes; a copy where that cannot be."""
    dtype = from_numpy_dtype(array.dtype)
    if not isinstance(device, str):
        return copied_node(np.ascontiguousarray(array), device)
    if array.size == 0 or not array.flags.c_contiguous or not array.flags.aligned:
        return copied_node(np.ascontiguousarray(array), device)
    if not Device[device].allocator.can_wrap(array, dtype.itemsize):
        return copied_node(array, device)
    return shaped_buffer(Buffer(device, array.size, dtype, opaque=array), array.shape)


def copied_node(array: np.ndarray[Any, Any], device: str | tuple[str, ...]) -> UOp:
    """A new buffer (on several devices, one on each) with the array's elements, row-major."""
    if not isinstance(device, str):
        first, *rest = [copied_node(array, d) for d in device]
        return first.beside(rest, None)
    dtype = from_numpy_dtype(array.dtype)
    buffer = Buffer(device, array.size, dtype)
    buffer.copyin(np.ascontiguousarray(array))
    return shaped_buffer(buffer, array.shape)


def shaped_buffer(buffer: Buffer, shape: tuple[int, ...]) -> UOp:
    """The node of memory that exists, with a shape."""
    node = UOp.new_buffer(buffer.device, buffer.size, buffer.dtype)
    storage.attach(node, buffer)
    return node if shape == (buffer.size,) else node._mop(Ops.RESHAPE, shape)


def converted(array: np.ndarray[Any, Any], dtype: DType) -> np.ndarray[Any, Any]:
    """The elements as `dtype`, as CAST makes them: ints wrap, floats saturate to ints."""
    target = to_numpy_dtype(dtype)
    if array.dtype.kind in "fV" and dtype.kind in ("int", "uint"):
        wide = dtype if dtype.bits >= 32 else dtypes.int32
        values = np.nan_to_num(np.trunc(array.astype(np.float64)), nan=0.0)
        low, high = dtypes.min(wide), dtypes.max(wide)
        # The greatest ints are no floats: what reaches them is put in afterwards.
        inside = (values > float(low)) & (values < float(high))
        ints = np.where(inside, values, 0).astype(to_numpy_dtype(wide))
        ends = np.where(values <= float(low), low, high).astype(to_numpy_dtype(wide))
        return np.where(inside, ints, ends).astype(target)
    with np.errstate(over="ignore", invalid="ignore"):
        if dtype in LARGEST_FP8 and array.dtype.kind in "iuf":
            most = LARGEST_FP8[dtype]
            array = np.where(np.isinf(array), array, np.clip(array, -most, most))
        return array.astype(target)


def array_of_list(data: Any, dtype: DType | None, wraps: bool = True) -> np.ndarray[Any, Any]:
    """A nested list of numbers as a contiguous array of `dtype`, or of the one its numbers ask for.

    Ints that an int dtype does not hold are wrapped, with a warning, or refused unless `wraps`.

    Raises: ShapeError for a ragged list, DTypeError for what is no number, and NumberRangeError for
    a number that the dtype does not hold, saying where it is.
    """
    array: Any = None
    data = resolved_list(data)
    with contextlib.suppress(ValueError, OverflowError):
        array = np.array(data)
    if (array is None or array.dtype.kind in "SO") and holds_bytes(data):
        data, array = bytes_as_lists(data), None
    try:
        array = np.array(data) if array is None else array
    except (ValueError, OverflowError):
        explain_list(data)
        raise
    kind = array.dtype.kind
    if kind not in "biuf" and array.dtype not in NUMPY_FLOATS:
        explain_list(data)
        array = np.array(data, dtype=object)
        if dtype is None:
            raise DTypeError(FITS_NO_INT)
        if dtype.kind == "float":
            try:
                array = array.astype(np.float64)
            except OverflowError:
                raise DTypeError(
                    f"Tensor: the list holds an int past the largest number of {dtype.name}"
                ) from None
    elif kind == "f" and (dtype is None or dtype.kind in ("int", "uint")):
        array = exact_ints(data, array)
        if dtype is None and array.dtype.kind == "O":
            if all([isinstance(v, (int, np.integer)) for v in array.reshape(-1).tolist()]):
                raise DTypeError(FITS_NO_INT)
    if dtype is None:
        dtype = list_dtype(array)
    elif dtype.kind in ("int", "uint"):
        array = held_ints(array, dtype, wraps)
    return converted(array, dtype)


def exact_ints(data: Any, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """A list with large ints, which NumPy has made floats of, with these ints as they are."""
    with np.errstate(invalid="ignore"):
        if not (np.isfinite(array) & (np.abs(array) >= FLOATS_HOLD)).any():
            return array
    exact = np.array(data, dtype=object)
    if all([isinstance(v, int) and 0 <= v < 1 << 64 for v in exact.reshape(-1).tolist()]):
        return exact.astype(np.uint64)
    return exact


def held_ints(array: np.ndarray[Any, Any], dtype: DType, wraps: bool) -> np.ndarray[Any, Any]:
    """The numbers of a list as an int dtype stores them; of floats, what is before the point.

    Raises: NumberRangeError where the dtype does not hold one, saying where; ints wrap, with a
    warning, if `wraps`.
    """
    low, high = dtypes.min(dtype), dtypes.max(dtype)
    if array.dtype.kind in "fV":
        values = np.trunc(array.astype(np.float64))
        # The greatest ints are no floats: what reaches the next one is too large.
        wrong = ~((values >= float(low)) & (values < float(high + 1)))
    elif array.dtype.kind == "O":
        numbers = [int(v) if v - v == 0 else v for v in array.reshape(-1).tolist()]
        wrong = np.array([not low <= v <= high for v in numbers]).reshape(array.shape)
    else:
        wrong = (array < low) | (array > high)
    places = np.argwhere(wrong)
    for place in places.tolist():
        number = array.item(*place)
        if isinstance(number, int) and wraps:
            continue
        where = "".join(f"[{i}]" for i in place)
        try:
            stored_number(number, dtype)
        except NumberRangeError as error:
            raise NumberRangeError(f"Tensor: element {where} of the list: {error}") from None
    if len(places):
        file, line = user_line()
        warnings.warn_explicit(
            f"Tensor: {len(places)} of {array.size} numbers of the list do not fit {dtype.name}, "
            f"which holds {low} to {high}, and are wrapped ({array.item(*places[0].tolist())} "
            f"first); np.array(...).astype({dtype.name!r}) wraps without a warning",
            NumberRangeWarning,
            file,
            line,
        )
    if array.dtype.kind != "O":
        return array
    wrapped = [int(v) % (1 << dtype.bits) for v in array.reshape(-1).tolist()]
    unsigned = np.array(wrapped, f"u{dtype.itemsize}").reshape(array.shape)
    return unsigned.view(to_numpy_dtype(dtype))


def resolved_list(data: Any) -> Any:
    """A nested list with arrays of other packages as those of NumPy, or itself without any.

    Raises: ArgumentError where a masked array with masked elements is in it.
    """
    pending, seen, found = [data], set(), False
    while pending:
        item = pending.pop()
        if id(item) in seen:
            continue
        seen.add(id(item))
        kinds = set(map(type, item))
        if any([issubclass(kind, np.ma.MaskedArray) for kind in kinds]):
            for array in item:
                if isinstance(array, np.ma.MaskedArray):
                    foreign.unmasked(array)
        found = found or any(map(is_foreign, kinds))
        if not kinds.isdisjoint((list, tuple)):
            pending += [x for x in item if x.__class__ is list or x.__class__ is tuple]
    return with_arrays(data) if found else data


def is_foreign(kind: type) -> bool:
    """Whether objects of a type are arrays of another package than NumPy and this one."""
    if issubclass(kind, (np.ndarray, np.generic, Handle)):
        return False
    return any([hasattr(kind, name) for name in PROTOCOLS])


def with_arrays(data: Any) -> Any:
    """A nested list with arrays of other packages as those of NumPy; a list in itself stays so."""
    whole: list[Any] = []
    known: dict[int, list[Any]] = {id(data): whole}
    pending = [(data, whole)]
    while pending:
        item, made = pending.pop()
        for part in item:
            if part.__class__ is list or part.__class__ is tuple:
                if id(part) not in known:
                    known[id(part)] = []
                    pending.append((part, known[id(part)]))
                made.append(known[id(part)])
            else:
                made.append(foreign.array_of(part) if is_foreign(part.__class__) else part)
    return whole


def holds_bytes(data: Any) -> bool:
    """Whether some element of a nested list is a byte string; a list in itself counts once."""
    pending, seen = [data], set()
    while pending:
        item = pending.pop()
        if isinstance(item, (bytes, bytearray)):
            return True
        if isinstance(item, (list, tuple)) and id(item) not in seen:
            seen.add(id(item))
            pending += item
    return False


def bytes_as_lists(data: Any, depth: int = 0) -> Any:
    """A nested list with a list of numbers for each byte string; too deep ones as they are."""
    if isinstance(data, (bytes, bytearray)):
        return list(data)
    if not isinstance(data, (list, tuple)) or depth > MAX_AXES:
        return data
    return [bytes_as_lists(v, depth + 1) for v in data]


NUMPY_FLOATS = frozenset(to_numpy_dtype(d) for d in dtypes.floats)


def list_dtype(array: np.ndarray[Any, Any]) -> DType:
    """The dtype of a list of numbers; ints are wider than the default only where they must be."""
    kind = array.dtype.kind
    if array.size == 0:
        return dtypes.default_float
    if kind == "O":
        return dtypes.default_float
    if kind not in KIND_DTYPES:
        return from_numpy_dtype(array.dtype)
    dtype: DType = getattr(dtypes, KIND_DTYPES[kind])
    if kind in "iu":
        low, high = int(array.min()), int(array.max())
        for candidate in (dtype, dtypes.int64, dtypes.uint64):
            if dtypes.min(candidate) <= low and high <= dtypes.max(candidate):
                return candidate
    return dtype


def explain_list(data: Any) -> None:
    """Raises the error that says what is wrong with a nested list; returns when nothing is."""
    shape: list[int] = []
    level = data
    while isinstance(level, (list, tuple)):
        if len(shape) >= MAX_AXES:
            raise ShapeError(
                f"Tensor: lists in lists, more than {MAX_AXES} deep, or a list that is in itself"
            )
        shape.append(len(level))
        level = level[0] if level else None
    pending: list[tuple[Any, tuple[int, ...]]] = [(data, ())]
    while pending:
        item, place = pending.pop()
        where = "".join(f"[{i}]" for i in place)
        depth = len(place)
        if isinstance(item, (list, tuple)):
            if depth >= len(shape):
                raise ShapeError(
                    f"Tensor: ragged list: element {where} is a list of {len(item)} "
                    f"where {'[0]' * depth} is a number"
                )
            if len(item) != shape[depth]:
                raise ShapeError(
                    f"Tensor: ragged list: {where or 'it'} has {len(item)} elements "
                    f"where {'[0]' * depth or 'it'} has {shape[depth]}"
                )
            pending += [(part, (*place, i)) for i, part in reversed(list(enumerate(item)))]
        elif depth < len(shape) and not hasattr(item, "shape"):
            raise ShapeError(
                f"Tensor: ragged list: element {where} is {kind_of(item)} "
                f"where {'[0]' * depth} is a list of {shape[depth]}"
            )
        elif not isinstance(item, (int, float, np.generic, np.ndarray, Handle, UOp)):
            raise DTypeError(
                f"Tensor: element {where} of the list is {repr(item)[:60]}, a "
                f"{type(item).__name__}; numbers are wanted{what_would_do(item)}"
            )
