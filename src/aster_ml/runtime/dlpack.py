"""Exchanges memory with other packages by DLPack capsules, without a copy.

Receives arrays, or objects with `__dlpack__`; returns capsules and arrays. NumPy creates and reads
the capsules, and so handles ownership, threads and the end of the interpreter. NumPy lacks bfloat16
and fp8, so these are passed as integers, and their type code is set in the capsule, or read from
it, here. Tensors do not belong here.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from aster_ml.dtype import NUMPY_TYPES, DType, dtypes, from_numpy_dtype

# (kind of device, number): kDLCPU, the memory of the host.
CPU = (1, 0)
VERSION = (1, 0)
# Names of a capsule whose content was not taken yet.
NAMES = (b"dltensor", b"dltensor_versioned")
# Types that NumPy's capsules lack, by their codes in dlpack.h.
CODES = {4: dtypes.bfloat16, 10: dtypes.fp8e4m3, 12: dtypes.fp8e5m2}
CODE_OF = {dtype: code for code, dtype in CODES.items()}
UINT = 1


class ArrayInMemory(ctypes.Structure):
    """`DLTensor` of dlpack.h."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class Versioned(ctypes.Structure):
    """`DLManagedTensorVersioned`; without a version, a capsule begins with the array."""

    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("manager", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("array", ArrayInMemory),
    )


def pointer_in(capsule: Any, name: bytes) -> int | None:
    """The pointer of a capsule of this name; None for a capsule of another name."""
    api = ctypes.pythonapi
    api.PyCapsule_IsValid.argtypes = (ctypes.py_object, ctypes.c_char_p)
    api.PyCapsule_GetPointer.argtypes = (ctypes.py_object, ctypes.c_char_p)
    api.PyCapsule_GetPointer.restype = ctypes.c_void_p
    if not api.PyCapsule_IsValid(capsule, name):
        return None
    address: int = api.PyCapsule_GetPointer(capsule, name)
    return address


def array_in(capsule: Any) -> ArrayInMemory:
    """Reads the array that a capsule describes; the capsule keeps its memory.

    Raises: BufferError for an object other than a capsule, or a capsule that was taken before.
    """
    if type(capsule).__name__ == "PyCapsule":
        for name, offset in zip(NAMES, (0, Versioned.array.offset), strict=True):
            address = pointer_in(capsule, name)
            if address is not None:
                return ArrayInMemory.from_address(address + offset)
    raise BufferError(
        f"from_dlpack: {capsule!r} is no DLPack capsule with content; one can be taken once, so "
        "ask its owner for another (pass the array itself)"
    )


def capsule_of(array: np.ndarray[Any, Any], max_version: tuple[int, int] | None, copy: bool) -> Any:
    """A capsule with an array, or with a copy of it.

    Raises: BufferError for read-only memory if `max_version` has no flag for it.
    """
    dtype = from_numpy_dtype(array.dtype)
    code = CODE_OF.get(dtype)
    plain = array if code is None else array.view(f"u{dtype.itemsize}")
    if not plain.flags.writeable and not copy and (max_version is None or max_version < VERSION):
        raise BufferError(
            "__dlpack__: this memory is read-only, which capsules before version 1.0 cannot say; "
            "clone() the tensor, or ask with copy=True"
        )
    capsule = (
        plain.copy().__dlpack__(max_version=max_version)
        if copy
        else plain.__dlpack__(max_version=max_version)
    )
    if code is not None:
        array_in(capsule).code = code
    return capsule


class Handed:
    """An object whose `__dlpack__` returns a capsule, as NumPy expects."""

    def __init__(self, capsule: Any) -> None:
        self.capsule = capsule

    def __dlpack__(self, **_: Any) -> Any:
        return self.capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return CPU


def capsule_from(source: Any, copy: bool | None) -> Any:
    """The capsule of an array of another package, or a capsule itself.

    Raises: BufferError for memory outside of the host, unless a copy is allowed.
    """
    if not hasattr(source, "__dlpack__"):
        return source
    kind, number = source.__dlpack_device__()
    if kind != CPU[0]:
        if copy is False:
            raise BufferError(
                f"from_dlpack: the array is on device ({int(kind)}, {number}) of DLPack, which "
                "the host does not see, and copy=False; copy=None copies it"
            )
        return source.__dlpack__(max_version=VERSION, dl_device=CPU, copy=True)
    try:
        return source.__dlpack__(max_version=VERSION, copy=copy)
    except TypeError:
        # An exporter from before DLPack 1.0.
        return source.__dlpack__()


def array_from(source: Any, copy: bool | None = None) -> np.ndarray[Any, Any]:
    """Another package's array, in the same memory, or as a copy if `copy` asks for one.

    bfloat16 and fp8 have the types of ml_dtypes.

    Raises: BufferError for memory outside of the host, or an unknown type.
    """
    capsule = capsule_from(source, copy)
    found = array_in(capsule)
    dtype: DType | None = CODES.get(found.code)
    if found.lanes != 1:
        raise BufferError(f"from_dlpack: vectors of {found.lanes} lanes; one lane is wanted")
    if dtype is not None:
        # The content may be changed until the capsule is consumed.
        found.code = UINT
    array = np.from_dlpack(Handed(capsule))
    array = array if dtype is None else array.view(NUMPY_TYPES[dtype])
    return array.copy() if copy and not hasattr(source, "__dlpack__") else array
