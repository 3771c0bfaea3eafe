"""Rules of hardware that the stand-ins of the tests hold kernels to: each mistake is made once.

Kernels written by hand, whose mistakes show in no result on a CPU.
"""

from __future__ import annotations

import numpy as np
import pytest

from aster_ml import Tensor
from aster_ml.backend import Grid
from aster_ml.device import Device
from aster_ml.errors import DeviceError, InternalError
from tests.shim import cuda_shim, guarded, metal_shim, on_cpu

pytestmark = [
    pytest.mark.cc,
    pytest.mark.skipif(on_cpu.find_compiler() is None, reason="no C++ compiler on PATH: g++"),
]
HEAD = """
extern "C" __global__ void k(float *out, const float *x, const unsigned long long *table) {
  __shared__ __align__(16) float local[64];
  int t = threadIdx.x;
  local[t] = local[t + 32] = x[t];
  __syncthreads();
  unsigned int word = 0;
"""
MISTAKES = {
    "behind a buffer": ("out[t + 32] = 1;", "thread .* touches memory that is not its own"),
    "before a buffer": ("out[t - 1024] = 1;", "thread .* touches memory that is not its own"),
    "read behind a buffer": ("word = x[t + 32] > 0;", "touches memory that is not its own"),
    "no address": ("out = 0; out[t] = 1;", "touches memory that is not its own"),
    "four floats between places": (
        "*(uint4 *)(local + 2 * (t & 3)) = *(const uint4 *)(x + 4 * (t & 3));",
        "moves 16 bytes at .*, which is no multiple",
    ),
    "two floats between places": (
        "uint2 two = *(const uint2 *)(x + 1); word = two.x;", "moves 8 bytes at .*, which is no",
    ),
    "a matrix between rows": (
        "aster_ldmatrix(word, local + 4 * t % 32 + 1);", "no multiple of 16 in shared memory",
    ),
    "a matrix in a buffer": ("aster_ldmatrix(word, x);", "no multiple of 16 in shared memory"),
    "a copy between places": (
        "aster_copy_piece<16>(local + 4 * (t % 8), x + 1, true);", "copies 16 bytes from",
    ),
    "a copy to a buffer": (
        "aster_copy_piece<16>(out + 4 * (t % 8), x + 4 * (t % 8), true);", "is no shared memory",
    ),
    "an exchange out of the mask": (
        "word = __shfl_xor_sync(0xffffu, t, 1);", "exchanges and is not in the mask",
    ),
    "an exchange without some": (
        "if (t > 3) word = __shfl_xor_sync(~0u, t, 1);", "threads part: .* waits for its warp",
    ),
    "an exchange when some have ended": (
        "if (t > 3) return; word = __shfl_xor_sync(~0u, t, 1);", "threads part: .* has ended",
    ),
    "a barrier when some have ended": ("if (t > 3) return; __syncthreads();", "threads part"),
}  # fmt: skip


def run(body: str, items: int = 32) -> np.ndarray:
    """What a kernel of one block writes; both buffers are in guarded memory."""
    source = f"{HEAD}  {body}\n  out[t] = (float)word;\n}}\n"
    memory = guarded.GuardedAllocator("CUDASHIM")
    x, out = memory.alloc(128), memory.alloc(128)
    data = np.arange(32, dtype=np.float32)
    memory.copyin(x, memoryview(data).cast("B"))
    program = on_cpu.load(on_cpu.compile_kernel(source), "k")
    program((out.address, x.address), (), (1, 1, 1), (items, 1, 1))
    found = np.empty(32, np.float32)
    memory.copyout(memoryview(found).cast("B"), out)
    return found


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_show(mistake: str) -> None:
    body, words = MISTAKES[mistake]
    with pytest.raises(DeviceError, match=words):
        run(body)
    # The next launch is none the worse for it.
    np.testing.assert_array_equal(run("word = t;"), np.arange(32))


def test_lanes_that_are_not_there_give_nothing() -> None:
    found = run("word = __shfl_xor_sync(~0u, (unsigned int)t, 16);", items=24)
    np.testing.assert_array_equal(found[:8], np.arange(16, 24))
    np.testing.assert_array_equal(found[8:16], np.full(8, 2.0**32))
    np.testing.assert_array_equal(found[16:24], np.arange(8))


def test_what_is_right_is_not_reported() -> None:
    body = """aster_copy_piece<16>(local + 4 * (t % 8), x + 4 * (t % 8), t < 8);
  aster_commit(); aster_wait<0>(); __syncthreads();
  uint4 four = *(const uint4 *)(local + 4 * (t / 4));
  aster_ldmatrix(word, local + 4 * (t % 8));
  word = four.x + __shfl_xor_sync(~0u, t, 1);"""
    assert np.isfinite(run(body)).all()


@pytest.mark.parametrize("shim", [cuda_shim, metal_shim], ids=["CUDA", "METAL"])
def test_what_is_written_is_memory_of_its_own(shim: object) -> None:
    name = "CUDASHIM" if shim is cuda_shim else "METALSHIM"
    Device.register(name, shim)  # type: ignore[arg-type]
    x = Tensor(np.arange(8, dtype=np.float32), device=name).realize()
    # In place, over itself and in pieces: none of it hands a kernel the same memory twice.
    x.assign(x * 2 + x.flip(0)).realize()
    x[1:].assign(x[:-1]).realize()
    np.testing.assert_array_equal(x.numpy(), [7, 7, 8, 9, 10, 11, 12, 13])
    program = Device[name].load("k", Device[name].compile(KERNELS[name]))
    memory = x.uop.base.buffer.handle
    with pytest.raises(InternalError, match="k: it writes buffer 0, and 1 is the same memory"):
        program((memory, memory), (), Grid((1,), (1,)))


KERNELS = {
    "CUDASHIM": 'extern "C" __global__ void k(float *__restrict__ buf0, '
    "const float *__restrict__ buf1, const unsigned long long *table) { buf0[0] = buf1[0]; }",
    "METALSHIM": on_cpu.METAL_HEAD + "kernel void k(device float *buf0 [[buffer(0)]], "
    "device const float *buf1 [[buffer(1)]]) { buf0[0] = buf1[0]; }",
}
