"""A backend of your own: memory, compiler, programs, registered from outside, held to the suite.

About six hours, with lessons/custom_device.py beside it. Run with `aster lesson run 07`.
"""

import os
import subprocess
import sys
import time
from pathlib import Path

import custom_device  # lessons/custom_device.py: a whole device in one file
import numpy as np

from aster_ml import Context, Device, Tensor, TinyJit
from aster_ml.backend import ThreadParts

HERE = Path(__file__).resolve().parent

# %% 1. What a device has to have
#
# The compiler knows no device; it knows a Target. A device is what is left: an *allocator* for
# memory, a *compiler* from source to a binary, *programs* that launch, and a *queue* that says when
# things are done. lessons/custom_device.py has all four in 140 lines. Read it now, once.
#
# `register` makes it known. Nothing of the package was changed.

Device.register("LESSON", custom_device)
print("LESSON" in Device.get_available_devices(), "|", custom_device.DOC)
# > True | the device of lesson 07: C through cc, one thread

# %% 2. Memory
#
# A handle is whatever your device calls a piece of memory. Bytes go in, come out, and parts of it
# are handles too. That is enough for tensors to be copied to the device and back:

backend = Device["LESSON"]
handle = backend.allocator.alloc(8)
backend.allocator.copyin(handle, memoryview(b"abcdefgh"))
part = backend.allocator.offset(handle, 2, 3)
back = bytearray(3)
backend.allocator.copyout(memoryview(back), part)
print(bytes(back))
# > b'cde'
print(Tensor([1.0, 2.0], device="LESSON").realize().to("CPU").tolist())
# > [1.0, 2.0]

# %% 3. The target
#
# One line of data decides what code is made. Ours says: C, SIMD of 128 bits, sixteen registers, one
# thread. Change `vector_bits` to 0 and the same graph becomes scalar loops; the tests still pass.

print(backend.target.language, backend.target.vector_bits, backend.target.threads)
# > c 128 1

# %% 4. A compiler and a program
#
# Source in, bytes out; bytes in, something callable out. Try it by hand, with a function of the
# form that all kernels have here: a row of addresses, and the part of the outermost loop to run.

source = """
#include <stdint.h>
void twice(uint64_t *args, int64_t begin, int64_t end) {
  float *out = (float *)args[0];
  const float *in = (const float *)args[1];
  for (int64_t i = begin; i < end; i++) out[i] = 2.0f * in[i];
}
"""
program = backend.load("twice", backend.compile(source))
given = np.arange(4, dtype=np.float32)
inside, outside = backend.allocator.alloc(16), backend.allocator.alloc(16)
backend.allocator.copyin(inside, memoryview(given.tobytes()))
program((outside, inside), launch=ThreadParts(4))
result = bytearray(16)
backend.allocator.copyout(memoryview(result), outside)
print(np.frombuffer(result, np.float32).tolist())
# > [0.0, 2.0, 4.0, 6.0]

# What the compiler refuses is told in its own words:

try:
    backend.compile("void broken( {")
except Exception as error:
    print(type(error).__name__, "error" in str(error))
# > CompileError True

# %% 5. Everything works now
#
# Not only what you tried: every op, gradient, layer, optimiser, the JIT. That is what a small
# interface buys.

x = Tensor([1.0, 2.0, 3.0], device="LESSON", requires_grad=True)
(x.exp() * x).sum().backward()
print(np.allclose(x.grad.numpy(), np.exp([1, 2, 3]) * np.array([2, 3, 4])))
# > True
step = TinyJit(lambda t: (t * 2 + 1).sum().realize())
print([step(Tensor([float(i)] * 4, device="LESSON").realize()).item() for i in range(4)])
# > [4.0, 12.0, 20.0, 28.0]

# %% 6. Held to the suite
#
# "It works" means: the conformance suite passes, the same one that all devices of the package pass.

environment = {**os.environ, "CONFORMANCE_DEVICE": f"LESSON={HERE / 'custom_device.py'}"}
environment.pop("VIZ", None)  # a picture is wanted of this program, not of the suite
suite = HERE.parent / "tests" / "conformance" / "test_tensor_conformance.py"
command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(suite)]
done = subprocess.run(
    command, capture_output=True, text=True, check=False, env=environment, cwd=HERE.parent
)
print(done.stdout.strip().splitlines()[-1] if done.returncode == 0 else done.stdout[-3000:])
# > ... passed in ...

# %% 7. How fast?
#
# A product of 256 x 256 in GFLOP/s: this device, the CPU device on one thread, NumPy. The kernel is
# made by the same code generator; what differs is SIMD width and the C compiler's -O1.

n = 256
numbers = np.random.default_rng(0).normal(size=(2, n, n)).astype(np.float32)


def gflops(seconds: float) -> float:
    return 2 * n**3 / seconds / 1e9


def measure(device: str) -> tuple[float, np.ndarray]:
    a, b = (Tensor(m, device=device).realize() for m in numbers)
    product = TinyJit(lambda a, b: (a @ b).realize())
    best = np.inf
    for _ in range(20):
        start = time.perf_counter()
        out = product(a, b)
        Device[device].synchronize()
        best = min(best, time.perf_counter() - start)
    return gflops(best), out.numpy()


ours, values = measure("LESSON")
with Context(THREADS=1):
    theirs, _ = measure("CPU")
start = time.perf_counter()
expected = numbers[0] @ numbers[1]
numpys = gflops(time.perf_counter() - start)
print("right:", np.allclose(values, expected, atol=1e-3))
# > right: True
print(f"LESSON {ours:.0f}, CPU {theirs:.0f}, NumPy {numpys:.0f} GFLOP/s")
# > LESSON ..., CPU ..., NumPy ... GFLOP/s

# %% 8. Listening to a backend
#
# A program sees every launch. Ours keeps a log: what ran, and how long.

custom_device.LOG.clear()
y = Tensor(numbers[0], device="LESSON").softmax(axis=1).sum(axis=0).realize()
print(
    len(custom_device.LOG), "launches, each with a time:", all(s > 0 for _, s in custom_device.LOG)
)
# > ... launches, each with a time: True

# %% What you know now
#
# You can bring up a device: a day for a first program, the suite for the rest. A package of yours
# names it as an entry point of the group `aster_ml.devices`, and `DEV=LESSON` finds it. A language
# that is not here needs a renderer too (docs/reference/renderers.md): a row of text for each op.
# Exercises: `aster lesson check 07`.
