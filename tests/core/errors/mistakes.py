"""What the tables of mistakes share: tensors to misuse, damaged files, and the check itself."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aster_ml import Tensor

# A call, the error it has to end with, and a part of the message.
Mistake = tuple[Callable[[], Any], type[BaseException], str]


def ones(*shape: int) -> Tensor:
    """Float ones in memory."""
    return Tensor(np.ones(shape, dtype=np.float32))


def counts(*shape: int) -> Tensor:
    """Int ones in memory."""
    return Tensor(np.ones(shape, dtype=np.int32))


def matrix() -> Tensor:
    """Two rows of three."""
    return ones(2, 3)


def image() -> Tensor:
    """One image of four channels, 8 x 8."""
    return ones(1, 4, 8, 8)


def weight() -> Tensor:
    """A parameter of one element."""
    return Tensor([1.0], requires_grad=True)


def file_of(data: bytes) -> str:
    """The name of a file with these bytes."""
    path = Path(tempfile.mkdtemp()) / "file"
    path.write_bytes(data)
    return str(path)


def check_mistake(mistake: Mistake) -> None:
    """The call ends with the error, whose message has the part."""
    call, error, message = mistake
    with pytest.raises(error) as caught:
        result = call()
        if isinstance(result, Tensor):
            result.realize()
    assert message in str(caught.value)
