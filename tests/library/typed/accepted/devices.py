"""Moves a tensor."""

from typing import assert_type

from aster_ml import Device, Tensor

x = Tensor([1.0])
assert_type(Device.DEFAULT, str)
assert_type(x.to("CPU"), Tensor)
assert x.to("CPU").tolist() == [1.0]
