"""Defines the movement operations of UOp and Tensor, all over the one primitive `_mop`.

Receives sizes (ints, or index nodes where a size is symbolic) and checks them; returns the same
elements under other indices. Nothing here computes a value.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Self, cast

from aster_ml.errors import ArgumentError, IndexRangeError, ShapeError
from aster_ml.helpers import argfix, ceildiv, kind_of, prod
from aster_ml.ops.formula import rearrange
from aster_ml.ops.sizes import (
    inferred_size,
    same_count,
    same_size,
    size_between,
    size_ceildiv,
    size_sum,
)
from aster_ml.ops.symbol import value_now
from aster_ml.uop.infer import show_shape
from aster_ml.uop.ops import Ops

Sizes = tuple[Any, ...]


def broadcast_shapes(what: str, *shapes: Sizes) -> Sizes:
    """The shape to which all of them broadcast: sizes are equal, 1, or absent in front.

    Raises: ShapeError naming the axis and the shapes.
    """
    rank = max(map(len, shapes))
    result: list[Any] = []
    for axis in range(-rank, 0):
        size: Any = 1
        for shape in shapes:
            if -axis <= len(shape):
                other = shape[axis]
                if other is size or other == size or other == 1:
                    continue
                if not (size == 1 or same_size(size, other)):
                    shown = " and ".join(show_shape(s) for s in shapes)
                    raise ShapeError(
                        f"{what}: shapes {shown} do not broadcast: on axis {axis} sizes are "
                        f"{show_size(size)} and {show_size(other)}; equal sizes or 1 would do"
                    )
                size = other if size == 1 else size
        result.append(size)
    return tuple(result)


def show_size(size: Any) -> str:
    """A size as it stands in a shape."""
    return show_shape((size,))[1:-1]


def check_size(what: str, size: Any) -> Any:
    """A size as an int or index node.

    Raises: ShapeError for negative sizes; ArgumentError for what is no whole number.
    """
    if isinstance(size, int):
        if size < 0:
            raise ShapeError(f"{what}: size {size} is negative")
        return int(size)
    if is_symbolic(size):
        return size
    try:
        return check_size(what, size.__index__())
    except AttributeError:
        raise ArgumentError(
            f"{what}: {size!r} is {kind_of(size)}; a whole number is wanted as a size"
        ) from None


def is_symbolic(size: Any) -> bool:
    """Whether a size is a node instead of an int."""
    return hasattr(size, "op") and hasattr(size, "src")


def same_sizes(one: Sequence[Any], other: Sequence[Any]) -> bool:
    """Whether two shapes are equal for all values of their variables."""
    return len(one) == len(other) and all(map(same_size, one, other))


class MovementMixin:
    """The same elements under other indices. Stands beside ElementwiseMixin."""

    __slots__ = ()

    if TYPE_CHECKING:
        # What the mixin beside this one gives.
        _own: Callable[[], Self]

    @property
    def shape(self) -> Sizes:
        """Sizes, outermost first."""
        raise NotImplementedError

    def _mop(self, op: Ops, arg: Any) -> Self:
        """The movement node `op` with a complete, checked argument."""
        raise NotImplementedError

    def _seen_as(self, make: Callable[[Any], Any]) -> Self:
        """Applies `make` to self, movement alone, as one view, whatever it pads on the way."""
        return make(self)  # type: ignore[no-any-return]

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    def numel(self) -> Any:
        """Number of elements."""
        return prod(self.shape)

    def _resolve_axis(self, axis: int, what: str, extra: int = 0) -> int:
        """`axis` counted from the front; `extra` axes more may be named.

        Raises: IndexRangeError when there is no such axis; ArgumentError for what is no int.
        """
        rank = len(self.shape) + extra
        if not isinstance(axis, int) or isinstance(axis, bool):
            axis = axis_number(axis, what)
        # A scalar has no axis, yet reductions over "the last axis" of one are common and harmless.
        span = max(rank, 1)
        if not -span <= axis < span:
            raise IndexRangeError(
                f"{what}: axis {axis} of a value of {rank} axes, {show_shape(self.shape)}; "
                f"{-span} to {span - 1} would do"
            )
        return axis + span if axis < 0 else axis

    def _resolve_axes(self, axis: Any, what: str) -> tuple[int, ...]:
        """One axis, several, or None for all, counted from the front, each named once.

        Raises: IndexRangeError; ArgumentError when an axis is named twice.
        """
        if axis is None:
            return tuple(range(len(self.shape)))
        if isinstance(axis, int):
            found: tuple[int, ...] = (self._resolve_axis(axis, what),)
        elif not hasattr(axis, "__iter__"):
            raise ArgumentError(
                f"{what}: axis {axis!r} is {kind_of(axis)}; an int, or several, is wanted"
            )
        else:
            found = tuple([self._resolve_axis(a, what) for a in axis])
            if len(set(found)) != len(found):
                raise ArgumentError(f"{what}: axes {tuple(axis)} name one axis twice")
        return found if self.shape else ()

    # the primitives

    def reshape(self, shape: Any, *args: Any) -> Self:
        """The same elements in the same order in another shape; one size may be -1.

        `None` keeps the size that stands there.

        Shapes: self [*b, n, m], shape=(*b, n * m) -> [*b, n * m];
            self [*b, n], shape=(-1, n) -> [prod(b), n].
        Raises: ShapeError when the numbers of elements differ.
        """
        old = self.shape
        new: list[Any] = []
        unknown = -1
        for i, size in enumerate(argfix(shape, *args)):
            if size is None:
                if i >= len(old):
                    raise ShapeError(
                        f"reshape: None keeps the size of axis {i}, and "
                        f"{show_shape(old)} has no such axis"
                    )
                size = old[i]
            elif isinstance(size, int) and size == -1:
                if unknown >= 0:
                    raise ShapeError(
                        f"reshape: only one size can be -1, given {argfix(shape, *args)}"
                    )
                unknown = i
            else:
                size = check_size("reshape", size)
            new.append(size)
        if unknown >= 0:
            new[unknown] = inferred_size(old, [s for i, s in enumerate(new) if i != unknown])
        result = tuple(new)
        if result == old:
            return self
        if not same_count(old, result):
            raise ShapeError(
                f"reshape: {show_shape(old)} has {show_size(prod(old))} elements, "
                f"{show_shape(result)} has {show_size(prod(result))}"
            )
        return self._mop(Ops.RESHAPE, result)

    def view(self, shape: Any, *args: Any) -> Self:
        """`reshape` under another name."""
        return self.reshape(shape, *args)

    def expand(self, shape: Any, *args: Any) -> Self:
        """Axes of size 1 repeated; missing axes in front are added; -1 and None keep a size.

        Shapes: self [*b, 1, m], shape=(*b, n, m) -> [*b, n, m].
        Raises: ShapeError for an axis whose size is neither 1 nor the one wanted.
        """
        want = list(argfix(shape, *args))
        old = self.shape
        if len(want) < len(old):
            raise ShapeError(f"expand: {show_shape(old)} has more axes than the {len(want)} wanted")
        full = (1,) * (len(want) - len(old)) + old
        for i, (size, have) in enumerate(zip(want, full, strict=True)):
            if size is None or (isinstance(size, int) and size == -1):
                want[i] = have
                continue
            want[i] = check_size("expand", size)
            if not (have == 1 or same_size(have, want[i])):
                raise ShapeError(
                    f"expand: axis {i} of {show_shape(full)} has size {show_size(have)}, which "
                    f"does not repeat to {show_size(want[i])} in {show_shape(tuple(want))}"
                )
        return self._broadcast_to(tuple(want))

    def _broadcast_to(self, shape: Sizes) -> Self:
        """Self repeated to `shape`, which it is known to broadcast to."""
        old = self.shape
        if old == shape:
            return self
        full = (1,) * (len(shape) - len(old)) + old
        if not all([have.__class__ is int for have in old]):
            # A symbolic size that is written in another way takes the way that `shape` has it.
            full = tuple(
                [
                    have if have == 1 or not same_size(have, want) else want
                    for have, want in zip(full, shape, strict=True)
                ]
            )
        value = self if full == old else self._mop(Ops.RESHAPE, full)
        return value if full == shape else value._mop(Ops.EXPAND, shape)

    def permute(self, order: Any, *args: Any) -> Self:
        """The axes in another order: axis i of the result is axis order[i] of self.

        Shapes: self [n, m, k], order=(2, 0, 1) -> [k, n, m].
        Raises: ShapeError unless every axis is named once.
        """
        axes = tuple([self._resolve_axis(a, "permute") for a in argfix(order, *args)])
        if sorted(axes) != list(range(self.ndim)):
            raise ShapeError(
                f"permute: {argfix(order, *args)} does not name each of the {self.ndim} axes of "
                f"{show_shape(self.shape)} once"
            )
        return self if axes == tuple(range(len(axes))) else self._mop(Ops.PERMUTE, axes)

    def flip(self, axis: Any, *args: Any) -> Self:
        """The named axes reversed.

        Shapes: self [n, m], axis=(0, 1) -> [n, m].
        """
        axes = self._resolve_axes(argfix(axis, *args), "flip")
        axes = tuple(sorted([a for a in axes if not self.shape[a] == 1]))
        return self._mop(Ops.FLIP, axes) if axes else self

    def shrink(self, arg: Sequence[Any]) -> Self:
        """Each axis cut to (start, stop); None leaves an axis whole.

        Shapes: self [n, m], arg=((0, n - 1), None) -> [n - 1, m]; n > 1.
        Raises: ShapeError for parts outside the axis.
        """
        shape = self.shape
        if len(arg) != len(shape):
            raise ShapeError(
                f"shrink: {len(arg)} pairs for the {len(shape)} axes of {show_shape(shape)}"
            )
        pairs = []
        for i, (pair, size) in enumerate(zip(arg, shape, strict=True)):
            start, stop = (0, size) if pair is None else pair
            low, high, upper = start, stop, size
            if not (isinstance(low, int) and isinstance(high, int) and isinstance(size, int)):
                low, high, upper = value_now(start), value_now(stop), value_now(size)
            if low is not None and high is not None:
                if upper is None:
                    upper = size.bounds[1]
                if not 0 <= low <= high <= upper:
                    raise ShapeError(
                        f"shrink: part {show_size(start)} to {show_size(stop)} of axis {i}, which "
                        f"has size {show_size(size)} in {show_shape(shape)}"
                    )
            pairs.append((start, stop))
        if all(p == (0, s) for p, s in zip(pairs, shape, strict=True)):
            return self
        counts = [size_between(start, stop) for start, stop in pairs]
        if any(
            is_symbolic(start) and stop - start is not count
            for (start, stop), count in zip(pairs, counts, strict=True)
        ):
            # In two steps, first the start and then the size, the size is seen in simplest form.
            rest = [
                (a, s) if is_symbolic(a) else (a, b) for (a, b), s in zip(pairs, shape, strict=True)
            ]
            inner = self._mop(Ops.SHRINK, tuple(rest))
            return inner._mop(Ops.SHRINK, tuple([(0, count) for count in counts]))
        return self._mop(Ops.SHRINK, tuple(pairs))

    def _pad_zeros(self, pairs: Sequence[tuple[Any, Any]]) -> Self:
        """Zeros around each axis, (before, after), neither of them negative."""
        if all(isinstance(b, int) and isinstance(a, int) and b == a == 0 for b, a in pairs):
            return self
        padded = self._mop(Ops.PAD, tuple(pairs))
        if all(isinstance(s, int) for s in padded.shape):
            return padded
        sizes = zip(self.shape, pairs, strict=True)
        return padded._broadcast_to(tuple([size_sum(b, s, a) for s, (b, a) in sizes]))

    # what is composed of them

    def transpose(self, dim0: int = 1, dim1: int = 0) -> Self:
        """Two axes exchanged.

        Shapes: self [n, m] -> [m, n]; self [n, m, k], dim0=0, dim1=2 -> [k, m, n].
        """
        order = list(range(self.ndim))
        i, j = self._resolve_axis(dim0, "transpose"), self._resolve_axis(dim1, "transpose")
        if order:
            order[i], order[j] = order[j], order[i]
        return self.permute(tuple(order))

    @property
    def T(self) -> Self:
        """The axes in reverse order; of two axes, the transpose.

        Shapes: self [n, m] -> [m, n].
        """
        return self.permute(tuple(range(self.ndim))[::-1])

    def squeeze(self, dim: int | None = None) -> Self:
        """Without the axes of size 1, or without axis `dim` when its size is 1.

        Shapes: self [n, 1, m], dim=1 -> [n, m].
        """
        shape = self.shape
        if dim is None:
            return self.reshape(tuple([s for s in shape if not s == 1]))
        axis = self._resolve_axis(dim, "squeeze")
        if not shape or not shape[axis] == 1:
            return self
        return self.reshape(shape[:axis] + shape[axis + 1 :])

    def unsqueeze(self, dim: int) -> Self:
        """With one more axis of size 1, at position `dim`.

        Shapes: self [n, m], dim=1 -> [n, 1, m]; self [n, m], dim=-1 -> [n, m, 1].
        """
        axis = self._resolve_axis(dim, "unsqueeze", 1)
        return self.reshape(self.shape[:axis] + (1,) + self.shape[axis:])

    def flatten(self, start_dim: int = 0, end_dim: int = -1) -> Self:
        """The axes from `start_dim` to `end_dim`, both included, as one.

        Shapes: self [n, *b] -> [n * prod(b)]; self [n, m, k], start_dim=1 -> [n, m * k].
        """
        start = self._resolve_axis(start_dim, "flatten")
        end = self._resolve_axis(end_dim, "flatten")
        if end < start:
            raise ArgumentError(f"flatten: axis {end_dim} stands before axis {start_dim}")
        shape = self.shape
        return self.reshape(shape[:start] + (prod(shape[start : end + 1]),) + shape[end + 1 :])

    def unflatten(self, dim: int, sizes: tuple[int, ...]) -> Self:
        """Axis `dim` as several axes; one of the sizes may be -1.

        Shapes: self [n * m, k], dim=0, sizes=(n, m) -> [n, m, k].
        """
        axis = self._resolve_axis(dim, "unflatten")
        shape = self.shape
        parts = tuple(sizes)
        if any(isinstance(s, int) and s == -1 for s in parts):
            known = [s for s in parts if not (isinstance(s, int) and s == -1)]
            missing = inferred_size((shape[axis],), known, "unflatten")
            parts = tuple([missing if isinstance(s, int) and s == -1 else s for s in parts])
        if not same_count(parts, (shape[axis],)):
            raise ShapeError(
                f"unflatten: axis {axis} has {show_size(shape[axis])} elements, "
                f"{show_shape(parts)} has {show_size(prod(parts))}"
            )
        return self.reshape(shape[:axis] + parts + shape[axis + 1 :])

    def shrink_to(self, shape: Any, *args: Any) -> Self:
        """The first elements of each axis, as many as `shape` says; None leaves an axis whole.

        Shapes: self [n + 1, m], shape=(n, m) -> [n, m].
        """
        return self.shrink([None if s is None else (0, s) for s in argfix(shape, *args)])

    def pad_to(self, shape: Any, *args: Any) -> Self:
        """Zeros after the last element of each axis up to `shape`; None leaves an axis as it is.

        Shapes: self [n, m], shape=(n + 2, m) -> [n + 2, m].
        Raises: ShapeError where self is larger than `shape`.
        """
        want = argfix(shape, *args)
        if len(want) != self.ndim:
            raise ShapeError(
                f"pad_to: {len(want)} sizes for the {self.ndim} axes of {show_shape(self.shape)}"
            )
        pairs = [(0, 0) if w is None else (0, w - s) for w, s in zip(want, self.shape, strict=True)]
        for i, (_, after) in enumerate(pairs):
            if isinstance(after, int) and after < 0:
                raise ShapeError(
                    f"pad_to: axis {i} of {show_shape(self.shape)} is larger than the "
                    f"{show_size(want[i])} wanted; shrink_to makes it smaller"
                )
        return self._pad_zeros(pairs)._own()

    def repeat(self, repeats: Any, *args: Any) -> Self:
        """The whole laid out `repeats[i]` times along axis i; missing axes are added in front.

        Shapes: self [n, m], repeats=(2, 3) -> [2 * n, 3 * m].
        """
        return self._tiled(repeats, *args)._own()

    def _tiled(self, repeats: Any, *args: Any) -> Self:
        """`repeat` as a view."""
        counts = tuple([check_size("repeat", r) for r in argfix(repeats, *args)])
        if len(counts) < self.ndim:
            raise ShapeError(
                f"repeat: {len(counts)} counts for the {self.ndim} axes of {show_shape(self.shape)}"
            )
        base = (1,) * (len(counts) - self.ndim) + self.shape
        whole: Any = self
        if whole.device.__class__ is tuple and whole.uop.axis is not None:
            along = whole.uop.axis
            at = along + len(counts) - self.ndim
            if isinstance(counts[at], int) and counts[at] > 1:
                # Copies side by side would lie on other devices than their elements.
                joined = whole.cat(*[whole] * (counts[at] - 1), dim=along)
                return cast(Self, joined._tiled((*counts[:at], 1, *counts[at + 1 :])))
        split = tuple([s for size in base for s in (1, size)])
        full = tuple([s for r, size in zip(counts, base, strict=True) for s in (r, size)])
        final = tuple([r * size for r, size in zip(counts, base, strict=True)])
        return self.reshape(split)._broadcast_to(full).reshape(final)

    def repeat_interleave(self, repeats: int, dim: int | None = None) -> Self:
        """Each element along `dim` (of the flattened value when None) `repeats` times in a row.

        Shapes: self [n, m], repeats=3, dim=1 -> [n, m * 3].
        """
        value = self.flatten() if dim is None else self
        axis = 0 if dim is None else self._resolve_axis(dim, "repeat_interleave")
        count = check_size("repeat_interleave", repeats)
        shape = value.shape
        wide = value.reshape(shape[: axis + 1] + (1,) + shape[axis + 1 :])
        wide = wide._broadcast_to(shape[: axis + 1] + (count,) + shape[axis + 1 :])
        return wide.reshape(shape[:axis] + (shape[axis] * count,) + shape[axis + 1 :])._own()

    def unfold(self, dim: int, size: Any, step: int) -> Self:
        """Windows of `size` elements along `dim`, `step` apart, on a new last axis.

        Shapes: self [n, m], dim=0, size=2, step=1 -> [n - 1, m, 2]; n > 1.
        """
        axis = self._resolve_axis(dim, "unfold")
        length = self.shape[axis]
        if not isinstance(step, int) or step < 1:
            raise ArgumentError(f"unfold: step {step!r}; a positive whole number is wanted")
        if isinstance(size, int) and not 0 <= size <= length:
            raise ShapeError(
                f"unfold: windows of {size} do not fit axis {axis}, which has size "
                f"{show_size(length)}"
            )
        order = tuple([i for i in range(self.ndim) if i != axis] + [axis])
        rank = self.ndim
        # The count of windows stands second to last and moves to where the axis was.
        back = list(range(rank - 1))
        back.insert(axis, rank - 1)
        back.append(rank)
        return self._seen_as(
            lambda x: x.permute(order)._last_axis_windows(size, step).permute(tuple(back))
        )

    def _last_axis_windows(self, size: Any, step: int = 1, dilation: int = 1) -> Self:
        """Windows along the last axis: [..., n] -> [..., windows, size], by movement alone.

        The row is repeated so often that each window starts one row and `step` elements after the
        one before; cutting and reshaping then lays the windows below one another.
        """
        *lead, n = self.shape
        count = size_ceildiv(n - dilation * (size - 1), step)
        if isinstance(count, int) and count <= 0:
            raise ShapeError(f"windows of {show_size(size)} do not fit {show_size(n)} elements")
        if isinstance(n, int) and n == 0:
            # Windows of no elements, of none.
            return self.reshape((*lead, count, 0))
        # A row of n + dilation elements, repeated, brings element k * dilation to column k.
        per = n + dilation
        times = ceildiv(size * per, n)
        row = self._tiled((*(1,) * len(lead), times))
        row = row.shrink([*[None] * len(lead), (0, size * per)]).reshape((*lead, size, per))
        span = step * (count - 1) + 1
        row = row.shrink([*[None] * (len(lead) + 1), (0, span)])
        if step > 1:
            row = row._every_nth(step)
        rank = len(lead)
        return row.permute((*range(rank), rank + 1, rank))

    def _every_nth(self, step: int) -> Self:
        """Elements 0, step, 2 * step, ... of the last axis."""
        *lead, n = self.shape
        count = size_ceildiv(n, step)
        whole = self._pad_zeros([*[(0, 0)] * len(lead), (0, count * step - n)])
        parts = whole.reshape((*lead, count, step))
        return parts.shrink([*[None] * (len(lead) + 1), (0, 1)]).reshape((*lead, count))

    def rearrange(self, formula: str, **sizes: int) -> Self:
        """Axes split, reordered and merged as a formula says: `"b (h w) c -> b c h w", h=2`.

        Shapes: self [n, m, k], formula="a b c -> c (a b)" -> [k, n * m].
        Raises: ArgumentError for a formula that does not fit; ShapeError for sizes that do not.
        Source: einops.rearrange.
        """
        return rearrange(self, formula, sizes)  # type: ignore[no-any-return]


def axis_number(axis: Any, what: str) -> int:
    """An axis given as something else than a plain int."""
    if isinstance(axis, bool) or not hasattr(axis, "__index__"):
        raise ArgumentError(f"{what}: axis {axis!r} is {kind_of(axis)}; an int is wanted")
    return int(axis.__index__())
