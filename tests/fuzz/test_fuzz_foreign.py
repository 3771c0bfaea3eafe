"""Arrays of PyTorch, NumPy and Python with random views and marks: a tensor has their numbers.

The oracle is what the producer's own `tolist` gives. What it refuses to give numbers of is refused
here too, by an error of Aster's; nothing else is.
"""

from __future__ import annotations

import array
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from aster_ml import Tensor
from aster_ml.errors import AsterError
from tests.fuzz.budget import check_all, draws

torch = pytest.importorskip("torch", reason="pip install torch")
Draw = random.Random
TORCH_TYPES = [
    "bool", "uint8", "int8", "int16", "int32", "int64", "uint16", "uint32", "uint64", "float16",
    "bfloat16", "float32", "float64",
]  # fmt: skip
NUMPY_TYPES = ["?", "u1", "i1", "i2", ">i2", "<u2", ">u4", "i4", ">i8", "u8", "f2", ">f4", "f8"]


class Named(torch.Tensor):  # type: ignore[misc]
    """A subclass that means nothing more."""


def of_torch(draw: Draw) -> Any:
    """A tensor of PyTorch: of some dtype, or a part of complex ones, seen through views."""
    shape = [draw.choice([0, 1, 2, 3, 5]) for _ in range(draw.randint(0, 3))]
    count = int(np.prod(shape))
    if draw.random() < 0.4:
        x = torch.arange(2 * count, dtype=torch.float32).reshape(*shape, 2) - 3
        x = torch.view_as_complex(x.contiguous())
        for _ in range(draw.randint(0, 3)):
            x = draw.choice([torch.conj, torch._neg_view, torch.resolve_neg, torch.Tensor.clone])(x)
        x = draw.choice([torch.real, torch.imag])(x)
    else:
        x = (torch.arange(count).reshape(shape) - 2).to(getattr(torch, draw.choice(TORCH_TYPES)))
    for _ in range(draw.randint(0, 3)):
        x = torch_view(x, draw)
    if x.dtype.is_floating_point and draw.random() < 0.2:
        x = x.detach().clone().requires_grad_() * 1 if draw.random() < 0.5 else x.requires_grad_()
    if draw.random() < 0.1:
        x = x.as_subclass(Named)
    return x


def torch_view(x: Any, draw: Draw) -> Any:
    """A view of a tensor of PyTorch."""
    if not x.ndim:
        return x.expand(draw.choice([1, 3])) if draw.random() < 0.5 else x.unsqueeze(0)
    axis = draw.randrange(x.ndim)
    match draw.randrange(6):
        case 0:
            return x.transpose(0, axis)
        case 1:
            return x[(slice(None),) * axis + (slice(draw.randint(0, 2), None, draw.randint(1, 3)),)]
        case 2:
            return x.unsqueeze(axis).expand(*x.shape[:axis], 2, *x.shape[axis:])
        case 3:
            return torch._neg_view(x) if x.dtype not in UNSIGNED_OF_TORCH else x
        case 4:
            return x.select(axis, 0) if x.shape[axis] else x
        case _:
            return x.diagonal(0, 0, 1) if x.ndim > 1 else x


UNSIGNED_OF_TORCH = {
    torch.bool, torch.uint8, torch.uint16, torch.uint32, torch.uint64,
}  # fmt: skip


def of_numpy(draw: Draw) -> Any:
    """An array of NumPy of some byte order, class and strides, or memory that shows it."""
    shape = [draw.choice([0, 1, 2, 3, 5]) for _ in range(draw.randint(0, 3))]
    x = np.arange(int(np.prod(shape))).reshape(shape).astype(draw.choice(NUMPY_TYPES))
    for _ in range(draw.randint(0, 3)):
        if not x.ndim:
            break
        axis = draw.randrange(x.ndim)
        match draw.randrange(4):
            case 0:
                x = x.swapaxes(0, axis)
            case 1:
                x = x[(slice(None),) * axis + (slice(None, None, draw.choice([-2, -1, 2])),)]
            case 2:
                x = np.broadcast_to(x, (2, *x.shape))
            case _:
                x = x[..., 0] if x.shape[-1] else x
    match draw.randrange(8):
        case 0:
            return np.ma.array(x, mask=[draw.random() < 0.2] * x.size if x.ndim == 1 else False)
        case 1:
            return np.matrix(x) if x.ndim in (1, 2) and x.size else x
        case 2 if x.dtype.byteorder != ">" and x.dtype.char != "e":
            return memoryview(np.asarray(x))
        case 3:
            x = x.copy()
            x.setflags(write=False)
            return x
        case 4 if x.ndim and len(x):
            return x[0]
        case 5:
            record = np.zeros(x.shape, [("before", "i1"), ("x", x.dtype)])
            record["x"] = x
            return record["x"]
        case 6:
            return [x, x]
        case _:
            return x


def of_python(draw: Draw) -> Any:
    """Numbers of Python's own kinds of memory."""
    count = draw.choice([0, 1, 2, 7])
    kind = draw.choice("bBhHiIlLqQfd")
    low = 0 if kind.isupper() else -3
    values = array.array(kind, [low + i for i in range(count)])
    match draw.randrange(4):
        case 0:
            return values
        case 1:
            return memoryview(values)
        case 2:
            return memoryview(values)[:: draw.choice([1, 2, -1])]
        case _:
            return memoryview(values.tobytes()).cast("B").cast(draw.choice("bB"))


def is_same(found: Any, wanted: Any) -> bool:
    """Whether nested lists have the same numbers."""
    if isinstance(found, list) or isinstance(wanted, list):
        lists = isinstance(found, list) and isinstance(wanted, list)
        return lists and len(found) == len(wanted) and all(map(is_same, found, wanted))
    return wanted is not None and bool(found == wanted or (found != found and wanted != wanted))


def check(seed: int) -> str | None:
    """What is wrong with a tensor of one array."""
    draw = Draw(seed)
    data = draw.choice([of_torch, of_torch, of_numpy, of_python])(draw)
    wanted = [x.tolist() for x in data] if isinstance(data, list) else data.tolist()
    said = f"{type(data).__name__} {getattr(data, 'dtype', '')} {wanted}"[:200]
    take: list[Callable[[Any], Tensor]] = [Tensor]
    if hasattr(data, "__dlpack__"):
        take.append(lambda x: Tensor.from_dlpack(x))
    for one in take:
        try:
            found = one(data).tolist()
        except (AsterError, BufferError) as error:
            missing = isinstance(data, np.ma.MaskedArray) and np.ma.is_masked(data)
            if missing or (one is not Tensor and isinstance(error, BufferError)):
                continue
            return f"{said}: {type(error).__name__}: {error}"[:300]
        if not is_same(found, wanted):
            return f"{said}: {found}"
    return None


@pytest.mark.filterwarnings("ignore:the matrix subclass:PendingDeprecationWarning")
def test_numbers_of_other_packages(record_property: Any) -> None:
    check_all("arrays of other packages", draws(300, 50_000), check, record_property)
