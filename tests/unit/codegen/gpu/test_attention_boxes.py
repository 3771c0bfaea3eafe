"""Attention whose operands boxes of tensors bring: CUDA C++ for Hopper, run on the CPU."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from aster_ml import Tensor, dtypes
from aster_ml.codegen.opts import parse_opts
from aster_ml.codegen.passes import lower
from aster_ml.config import Context
from aster_ml.renderer.cuda import CudaRenderer
from aster_ml.runtime import cuda_compiler
from aster_ml.target.cuda import cuda_target
from aster_ml.target.tensor_cores import ROWS
from aster_ml.uop.linear import Linear
from aster_ml.uop.ops import Ops
from aster_ml.uop.print.text import linear_from_text, linear_to_text
from aster_ml.uop.spec.linear import verify_linear
from tests.shim import devices, on_cpu
from tests.unit.codegen.gpu.test_attention import BOUNDS, compiled, wanted
from tests.unit.kernel_checks import kernel_of

CARD = cuda_target("sm_90a")
NUMPY = {dtypes.float16: np.float16, dtypes.bfloat16: ml_dtypes.bfloat16}
NUMBERS = {row.name.removeprefix("cuda_wgmma_"): i for i, row in enumerate(ROWS)}
needs_nvrtc = pytest.mark.skipif(
    cuda_compiler.missing() is not None, reason="NVRTC: pip install 'aster-ml[cuda]'"
)


def numbers(dtype: Any, *shapes: tuple[int, ...]) -> list[np.ndarray[Any, Any]]:
    """Random operands."""
    rng = np.random.default_rng(sum(map(sum, shapes)))
    return [rng.standard_normal(s).astype(NUMPY[dtype]) for s in shapes]


def tensor(x: np.ndarray[Any, Any]) -> Tensor:
    """A tensor of the shape and dtype of an array, of a device that multiplies on tensor cores."""
    dtype = {np.dtype(v): k for k, v in NUMPY.items()}.get(x.dtype, str(x.dtype))
    return Tensor.empty(*x.shape, dtype=dtype, device=devices.SHIMS[0])


def program(result: Tensor, opts: str | None = None) -> Linear:
    """The program of attention for Hopper."""
    with Context(BOXES=2):
        linear, _ = lower(kernel_of(result), CARD, None if opts is None else parse_opts(opts))
    verify_linear(linear)
    assert linear_from_text(linear_to_text(linear)) == linear
    return linear


def is_boxed(linear: Linear) -> bool:
    """Whether boxes bring its operands."""
    return any(u.op is Ops.BOX for u in linear.uops)


def run(linear: Linear, out: np.ndarray[Any, Any], *arrays: np.ndarray[Any, Any]) -> None:
    """Runs a program on the CPU; a mask, the last array, is where its argument is."""
    source, given = CudaRenderer(CARD).render(linear), [out, *arrays]
    kinds = [u.dtype for u in linear.params]
    masks = [i for i, dtype in enumerate(kinds) if i and dtype not in NUMPY]
    if masks:
        given.insert(masks[0], given.pop())
    on_cpu.run(source, linear, [a.reshape(-1) for a in given])


def error_of_boxes(
    heads: int, n: int, m: int, d: int, e: int, kind: str, dtype: Any, opts: str | None = None
) -> float:
    """How far attention by boxes is from that in float64; the mask is of this kind."""
    arrays = numbers(dtype, (heads, n, d), (heads, m, d), (heads, m, e))
    rng = np.random.default_rng(n * m)
    mask = None
    if kind == "bool":
        mask = rng.random((n, m)) < 0.5
        mask[0] = False
    elif kind == "float":
        mask = rng.standard_normal((n, m)).astype(np.float32)
    given = None if mask is None else tensor(mask)
    result = tensor(arrays[0]).scaled_dot_product_attention(
        tensor(arrays[1]), tensor(arrays[2]), given, is_causal=kind == "causal"
    )
    linear = program(result, opts)
    assert is_boxed(linear)
    out = np.full((heads, n, e), np.nan, NUMPY[dtype])
    run(linear, out, *arrays, *([] if mask is None else [mask]))
    right = wanted(*arrays, mask, kind == "causal")
    return float(np.max(np.abs(out.astype(np.float64) - right), initial=0.0))


@compiled
@pytest.mark.parametrize(
    ("sizes", "kind", "dtype"),
    [
        ((2, 64, 128, 64, 64), "", dtypes.float16),
        ((1, 200, 330, 128, 128), "causal", dtypes.bfloat16),
        ((2, 33, 257, 64, 128), "bool", dtypes.float16),
        ((1, 130, 150, 96, 32), "float", dtypes.bfloat16),
        ((1, 16, 65, 16, 16), "float", dtypes.float16),
    ],
)
def test_boxes_bring_operands(sizes: Any, kind: str, dtype: Any) -> None:
    assert error_of_boxes(*sizes, kind, dtype) <= BOUNDS[dtype]
