"""Computes operators that move elements: shapes, parts, joins, gathers, scatters, order."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from aster_ml import Tensor, dtypes
from aster_ml.errors import ShapeError, UnsupportedError
from aster_ml.onnx.ops.host import ints
from aster_ml.onnx.ops.registry import MICROSOFT, Array, Value, on_host, op
from aster_ml.onnx.ops.types import as_dtype, boxed, element_type, is_variable, sizes_array
from aster_ml.uop.node import UOp


def shape_of(value: Value) -> tuple[int, ...]:
    """The sizes of a tensor or array."""
    return tuple(value.shape)


def is_symbolic(value: Value) -> bool:
    """Whether a size of it is a variable."""
    return any(not isinstance(n, int) for n in value.shape)


@op("Shape", raw=True)
def shape(data: Value, *, start: int = 0, end: int | None = None) -> Array:
    """The sizes of the axes from `start` to before `end`."""
    return sizes_array(shape_of(data)[start:end])


@op("Size", raw=True)
def size(data: Value) -> Array:
    """Number of elements."""
    return boxed(math.prod(shape_of(data)), None if is_symbolic(data) else np.int64)


@op("Identity", raw=True)
@on_host("Identity")
def identity(x: Value) -> Value:
    """The same."""
    return x


@op("Reshape", host="shape")
@on_host("Reshape")
def reshape(data: Value, shape: Array, *, allowzero: int = 0) -> Value:
    """Another shape; 0 keeps a size unless `allowzero`."""
    wanted = ints(shape)
    if not allowzero:
        wanted = [data.shape[i] if size == 0 else size for i, size in enumerate(wanted)]
    return data.reshape(tuple(wanted))


@op("Flatten")
@on_host("Flatten")
def flatten(data: Value, *, axis: int = 1) -> Value:
    """Two axes: all before `axis`, and the rest."""
    at = axis if axis >= 0 else axis + data.ndim
    return data.reshape((math.prod(data.shape[:at]), math.prod(data.shape[at:])))


@op("Transpose")
def transpose(data: Tensor, *, perm: list[int] | None = None) -> Tensor:
    """Axes in another order, reversed without one."""
    return data.permute(tuple(perm) if perm else tuple(reversed(range(data.ndim))))


@op("Squeeze", host="axes")
@on_host("Squeeze")
def squeeze(data: Value, axes: Array | None = None) -> Value:
    """Without axes of size 1."""
    along = {a % data.ndim for a in ints(axes)} if axes is not None and data.ndim else None
    for axis in along or ():
        if data.shape[axis] != 1:
            raise ShapeError(f"axis {axis} of {list(data.shape)} is not 1")
    return data.reshape(
        tuple(
            [s for i, s in enumerate(data.shape) if (s != 1 if along is None else i not in along)]
        )
    )


@op("Unsqueeze", host="axes")
@on_host("Unsqueeze")
def unsqueeze(data: Value, axes: Array) -> Value:
    """With axes of size 1 more."""
    rank = data.ndim + len(ints(axes))
    if any(not -rank <= a < rank for a in ints(axes)):
        raise ShapeError(f"axes {ints(axes)} of a result of {rank} axes")
    new = {a % rank for a in ints(axes)}
    if len(new) != rank - data.ndim:
        raise ShapeError(f"axes {ints(axes)} name one twice")
    rest = iter(data.shape)
    return data.reshape(tuple([1 if i in new else next(rest) for i in range(rank)]))


@op("Expand", host="shape")
def expand(x: Tensor, shape: Array) -> Tensor:
    """Broadcast to a shape, both ways."""
    return x.expand(broadcast(x.shape, ints(shape)))


def broadcast(a: Sequence[Any], b: Sequence[Any]) -> tuple[Any, ...]:
    """The shape to which both are broadcast; sizes that are variables are not 1.

    Raises: ShapeError.
    """
    rank = max(len(a), len(b))
    pairs = zip((*(1,) * (rank - len(a)), *a), (*(1,) * (rank - len(b)), *b))
    sizes = []
    for left, right in pairs:
        if left is not right and 1 not in (left, right) and left != right:
            raise ShapeError(f"{list(a)} and {list(b)} do not broadcast")
        sizes.append(right if isinstance(left, int) and left == 1 else left)
    return tuple(sizes)


@op("Tile", host="repeats", since=6)
def tile(x: Tensor, repeats: Array) -> Tensor:
    """Repeated along each axis."""
    return x.repeat(tuple(ints(repeats)))


@op("Tile", host="tiles axis")
def tile_along(x: Tensor, tiles: Array, axis: Array) -> Tensor:
    """Repeated along one axis, as before version 6."""
    at = int(axis.reshape(-1)[0]) % x.ndim
    return x.repeat(tuple([int(tiles.reshape(-1)[0]) if i == at else 1 for i in range(x.ndim)]))


@op("Concat")
def concat(*xs: Tensor, axis: int = 1) -> Tensor:
    """Tensors one behind the other."""
    parts = [x for x in xs if x.shape != (0,) or len(xs[0].shape) == 1]
    return parts[0].cat(*parts[1:], dim=axis) if len(parts) > 1 else parts[0]


@op("Split", host="split")
def split_(
    x: Tensor,
    split: Array | None = None,
    *,
    axis: int = 0,
    num_outputs: int | None = None,
    call: Any,
) -> Value:
    """Parts along an axis: of these sizes, or equal ones."""
    size = x.shape[axis]
    if split is None:
        count = num_outputs or call.results
        part = -(-size // count)
        parts = [max(min(part, size - i * part), 0) for i in range(count)]
    else:
        parts = ints(split)
    return tuple(x.split(parts, dim=axis))


@op("Slice", host="starts ends axes steps")
def slice_(
    data: Tensor, starts: Array, ends: Array, axes: Array | None = None, steps: Array | None = None
) -> Tensor:
    """A part along some axes."""
    cut: list[Any] = [slice(None)] * data.ndim
    along = list(range(len(ints(starts)))) if axes is None else ints(axes)
    by = [1] * len(along) if steps is None else ints(steps)
    for start, end, axis, step in zip(ints(starts), ints(ends), along, by):
        if any(isinstance(value, UOp) for value in (start, end, data.shape[axis])):
            cut[axis] = variable_part(data.shape[axis], start, end, step)
            continue
        first, last, pace = slice(start, end, step).indices(data.shape[axis])
        cut[axis] = slice(first, None if last < 0 else last, pace)
        if (last <= first) if pace > 0 else (last >= first):
            cut[axis] = slice(0, 0)
    return data[tuple(cut)]


def greatest(size: Any) -> int:
    """The most elements that an axis may have."""
    return int(size.vmax) if isinstance(size, UOp) else int(size)


def variable_part(size: Any, start: Any, end: Any, step: Any) -> slice:
    """A part of an axis where sizes are variables, by what is known of their bounds.

    Raises: ShapeError where the part hangs on the value of a variable.
    """
    if step != 1:
        raise ShapeError(f"every element of number {step} along an axis whose size is a variable")
    ends = []
    for place in (start, end):
        if isinstance(place, int) and place >= greatest(size):
            place = size
        elif isinstance(place, int) and place < 0:
            place = place + size
        if place is not size and not (0 <= place and place <= size):
            raise ShapeError(f"a part up to {place} of an axis of {size}")
        ends.append(place)
    return slice(*ends)


@op("Gather", raw=True)
def gather(data: Value, indices: Value, *, axis: int = 0, call: Any) -> Tensor:
    """Parts along an axis; negative indices count from its end. Places known before are views."""
    x = call.tensor(data)
    along = axis % x.ndim
    lead = (slice(None),) * along
    if isinstance(indices, np.ndarray) and indices.size == 1:
        at = int(indices.reshape(()))
        at += x.shape[along] if at < 0 else 0
        if not 0 <= at < x.shape[along]:
            raise ShapeError(f"index {at} on an axis of {x.shape[along]}")
        part = x[(*lead, slice(at, at + 1))]
        return part.reshape((*x.shape[:along], *indices.shape, *x.shape[along + 1 :]))
    return x[(*lead, call.tensor(indices))]


@op("GatherElements")
def gather_elements(data: Tensor, indices: Tensor, *, axis: int) -> Tensor:
    """Elements along an axis, one index for each."""
    return data.gather(axis, indices)


def flat_places(indices: Tensor, sizes: tuple[int, ...]) -> Tensor:
    """Rows of indices as one number each, over axes of these sizes."""
    total = None
    for i, size in enumerate(sizes):
        part = indices[..., i].cast(dtypes.int32)
        part = (part < 0).where(part + size, part)
        total = part if total is None else total * size + part
    assert total is not None
    return total


@op("GatherND")
def gather_nd(data: Tensor, indices: Tensor, *, batch_dims: int = 0) -> Tensor:
    """Parts by rows of indices."""
    depth, lead = indices.shape[-1], data.shape[:batch_dims]
    sizes, rest = data.shape[batch_dims : batch_dims + depth], data.shape[batch_dims + depth :]
    places = flat_places(indices, sizes)
    out = (*indices.shape[:-1], *rest)
    groups = math.prod(lead)
    flat = data.reshape((groups * math.prod(sizes), *rest))
    places = places.reshape((groups, -1))
    base = Tensor.arange(groups, dtype=dtypes.int32, device=data.device) * math.prod(sizes)
    return flat[(places + base.reshape((groups, 1))).reshape((-1,))].reshape(out)


REDUCTIONS = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}


@op("ScatterElements", "Scatter")
def scatter_elements(
    data: Tensor, indices: Tensor, updates: Tensor, *, axis: int, reduction: str = "none"
) -> Tensor:
    """`data` with updates along an axis, one index for each."""
    at = indices.cast(dtypes.int32)
    at = (at < 0).where(at + data.shape[axis], at)
    if reduction == "none":
        return data.scatter(axis, at, updates)
    return data.scatter_reduce(axis, at, updates, REDUCTIONS[reduction])  # type: ignore[arg-type]


@op("ScatterND")
def scatter_nd(
    data: Tensor, indices: Tensor, updates: Tensor, *, reduction: str = "none"
) -> Tensor:
    """`data` with updates by rows of indices."""
    depth = indices.shape[-1]
    sizes, rest = data.shape[:depth], data.shape[depth:]
    places = flat_places(indices, sizes).reshape((-1, 1))
    count, inner = math.prod(sizes), math.prod(rest)
    values = updates.reshape((-1, inner))
    places = places.expand(values.shape)
    flat = data.reshape((count, inner))
    return scatter_elements(flat, places, values, axis=0, reduction=reduction).reshape(data.shape)


@op("Compress", host="condition")
def compress(data: Tensor, condition: Array, *, axis: int | None = None) -> Tensor:
    """The parts along an axis for which the condition holds."""
    x = data.reshape((-1,)) if axis is None else data
    along = 0 if axis is None else axis % x.ndim
    places = np.flatnonzero(condition.reshape(-1)[: x.shape[along]]).astype(np.int32)
    index = Tensor(places, device=data.device)
    return (
        x[(*(slice(None),) * along, index)]
        if len(places)
        else x.shrink([(0, 0) if i == along else None for i in range(x.ndim)])
    )


@op("NonZero", host="x")
@on_host("NonZero")
def nonzero(x: Array) -> Array:
    """Places of what is not 0, an axis a row."""
    return np.asarray(np.nonzero(np.atleast_1d(x)), np.int64)


@op("Unique", host="x")
def unique(x: Array, *, axis: int | None = None, sorted: int = 1) -> Value:
    """Each value once, with its first place, the places of all, and how often it is there."""
    values, first, inverse, counts = np.unique(
        x, return_index=True, return_inverse=True, return_counts=True, axis=axis
    )
    inverse = inverse.reshape(-1)
    if not sorted:
        order = np.argsort(first)
        values = np.take(values, order, 0 if axis is None else axis)
        first, counts, inverse = first[order], counts[order], np.argsort(order)[inverse]
    return values, first.astype(np.int64), inverse.astype(np.int64), counts.astype(np.int64)


@op("Pad", host="pads axes")
def pad(
    data: Tensor,
    pads: Array | None = None,
    constant_value: Tensor | None = None,
    axes: Array | None = None,
    *,
    mode: str = "constant",
    value: float = 0.0,
    paddings: list[int] | None = None,
) -> Tensor:
    """More elements around it, or fewer: all beginnings, then all ends."""
    along = list(range(data.ndim)) if axes is None else [a % data.ndim for a in ints(axes)]
    # Version 1 has the pads under another name.
    amounts, pairs = ints(paddings if pads is None else pads), [(0, 0)] * data.ndim
    if len(amounts) != 2 * len(along):
        raise ShapeError(f"{len(amounts)} pads for {len(along)} axes")
    for i, axis in enumerate(along):
        pairs[axis] = amounts[i], amounts[i + len(along)]
    if mode != "constant":
        return pad_by_places(data, pairs, mode)
    if constant_value is None:
        return data.pad(pairs, value=value)
    ones = Tensor.ones(data.shape, dtype=dtypes.bool, device=data.device).pad(pairs)
    return ones.where(data.pad(pairs), constant_value.reshape(()).cast(data.dtype))


def pad_by_places(data: Tensor, pairs: list[tuple[int, int]], mode: Any) -> Tensor:
    """Padding with what is within: each axis is gathered from where NumPy would take it."""
    for axis, (before, after) in enumerate(pairs):
        if (before, after) == (0, 0):
            continue
        cut = max(-before, 0), max(-after, 0)
        places = np.arange(data.shape[axis])
        places = np.pad(places, (max(before, 0), max(after, 0)), mode=mode)
        places = places[cut[0] : len(places) - cut[1]].astype(np.int32)
        data = data[(*(slice(None),) * axis, Tensor(places, device=data.device))]
    return data


@op("DepthToSpace")
def depth_to_space(x: Tensor, *, blocksize: int, mode: str = "DCR") -> Tensor:
    """Blocks of channels become blocks of pixels."""
    n, c, *sizes = x.shape
    rank, b = len(sizes), blocksize
    blocks, rest = (b,) * rank, c // b**rank
    if mode == "DCR":
        x = x.reshape((n, *blocks, rest, *sizes))
        order = [0, rank + 1]
        for i in range(rank):
            order += [rank + 2 + i, 1 + i]
    else:
        x = x.reshape((n, rest, *blocks, *sizes))
        order = [0, 1]
        for i in range(rank):
            order += [rank + 2 + i, 2 + i]
    return x.permute(order).reshape((n, rest, *[s * b for s in sizes]))


@op("SpaceToDepth")
def space_to_depth(x: Tensor, *, blocksize: int, mode: str = "DCR") -> Tensor:
    """Blocks of pixels become blocks of channels."""
    n, c, *sizes = x.shape
    rank, b = len(sizes), blocksize
    split: list[int] = []
    for size in sizes:
        split += [size // b, b]
    x = x.reshape((n, c, *split))
    within = [3 + 2 * i for i in range(rank)]
    outer = [2 + 2 * i for i in range(rank)]
    order = [0, *within, 1, *outer] if mode == "DCR" else [0, 1, *within, *outer]
    return x.permute(order).reshape((n, c * b**rank, *[s // b for s in sizes]))


@op("ReverseSequence", host="sequence_lens")
def reverse_sequence(
    x: Tensor, sequence_lens: Array, *, batch_axis: int = 1, time_axis: int = 0
) -> Tensor:
    """The first elements of each sequence in reverse order, as many as it is long."""
    steps = x.shape[time_axis]
    lengths = sequence_lens.reshape(-1, 1)
    at = np.arange(steps).reshape(1, -1)
    places = np.where(at < lengths, lengths - 1 - at, at).astype(np.int32)
    if time_axis < batch_axis:
        places = places.T
    sizes = [1] * x.ndim
    sizes[batch_axis], sizes[time_axis] = x.shape[batch_axis], steps
    index = Tensor(np.ascontiguousarray(places), device=x.device).reshape(tuple(sizes))
    return x.gather(time_axis, index.expand(x.shape))


@op("Trilu", host="k")
@op("Trilu", host="k", domain=MICROSOFT)
def trilu(x: Tensor, k: Array | None = None, *, upper: int = 1) -> Tensor:
    """The upper or lower triangle of each matrix, 0 elsewhere."""
    offset = 0 if k is None else int(k.reshape(()))
    rows, columns = x.shape[-2:]
    offset = max(-rows - 1, min(offset, columns + 1))
    i = Tensor.arange(rows, dtype=dtypes.int32, device=x.device).reshape((rows, 1))
    j = Tensor.arange(columns, dtype=dtypes.int32, device=x.device).reshape((1, columns))
    kept = (j - i >= offset) if upper else (j - i <= offset)
    return kept.where(x, 0)


@op("EyeLike")
def eye_like(x: Tensor, *, dtype: int | None = None, k: int = 0) -> Tensor:
    """Ones on a diagonal."""
    rows, columns = x.shape
    i = Tensor.arange(rows, dtype=dtypes.int32, device=x.device).reshape((rows, 1))
    j = Tensor.arange(columns, dtype=dtypes.int32, device=x.device).reshape((1, columns))
    return (j - i).eq(k).cast(x.dtype if dtype is None else element_type(dtype))


@op("ConstantOfShape", host="shape")
def constant_of_shape(shape: Array, *, value: Array | None = None, call: Any) -> Tensor:
    """One value everywhere."""
    fill = np.zeros(1, np.float32) if value is None else value
    sizes = ints(shape)
    if any(s < 0 for s in sizes) or (not is_variable(shape) and math.prod(sizes) > 1 << 40):
        raise ShapeError(f"{sizes} is no shape")
    return Tensor.full(
        tuple(sizes), fill.reshape(()).item(), dtype=as_dtype(fill.dtype), device=call.device
    )


@op("Range", host="start limit delta")
def range_(start: Array, limit: Array, delta: Array, *, stash_type: int = 1, call: Any) -> Tensor:
    """From start to below limit in steps."""
    dtype = dtypes.int64 if start.dtype == np.object_ else as_dtype(start.dtype)
    if is_variable(limit):
        (first,), (last,), (step,) = ints(start), ints(limit), ints(delta)
        if step != 1:
            raise ShapeError(f"a range with steps of {step} to a limit that is a variable")
        return Tensor.arange(last - first, dtype=dtypes.int32, device=call.device).cast(dtype) + (
            call.tensor(start).cast(dtype)
        )
    first, last, step = (v.reshape(-1)[0].item() for v in (start, limit, delta))
    if not step:
        raise ShapeError("a step of 0 has no end")
    count = max(math.ceil((last - first) / step), 0)
    if count > 1 << 32:
        raise ShapeError(f"a range of {count} elements")
    wide = dtypes.int64 if dtypes.is_int(dtype) else dtypes.float32
    wide = dtypes.float64 if dtype is dtypes.float64 else wide
    numbers = Tensor.arange(count, dtype=dtypes.int32, device=call.device).cast(wide)
    return (numbers * step + first).cast(dtype)


@op("OneHot", host="depth")
def one_hot(indices: Tensor, depth: Array, values: Tensor, *, axis: int = -1) -> Tensor:
    """The second of `values` at the places that indices name on a new axis, else the first."""
    count = int(depth.reshape(-1)[0])
    at = axis if axis >= 0 else axis + indices.ndim + 1
    i = indices.cast(dtypes.int64) if dtypes.is_float(indices.dtype) else indices
    i = (i < 0).where(i + count, i).unsqueeze(at)
    sizes = [1] * i.ndim
    sizes[at] = count
    places = Tensor.arange(count, dtype=dtypes.int32, device=indices.device)
    hit = i.eq(places.cast(i.dtype).reshape(tuple(sizes)))
    return hit.where(values[1], values[0])


@op("ArgMax", "ArgMin")
def arg_extreme(
    data: Tensor, *, axis: int = 0, keepdims: int = 1, select_last_index: int = 0, call: Any
) -> Tensor:
    """Places of the greatest or least along an axis: the first, or the last of equal ones."""
    size = data.shape[axis]
    x = data.flip(axis) if select_last_index else data
    place = (x.argmax if call.node.kind == "ArgMax" else x.argmin)(axis, keepdim=bool(keepdims))
    place = place.cast(dtypes.int64)
    return size - 1 - place if select_last_index else place


@op("Hardmax")
def hardmax_of_rows(x: Tensor, *, axis: int = 1) -> Tensor:
    """1 at the first of the greatest over all axes from `axis` on, as before version 13."""
    at = axis % x.ndim
    rows = x.reshape((math.prod(x.shape[:at]), math.prod(x.shape[at:])))
    return hardmax(rows).reshape(x.shape)


@op("Hardmax", since=13)
def hardmax(x: Tensor, *, axis: int = -1) -> Tensor:
    """1 at the first of the greatest along an axis, else 0."""
    at = axis % x.ndim
    places = Tensor.arange(x.shape[at], dtype=dtypes.int32, device=x.device)
    places = places.reshape((-1, *(1,) * (x.ndim - at - 1)))
    return x.argmax(at, keepdim=True).eq(places).cast(x.dtype)


@op("TopK", host="k")
def top_k(
    x: Tensor, k: Array, *, axis: int = -1, largest: int = 1, sorted: int = 1, call: Any
) -> Value:
    """The greatest or least along an axis, and their places."""
    values, places = x.topk(int(k.reshape(-1)[0]), axis, bool(largest))
    return values, places.cast(dtypes.int64)


@op("CumSum", "CumProd", host="axis")
def cumulated(x: Tensor, axis: Array, *, exclusive: int, reverse: int, call: Any) -> Tensor:
    """Sums or products of all up to a place."""
    at = int(axis.reshape(())) % x.ndim
    product = call.node.kind == "CumProd"
    y = x.flip(at) if reverse else x
    if exclusive:
        pairs = [(1, 0) if i == at else (0, 0) for i in range(x.ndim)]
        cut = [(0, s) if i == at else None for i, s in enumerate(x.shape)]
        y = y.pad(pairs, value=1.0 if product else 0.0).shrink(cut)
    y = (y.cumprod(at) if product else y.cumsum(at)).cast(x.dtype)
    return y.flip(at) if reverse else y


@op("Col2Im", host="image_shape block_shape")
def col2im(
    x: Tensor,
    image_shape: Array,
    block_shape: Array,
    *,
    dilations: list[int] | None = None,
    pads: list[int] | None = None,
    strides: list[int] | None = None,
) -> Tensor:
    """Columns of windows added up to the image that they are windows of."""
    image, block = ints(image_shape), ints(block_shape)
    rank, count = len(image), math.prod(ints(block_shape))
    n, channels = x.shape[0], x.shape[1] // count
    kernel = np.eye(count, dtype=np.float32).reshape(count, 1, *block)
    weight = Tensor(kernel, device=x.device).cast(x.dtype)
    step, reach = strides or [1] * rank, dilations or [1] * rank
    pad = pads or [0] * (2 * rank)
    sizes = [
        (s + pad[i] + pad[i + rank] - reach[i] * (block[i] - 1) - 1) // step[i] + 1
        for i, s in enumerate(image)
    ]
    columns = x.reshape((n * channels, count, *sizes))
    whole = columns.conv_transpose2d(weight, stride=tuple(step), dilation=tuple(reach))
    padded = [s + pad[i] + pad[i + rank] for i, s in enumerate(image)]
    more = [(0, 0), (0, 0), *[(0, p - s) for p, s in zip(padded, whole.shape[2:])]]
    whole = whole.pad(more)
    cut = [None, None, *[(pad[i], pad[i] + s) for i, s in enumerate(image)]]
    return whole.shrink(cut).reshape((n, channels, *image))


@op("TensorScatter")
def tensor_scatter(
    past_cache: Tensor,
    update: Tensor,
    write_indices: Tensor | None = None,
    *,
    axis: int = -2,
    mode: str = "linear",
) -> Tensor:
    """A cache with a run of new entries along an axis, beginning where each row of a batch says."""
    at, size, count = axis % past_cache.ndim, past_cache.shape[axis], update.shape[axis]
    sizes = [1] * past_cache.ndim
    sizes[at] = size
    place = Tensor.arange(size, dtype=dtypes.int64, device=past_cache.device).reshape(tuple(sizes))
    if write_indices is not None:
        place = place - write_indices.reshape((-1, *(1,) * (past_cache.ndim - 1)))
    if mode == "circular":
        place = (place + size) % size
    inside = (place >= 0) & (place < count)
    index = place.clip(0, count - 1).expand(past_cache.shape)
    full = [past_cache.shape[i] if i == at else s for i, s in enumerate(update.shape)]
    if full != list(past_cache.shape):
        raise UnsupportedError(f"an update of {list(update.shape)} in {list(past_cache.shape)}")
    return inside.where(update.gather(at, index), past_cache)
