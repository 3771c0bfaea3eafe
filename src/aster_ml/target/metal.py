"""Metal: what graphics processors of Apple can do, for compiling where there is none.

A runtime replaces what it finds out by what it asks of its device.
"""

from __future__ import annotations

from aster_ml.target.target import GPU, INTEGERS, PLAIN_OPS, Target
from aster_ml.target.tensor_cores import metal_tensor_cores

# Functions of `metal::precise`, of an error that Apple's specification bounds (4 ULP, 16 for POW).
BUILT_IN_OPS = PLAIN_OPS | {"EXP2", "LOG2", "SIN", "TANH", "POW"}
# Apple's table of limits: threads and shared memory of a threadgroup, arguments that are buffers.
MAX_THREADS, LOCAL_NBYTES, MOST_BUFFERS = 1024, 32 << 10, 31

# Metal Shading Language Specification, "Numerical Compliance": half has its subnormal numbers.
FLUSHED = frozenset({"float32", "bfloat16"})


def metal_target(device: str = "METAL", arch: str = "apple7") -> Target:
    """The Target of a family of Apple's processors, M1 and later, from macOS 14 on."""
    return Target(
        device, "metal", arch=arch, kind=GPU, vector_bits=128, vector_registers=64,
        has_local=True, has_barrier=True, max_group=MAX_THREADS, local_bytes=LOCAL_NBYTES,
        max_grid=(2**31 - 1, 65535, 65535), max_buffers=MOST_BUFFERS, warp=32,
        features=frozenset({"shuffle"}), tensor_cores=metal_tensor_cores(),
        native_dtypes=INTEGERS | {"float16", "bfloat16", "float32"}, native_ops=BUILT_IN_OPS,
        fused=True, flushes=FLUSHED,
    )  # fmt: skip
