"""Views between a stored value and its readers: they cost no memory of their own."""

from __future__ import annotations

import numpy as np
import pytest

from aster_ml import Tensor
from aster_ml.engine.realize import schedule_uops
from aster_ml.uop.graph import toposort
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import Ops

RNG = np.random.default_rng(11)


def only_copies(kernel: UOp) -> bool:
    """Whether a kernel computes nothing."""
    stores = [u for u in toposort(kernel) if u.op is Ops.STORE]
    return all([s.src[1].op is Ops.LOAD for s in stores])


@pytest.mark.parametrize("heads, rows, width", [(12, 128, 64), (3, 40, 8)])
def test_heads_of_one_projection_are_read_where_they_are(heads: int, rows: int, width: int) -> None:
    """Scores, their powers, sums, the values, and the projection of what comes of them.

    In the sum over rows the head of a column is a division; the views between add none to it.
    """
    packed = RNG.standard_normal((1, rows, 3, heads, width)).astype(np.float32)
    weight = RNG.standard_normal((heads * width, heads * width)).astype(np.float32)
    x = Tensor(packed.reshape(1, rows, -1)).realize()
    w = Tensor(weight).realize()
    size = heads * width
    parts = [x[:, :, i * size : (i + 1) * size] for i in range(3)]
    q, k, v = [p.reshape(1, rows, heads, width).transpose(1, 2) for p in parts]
    mixed = q.scaled_dot_product_attention(k, v, is_causal=True).transpose(1, 2)
    found = mixed.reshape(1, rows, size) @ w
    kernels = [s.ast for s in schedule_uops([found.uop])[0].steps if s.ast is not None]
    assert len(kernels) <= 5
    assert not any(map(only_copies, kernels))
    a, b, c = packed[0].astype(np.float64).transpose(1, 2, 0, 3)
    scores = np.einsum("hnd,hmd->hnm", a, b) / np.sqrt(width)
    scores[:, ~np.tri(rows, dtype=bool)] = -np.inf
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    powers /= powers.sum(-1, keepdims=True)
    wanted = np.einsum("hnm,hmd->nhd", powers, c).reshape(rows, -1) @ weight
    np.testing.assert_allclose(found.numpy()[0], wanted, rtol=2e-4, atol=2e-4)


def test_a_norm_of_a_sum_that_is_added_to_later_is_one_kernel() -> None:
    """What stands between the mean and the variance costs little beside the sum, which is stored.

    The sum is made of much; counted with that, the difference to the mean looked worth storing.
    """
    x, gate, bias = (Tensor(RNG.standard_normal((64, 256)).astype(np.float32)) for _ in range(3))
    w = Tensor(RNG.standard_normal((256, 256)).astype(np.float32)).realize()
    total = x.realize() + gate.realize().sigmoid() * bias.realize().tanh() + 1
    difference = total - total.mean(1, keepdim=True)
    normed = difference / (difference.square().mean(1, keepdim=True) + 1e-5).sqrt()
    found = normed @ w + total
    kernels = [s.ast for s in schedule_uops([found.uop])[0].steps if s.ast is not None]
    assert len(kernels) == 3
    a, b, c = (t.numpy().astype(np.float64) for t in (x, gate, bias))
    t = a + np.tanh(c) / (1 + np.exp(-b)) + 1
    n = (t - t.mean(1, keepdims=True)) / np.sqrt(t.var(1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(found.numpy(), n @ w.numpy() + t, rtol=2e-4, atol=2e-4)
