"""Cuts a tensor to a size that varies."""

from typing import assert_type

from aster_ml import Tensor, Variable
from aster_ml.uop.node import UOp

size = Variable("size", 1, 4)
assert_type(size, UOp)
bound = size.bind(3)
assert_type(bound, UOp)
assert_type(bound.unbind(), tuple[UOp, int])
assert Tensor.ones(4).contiguous()[:bound].sum().item() == 3
