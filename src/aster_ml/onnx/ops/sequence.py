"""Sequences of tensors, which are lists on the host."""

from __future__ import annotations

from typing import Any

import numpy as np

from aster_ml.errors import ShapeError
from aster_ml.onnx.ops.host import ints
from aster_ml.onnx.ops.registry import Array, Value, op


def place(values: list[Value], position: Value, call: Any, last: int) -> int:
    """A place in a sequence; negative ones count from its end."""
    at = int(call.read(position).reshape(-1)[0])
    if not -len(values) <= at < last:
        raise ShapeError(f"place {at} of a sequence of {len(values)}")
    return at + len(values) if at < 0 else at


@op("SequenceConstruct", raw=True)
def sequence_construct(*xs: Value) -> list[Value]:
    """A sequence of these."""
    return list(xs)


@op("SequenceEmpty", raw=True)
def sequence_empty(*, dtype: int | None = None) -> list[Value]:
    """A sequence of nothing."""
    return []


@op("SequenceAt", raw=True)
def sequence_at(values: list[Value], position: Value, *, call: Any) -> Value:
    """One element."""
    return values[place(values, position, call, len(values))]


@op("SequenceErase", raw=True)
def sequence_erase(values: list[Value], position: Value = None, *, call: Any) -> list[Value]:
    """All but one element, the last without a place."""
    at = len(values) - 1 if position is None else place(values, position, call, len(values))
    return values[:at] + values[at + 1 :]


@op("SequenceInsert", raw=True)
def sequence_insert(
    values: list[Value], x: Value, position: Value = None, *, call: Any
) -> list[Value]:
    """With one element more, at the end without a place."""
    at = len(values) if position is None else place(values, position, call, len(values) + 1)
    return [*values[:at], x, *values[at:]]


@op("SequenceLength", raw=True)
def sequence_length(values: list[Value]) -> Array:
    """Number of elements of a sequence."""
    return np.asarray(len(values), np.int64)


@op("ConcatFromSequence", raw=True)
def concat_from_sequence(values: list[Value], *, axis: int, new_axis: int = 0, call: Any) -> Value:
    """All elements side by side along an axis, or along a new one."""
    first, *rest = [call.tensor(value) for value in values]
    return first.stack(*rest, dim=axis) if new_axis else first.cat(*rest, dim=axis)


@op("SplitToSequence", raw=True)
def split_to_sequence(
    x: Value, split: Value = None, *, axis: int = 0, keepdims: int = 1, call: Any
) -> list[Value]:
    """The parts along an axis: of these sizes, of one size, or single elements."""
    data = call.tensor(x)
    size, along = data.shape[axis], axis % data.ndim
    numbers = None if split is None else call.read(split)
    if numbers is None:
        sizes = [1] * size
    elif numbers.ndim:
        sizes = ints(numbers)
    else:
        part = int(numbers)
        sizes = [min(part, size - start) for start in range(0, size, part)]
    parts = list(data.split(sizes, dim=along))
    return parts if keepdims or numbers is not None else [part.squeeze(along) for part in parts]
