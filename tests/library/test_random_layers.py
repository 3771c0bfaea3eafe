"""Layers of any size give what NumPy gives, with their gradients, on one thread and on two."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from aster_ml import Context, Tensor
from aster_ml.dtype import dtypes
from tests.fuzz.budget import check_all, draws
from tests.library.random_layers import Draw, Layer, draw_layer, with_gradients
from tests.oracle import evaluate


def check_layer(layer: Layer, together: bool = True) -> None:
    """The results of kernels beside those of the oracle: of all at once, or of one at a time."""
    wanted = [np.asarray(evaluate(t.uop), dtype=np.float64) for t in layer.results]
    if together:
        Tensor.realize(*layer.results)
    for number, (t, want) in enumerate(zip(layer.results, wanted, strict=True)):
        size = max(float(np.abs(want).max(initial=0.0)), 1.0)
        np.testing.assert_allclose(
            t.cast(dtypes.float64).numpy(), want, rtol=layer.tolerance,
            atol=layer.tolerance * size, err_msg=f"result {number} of {layer.text}",
        )  # fmt: skip


@pytest.mark.parametrize("settings", [{"THREADS": 1}, {"THREADS": 2}, {"ISA": "avx2"}], ids=str)
def test_layers_are_right(
    settings: dict[str, Any], record_property: Callable[[str, str], None]
) -> None:
    def check(seed: int) -> None:
        with Context(**settings):
            check_layer(draw_layer(seed), together=seed % 4 < 2)

    check_all(f"layers with {settings}", draws(10, 2000), check, record_property)


# found by more seeds than these


@pytest.mark.parametrize("kernel, stride, side", [(2, 2, 11), (2, 2, 13), (1, 2, 9), (3, 3, 14)])
def test_rows_that_fill_a_slab_each_stay_apart(kernel: int, stride: int, side: int) -> None:
    """Windows that share no row: two rows of results at once would share one slab."""
    draw = Draw(1)
    x, w = draw.integers(1, 17, side, side), draw.integers(3, 17, kernel, kernel)
    with Context(THREADS=1):
        check_layer(Layer("convolution", [x.conv2d(w, stride=stride)]))


@pytest.mark.parametrize("dtype", ["int8", "bfloat16"])
@pytest.mark.parametrize("to", ["float32", "int32"])
def test_words_are_used_where_their_sums_are_wanted(dtype: str, to: str) -> None:
    """int8 that is added up in float32 is no matter for an instruction that adds up bfloat16."""
    draw = Draw(2)
    x, w = draw.integers(1, 11, 15, 15, dtype=dtype), draw.integers(8, 11, 1, 1, dtype=dtype)
    a, b = draw.integers(40, 33, dtype=dtype), draw.integers(33, 50, dtype=dtype)
    check_layer(Layer("convolution", [x.cast(to).conv2d(w.cast(to)), a.cast(to) @ b.cast(to)]))


@pytest.mark.parametrize("shape", [(4, 3), (10, 2), (2, 4), (16, 2)])
def test_loops_around_rows_in_scratch_are_ordered(shape: tuple[int, int]) -> None:
    draw = Draw(3)
    x, w = draw.normal(*shape), draw.normal(shape[1], shape[1])
    y = x
    for _ in range(3):
        y = (y @ w).tanh() + x
    check_layer(
        Layer("recurrent", with_gradients(y, draw.normal(*shape), x, w), 1e-4), together=False
    )


def test_windows_whose_steps_are_simd_lanes_are_no_loops() -> None:
    draw = Draw(4)
    x, w = draw.integers(2, 1, 4, 4), draw.integers(1, 8, 4, 4)
    y = x.conv_transpose2d(w, stride=2, padding=1)
    check_layer(Layer("transposed convolution", with_gradients(y, draw.integers(*y.shape), x, w)))
