"""Takes a step of Adam."""

from typing import assert_type

from aster_ml import Tensor
from aster_ml.nn import optim

weight = Tensor([1.0, -2.0], requires_grad=True)
opt = optim.Adam([weight], lr=0.1)
with Tensor.train():
    opt.zero_grad()
    assert_type(weight.square().sum().backward(), Tensor)
    opt.step()
assert abs(float(weight[0]) - 0.9) < 1e-3
