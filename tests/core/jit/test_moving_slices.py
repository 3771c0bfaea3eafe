"""Slices that begin elsewhere with every call of a jitted function."""

from __future__ import annotations

import numpy as np

from aster_ml import Tensor, TinyJit
from aster_ml.jit.moving_slices import OWN_RECORDINGS


def test_one_recording_serves_all_places() -> None:
    x, y = Tensor.rand(300, 3).realize(), Tensor.rand(300).realize()
    a, b = x.numpy(), y.numpy()
    jitted = TinyJit(lambda p, q: ((p * 2).sum(1) + q).realize())
    for _ in range(2):
        for i in range(0, 297, 3):
            want = (a[i : i + 3] * 2).sum(1) + b[i : i + 3]
            got = jitted(x[i : i + 3], y[i : i + 3]).numpy()
            np.testing.assert_allclose(got, want, rtol=1e-6)
    assert len(jitted.entries) == OWN_RECORDINGS + 1


def test_slices_in_lists_and_dicts_and_by_name() -> None:
    x = Tensor.arange(40).reshape(20, 2).contiguous().realize()
    jitted = TinyJit(lambda p, q: (p[0] + q["x"]).realize())
    for i in range(10):
        got = jitted([x[i]], q={"x": x[i + 1]}).tolist()
        assert got == [4 * i + 2, 4 * i + 4]
    assert len(jitted.entries) == OWN_RECORDINGS + 1


def test_what_a_function_writes_to_a_slice_is_written() -> None:
    x = Tensor.zeros(9, 2).contiguous().realize()

    @TinyJit
    def write(row: Tensor) -> Tensor:
        row.assign(row + 1).realize()
        return (row * 2).realize()

    for _ in range(3):
        for i in range(5):
            write(x[i])
    assert x.tolist() == [[3.0, 3.0]] * 5 + [[0.0, 0.0]] * 4


def test_what_a_function_writes_to_the_whole_is_seen_in_a_slice() -> None:
    x = Tensor.zeros(9, 2).contiguous().realize()

    @TinyJit
    def write(row: Tensor) -> Tensor:
        x.assign(x + 1).realize()
        return (row * 1).realize()

    results = [write(x[i]).tolist() for i in range(6)]
    plain = [[float(i + 1)] * 2 for i in range(6)]
    assert x.tolist() == [[6.0, 6.0]] * 9
    assert results == plain


def test_gradients_reach_the_whole() -> None:
    x = Tensor.ones(8, 2, requires_grad=True).contiguous().realize()
    x.requires_grad = True
    for i in range(4):
        part = x[i : i + 2]
        grad = TinyJit(lambda p: (p * 3).sum().gradient(p)[0].realize())(part)
        assert grad.tolist() == [[3.0, 3.0]] * 2
