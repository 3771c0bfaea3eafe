"""Converts host memory between memoryviews, ctypes arrays and addresses, and words to bits.

Receives and returns Python and ctypes objects. Memory of devices is `device.Buffer`'s.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

T = TypeVar("T")


def flat_mv(mv: memoryview) -> memoryview:
    """A contiguous memoryview as bytes."""
    return mv if mv.nbytes == 0 or (mv.format == "B" and mv.ndim == 1) else mv.cast("B")


def from_mv(mv: memoryview, to_type: Any = ctypes.c_char) -> Any:
    """The memory of a writable memoryview as a ctypes array."""
    array = (to_type * (mv.nbytes // ctypes.sizeof(to_type))).from_buffer(mv)
    return ctypes.cast(ctypes.addressof(array), ctypes.POINTER(to_type * len(array))).contents


def to_mv(ptr: int, sz: int) -> memoryview:
    """The memory of `sz` bytes at an address, which has to outlive the view."""
    return memoryview((ctypes.c_uint8 * sz).from_address(ptr)).cast("B")


def mv_address(mv: memoryview) -> int:
    """Where the memory of a writable memoryview is."""
    return ctypes.addressof(ctypes.c_char.from_buffer(mv))


def to_char_p_p(options: Sequence[bytes], to_type: Any = ctypes.c_char) -> Any:
    """Byte strings as a C array of pointers, which keeps them alive."""
    pointer = ctypes.POINTER(to_type)
    return (pointer * len(options))(
        *[ctypes.cast(ctypes.create_string_buffer(o), pointer) for o in options]
    )


def charptr(s: str | bytes) -> Any:
    """A pointer to text as C has it, zero at its end."""
    data = s.encode() if isinstance(s, str) else s
    return ctypes.cast(ctypes.create_string_buffer(data), ctypes.POINTER(ctypes.c_char))


def init_c_var(ctypes_var: T, creat_cb: Callable[[T], Any]) -> T:
    """A ctypes value after `creat_cb` has filled it."""
    creat_cb(ctypes_var)
    return ctypes_var


def init_c_struct_t(fields: Sequence[tuple[str, Any]]) -> type[ctypes.Structure]:
    """A ctypes structure of these fields, without padding."""
    return type("Struct", (ctypes.Structure,), {"_pack_": 1, "_fields_": list(fields)})


def lo32(x: Any) -> Any:
    """The low 32 bits."""
    return x & 0xFFFFFFFF


def hi32(x: Any) -> Any:
    """Bits above the low 32."""
    return x >> 32


def data64(data: Any) -> tuple[Any, Any]:
    """The two words of 32 bits, high one first."""
    return hi32(data), lo32(data)


def data64_le(data: Any) -> tuple[Any, Any]:
    """The two words of 32 bits, low one first."""
    return lo32(data), hi32(data)


def getbits(value: int, start: int, end: int) -> int:
    """Bits `start` to `end`, both included."""
    return (value >> start) & ((1 << (end - start + 1)) - 1)


def i2u(bits: int, value: int) -> int:
    """A signed number of so many bits as the unsigned one of the same bits."""
    return value % (1 << bits)


def pad_bytes(b: bytes, align: int) -> bytes:
    """Bytes with zeros behind, up to a multiple of `align`."""
    return b + b"\x00" * (-len(b) % align)
