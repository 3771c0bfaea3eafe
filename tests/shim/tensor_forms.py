"""Tensor maps in the form of `hopper_on_cpu.h`, which is that of the tests' driver too."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

from aster_ml.dtype import to_dtype
from aster_ml.target.tensor_maps import TensorMap

NBYTES, ALIGNMENT = 192, 64


class Form(ctypes.Structure):
    """What a kernel is given: the form of a tensor, and the elements before it."""

    _fields_ = (
        ("address", ctypes.c_uint64), ("rank", ctypes.c_int), ("itemsize", ctypes.c_int),
        ("sizes", ctypes.c_int64 * 5), ("strides", ctypes.c_int64 * 5), ("box", ctypes.c_int * 5),
        ("swizzle", ctypes.c_int),
    )  # fmt: skip


def encode(tensor: TensorMap, addresses: Sequence[int]) -> ctypes.Array[ctypes.c_char]:
    """The argument of a launch."""
    itemsize = to_dtype(tensor.dtype).itemsize
    address, before = tensor.at(addresses[tensor.slot], itemsize)
    form = Form(address, len(tensor.sizes), itemsize, swizzle=1)
    form.sizes[: len(tensor.sizes)] = tensor.sizes
    form.sizes[0] += before
    form.strides[: len(tensor.strides)] = [n * itemsize for n in tensor.strides]
    form.box[: len(tensor.box)] = tensor.box
    content = bytes(form).ljust(128, b"\0") + before.to_bytes(8, "little")
    room = bytearray(NBYTES + ALIGNMENT)
    start = -ctypes.addressof((ctypes.c_char * len(room)).from_buffer(room)) % ALIGNMENT
    room[start : start + len(content)] = content
    return (ctypes.c_char * NBYTES).from_buffer(room, start)
