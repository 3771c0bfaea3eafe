"""Rows of `make gpu-bench`: kernels, what each computes, and what a part of its result has to be.

A row says its inputs, the call of Aster's, PyTorch's, and NumPy's for some rows of the result.
Measuring is done in `gpu`, networks are in `gpu_networks`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from aster_ml import Tensor, dtypes
from aster_ml.dtype import DType

Array = np.ndarray[Any, Any]
Shapes = tuple[tuple[int, ...], ...]
F32, F16, BF16, FP8 = dtypes.float32, dtypes.float16, dtypes.bfloat16, dtypes.fp8e4m3
# Elements of a row of the arrays of rows that memory bounds; batch and heads of attention.
WIDTH, BATCH, HEADS = 8192, 4, 16
# How far results may be off, relative to the largest.
TOLERANCES = {F32: 1e-4, F16: 1e-2, BF16: 2e-2, FP8: 5e-2}


class Row(NamedTuple):
    """`make(n)` gives shapes of the inputs and the work of a call: bytes, or operations.

    `asked` and `then` are figures in the unit: GB/s and TFLOP/s, or a share of a copy; 0 where
    there are none. `want(part, *inputs)` is what `run` gives at the rows `part` of the result.
    `settings` are Aster's own; `needs` is a feature of a Target without which there is no such row.
    """

    name: str
    unit: str
    asked: float
    then: float
    dtype: DType
    size: int
    small: int
    make: Callable[[int], tuple[Shapes, float]]
    run: Callable[..., Any]
    want: Callable[..., Array]
    peer: Callable[..., Any] | None = None
    settings: dict[str, int] = {}
    needs: str = ""
    # Whether torch.compile, whose kernels are Triton's, is asked too.
    triton: bool = False

    @property
    def tolerance(self) -> float:
        """Relative to the largest result."""
        rounds = bool(self.settings.get("ALLOW_TF32")) and self.dtype is F32
        return TOLERANCES[F16 if rounds else self.dtype]


def rows_of_bytes(inputs: int, results: int, width: int = WIDTH) -> Callable[[int], Any]:
    """Arrays of n rows of float32, so many read and written."""
    return lambda n: (((n, width),) * inputs, 4.0 * n * width * (inputs + results))


def square(n: int) -> tuple[Shapes, float]:
    """A product of two squares."""
    return ((n, n), (n, n)), 2.0 * n**3


def short_sums(n: int) -> tuple[Shapes, float]:
    """A product with few steps for each of many results."""
    return ((n, n // 8), (n // 8, n)), 2.0 * n * n * (n // 8)


def few_rows(n: int) -> tuple[Shapes, float]:
    """A product of 128 rows, as of so many tokens."""
    return ((128, n), (n, n)), 2.0 * 128 * n * n


def vector(n: int) -> tuple[Shapes, float]:
    """A matrix by a vector: bytes of bfloat16."""
    return ((n, n), (n,)), 2.0 * n * n


def heads(width: int, work: float) -> Callable[[int], tuple[Shapes, float]]:
    """Attention over n places, `width` wide, of so many operations for each score and place."""

    def make(n: int) -> tuple[Shapes, float]:
        return ((BATCH, HEADS, n, width),) * 3, work * BATCH * HEADS * n * n * width

    return make


# what NumPy makes of a part


def product(part: Array, a: Array, b: Array) -> Array:
    """Rows of a product."""
    found: Array = a[part] @ b
    return found


def turned_product(part: Array, a: Array, b: Array) -> Array:
    """Rows of a product by a matrix that is turned around."""
    found: Array = a[part] @ b.T
    return found


def soft(a: Array) -> Array:
    """Softmax along the last axis."""
    powers = np.exp(a - a.max(-1, keepdims=True))
    found: Array = powers / powers.sum(-1, keepdims=True)
    return found


def normal(part: Array, a: Array) -> Array:
    """Rows without mean and deviation."""
    rows = a[part] - a[part].mean(-1, keepdims=True)
    found: Array = rows / np.sqrt((rows * rows).mean(-1, keepdims=True) + 1e-5)
    return found


def powers(part: Array, q: Array, k: Array, causal: bool) -> Array:
    """What each place weighs for some queries of the first head."""
    scores = q[0, 0, part] @ k[0, 0].T / np.sqrt(q.shape[-1])
    if causal:
        scores[np.arange(k.shape[2]) > part[:, None]] = -np.inf
    return soft(scores)


def attended(causal: bool) -> Callable[..., Array]:
    """Results of some queries of the first head."""

    def want(part: Array, q: Array, k: Array, v: Array) -> Array:
        found: Array = powers(part, q, k, causal) @ v[0, 0]
        return found

    return want


def query_gradient(part: Array, q: Array, k: Array, v: Array) -> Array:
    """The gradient of the sum of all results to some queries of the first head."""
    weights = powers(part, q, k, False)
    to_weights = np.broadcast_to(v[0, 0].sum(-1), weights.shape)
    centred = to_weights - (weights * to_weights).sum(-1, keepdims=True)
    found: Array = (weights * centred) @ k[0, 0] / np.sqrt(q.shape[-1])
    return found


# what Aster and PyTorch do


def torch_normal(x: Any) -> Any:
    """LayerNorm by PyTorch."""
    import torch

    return torch.nn.functional.layer_norm(x, x.shape[-1:])


def attention(causal: bool) -> Callable[..., Any]:
    """Attention by Aster."""
    return lambda q, k, v: q.scaled_dot_product_attention(k, v, is_causal=causal)


def torch_attention(causal: bool) -> Callable[..., Any]:
    """Attention by PyTorch."""

    def run(q: Any, k: Any, v: Any) -> Any:
        import torch

        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)

    return run


def backward(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention, and gradients to all three; that of queries."""
    out = q.scaled_dot_product_attention(k, v).cast(dtypes.float32).sum()
    found = out.gradient(q, k, v)
    return found[0].realize(*found[1:])


def torch_backward(q: Any, k: Any, v: Any) -> Any:
    """The same by PyTorch."""
    import torch

    given = [x.detach().requires_grad_() for x in (q, k, v)]
    out = torch.nn.functional.scaled_dot_product_attention(*given)
    return torch.autograd.grad(out.float().sum(), given)[0]


def torch_rounded(a: Any, b: Any) -> Any:
    """A product of float32 whose operands may be rounded to TF32, by PyTorch."""
    import torch

    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        return a @ b
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def narrow_product(a: Tensor, b: Tensor) -> Tensor:
    """`a @ b.T`, in bfloat16 where operands are fp8."""
    found = a.matmul(b.T, dtype=dtypes.float32)
    return found.cast(dtypes.bfloat16) if a.dtype is FP8 else found


def torch_narrow(a: Any, b: Any) -> Any:
    """The same by PyTorch."""
    import torch

    if a.dtype is not torch.float8_e4m3fn:
        return a @ b.T
    one = torch.ones((), device=a.device)
    return torch._scaled_mm(a, b.T, scale_a=one, scale_b=one, out_dtype=torch.bfloat16)


def times(a: Any, b: Any) -> Any:
    """A product, of tensors of either."""
    return a @ b


def fused(a: Any, b: Any) -> Any:
    """Arithmetic that memory bounds."""
    return a * b + a


def row_sums(a: Any) -> Any:
    """The sum of each row."""
    return a.sum(-1)


def softmax(a: Any) -> Any:
    """Softmax of each row."""
    return a.softmax(-1)


WAYS = (("mma.sync", 0, ""), ("wgmma", 1, "wgmma"), ("wgmma, persistent", 2, "wgmma"))


def squares(
    name: str, dtype: DType, figures: tuple[tuple[float, float], ...], run: Any, want: Any,
    peer: Any, settings: dict[str, int],
) -> list[Row]:  # fmt: skip
    """A product of 8192 by each of the ways in which tensor cores get their operands."""
    return [
        Row(f"product 8192, {name}, {way}", "TFLOP/s", *limits, dtype, 8192, 64, square,
            run, want, peer, {"BOXES": boxes, **settings}, needs)
        for (way, boxes, needs), limits in zip(WAYS, figures, strict=False)
    ]  # fmt: skip


def attentions(width: int, figures: tuple[float, float]) -> list[Row]:
    """Forward, with and without a mask of the future, and backward."""
    name = f"attention {width}"
    ask = [(f"{name} wide", False, figures), (f"{name}, causal", True, (0, 0))]
    rows = [
        Row(kind, "TFLOP/s", *limits, F16, 4096, 32, heads(width, 2.0 if causal else 4.0),
            attention(causal), attended(causal), torch_attention(causal))
        for kind, causal, limits in ask
    ]  # fmt: skip
    # Five products for the gradients, and the two of forward.
    return [
        *rows,
        Row(f"{name}, with gradients", "TFLOP/s", 0, 0, F16, 4096, 32,
            heads(width, 14.0), backward, query_gradient, torch_backward),
    ]  # fmt: skip


SLOW, FAST = (350.0, 450.0), (600.0, 720.0)
ROWS = (
    Row("a * b + a", "of a copy", 0.85, 0.92, F32, 8192, 8, rows_of_bytes(2, 1),
        fused, lambda part, a, b: a[part] * b[part] + a[part], fused, triton=True),
    Row("sum of rows", "of a copy", 0.85, 0.92, F32, 8192, 8, rows_of_bytes(1, 0),
        row_sums, lambda part, a: a[part].sum(-1), row_sums, triton=True),
    Row("softmax", "GB/s", 2400, 2800, F32, 8192, 8, rows_of_bytes(1, 1),
        softmax, lambda part, a: soft(a[part]), softmax, triton=True),
    Row("softmax, rows of 16384", "GB/s", 2400, 2800, F32, 4096, 4, rows_of_bytes(1, 1, 16384),
        softmax, lambda part, a: soft(a[part]), softmax, triton=True),
    Row("layernorm", "GB/s", 2400, 2800, F32, 8192, 8, rows_of_bytes(1, 1),
        lambda a: a.layernorm(), normal, torch_normal, triton=True),
    Row("product 4096, float32", "TFLOP/s", 30, 38, F32, 4096, 64, square, times, product, times),
    *squares("bfloat16", BF16, (SLOW, FAST, FAST), times, product, times, {}),
    *squares("float16", F16, (SLOW, FAST, FAST), times, product, times, {}),
    *squares("TF32", F32, ((170, 220), (170, 220)), times, product, torch_rounded,
             {"ALLOW_TF32": 1}),
    *squares("fp8", FP8, ((600, 750), (600, 750)), narrow_product, turned_product, torch_narrow,
             {"ALLOW_TF32": 1}),
    Row("product 4096 x 512 x 4096, bfloat16", "TFLOP/s", 0, 0, BF16, 4096, 64, short_sums,
        times, product, times),
    Row("product 128 x 4096 x 4096, bfloat16", "TFLOP/s", 0, 0, BF16, 4096, 64, few_rows,
        times, product, times),
    Row("product 1024, bfloat16", "TFLOP/s", 0, 0, BF16, 1024, 64, square, times, product, times),
    Row("matrix 8192 by vector, bfloat16", "GB/s", 0, 0, BF16, 8192, 64, vector,
        times, product, times),
    *attentions(128, (250, 450)), *attentions(64, (0, 0)),
)  # fmt: skip
