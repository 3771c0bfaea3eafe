"""Gradients of values of symbolic shape, against PyTorch on the sizes that are bound."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from aster_ml import Tensor, TinyJit, Variable

X = np.random.default_rng(0).standard_normal((4, 10)).astype(np.float32)
W = np.random.default_rng(1).standard_normal((10, 5)).astype(np.float32)

# Each on x and w, cut to (4, n) and (n, 5).
LOSSES: dict[str, tuple[Callable[..., Tensor], Callable[..., Any]]] = {
    "square": (lambda x, w: (x * x).sum(), lambda x, w: (x * x).sum()),
    "mean": (lambda x, w: (x * x).mean(), lambda x, w: (x * x).mean()),
    "product": (lambda x, w: (x @ w).tanh().sum(), lambda x, w: (x @ w).tanh().sum()),
    "softmax": (lambda x, w: (x.softmax(1) * x).sum(), lambda x, w: (x.softmax(1) * x).sum()),
    "greatest": (lambda x, w: (x.max(1) ** 2).sum(), lambda x, w: (x.max(1)[0] ** 2).sum()),
    "variance": (lambda x, w: (x.var(0) * 3).sum(), lambda x, w: (x.var(0) * 3).sum()),
    "flat": (lambda x, w: (x.reshape(-1) ** 3).sum(), lambda x, w: (x.reshape(-1) ** 3).sum()),
    "joined": (lambda x, w: (x.T.cat(w, dim=1) ** 2).sum(),
               lambda x, w: (x.T**2).sum() + (w**2).sum()),
    "repeated": (lambda x, w: (x.sum(0).unsqueeze(1).expand(x.shape[1], 5) * w).sum(),
                 lambda x, w: (x.sum(0).unsqueeze(1).expand(x.shape[1], 5) * w).sum()),
    "cumulative": (lambda x, w: (x.cumsum(1) ** 2).sum(), lambda x, w: (x.cumsum(1) ** 2).sum()),
    "rows": (lambda x, w: (x[Tensor([0, 2, 0])] ** 2).sum(),
             lambda x, w: (x[[0, 2, 0]] ** 2).sum()),
    "columns": (lambda x, w: (x.T[Tensor([0, 0])] ** 2).sum(),
                lambda x, w: (x.T[[0, 0]] ** 2).sum()),
    "multiplied": (lambda x, w: (x.prod(1) * 2).sum(), lambda x, w: (x.prod(1) * 2).sum()),
    "stored": (lambda x, w: ((x + 1).contiguous() ** 2).sum(), lambda x, w: ((x + 1) ** 2).sum()),
}  # fmt: skip


@pytest.mark.parametrize("name", LOSSES)
def test_gradients(name: str) -> None:
    torch = pytest.importorskip("torch")
    ours, theirs = LOSSES[name]
    for size in (1, 6, 10):
        n = Variable("n", 1, 10).bind(size)
        x, w = Tensor(X, requires_grad=True), Tensor(W, requires_grad=True)
        ours(x[:, :n], w[:n]).backward()
        tx, tw = torch.tensor(X, requires_grad=True), torch.tensor(W, requires_grad=True)
        theirs(tx[:, :size], tw[:size]).backward()
        for got, want in ((x, tx), (w, tw)):
            if want.grad is not None:
                np.testing.assert_allclose(
                    got.grad.numpy(), want.grad.numpy(), rtol=2e-5, atol=2e-5
                )


def test_the_gradient_of_a_value_of_symbolic_shape() -> None:
    n = Variable("n", 1, 10).bind(6)
    x = Tensor(X)[:, :n]
    (grad,) = (x**3).sum().gradient(x)
    assert grad.shape == (4, n)
    np.testing.assert_allclose(grad[:, :6].numpy(), 3 * X[:, :6] ** 2, rtol=1e-5)


def test_training_steps_over_parts_of_any_size() -> None:
    torch = pytest.importorskip("torch")
    w = Tensor(W).contiguous().realize()
    want = torch.tensor(W)
    x = Tensor(X).realize()
    runs = [0]

    @TinyJit
    def step(part: Tensor, n: Any) -> Tensor:
        runs[0] += 1
        weights = w.detach().requires_grad_()
        loss = ((part @ weights[:n]) ** 2).mean()
        (grad,) = loss.gradient(weights)
        w.assign(w - grad * 0.1).realize()
        return loss.realize()

    for size in (4, 7, 1, 10, 3):
        n = Variable("n", 1, 10).bind(size)
        loss = step(x[:, :n], n).item()
        weights = want.clone().requires_grad_()
        theirs = ((torch.tensor(X[:, :size]) @ weights[:size]) ** 2).mean()
        theirs.backward()
        want = want - weights.grad * 0.1
        assert loss == pytest.approx(theirs.item(), rel=1e-4)
        np.testing.assert_allclose(w.numpy(), want.numpy(), rtol=1e-4, atol=1e-5)
    assert runs[0] == 2
