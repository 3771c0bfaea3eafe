"""Defines the demo's function: an image of 28 x 28 bytes -> the probability of each digit.

Weights are those that `aster demo` has left: demo.safetensors in the folder it ran in, or the file
that DIGITS names. `aster export aster_ml.apps.digits:digits --c OUT` makes a program of it.
"""

from __future__ import annotations

import functools
import os
from pathlib import Path

from aster_ml import Tensor, dtypes
from aster_ml.apps.demo import SIDE, DigitReader, normalize
from aster_ml.errors import FileMissingError
from aster_ml.nn.state import load_state_dict, safe_load


@functools.cache
def reader() -> DigitReader:
    """The trained network. Raises: FileMissingError where it has not been trained."""
    path = Path(os.environ.get("DIGITS", "demo.safetensors"))
    if not path.exists():
        raise FileMissingError(
            "no network is there; `aster demo` trains one and leaves it here, or DIGITS names a "
            "file of weights",
            "digits",
            str(path),
        )
    model = DigitReader()
    load_state_dict(model, safe_load(path), verbose=False)
    return model


def digits(image: Tensor) -> Tensor:
    """Computes the probability of each digit.

    Shapes: image int [28, 28] -> [10].
    """
    x = normalize(image).reshape(1, 1, SIDE, SIDE)
    return reader()(x).softmax(axis=1).reshape(10)


def digits_inputs() -> Tensor:
    """An empty image."""
    return Tensor.zeros(SIDE, SIDE, dtype=dtypes.uint8)
