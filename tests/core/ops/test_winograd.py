"""Winograd's convolutions against PyTorch; how accurate they are; where they are taken by default,
by WINO=1, and that WINO=0 never takes them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aster_ml import Context, Tensor
from aster_ml.dtype import dtypes
from aster_ml.ops.winograd import TRANSFORMS, Way, block_of, blocks_of_sum, winograd, winograd_way
from aster_ml.uop.graph import toposort, without_names
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import ANEW, Ops, RunArg
from tests.core.numerics import check_slopes, leaf, tensor, value

Array = Any
SAME = ((1, 1), (1, 1))


def normal(*shape: int, seed: int = 0) -> Array:
    """Normal numbers in float32."""
    return np.random.default_rng(seed + len(shape)).standard_normal(shape, dtype=np.float32)


def convolved(x: Tensor, w: Tensor, pads: Any, groups: int, way: Way) -> Tensor:
    """The convolution by tiles of a given size."""
    return x._derive_with(winograd(x.uop, w.uop, pads, groups, way), w)


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
CASES: list[tuple[tuple[int, ...], int, int, Any, Way]] = [
    ((1, 5, 8, 8), 7, 1, SAME, Way(4, 1, 1)),
    # Rows of tiles that no image has fill the last block.
    ((2, 16, 9, 13), 32, 1, SAME, Way(4, 1, 2)),
    ((4, 16, 12, 12), 16, 1, SAME, Way(4, 2, 3)),
    ((6, 8, 7, 10), 9, 1, SAME, Way(4, 3, 2)),
    ((3, 12, 10, 6), 6, 3, SAME, Way(4, 1, 3)),
    ((2, 12, 10, 6), 6, 3, SAME, Way(2, 1, 2)),
    ((1, 33, 5, 6), 20, 1, ((0, 0), (0, 0)), Way(4, 1, 1)),
    ((1, 4, 3, 3), 4, 1, ((0, 0), (0, 0)), Way(4, 1, 1)),
    ((1, 4, 1, 17), 4, 1, ((2, 0), (1, 2)), Way(4, 1, 1)),
    ((2, 3, 11, 4), 5, 1, ((0, 2), (1, 0)), Way(2, 1, 4)),
    ((1, 6, 6, 6), 6, 6, SAME, Way(2, 1, 3)),
    ((1, 1, 4, 4), 1, 1, SAME, Way(2, 1, 1)),
    ((8, 2, 2, 2), 3, 1, ((2, 2), (2, 2)), Way(4, 2, 1)),
    ((1, 320, 8, 8), 16, 1, SAME, Way(4, 1, 2)),
    # Several sums of several blocks each: of rows, and of images.
    ((2, 3, 32, 126), 4, 1, SAME, Way(2, 1, 1)),
    ((48, 3, 14, 14), 4, 1, SAME, Way(2, 1, 7)),
]


@pytest.mark.torch
@pytest.mark.parametrize("shape, o, groups, pads, way", CASES)
def test_like_torch_with_gradients(
    shape: tuple[int, ...], o: int, groups: int, pads: Any, way: Way
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


@pytest.mark.parametrize("way", [Way(2, 1, 2), Way(4, 2, 1)])
def test_gradients_are_slopes(way: Way) -> None:
    """Of first and second order, in float64."""
    check_slopes(
        lambda x, w: winograd(x, w, ((1, 0), (0, 1)), 1, way),
        normal(2, 2, 3, 4),
        normal(2, 2, 3, 3),
    )


def both_ways(make: Callable[[], Tensor], setting: int = 1) -> tuple[Tensor, Tensor]:
    """The same with WINO=0 and with WINO=1, or as it is by default."""
    with Context(WINO=0):
        plain = make()
    with Context(WINO=setting):
        return plain, make()


@pytest.mark.parametrize("setting", [-1, 1])
@pytest.mark.parametrize("dtype, limit", [("float32", 2e-5), ("float16", 1e-3), ("bfloat16", 8e-3)])
def test_the_setting_takes_it_where_it_pays(dtype: str, limit: float, setting: int) -> None:
    x, w = Tensor(normal(2, 48, 28, 26)).cast(dtype), Tensor(normal(64, 48, 3, 3)).cast(dtype)
    bias = Tensor(normal(64)).cast(dtype)
    plain, quick = both_ways(lambda: x.conv2d(w, bias, padding=(1, 0)).relu(), setting)
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
    assert without_names(other.uop) is without_names(plain.uop)


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
    assert without_names(other.uop) is without_names(plain.uop)


def test_integers_and_sizes_of_a_variable_are_plain() -> None:
    w = Tensor.empty(64, 64, 3, 3)
    whole = Tensor.empty(1, 64, 56, 56, dtype=dtypes.int32), w.cast(dtypes.int32)
    plain, other = both_ways(lambda: whole[0].conv2d(whole[1]))
    assert without_names(other.uop) is without_names(plain.uop)
    rows = UOp.variable("rows", 20, 56).bind(40)
    x = Tensor.empty(1, 64, 56, 56).shrink((None, None, (0, rows), None))
    plain, other = both_ways(lambda: x.conv2d(w))
    assert without_names(other.uop) is without_names(plain.uop)


def test_shared_values_are_plain() -> None:
    x = Tensor.empty(2, 64, 56, 56).shard(("CPU", "CPU:1"), 0)
    w = Tensor.empty(64, 64, 3, 3).shard(("CPU", "CPU:1"))
    plain, other = both_ways(lambda: x.conv2d(w))
    assert without_names(other.uop) is without_names(plain.uop)


@pytest.mark.parametrize(
    "x, o, default, any_size",
    [
        ((8, 64, 56, 56), 64, Way(2, 1, 4), Way(4, 1, 7)),
        ((1, 64, 56, 56), 64, Way(2, 1, 4), Way(4, 1, 14)),
        ((1, 128, 28, 28), 128, Way(2, 1, 14), Way(4, 1, 7)),
        # The fewer tiles there are, the more it counts that there are 36 weights for each 9.
        ((1, 256, 14, 14), 256, Way(2, 1, 7), Way(2, 1, 7)),
        ((1, 512, 7, 7), 512, None, None),
        ((16, 512, 7, 7), 512, Way(2, 4, 4), Way(4, 4, 2)),
        # With few channels the transforms are too much of it.
        ((32, 32, 24, 24), 32, Way(2, 2, 12), Way(4, 2, 6)),
        ((16, 16, 32, 32), 16, None, Way(4, 4, 8)),
        ((8, 8, 32, 32), 8, None, None),
        ((1, 64, 112, 112), 64, Way(2, 1, 3), Way(4, 1, 4)),
        # 61 rows of tiles: blocks have one that no image has.
        ((1, 128, 122, 122), 128, Way(2, 1, 2), Way(4, 1, 3)),
    ],
)
def test_what_the_cost_says(
    x: tuple[int, ...], o: int, default: Way | None, any_size: Way | None
) -> None:
    nodes = Tensor.empty(*x).uop, Tensor.empty(o, x[1], 3, 3).uop
    assert winograd_way(*nodes, dtypes.float32, SAME, 1, (2,)) == default
    assert winograd_way(*nodes, dtypes.float32, SAME, 1, (2, 4)) == any_size


@given(*[st.integers(1, 300)] * 3, st.integers(1, 2000))
def test_blocks_are_whole_and_small(n: int, th: int, tw: int, channels: int) -> None:
    tile_nbytes = 64 * channels
    images, rows = block_of(n, th, tw, tile_nbytes)
    assert n % images == 0
    assert rows == th or images == 1
    # Rows that no image has: an eighth at most, but where a row is a block.
    padded = -(-th // rows) * rows
    assert padded <= 1.125 * th or th < 16
    # No block is far larger than what stays in a near cache, unless it has few tiles.
    tiles, wanted = images * rows * tw, max((1 << 20) // tile_nbytes, 96)
    assert tiles <= max(2 * wanted, tw) or n * th * tw * tile_nbytes <= 4 << 20


def test_a_setting_that_changes_meets_no_stale_kernel() -> None:
    x, w = Tensor(normal(1, 64, 28, 28)).realize(), Tensor(normal(64, 64, 3, 3)).realize()

    def kernels() -> int:
        return len(x.conv2d(w, padding=1).schedule())

    counts = []
    for setting in (0, 1, 0, -1):
        with Context(WINO=setting):
            counts.append(kernels())
    # Padding that is stored, and the product.
    assert counts == [2, 6, 2, 6]


def test_a_convolution_and_its_gradients_run_block_by_block() -> None:
    """What is made of a block stays with it: in scratch, and on the processor that made it."""
    x, w = Tensor.empty(8, 64, 56, 56), Tensor.empty(64, 64, 3, 3)
    y = x.realize().conv2d(w.realize(), padding=1)
    (run,) = [item.ast for item in y.schedule() if isinstance(item.ast.arg, RunArg)]
    # 8 images in 7 blocks each: rows of tiles, tiles, products, and results.
    assert ([size for _, size, _ in run.arg.axes], len(run.src)) == ([8, 7], 4)
    gradients = x.conv2d(w, padding=1).gradient(x, w, gradient=Tensor.empty(*y.shape).realize())
    items = gradients[0].schedule(*gradients[1:])
    (run,) = [item.ast for item in items if isinstance(item.ast.arg, RunArg)]
    # Sums of the gradient by the weights are those of an image, so that threads share out images.
    assert ([size for _, size, _ in run.arg.axes], run.arg.shared) == ([8, 7], 1)
    assert sum(run.arg.scratch) < 2 << 20


# how accurate tiles of 2 are, which is why they are the default


def plainly(x: Tensor, w: Tensor) -> Tensor:
    """The convolution in the plain way."""
    with Context(WINO=0):
        return x.conv2d(w, padding=1)


def root_mean_square(errors: Array) -> float:
    """Of all elements."""
    return float(np.sqrt(np.mean(np.square(errors, dtype=np.float64))))


@settings(max_examples=6, deadline=None)
@given(
    n=st.integers(1, 6),
    c=st.sampled_from((16, 32, 48, 100, 160)),
    o=st.integers(16, 48),
    sizes=st.tuples(st.integers(5, 24), st.integers(5, 24)),
    kind=st.sampled_from(("normal", "relu", "positive")),
    seed=st.integers(0, 1000),
)
def test_tiles_of_2_are_as_accurate_as_the_plain_way(
    n: int, c: int, o: int, sizes: tuple[int, int], kind: str, seed: int
) -> None:
    """Forward and both gradients, against float64."""
    arrays = [normal(n, c, *sizes, seed=seed), normal(o, c, 3, 3, seed=seed + 1)]
    arrays.append(normal(n, o, *sizes, seed=seed + 2))
    if kind == "relu":
        arrays[0] = np.maximum(arrays[0], 0)
    elif kind == "positive":
        arrays = [np.abs(a) for a in arrays]

    def results(conv: Callable[[Tensor, Tensor], Tensor], dtype: str) -> list[Array]:
        x, w, g = [Tensor(a.astype(dtype)) for a in arrays]
        y = conv(x, w)
        return [t.numpy().astype(np.float64) for t in (y, *y.gradient(x, w, gradient=g))]

    exact = results(plainly, "float64")
    plain = results(plainly, "float32")
    rows = -(-sizes[0] // 4)
    tiled = results(lambda x, w: convolved(x, w, SAME, 1, Way(2, 1, rows)), "float32")
    terms = (9 * c, 9 * o, n * sizes[0] * sizes[1])
    for what, k, a, b, want in zip("yxw", terms, tiled, plain, exact, strict=True):
        # Sums of a few hundred terms have errors near those of single operations.
        rounding = 2.0**-24 * root_mean_square(want)
        error, by_plain = root_mean_square(a - want), root_mean_square(b - want)
        limit = 1.25 * by_plain + rounding * (2 if k < 512 else 1)
        if what == "w":
            # Some of its plain kernels have several accumulators, and a third of the error of the
            # others: terms of either sign that are added up in order, each sum off by a third of
            # a rounding squared, are off by this.
            limit = max(limit, rounding * math.sqrt(k / 6))
        assert error <= limit, f"{what}: {error}, the plain way {by_plain}"


@pytest.mark.parametrize("shape", [(8, 32, 56, 56), (32, 16, 26, 26)])
def test_long_sums_of_the_weights_gradient_are_sums_of_sums(shape: tuple[int, ...]) -> None:
    """Which keeps the errors of a large batch as small as the plain way's."""
    x, w = Tensor(normal(*shape)), Tensor(normal(16, shape[1], 3, 3))
    g = Tensor(normal(shape[0], 16, *shape[2:], seed=3))
    exact = plainly(x.double(), w.double()).gradient(w, gradient=g.double())
    plain = plainly(x, w).gradient(w, gradient=g)
    tiled = convolved(x, w, SAME, 1, Way(2, 1, shape[2] // 2)).gradient(w, gradient=g)
    want = exact[0].numpy()
    errors = [root_mean_square(y[0].numpy() - want) for y in (tiled, plain)]
    assert errors[0] < 1.25 * errors[1]


def test_blocks_of_a_sum_are_divisors_of_those_there_are() -> None:
    """Of rows first, then of images: up to 1,024 tiles, an eighth of all where sums are small."""
    large, small = 8 << 20, 1 << 10
    assert blocks_of_sum(8, 7, 112, large) == (1, 7)
    assert blocks_of_sum(4, 2, 98, large) == (4, 2)
    assert blocks_of_sum(16, 1, 98, large) == (8, 1)
    assert blocks_of_sum(8, 2, 98, small) == (1, 2)
    assert blocks_of_sum(128, 1, 36, small) == (16, 1)
    assert blocks_of_sum(1, 1, 3, small) == (1, 1)
    # Three blocks of too many tiles for one sum, and of too few to be one each.
    assert blocks_of_sum(1, 1543, 2, large) is None
    assert blocks_of_sum(1, 1, 2000, large) is None


def test_whole_numbers_stay_exact() -> None:
    """As in cellular automata: halves of weights are what a transform makes of them."""
    rng = np.random.default_rng(0)
    x = rng.integers(-50, 50, (2, 40, 12, 11)).astype(np.float32)
    w = rng.integers(-50, 50, (8, 40, 3, 3)).astype(np.float32)
    have = convolved(Tensor(x), Tensor(w), SAME, 1, Way(2, 1, 3)).numpy()
    np.testing.assert_array_equal(have, plainly(Tensor(x), Tensor(w)).numpy())


def test_an_inf_reaches_the_results_of_its_tiles_alone() -> None:
    x = normal(1, 16, 12, 12)
    x[0, 3, 6, 6] = np.inf
    w = normal(8, 16, 3, 3)
    have = convolved(Tensor(x), Tensor(w), SAME, 1, Way(2, 1, 3)).numpy()
    far = np.ones((12, 12), bool)
    far[4:8, 4:8] = False
    assert not np.isfinite(have[..., ~far][..., 5:]).all()
    np.testing.assert_allclose(
        have[..., far], plainly(Tensor(x), Tensor(w)).numpy()[..., far], rtol=1e-3, atol=1e-4
    )


def test_transformed_inputs_are_not_kept_for_gradients() -> None:
    """Large ones are made once more: what is kept is the input, not four times as much."""
    x, w = Tensor.empty(4, 64, 56, 56), Tensor.empty(64, 64, 3, 3)
    y = convolved(x, w, SAME, 1, Way(2, 1, 4))
    (dw,) = y.sum().gradient(w)
    marked = [u for u in toposort(y.uop) if u.op is Ops.CONTIGUOUS_BACKWARD and u.arg == ANEW]
    assert len(marked) == 1
    assert marked[0] not in toposort(dw.uop)
    # Small ones stay in a cache.
    small = convolved(Tensor.empty(1, 16, 8, 8), Tensor.empty(16, 16, 3, 3), SAME, 1, Way(2, 1, 4))
    assert all([u.arg is None for u in toposort(small.uop) if u.op is Ops.CONTIGUOUS_BACKWARD])
