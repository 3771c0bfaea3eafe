"""Rewrites that change NaN, infinities or signs of zeros: each is done, and with EXACT=1 is not.

The rows are those of the table in docs/reference/floats.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from aster_ml import Context, Tensor, TinyJit

INF, NAN = math.inf, math.nan


def slope(f: Callable[[Tensor], Tensor], x: float, gradient: float) -> list[float]:
    """The gradient of `f` at a number, along one that is stored."""
    t = Tensor([x] * 3, requires_grad=True)
    return f(t).gradient(t, gradient=Tensor([gradient] * 3))[0].tolist()[:1]


def sum_slope(a: float, g: float) -> list[float]:
    """Of the sum of 16 products with a number."""
    t = Tensor([1.0], requires_grad=True)
    return (t.expand(16) * a).gradient(t, gradient=Tensor([g] * 16))[0].tolist()


def padded_product() -> list[float]:
    """A convolution of mostly padding, whose weight is infinite where the image is not."""
    weight = np.ones((64, 32, 7, 7), np.float32)
    weight[:, :, 0, 0] = INF
    x = Tensor.ones(1, 32, 7, 7).contiguous().realize()
    return x.conv2d(Tensor(weight), padding=6).numpy()[0, 0, 0, :1].tolist()


def tile_of_infinity() -> list[float]:
    """A convolution whose image has an infinity beside what is asked for."""
    image = np.ones((1, 64, 28, 28), np.float32)
    image[0, :, 0, 0] = INF
    weight = np.ones((64, 64, 3, 3), np.float32)
    return Tensor(image).conv2d(Tensor(weight), padding=1).numpy()[0, 0, 1, :1].tolist()


ROWS: dict[str, tuple[Callable[[], list[float]], list[float], list[float]]] = {
    "inf * 0": (lambda: (Tensor([INF]) * 0).tolist(), [0.0], [NAN]),
    "nan * 0": (lambda: (Tensor([NAN]) * 0.0).tolist(), [0.0], [NAN]),
    "0 * -1": (lambda: (Tensor.zeros(1) * Tensor([-1.0])).tolist(), [0.0], [-0.0]),
    "-0 + 0": (lambda: (Tensor([-0.0]) + 0).tolist(), [-0.0], [0.0]),
    "0 + -0": (lambda: (0.0 + Tensor([-0.0])).tolist(), [-0.0], [0.0]),
    "-0 - -0": (lambda: (Tensor([-0.0]) - -0.0).tolist(), [-0.0], [0.0]),
    "half -0 + 0": (lambda: (Tensor([-0.0], dtype="float16") + 0).tolist(), [-0.0], [0.0]),
    "gradient * 0": (lambda: slope(lambda x: x * 0, 1.0, INF), [0.0], [NAN]),
    "0 * slope": (
        lambda: Tensor.ones(1).mul(Tensor([INF])).sum().item() and zero_along(INF), [0.0], [NAN],
    ),
    "factors": (lambda: slope(lambda x: x * 0.1 * 10.0, 1.0, 3e38), [float(np.float32(3e38))],
                [INF]),
    "total": (lambda: sum_slope(0.01, 1e38), [INF], [float(np.float32(1.6e37))]),
    "trips": (padded_product, [32.0], [NAN]),
    "winograd": (tile_of_infinity, [NAN], [INF]),
}  # fmt: skip


def zero_along(factor: float) -> list[float]:
    """The gradient of a product along 0 everywhere."""
    t = Tensor([1.0], requires_grad=True)
    return (t * Tensor([factor])).gradient(t, gradient=Tensor.zeros(1))[0].tolist()


def is_same(got: list[float], want: list[float]) -> bool:
    """Whether numbers are equal, with the signs of zeros."""
    pairs = zip(got, want, strict=True)
    return all(
        [(math.isnan(g) and math.isnan(w)) or ((g == w or abs(g - w) < 1e-6 * abs(w))
         and math.copysign(1, g) == math.copysign(1, w)) for g, w in pairs]
    )  # fmt: skip


@pytest.mark.parametrize("name", ROWS)
def test_rewrites_of_floats(name: str) -> None:
    """Twice, so that what the other setting left in a cache is met."""
    compute, folded, exact = ROWS[name]
    for _ in range(2):
        got = compute()
        assert is_same(got, folded), got
        with Context(EXACT=1):
            got = compute()
        assert is_same(got, exact), got


@pytest.mark.parametrize("c", [-0.0, 0.0, 1.0])
def test_rewrites_that_keep_every_float(c: float) -> None:
    x = Tensor([-0.0, 0.0, INF, -INF, NAN, 1.0])
    signed = [x + c, c + x] if math.copysign(1, c) < 0 else [x - c]
    for value in [x * c, x / c, x**c, x.neg().neg()] if c else signed:
        got = value.numpy()
        assert np.array_equal(got, x.numpy(), equal_nan=True)
        assert np.array_equal(np.signbit(got[:2]), [True, False])


def test_a_jitted_function_is_recorded_anew() -> None:
    @TinyJit
    def f(x: Tensor) -> Tensor:
        return (x * 0).realize()

    x = Tensor([INF]).realize()
    for _ in range(2):
        assert [f(x).item() for _ in range(4)] == [0.0] * 4
        with Context(EXACT=1):
            assert all([math.isnan(f(x).item()) for _ in range(4)])


EVERY = [0.0, -0.0, 1.0, -1.0, 2.0, 0.5, 3.0, INF, -INF, NAN, 1e-45, -1e-40, 2.0**126, 3.4e38]
OPERATIONS: dict[str, Callable[[Tensor, Tensor | float], Tensor]] = {
    "+": lambda x, y: x + y,
    "-": lambda x, y: x - y,
    "*": lambda x, y: x * y,
    "/": lambda x, y: x / y,
    "**": lambda x, y: x**y,
    "maximum": lambda x, y: x.maximum(y),
    "minimum": lambda x, y: x.minimum(y),
    "<": lambda x, y: (x < y).cast("float32"),
    "==": lambda x, y: x.eq(y).cast("float32"),
    "where": lambda x, y: (x > 0).where(y, x),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_numbers_are_what_memory_would_be(name: str) -> None:
    """With every number on either side, as one that folds and as memory, which does not."""
    f = OPERATIONS[name]
    data = np.array(EVERY, np.float32)
    with Context(EXACT=1):
        x = Tensor(data).realize()
        # A power of 0.5 is a root, of -0.0 and -inf too (docs/reference/floats.md).
        for c in [c for c in EVERY if name != "**" or c != 0.5]:
            memory = Tensor(np.full(len(EVERY), c, np.float32)).realize()
            folded = [f(x, c), f(x, Tensor.full((len(EVERY),), c)), f(Tensor.full_like(x, c), x)]
            plain = [f(x, memory), f(x, memory), f(memory, x)]
            for got, want in [(g.numpy(), p.numpy()) for g, p in zip(folded, plain, strict=True)]:
                # Powers of small whole numbers are products, with roundings of their own.
                near = np.isclose(got, want, rtol=1e-6, equal_nan=True) if name == "**" else False
                same = (got == want) | (np.isnan(got) & np.isnan(want)) | near
                assert same.all(), (c, got, want)
                signs = np.signbit(got) == np.signbit(want)
                assert (signs | np.isnan(want)).all(), (c, got, want)
