"""Sums leave out the steps at which windows meet nothing, and have the values that they had."""

from __future__ import annotations

import numpy as np
import pytest

from aster_ml import Context, Tensor
from aster_ml.codegen.kernel import Kernel
from aster_ml.codegen.transforms.trip_counts import limit_reductions, windows_of
from aster_ml.dtype import dtypes
from aster_ml.target import Target
from aster_ml.uop.graph import substitute
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import AxisType, Ops, ParamArg, ReduceArg
from aster_ml.uop.rules.symbolic import simplify_around

RNG = np.random.default_rng(11)

TARGET = Target("CPU", "llvm")


def by_input(weight: np.ndarray, gradient: np.ndarray, size: tuple[int, int], pad: int, step: int):
    """The gradient of a convolution by its input, term by term in float64."""
    n, rows, columns = gradient.shape[0], *gradient.shape[2:]
    c, kh, kw = weight.shape[1:]
    whole = np.zeros((n, c, size[0] + 2 * pad, size[1] + 2 * pad))
    for y in range(kh):
        for x in range(kw):
            part = np.einsum("nohw,oc->nchw", gradient.astype(np.float64), weight[:, :, y, x])
            ys, xs = slice(y, y + step * rows, step), slice(x, x + step * columns, step)
            whole[:, :, ys, xs] += part
    return whole[:, :, pad : pad + size[0], pad : pad + size[1]]


# Rows that are written out whole, in part, and not at all; more channels than lanes, and fewer.
CASES = [
    (3, 16, 16, (8, 8), (3, 3), 0, 1),
    (2, 32, 48, (24, 24), (5, 5), 0, 1),
    (2, 16, 8, (7, 9), (3, 5), 1, 1),
    (2, 20, 24, (40, 40), (3, 3), 0, 1),
    (5, 3, 7, (6, 5), (3, 2), 1, 1),
    (2, 16, 16, (3, 3), (3, 3), 0, 1),
    (2, 16, 16, (4, 4), (7, 7), 3, 1),
    (2, 16, 16, (1, 4), (1, 4), 0, 1),
    (3, 16, 32, (9, 8), (3, 3), 1, 2),
    (16, 64, 64, (4, 4), (3, 3), 1, 1),
]


@pytest.mark.parametrize(("n", "c", "o", "size", "kernel", "pad", "step"), CASES)
def test_gradients_by_the_input(n, c, o, size, kernel, pad, step) -> None:
    x = Tensor.zeros(n, c, *size).contiguous().realize()
    x.requires_grad = True
    weight = RNG.standard_normal((o, c, *kernel)).astype(np.float32)
    y = x.conv2d(Tensor(weight), padding=pad, stride=step)
    g = RNG.standard_normal(y.shape).astype(np.float32)
    found = y.gradient(x, gradient=Tensor(g))[0].numpy()
    wanted = by_input(weight, g, size, pad, step)
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4 * np.abs(wanted).max())


def forward(x: np.ndarray, weight: np.ndarray, pad: int, dilation: int, step: int) -> np.ndarray:
    """A convolution, term by term in float64."""
    x = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (pad, pad), (pad, pad)))
    kh, kw = weight.shape[2:]
    rows, columns = (
        (x.shape[a] - dilation * (k - 1) - 1) // step + 1 for a, k in ((2, kh), (3, kw))
    )
    total = np.zeros((len(x), len(weight), rows, columns))
    for i in range(kh):
        for j in range(kw):
            part = x[:, :, i * dilation :, j * dilation :][:, :, ::step, ::step]
            total += np.einsum("nchw,oc->nohw", part[:, :, :rows, :columns], weight[:, :, i, j])
    return total


# Images of which the padding is the most: channels, filters, side, kernel, padding, dilation, step.
AROUND = [
    (6, 90, 7, 7, 6, 2, 1),
    (6, 20, 7, 7, 6, 2, 2),
    (6, 33, 5, 4, 6, 3, 1),
    (6, 33, 5, 4, 7, 3, 2),
    (5, 17, 8, 6, 5, 2, 1),
    (1, 16, 4, 3, 4, 4, 1),
    (3, 64, 7, 7, 6, 2, 3),
    (8, 8, 2, 5, 8, 4, 1),
]


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("case", AROUND)
def test_windows_that_mostly_meet_padding_are_right(case: tuple[int, ...], threads: int) -> None:
    c, o, side, k, pad, dilation, step = case
    x, w = (RNG.standard_normal(s).astype(np.float32) for s in ((3, c, side, side), (o, c, k, k)))
    a, b = Tensor(x, requires_grad=True), Tensor(w, requires_grad=True)
    with Context(THREADS=threads):
        y = a.conv2d(b, padding=pad, dilation=dilation, stride=step)
        want = forward(x, w, pad, dilation, step)
        np.testing.assert_allclose(y.numpy(), want, rtol=1e-4, atol=1e-4)
        # The gradient by a filter is the sum of what it meets.
        g = RNG.standard_normal(want.shape).astype(np.float32)
        by_x, by_w = y.gradient(a, b, gradient=Tensor(g))
        np.testing.assert_allclose((by_x.numpy() * x).sum(), (want * g).sum(), rtol=1e-3)
        np.testing.assert_allclose((by_w.numpy() * w).sum(), (want * g).sum(), rtol=1e-3)


def test_an_image_that_is_mostly_padding_is_not_stored_padded() -> None:
    x, w = Tensor.empty(8, 6, 7, 7), Tensor.empty(90, 6, 7, 7)
    wide = x.conv2d(w, padding=6, dilation=2).schedule()
    assert len([s for s in wide if s.ast is not None]) == 1
    # Of the seven rows of a window three or four meet the image.
    (ast,) = [s.ast for s in wide if s.ast is not None]
    kernel = Kernel(ast)
    limit_reductions(kernel, TARGET)
    limited = [r.src[0] for u in kernel.reduces for r in u.src[1:] if r.src[0].op is not Ops.CONST]
    (row,) = limited[0].ranges
    places = [substitute(limited[0], {row: UOp.index_const(i)}) for i in range(7)]
    assert [simplify_around(place).arg for place in places] == [4, 3, 4, 3, 4, 3, 4]


def test_threads_and_c_agree() -> None:
    x = Tensor.zeros(4, 32, 12, 12).contiguous().realize()
    x.requires_grad = True
    y = x.conv2d(Tensor(RNG.standard_normal((32, 32, 3, 3)).astype(np.float32)))
    g = Tensor(RNG.standard_normal(y.shape).astype(np.float32)).realize()
    plain = y.gradient(x, gradient=g)[0].numpy()
    for setting in ({"THREADS": 2}, {"THREADS": 1}, {"NOOPT": 1}):
        with Context(**setting):
            again = y.gradient(x, gradient=g)[0].numpy()
        np.testing.assert_allclose(again, plain, rtol=1e-4, atol=1e-4)


def padded_sum(size: int, steps: int) -> tuple[Kernel, UOp, UOp]:
    """out[i] = sum over k and j of x[i + k - 2, j] where that is inside of x."""
    i = UOp.range(size, 0, AxisType.LOOP)
    k, j = UOp.range(steps, 1, AxisType.REDUCE), UOp.range(8, 2, AxisType.REDUCE)
    x = UOp(Ops.PARAM, dtypes.float32, (), ParamArg(1, (size - 2) * 8))
    out = UOp(Ops.PARAM, dtypes.float32, (), ParamArg(0, size))
    at = i + k - 2
    gate = (at < size - 2).alu(Ops.AND, UOp.index_const(-1) < at)
    load = UOp(Ops.LOAD, dtypes.float32, (x.index(at * 8 + j), gate))
    total = UOp(Ops.REDUCE, dtypes.float32, (load, k, j), ReduceArg(Ops.ADD))
    return Kernel(UOp(Ops.SINK, dtypes.void, (out.index(i).store(total).end(i),))), i, k


def test_a_sum_begins_and_ends_where_its_terms_do() -> None:
    kernel, i, k = padded_sum(12, 5)
    limit_reductions(kernel, TARGET)
    (total,) = kernel.reduces
    steps = next(r for r in total.src[1:] if r.arg.id == k.arg.id).src[0]
    counts = []
    for place in range(12):
        count = simplify_around(substitute(steps, {i: UOp.index_const(place)}))
        counts.append(count.arg)
    # k from max(0, 2 - i) to min(5, 12 - i): 10 places are read by 5 steps each.
    assert counts == [min(5, 12 - place) - max(0, 2 - place) for place in range(12)]
    loads = [u for u in kernel.facts.order if u.op is Ops.LOAD]
    assert [len(u.src) for u in loads] == [1]


def test_waste_of_windows_is_counted() -> None:
    kernel, i, k = padded_sum(12, 5)
    (window,) = windows_of([i], kernel.reduces[0]).values()
    used = sum(min(5, 12 - place) - max(0, 2 - place) for place in range(12))
    assert window.step is k
    assert window.waste == pytest.approx(12 * 5 / used)
