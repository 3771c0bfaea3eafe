"""How the tests of gradients and of what networks are made of compare values.

Graphs are evaluated by the oracle (NumPy), so that neither schedule nor code generation takes part.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from aster_ml.dtype import from_numpy_dtype
from aster_ml.gradient import compute_gradient
from aster_ml.tensor import Tensor
from aster_ml.uop.graph import toposort
from aster_ml.uop.node import UOp
from tests.oracle import evaluate

Array = Any
STEP = 1e-5
# What the buffers of these tests hold.
CONTENT: dict[UOp, Array] = {}


def leaf(array: Array, device: str = "CPU") -> UOp:
    """A buffer that holds `array`, with its shape."""
    array = np.asarray(array)
    buffer = UOp.new_buffer(device, array.size, from_numpy_dtype(array.dtype))
    CONTENT[buffer] = array.reshape(-1)
    return buffer.reshape(array.shape)


def tensor(array: Array) -> Tensor:
    """`leaf` as a Tensor."""
    return Tensor.from_uop(leaf(array))


def values(*items: UOp | Tensor) -> list[Array]:
    """What nodes or tensors are."""
    nodes = [item if isinstance(item, UOp) else item.uop for item in items]
    return [np.asarray(evaluate(node, CONTENT)) for node in nodes]


def value(item: UOp | Tensor) -> Array:
    """What a node or tensor is."""
    return values(item)[0]


def added_nodes(before: Sequence[UOp], after: Sequence[UOp]) -> list[str]:
    """The ops, but for constants, that `after` needs beyond `before`."""
    known = toposort(*before)
    return sorted(u.op.name for u in toposort(*after) if u not in known and u.op.name != "CONST")


# differences


def slopes(function: Callable[..., Array], arrays: Sequence[Array]) -> list[Array]:
    """Central differences of a number that depends on arrays, for every element of each."""
    result = []
    for i, array in enumerate(arrays):
        found = np.zeros_like(array)
        for place in np.ndindex(array.shape):
            ends = []
            for step in (STEP, -STEP):
                moved = array.copy()
                moved[place] += step
                ends.append(function(*arrays[:i], moved, *arrays[i + 1 :]))
            found[place] = (ends[0] - ends[1]) / (2 * STEP)
        result.append(found)
    return result


def check_slopes(
    function: Callable[..., UOp], *arrays: Array, second: bool = True, tolerance: float = 1e-6
) -> None:
    """The gradients of a function of nodes, in float64, against differences; and theirs."""
    inputs = [np.asarray(a, np.float64) for a in arrays]
    leaves = [leaf(a) for a in inputs]
    root = function(*leaves)
    rng = np.random.RandomState(7)
    weight = leaf(rng.randn(*root.shape) if root.shape else np.array(1.3))
    turns = [leaf(rng.randn(*a.shape) if a.shape else np.array(0.7)) for a in inputs]

    def weighted(*points: Array) -> Array:
        return value((function(*[leaf(p) for p in points]) * weight).sum())

    def along_turns(*nodes: UOp) -> UOp:
        # The gradients of all inputs, weighted and added up: one number to differentiate again.
        grads = compute_gradient(function(*nodes), weight, set(nodes))
        parts = [(grads[u] * turn).sum() for u, turn in zip(nodes, turns) if u in grads]
        return sum(parts[1:], parts[0])

    found = compute_gradient(root, weight, set(leaves))
    for u, want in zip(leaves, slopes(weighted, inputs), strict=True):
        # The gradient of something linear depends on nothing any more.
        assert u in found or not second
        have = value(found[u]) if u in found else np.zeros_like(want)
        assert u not in found or (found[u].shape, found[u].dtype) == (u.shape, u.dtype)
        np.testing.assert_allclose(have, want, rtol=tolerance, atol=tolerance)
    if second:
        check_slopes(along_turns, *inputs, second=False, tolerance=10 * tolerance)


# PyTorch


def check_torch(
    ours: Callable[..., Tensor],
    theirs: Callable[..., Any],
    *arrays: Array,
    tolerance: float = 1e-9,
) -> None:
    """A function and its gradients in float64, against the same of PyTorch."""
    import torch

    inputs = [np.asarray(a, np.float64) for a in arrays]
    mine = [tensor(a) for a in inputs]
    yours = [torch.tensor(a, requires_grad=True) for a in inputs]
    have, want = ours(*mine), theirs(*yours)
    assert have.shape == tuple(want.shape)
    weight = np.random.RandomState(3).randn(*have.shape)
    want.backward(torch.tensor(np.asarray(weight)))
    found = compute_gradient(have.uop, leaf(weight), {t.uop for t in mine})
    grads = [found[t.uop] for t in mine]
    got, *got_grads = values(have.uop, *grads)
    np.testing.assert_allclose(got, want.detach().numpy(), rtol=tolerance, atol=tolerance)
    for have_grad, t in zip(got_grads, yours, strict=True):
        np.testing.assert_allclose(have_grad, t.grad.numpy(), rtol=tolerance, atol=tolerance)
