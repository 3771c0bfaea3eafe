"""Saves tensors to a file and loads them."""

import pathlib
import tempfile
from typing import assert_type

from aster_ml import Tensor
from aster_ml.nn.state import safe_load, safe_save

with tempfile.TemporaryDirectory() as folder:
    path = str(pathlib.Path(folder) / "a.safetensors")
    safe_save({"x": Tensor([1.0, 2.0])}, path)
    found = safe_load(path)
    assert_type(found, dict[str, Tensor])
    assert found["x"].tolist() == [1.0, 2.0]
