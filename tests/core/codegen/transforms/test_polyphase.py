"""Gradients of strided windows: what they compute, and by which loops."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from aster_ml import Tensor
from aster_ml.codegen.passes import schedule_kernel
from aster_ml.engine.realize import schedule_uops
from aster_ml.target import Target
from aster_ml.uop.graph import toposort
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import Ops
from tests.core.kernel_checks import memory

TARGET = Target("CPU", "x86-64-v4", "llvm", vector_bits=512, masks=True, threads=1)


def gradient(function: Callable[[Tensor], Tensor], *shape: int) -> tuple[Tensor, Tensor]:
    """Weights, and the gradient of what a function computes times these."""
    x = memory(*shape)
    y = function(x)
    weights = memory(*y.shape)
    return weights, (y * weights).sum().gradient(x)[0]


def last_kernel(t: Tensor) -> UOp:
    """The AST of the kernel that stores a tensor."""
    steps = schedule_uops([t.uop])[0].steps
    return [step.ast for step in steps if step.ast is not None][-1]


WINDOWS = {
    "3x3": (3, 2, 1, (2, 3, 28, 28)),
    "odd sizes": (3, 2, 1, (2, 3, 19, 23)),
    "stride 3": (5, 3, 2, (2, 2, 27, 40)),
    "larger strides than windows": (2, 3, 0, (2, 2, 20, 21)),
    "wide": (11, 4, 2, (1, 2, 67, 67)),
}


@pytest.mark.parametrize("name", WINDOWS)
def test_average_pools_give_back_what_each_window_had(name: str) -> None:
    size, stride, padding, shape = WINDOWS[name]
    weights, got = gradient(lambda x: x.avg_pool2d(size, stride, padding=padding), *shape)
    n, c, h, w = shape
    want = np.zeros((n, c, h + 2 * padding + stride, w + 2 * padding + stride))
    for (i, j), g in (
        (at, weights.numpy()[..., at[0], at[1]]) for at in np.ndindex(weights.shape[2:])
    ):
        window = np.s_[..., i * stride : i * stride + size, j * stride : j * stride + size]
        want[window] += g[..., None, None] / size**2
    want = want[..., padding : padding + h, padding : padding + w]
    np.testing.assert_allclose(got.numpy(), want, rtol=1e-5, atol=1e-6)


def test_nothing_is_masked_by_remainders() -> None:
    got = gradient(lambda x: x.max_pool2d(3, stride=2, padding=1), 2, 3, 28, 28)[1]
    assert any(u.op is Ops.MOD for u in toposort(last_kernel(got)))
    kernel = schedule_kernel(last_kernel(got), TARGET)
    loops = {r for r in kernel.axes if not r.arg.kind.is_lane}
    assert not [u for u in kernel.facts.order if u.op is Ops.MOD and set(u.ranges) & loops]
