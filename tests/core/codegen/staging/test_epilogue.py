"""Results of register tiles that are finished in a loop, against plain NumPy."""

from __future__ import annotations

import math
import re
from collections.abc import Callable

import numpy as np
import pytest

from aster_ml import Tensor
from aster_ml.codegen.passes import lower
from aster_ml.renderer.llvm.renderer import LLVMRenderer
from aster_ml.target import Target
from aster_ml.uop.ops import Ops
from tests.core.codegen.test_opts import AVX512, CPU, memory, ops_of
from tests.core.kernel_checks import kernel_of

SIZES = [(128, 768, 256), (96, 400, 120), (33, 200, 67)]


def gelu(x: np.ndarray) -> np.ndarray:
    """By the tangent, as `Tensor.gelu` has it."""
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


@pytest.mark.parametrize(("m", "k", "n"), SIZES)
def test_products_with_long_ends_give_what_numpy_gives(m: int, k: int, n: int) -> None:
    rng = np.random.default_rng(2)
    x, w, b, r = (
        rng.standard_normal(s, dtype=np.float32) / math.sqrt(s[0])
        for s in ((m, k), (n, k), (n,), (m, n))
    )
    found = (Tensor(x).linear(Tensor(w).T, Tensor(b)).gelu() + Tensor(r)).numpy()
    wanted = gelu(x.astype(np.float64) @ w.T.astype(np.float64) + b) + r
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


def test_convolutions_with_long_ends_give_what_numpy_gives() -> None:
    rng = np.random.default_rng(4)
    x = rng.standard_normal((2, 64, 9, 9), dtype=np.float32)
    w = rng.standard_normal((32, 64, 1, 1), dtype=np.float32) / 8
    found = Tensor(x).conv2d(Tensor(w)).gelu().numpy()
    wanted = gelu(np.einsum("nchw,oc->nohw", x.astype(np.float64), w[..., 0, 0]))
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("target", [CPU, AVX512], ids=["avx2", "avx512"])
def test_a_long_end_stands_in_a_loop_of_its_own(target: Target) -> None:
    x, w = memory(128, 768), memory(256, 768)
    plain, long = x @ w.T, (x @ w.T).gelu()
    scratch = [ops_of(y, target).count(Ops.DEFINE_LOCAL) for y in (plain, long)]
    # The sums of a tile are in scratch, beside what is packed.
    assert scratch[1] == scratch[0] + 1


def test_a_short_end_or_a_short_sum_has_no_loop() -> None:
    for product, end in (
        (memory(128, 768) @ memory(768, 256), Tensor.relu),
        (memory(128, 32) @ memory(256, 32).T, Tensor.gelu),
    ):
        counts = [ops_of(y, AVX512).count(Ops.DEFINE_LOCAL) for y in (product, end(product))]
        assert counts[0] == counts[1]


@pytest.mark.parametrize(("m", "k", "n"), [(128, 768, 1536), (200, 300, 67), (33, 1000, 100)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_results_that_are_transposed_block_by_block_are_what_numpy_gives(
    m: int, k: int, n: int, dtype: type
) -> None:
    rng = np.random.default_rng(3)
    x, w, b, r = (
        (rng.standard_normal(s) / math.sqrt(s[0])).astype(dtype)
        for s in ((m, k), (n, k), (n,), (m, n))
    )
    product = x.astype(np.float64) @ w.T.astype(np.float64)
    sums = Tensor(x) @ Tensor(w).T
    for found, wanted in (
        (sums, product),
        ((sums + Tensor(b)).relu() + Tensor(r), np.maximum(product + b, 0) + r),
        ((sums + Tensor(b)).gelu(), gelu(product + b)),
    ):
        np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-4, atol=1e-5)


def test_results_apart_are_transposed_in_a_loop_after_long_sums() -> None:
    def scratch(k: int, end: Callable[[Tensor], Tensor]) -> int:
        product = memory(128, k) @ memory(2304, k).T
        return ops_of(end(product), AVX512).count(Ops.DEFINE_LOCAL)

    # A panel, the sums of a tile, and what takes long of these.
    assert scratch(768, Tensor.relu) == 2
    assert scratch(768, Tensor.gelu) == 3
    assert scratch(192, Tensor.relu) == 1


def test_what_is_done_with_transposed_results_loads_neighbours() -> None:
    sums = memory(128, 768) @ memory(2304, 768).T
    source, plain = (
        LLVMRenderer(AVX512).render(lower(kernel_of(t), AVX512)[0])
        for t in (sums + memory(2304), sums)
    )
    # Sums are transposed as they come from scratch, so four of the bias are one load for four rows.
    assert source.count("load <4 x float>") == plain.count("load <4 x float>") + 1
    assert source.count("fadd <4 x float>") == 4
    # Rows side by side are one loop with the SIMD lanes of the sum: 32 of them in blocks of four.
    assert re.search(r"icmp slt i64 %\d+, 8\n", source)
