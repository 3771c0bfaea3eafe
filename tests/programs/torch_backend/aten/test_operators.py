"""Operators of ATen that random functions seldom draw, against eager PyTorch, with gradients."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from tests.core.torch_checks import compiled, difference, gradients

torch = pytest.importorskip("torch", reason="PyTorch says what is right")
pytestmark = [pytest.mark.torch, pytest.mark.slow]
f = torch.nn.functional
PLACES = torch.tensor([[0, 2, 1], [3, 3, 0]])

# Functions, and the shapes of their arguments.
CASES: dict[str, tuple[Callable[..., Any], list[tuple[int, ...]]]] = {
    "embedding with padding": (
        lambda w, i: f.embedding(i, w, padding_idx=3), [(5, 4), (-1,)],
    ),
    "attention with a mask": (
        lambda q, k, m: f.scaled_dot_product_attention(q, k, k * 2, attn_mask=m),
        [(2, 2, 3, 4), (2, 2, 5, 4), (3, 5)],
    ),
    "attention with a bool mask": (
        lambda q, k: f.scaled_dot_product_attention(
            q, k, k, attn_mask=torch.ones(3, 5).tril(1) > 0
        ),
        [(2, 2, 3, 4), (2, 2, 5, 4)],
    ),
    "causal attention of two lengths": (
        lambda q, k: f.scaled_dot_product_attention(q, k, k, is_causal=True, scale=0.3),
        [(1, 2, 3, 4), (1, 2, 5, 4)],
    ),
    "cross entropy": (lambda x, i: f.cross_entropy(x, i[0], label_smoothing=0.1), [(3, 5), (-1,)]),
    "binary cross entropy": (
        lambda x, y: f.binary_cross_entropy_with_logits(x, y.sigmoid()), [(3, 5), (3, 5)],
    ),
    "smooth l1": (lambda x, y: f.smooth_l1_loss(x, y), [(3, 5), (3, 5)]),
    "conv1d": (lambda x, w: f.conv1d(x, w, stride=2, padding=1), [(2, 3, 9), (4, 3, 3)]),
    "conv3d": (lambda x, w: f.conv3d(x, w, padding=1), [(1, 2, 4, 3, 5), (2, 2, 3, 3, 3)]),
    "slices with steps": (lambda x, y: x.slice_scatter(y, 1, 1, 6, 2), [(3, 7), (3, 3)]),
    "one place": (lambda x, y: x.select_scatter(y, 0, -1) * 2, [(3, 4), (4,)]),
    "as_strided": (lambda x: (x * 2).as_strided((3, 2), (2, 1), 1), [(4, 3)]),
    "scatter_reduce": (
        lambda x, i, y: x.scatter_reduce(0, i, y.detach(), "amax").detach()
        + x.scatter_reduce(0, i, y, "mean", include_self=False),
        [(4, 3), (-1,), (2, 3)],
    ),
    "index_put over an axis": (
        lambda x, i, y: x.index_put((i[0], i[1]), y, accumulate=True), [(4, 5, 2), (-1,), (3, 2)],
    ),
    "whole numbers": (
        lambda x, i: x * ((i // 2) + (i % 3) - (-i) // 2 + (i & 1) + (i ^ 2)).sum(), [(2,), (-1,)],
    ),
    "clamps that cross": (lambda x: x.clamp(1, -1) + x.clamp(min=0.1), [(3, 4)]),
    "powers": (lambda x: 2 ** x + (x * x + 1) ** x + x ** 0, [(3, 4)]),
    "stack and unbind": (lambda x: torch.stack(x.unbind(1), 0).split(2, 0)[1], [(3, 4)]),
    "weight norm": (
        lambda v, g: torch._weight_norm(v, g, 0) @ torch.eye(4), [(3, 4), (3, 1)],
    ),
    "numbers": (
        lambda x: x + torch.arange(1, 3, 0.5) + torch.full_like(x, math.pi)
        + torch.linspace(0, 1, 4),
        [(3, 4)],
    ),
    "no axes": (lambda x: x.softmax(0) + x.cumsum(0) + x.squeeze() + x.sum().sqrt(), [()]),
    "pixel shuffle": (lambda x: f.pixel_shuffle(x, 2) * 2, [(1, 4, 2, 3)]),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:torch.compile. left to PyTorch:UserWarning")
@pytest.mark.parametrize("name", CASES)
def test_against_pytorch(name: str) -> None:
    function, shapes = CASES[name]
    torch.manual_seed(3)
    args = [PLACES if shape == (-1,) else torch.randn(shape).abs() + 0.1 for shape in shapes]
    run = compiled(function)
    wanted, wanted_gradients = gradients(function, args, 1)
    for _ in range(3):
        found, found_gradients = gradients(run, args, 1)
        assert difference(found, wanted, 1e-5) is None
        assert len(found_gradients) == len(wanted_gradients)
        for a, b in zip(found_gradients, wanted_gradients, strict=True):
            assert difference(a, b, 1e-4) is None
