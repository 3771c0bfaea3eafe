"""Tensors in earnest: creation, dtypes, broadcasting, fusion counted, timing done right.

About three hours. Run with `aster lesson run 01`.
"""

import time
from collections.abc import Callable

import numpy as np

from aster_ml import Device, GlobalCounters, Tensor, TinyJit, dtypes

# %% 1. Making tensors
#
# From numbers, from NumPy, from a rule. A tensor from a rule (zeros, arange, a constant) is not
# memory full of numbers: it is a node that says the rule, and it costs nothing to read.

print(Tensor([[1, 2], [3, 4]]).shape, Tensor(np.zeros((2, 5))).shape, Tensor(3.0).shape)
# > (2, 2) (2, 5) ()
print(Tensor.zeros(2, 3).tolist(), Tensor.arange(5).tolist())
# > [[0.0, 0.0, 0.0], [0.0, 0.0, 0.0]] [0, 1, 2, 3, 4]
print(Tensor.linspace(0, 1, 5).tolist(), Tensor.eye(2).tolist())
# > [0.0, 0.25, 0.5, 0.75, 1.0] [[1.0, 0.0], [0.0, 1.0]]

x = Tensor.rand(100).realize()
GlobalCounters.reset()
(x + Tensor.arange(100) * 2).realize()
print(GlobalCounters.kernel_count, "kernel reads", GlobalCounters.global_mem - 400, "bytes")
# > 1 kernel reads 400 bytes

# Random numbers are rules too: a counter goes through a hash. The same seed gives the same numbers
# on every device and with any number of threads.

Tensor.manual_seed(42)
first = Tensor.randn(3).tolist()
Tensor.manual_seed(42)
print(first == Tensor.randn(3).tolist())
# > True

# What came from NumPy is a copy: a later change of the array changes no tensor.

array = np.zeros(3, dtype=np.float32)
copied = Tensor(array)
array[0] = 5
print(copied.tolist())
# > [0.0, 0.0, 0.0]

# %% 2. dtypes
#
# Python's floats become float32, whole numbers int32; NumPy's keep what they have. Two dtypes meet
# in the smallest one that holds both, except that a Python number never widens a tensor.

print(Tensor([1.0]).dtype, Tensor([1]).dtype, Tensor(np.zeros(1)).dtype)
# > dtypes.float32 dtypes.int32 dtypes.float64
print((Tensor([1]) + Tensor([1.5])).dtype, (Tensor([1, 2]) / 2).dtype)
# > dtypes.float32 dtypes.float32
half = Tensor([1.0], dtype=dtypes.float16)
print((half + 2.5).dtype, (half + Tensor([2.5])).dtype)
# > dtypes.float16 dtypes.float32

# %% 3. Shapes that do not match are told early
#
# An error says what was given and what would do, at the line that is wrong and not when it runs.

for mistake in (
    lambda: Tensor([1, 2]).reshape(3),
    lambda: Tensor.ones(2, 3) @ Tensor.ones(2, 3),
    lambda: Tensor.ones(2, 3) + Tensor.ones(2),
):
    try:
        mistake()
    except Exception as error:
        print(f"{type(error).__name__}: {error}")
# > ShapeError: reshape: [2] has 2 elements, [3] has 3
# > ShapeError: matmul: k differs, 3 against 2, in [2,3] @ [2,3]
# > ShapeError: add: shapes [2,3] and [2] do not broadcast: on axis -1 sizes are 3 and 2; ...

# Broadcasting: axes are compared from the last one, and an axis of size 1 repeats, for nothing.

rows, columns = Tensor([[10.0], [20.0]]), Tensor([1.0, 2.0, 3.0])
print((rows + columns).tolist())
# > [[11.0, 12.0, 13.0], [21.0, 22.0, 23.0]]

# %% 4. Fusion, counted
#
# A habit worth having: before you guess what is slow, count kernels. Each reads its inputs from
# memory and writes its output to memory, so fewer is nearly always quicker.


def kernels(compute: Callable[[], Tensor]) -> int:
    GlobalCounters.reset()
    compute().realize()
    return GlobalCounters.kernel_count


m = Tensor.rand(64, 128).realize()
print("normalise by the mean:", kernels(lambda: m - m.mean(axis=1, keepdim=True)))
# > normalise by the mean: ...
print("a chain of ten:", kernels(lambda: sum(((m * k).sin() for k in range(1, 10)), m)))
# > a chain of ten: 1

# What breaks a chain? A value that two places need in different order or size and that is dear to
# compute twice: it gets memory. `realize()` in the middle of an expression breaks it for certain:

print("broken by hand:", kernels(lambda: (m * 2).realize() + 1))
# > broken by hand: 2

# %% 5. Timing done right
#
# Four mistakes that everybody makes once:
#   1. timing the construction of a graph: nothing ran. (`realize()`!)
#   2. timing the first call: it compiles.
#   3. not waiting for the device: `synchronize()`, or read a number.
#   4. timing once: machines are noisy; take the best or the median of many.
#
# TinyJit records what a function launches and replays it without Python. The first call runs, the
# second records, from the third on it replays.


def best_time(run: Callable[[], object], repeats: int = 20) -> float:
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        Device["CPU"].synchronize()
        times.append(time.perf_counter() - start)
    return min(times)


n = 256
p, q = Tensor.rand(n, n).realize(), Tensor.rand(n, n).realize()
wrong = best_time(lambda: p @ q)  # mistake 1: this builds a node twenty times
product = TinyJit(lambda p, q: (p @ q).realize())
product(p, q)
product(p, q)
right = best_time(lambda: product(p, q))
print("building the node is quicker than the product by", right > wrong)
# > building the node is quicker than the product by True
print(f"{2 * n**3 / right / 1e9:.0f} GFLOP/s")
# > ... GFLOP/s

# %% 6. Equal to NumPy
#
# The last habit: check numbers against something that you did not write. float32 has 24 bits, so
# 1e-5 relative is a fair wish for short sums; longer ones lose more, in any library.

a, b = np.random.default_rng(0).normal(size=(2, 50, 50)).astype(np.float32)
for name, ours, theirs in (
    ("sum", Tensor(a).sum(axis=0), a.sum(axis=0)),
    ("product", Tensor(a) @ Tensor(b), a @ b),
    ("exp", Tensor(a).exp(), np.exp(a)),
    ("where", (Tensor(a) > 0).where(Tensor(a), Tensor(b)), np.where(a > 0, a, b)),
    ("cumsum", Tensor(a).cumsum(axis=1), a.cumsum(axis=1)),
    ("sort", Tensor(a).sort(dim=1)[0], np.sort(a, axis=1)),
):
    print(name, np.allclose(ours.numpy(), theirs, rtol=1e-5, atol=1e-5))
# > sum True
# > product True
# > exp True
# > where True
# > cumsum True
# > sort True

# %% What you know now
#
# Creation is free, dtypes meet in the smallest that holds both, kernels can be counted, times can
# be trusted. `aster lesson check 01` has exercises. Next: 02, the three kinds of op.
