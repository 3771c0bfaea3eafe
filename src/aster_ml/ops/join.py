"""Joins and splits tensors: cat, stack, split, padding with content, shifting.

Receives tensors and sizes; returns tensors made of movement, and of sums of paddings that do not
meet, of which the schedule makes choices (`schedule.rewrites.disjoint_pads`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, cast

from aster_ml.dtype import dtypes, least_upper_dtype
from aster_ml.errors import (
    ArgumentError,
    DeviceError,
    ShapeError,
    SymbolicSizeError,
    UnsupportedError,
)
from aster_ml.helpers import all_int, argfix, ceildiv, kind_of
from aster_ml.ops import Self
from aster_ml.ops.handle import Handle
from aster_ml.ops.index import is_zero
from aster_ml.ops.movement import same_sizes, show_size
from aster_ml.ops.sizes import same_size, size_between, size_sum
from aster_ml.uop.infer import show_shape
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import Ops

MODES = ("constant", "reflect", "replicate", "circular")


def cat(self: Self, *args: Any, dim: int = 0) -> Self:
    """Self and the others one after the other along `dim`; of the class, a list of all too.

    Each element is that of one part, bit for bit, wherever a consumer takes the result in.

    Shapes: self [n, m] -> [n, m].
    Raises: ShapeError where sizes on other axes differ.
    """
    first: Any = self
    if first.__class__ is list or first.__class__ is tuple:
        if not first:
            raise ArgumentError("cat: an empty list; one tensor at least is wanted")
        return cast(Self, first[0].cat(*first[1:], *args, dim=dim))
    tensors: list[Any] = [self, *argfix(*args)] if args else [self]
    axis = self._resolve_axis(dim, "cat")
    check_joinable(tensors, axis, "cat")
    dtype = least_upper_dtype(*[t.dtype for t in tensors])
    parts = [t.cast(dtype) for t in tensors if not is_zero(t.shape[axis])]
    total = size_sum(*[part.shape[axis] for part in parts])
    shape = (*self.shape[:axis], total, *self.shape[axis + 1 :])
    result: Self | None = None
    start: Any = 0
    for part in parts:
        stop = size_sum(start, part.shape[axis])
        pairs: list[tuple[Any, Any]] = [(0, 0)] * self.ndim
        pairs[axis] = (start, size_between(stop, total))
        wide = part._pad_zeros(pairs)._broadcast_to(shape)
        result = wide if result is None else result.alu(Ops.ADD, wide)
        start = stop
    if len(parts) > 1:
        return cast(Self, result)
    return (self.cast(dtype) if result is None else result)._own()


def stack(self: Self, *args: Any, dim: int = 0) -> Self:
    """Self and the others along a new axis `dim`.

    Shapes: self [n, m], dim=0 -> [1, n, m].
    """
    tensors: list[Any] = list(argfix(self, *(argfix(*args) if args else ())))
    axis = tensors[0]._resolve_axis(dim, "stack", 1)
    check_joinable(tensors, -1, "stack")
    first, *rest = [t.unsqueeze(axis) for t in tensors]
    return first.cat(*rest, dim=axis)  # type: ignore[no-any-return]


def split(self: Self, sizes: int | Sequence[int], dim: int = 0) -> tuple[Self, ...]:
    """Parts along `dim`: of `sizes` elements each (the last may have fewer), or one a size.

    Shapes: self [2 * n, m], sizes=n -> [n, m], [n, m].
    Raises: ShapeError when the sizes do not add up to the axis.
    """
    axis = self._resolve_axis(dim, "split")
    length = self.shape[axis]
    if isinstance(sizes, int):
        if not isinstance(length, int):
            raise symbolic_axis("split", axis, self.shape)
        if sizes < 1:
            raise ArgumentError(f"split: parts of {sizes}; a positive size is wanted")
        starts = range(0, max(length, 1), sizes)
        sizes = [min(sizes, length - start) for start in starts]
    total = size_sum(*sizes)
    if not same_size(total, length):
        raise (ShapeError if all_int((total, length)) else SymbolicSizeError)(
            f"split: sizes ({show_shape(tuple(sizes))[1:-1]}) add up to {show_size(total)}, "
            f"axis {axis} of {show_shape(self.shape)} has {show_size(length)}"
        )
    parts, start = [], 0
    for size in sizes:
        cut: list[Any] = [None] * self.ndim
        cut[axis] = (start, size_sum(start, size))
        parts.append(self.shrink(cut))
        start = size_sum(start, size)
    return tuple(parts)


def chunk(self: Self, chunks: int, dim: int = 0) -> list[Self]:
    """At most `chunks` parts of equal size along `dim`; the last may be smaller.

    Shapes: self [2 * n, m], chunks=2 -> [n, m], [n, m].
    """
    axis = self._resolve_axis(dim, "chunk")
    if not isinstance(chunks, int) or chunks < 1:
        raise ArgumentError(f"chunk: {chunks!r} parts; a positive number is wanted")
    length = self.shape[axis]
    if not isinstance(length, int):
        raise symbolic_axis("chunk", axis, self.shape)
    if length == 0:
        return [self] * chunks
    return list(self.split(ceildiv(length, chunks), axis))


def meshgrid(self: Self, *args: Any, indexing: str = "ij") -> tuple[Self, ...]:
    """Each tensor spread over the axes of all: the coordinates of a grid.

    Shapes: self [n] -> [n].
    """
    if indexing not in ("ij", "xy"):
        raise ArgumentError(f"meshgrid: indexing {indexing!r}; 'ij' or 'xy' would do")
    tensors: list[Any] = [self, *argfix(*args)] if args else [self]
    for t in tensors:
        if t.ndim > 1:
            raise ShapeError(
                f"meshgrid: {show_shape(t.shape)} has {t.ndim} axes; at most one is wanted"
            )
    swap = indexing == "xy" and len(tensors) > 1
    order = [1, 0, *range(2, len(tensors))] if swap else list(range(len(tensors)))
    shape = [0] * len(tensors)
    for t, axis in zip(tensors, order, strict=True):
        shape[axis] = t.numel()
    result = []
    for t, axis in zip(tensors, order, strict=True):
        own = tuple([shape[i] if i == axis else 1 for i in range(len(shape))])
        result.append(t.reshape(own)._broadcast_to(tuple(shape)))
    return tuple(result)


def roll(
    self: Self, shifts: int | tuple[int, ...], dims: int | tuple[int, ...] | None = None
) -> Self:
    """Elements moved on by `shifts` along `dims`; what leaves the end comes in at the start.

    Shapes: self [n, m], shifts=1, dims=0 -> [n, m].
    """
    if dims is None:
        if isinstance(shifts, tuple) and len(shifts) != 1:
            raise ArgumentError(f"roll: shifts {shifts} without axes; one shift is wanted")
        return self.flatten().roll(shifts, 0).reshape(self.shape)
    amounts = (shifts,) if isinstance(shifts, int) else tuple(shifts)
    axes = (dims,) if isinstance(dims, int) else tuple(dims)
    if len(amounts) != len(axes):
        raise ArgumentError(
            f"roll: {len(amounts)} shifts for {len(axes)} axes; equally many are wanted"
        )
    x = self
    for amount, dim in zip(amounts, axes, strict=True):
        axis = x._resolve_axis(dim, "roll")
        size = x.shape[axis] if x.shape else 1
        if not isinstance(size, int) or (size and amount % size):
            start = size - amount % size
            x = wrapped(x, axis, start, start + size, 2)
    return x._own()


# padding


def pad(self: Self, padding: Sequence[Any], mode: str = "constant", value: float = 0.0) -> Self:
    """Self with more (or, negative, fewer) elements around it.

    `padding` is a pair (before, after) or None for each axis; or, flat, pairs from the last
    axis on. Modes: "constant" puts `value`, "reflect" mirrors without the edge, "replicate"
    repeats the edge, "circular" goes on at the other end.

    Shapes: self [n, m], padding=((1, 2), (0, 3)) -> [n + 3, m + 3];
        self [n, m], padding=(1, 1) -> [n, m + 2].
    Raises: ShapeError for padding that does not fit; UnsupportedError for an unknown mode and
    for negative circular padding.
    """
    if mode not in MODES:
        raise UnsupportedError(f"pad: mode {mode!r}; there are {', '.join(MODES)}")
    pairs = padding_pairs(padding, self.shape)
    cut = []
    for axis, ((before, after), size) in enumerate(zip(pairs, self.shape, strict=True)):
        start = -before if isinstance(before, int) and before < 0 else 0
        stop = size + after if isinstance(after, int) and after < 0 else size
        if isinstance(stop, int) and stop < start:
            raise ShapeError(
                f"pad: {before} and {after} take more than the {size} elements of "
                f"axis {axis} of {show_shape(self.shape)}"
            )
        cut.append((start, stop))
    wanted = [
        (b if not isinstance(b, int) else max(b, 0), a if not isinstance(a, int) else max(a, 0))
        for b, a in pairs
    ]
    if mode == "constant":
        return pad_with(self.shrink(cut), wanted, value)._own()
    # What is cut off at one end may be what is repeated at the other, so cutting comes last.
    x = self
    kept = []
    for axis, ((before, _), (start, stop)) in enumerate(zip(wanted, cut, strict=True)):
        x = pad_axis(x, axis, wanted[axis], mode)
        end = x.shape[axis] if stop == self.shape[axis] else before + stop
        kept.append((start, end))
        if mode == "circular" and pairs[axis] != wanted[axis]:
            raise UnsupportedError(
                f"pad: mode 'circular' with {pairs[axis]} on axis {axis}; "
                "it adds elements and takes none off, shrink does"
            )
    return x.shrink(kept)._own()


def check_joinable(tensors: list[Any], axis: int, what: str) -> None:
    """Raises where tensors cannot stand side by side along `axis` (-1: shapes are equal)."""
    first = tensors[0]
    for i, t in enumerate(tensors):
        if not isinstance(t, Handle):
            raise ArgumentError(f"{what}: argument {i} is {kind_of(t)}; tensors are wanted")
        same = t.ndim == first.ndim and same_sizes(
            [s for a, s in enumerate(t.shape) if a != axis],
            [s for a, s in enumerate(first.shape) if a != axis],
        )
        if not same:
            where = (
                f"but for axis {axis} they have to be equal"
                if axis >= 0
                else ("equal shapes are wanted")
            )
            raise ShapeError(
                f"{what}: shapes {show_shape(first.shape)} and {show_shape(t.shape)} "
                f"(argument {i}); {where}"
            )
        if t.device != first.device:
            raise DeviceError(
                f"{what}: argument {i} is on {t.device}, the first on "
                f"{first.device}; .to({first.device!r}) moves it"
            )


def symbolic_axis(what: str, axis: int, shape: tuple[Any, ...]) -> SymbolicSizeError:
    """The error for an axis whose size has to be known."""
    return SymbolicSizeError(
        f"{what}: axis {axis} of {show_shape(shape)} has a symbolic size; shrink it to a fixed one"
    )


def wrapped(x: Self, axis: int, start: Any, stop: Any, times: int) -> Self:
    """The part from `start` to `stop` of an axis repeated `times` times."""
    counts = [1] * x.ndim
    counts[axis] = times
    cut: list[Any] = [None] * x.ndim
    cut[axis] = (start, stop)
    return x.repeat(tuple(counts)).shrink(cut)


def padding_pairs(padding: Sequence[Any], shape: tuple[Any, ...]) -> list[tuple[Any, Any]]:
    """(before, after) of each axis, from pairs or from flat numbers that begin at the last axis."""
    parts = list(padding)
    if all(p is None or isinstance(p, (tuple, list)) for p in parts):
        if len(parts) != len(shape):
            raise ShapeError(
                f"pad: {len(parts)} pairs for the {len(shape)} axes of {show_shape(shape)}"
            )
        pairs: list[tuple[Any, Any]] = []
        for p in parts:
            if p is not None and len(p) != 2:
                raise ShapeError(f"pad: {p!r} is no pair (before, after)")
            pairs.append((0, 0) if p is None else (p[0], p[1]))
        return pairs
    if any(isinstance(p, (tuple, list)) for p in parts) or len(parts) % 2:
        raise ShapeError(f"pad: {tuple(parts)} is neither pairs nor an even count of numbers")
    if len(parts) // 2 > len(shape):
        raise ShapeError(
            f"pad: {len(parts)} numbers for {len(shape)} axes of {show_shape(shape)}; "
            "two for each axis are possible"
        )
    ends = [(parts[i], parts[i + 1]) for i in range(0, len(parts), 2)]
    return [(0, 0)] * (len(shape) - len(ends)) + ends[::-1]


def pad_with(x: Self, pairs: list[tuple[Any, Any]], value: float) -> Self:
    """`x` with `value` around it, as what both of them promote to."""
    if isinstance(value, (int, float)) and x.dtype.kind != "float":
        # A number that our dtype cannot be beside makes another of it; a whole one can.
        value = int(value) if value - value == 0 and value == int(value) else value
        if x.dtype is not dtypes.bool or value not in (0, 1):
            x = x.cast(least_upper_dtype(x.dtype, x._operand(value, "pad").dtype))
    if any(is_zero(s) for s in x.shape):
        shape = tuple([s + b + a for s, (b, a) in zip(x.shape, pairs, strict=True)])
        return x._linked(x._full_of(shape, value))
    padded = x._pad_zeros(pairs)
    if padded is x or (value == 0 and math.copysign(1.0, value) > 0):
        return padded
    inside = x.from_uop(UOp.const(dtypes.bool, True), False)._broadcast_to(x.shape)
    return inside._pad_zeros(pairs).where(padded, x._scalar(value))


def pad_axis(x: Self, axis: int, pair: tuple[Any, Any], mode: str) -> Self:
    """One axis padded with content of its own."""
    before, after = pair
    if is_zero(before) and is_zero(after):
        return x
    size = x.shape[axis]
    if not all(isinstance(n, int) for n in (before, after, size)):
        raise SymbolicSizeError(
            f"pad: mode {mode!r} with a symbolic size on axis {axis}; only 'constant' is possible"
        )
    if size == 0 or (mode == "reflect" and max(before, after) >= size):
        raise ShapeError(
            f"pad: mode {mode!r} with {before} and {after} on axis {axis} of size "
            f"{size}, which has too few elements"
        )
    if mode == "circular":
        if max(before, after) > size:
            raise ShapeError(
                f"pad: mode 'circular' with {before} and {after} on axis {axis} of "
                f"size {size}; it goes around once at most, at each end"
            )
        left = ceildiv(before, size)
        times = left + 1 + ceildiv(after, size)
        return wrapped(x, axis, left * size - before, left * size + size + after, times)

    def part(start: int, stop: int) -> Self:
        cut: list[Any] = [None] * x.ndim
        cut[axis] = (start, stop)
        return x.shrink(cut)

    parts = [x]
    if mode == "reflect":
        if before:
            parts.insert(0, part(1, before + 1).flip(axis))
        if after:
            parts.append(part(size - 1 - after, size - 1).flip(axis))
    else:
        for count, edge, place in ((before, 0, 0), (after, size - 1, len(parts) + 1)):
            if count:
                shape = tuple([count if i == axis else s for i, s in enumerate(x.shape)])
                parts.insert(place, part(edge, edge + 1)._broadcast_to(shape))
    return parts[0].cat(*parts[1:], dim=axis) if len(parts) > 1 else x
