"""Indexes by masks: finds places on the host, and writes values where a mask holds.

Receives tensors of bools beside the values. How many elements a mask picks depends on data, so the
mask is computed and read; where the number does not matter, nothing is read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from aster_ml.dtype import dtypes
from aster_ml.engine.launch import is_recording
from aster_ml.errors import IndexRangeError, JitError, ShapeError
from aster_ml.late import late
from aster_ml.ops.handle import Handle
from aster_ml.ops.movement import broadcast_shapes
from aster_ml.uop.infer import show_shape

if TYPE_CHECKING:
    from aster_ml.runtime import foreign
else:
    foreign = late("runtime.foreign")


def read_mask(mask: Any, what: str) -> np.ndarray[Any, Any]:
    """The values of a tensor of bools.

    Raises: JitError while a jitted function is recorded, whose replays could not follow them.
    """
    if is_recording():
        raise JitError(
            f"{what}: how many elements a mask picks depends on data, which a replay of a jitted "
            "function could not follow; mask.where(x, 0) keeps the shape, or pick outside"
        )
    found: np.ndarray[Any, Any] = mask.numpy()
    return found


def mask_indices(x: Handle, mask: Handle, axis: int) -> list[Any]:
    """Where a mask of the axes of `x` from `axis` on is true: one tensor of ints an axis."""
    check_mask(mask, x.shape[axis : axis + mask.ndim])
    places = np.nonzero(read_mask(mask, "index"))
    make: Any = x.__class__
    return [make(p.astype(np.int32), x.device) for p in places]


def is_plain(indices: list[Any]) -> bool:
    """Whether a list has nothing but numbers, or is a mask."""
    deep = indices
    while isinstance(deep, list) and deep and isinstance(deep[0], list):
        deep = deep[0]
    if deep and isinstance(deep[0], (bool, np.bool_)):
        return True
    return all([isinstance(i, (int, np.integer)) for i in indices])


def check_mask(mask: Handle, part: tuple[Any, ...]) -> None:
    """Raises IndexRangeError unless a mask has the shape of what it is for."""
    if mask.ndim == 0 or mask.shape != part:
        raise IndexRangeError(
            f"index: a mask of {show_shape(mask.shape)} for axes of "
            f"{show_shape(part)}; the same shape is wanted"
        )


def mask_in(x: Handle, indices: Any) -> Any:
    """Finds a mask in the brackets; None where there is something else."""
    if isinstance(indices, Handle):
        return indices if indices.dtype is dtypes.bool and indices.ndim else None
    if isinstance(indices, np.ndarray) or (isinstance(indices, list) and is_plain(indices)):
        try:
            array = np.asarray(foreign.resolved(indices))
        except ValueError:
            # A ragged list is no mask; reading the index says what is wrong with it.
            return None
        if array.dtype.kind == "b" and array.ndim:
            return x.__class__(array, device=x.device)  # type: ignore[call-arg]
    return None


def written_by_mask(x: Any, mask: Any, value: Any) -> Any:
    """`x` with `value` where a mask of its leading axes is true.

    The value is one for all places, or has a row for each of them, in order.
    """
    check_mask(mask, x.shape[: mask.ndim])
    row = x.shape[mask.ndim :]
    while value.ndim > len(row) and value.shape[0] == 1:
        value = value.reshape(value.shape[1:])
    where = mask.reshape((*mask.shape, *(1,) * len(row)))
    if value.ndim <= len(row):
        if broadcast_shapes("assign", value.shape, row) != row:
            raise ShapeError(
                f"assign: a value of {show_shape(value.shape)} where a mask picks parts of "
                f"{show_shape(row)}; the value may be repeated, not the part"
            )
        return where.where(value, x)
    true = read_mask(mask, "assign")
    count = int(true.sum())
    wanted = (count, *row)
    if broadcast_shapes("assign", value.shape, wanted) != wanted:
        raise ShapeError(
            f"assign: a value of {show_shape(value.shape)} where a mask picks "
            f"{show_shape(wanted)}; one row for each place is wanted, or a single one"
        )
    if count == 0:
        return x
    number = np.maximum(np.cumsum(true).reshape(true.shape) - 1, 0)
    return where.where(value[x.__class__(number.astype(np.int32), x.device)], x)
