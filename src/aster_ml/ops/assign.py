"""Writes tensors: assignment as a whole or by index, and the operators that work in place.

Receives a tensor and the value it is to have. A tensor that is memory is written where it lies, as
an effect that the engine orders; any other just names another node. What was built from a tensor
before keeps the old value; tensors that the written one is a view of see the new one.
"""

from __future__ import annotations

from typing import Any, cast

import numpy as np

from aster_ml.device import Buffer
from aster_ml.dtype import FLOAT_BITS, DType, can_lossless_cast, dtypes
from aster_ml.engine import storage
from aster_ml.engine.history import ASSIGNED, PASTS, has_past
from aster_ml.engine.readers import enter_new, shown_above
from aster_ml.engine.realized import find_realized
from aster_ml.errors import DeviceError, DTypeError, ShapeError, UnsupportedError
from aster_ml.helpers import prod
from aster_ml.ops import Self
from aster_ml.ops.data import array_of_list
from aster_ml.ops.devices import move
from aster_ml.ops.handle import (
    Handle,
    check_tensor,
    described,
    number_everywhere,
    own_memory,
)
from aster_ml.ops.index import (
    Parsed,
    Picked,
    Span,
    common_shape,
    cut_node,
    cut_spans,
    index_node,
    is_zero,
    parse_indices,
)
from aster_ml.ops.masks import mask_in, written_by_mask
from aster_ml.ops.movement import broadcast_shapes
from aster_ml.ops.sizes import same_size
from aster_ml.ops.views import (
    ONE_TO_ONE,
    is_view,
    places_in,
    shows_memory,
    target_in,
    under_view,
    unnamed,
)
from aster_ml.thread_state import SharedWeakSet
from aster_ml.uop.infer import max_shape, show_shape
from aster_ml.uop.node import UOp, index_alu, to_uop
from aster_ml.uop.ops import GRADIENT_MARKS, MOVEMENT, Ops

# Memory that results were realized to, and that of it which more than one tensor names: equal
# expressions are one node and share their memory, until one of the tensors is written to.
REALIZED: SharedWeakSet[UOp] = SharedWeakSet()
SHARED: SharedWeakSet[UOp] = SharedWeakSet()

# A value without memory takes so many writes by index in; with more it gets memory, since each of
# its elements would ask each of the writes.
MAX_OVERLAYS = 8


def note_memory(node: UOp, memory: UOp) -> None:
    """Records that a computed node is memory now; the second tensor to name it shares it."""
    if is_view(node):
        return
    for base in storage.buffers_below(memory):
        (SHARED if base in REALIZED else REALIZED).add(base)


def buffers_of(uop: UOp) -> list[UOp]:
    """The memory that a view shows, effects or not; one BUFFER a device."""
    while uop.op is not Ops.BUFFER and uop.op is not Ops.MULTI:
        uop = uop.src[0]
    return [uop] if uop.op is Ops.BUFFER else [b for s in uop.src for b in buffers_of(s)]


def write_file(target: Handle, value: Any) -> None:
    """Writes a value to the part of a file that `target` shows, at once.

    Raises: DeviceError where that part is not one row of bytes.
    """
    place = file_range(target.uop)
    if place is None:
        raise DeviceError(
            f"assign: {show_shape(target.shape)} is not one row of bytes of "
            f"{target.device}; only a contiguous part can be written"
        )
    node, start = place
    size = prod(target.shape)
    part = storage.buffer_of(node).view(size, target.dtype, start)
    # A number on DISK, and what is read from other files, is made where there are kernels.
    part.copyin(move(value, "CPU")._memory().as_memoryview())
    storage.note_overwritten([part])


def write_file_part(target: Any, indices: Any, value: Any) -> None:
    """Writes a value to what an index names of a file, at once.

    Rows of bytes are written alone; for anything else the file is read and written again.
    """
    part = None
    if mask_in(target, indices) is None:
        parsed = parse_indices(target, indices)
        if not parsed.picked and all([s.step == 1 for s in parsed.spans]):
            part = target[indices]
    if part is None or file_range(part.uop) is None:
        part, whole = target, move(target, "CPU")
        whole[indices] = move(value, "CPU")
        value = whole
    write_file(part, fit_value(value, part.shape))


def file_range(uop: UOp) -> tuple[UOp, int] | None:
    """The memory that a view shows a contiguous part of, and where the part begins in bytes."""
    start = 0
    while uop.op is not Ops.BUFFER:
        source = uop.src[0]
        if uop.op is Ops.SHRINK:
            step, whole = uop.dtype.itemsize, True
            for (low, high), size in reversed(list(zip(uop.marg, source.shape, strict=True))):
                if not whole and not same_size(high - low, 1):
                    return None
                whole = whole and high - low == size
                start += low * step
                step *= size
        elif uop.op not in (Ops.RESHAPE, Ops.BITCAST):
            return None
        uop = source
    return uop, start


def is_on_disk(handle: Handle) -> bool:
    """Whether a tensor is (part of) a file."""
    device = handle.device
    return device.__class__ is str and device.startswith("DISK")


def is_shared(handle: Handle) -> bool:
    """Whether other values name the memory of `handle`: they were equal when it was computed."""
    u = handle._whole
    if not shows_memory(u):
        # A view became memory, and what it is a view of did not.
        u = handle.uop
        if not shows_memory(u):
            return False
    origins: list[UOp] = []
    while u.op is not Ops.BUFFER and u.op is not Ops.MULTI:
        if u.op is Ops.AFTER:
            # It has been written to, or was made to be: then it is nobody else's.
            return False
        origins += storage.origins_of(u)
        u = u.src[0]
    if any([b in SHARED for b in storage.buffers_below(u)]):
        return True
    origins += storage.origins_of(u)
    # An effect that has run leaves the memory it wrote to; that is no other value.
    named = {node for node in origins if node.op is not Ops.AFTER}
    if not named:
        return False
    enter_new()
    return any(
        other is not handle and (other._cell is None or other._cell is not handle._cell)
        for node in named
        for ref in shown_above(node, ONE_TO_ONE)
        if (other := ref()) is not None
    )


def forget_origins(u: UOp) -> None:
    """Memory, seen in some way, that is written to next is the value of no expression any more.

    who builds one of those again gets its value, and not what is written
    """
    while u.op is not Ops.AFTER:
        for node in storage.origins_of(u):
            if node.op is not Ops.AFTER:
                storage.forget_node(node)
        if u.op is Ops.BUFFER or u.op is Ops.MULTI:
            break
        u = u.src[0]


def take_private_copy(node: UOp) -> None:
    """Gives a BUFFER node memory of its own where it has that of others (an array, bytes).

    What another package lends to be written to is written to.
    """
    buffer = storage.buffer_of(node)
    if buffer.opaque is None or buffer.is_lent():
        return
    if storage.names_of(buffer) == 1:
        buffer.take_own_memory()
        storage.CLOCK.exchanges += 1
    else:
        storage.attach(node, Buffer(buffer.device, buffer.size, buffer.dtype).copy_from(buffer))


def is_cut_apart(uop: UOp) -> bool:
    """Whether a view of memory on several devices shows what not every one of them has."""
    u = under_view(uop)
    return u.op is Ops.MULTI and is_view(u) and not is_view(uop)


def are_held(u: UOp, dtype: DType) -> bool:
    """Whether ints, by what is known of their range, are floats of a dtype as they are."""
    if u.dtype.kind not in ("int", "uint") or dtype.kind != "float":
        return False
    most = 1 << FLOAT_BITS[dtype][1] + 1
    low, high = u.base.bounds
    return bool(-most <= low and high <= most)


def without_detach(uop: UOp) -> UOp:
    """The view without marks that matter to gradients alone."""
    chain: list[UOp] = []
    u, marked = uop, False
    while u.op in MOVEMENT or u.op in GRADIENT_MARKS:
        if u.op in GRADIENT_MARKS:
            marked = True
        else:
            chain.append(u)
        u = u.src[0]
    if not marked:
        return uop
    for view in reversed(chain):
        u = UOp(view.op, view.dtype, (u, *view.src[1:]), view.arg)
    return u


def assign(self: Self, x: Any) -> Self:
    """Gives self the value `x`, which is copied, and with it all that shows it. Returns self.

    The value is repeated to our shape, and cast to our dtype where that loses nothing. What it
    reads of self it reads before anything is written (docs/reference/views.md).

    Raises: ShapeError, DTypeError or DeviceError where `x` does not fit in one of these;
    UnsupportedError for a view that shows one element several times, as expand does.
    """
    value = value_to_write(self, x)
    if unnamed(value) is unnamed(self.uop):
        return self
    if is_on_disk(self):
        write_file(self, self.from_uop(value, False))
    else:
        write(self, value)
        if x.__class__ is self.__class__ and x._requires_grad and value.dtype.kind == "float":
            self._note_written_everywhere()
    return self


def value_to_write(self: Self, x: Any) -> UOp:
    """The node of `x`, checked to fit self."""
    if isinstance(x, (bool, int, float)):
        return self.const_like(x).uop
    if not isinstance(x, Handle):
        x = value_like(self, x)
    if x.shape != self.shape:
        if broadcast_shapes("assign", x.shape, self.shape) != self.shape:
            raise ShapeError(
                f"assign: {show_shape(x.shape)} to {show_shape(self.shape)}; the value may "
                "be repeated, not what is written to"
            )
        x = x._broadcast_to(self.shape)
    if x.dtype is not self.dtype:
        if can_lossless_cast(x.dtype, self.dtype) or are_held(x.uop, self.dtype):
            return value_to_write(self, x.cast(self.dtype))
        raise DTypeError(
            f"assign: {x.dtype.name} to {self.dtype.name}; "
            f".cast({self.dtype.name!r}) makes the value fit"
        )
    if x.device != self.device and not is_on_disk(self):
        if number_everywhere(x.uop):
            return cast(UOp, move(x, self.device).uop)
        raise DeviceError(
            f"assign: a value on {x.device} to a tensor on {self.device}; "
            f".to({self.device!r}) moves it"
        )
    return cast(UOp, x.uop)


def write(self: Self, value: UOp, spans: list[Span] | None = None) -> None:
    """Writes `value` to what self shows, or to a part of it."""
    if any([is_zero(s) for s in value.shape]):
        return
    self._leave()
    if self._requires_grad is not True:
        self._old_nodes = None
    # What gradients may still need is not written over.
    is_kept = bool(PASTS.data) and has_past(self._whole)
    if self._steps is None and spans is None and (is_kept or not is_view(self._whole)):
        self._note_old_nodes()
        # What has no memory becomes another value; of memory that others name, a copy.
        self._whole = own_memory(value, self.device) if shows_memory(value) else value
        if self._old_nodes is not None:
            ASSIGNED.add(self.uop)
        return
    place = place_to_write(self)
    target = target_in(place, self._steps)
    if target is not None and spans is not None:
        cut = cut_spans(target, spans)
        if is_cut_apart(cut):
            value = overlay(self, spans, self.from_uop(value, False)).uop
        else:
            target = cut
    if target is not None and is_cut_apart(target):
        raise DeviceError(
            f"assign: {show_shape(self.shape)} is a part of a tensor that lies on several "
            "devices; write by index, x[a:b] = value, or assign to all of the tensor"
        )
    if value.dtype is not place.dtype:
        value = UOp(Ops.BITCAST, place.dtype, (value,))
    if target is None:
        target, value = place, value_in_layout(self, place, value)
    self._whole = place.after(target.store(value))


def place_to_write(self: Self) -> UOp:
    """The memory of what self is a view of, which nobody else names, as it is now."""
    whole = without_detach(self._whole)
    if not is_view(whole) or is_shared(self) or (PASTS.data and has_past(whole)):
        self._note_old_nodes()
        return own_memory(whole, self.device)
    for node in buffers_of(whole):
        take_private_copy(node)
    forget_origins(whole)
    # Writes that have happened are left out, unless gradients follow them.
    found = None if self._requires_grad else find_realized(whole)
    return whole if found is None else found


def value_in_layout(self: Self, place: UOp, value: UOp) -> UOp:
    """The whole `place` with `value` in it where self shows it."""
    places = places_in(place.shape, self._steps)
    count = prod(place.shape)
    source, hit = np.zeros(count, np.int32), np.zeros(count, np.bool_)
    source[places], hit[places] = np.arange(len(places)), True
    taken = self.from_uop(value, False).reshape((len(places),))[source]
    mask = self.__class__(hit, device=self.device)
    node = mask.uop.alu(Ops.WHERE, taken.uop, place.reshape((count,)))
    return node.reshape(place.shape)


def replace(self: Self, x: Self, allow_shape_mismatch: bool = False) -> Self:
    """Makes self another name for `x`, whose memory it shows from now on. Returns self.

    Raises: ShapeError where shapes differ, unless that is allowed.
    """
    check_tensor(x, "replace")
    if self.shape != x.shape and not allow_shape_mismatch:
        raise ShapeError(
            f"replace: {show_shape(x.shape)} for {show_shape(self.shape)}; the same shape is wanted"
        )
    if x is not self:
        self._show(x)
    return self


# by index


def delitem(self: Self, indices: Any) -> None:
    """Refuses `del x[i]`: a tensor keeps its elements."""
    raise DTypeError(
        "del: a tensor keeps its elements; a slice, `shrink` or `masked_select` is one without "
        "some of them"
    )


def setitem(self: Self, indices: Any, v: Any) -> None:
    """Writes `v`, repeated where it is smaller, to the part that the index names.

    Raises: UnsupportedError for a tensor that was set to require a gradient.
    """
    if self._requires_grad is True:
        raise UnsupportedError(
            f"assign: a part of {described(self)} is written, whose gradient would be that of "
            "another value; write to x.detach(), which is the same memory, or to a copy (x + 0)"
        )
    value = v if isinstance(v, Handle) else value_like(self, v)
    if value.dtype is not self.dtype:
        value = value.cast(self.dtype)
    if is_on_disk(self):
        write_file_part(self, indices, value)
        return
    if value.device != self.device:
        raise DeviceError(
            f"assign: a value on {value.device} to a tensor on {self.device}; "
            f".to({self.device!r}) moves it"
        )
    mask = mask_in(self, indices)
    if mask is not None:
        self.assign(written_by_mask(self, mask, value))
        return
    parsed = parse_indices(self, indices)
    if unnamed(cut_node(self.uop, parsed)) is unnamed(value.uop):
        return
    if parsed.picked:
        self.assign(scatter_picked(self, parsed, value))
        return
    value = fit_value(value, parsed.shape).reshape(parsed.kept_shape)
    if any(is_zero(s) for s in parsed.kept_shape):
        return
    self._leave()
    alone = self._cell is None
    if target_in(self._whole, self._steps) is None or (
        alone and not is_view(self.uop) and overlays_of(self.uop) < MAX_OVERLAYS
    ):
        self.assign(overlay(self, parsed.spans, value))
        return
    windows = whole_windows(parsed.spans, self.shape, value)
    if len(windows) > 1:
        # All of them are read before the first is written.
        windows = [(spans, part._own()) for spans, part in windows]
    for spans, part in windows:
        write(self, part.uop, spans)
    if value._requires_grad:
        self._note_written_everywhere()


# in place


def iadd(self: Self, x: Any) -> Self:
    """Overwrites self with `self + x`: `self += x`."""
    return self.assign(self.add(x))


def isub(self: Self, x: Any) -> Self:
    """Overwrites self with `self - x`: `self -= x`."""
    return self.assign(self.sub(x))


def imul(self: Self, x: Any) -> Self:
    """Overwrites self with `self * x`: `self *= x`."""
    return self.assign(self.mul(x))


def itruediv(self: Self, x: Any) -> Self:
    """Overwrites self with `self / x`: `self /= x`."""
    return self.assign(self / x)


def ifloordiv(self: Self, x: Any) -> Self:
    """Overwrites self with `self // x`: `self //= x`."""
    return self.assign(self // x)


def imod(self: Self, x: Any) -> Self:
    """Overwrites self with `self % x`: `self %= x`."""
    return self.assign(self % x)


def ipow(self: Self, x: Any) -> Self:
    """Overwrites self with `self ** x`: `self **= x`."""
    return self.assign(self**x)


def iand(self: Self, x: Any) -> Self:
    """Overwrites self with `self & x`: `self &= x`."""
    return self.assign(self & x)


def ior(self: Self, x: Any) -> Self:
    """Overwrites self with `self | x`: `self |= x`."""
    return self.assign(self | x)


def ixor(self: Self, x: Any) -> Self:
    """Overwrites self with `self ^ x`: `self ^= x`."""
    return self.assign(self ^ x)


def ilshift(self: Self, x: Any) -> Self:
    """Overwrites self with `self << x`: `self <<= x`."""
    return self.assign(self << x)


def irshift(self: Self, x: Any) -> Self:
    """Overwrites self with `self >> x`: `self >>= x`."""
    return self.assign(self >> x)


def overlays_of(u: UOp) -> int:
    """Counts the writes by index in a value without memory, up to as many as it may have."""
    count = 0
    while u.op is Ops.WHERE and count < MAX_OVERLAYS:
        u = u.src[2]
        count += 1
    return count


def value_like(x: Any, v: Any) -> Any:
    """A value given as a number, list or array, with the dtype of `x`.

    Raises: NumberRangeError for a number, or one in a list, that an int dtype does not hold.
    """
    if isinstance(v, (bool, int, float)):
        return x._full_of((), v)
    if isinstance(v, (list, tuple)):
        v = array_of_list(v, x.dtype, wraps=False)
    return x.__class__(v, device=x.device, dtype=x.dtype)


def fit_value(value: Any, shape: tuple[Any, ...]) -> Any:
    """A value repeated to the shape that is written; leading axes of size 1 may be too many."""
    while value.ndim > len(shape) and value.shape[0] == 1:
        value = value.reshape(value.shape[1:])
    if broadcast_shapes("assign", value.shape, shape) != shape:
        raise ShapeError(
            f"assign: a value of {show_shape(value.shape)} to a part of "
            f"{show_shape(shape)}; the value may be repeated, not the part"
        )
    return value._broadcast_to(shape)


def whole_windows(
    spans: list[Span], shape: tuple[Any, ...], value: Any
) -> list[tuple[list[Span], Any]]:
    """The spans and the value, split until each span's groups lie inside the axis.

    Memory that does not exist cannot be written to, so no span may need padding.
    """
    result: list[tuple[list[Span], Any]] = [(spans, value)]
    for axis, (span, size) in enumerate(zip(spans, shape, strict=True)):
        start, count, step = (
            span if span.step > 0 else Span(size - 1 - span.start, span.count, -span.step)
        )
        if (
            step == 1
            or start + count * step <= size
            or start + (count - 1) * step + 1 >= (count * step)
        ):
            continue
        first = Span(span.start, count - 1, span.step)
        last = Span(span.start + (count - 1) * span.step, 1, 1)
        split = []
        for parts, part in result:
            rest: list[Any] = [None] * len(spans)
            for one, cut in ((first, (0, count - 1)), (last, (count - 1, count))):
                rest[axis] = cut
                split.append(([*parts[:axis], one, *parts[axis + 1 :]], part.shrink(list(rest))))
        result = [(parts, part) for parts, part in split if not is_zero(parts[axis].count)]
    return result


def overlay(x: Any, spans: list[Span], value: Any) -> Any:
    """`x` with `value` in place of the spans, as a new value."""
    inside = value.from_uop(UOp.const(dtypes.bool, True), False)._broadcast_to(value.shape)
    return laid_out(inside, spans, x.shape).where(laid_out(value, spans, x.shape), x)


def laid_out(value: Any, spans: list[Span], shape: tuple[Any, ...]) -> Any:
    """A value over the spans as one over the whole shape, zeros elsewhere."""
    wide: list[Any] = []
    gaps: list[tuple[Any, Any]] = []
    joined: list[Any] = []
    lengths: list[Any] = []
    edges: list[tuple[Any, Any]] = []
    for span, size in zip(spans, shape, strict=True):
        step = abs(span.step)
        length = (span.count - 1) * step + 1
        start = span.start if span.step > 0 else size - 1 - span.start
        wide += [span.count, 1]
        gaps += [(0, 0), (0, step - 1)]
        joined.append(span.count * step)
        lengths.append(length)
        edges.append((start, size - start - length))
    value = value.reshape(tuple(wide))._pad_zeros(gaps).reshape(tuple(joined))
    value = value.shrink([(0, length) for length in lengths])._pad_zeros(edges)
    flips = tuple([i for i, span in enumerate(spans) if span.step < 0])
    return value.flip(flips) if flips else value


def scatter_picked(x: Any, parsed: Parsed, value: Any) -> Any:
    """`x` with `value` where tensors of indices say; of equal indices the last one counts."""
    cut = x._derive(cut_spans(x.uop, parsed.spans).reshape(parsed.shape))
    picked = parsed.picked
    axes = [axis for axis, _ in picked]
    common = common_shape(picked)
    others = [i for i in range(cut.ndim) if i not in axes]
    adjacent = axes == list(range(axes[0], axes[0] + len(axes)))
    before = [i for i in others if i < axes[0]] if adjacent else []
    after = [i for i in others if i not in before]
    shape = (*[cut.shape[i] for i in before], *common, *[cut.shape[i] for i in after])
    value = fit_value(value, shape)
    count = prod(common)
    if is_zero(count) or any(is_zero(s) for s in cut.shape):
        return x
    # Values with the axes of the indices first, as one; likewise the indexed axes of the target.
    lead, rank = len(before), len(common)
    order = [*range(lead, lead + rank), *range(lead), *range(lead + rank, len(shape))]
    rest = tuple([cut.shape[i] for i in others])
    rows = value.permute(tuple(order)).reshape((count, *rest))
    target_order = [*axes, *others]
    moved = cut.permute(tuple(target_order))
    places = prod([cut.shape[axis] for axis in axes])
    flat = moved.reshape((places, *rest))
    hit, source = last_hits(x, picked, [cut.shape[a] for a in axes], common, count, places)
    tail = (1,) * len(rest)
    taken = rows[source]
    merged = hit.reshape((places, *tail)).where(taken, flat)
    inverse = sorted(range(len(target_order)), key=target_order.__getitem__)
    result = merged.reshape(moved.shape).permute(tuple(inverse))
    if (
        result.shape == x.shape
        and all(s.step == 1 for s in parsed.spans)
        and (parsed.kept_shape == x.shape)
    ):
        return result
    return overlay(x, parsed.spans, result.reshape(parsed.kept_shape))


def last_hits(
    x: Any,
    picked: list[tuple[int, Picked]],
    sizes: list[Any],
    common: tuple[Any, ...],
    count: Any,
    places: Any,
) -> tuple[Any, Any]:
    """For each place: whether an index names it, and the number of the last one that does."""
    linear: UOp | None = None
    valid: UOp | None = None
    for (_, p), size in zip(picked, sizes, strict=True):
        node, ok = index_node(p.index.uop, size, p.checked)
        node = node._broadcast_to(common)
        if linear is None:
            linear = node
        else:
            linear = index_alu(Ops.ADD, index_alu(Ops.MUL, linear, to_uop(size)), node)
        if ok is not None:
            ok = ok._broadcast_to(common)
            valid = ok if valid is None else valid.alu(Ops.AND, ok)
    assert linear is not None
    numbers = x.arange(1, count + 1, device=x.device, dtype=dtypes.int32)._broadcast_to((count,))
    if valid is not None:
        numbers = x.from_uop(valid, False).reshape((count,)).where(numbers, numbers._scalar(0))
    at = linear._mop(Ops.RESHAPE, (count,))
    last = numbers._derive(numbers.uop.scatter_at(max_shape((places,)), at, op=Ops.MAX))
    if last.shape != (places,):
        last = last.shrink([(0, places)])
    return last > 0, last.maximum(1) - 1
