"""Reads by index: ints, slices, None, Ellipsis, and tensors of ints or bools.

Receives what stands in square brackets; returns tensors. Slices become movement; a tensor of
indices becomes one INDEX node over all axes. Writing by index stands in `ops.assign`.

Plain ints select before tensors of indices do, as in PyTorch: `x[0, :, i]` is `x[0][:, i]`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from aster_ml.config import CHECK_INDEX
from aster_ml.dtype import dtypes
from aster_ml.engine.launch import is_recording
from aster_ml.errors import (
    ArgumentError,
    DeviceError,
    DTypeError,
    IndexRangeError,
    IndexShapeError,
    ShapeError,
)
from aster_ml.helpers import all_int, kind_of
from aster_ml.late import late
from aster_ml.ops import Self
from aster_ml.ops.handle import Handle, number_everywhere
from aster_ml.ops.masks import is_plain, mask_indices
from aster_ml.ops.movement import MovementMixin, broadcast_shapes, is_symbolic
from aster_ml.ops.sizes import size_between
from aster_ml.uop.infer import show_shape
from aster_ml.uop.node import UOp, index_alu, to_uop
from aster_ml.uop.ops import MOVEMENT, Ops

if TYPE_CHECKING:
    from aster_ml.runtime import foreign
else:
    foreign = late("runtime.foreign")


H = TypeVar("H", bound=Handle)
M = TypeVar("M", bound=MovementMixin)


class Span(NamedTuple):
    """A slice of an axis: `count` elements from `start` on, `step` apart."""

    start: Any
    count: Any
    step: int


class Picked(NamedTuple):
    """An axis indexed by a tensor. `checked`: every index is known to be inside the axis."""

    index: Any
    checked: bool


# What stands for one axis of the source or, None, for a new axis of the result; an int or a size
# takes one element and its axis away.
Entry = Any


class Parsed(NamedTuple):
    """An index, entry by entry; one entry for each axis of the source, and None between them."""

    entries: list[Entry]
    # Per axis of the source, what is cut out by movement.
    spans: list[Span]

    @property
    def kept_shape(self) -> tuple[Any, ...]:
        """Sizes after cutting, axes of ints still there."""
        return tuple([span.count for span in self.spans])

    @property
    def shape(self) -> tuple[Any, ...]:
        """Sizes after cutting, without axes of ints, with new axes."""
        sizes: list[Any] = []
        counts = iter(self.spans)
        for entry in self.entries:
            if entry is None:
                sizes.append(1)
                continue
            span = next(counts)
            if isinstance(entry, (Span, Picked)):
                sizes.append(span.count)
        return tuple(sizes)

    @property
    def picked(self) -> list[tuple[int, Picked]]:
        """Axes of the cut value that tensors index."""
        kept = [e for e in self.entries if e is None or isinstance(e, (Span, Picked))]
        return [(i, e) for i, e in enumerate(kept) if isinstance(e, Picked)]


def getitem(self: Self, indices: Any) -> Self:
    """Reads by index: `self[indices]`."""
    parsed = parse_indices(self, indices)
    # Parts that lie on several devices are brought together where they are wanted.
    node = cut_node(self.uop, parsed)
    cut = self if node is self.uop else self.view_as(node)
    picked = parsed.picked
    return pick(cut, picked) if picked else cut


# parsing


def parse_indices(x: Handle, indices: Any) -> Parsed:
    """Parses the indices in brackets, checked against the shape of `x`.

    Raises: IndexRangeError for too many indices, for ints outside their axis and for things that
    are no index; ArgumentError for a step of 0.
    """
    # A list of numbers (or of bools, however deep) is one index; any other is one an axis, as a
    # tuple is.
    several = indices.__class__ is list and not is_plain(indices)
    items = list(indices) if several or isinstance(indices, tuple) else [indices]
    items = [as_index(x, item) for item in items]
    used = sum(axes_used(item) for item in items)
    dots = [i for i, item in enumerate(items) if item is Ellipsis]
    if len(dots) > 1:
        raise IndexRangeError(f"index: {len(dots)} times `...`; a single ellipsis is possible")
    if used > x.ndim:
        raise IndexRangeError(
            f"index: {used} indices are too many for the {x.ndim} axes of {show_shape(x.shape)}"
        )
    fill = [slice(None)] * (x.ndim - used)
    at = dots[0] if dots else len(items)
    items = items[:at] + fill + items[at + 1 :]
    entries: list[Entry] = []
    spans: list[Span] = []
    axis = 0
    for item in items:
        if item is None:
            entries.append(None)
            continue
        if isinstance(item, Handle) and item.dtype is dtypes.bool:
            picks = [Picked(index, True) for index in mask_indices(x, item, axis)]
            entries += picks
            spans += [Span(0, x.shape[axis + i], 1) for i in range(len(picks))]
            axis += len(picks)
            continue
        size = x.shape[axis]
        entry = axis_entry(item, axis, size, x)
        entries.append(entry)
        if isinstance(entry, Picked):
            spans.append(Span(0, size, 1))
        else:
            spans.append(entry if isinstance(entry, Span) else Span(entry, 1, 1))
        axis += 1
    return Parsed(entries, spans)


def as_index(x: Handle, item: Any) -> Any:
    """An item in the brackets as None, Ellipsis, int, size, slice, tensor or checked array."""
    if item is None or item is Ellipsis or isinstance(item, (slice, Handle)) or is_symbolic(item):
        return item
    if isinstance(item, (bool, np.bool_)):
        raise IndexRangeError(
            f"index: {item} is a bool; an int, a slice or a mask of shape "
            f"{show_shape(x.shape[:1])} would do"
        )
    if isinstance(item, (list, tuple, np.ndarray)):
        item = foreign.resolved(item)
        try:
            array = np.asarray(item)
        except ValueError:
            raise IndexRangeError(f"index: {item!r} is a ragged list") from None
        if array.size == 0 and isinstance(item, (list, tuple)):
            array = array.astype(np.int64)
        if array.dtype.kind == "b":
            return x.__class__(array, device=x.device)  # type: ignore[call-arg]
        if array.dtype.kind not in "iu":
            raise IndexRangeError(
                f"index: elements of {str(item)[:40]} are no ints ({array.dtype})"
            )
        return array
    if hasattr(item, "__dlpack__") and not isinstance(item, np.generic):
        # An array of another package.
        return x.__class__(item, device=x.device)  # type: ignore[call-arg]
    if isinstance(item, np.generic) and not isinstance(item, np.integer):
        item = item.item()
    if not hasattr(item, "__index__"):
        raise IndexRangeError(
            f"index: {str(item)[:40]} is {kind_of(item)}; an int, slice, None, ..., or a "
            "tensor or list of ints or bools is wanted"
        )
    return item.__index__()


def axes_used(item: Any) -> int:
    """Number of axes of the source that an item stands for."""
    if item is None or item is Ellipsis:
        return 0
    return item.ndim if isinstance(item, Handle) and item.dtype is dtypes.bool else 1


def axis_entry(item: Any, axis: int, size: Any, x: Handle) -> Entry:
    """One item against its axis."""
    if isinstance(item, int):
        if isinstance(size, int):
            if not -size <= item < size:
                raise IndexRangeError(
                    f"index {item} is out of bounds of axis {axis}, which has "
                    f"size {size}, of {show_shape(x.shape)}"
                )
            return item % size
        return item if item >= 0 else size + item
    if isinstance(item, slice):
        return slice_span(item, axis, size)
    if is_symbolic(item):
        low, high = (item.val, item.val) if item.op is Ops.BIND else item.bounds
        if isinstance(size, int) and (low >= size or high < 0):
            raise IndexRangeError(
                f"index {low if low == high else item} is out of bounds of axis "
                f"{axis}, which has size {size}, of {show_shape(x.shape)}"
            )
        return item
    if isinstance(item, np.ndarray):
        if not isinstance(size, int):
            item = x.__class__(item, device=x.device)  # type: ignore[call-arg]
        else:
            wrong = item[(item < -size) | (item >= size)]
            if wrong.size:
                raise IndexRangeError(
                    f"index {int(wrong.flat[0])} is out of bounds of axis "
                    f"{axis}, which has size {size}, of {show_shape(x.shape)}"
                )
            inside = np.where(item < 0, item + size, item).astype(np.int64)
            dtype = dtypes.int32 if size <= 1 << 31 else dtypes.int64
            made = x.__class__(inside, x.device, dtype)  # type: ignore[call-arg]
            return Picked(made, True)
    if item.dtype.kind not in ("int", "uint", "index"):
        raise IndexRangeError(
            f"index: a tensor of {item.dtype.name} on axis {axis}; ints or bools are wanted"
        )
    check_inside("index", item, axis, size, x.shape)
    return Picked(item, False)


def check_inside(
    what: str,
    index: Any,
    axis: int,
    size: Any,
    shape: tuple[Any, ...],
    is_class: bool = False,
    ignored: int | None = None,
) -> None:
    """With CHECK_INDEX=1, raises IndexRangeError unless all of a tensor's ints are inside an axis.

    Those of classes do not count from the end; `ignored` may stand for none. What bounds show to be
    inside is not read, nor is anything while a function is recorded.
    """
    if not CHECK_INDEX or not all_int((size, *index.shape)) or is_recording():
        return
    least = 0 if is_class else -size
    low, high = value_bounds(index.uop)
    if least <= low and high < size:
        return
    values = index.detach().numpy()
    wrong = (values < least) | (values >= size)
    if ignored is not None:
        wrong &= values != ignored
    places = np.argwhere(wrong)
    if len(places):
        place = places[0].tolist()
        raise IndexRangeError(
            f"{what}: {'class' if is_class else 'index'} {values[tuple(place)]}, which stands at "
            f"{place} of {show_shape(index.shape)}, is out of bounds of axis {axis}, which has "
            f"size {size}, of {show_shape(shape)} ({len(places)} of {values.size} are)"
        )


def slice_span(item: slice, axis: int, size: Any) -> Span:
    """A slice as start, count and step."""
    parts = [item.start, item.stop, item.step]
    for i, part in enumerate(parts):
        if part is not None and not is_symbolic(part):
            if isinstance(part, Handle) or not hasattr(part, "__index__"):
                raise DTypeError(
                    f"index: {part!r} in a slice of axis {axis} is a "
                    f"{type(part).__name__}; an int is wanted"
                )
            parts[i] = part.__index__()
    if isinstance(parts[2], int) and parts[2] == 0:
        raise ArgumentError(
            f"index: a slice of axis {axis} has step 0; a positive or negative one is wanted"
        )
    if isinstance(size, int) and all(p is None or isinstance(p, int) for p in parts):
        start, stop, step = slice(*parts).indices(size)
        return Span(start, len(range(start, stop, step)), step)
    if parts[2] not in (None, 1):
        raise ArgumentError(
            f"index: step {parts[2]} on axis {axis} with symbolic sizes; only 1 is possible"
        )
    start, stop = 0 if parts[0] is None else parts[0], size if parts[1] is None else parts[1]
    start, stop = [size + p if greatest(p) < 0 else p for p in (start, stop)]
    if isinstance(stop, int) and isinstance(size, int):
        stop = min(stop, size)
    return Span(start, size_between(start, stop), 1)


def greatest(size: Any) -> int:
    """The largest value of a size."""
    return size if isinstance(size, int) else int(size.vmax)


# cutting by movement


def cut_spans(x: M, spans: list[Span]) -> M:
    """The elements of all spans, by movement; every axis of `x` stays."""
    shape = x.shape
    flips = [i for i, span in enumerate(spans) if span.step < 0]
    if flips:
        x = x.flip(tuple(flips))
        spans = [
            Span(shape[i] - 1 - s.start, s.count, -s.step) if s.step < 0 else s
            for i, s in enumerate(spans)
        ]
    windows, offsets = [], []
    for span, size in zip(spans, shape, strict=True):
        window, offset = stride_window(span, size)
        windows.append(window)
        offsets.append(offset)
    x = x.shrink(windows)
    if all(span.step == 1 or is_zero(span.count) for span in spans):
        return x
    whole = [span.count * span.step for span in spans]
    x = x._pad_zeros([(0, w - have) for w, have in zip(whole, x.shape, strict=True)])
    split: list[Any] = []
    cut: list[Any] = []
    for span, offset in zip(spans, offsets, strict=True):
        if span.step == 1 or is_zero(span.count):
            split.append(span.count)
            cut.append(None)
        else:
            split += [span.count, span.step]
            cut += [None, (offset, offset + 1)]
    return x.reshape(tuple(split)).shrink(cut).reshape(tuple([span.count for span in spans]))


def cut_node(node: UOp, parsed: Parsed) -> UOp:
    """Applies the ints and slices of an index to a node, new axes put in."""
    return cut_spans(node, parsed.spans).reshape(parsed.shape)


def is_zero(size: Any) -> bool:
    """Whether a size is the number 0."""
    return isinstance(size, int) and size == 0


def stride_window(span: Span, size: Any) -> tuple[tuple[Any, Any], int]:
    """The part of the axis to cut into groups of `step`, and which of each group is wanted.

    A whole number of groups that lies inside the axis needs no padding.
    """
    start, count, step = span
    if step == 1 or is_zero(count):
        return (start, start + count), 0
    length, whole = (count - 1) * step + 1, count * step
    if start + whole <= size:
        return (start, start + whole), 0
    if start + length - whole >= 0:
        return (start + length - whole, start + length), step - 1
    return (start, start + length), 0


# picking by tensors


def common_shape(picked: list[tuple[int, Picked]]) -> tuple[Any, ...]:
    """The shape that all indices broadcast to.

    Raises: IndexShapeError where they do not.
    """
    try:
        return broadcast_shapes("index", *[p.index.shape for _, p in picked])
    except ShapeError as error:
        raise IndexShapeError(str(error)) from None


def pick(x: H, picked: list[tuple[int, Picked]]) -> H:
    """The elements of `x` at the indices that some axes have; 0 for indices outside."""
    axes = [axis for axis, _ in picked]
    common = common_shape(picked)
    others = [i for i in range(x.ndim) if i not in axes]
    adjacent = axes == list(range(axes[0], axes[0] + len(axes)))
    # Result: the axes of the indices where theirs were, or in front when those stood apart.
    before = [i for i in others if i < axes[0]] if adjacent else []
    after = [i for i in others if i not in before]
    shape = (*[x.shape[i] for i in before], *common, *[x.shape[i] for i in after])
    lead = len(before)
    nodes: list[UOp] = [to_uop(0)] * x.ndim
    valid: UOp | None = None
    for axis, p in picked:
        index = p.index.uop
        index = index.reshape((*index.shape, *(1,) * len(after)))
        node, ok = index_node(index, x.shape[axis], p.checked)
        nodes[axis] = spread_node(node, shape)
        if ok is not None:
            ok = spread_node(ok, shape)
            valid = ok if valid is None else valid.alu(Ops.AND, ok)
    for place, axis in enumerate(before):
        nodes[axis] = axis_iota(x.shape[axis], place, shape)
    for place, axis in enumerate(after):
        nodes[axis] = axis_iota(x.shape[axis], lead + len(common) + place, shape)
    return gather_nodes(x, nodes, valid, shape, [p.index for _, p in picked])


def gather_nodes(
    x: H, nodes: list[UOp], valid: UOp | None, shape: tuple[Any, ...], sources: list[Any]
) -> H:
    """INDEX of `x` at one index node an axis; 0 where `valid` does not hold."""
    if any(is_zero(s) for s in shape) or any(is_zero(s) for s in x.shape):
        return x._linked(x._full_of(shape, 0))
    for source in sources:
        if source.device != x.device:
            raise DeviceError(
                f"index: the indices are on {source.device}, the tensor on "
                f"{x.device}; .to({x.device!r}) moves them"
            )
    if number_everywhere(x.uop):
        found = x._full_of(shape, x.uop.base.arg)
    else:
        found = x._derive(x.uop.gather_at(*nodes))
    if valid is None:
        return found
    return x._derive(UOp(Ops.WHERE, x.dtype, (valid, found.uop, UOp.const(x.dtype, 0))))


def axis_iota(size: Any, place: int, shape: tuple[Any, ...]) -> UOp:
    """0, 1, 2, ... along axis `place` of a value of `shape`."""
    if not shape:
        return to_uop(0)
    node = UOp.iota(size).reshape((size, *(1,) * (len(shape) - 1 - place)))
    return node._broadcast_to(shape)


def spread_node(node: UOp, shape: tuple[Any, ...]) -> UOp:
    """An index node at `shape`; where all is one constant it stays without axes."""
    return node._broadcast_to(shape) if shape else node.reshape(())


def value_bounds(u: UOp) -> tuple[int, int]:
    """Bounds of an integer node, seen through movement."""
    padded = False
    while u.op in MOVEMENT:
        padded = padded or u.op is Ops.PAD
        u = u.src[0]
    low, high = u.vmin, u.vmax
    return (min(low, 0), max(high, 0)) if padded else (low, high)


def index_node(index: UOp, size: Any, checked: bool = False) -> tuple[UOp, UOp | None]:
    """User's ints as indices of an axis: negative ones count from the end.

    Returns the index, held inside the axis, and where it was inside, or None if it always is.
    """
    low, high = value_bounds(index)
    node = index if index.dtype is dtypes.index else UOp(Ops.CAST, dtypes.index, (index,))
    shape = index.shape
    if checked:
        return node, None
    if low < 0:
        below = UOp(Ops.CMPLT, dtypes.bool, (node, to_uop(0)))
        node = UOp(Ops.WHERE, dtypes.index, (below, index_alu(Ops.ADD, node, to_uop(size)), node))
    if isinstance(size, int) and -size <= low and high < size:
        return node, None
    last = to_uop(size - 1)
    inside = UOp(Ops.CMPLT, dtypes.bool, (node, to_uop(size)))
    if low < 0:
        outside = UOp(Ops.CMPLT, dtypes.bool, (node, to_uop(0)))
        inside = inside.alu(Ops.AND, outside.alu(Ops.CMPNE, UOp.const(dtypes.bool, True)))
    # The least of two is the negative of the greatest of negatives, whose bounds are known.
    negative = index_alu(Ops.MUL, node, to_uop(-1))
    held = index_alu(Ops.MAX, negative, index_alu(Ops.MUL, last, to_uop(-1)))
    held = index_alu(Ops.MAX, index_alu(Ops.MUL, held, to_uop(-1)), to_uop(0))
    return (held if held.shape == shape else held._broadcast_to(shape)), inside
