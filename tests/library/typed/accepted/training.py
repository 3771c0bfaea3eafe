"""Trains a layer with stochastic gradient descent."""

from typing import assert_type

from aster_ml import Tensor, nn
from aster_ml.nn import optim
from aster_ml.nn.state import get_parameters

Tensor.manual_seed(1)
layer = nn.Linear(2, 1, bias=False)
opt = optim.SGD(get_parameters(layer), lr=0.1)
x, y = Tensor([[1.0, 0.0], [0.0, 1.0]]), Tensor([[1.0], [-1.0]])
losses: list[float] = []
with Tensor.train():
    for _ in range(5):
        opt.zero_grad()
        loss = (layer(x) - y).square().mean()
        assert_type(loss, Tensor)
        assert_type(loss.backward(), Tensor)
        opt.step()
        losses.append(float(loss))
assert losses[-1] < losses[0]
