"""Throughput of single kernels: the same expression in each library's own words.

An expression takes the library's module and its inputs. GB/s count each input and output once,
whatever the library moves; GFLOP/s count a multiplication and an addition as two.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.draws import draw_input, summary
from benchmarks.libraries import Lazy, Library
from benchmarks.row import Case, Row, Wanted

SUBJECT = "kernels"
Expression = Callable[..., Any]
M16 = 16 << 20
COPY, SUM = "copy of 16M", "sum of 16M"


@dataclass(frozen=True)
class Kernel:
    """Shapes of the inputs, and the expression where libraries write it in different words."""

    shapes: tuple[tuple[int, ...], ...]
    lazy: Expression
    torch: Expression
    jax: Expression | None = None
    numpy: Expression | None = None
    flops: float = 0.0
    outputs: int = 0
    # Small enough for a cache, so that memory bounds nothing.
    cached: bool = False

    @property
    def nbytes(self) -> float:
        """Each float32 input and output once."""
        return 4.0 * (sum(math.prod(s) for s in self.shapes) + self.outputs)

    @property
    def bound(self) -> str:
        """What one that is bound by memory can reach: a copy, or a sum if it hardly writes."""
        return COPY if self.outputs * 16 > self.nbytes / 4 else SUM

    def expression(self, library: Library) -> Expression | None:
        """The one that this library runs."""
        if isinstance(library, Lazy):
            return self.lazy
        name = "torch" if library.name == "compile" else library.name
        found: Expression | None = getattr(self, name)
        return found


def alike(f: Expression, *shapes: tuple[int, ...], flops: float = 0.0, outputs: int = 0) -> Kernel:
    """A kernel that all libraries write in the same words."""
    return Kernel(shapes, f, f, f, f, flops, outputs)


def matmul(n: int) -> Kernel:
    """[n, n] @ [n, n]."""
    return alike(lambda m, a, b: a @ b, (n, n), (n, n), flops=2.0 * n**3)


def numpy_softmax(m: Any, a: Any) -> Any:
    """Over the last axis."""
    e = m.exp(a - a.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def softmax(rows: int, columns: int, cached: bool = False) -> Kernel:
    """Over the last axis of [rows, columns]."""
    return Kernel(
        ((rows, columns),),
        lazy=lambda m, a: a.softmax(-1),
        torch=lambda m, a: a.softmax(-1),
        jax=lambda m, a: m.nn.softmax(a, -1),
        numpy=numpy_softmax,
        outputs=rows * columns,
        cached=cached,
    )


def standardize(a: Any, mean: Any, variance: Any, w: Any, b: Any) -> Any:
    """The formula of layer normalization, for NumPy and JAX."""
    return (a - mean) / (variance + 1e-5) ** 0.5 * w + b


def torch_attention_grads(m: Any, q: Any, k: Any, v: Any, g: Any) -> Any:
    """The gradients of attention by its three inputs."""
    inputs = [t.detach().requires_grad_() for t in (q, k, v)]
    return m.autograd.grad(m.nn.functional.scaled_dot_product_attention(*inputs), inputs, g)


def jax_attention(m: Any, q: Any, k: Any, v: Any) -> Any:
    """JAX has the heads third."""
    return m.nn.dot_product_attention(
        q.swapaxes(1, 2), k.swapaxes(1, 2), v.swapaxes(1, 2)
    ).swapaxes(1, 2)


def conv_3x3(lazy: Expression) -> Kernel:
    """A convolution of N_CONV; how it is done is the lazy libraries' choice alone."""
    return Kernel(
        (N_CONV, (64, 64, 3, 3)),
        lazy=lazy,
        torch=lambda m, x, w: m.nn.functional.conv2d(x, w, padding=1),
        jax=lambda m, x, w: m.lax.conv_general_dilated(x, w, (1, 1), "SAME"),
        flops=2.0 * math.prod(N_CONV) * 64 * 9,
    )


def lazy_winograd(m: Any, x: Any, w: Any) -> Any:
    """A convolution with the setting that allows Winograd's algorithm."""
    with m.Context(WINO=1):
        return x.conv2d(w, padding=1)


N_NORM, N_CONV = (8192, 1024), (8, 64, 56, 56)
N_HEADS = (1, 8, 512, 64)

KERNELS: dict[str, Kernel] = {
    **{f"matmul {n}": matmul(n) for n in (256, 512, 1024, 2048)},
    "vector x matrix 4096": alike(lambda m, x, w: x @ w, (1, 4096), (4096, 4096), outputs=4096),
    "matrix x vector (transposed) 4096": alike(
        lambda m, x, w: x @ w.T, (1, 4096), (4096, 4096), outputs=4096
    ),
    COPY: Kernel(
        ((M16,),),
        lazy=lambda m, a: a.clone(),
        torch=lambda m, a: a.clone(),
        jax=lambda m, a: a.copy(),
        numpy=lambda m, a: a.copy(),
        outputs=M16,
    ),
    "((a*b+c).relu()*0.5+a).sigmoid(), 16M": Kernel(
        ((M16,), (M16,), (M16,)),
        lazy=lambda m, a, b, c: ((a * b + c).relu() * 0.5 + a).sigmoid(),
        torch=lambda m, a, b, c: ((a * b + c).relu() * 0.5 + a).sigmoid(),
        jax=lambda m, a, b, c: m.nn.sigmoid(m.nn.relu(a * b + c) * 0.5 + a),
        numpy=lambda m, a, b, c: 1 / (1 + m.exp(-(m.maximum(a * b + c, 0) * 0.5 + a))),
        outputs=M16,
    ),
    SUM: alike(lambda m, a: a.sum(), (M16,), outputs=1),
    "sum over axis 0 of 4096x4096": alike(lambda m, a: a.sum(0), (4096, 4096), outputs=4096),
    "softmax 2048x4096": softmax(2048, 4096),
    "softmax 32x4096, in a cache": softmax(32, 4096, cached=True),
    "layernorm 8192x1024": Kernel(
        (N_NORM, (1024,), (1024,)),
        lazy=lambda m, a, w, b: a.layernorm(eps=1e-5) * w + b,
        torch=lambda m, a, w, b: m.nn.functional.layer_norm(a, (1024,), w, b, 1e-5),
        jax=lambda m, a, w, b: standardize(
            a, a.mean(-1, keepdims=True), a.var(-1, keepdims=True), w, b
        ),
        numpy=lambda m, a, w, b: standardize(
            a, a.mean(-1, keepdims=True), a.var(-1, keepdims=True), w, b
        ),
        outputs=math.prod(N_NORM),
    ),
    "transpose 4096x4096": Kernel(
        ((4096, 4096),),
        lazy=lambda m, a: a.T.contiguous(),
        torch=lambda m, a: a.T.contiguous(),
        # XLA gives the result of a jitted function in row-major order.
        jax=lambda m, a: a.T,
        numpy=lambda m, a: m.ascontiguousarray(a.T),
        outputs=4096 * 4096,
    ),
    "conv 3x3, 8x64x56x56 -> 64": conv_3x3(lambda m, x, w: x.conv2d(w, padding=1)),
    # What it does of these operations is less than half; they are counted as in the row above.
    "conv 3x3, 8x64x56x56 -> 64, WINO=1": conv_3x3(lazy_winograd),
    "attention, 8 heads, 512x64": Kernel(
        (N_HEADS,) * 3,
        lazy=lambda m, q, k, v: q.scaled_dot_product_attention(k, v),
        torch=lambda m, q, k, v: m.nn.functional.scaled_dot_product_attention(q, k, v),
        jax=jax_attention,
        flops=4.0 * 8 * 512 * 512 * 64,
    ),
    "attention forward and backward, 8 heads, 512x64": Kernel(
        (N_HEADS,) * 4,
        lazy=lambda m, q, k, v, g: q.scaled_dot_product_attention(k, v).gradient(
            q, k, v, gradient=g
        ),
        torch=torch_attention_grads,
        jax=lambda m, q, k, v, g: m.vjp(lambda *x: jax_attention(m, *x), q, k, v)[1](g),
        # Two products forward, four backward; scores that are computed again are not counted.
        flops=12.0 * 8 * 512 * 512 * 64,
    ),
}


def build_kernel(library: Library, kernel: str) -> Case:
    """The repeated call of one expression on fixed inputs."""
    k = KERNELS[kernel]
    expression = k.expression(library)
    if expression is None:
        raise NotImplementedError(f"{library.name} has no such operation")
    inputs = [library.tensor(draw_input(f"input {i}", s)) for i, s in enumerate(k.shapes)]
    call = library.compiled(lambda *args: expression(library.module, *args))

    def run() -> Any:
        result = call(*inputs)
        library.wait()
        return result

    return Case(run, lambda: summary(library.array(run())))


def rows() -> list[Row]:
    """A row a kernel; its unit says what it is bound by."""
    found = {
        name: Row(
            name,
            SUBJECT,
            "kernel",
            "GFLOP/s" if k.flops else "GB/s",
            Wanted(1.0, of_ratio=True),
            {"kernel": name},
            work=k.flops or k.nbytes,
            one_thread_too=True,
        )
        for name, k in KERNELS.items()
    }
    return [
        found[name]
        if k.flops or k.cached or k.bound == name
        else replace(found[name], ceiling=found[k.bound])
        for name, k in KERNELS.items()
    ]


CASES = {"kernel": build_kernel}
