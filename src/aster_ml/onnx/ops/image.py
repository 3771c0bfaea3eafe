"""Computes operators on images: resizing, sampling at places, regions, boxes."""

from __future__ import annotations

import io
import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from aster_ml import Tensor, dtypes
from aster_ml.errors import ShapeError, UnsupportedError
from aster_ml.onnx.ops.host import ints
from aster_ml.onnx.ops.math import wide
from aster_ml.onnx.ops.nets import Windows
from aster_ml.onnx.ops.registry import Array, op
from aster_ml.uop.node import UOp

Ints = list[int]


def source_places(size: int, new: int, scale: float, mode: str, roi: tuple[float, float]) -> Array:
    """Where in an axis of `size` each of `new` elements comes from, as fractions."""
    x = np.arange(new, dtype=np.float64)
    whole = scale * size
    if mode == "asymmetric":
        return x / scale
    if mode == "align_corners":
        return x * (size - 1) / (whole - 1) if whole != 1 else 0 * x
    if mode == "tf_crop_and_resize":
        start, end = roi
        if whole == 1:
            return 0 * x + (start + end) * (size - 1) / 2
        return x * (end - start) * (size - 1) / (whole - 1) + start * (size - 1)
    middle = (x + 0.5) / scale - 0.5
    if mode == "pytorch_half_pixel":
        return middle if whole > 1 else 0 * x
    if mode == "half_pixel_symmetric":
        return middle + size / 2 * (1 - new / whole)
    if mode != "half_pixel":
        raise UnsupportedError(f"coordinate_transformation_mode {mode!r}")
    return middle


ROUNDINGS: dict[str, Callable[[Array], Array]] = {
    "round_prefer_floor": lambda x: np.ceil(x - 0.5),
    "round_prefer_ceil": lambda x: np.floor(x + 0.5),
    "floor": np.floor,
    "ceil": np.ceil,
}


def cubic(distance: Array, a: float) -> Array:
    """The weights of cubic convolution at distances from a place."""
    d = np.abs(distance)
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    return np.where(d <= 1, near, np.where(d < 2, far, 0))


def taps(
    places: Array, size: int, scale: float, mode: str, a: float, antialias: bool, outside: bool
) -> tuple[Array, Array]:
    """Elements [new, taps] and their weights, for places on an axis of `size`."""
    reach = 1 if mode == "linear" else 2
    pace = min(scale, 1.0) if antialias else 1.0
    first = math.floor(-reach / pace) + 1
    base = np.floor(places)
    offsets = np.arange(first, 2 - first if mode == "cubic" or antialias else reach + 1)
    index = base[:, None] + offsets[None, :]
    distance = (index - places[:, None]) * pace
    weights = np.clip(1 - np.abs(distance), 0, 1) if mode == "linear" else cubic(distance, a)
    if outside:
        weights = np.where((index >= 0) & (index < size), weights, 0)
    if outside or antialias:
        weights = weights / weights.sum(1, keepdims=True)
    return np.clip(index, 0, size - 1).astype(np.int32), weights


def resampled(x: Tensor, axis: int, index: Array, weights: Array) -> Tensor:
    """An axis as weighted sums of its elements: a product with a matrix where they are many."""
    if index.shape[1] <= 4:
        total = None
        lead, tail = (slice(None),) * axis, (1,) * (x.ndim - axis - 1)
        for k in range(index.shape[1]):
            if not weights[:, k].any():
                continue
            part = x[(*lead, Tensor(np.ascontiguousarray(index[:, k]), device=x.device))]
            if not (weights[:, k] == 1).all():
                factor = Tensor(weights[:, k].astype(np.float32), device=x.device).cast(x.dtype)
                part = part * factor.reshape((-1, *tail))
            total = part if total is None else total + part
        assert total is not None
        return total
    matrix = np.zeros((x.shape[axis], index.shape[0]))
    np.add.at(matrix, (index, np.arange(index.shape[0])[:, None]), weights)
    factor = Tensor(matrix.astype(np.float32), device=x.device).cast(x.dtype)
    return x.transpose(axis, -1).matmul(factor).transpose(axis, -1)


def resize(
    x: Tensor,
    axes: Ints,
    scales: list[float],
    sizes: Ints,
    *,
    mode: str,
    coordinates: str,
    nearest: str,
    roi: Array | None = None,
    a: float = -0.75,
    antialias: bool = False,
    outside: bool = False,
    extrapolation: float = 0.0,
) -> Tensor:
    """Some axes of x resized, one after the other."""
    y = x if mode == "nearest" else wide(x if dtypes.is_float(x.dtype) else x.cast(dtypes.float32))
    masks = []
    for i, (axis, scale, new) in enumerate(zip(axes, scales, sizes)):
        size = x.shape[axis]
        part = (0.0, 1.0) if roi is None else (float(roi[i]), float(roi[i + len(axes)]))
        is_variable = isinstance(size, UOp)
        if (is_variable or new == size) and scale == 1 and part == (0.0, 1.0):
            continue
        if is_variable:
            is_repeat = (mode, coordinates) == ("nearest", "asymmetric")
            if not is_repeat or nearest not in ("floor", "simple") or scale != int(scale):
                raise ShapeError(f"an axis of variable size resized by {scale}, {mode}")
            y = y.repeat_interleave(int(scale), axis)
            continue
        if new < 1 or new > 1 << 31:
            raise ShapeError(f"an axis of {size} resized to {new}")
        places = source_places(size, new, scale, coordinates, part)
        if coordinates == "tf_crop_and_resize":
            inside = (places >= 0) & (places <= size - 1)
            masks.append((axis, inside))
        if mode == "nearest":
            # Before version 11 an axis that becomes shorter is rounded up.
            way = nearest if nearest != "simple" else "ceil" if scale < 1 else "floor"
            index = np.clip(ROUNDINGS[way](places), 0, size - 1).astype(np.int32)
            y = y[(*(slice(None),) * axis, Tensor(index, device=x.device))]
        else:
            y = resampled(y, axis, *taps(places, size, scale, mode, a, antialias, outside))
    for axis, inside in masks:
        if not inside.all():
            kept = Tensor(inside, device=x.device).reshape((-1, *(1,) * (x.ndim - axis - 1)))
            y = kept.where(y, extrapolation)
    return y if y.dtype is x.dtype else rounded(y, x)


def rounded(y: Tensor, x: Tensor) -> Tensor:
    """Results in the dtype of x; integers lose their fraction within their bounds."""
    if dtypes.is_float(x.dtype):
        return y.cast(x.dtype)
    return y.clip(dtypes.min(x.dtype), dtypes.max(x.dtype)).cast(x.dtype)


def ratio(new: Any, size: Any) -> float:
    """Ratio of an axis's new size to its old. Raises: ShapeError where it hangs on a variable."""
    if not isinstance(new, UOp) and not isinstance(size, UOp):
        return float(new / size)
    most_new, most = [s.bounds[1] if isinstance(s, UOp) else s for s in (new, size)]
    factor = most_new // max(most, 1)
    if (left := new - size * factor) != 0 and not (left >= 0 and left <= 0):
        raise ShapeError(f"an axis of variable size {size} resized to {new}")
    return float(factor)


def scaled(size: Any, factor: float) -> Any:
    """A size times a factor, rounded down. Raises: ShapeError for fractions of a variable size."""
    if not isinstance(size, UOp):
        return math.floor(factor * size)
    if factor != int(factor):
        raise ShapeError(f"an axis of variable size resized by {factor}")
    return size * int(factor)


@op("Resize", since=11, host="roi scales sizes")
def resize_operator(
    x: Tensor,
    roi: Array | None = None,
    scales: Array | None = None,
    sizes: Array | None = None,
    *,
    antialias: int = 0,
    axes: Ints | None = None,
    coordinate_transformation_mode: str = "half_pixel",
    cubic_coeff_a: float = -0.75,
    exclude_outside: int = 0,
    extrapolation_value: float = 0.0,
    keep_aspect_ratio_policy: str = "stretch",
    mode: str = "nearest",
    nearest_mode: str = "round_prefer_floor",
) -> Tensor:
    """x at other sizes: of the nearest element, or between elements in a line or cubic curve."""
    along = list(range(x.ndim)) if axes is None else [axis % x.ndim for axis in axes]
    if sizes is not None and sizes.size:
        new = ints(sizes)
        factors = [ratio(n, x.shape[axis]) for n, axis in zip(new, along)]
        if keep_aspect_ratio_policy != "stretch":
            pick = min if keep_aspect_ratio_policy == "not_larger" else max
            factors = [pick(factors)] * len(along)
            new = [int(factors[0] * x.shape[axis] + 0.5) for axis in along]
    else:
        if scales is None or len(scales) != len(along):
            raise ShapeError(f"neither sizes nor a scale for each of {len(along)} axes")
        factors = [float(f) for f in scales]
        if min(factors) <= 0:
            raise ShapeError(f"scales {factors}")
        new = [scaled(x.shape[axis], f) for f, axis in zip(factors, along)]
    part = roi if coordinate_transformation_mode == "tf_crop_and_resize" else None
    return resize(
        x, along, factors, new, mode=mode, coordinates=coordinate_transformation_mode,
        nearest=nearest_mode, roi=part, a=cubic_coeff_a, antialias=bool(antialias),
        outside=bool(exclude_outside), extrapolation=extrapolation_value,
    )  # fmt: skip


@op("Resize", "Upsample", host="scales")
def upsample(
    x: Tensor,
    scales: Array | None = None,
    *,
    mode: str = "nearest",
    height_scale: float = 1.0,
    width_scale: float = 1.0,
) -> Tensor:
    """x at other sizes, as before version 11.

    Source: onnxruntime, which rounds up where an axis becomes shorter; the schema does not say.
    """
    if scales is None:
        scales = np.array([*[1.0] * (x.ndim - 2), height_scale, width_scale])
    factors = [float(f) for f in np.asarray(scales).reshape(-1)]
    new = [scaled(size, f) for f, size in zip(factors, x.shape)]
    kind = "linear" if mode in ("linear", "bilinear") else mode
    return resize(
        x, list(range(x.ndim)), factors, new, mode=kind, coordinates="asymmetric", nearest="simple"
    )


def reflected(x: Tensor, low: float, high: float) -> Tensor:
    """Places mirrored at two bounds until they are within."""
    span = high - low
    if span <= 0:
        return x * 0 + low
    t = (x - low).abs() % (2 * span)
    return (t < span).where(t, 2 * span - t) + low


def sampled(
    x: Tensor, places: list[Tensor], mode: str, padding: str, bounds: list[tuple[float, float]]
) -> Tensor:
    """x [n, c, *sizes] at places [n, l] of each axis -> [n, c, l]."""
    n, c, *sizes = x.shape
    flat = x.reshape((n, c, math.prod(sizes)))
    per_axis = []
    for at, size, (low, high) in zip(places, sizes, bounds):
        if mode == "nearest":
            choices: list[tuple[Tensor, Tensor | None]] = [(at.round(), None)]
        elif mode == "linear":
            base = at.floor()
            choices = [(base, base + 1 - at), (base + 1, at - base)]
        else:
            base = at.floor()
            choices = [(base + k, cubic_weight(at - base - k)) for k in (-1, 0, 1, 2)]
        found = []
        for index, weight in choices:
            inside = None
            if padding == "zeros":
                inside = (index >= 0) & (index < size)
            elif padding == "reflection":
                index = reflected(index, low, high).trunc()
            found.append((index.clip(0, size - 1).cast(dtypes.int32), weight, inside))
        per_axis.append(found)
    total = None
    for corner in itertools.product(*per_axis):
        flat_index: Any = 0
        factor: Any = None
        for (at, weight, inside), size in zip(corner, sizes):
            flat_index = flat_index * size + at
            weight = (
                weight if inside is None else inside.where(1.0 if weight is None else weight, 0.0)
            )
            if weight is not None:
                factor = weight if factor is None else factor * weight
        count = flat_index.shape[-1]
        part = flat.gather(2, flat_index.unsqueeze(1).expand((n, c, count)))
        part = part if factor is None else part * factor.unsqueeze(1)
        total = part if total is None else total + part
    assert total is not None
    return total


def cubic_weight(distance: Tensor, a: float = -0.75) -> Tensor:
    """The weight of cubic convolution at distances from a place."""
    d = distance.abs()
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    return (d <= 1).where(near, (d < 2).where(far, 0))


@op("GridSample")
def grid_sample(
    x: Tensor,
    grid: Tensor,
    *,
    align_corners: int = 0,
    mode: str = "linear",
    padding_mode: str = "zeros",
) -> Tensor:
    """x at the places of a grid: -1 to 1 over each axis, the last axis first."""
    kind = {"bilinear": "linear", "bicubic": "cubic"}.get(mode, mode)
    n, rank, y = x.shape[0], x.ndim - 2, wide(x)
    points = wide(grid).reshape((n, -1, rank))
    places, bounds = [], []
    for axis, size in enumerate(x.shape[2:]):
        g = points[..., rank - 1 - axis]
        at = (g + 1) / 2 * (size - 1) if align_corners else ((g + 1) * size - 1) / 2
        low, high = (0.0, size - 1.0) if align_corners else (-0.5, size - 0.5)
        if kind != "cubic" and padding_mode == "border":
            at = at.clip(0, size - 1)
        elif kind != "cubic" and padding_mode == "reflection":
            at = reflected(at, low, high)
        places.append(at)
        bounds.append((low, high))
    found = sampled(y, places, kind, padding_mode, bounds)
    return found.reshape((*x.shape[:2], *grid.shape[1:-1])).cast(x.dtype)


@op("DeformConv", rest=Windows)
def deform_conv(
    x: Tensor,
    w: Tensor,
    offset: Tensor,
    b: Tensor | None = None,
    mask: Tensor | None = None,
    *,
    group: int = 1,
    offset_group: int = 1,
    **rest: Any,
) -> Tensor:
    """A convolution whose windows are sampled at places that are moved by `offset`."""
    n, c, *sizes = x.shape
    kernel, rank = w.shape[2:], x.ndim - 2
    p = Windows(x.shape[2:], kernel, **rest)
    out, count = offset.shape[2:], math.prod(kernel)
    moved = offset.reshape((n * offset_group, count, rank, math.prod(out)))
    places = []
    for axis in range(rank):
        at = np.arange(out[axis]) * p.strides[axis] - p.pairs[axis][0]
        grid = np.broadcast_to(at.reshape((-1, *(1,) * (rank - 1 - axis))), out).reshape(1, -1)
        tap = np.arange(kernel[axis]) * p.dilations[axis]
        tap = np.broadcast_to(tap.reshape((-1, *(1,) * (rank - 1 - axis))), kernel).reshape(-1, 1)
        base = Tensor((grid + tap).astype(np.float32), device=x.device)
        places.append((wide(moved[:, :, axis]) + base).reshape((n * offset_group, -1)))
    parts = wide(x).reshape((n * offset_group, c // offset_group, *sizes))
    found = sampled(parts, places, "linear", "zeros", [(0.0, 0.0)] * rank)
    found = found.reshape((n, offset_group, c // offset_group, count, math.prod(out)))
    if mask is not None:
        found = found * wide(mask).reshape((n, offset_group, 1, count, math.prod(out)))
    columns = found.reshape((n, group, c // group * count, math.prod(out)))
    weight = wide(w).reshape((1, group, w.shape[0] // group, -1))
    result = weight.matmul(columns).reshape((n, w.shape[0], *out))
    result = result if b is None else result + wide(b).reshape((1, -1, *(1,) * rank))
    return result.cast(x.dtype)


@op("RoiAlign", host="rois batch_indices")
def roi_align(
    x: Tensor,
    rois: Array,
    batch_indices: Array,
    *,
    coordinate_transformation_mode: str = "half_pixel",
    mode: str = "avg",
    output_height: int = 1,
    output_width: int = 1,
    sampling_ratio: int = 0,
    spatial_scale: float = 1.0,
    call: Any,
) -> Tensor:
    """Regions of x at one size each: the mean or the greatest of samples between elements."""
    half = call.version >= 16 and coordinate_transformation_mode == "half_pixel"
    results = []
    for box, image in zip(rois.astype(np.float64), ints(batch_indices)):
        x1, y1, x2, y2 = box * spatial_scale - (0.5 if half else 0.0)
        sides = [y2 - y1, x2 - x1]
        sides = sides if half else [max(side, 1.0) for side in sides]
        parts = []
        for start, side, new, size in zip(
            (y1, x1), sides, (output_height, output_width), x.shape[2:]
        ):
            count = sampling_ratio or math.ceil(side / new)
            steps = (np.arange(new * count) + 0.5) * side / (new * count)
            parts.append((*edges(start + steps, size), new, count))
        results.append(region(x[image], parts, mode))
    if not results:
        return Tensor.zeros(0, x.shape[1], output_height, output_width, dtype=x.dtype)
    return results[0].stack(*results[1:], dim=0)


def edges(places: Array, size: int) -> tuple[list[Array], list[Array]]:
    """The elements before and behind places on an axis, and their weights; none far outside."""
    outside = (places < -1.0) | (places > size)
    at = np.clip(places, 0, None)
    low = np.minimum(np.floor(at), size - 1)
    high = np.minimum(low + 1, size - 1)
    at = np.where(low >= size - 1, low, at)
    part = at - low
    weights = [np.where(outside, 0, 1 - part), np.where(outside, 0, part)]
    return [low.astype(np.int32), high.astype(np.int32)], weights


def region(x: Tensor, parts: list[Any], mode: str) -> Tensor:
    """One region of x [c, h, w] from the samples of both axes."""
    (rows, row_weights, oh, kh), (columns, column_weights, ow, kw) = parts
    best = None
    for row, u in zip(rows, row_weights):
        for column, v in zip(columns, column_weights):
            found = x[:, Tensor(row, device=x.device)][:, :, Tensor(column, device=x.device)]
            weight = Tensor((u[:, None] * v[None, :]).astype(np.float32), device=x.device)
            part = found * weight.cast(x.dtype)
            if best is None:
                best = part
            else:
                best = best.maximum(part) if mode == "max" else best + part
    assert best is not None
    blocks = best.reshape((x.shape[0], oh, kh, ow, kw))
    return blocks.max((2, 4)) if mode == "max" else blocks.mean((2, 4))


@op("MaxRoiPool", host="rois")
def max_roi_pool(
    x: Tensor, rois: Array, *, pooled_shape: Ints, spatial_scale: float = 1.0
) -> Tensor:
    """The greatest of each part of regions of x."""
    results = []
    for image, x1, y1, x2, y2 in rois.tolist():
        cells = []
        for start, end, new, size in zip((y1, x1), (y2, x2), pooled_shape, x.shape[2:]):
            first, last = round(start * spatial_scale), round(end * spatial_scale)
            side = max(last - first + 1, 1)
            cells.append(
                [
                    (
                        min(max(first + math.floor(i * side / new), 0), size),
                        min(max(first + math.ceil((i + 1) * side / new), 0), size),
                    )
                    for i in range(new)
                ]
            )
        rows = []
        for top, bottom in cells[0]:
            row = [
                x[int(image), :, top:bottom, left:right].max((1, 2))
                if bottom > top and right > left
                else Tensor.zeros(x.shape[1], dtype=x.dtype, device=x.device)
                for left, right in cells[1]
            ]
            rows.append(row[0].stack(*row[1:], dim=1))
        results.append(rows[0].stack(*rows[1:], dim=1))
    return results[0].stack(*results[1:], dim=0)


@op(
    "NonMaxSuppression",
    host="boxes scores max_output_boxes_per_class iou_threshold score_threshold",
)
def non_max_suppression(
    boxes: Array,
    scores: Array,
    max_output_boxes_per_class: Array | None = None,
    iou_threshold: Array | None = None,
    score_threshold: Array | None = None,
    *,
    center_point_box: int = 0,
) -> Array:
    """Of boxes that overlap, those with the best scores: rows of batch, class, box."""
    most = (
        0 if max_output_boxes_per_class is None else int(max_output_boxes_per_class.reshape(-1)[0])
    )
    overlap = 0.0 if iou_threshold is None else float(iou_threshold.reshape(-1)[0])
    least = None if score_threshold is None else float(score_threshold.reshape(-1)[0])
    found = []
    for batch in range(scores.shape[0]):
        a, b = boxes[batch, :, :2], boxes[batch, :, 2:]
        if center_point_box:
            low, high = a - b / 2, a + b / 2
        else:
            low, high = np.minimum(a, b), np.maximum(a, b)
        areas = np.prod(high - low, 1)
        for kind in range(scores.shape[1]):
            order = np.argsort(-scores[batch, kind], kind="stable")
            if least is not None:
                order = order[scores[batch, kind][order] > least]
            taken: list[int] = []
            for i in order:
                if len(taken) >= most:
                    break
                other = np.asarray(taken, np.int64)
                sides = np.minimum(high[i], high[other]) - np.maximum(low[i], low[other])
                shared = np.prod(np.maximum(sides, 0), 1)
                joint = areas[i] + areas[other] - shared
                if not np.any(shared > overlap * joint):
                    taken.append(int(i))
            found += [(batch, kind, i) for i in taken]
    return np.asarray(found, np.int64).reshape(-1, 3)


@op("ImageDecoder", host="encoded")
def image_decoder(encoded: Array, *, pixel_format: str = "RGB") -> Array:
    """The pixels of a file in memory, as Pillow reads them.

    Raises: UnsupportedError where Pillow is absent or cannot read it.
    """
    try:
        from PIL import Image
    except ImportError as error:
        raise UnsupportedError("images are read by Pillow: pip install pillow") from error
    try:
        image = Image.open(io.BytesIO(encoded.tobytes()))
        if pixel_format == "Grayscale":
            return np.asarray(image.convert("L"))[:, :, None]
        pixels = np.asarray(image.convert("RGB"))
    except OSError as error:
        raise UnsupportedError(f"an image that Pillow cannot read: {error}") from error
    return pixels[:, :, ::-1].copy() if pixel_format == "BGR" else pixels
