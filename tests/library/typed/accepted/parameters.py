"""Reads and loads the state of a layer."""

from typing import assert_type

from aster_ml import Tensor, nn
from aster_ml.nn.state import get_parameters, get_state_dict, load_state_dict

layer = nn.Linear(2, 2)
assert_type(get_parameters(layer), list[Tensor])
assert_type(get_state_dict(layer), dict[str, Tensor])
load_state_dict(layer, {"weight": Tensor.eye(2), "bias": Tensor.zeros(2)}, verbose=False)
assert layer(Tensor([[1.0, 2.0]])).tolist() == [[1.0, 2.0]]
