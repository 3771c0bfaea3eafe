"""Models of one node for every operator of ONNX whose schema has changed, at each of its versions.

`MAKERS` gives what an operator is called with, by the names of the newest schema and older ones;
`one_node` takes of it what the schema of a version has, as inputs or as attributes. Operators that
draw random numbers, and those on text, do not belong here.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from onnx import TensorProto, defs, helper, numpy_helper

Draw = random.Random
Values = dict[str, Any]
# What a version before 7 is written in: the oldest format of files that all readers take.
IR_OF_OLD, IR = 3, 10
FLOAT_ATTRIBUTE = 1


class Drawn:
    """Random arrays and choices of one case."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.rng = np.random.default_rng(seed)

    def shape(self, low: int = 1, high: int = 4) -> list[int]:
        """Sizes of some axes."""
        return [self.draw.choice([1, 2, 3, 4]) for _ in range(self.draw.randint(low, high))]

    def floats(self, *shape: int, scale: float = 1.0) -> Any:
        """Numbers around 0."""
        return (self.rng.normal(size=shape) * scale).astype(np.float32)

    def ints(self, low: int, high: int, *shape: int, kind: str = "i8") -> Any:
        """Integers from low to below high."""
        return self.rng.integers(low, high, shape).astype(kind)

    def maybe(self, share: float = 0.5) -> bool:
        """True as often as `share` says."""
        return self.draw.random() < share

    def axis(self, rank: int) -> int:
        """An axis, counted from the front or from the end."""
        return self.draw.randrange(-rank, rank)


def unary(scale: float = 1.0, shift: float = 0.0, **attributes: Any) -> Callable[[Drawn], Values]:
    """One tensor, and attributes that are there or not."""

    def make(d: Drawn) -> Values:
        x = d.floats(*d.shape(), scale=scale) + np.float32(shift)
        return {0: np.asarray(x), **{k: v for k, v in attributes.items() if d.maybe()}}

    return make


def positive(d: Drawn) -> Values:
    """One tensor of positive numbers."""
    return {0: np.abs(d.floats(*d.shape())) + np.float32(1.1)}


def inside(d: Drawn) -> Values:
    """One tensor of numbers between -1 and 1."""
    return {0: np.tanh(d.floats(*d.shape()))}


def two(kind: str = "f") -> Callable[[Drawn], Values]:
    """Two tensors; the second one may be broadcast."""

    def make(d: Drawn) -> Values:
        shape = d.shape()
        other = [1 if d.maybe(0.3) else n for n in shape][d.draw.randint(0, len(shape)) :]
        if kind == "?":
            return {0: d.floats(*shape) > 0, 1: d.floats(*other) > 0}
        if kind == "i":
            return {0: d.ints(-9, 9, *shape), 1: d.ints(1, 5, *other)}
        return {0: d.floats(*shape), 1: d.floats(*other)}

    return make


def old_two(kind: str = "f") -> Callable[[Drawn], Values]:
    """Two tensors as before version 7: of one shape, or broadcast from an axis on."""

    def make(d: Drawn) -> Values:
        shape = d.shape(1, 4)
        numbers = d.floats if kind == "f" else lambda *s: d.floats(*s) > 0
        if d.maybe(0.3):
            return {0: numbers(*shape), 1: numbers(*shape)}
        start = d.draw.randrange(len(shape))
        stop = d.draw.randint(start + 1, len(shape))
        if stop == len(shape) and d.maybe():
            return {0: numbers(*shape), 1: numbers(*shape[start:]), "broadcast": 1}
        axis = start - (len(shape) if d.maybe(0.3) else 0)
        return {0: numbers(*shape), 1: numbers(*shape[start:stop]), "broadcast": 1, "axis": axis}

    return make


def reduced(kind: str = "f") -> Callable[[Drawn], Values]:
    """A tensor and axes."""

    def make(d: Drawn) -> Values:
        x = np.abs(d.floats(*d.shape())) + np.float32(0.1)
        values: Values = {0: x}
        if d.maybe(0.8):
            axes = d.draw.sample(range(x.ndim), d.draw.randint(0 if d.maybe(0.2) else 1, x.ndim))
            values["axes"] = np.array([a - x.ndim if d.maybe(0.3) else a for a in axes], np.int64)
        if d.maybe():
            values["keepdims"] = d.draw.randint(0, 1)
        if d.maybe(0.3):
            values["noop_with_empty_axes"] = d.draw.randint(0, 1)
        return values

    return make


def arg_reduced(d: Drawn) -> Values:
    """A tensor with equal numbers in it, and an axis."""
    x = d.ints(0, 3, *d.shape()).astype(np.float32)
    values: Values = {0: x}
    if d.maybe(0.8):
        values["axis"] = d.axis(x.ndim)
    for name in ("keepdims", "select_last_index"):
        if d.maybe():
            values[name] = d.draw.randint(0, 1)
    return values


def by_axis(d: Drawn) -> Values:
    """A tensor and an axis, or none."""
    x = d.floats(*d.shape(2, 4), scale=2)
    return {0: x, **({"axis": d.axis(x.ndim)} if d.maybe(0.8) else {})}


def window(d: Drawn, rank: int) -> Values:
    """Attributes of windows over `rank` axes."""
    values: Values = {"kernel_shape": [d.draw.randint(1, 3) for _ in range(rank)]}
    if d.maybe():
        values["strides"] = [d.draw.randint(1, 3) for _ in range(rank)]
    match d.draw.randrange(4):
        case 0:
            limit = [k - 1 for k in values["kernel_shape"]]
            values["pads"] = [d.draw.randint(0, n) for n in limit + limit]
        case 1:
            values["auto_pad"] = d.draw.choice(["SAME_UPPER", "SAME_LOWER", "VALID"])
        case _:
            pass
    return values


def pooled(**more: list[Any]) -> Callable[[Drawn], Values]:
    """An image of some axes, windows, and further attributes that are there or not."""

    def make(d: Drawn) -> Values:
        rank = d.draw.randint(1, 3)
        x = d.floats(d.draw.randint(1, 2), d.draw.randint(1, 3), *[d.draw.randint(5, 8)] * rank)
        values = {0: x, **window(d, rank)}
        for name, choices in more.items():
            if d.maybe():
                choice = d.draw.choice(choices)
                values[name] = [choice] * rank if name == "dilations" else choice
        # onnxruntime leaves out dilations where it works out how much is padded.
        if "auto_pad" in values:
            values.pop("dilations", None)
        return values

    return make


def convolved(d: Drawn) -> Values:
    """An image, weights, perhaps a bias, windows."""
    rank, group = d.draw.randint(1, 2), d.draw.randint(1, 2)
    values = window(d, rank)
    kernel = values["kernel_shape"]
    outputs = group * d.draw.randint(1, 2)
    values[0] = d.floats(1, group * 2, *[d.draw.randint(5, 8)] * rank)
    values[1] = d.floats(outputs, 2, *kernel)
    if d.maybe():
        values[2] = d.floats(outputs)
    if group > 1:
        values["group"] = group
    if d.maybe(0.3) and "auto_pad" not in values:
        values["dilations"] = [2] * rank
    return values


def deconvolved(d: Drawn) -> Values:
    """As `convolved`, the other way round."""
    values = convolved(d)
    group = values.get("group", 1)
    values[1] = d.floats(values[0].shape[1], 2, *values["kernel_shape"])
    if 2 in values:
        values[2] = d.floats(2 * group)
    values.pop("auto_pad", None)
    return values


def normalised(d: Drawn) -> Values:
    """What batches are normalised with."""
    x = d.floats(2, 3, *d.shape(0, 2))
    values = {i: d.floats(3) for i in range(1, 4)}
    return {0: x, **values, 4: np.abs(d.floats(3)) + np.float32(0.1),
            "is_test": 1, "spatial": 1, "consumed_inputs": [0, 0, 0, 1, 1],
            **({"epsilon": 0.01} if d.maybe() else {})}  # fmt: skip


def clipped(d: Drawn) -> Values:
    """A tensor and two bounds, one of them, or none."""
    values: Values = {0: d.floats(*d.shape(), scale=3)}
    if d.maybe(0.7):
        values["min"] = np.float32(-0.5)
    if d.maybe(0.7):
        values["max"] = np.float32(d.draw.choice([1.0, -1.0]))
    return values


def padded(d: Drawn) -> Values:
    """A tensor with some elements more on each side, or fewer."""
    x = d.floats(*[n + 2 for n in d.shape()])
    mode = d.draw.choice(["constant", "constant", "reflect", "edge", "wrap"])
    low = -1 if mode == "constant" else 0
    values: Values = {0: x, "mode": mode}
    axes = list(range(x.ndim))
    if d.maybe(0.4):
        axes = d.draw.sample(axes, d.draw.randint(1, x.ndim))
        values["axes"] = np.array([a - x.ndim if d.maybe(0.3) else a for a in axes], np.int64)
    pads = np.array([d.draw.randint(low, 2) for _ in range(2 * len(axes))], np.int64)
    values["pads"] = values["paddings"] = pads
    if mode == "constant" and d.maybe():
        values["value"] = 1.5
        values["constant_value"] = np.float32(1.5)
    return values


def sliced(d: Drawn) -> Values:
    """A tensor and parts of some axes."""
    x = d.floats(*[n + 2 for n in d.shape()])
    axes = d.draw.sample(range(x.ndim), d.draw.randint(1, x.ndim))
    if d.maybe(0.3):
        axes = list(range(len(axes)))

    def place() -> int:
        return d.draw.choice([-100, -3, -1, 0, 1, 2, 4, 100, (1 << 62)])

    values: Values = {
        0: x, "starts": np.array([place() for _ in axes], np.int64),
        "ends": np.array([place() for _ in axes], np.int64),
    }  # fmt: skip
    if axes != list(range(len(axes))) or d.maybe():
        values["axes"] = np.array([a - x.ndim if d.maybe(0.3) else a for a in axes], np.int64)
    if "axes" in values and d.maybe():
        values["steps"] = np.array([d.draw.choice([-2, -1, 1, 2, 100]) for _ in axes], np.int64)
    return values


def squeezed(d: Drawn) -> Values:
    """A tensor with axes of size 1."""
    shape = [1 if d.maybe() else n for n in d.shape()]
    ones = [i for i, n in enumerate(shape) if n == 1]
    values: Values = {0: d.floats(*shape)}
    if ones and d.maybe(0.8):
        axes = d.draw.sample(ones, d.draw.randint(1, len(ones)))
        values["axes"] = np.array([a - len(shape) if d.maybe(0.3) else a for a in axes], np.int64)
    return values


def unsqueezed(d: Drawn) -> Values:
    """A tensor and new axes."""
    shape = d.shape(0, 3)
    rank = len(shape) + d.draw.randint(1, 2)
    axes = d.draw.sample(range(rank), rank - len(shape))
    return {0: d.floats(*shape),
            "axes": np.array([a - rank * d.maybe(0.3) for a in axes], np.int64)}  # fmt: skip


def parted(d: Drawn) -> Values:
    """A tensor in parts."""
    x = d.floats(*[n * 2 for n in d.shape()])
    axis = d.axis(x.ndim)
    size = x.shape[axis]
    values: Values = {0: x, "axis": axis, "outputs": 2, "num_outputs": 2}
    if d.maybe():
        cut = d.draw.randint(1, size - 1)
        values["split"] = np.array([cut, size - cut], np.int64)
        del values["num_outputs"]
    return values


def chosen(d: Drawn) -> Values:
    """A tensor and how many of the greatest or least; numbers differ."""
    shape = d.shape()
    x = d.rng.permutation(int(np.prod(shape))).reshape(shape).astype(np.float32)
    axis = d.axis(x.ndim)
    count = d.draw.randint(1, x.shape[axis])
    values: Values = {
        0: x,
        "axis": axis,
        "k": count,
        "K": np.array([count], np.int64),
        "outputs": 2,
    }
    if d.maybe():
        values["largest"] = d.draw.randint(0, 1)
    return values


def resized(d: Drawn) -> Values:
    """An image at another size, in one of many ways."""
    # Sizes that are whole numbers: of others onnxruntime takes the whole part in places where the
    # definition does not.
    x = d.floats(1, 2, d.draw.choice([2, 4]), d.draw.choice([2, 4]))
    scales = [1.0, 1.0, d.draw.choice([0.5, 1.0, 2.0, 1.5]), d.draw.choice([0.5, 1.0, 2.0, 3.0])]
    mode = d.draw.choice(["nearest", "linear", "cubic"])
    values: Values = {0: x, "mode": mode}
    if d.maybe(0.3):
        values["sizes"] = np.array([1, 2, d.draw.randint(1, 7), d.draw.randint(1, 7)], np.int64)
    values["scales"] = np.array(scales, np.float32)
    for name, choices in {
        "coordinate_transformation_mode": [
            "half_pixel", "align_corners", "asymmetric", "pytorch_half_pixel",
            "half_pixel_symmetric",
        ],
        "nearest_mode": ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"],
        "cubic_coeff_a": [-0.5, -0.75], "exclude_outside": [0, 1],
        "antialias": [0, 1],
        "keep_aspect_ratio_policy": ["stretch", "not_larger", "not_smaller"],
    }.items():  # fmt: skip
        if d.maybe(0.4):
            values[name] = d.draw.choice(choices)
    if mode != "nearest":
        values.pop("nearest_mode", None)
    if mode != "cubic":
        values.pop("cubic_coeff_a", None)
        values.pop("exclude_outside", None)
    if mode == "nearest":
        values.pop("antialias", None)
    return values


def upsampled(d: Drawn) -> Values:
    """An image enlarged."""
    x = d.floats(1, 2, d.draw.randint(2, 4), d.draw.randint(2, 4))
    scales = [1.0, 1.0, d.draw.choice([1.0, 2.0, 3.0]), d.draw.choice([1.0, 2.0, 1.5])]
    return {0: x, "scales": np.array(scales, np.float32),
            "mode": d.draw.choice(["nearest", "linear"]),
            "height_scale": scales[2], "width_scale": scales[3]}  # fmt: skip


def quantised(d: Drawn) -> Values:
    """Floats to be quantised, for the whole, along an axis, or in blocks."""
    x = d.floats(4, 3, 8, scale=20)
    kind = d.draw.choice(["u1", "i1", "u2", "i2"])
    info = np.iinfo(kind)
    way = d.draw.randrange(3)
    shape: tuple[int, ...] = () if way == 0 else (3,) if way == 1 else (4, 3, 2)
    values: Values = {0: x, 1: np.abs(d.floats(*shape)) + np.float32(0.1)}
    if d.maybe(0.8):
        values[2] = d.ints(max(info.min, -99), min(info.max, 99), *shape, kind=kind)
    if way == 1:
        values["axis"] = d.draw.choice([1, -2])
    if way == 2:
        values["axis"], values["block_size"] = d.draw.choice([2, -1]), 4
    return values


def dequantised(d: Drawn) -> Values:
    """Small integers to be made floats."""
    values = quantised(d)
    kind = values[2].dtype if 2 in values else np.dtype("u1")
    values[0] = d.ints(0, 100, 4, 3, 8, kind=kind.str)
    return values


def gathered(d: Drawn) -> Values:
    """A tensor and indices along an axis."""
    x = d.floats(*d.shape())
    axis = d.axis(x.ndim)
    n = x.shape[axis]
    return {0: x, 1: d.ints(-n, n, *d.shape(0, 2)), "axis": axis}


def gathered_elements(d: Drawn) -> Values:
    """A tensor and an index for each element along an axis."""
    values = gathered(d)
    n = values[0].shape[values["axis"]]
    values[1] = d.ints(-n, n, *values[0].shape)
    return values


def scattered(d: Drawn) -> Values:
    """A tensor, indices along an axis that differ, and updates."""
    x = d.floats(*d.shape())
    axis = d.axis(x.ndim)
    places = np.argsort(d.rng.random(x.shape), axis).astype(np.int64)
    values: Values = {0: x, 1: places, 2: d.floats(*x.shape), "axis": axis}
    if d.maybe():
        values["reduction"] = d.draw.choice(["none", "add", "mul", "max", "min"])
    return values


def scattered_rows(d: Drawn) -> Values:
    """A tensor, rows of indices that differ, and updates."""
    x = d.floats(4, 3, 2)
    values: Values = {0: x, 1: np.array([[2], [0]], np.int64), 2: d.floats(2, 3, 2)}
    if d.maybe():
        values["reduction"] = d.draw.choice(["none", "add", "mul", "max", "min"])
    return values


def gathered_rows(d: Drawn) -> Values:
    """A tensor and rows of indices, perhaps by batch."""
    batch = d.draw.randint(0, 1)
    x = d.floats(2, 3, 4)
    depth = d.draw.randint(1, 3 - batch)
    columns = [d.ints(-x.shape[batch + i], x.shape[batch + i], 2, 2) for i in range(depth)]
    return {0: x, 1: np.stack(columns, -1), **({"batch_dims": 1} if batch else {})}


def multiplied(d: Drawn) -> Values:
    """Three matrices of a Gemm."""
    n, k, m = (d.draw.randint(1, 4) for _ in range(3))
    values: Values = {name: d.draw.randint(0, 1) for name in ("transA", "transB")}
    values[0] = d.floats(*((k, n) if values["transA"] else (n, k)))
    values[1] = d.floats(*((m, k) if values["transB"] else (k, m)))
    values[2] = d.floats(*d.draw.choice([(n, m), (m,), (1, m), (n, 1), (1,)]))
    values["broadcast"] = 1
    for name in ("alpha", "beta"):
        if d.maybe():
            values[name] = d.draw.choice([0.5, 0.0, 2.0])
    return values


def sloped(d: Drawn) -> Values:
    """A tensor and a slope for each channel, or for all."""
    x = d.floats(2, 3, *d.shape(0, 2))
    return {0: x, 1: d.floats(*d.draw.choice([(1,), (3,) + (1,) * (x.ndim - 2)]))}


def several(d: Drawn) -> Values:
    """Up to three tensors of one shape."""
    shape = d.shape()
    return {i: d.floats(*shape) for i in range(d.draw.randint(1, 3))}


def joined(d: Drawn) -> Values:
    """Tensors one behind the other."""
    shape = d.shape()
    axis = d.axis(len(shape))
    values: Values = {"axis": axis}
    for i in range(2):
        size = list(shape)
        size[axis] = d.draw.randint(1, 3)
        values[i] = d.floats(*size)
    return values


def reshaped(d: Drawn) -> Values:
    """A tensor in another shape."""
    x = d.floats(2, 3, 4)
    choices = [[6, 4], [-1], [0, -1], [0, 0, 4], [4, 3, -1], [0, 12]]
    return {0: x, "shape": np.array(d.draw.choice(choices), np.int64)}


def sampled(d: Drawn) -> Values:
    """An image and places."""
    mode = d.draw.choice(["bilinear", "nearest", "bicubic", "linear", "cubic"])
    return {
        0: d.floats(1, 2, 4, 5), 1: np.tanh(d.floats(1, 3, 4, 2)) * np.float32(1.3),
        **({"mode": mode} if d.maybe(0.8) else {}), "align_corners": d.draw.randint(0, 1),
        "padding_mode": d.draw.choice(["zeros", "border", "reflection"]),
    }  # fmt: skip


def regions(d: Drawn) -> Values:
    """An image and regions of it."""
    corners = np.sort(d.rng.random((3, 2, 2)) * 6, 1).astype(np.float32)
    values: Values = {
        0: d.floats(1, 2, 7, 7), 1: corners.reshape(3, 4), 2: np.zeros(3, np.int64),
        "output_height": 2, "output_width": d.draw.randint(1, 3),
        "sampling_ratio": d.draw.randint(0, 2), "spatial_scale": d.draw.choice([1.0, 0.5]),
    }  # fmt: skip
    if d.maybe():
        mode = d.draw.choice(["half_pixel", "output_half_pixel"])
        values["coordinate_transformation_mode"] = mode
    return values


def blocks(d: Drawn) -> Values:
    """Channels to be blocks of pixels."""
    mode = {"mode": d.draw.choice(["DCR", "CRD"])} if d.maybe() else {}
    return {0: d.floats(1, 8, 2, 3), "blocksize": 2, **mode}


def pixels(d: Drawn) -> Values:
    """Blocks of pixels to be channels."""
    return {0: d.floats(1, 2, 4, 6), "blocksize": 2}


def recurrent(gates: int) -> Callable[[Drawn], Values]:
    """A recurrent layer of `gates` gates."""

    def make(d: Drawn) -> Values:
        steps, batch, size, hidden = (d.draw.randint(1, 3) for _ in range(4))
        direction = d.draw.choice(["forward", "reverse", "bidirectional"])
        n = 2 if direction == "bidirectional" else 1
        values: Values = {
            0: d.floats(steps, batch, size), 1: d.floats(n, gates * hidden, size),
            2: d.floats(n, gates * hidden, hidden), "hidden_size": hidden, "direction": direction,
            "outputs": 3 if gates == 4 else 2,
        }  # fmt: skip
        if gates == 3:
            values["linear_before_reset"] = d.draw.randint(0, 1)
        if d.maybe():
            values[3] = d.floats(n, 2 * gates * hidden)
        values["output_sequence"] = 1
        return values

    return make


def summed(d: Drawn) -> Values:
    """A tensor and an axis along which sums go on."""
    x = d.floats(*d.shape())
    return {0: x, 1: np.array(d.axis(x.ndim), np.int64), "exclusive": d.draw.randint(0, 1),
            "reverse": d.draw.randint(0, 1)}  # fmt: skip


def hot(d: Drawn) -> Values:
    """Numbers of places, some outside."""
    return {0: d.ints(-4, 6, *d.shape(1, 2)), 1: np.array(4, np.int64),
            2: np.array([0.5, 2.0], np.float32), "axis": d.draw.choice([-1, 0, 1])}  # fmt: skip


def suppressed(d: Drawn) -> Values:
    """Boxes and scores."""
    corners = np.sort(d.rng.random((1, 6, 2, 2)), 2).astype(np.float32).reshape(1, 6, 4)
    return {0: corners, 1: d.rng.random((1, 2, 6)).astype(np.float32), 2: np.array([3], np.int64),
            3: np.array([0.3], np.float32), 4: np.array([0.2], np.float32)}  # fmt: skip


def losses(d: Drawn) -> Values:
    """Scores of classes and labels."""
    rest = d.shape(0, 1)
    values: Values = {0: d.floats(3, 4, *rest), 1: d.ints(0, 4, 3, *rest)}
    if d.maybe():
        values[2] = np.abs(d.floats(4)) + np.float32(0.1)
    if d.maybe():
        values["ignore_index"] = 1
    values["reduction"] = d.draw.choice(["none", "sum", "mean"])
    return values


def grouped(d: Drawn) -> Values:
    """Channels in groups."""
    groups = 2
    return {0: d.floats(2, 4, *d.shape(1, 2)), 1: d.floats(groups), 2: d.floats(groups),
            "num_groups": groups}  # fmt: skip


def scanned(d: Drawn) -> Values:
    """A graph for each step."""
    body = helper.make_graph(
        [helper.make_node("Add", ["s", "x"], ["t"]), helper.make_node("Identity", ["t"], ["y"])],
        "body",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, [2]) for n in ("s", "x")],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, [2]) for n in ("t", "y")],
    )
    values: Values = {
        "body": body,
        "num_scan_inputs": 1,
        "outputs": 2,
        "batch": d.draw.randint(1, 3),
    }
    values["steps"] = d.draw.randint(1, 4)
    for name, choices in {
        "scan_input_axes": [0, 1, -1], "scan_input_directions": [0, 1],
        "scan_output_axes": [0, 1, -1], "scan_output_directions": [0, 1], "directions": [0, 1],
    }.items():  # fmt: skip
        if d.maybe():
            values[name] = [d.draw.choice(choices)]
    return values


def cast(d: Drawn) -> Values:
    """Numbers in another type."""
    kinds = [1, 2, 3, 6, 7, 9, 10, 11]
    return {0: d.floats(*d.shape(), scale=40) if d.maybe() else d.ints(-3, 99, 2, 3),
            "to": d.draw.choice(kinds)}  # fmt: skip


def dropped(d: Drawn) -> Values:
    """Nothing is dropped outside of training."""
    return {0: d.floats(*d.shape()), "ratio": np.float32(0.3), "is_test": 1}


def tiled(d: Drawn) -> Values:
    """A tensor again and again."""
    x = d.floats(*d.shape())
    values: Values = {0: x, "repeats": d.ints(1, 4, x.ndim)}
    values["tiles"], values["axis"] = np.array([3], np.float32), np.array([0], np.float32)
    return values


def powers(d: Drawn) -> Values:
    """Positive numbers and powers."""
    values = two()(d)
    return {0: np.abs(values[0]) + np.float32(0.1), 1: values[1]}


def expanded(d: Drawn) -> Values:
    """A tensor broadcast to a shape."""
    shape = d.shape()
    return {0: d.floats(*[1 if d.maybe() else n for n in shape]), 1: np.array(shape, np.int64)}


def attended(d: Drawn) -> Values:
    """Queries, keys and values of four axes."""
    heads, groups = d.draw.choice([(2, 2), (4, 2)])
    q, k = d.draw.randint(1, 4), d.draw.randint(1, 4)
    values: Values = {0: d.floats(1, heads, q, 4), 1: d.floats(1, groups, k, 4),
                      2: d.floats(1, groups, k, 4)}  # fmt: skip
    if d.maybe():
        values["is_causal"] = 1
    if d.maybe():
        values["softcap"] = 2.0
    if d.maybe():
        values["scale"] = 0.3
    return values


PLAIN = {
    "Abs": unary(), "Ceil": unary(3), "Floor": unary(3), "Exp": unary(), "Neg": unary(),
    "Reciprocal": positive, "Relu": unary(), "Sigmoid": unary(), "Sign": unary(),
    "Sqrt": positive,
    "Log": positive, "Tanh": unary(), "Erf": unary(), "Sin": unary(), "Cos": unary(),
    "Tan": inside, "Asin": inside, "Acos": inside, "Atan": unary(),
    "Sinh": unary(), "Cosh": unary(),
    "Asinh": unary(), "Acosh": positive, "Atanh": inside, "Round": unary(3), "Softplus": unary(),
    "Softsign": unary(), "Mish": unary(), "HardSwish": unary(3), "Identity": unary(),
    "Celu": unary(alpha=0.5), "Elu": unary(alpha=0.5), "LeakyRelu": unary(alpha=0.3),
    "Selu": unary(alpha=1.2, gamma=0.7), "HardSigmoid": unary(alpha=0.3, beta=0.1),
    "ThresholdedRelu": unary(alpha=0.3), "IsNaN": unary(), "IsInf": unary(),
    "Shape": unary(start=0, end=-1), "Size": unary(), "NonZero": unary(), "Transpose": unary(),
}  # fmt: skip
MAKERS: dict[str, Callable[[Drawn], Values]] = {
    **PLAIN,
    **{f"Reduce{kind}": reduced() for kind in (
        "L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare",
    )},
    **dict.fromkeys(("Add", "Sub", "Mul", "Div", "Greater", "Less", "GreaterOrEqual",
                     "LessOrEqual", "Equal"), two()),
    **dict.fromkeys(("And", "Or", "Xor"), two("?")),
    **dict.fromkeys(("Softmax", "LogSoftmax", "Hardmax"), by_axis),
    **dict.fromkeys(("Sum", "Mean", "Max", "Min"), several),
    "ArgMax": arg_reduced, "ArgMin": arg_reduced, "Flatten": by_axis, "Mod": two("i"),
    "Pow": powers, "Clip": clipped, "Pad": padded, "Slice": sliced, "Squeeze": squeezed,
    "Unsqueeze": unsqueezed, "Split": parted, "TopK": chosen, "Resize": resized,
    "Upsample": upsampled, "QuantizeLinear": quantised, "DequantizeLinear": dequantised,
    "Gather": gathered, "GatherElements": gathered_elements, "GatherND": gathered_rows,
    "Scatter": scattered, "ScatterElements": scattered, "ScatterND": scattered_rows,
    "Gemm": multiplied, "PRelu": sloped, "Concat": joined, "Reshape": reshaped,
    "GridSample": sampled, "RoiAlign": regions, "DepthToSpace": blocks, "SpaceToDepth": pixels,
    "RNN": recurrent(1), "GRU": recurrent(3), "LSTM": recurrent(4), "CumSum": summed,
    "OneHot": hot, "NonMaxSuppression": suppressed, "NegativeLogLikelihoodLoss": losses,
    "SoftmaxCrossEntropyLoss": losses, "GroupNormalization": grouped, "Scan": scanned,
    "Cast": cast, "Dropout": dropped, "Tile": tiled, "Expand": expanded, "Attention": attended,
    "AveragePool": pooled(count_include_pad=[0, 1], ceil_mode=[0, 1], dilations=[2]),
    "MaxPool": pooled(storage_order=[0, 1], ceil_mode=[0, 1], dilations=[2]),
    "LpPool": pooled(p=[1, 2, 3], ceil_mode=[0, 1], dilations=[2]),
    "GlobalLpPool": lambda d: {0: d.floats(1, 2, 3, 4), **({"p": 3} if d.maybe() else {})},
    "GlobalAveragePool": lambda d: {0: d.floats(1, 2, 3, 4)},
    "GlobalMaxPool": lambda d: {0: d.floats(1, 2, 3, 4)},
    "Conv": convolved, "ConvTranspose": deconvolved, "BatchNormalization": normalised,
    "InstanceNormalization": lambda d: {0: d.floats(2, 3, 4), 1: d.floats(3), 2: d.floats(3)},
    "LRN": lambda d: {0: d.floats(1, 5, 2, 2), "size": 3, "alpha": 0.1, "bias": 1.5},
    "LpNormalization": lambda d: {**by_axis(d), "p": d.draw.randint(1, 2)},
    "MatMul": lambda d: {0: d.floats(2, 3, 4), 1: d.floats(4, 2)},
    "Det": lambda d: {0: d.floats(2, 3, 3)},
    "Where": lambda d: {0: d.floats(2, 3) > 0, 1: d.floats(2, 3), 2: d.floats(3)},
    "Range": lambda d: {i: np.array(n, np.int64) for i, n in enumerate((1, 8, 3))},
    "MeanVarianceNormalization": lambda d: {0: d.floats(2, 3, 4, 5)},
    "Compress": lambda d: {0: d.floats(3, 4), 1: d.floats(3) > 0, "axis": 0},
    "ReverseSequence": lambda d: {0: d.floats(3, 4), 1: d.ints(1, 4, 4)},
    "EyeLike": lambda d: {0: d.floats(3, 4), "k": d.draw.randint(-1, 1)},
    "BitShift": lambda d: {0: d.ints(0, 99, 3, kind="u4"), 1: d.ints(0, 9, 3, kind="u4"),
                           "direction": d.draw.choice(["LEFT", "RIGHT"])},
    "Einsum": lambda d: {0: d.floats(2, 3), 1: d.floats(3, 4), "equation": "ab,bc->ac"},
}  # fmt: skip
# Operators before version 7 broadcast by attributes.
OLD_TWO = {
    **dict.fromkeys(("Add", "Sub", "Mul", "Div", "Greater", "Less", "Equal"), old_two()),
    **dict.fromkeys(("And", "Or", "Xor"), old_two("?")),
    "Pow": lambda d: (lambda v: {**v, 0: np.abs(v[0]) + np.float32(0.1)})(old_two()(d)),
}  # fmt: skip


class Form(NamedTuple):
    """An operator at a version at which its schema changed; `opset` has that version of it."""

    kind: str
    version: int
    opset: int


@cache
def forms() -> list[Form]:
    """All forms of the operators above."""
    latest = defs.onnx_opset_version()
    found = []
    for kind in sorted(MAKERS):
        versions = sorted(
            {s.since_version for s in defs.get_all_schemas_with_history()
             if s.name == kind and s.domain == ""}
        )  # fmt: skip
        ends = [*[v - 1 for v in versions[1:]], latest]
        found += [Form(kind, v, end) for v, end in zip(versions, ends)]
        found += [Form(kind, v, v) for v, end in zip(versions, ends) if v != end]
    return found


def one_node(
    form: Form, d: Drawn, left_out: frozenset[str] = frozenset()
) -> tuple[Any, dict[str, Any]] | None:
    """A model of one node, and its inputs; None where the version has no such form.

    Attributes that are `left_out` have their defaults.
    """
    schema = defs.get_schema(form.kind, form.opset, "")
    make = OLD_TWO.get(form.kind, MAKERS[form.kind]) if form.version < 7 else MAKERS[form.kind]
    values = make(d)
    if (form.kind == "Equal" and form.version < 11) or (form.kind == "Equal" and d.maybe()):
        values = {
            k: v if isinstance(k, str) else (v * 2).astype(np.int32) for k, v in values.items()
        }
    if form.kind == "Cast" and form.version < 6:
        values["to"] = TensorProto.DataType.Name(values["to"])
    if form.kind == "Resize" and form.version > 10:
        # One of sizes and scales counts, and the empty one stands in for the other.
        empty = np.zeros(0, np.float32)
        values["roi"] = empty
        if "sizes" in values:
            values["scales"] = empty
        if form.version > 11 and values["scales"].size == 0 and d.maybe():
            del values["roi"], values["scales"]
    if form.kind == "Scan":
        values = scan_inputs(form, values, d)
    if form.kind == "GroupNormalization" and form.version >= 21:
        values[1], values[2] = d.floats(4), d.floats(4)
    attributes, inputs = {}, {}
    names = [item.name for item in schema.inputs]
    outputs = min(values.pop("outputs", 1), schema.max_output)
    for name, value in values.items():
        if name in names:
            inputs[names.index(name)] = np.asarray(value)
        elif not isinstance(name, str):
            inputs[name] = value
        elif name in schema.attributes:
            # An attribute has no numbers of NumPy.
            attributes[name] = (
                value.tolist() if isinstance(value, np.ndarray | np.generic) else value
            )
    if form.kind in ("Reduce" + k for k in ("Max", "Min")) and d.maybe(0.2):
        inputs[0] = (inputs[0] * 5).astype(np.int32)
    if not all(i in inputs for i in range(schema.min_input)) and form.kind != "Scan":
        return None
    order = range(max(inputs) + 1)
    given = [f"i{i}" if i in inputs else "" for i in order]
    node = helper.make_node(form.kind, given, [f"o{i}" for i in range(outputs)])
    for name in attributes.keys() - left_out:
        value = attributes[name]
        kind = int(schema.attributes[name].type.value)
        value = float(value) if kind == FLOAT_ATTRIBUTE else value
        node.attribute.append(helper.make_attribute(name, value, attr_type=kind))
    return model_of(node, {f"i{i}": value for i, value in inputs.items()}, form), {
        f"i{i}": value for i, value in inputs.items()
    }


def scan_inputs(form: Form, values: Values, d: Drawn) -> Values:
    """States and what is scanned, with a batch before version 9."""
    steps, batch = values.pop("steps"), values.pop("batch")
    if form.version < 9:
        return {**values, 1: d.floats(batch, 2), 2: d.floats(batch, steps, 2)}
    x = d.floats(steps, 2)
    axis = (values.get("scan_input_axes") or [0])[0]
    return {**values, 0: d.floats(2), 1: np.ascontiguousarray(x.T) if axis in (1, -1) else x}


def model_of(node: Any, inputs: dict[str, Any], form: Form) -> Any:
    """A model of one node whose small integers are constants, as shapes and axes are in files."""
    constant = {n: v for n, v in inputs.items() if n != "i0" and v.dtype == np.int64 and v.size < 9}
    infos = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape)
        for n, v in inputs.items()
    ]
    kept = [info for info in infos if info.name not in constant]
    initializers = [numpy_helper.from_array(v, n) for n, v in constant.items()]
    ir = IR_OF_OLD if form.opset < 9 else 4 if form.opset < 19 else IR
    graph = helper.make_graph(
        [node],
        "g",
        infos if ir < 4 else kept,
        [helper.make_empty_tensor_value_info(n) for n in node.output],
        initializers,
    )
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", form.opset)], ir_version=ir
    )
