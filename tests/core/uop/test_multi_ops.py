"""Operations on values that lie on several devices: the same results and gradients as on one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from aster_ml import Tensor

TWO, THREE = ("CPU:1", "CPU:2"), ("CPU:1", "CPU:2", "CPU:3")
LAYOUTS = (0, 1, None)
RNG = np.random.default_rng(7)
X = RNG.standard_normal((6, 9)).astype(np.float32)
W = RNG.standard_normal((9, 6)).astype(np.float32)
INTS = RNG.integers(-9, 9, (6, 9)).astype(np.int32)

Function = Callable[[Any, Any], Any]

FUNCTIONS: dict[str, Function] = {
    "numbers alone": lambda a, b: (a * 3).sum() + b.sum(),
    "product": lambda a, b: ((a @ b).tanh() ** 2).sum(),
    "elementwise": lambda a, b: (a.exp() * b.T.sigmoid() / (a * a + 1)).sum(),
    "where": lambda a, b: (a > b.T).where(a, b.T * 2).sum(),
    "softmax": lambda a, b: ((a @ b).softmax(0) * b[:6]).sum(),
    "gather": lambda a, b: (a[[2, 0, 5, 5]] * a[:, [1] * 9][:4]).sum() + b[1:4].square().sum(),
    "one row": lambda a, b: (a[4] * b[:, 2]).sum() + a[-1, 3] * b[0, 0],
    "steps": lambda a, b: (a[::2, 1::3] * b[1::3, ::2].T).sum(),
    "padding": lambda a, b: (a.pad(((1, 0), (0, 2))).flip(0).T[:9, :6] * b.flip(0, 1)).sum(),
    "permuted": lambda a, b: (a.permute(1, 0).reshape(3, 3, 6) * b.reshape(3, 3, 6)).sum(),
    "expanded": lambda a, b: (a.unsqueeze(1).expand(6, 4, 9) * a.unsqueeze(1)).sum() + b.mean(),
    "maximum": lambda a, b: (a.max(0) * b.max(1)).sum() + a.prod(1).sum() + b.min(),
    "joined": lambda a, b: (a.cat(b.T, dim=0).cumsum(0) ** 2).mean(),
    "stacked": lambda a, b: (a.stack(b.T, dim=1) ** 2).mean(),
    "normalised": lambda a, b: (a.layernorm() * b.T.std(0)).sum(),
    "elsewhere": lambda a, b: (a * 2).to("CPU:1").sum().to("CPU") + b.exp().mean().to("CPU"),
    "sorted": lambda a, b: (a.sort(0)[0] * b.T.sort(1)[0]).sum(),
}


def value_and_gradients(f: Function, layouts: Any, devices: tuple[str, ...]) -> list[Any]:
    """The result, the gradients of what `f` is given and of what that was made of."""
    whole = [Tensor(X, requires_grad=True), Tensor(W, requires_grad=True)]
    given = whole
    if layouts is not None:
        given = [t.shard(devices, axis) for t, axis in zip(whole, layouts, strict=True)]
    result = f(*given)
    result.backward()
    for t in (*whole, *given):
        assert t.grad is not None
        assert t.grad.device == t.device
    return [result.item(), *[t.grad.numpy() for t in (*given, *whole) if t.grad is not None]]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_result_and_gradients_are_those_of_one_device(name: str) -> None:
    want = value_and_gradients(FUNCTIONS[name], None, ())
    for layouts in ((0, None), (None, 1), (0, 1), (1, 0), (1, 1)):
        got = value_and_gradients(FUNCTIONS[name], layouts, THREE)
        for g, w in zip(got, want, strict=True):
            np.testing.assert_allclose(g, w, rtol=2e-4, atol=2e-5, err_msg=str(layouts))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("axis", [0, 1, None])
def test_reductions_of_ints_and_bools(layout: int | None, axis: int | None) -> None:
    x = Tensor(INTS).shard(THREE, layout)
    np.testing.assert_array_equal(x.sum(axis).numpy(), INTS.sum(axis))
    np.testing.assert_array_equal(x.max(axis).numpy(), INTS.max(axis))
    np.testing.assert_array_equal(x.min(axis).numpy(), INTS.min(axis))
    np.testing.assert_array_equal((x > 3).any(axis).numpy(), (INTS > 3).any(axis))
    np.testing.assert_array_equal((x > -9).all(axis).numpy(), (INTS > -9).all(axis))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_argmax_and_search_along_either_axis(layout: int | None) -> None:
    x = Tensor(X).shard(THREE, layout)
    np.testing.assert_array_equal(x.argmax(0).numpy(), X.argmax(0))
    np.testing.assert_array_equal(x.argmax(1).numpy(), X.argmax(1))
    values, places = x.topk(2, 1)
    np.testing.assert_array_equal(places.numpy(), np.argsort(-X, 1)[:, :2])
    np.testing.assert_array_equal(values.numpy(), -np.sort(-X, 1)[:, :2])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_gather_and_scatter(layout: int | None) -> None:
    index = RNG.integers(0, 6, (6, 9)).astype(np.int32)
    x = Tensor(X).shard(THREE, layout)
    for at in LAYOUTS:
        i = Tensor(index).shard(THREE, at)
        np.testing.assert_array_equal(x.gather(0, i).numpy(), np.take_along_axis(X, index, 0))
        want = np.zeros_like(X)
        for row in range(6):
            for column in range(9):
                want[index[row, column], column] += X[row, column]
        got = Tensor.zeros(6, 9).shard(THREE, None).scatter_reduce(0, i, x, "sum")
        np.testing.assert_allclose(got.numpy(), want, rtol=1e-5, atol=1e-6)


def test_bits_survive_the_way_there_and_back() -> None:
    values = np.array([-0.0, np.nan, np.inf, -np.inf, 1e-45, 5.0], dtype=np.float32)
    for axis in (0, None):
        back = Tensor(values).shard(TWO, axis).to("CPU").numpy()
        assert back.tobytes() == values.tobytes()
    flags = np.array([True, False, False, True])
    np.testing.assert_array_equal(Tensor(flags).shard(TWO, 0).numpy(), flags)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int8", "uint64", "float64"])
def test_dtypes_keep_their_results(dtype: str) -> None:
    x = Tensor(np.arange(8)).cast(dtype)
    y = x.shard(TWO, 0)
    assert y.dtype is x.dtype
    assert (y * 2).sum().dtype is (x * 2).sum().dtype
    assert (y * 2).sum().item() == (x * 2).sum().item() == 56
    assert (y.flip(0) + y).tolist() == [7] * 8


def test_bitcast_between_widths_where_the_axis_divides() -> None:
    x = np.arange(8, dtype=np.int32)
    np.testing.assert_array_equal(
        Tensor(x).shard(TWO, 0).bitcast("uint8").numpy(), x.view(np.uint8)
    )
    narrow = np.arange(4, dtype=np.uint8)
    got = Tensor(narrow).shard(TWO, 0).bitcast("uint32").numpy()
    np.testing.assert_array_equal(got, narrow.view(np.uint32))


@pytest.mark.parametrize("where", ["image", "weight", "both"])
def test_convolution_and_pooling(where: str) -> None:
    image, weight = RNG.standard_normal((4, 4, 7, 7)), RNG.standard_normal((6, 4, 3, 3))
    x, w = Tensor(image.astype(np.float32)), Tensor(weight.astype(np.float32))
    want = x.conv2d(w, padding=1).max_pool2d((2, 2)).numpy()
    on_images, on_filters = where != "weight", where != "image"
    xs = x.shard(TWO, 0 if on_images else None)
    ws = w.shard(TWO, (0 if not on_images else 1) if on_filters else None)
    got = xs.conv2d(ws, padding=1).max_pool2d((2, 2))
    np.testing.assert_allclose(got.numpy(), want, rtol=1e-4, atol=1e-4)


def test_many_elements_are_folded_in_parts_by_several_devices() -> None:
    x = RNG.standard_normal((4, 300_000)).astype(np.float32)
    devices = ("CPU", "CPU:1", "CPU:2", "CPU:3")
    got = Tensor(x).shard(devices, 0).sum(0)
    assert got.uop.axis is None
    np.testing.assert_allclose(got.numpy(), x.sum(0), rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(got.to("CPU:3").numpy(), got.to("CPU").numpy())


def test_folded_results_are_the_same_on_every_device() -> None:
    x = RNG.standard_normal((3, 1000)).astype(np.float32)
    total = Tensor(x).shard(THREE, 0).sum(0).realize()
    first, *others = [Tensor(part, device=part.device).numpy() for part in total.uop.src]
    for other in others:
        assert first.tobytes() == other.tobytes()
