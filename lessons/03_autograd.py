"""Gradients are more graph: one rule an op, checked by finite differences; and XOR, learnt.

About four hours. Run with `aster lesson run 03`.
"""

import numpy as np

from aster_ml import GlobalCounters, Tensor, dtypes, nn
from aster_ml.uop.graph import toposort

# %% 1. Backward builds, and computes nothing
#
# `backward()` walks from the loss to the leaves and writes, for each op, the node of its gradient:
# the chain rule, one local rule an op. What comes out is an ordinary tensor, lazy like any other.

x = Tensor([1.0, 2.0, 3.0], requires_grad=True)
loss = (x * x).sum()
GlobalCounters.reset()
loss.backward()
print("kernels so far:", GlobalCounters.kernel_count)
# > kernels so far: 0
print(x.grad.tolist(), "which is 2 x")
# > [2.0, 4.0, 6.0] which is 2 x

# Value and gradient fuse with each other: ask for both at once and shared work is done once.

x = Tensor.rand(1000).realize().requires_grad_()
loss = (x.sigmoid() * x).sum()
loss.backward()
GlobalCounters.reset()
Tensor.realize(loss, x.grad)
print("kernels of a value and its gradient:", GlobalCounters.kernel_count)
# > kernels of a value and its gradient: ...

# %% 2. The rules, analytically
#
# `gradient` gives the derivatives of a scalar as values, for any tensor it depends on. Compare some
# with what a book says.

t = Tensor([0.3, 1.2, 2.5]).realize()
values = t.numpy()
for name, function, derivative in (
    ("sin", Tensor.sin, np.cos(values)),
    ("exp", Tensor.exp, np.exp(values)),
    ("log", Tensor.log, 1 / values),
    ("tanh", Tensor.tanh, 1 - np.tanh(values) ** 2),
    ("sqrt", Tensor.sqrt, 0.5 / np.sqrt(values)),
    ("square", Tensor.square, 2 * values),
):
    (got,) = function(t).sum().gradient(t)
    print(name, np.allclose(got.numpy(), derivative, rtol=1e-5))
# > sin True
# > exp True
# > log True
# > tanh True
# > sqrt True
# > square True

# Movement ops have rules too, and they are movement: the gradient of EXPAND is a sum, of a sum an
# EXPAND, of PAD a SHRINK, of PERMUTE the inverse PERMUTE.

m = Tensor.rand(2, 3).realize()
(got,) = (m.permute(1, 0).pad((1, 1, 0, 0)) * 5).sum().gradient(m)
print(got.tolist())
# > [[5.0, 5.0, 5.0], [5.0, 5.0, 5.0]]

# %% 3. Finite differences: the check that needs no book
#
# f(x + e) - f(x - e), divided by 2 e, is the derivative up to e squared. The trap: in float32, f
# has 7 digits, and the difference of two nearly equal numbers keeps few of them. With e = 1e-4 a
# float32 check fails where nothing is wrong. In float64 it works: e = 1e-6 leaves nine digits.


def finite_difference(function, point: np.ndarray, e: float) -> np.ndarray:
    """The gradient of a function of an array, one element after the other."""
    result = np.zeros_like(point)
    for i in np.ndindex(point.shape):
        up, down = point.copy(), point.copy()
        up[i] += e
        down[i] -= e
        result[i] = (function(Tensor(up)).item() - function(Tensor(down)).item()) / (2 * e)
    return result


def curve(p: Tensor) -> Tensor:
    return (p.sin() * p.exp()).sum() / (1 + p.square().sum())


for dtype, e in ((np.float32, 1e-4), (np.float64, 1e-6)):
    point = np.array([0.5, -1.0, 2.0], dtype=dtype)
    at = Tensor(point)
    (analytic,) = curve(at).gradient(at)
    error = np.abs(analytic.numpy() - finite_difference(curve, point, e)).max()
    print(np.dtype(dtype).name, "agrees to 1e-7:", error < 1e-7)
# > float32 agrees to 1e-7: False
# > float64 agrees to 1e-7: True

# %% 4. Higher order
#
# A gradient is graph, so it has a gradient. Nothing special is asked for.

a = Tensor([2.0])
first = (a * a * a).sum().gradient(a)[0]
second = first.sum().gradient(a)[0]
third = second.sum().gradient(a)[0]
print(first.item(), second.item(), third.item())
# > 12.0 12.0 6.0

# A Hessian, row by row:

p = Tensor([1.0, 2.0])
(g,) = (p[0] * p[0] * p[1]).gradient(p)
print([g[i].gradient(p)[0].tolist() for i in range(2)])
# > [[4.0, 2.0], [2.0, 0.0]]

# %% 5. Accumulation, detach, and where gradients do not go
#
# `backward` adds to what `.grad` holds; an optimiser's zero_grad empties it. `detach` is the same
# value without history.

w = Tensor([3.0], requires_grad=True)
(w * 2).sum().backward()
(w * 5).sum().backward()
print(w.grad.item())
# > 7.0
w.grad = None
(w * w.detach()).sum().backward()
print(w.grad.item(), "and not 6, since one factor is a constant")
# > 3.0 and not 6, since one factor is a constant

# %% 6. XOR, learnt
#
# The smallest problem that needs a hidden layer. `Tensor.train()` says that a model is being
# trained (dropout and batch norm behave differently then, and an optimiser insists on it).

Tensor.manual_seed(3)
inputs = Tensor([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]])
wanted = Tensor([[0.0], [1.0], [1.0], [0.0]])
hidden, out = nn.Linear(2, 8), nn.Linear(8, 1)
optimizer = nn.optim.Adam(nn.state.get_parameters([hidden, out]), lr=0.1)


def network(x: Tensor) -> Tensor:
    return out(hidden(x).tanh()).sigmoid()


with Tensor.train():
    for _ in range(100):
        optimizer.zero_grad()
        loss = network(inputs).binary_crossentropy(wanted)
        loss.backward()
        optimizer.step()
print(network(inputs).round().flatten().tolist(), loss.item() < 0.1)
# > [0.0, 1.0, 1.0, 0.0] True

# %% 7. What the graph of a gradient looks like
#
# No tape, no hooks: the nodes of forward and backward are in one graph, and the schedule fuses
# across the two. The gradient of exp uses the very node of exp(x):

v = Tensor.rand(4, dtype=dtypes.float32).realize()
y = v.exp()
(g,) = y.sum().gradient(v)
print(y.uop in set(toposort(g.uop)))
# > True

# %% What you know now
#
# Gradients are built by local rules, fuse with the forward pass, and can be checked. Exercises:
# `aster lesson check 03`.
