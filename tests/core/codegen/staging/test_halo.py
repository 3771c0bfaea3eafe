"""Slabs: windows that go through scratch, and elements three apart, against plain NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from aster_ml import Context, Tensor
from aster_ml.codegen.apply import apply
from aster_ml.codegen.opts import Opt, OptOps
from aster_ml.codegen.passes import lower, schedule_kernel
from aster_ml.errors import KernelOptError
from aster_ml.target import Target
from aster_ml.uop.ops import Ops
from tests.core.codegen.test_opts import AVX512, CPU, kernel_of, memory, ops_of

CASES = [
    # image, weight, groups, stride, dilation, padding
    ((2, 6, 37, 37), (6, 1, 5, 5), 6, 1, 2, 4),
    ((1, 8, 50, 41), (8, 1, 3, 3), 8, 2, 1, 1),
    ((2, 4, 40, 40), (4, 1, 6, 6), 4, 3, 2, 0),
    ((1, 5, 30, 30), (5, 1, 2, 2), 5, 3, 1, 0),
    ((2, 7, 29, 29), (6, 7, 4, 4), 1, 3, 2, 3),
    ((1, 9, 33, 35), (5, 9, 4, 4), 1, 2, 1, 0),
    ((2, 6, 21, 21), (4, 3, 3, 3), 2, 2, 2, 2),
    ((1, 3, 9, 9), (3, 1, 7, 7), 3, 1, 1, 3),
    ((1, 70, 61, 61), (33, 70, 3, 3), 1, 2, 1, 0),
    ((1, 130, 40, 46), (3, 130, 2, 2), 1, 1, 1, 0),
]


def convolved(
    x: np.ndarray, w: np.ndarray, groups: int, stride: int, dilation: int, padding: int
) -> np.ndarray:
    """The convolution, window step by window step."""
    x = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (padding,) * 2, (padding,) * 2))
    n, _, *sizes = x.shape
    out, each, *kernel = w.shape
    high, wide = [(s - dilation * (k - 1) - 1) // stride + 1 for s, k in zip(sizes, kernel)]
    result = np.zeros((n, groups, out // groups, high, wide))
    for i in range(kernel[0]):
        for j in range(kernel[1]):
            rows, columns = i * dilation, j * dilation
            part = x[:, :, rows : rows + stride * high : stride]
            part = part[..., columns : columns + stride * wide : stride][..., :high, :wide]
            part = part.reshape(n, groups, each, high, wide)
            weight = w[:, :, i, j].reshape(groups, out // groups, each)
            result += np.einsum("ngchw,goc->ngohw", part, weight)
    return result.reshape(n, out, high, wide)


@pytest.mark.parametrize(("image", "weight", "groups", "stride", "dilation", "padding"), CASES)
def test_windows_give_what_numpy_gives(
    image: tuple[int, ...],
    weight: tuple[int, ...],
    groups: int,
    stride: int,
    dilation: int,
    padding: int,
) -> None:
    rng = np.random.default_rng(3)
    x, w = (rng.standard_normal(s, dtype=np.float32) for s in (image, weight))
    found = Tensor(x).conv2d(
        Tensor(w), groups=groups, stride=stride, dilation=dilation, padding=padding
    )
    wanted = convolved(x, w, groups, stride, dilation, padding)
    np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("step", [2, 3, 4, 5])
@pytest.mark.parametrize("size", [48, 67])
def test_every_so_manieth_element_is_found(step: int, size: int) -> None:
    x = np.random.default_rng(1).standard_normal((5, size * step), dtype=np.float32)
    np.testing.assert_array_equal((Tensor(x)[:, ::step] * 2).numpy(), x[:, ::step] * 2)
    y = x.reshape(5, size, step)
    np.testing.assert_allclose(Tensor(y).sum(2).numpy(), y.sum(2), atol=1e-5)


@pytest.mark.parametrize("dtype", ["float32", "bool", "int8"])
@pytest.mark.parametrize("step", [2, 3, 4])
def test_rows_whose_elements_are_used_once_have_no_slab(step: int, dtype: str) -> None:
    """Loads of whole SIMD values are shuffled, and the axis along which results lie stays SIMD."""
    # Whole numbers: sums of them are exact.
    x = np.random.default_rng(2).integers(0, 3, (30, 111, step)).astype(dtype)
    rows = Tensor(x).realize()
    assert Ops.DEFINE_LOCAL not in ops_of(rows.max(2), AVX512)
    np.testing.assert_array_equal(rows.max(2).numpy(), x.max(2))
    np.testing.assert_array_equal(rows.sum(2).numpy(), x.sum(2, dtype=np.int64))


def test_strided_rows_are_loaded_once_and_set_apart_in_a_second_scratch() -> None:
    result = memory(2, 32, 50, 50).conv2d(memory(32, 1, 5, 5), groups=32, stride=2, padding=1)
    assert ops_of(result, AVX512).count(Ops.DEFINE_LOCAL) == 2


def test_a_kernel_without_windows_refuses_a_slab() -> None:
    kernel = schedule_kernel(kernel_of(memory(64, 64) + 1), CPU, ())
    with pytest.raises(KernelOptError, match="windows"):
        apply(kernel, Opt(OptOps.STAGE, 0, how="halo"))


@pytest.mark.parametrize("target", [CPU, AVX512], ids=["avx2", "avx512"])
@pytest.mark.parametrize(
    ("image", "channels", "kernel", "options"),
    [
        ((1, 128, 256, 256), 32, 3, {"stride": 2, "padding": 1}),
        ((2, 256, 112, 112), 32, 3, {"padding": 1}),
        ((1, 256, 112, 112), 8, 2, {"dilation": 2}),
        ((2, 128, 256, 256), 8, 3, {}),
        ((1, 256, 112, 112), 16, 5, {"dilation": 2, "padding": 4}),
    ],
    ids=str,
)
def test_a_slab_has_the_rows_of_one_part(
    image: tuple[int, ...], channels: int, kernel: int, options: dict[str, int], target: Target
) -> None:
    """Scratch lies on the stack: of a large image it holds what few rows of results meet."""
    x, w = memory(*image), memory(channels, image[1], kernel, kernel)
    with Context(WINO=0):
        items = x.conv2d(w, **options).schedule()
    for item in items:
        nodes = lower(item.ast, target)[0].uops
        scratch = [u for u in nodes if u.op is Ops.DEFINE_LOCAL]
        assert sum(u.arg.size * u.dtype.itemsize for u in scratch) <= 1 << 20


def test_more_scratch_than_a_stack_has_is_an_error() -> None:
    x, w = memory(1, 128, 256, 256), memory(32, 128, 3, 3)
    with Context(WINO=0):
        (ast,) = [item.ast for item in x.conv2d(w).schedule()]
    with pytest.raises(
        KernelOptError, match=r"STAGE\(2,1,halo\) want .* bytes of scratch.*4,194,304"
    ):
        lower(ast, AVX512, (Opt(OptOps.STAGE, 2, 1, how="halo"),))
