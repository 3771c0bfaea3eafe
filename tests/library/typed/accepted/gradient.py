"""Asks for gradients, of targets and of all that wants one."""

from typing import assert_type

from aster_ml import Tensor

x = Tensor([3.0], requires_grad=True)
y = x.square().sum()
assert_type(y.gradient(x), list[Tensor])
y.backward()
assert_type(x.grad, Tensor | None)
assert x.grad is not None
assert x.grad.tolist() == [6.0]
