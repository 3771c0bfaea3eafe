"""Programs that are much deeper than Python's stack: chains, views, nested models, kernels' terms.

How time grows with depth is no subject here: each is as deep as needs be to show a walk that
recurses, and a few are as deep as the promise says.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable

import numpy as np
import pytest

from aster_ml import Context, Tensor, TinyJit, Variable, nn
from aster_ml.uop.movement import slice_of_base
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import Ops
from aster_ml.uop.print.text import parse, to_text

DEEP = 2 * sys.getrecursionlimit()

Step = Callable[[Tensor, int], Tensor]


def deep(x: Tensor, step: Step, depth: int = DEEP) -> Tensor:
    """A step applied so often."""
    for i in range(depth):
        x = step(x, i)
    return x


def affine(x: Tensor, i: int) -> Tensor:
    return x + 1 if i % 2 else x * 0.5


STEPS: dict[str, Step] = {
    "affine": affine,
    "views": lambda x, i: x.reshape(1, 3).flip(1).reshape(3) if i % 2 else x.flip(0).reshape(3),
    "casts": lambda x, i: x.half() if i % 2 else x.float(),
    "where": lambda x, i: (x > 1.5).where(x - 0.5, x + 0.25),
    "pads": lambda x, i: x.pad((1, 0))[1:],
    "contiguous": lambda x, i: x.reshape(3, 1).T.contiguous().reshape(3),
    "contiguous rows": lambda x, i: x.contiguous() if i % 3 else x.reshape(1, 3)[0],
    "negative factors": lambda x, i: -(x * (1e5 if i % 2 else 1e-5)),
    "expanded sums": lambda x, i: x.reshape(3, 1).expand(3, 2).sum(1) * 0.5,
    "detached": lambda x, i: x + x.detach() * 0,
}


@pytest.mark.filterwarnings("ignore::aster_ml.engine.guard.GraphWarning")
@pytest.mark.parametrize("name", STEPS)
def test_deep_values_and_gradients(name: str) -> None:
    depth = DEEP // 10 if name in ("where", "expanded sums", "pads") else DEEP
    step = STEPS[name]
    x = Tensor([1.0, 2.0, 3.0], requires_grad=True)
    y = deep(x, step, depth)
    want = np.array([1.0, 2.0, 3.0], np.float32)
    if name == "affine":
        for i in range(depth):
            want = want + np.float32(1) if i % 2 else want * np.float32(0.5)
    elif name == "where":
        for _ in range(depth):
            want = np.where(want > 1.5, want - np.float32(0.5), want + np.float32(0.25))
    elif name == "views":
        want = want if depth % 2 == 0 else want[::-1]
    np.testing.assert_allclose(y.numpy(), want, rtol=1e-5)
    (gradient,) = y.sum().gradient(x)
    assert gradient.shape == (3,)
    slope = 0.5 ** (depth // 2) if name == "affine" else 1.0
    np.testing.assert_allclose(gradient.numpy(), np.full(3, slope, np.float32), rtol=1e-5)


@pytest.mark.parametrize("depth", [20_000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_a_long_chain(depth: int) -> None:
    """Built, differentiated, written as text, pickled, realized, replayed."""

    def body(x: Tensor) -> Tensor:
        return deep(x, affine, depth)

    x = Tensor([1.0, 2.0, 3.0], requires_grad=True).realize()
    with Context(GRAPH_GUARD=0):
        y = body(x)
        (gradient,) = y.sum().gradient(x)
        assert parse(to_text(y.uop)) is not None
        assert y.explain().count("\n") > 1
        assert pickle.loads(pickle.dumps(y)).shape == (3,)
        assert gradient.tolist() == [0.0, 0.0, 0.0]
        jitted = TinyJit(lambda t: body(t).realize())
        for _ in range(3):
            np.testing.assert_allclose(jitted(x).numpy(), [4 / 3 + 2 / 3] * 3, rtol=1e-6)


class Nested:
    """A layer that holds the next one."""

    def __init__(self) -> None:
        self.weight = Tensor.ones(1).contiguous().realize()
        self.next: Nested | None = None


def nested_net(depth: int) -> Nested:
    """So many layers, each within the one before."""
    first = last = Nested()
    for _ in range(depth - 1):
        last.next = Nested()
        last = last.next
    return first


def test_layers_within_layers() -> None:
    net = nested_net(DEEP)
    assert len(nn.state.get_parameters(net)) == DEEP

    def forward(x: Tensor) -> Tensor:
        layer: Nested | None = net
        while layer is not None:
            x = x * layer.weight
            layer = layer.next
        return x.realize()

    jitted = TinyJit(forward)
    for value in (1.0, 2.0, 3.0):
        assert jitted(Tensor([value]).realize()).tolist() == [value]


def test_deep_sizes() -> None:
    n = Variable("n", 1, 8)
    total: UOp = n
    for _ in range(DEEP):
        total = UOp(Ops.MUL, total.dtype, (UOp(Ops.ADD, total.dtype, (total, n)), n.const_like(1)))
    assert total.const_factor() == 1
    assert total.is_increasing()
    assert total.divides(2) is None
    assert UOp(Ops.MUL, total.dtype, (total, n.const_like(6))).divides(3) is not None


def test_deep_views_of_memory() -> None:
    x = Tensor.arange(DEEP + 3).contiguous().realize()
    y = deep(x, lambda t, _: t[1:])
    assert slice_of_base(y.uop) == (x.uop.base, DEEP)
    assert y.tolist() == [DEEP, DEEP + 1, DEEP + 2]
