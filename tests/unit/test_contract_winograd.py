"""Winograd's convolutions against PyTorch; where WINO=1 takes them, and that WINO=0 never does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from aster_ml import Context, Tensor
from aster_ml.dtype import dtypes
from aster_ml.mixin.winograd import TRANSFORMS, winograd, winograd_way
from aster_ml.uop.graph import toposort
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import Ops
from tests.unit.numerics import check_slopes, leaf, tensor, value

Array = Any
SAME = ((1, 1), (1, 1))


def normal(*shape: int, seed: int = 0) -> Array:
    """Normal numbers in float32."""
    return np.random.default_rng(seed + len(shape)).standard_normal(shape, dtype=np.float32)


def convolved(x: Tensor, w: Tensor, pads: Any, groups: int, way: tuple[int, int]) -> Tensor:
    """The convolution by tiles of a given size."""
    return x.derive_with(winograd(x.uop, w.uop, pads, groups, way), w)


def assert_close(have: Array, want: Array, limit: float, what: str) -> None:
    """The largest difference against the largest value."""
    assert have.shape == want.shape
    error = np.abs(have - want).max() / np.abs(want).max()
    assert error < limit, f"{what}: relative error {error}"


@pytest.mark.parametrize("m", TRANSFORMS)
def test_transforms_are_exact_in_float64(m: int) -> None:
    d, g = normal(m + 2).astype(np.float64), normal(3).astype(np.float64)

    def parts(array: Array) -> list[UOp]:
        return [leaf(array[i : i + 1]) for i in range(len(array))]

    for_inputs, for_weights, for_results = TRANSFORMS[m]
    products = [
        a.alu(Ops.MUL, b) for a, b in zip(for_inputs(parts(d)), for_weights(parts(g)), strict=True)
    ]
    have = np.concatenate([value(y) for y in for_results(products)])
    np.testing.assert_allclose(have, np.correlate(d, g, "valid"), rtol=1e-12)


# x, channels of the result, groups, padding, way
CASES: list[tuple[tuple[int, ...], int, int, Any, tuple[int, int]]] = [
    ((1, 5, 8, 8), 7, 1, SAME, (4, 1)),
    ((2, 16, 9, 13), 32, 1, SAME, (4, 1)),
    ((4, 16, 12, 12), 16, 1, SAME, (4, 4)),
    ((6, 8, 7, 10), 9, 1, SAME, (4, 3)),
    ((3, 12, 10, 6), 6, 3, SAME, (4, 1)),
    ((2, 12, 10, 6), 6, 3, SAME, (2, 2)),
    ((1, 33, 5, 6), 20, 1, ((0, 0), (0, 0)), (4, 1)),
    ((1, 4, 3, 3), 4, 1, ((0, 0), (0, 0)), (4, 1)),
    ((1, 4, 1, 17), 4, 1, ((2, 0), (1, 2)), (4, 1)),
    ((2, 3, 11, 4), 5, 1, ((0, 2), (1, 0)), (2, 1)),
    ((1, 6, 6, 6), 6, 6, SAME, (2, 1)),
    ((1, 1, 4, 4), 1, 1, SAME, (2, 1)),
    ((8, 2, 2, 2), 3, 1, ((2, 2), (2, 2)), (4, 8)),
    ((1, 320, 8, 8), 16, 1, SAME, (4, 1)),
]


@pytest.mark.torch
@pytest.mark.parametrize("shape, o, groups, pads, way", CASES)
def test_like_torch_with_gradients(
    shape: tuple[int, ...], o: int, groups: int, pads: Any, way: tuple[int, int]
) -> None:
    torch = pytest.importorskip("torch")
    xs, ws = normal(*shape), normal(o, shape[1] // groups, 3, 3, seed=1)
    x, w = Tensor(xs), Tensor(ws)
    y = convolved(x, w, pads, groups, way)
    gs = normal(*y.shape, seed=2)
    dx, dw = y.gradient(x, w, gradient=Tensor(gs))
    xt, wt = torch.tensor(xs, requires_grad=True), torch.tensor(ws, requires_grad=True)
    padded = torch.nn.functional.pad(xt, (*pads[1], *pads[0]))
    yt = torch.nn.functional.conv2d(padded, wt, groups=groups)
    yt.backward(torch.tensor(gs))
    assert_close(y.numpy(), yt.detach().numpy(), 2e-5, "forward")
    assert_close(dx.numpy(), xt.grad.numpy(), 2e-5, "gradient of the input")
    assert_close(dw.numpy(), wt.grad.numpy(), 2e-5, "gradient of the weights")


@pytest.mark.parametrize("way", [(2, 1), (4, 2)])
def test_gradients_are_slopes(way: tuple[int, int]) -> None:
    """Of first and second order, in float64."""
    check_slopes(
        lambda x, w: winograd(x, w, ((1, 0), (0, 1)), 1, way),
        normal(2, 2, 3, 4),
        normal(2, 2, 3, 3),
    )


def both_ways(make: Callable[[], Tensor]) -> tuple[Tensor, Tensor]:
    """The same with WINO=0 and with WINO=1."""
    with Context(WINO=0):
        plain = make()
    with Context(WINO=1):
        return plain, make()


@pytest.mark.parametrize("dtype, limit", [("float32", 2e-5), ("float16", 1e-3), ("bfloat16", 8e-3)])
def test_the_setting_takes_it_where_it_pays(dtype: str, limit: float) -> None:
    x, w = Tensor(normal(2, 48, 28, 26)).cast(dtype), Tensor(normal(64, 48, 3, 3)).cast(dtype)
    bias = Tensor(normal(64)).cast(dtype)
    plain, quick = both_ways(lambda: x.conv2d(w, bias, padding=(1, 0)).relu())
    assert quick.uop is not plain.uop
    assert quick.dtype is plain.dtype
    # Products are added up in float32, as the plain way does.
    assert {u.dtype for u in toposort(quick.uop) if u.op is Ops.REDUCE} == {dtypes.float32}
    want = plain.cast(dtypes.float32).numpy()
    assert_close(quick.cast(dtypes.float32).numpy(), want, limit, dtype)


CONFIGS: list[dict[str, Any]] = [
    {"stride": 2}, {"stride": (1, 2)}, {"dilation": 2}, {"padding": -1}, {"groups": 64},
]  # fmt: skip


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_the_plain_way_is_left_as_it_is(config: dict[str, Any]) -> None:
    x = tensor(normal(1, 64, 56, 56))
    w = tensor(normal(64, 64 // config.get("groups", 1), 3, 3))
    plain, other = both_ways(lambda: x.conv2d(w, **config))
    assert other.uop is plain.uop


@pytest.mark.parametrize(
    "x, w",
    [
        ((1, 64, 56, 56), (64, 64, 5, 5)),
        ((1, 64, 56, 56), (64, 64, 1, 1)),
        ((1, 64, 56, 56), (64, 64, 3)),
        ((1, 3, 224, 224), (64, 3, 3, 3)),
        ((1, 64, 8, 8), (64, 64, 3, 3)),
        ((1, 512, 7, 7), (512, 512, 3, 3)),
    ],
)
def test_other_windows_and_little_work_are_plain(x: Any, w: Any) -> None:
    if len(w) == 3:
        x = x[:3]
    a, b = Tensor.empty(*x), Tensor.empty(*w)
    plain, other = both_ways(lambda: a.conv2d(b))
    assert other.uop is plain.uop


def test_integers_and_sizes_of_a_variable_are_plain() -> None:
    w = Tensor.empty(64, 64, 3, 3)
    whole = Tensor.empty(1, 64, 56, 56, dtype=dtypes.int32), w.cast(dtypes.int32)
    plain, other = both_ways(lambda: whole[0].conv2d(whole[1]))
    assert other.uop is plain.uop
    rows = UOp.variable("rows", 20, 56).bind(40)
    x = Tensor.empty(1, 64, 56, 56).shrink((None, None, (0, rows), None))
    plain, other = both_ways(lambda: x.conv2d(w))
    assert other.uop is plain.uop


def test_shared_values_are_plain() -> None:
    x = Tensor.empty(2, 64, 56, 56).shard(("CPU", "CPU:1"), 0)
    w = Tensor.empty(64, 64, 3, 3).shard(("CPU", "CPU:1"))
    plain, other = both_ways(lambda: x.conv2d(w))
    assert other.uop is plain.uop


@pytest.mark.parametrize(
    "x, o, way",
    [
        ((8, 64, 56, 56), 64, (4, 8)),
        ((1, 64, 56, 56), 64, (4, 1)),
        ((1, 128, 28, 28), 128, (4, 1)),
        # The fewer tiles there are, the more it counts that there are 36 weights for each 9.
        ((1, 256, 14, 14), 256, (2, 1)),
        ((1, 512, 7, 7), 512, None),
        ((16, 512, 7, 7), 512, (4, 1)),
        ((32, 32, 24, 24), 32, (4, 2)),
        ((1, 16, 56, 56), 16, None),
    ],
)
def test_what_the_cost_says(x: tuple[int, ...], o: int, way: tuple[int, int] | None) -> None:
    nodes = Tensor.empty(*x).uop, Tensor.empty(o, x[1], 3, 3).uop
    assert winograd_way(*nodes, dtypes.float32, SAME, 1) == way


def test_a_setting_that_changes_meets_no_stale_kernel() -> None:
    x, w = Tensor(normal(1, 64, 28, 28)).realize(), Tensor(normal(64, 64, 3, 3)).realize()

    def kernels() -> int:
        return len(x.conv2d(w, padding=1).schedule())

    counts = []
    for setting in (0, 1, 0, 1):
        with Context(WINO=setting):
            counts.append(kernels())
    # Padding that is stored, and the product.
    assert counts == [2, 6, 2, 6]


def test_parts_of_a_batch_use_the_same_kernels() -> None:
    x, w = Tensor.empty(4, 64, 28, 28), Tensor.empty(64, 64, 3, 3)
    items = convolved(x.realize(), w.realize(), SAME, 1, (4, 4)).schedule()
    different = {item.ast for item in items}
    # 5 for each part, of which the first reads at a place of its own; the weights, and what puts
    # the parts together.
    assert (len(items), len(different)) == (4 * 5 + 2, 4 + 4 + 2)
