"""Ops of your own: GELU, RMSNorm, LayerNorm, attention, losses; gradients checked; fusion measured.

About six hours. Run with `aster lesson run 06`.
"""

import math
import time
from collections.abc import Callable

import numpy as np

from aster_ml import Device, GlobalCounters, Tensor, TinyJit, UOp, dtypes
from aster_ml.compat.kernels import KernelInfo
from aster_ml.uop.ops import Ops

# %% 1. A new op is a function
#
# In most frameworks a new op is C++ with a backward pass by hand. Here it is an expression: it is
# fused because everything is, differentiable because its pieces are.


def gelu(x: Tensor) -> Tensor:
    """x times the share of a normal distribution below x, by the usual approximation with tanh."""
    return 0.5 * x * (1 + (math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)).tanh())


def rms_norm(x: Tensor, weight: Tensor, eps: float = 1e-6) -> Tensor:
    """x over the root of the mean square of each row, times weight."""
    return x * (x.square().mean(axis=-1, keepdim=True) + eps).rsqrt() * weight


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-5) -> Tensor:
    """Each row with mean 0 and variance 1, then scaled and shifted."""
    centred = x - x.mean(axis=-1, keepdim=True)
    variance = centred.square().mean(axis=-1, keepdim=True)
    return centred * (variance + eps).rsqrt() * weight + bias


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal attention. Shapes: q, k, v [heads, n, d] -> [heads, n, d]."""
    n, d = q.shape[-2:]
    scores = q @ k.transpose(-2, -1) / math.sqrt(d)
    scores = Tensor.ones(n, n).tril().bool().where(scores, -math.inf)
    return scores.softmax(axis=-1) @ v


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """The mean of -log p[label]. Subtracting the maximum first keeps exp from overflowing."""
    shifted = logits - logits.max(axis=-1, keepdim=True).detach()
    log_sum = shifted.exp().sum(axis=-1).log()
    picked = (
        (labels.unsqueeze(-1) == Tensor.arange(logits.shape[-1])).where(shifted, 0).sum(axis=-1)
    )
    return (log_sum - picked).mean()


def huber(x: Tensor, y: Tensor) -> Tensor:
    """Squares near 0, absolute values far away."""
    gap = (x - y).abs()
    return (gap < 1).where(0.5 * gap * gap, gap - 0.5).mean()


# %% 2. Right values: against what is there already


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape)


x = Tensor(numbers(6, 32).astype(np.float32))
w, b = (
    Tensor(numbers(32, seed=1).astype(np.float32)),
    Tensor(numbers(32, seed=2).astype(np.float32)),
)
q, k, v = (Tensor(numbers(2, 10, 8, seed=s).astype(np.float32)) for s in (3, 4, 5))
labels = Tensor([3, 1, 31, 0, 7, 7])


def close(ours: Tensor, theirs: Tensor, tolerance: float = 1e-5) -> bool:
    return bool(np.allclose(ours.numpy(), theirs.numpy(), rtol=tolerance, atol=tolerance))


print("gelu", close(gelu(x), x.gelu()))
# > gelu True
print("layer norm", close(layer_norm(x, w, b), x.layernorm() * w + b))
# > layer norm True
print("attention", close(attention(q, k, v), q.scaled_dot_product_attention(k, v, is_causal=True)))
# > attention True
print("cross entropy", close(cross_entropy(x, labels), x.sparse_categorical_crossentropy(labels)))
# > cross entropy True

# %% 3. Right gradients: the check of lesson 03, in float64
#
# Every op is tried with a random projection, so that all of its outputs count, and each input in
# turn. With float64 and steps of 1e-6 the two derivatives agree to about 1e-8.


def worst_gradient_error(function: Callable[..., Tensor], *inputs: np.ndarray) -> float:
    """The largest gap between a gradient and finite differences, over all inputs."""
    tensors = [Tensor(a) for a in inputs]
    out = function(*tensors)
    direction = Tensor(numbers(*out.shape, seed=9))
    gradients = (out * direction).sum().gradient(*tensors)

    def value(arrays: list[np.ndarray]) -> float:
        return (function(*map(Tensor, arrays)) * direction).sum().item()

    worst, e = 0.0, 1e-6
    for which, gradient in enumerate(gradients):
        got = gradient.numpy()
        places = np.random.default_rng(0).permutation([*np.ndindex(got.shape)])[:4]
        for place in map(tuple, places):
            moved = [[a.copy() for a in inputs] for _ in range(2)]
            moved[0][which][place] += e
            moved[1][which][place] -= e
            numeric = (value(moved[0]) - value(moved[1])) / (2 * e)
            worst = max(worst, abs(numeric - got[place]))
    return worst


wide, scale, shift = numbers(3, 8), numbers(8, seed=1), numbers(8, seed=2)
heads = [numbers(1, 4, 3, seed=s) for s in (3, 4, 5)]
for name, function, inputs in (
    ("gelu", gelu, [wide]),
    ("rms norm", rms_norm, [wide, scale]),
    ("layer norm", layer_norm, [wide, scale, shift]),
    ("attention", attention, heads),
    ("cross entropy", lambda x: cross_entropy(x, Tensor([1, 7, 0])), [wide]),
    ("huber", huber, [wide, numbers(3, 8, seed=6)]),
):
    print(f"{name:13}", worst_gradient_error(function, *inputs) < 1e-7)
# > gelu          True
# > rms norm      True
# > layer norm    True
# > attention     True
# > cross entropy True
# > huber         True

# %% 4. Fused against not fused
#
# The same GELU with each step realized, as a framework that runs op by op does it: nine kernels
# that each read and write all of x, against one.

big = Tensor.rand(512, 1024).realize()


def gelu_in_steps(x: Tensor) -> Tensor:
    cube = (x * x).realize() * x
    inner = (x + (0.044715 * cube).realize()).realize()
    bent = (math.sqrt(2 / math.pi) * inner).realize().tanh().realize()
    return ((1 + bent).realize() * x).realize() * 0.5


def cost(function: Callable[[Tensor], Tensor]) -> tuple[int, int]:
    """Kernels and bytes of one run."""
    GlobalCounters.reset()
    function(big).realize()
    return GlobalCounters.kernel_count, GlobalCounters.global_mem


(one, few_bytes), (many, more_bytes) = cost(gelu), cost(gelu_in_steps)
print(
    one,
    "kernel against",
    many,
    "and a share of the bytes below a quarter:",
    few_bytes < more_bytes / 4,
)
# > 1 kernel against ... and a share of the bytes below a quarter: True


def best_time(run: Callable[[], Tensor], repeats: int = 10) -> float:
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        Device[Device.DEFAULT].synchronize()
        times.append(time.perf_counter() - start)
    return min(times)


fused, stepwise = (
    TinyJit(lambda x: gelu(x).realize()),
    TinyJit(lambda x: gelu_in_steps(x).realize()),
)
for run in (fused, stepwise):
    run(big)
    run(big)
ratio = best_time(lambda: stepwise(big)) / best_time(lambda: fused(big))
print(f"one kernel is {ratio:.1f} times as fast; more than 1: {ratio > 1}")
# > one kernel is ... times as fast; more than 1: True

# %% 5. A kernel by hand
#
# Where an expression cannot say what you mean, write the kernel: loops, loads, stores, as nodes. It
# runs on every device, since it is graph like everything else (docs/how-to/kernels.md). A gradient
# of its own comes as a function.


def row_maximum_kernel(out: UOp, x: UOp) -> UOp:
    """out[i] = the greatest |x[i, j]|."""
    i, j = UOp.range(x.shape[0], 0), UOp.range(x.shape[1], 1)
    size = (x[i, j] < 0).where(-x[i, j], x[i, j])
    greatest = size.reduce(j, arg=Ops.MAX)
    return out[i].store(greatest).end(i).sink(arg=KernelInfo(name="row_maximum"))


m = Tensor(numbers(5, 7).astype(np.float32)).realize()
got = Tensor.empty(5).custom_kernel(m, fxn=row_maximum_kernel)[0]
print("by hand", close(got, m.abs().max(axis=1)))
# > by hand True

# %% 6. Numbers that are too large, too small, or none
#
# An op is right when its edges are. A softmax without subtracting the maximum overflows; log of 0
# is minus infinity and 0 times it NaN; a mask of minus infinity over a whole row has nothing to
# divide by.

large = Tensor([[1000.0, 0.0]])
naive = large.exp() / large.exp().sum(axis=1, keepdim=True)
print(
    "naive softmax has NaN:", bool(naive.isnan().any().item()), "| ours:", large.softmax().tolist()
)
# > naive softmax has NaN: True | ours: [[1.0, 0.0]]
print("cross entropy of a certain mistake:", cross_entropy(large, Tensor([1])).item())
# > cross entropy of a certain mistake: 1000.0
print("half precision: ", rms_norm(Tensor.ones(1, 4, dtype=dtypes.float16) * 300, 1.0).tolist())
# > half precision:  [[0.0, 0.0, 0.0, 0.0]]

# 300 squared is 90,000, more than float16 holds (65,504): the mean square is infinite, the result
# 0. A norm for half precision computes in float32 inside. That is an exercise.

# %% What you know now
#
# Ops are expressions, checks of values and gradients are short, fusion is measurable, edges matter.
# Exercises: `aster lesson check 06`.
