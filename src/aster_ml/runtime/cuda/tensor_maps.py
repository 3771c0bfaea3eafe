"""Encodes tensor maps (TMA) as arguments of launches.

Receives the tensor maps of a kernel and addresses; returns their encodings in the driver's form. An
encoding contains an address, so other memory needs another one; encodings of the latest addresses
are cached.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

from aster_ml.dtype import to_dtype
from aster_ml.runtime.cuda.context import CudaDevice
from aster_ml.target.tensor_maps import TensorMap

# dtype -> the driver's name.
KINDS = {
    "float16": "FLOAT16", "bfloat16": "BFLOAT16", "float32": "FLOAT32",
    # All 8-bit dtypes are copied as uint8.
    "uint8": "UINT8",
}  # fmt: skip
# Bytes of an encoding, of an encoding with the numbers after it, and the alignment of both.
FORM_NBYTES, NBYTES, ALIGNMENT = 128, 192, 64
# Number of cached encodings of a kernel.
KEPT = 64

# The first version of the driver with the function, and its signature.
SINCE = 12000
PROTOTYPE = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32, ctypes.c_void_p,
    *[ctypes.c_void_p] * 4, *[ctypes.c_int] * 4,
)  # fmt: skip

Form = ctypes.Array[ctypes.c_char]


class Tensors:
    """The tensor maps of one kernel."""

    def __init__(self, device: CudaDevice, maps: Sequence[TensorMap]) -> None:
        self.device = device
        self.maps = maps
        # The slots of their memory.
        self.slots = frozenset([tensor.slot for tensor in maps])
        self.known: dict[tuple[int, int], Form] = {}

    def forms(self, addresses: Sequence[int]) -> list[Form]:
        """An argument for each map. Raises: DeviceError where the driver refuses one."""
        return [self.form(i, addresses[tensor.slot]) for i, tensor in enumerate(self.maps)]

    def form(self, number: int, address: int) -> Form:
        """The argument of one map, for memory at an address."""
        found = self.known.get((number, address))
        if found is None:
            if len(self.known) >= KEPT:
                self.known.clear()
            found = self.known[number, address] = self.encode(self.maps[number], address)
        return found

    def encode(self, tensor: TensorMap, address: int) -> Form:
        """Encodes a new argument."""
        cu, itemsize = self.device.cu, to_dtype(tensor.dtype).itemsize
        start, before = tensor.at(address, itemsize)
        kind = getattr(cu.CUtensorMapDataType, f"CU_TENSOR_MAP_DATA_TYPE_{KINDS[tensor.dtype]}")
        sizes = (tensor.sizes[0] + before, *tensor.sizes[1:])
        strides, rank = [n * itemsize for n in tensor.strides[1:]], len(sizes)
        room = bytearray(NBYTES + ALIGNMENT)
        place = -ctypes.addressof(ctypes.c_char.from_buffer(room)) % ALIGNMENT
        made = (ctypes.c_char * NBYTES).from_buffer(room, place)
        status = encoder(self.device)(
            ctypes.addressof(made), int(kind), rank, start,
            (ctypes.c_uint64 * rank)(*sizes), (ctypes.c_uint64 * rank)(*strides),
            (ctypes.c_uint32 * rank)(*tensor.box), (ctypes.c_uint32 * rank)(*[1] * rank),
            int(cu.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE),
            int(cu.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_128B),
            int(cu.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_128B),
            int(cu.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE),
        )  # fmt: skip
        self.device.check((status,), f"describing {tensor.line()[3:]}")
        behind = place + FORM_NBYTES
        room[behind : behind + 8] = before.to_bytes(8, "little")
        return made


def encoder(device: CudaDevice) -> Any:
    """The driver's function. Raises: DeviceError where it has none.

    why: the bindings pass memory that is not aligned to 64 bytes
    """
    symbol = b"cuTensorMapEncodeTiled"
    found = device.cu.cuGetProcAddress(symbol, SINCE, 0)
    address = device.check(found, f"looking for {symbol.decode()}, which drivers have since 12.0")
    return PROTOTYPE(int(address))
