"""Records a model once for all sizes of its axes that are not fixed.

Receives checked inputs; returns outputs of the sizes that belong to them. Axes of one name are one
Variable, an axis without a name one of its own; those of size 0 and 1 are fixed, since an axis of
one element is broadcast. A variable goes from a power of two to another, in steps of a power of two
that divides all sizes seen (images come in steps of 32, and kernels are quicker for it): a size
outside is recorded anew, with a range that holds both. Inputs are copied into memory of the
greatest sizes. What an operator cannot do with a variable size ends the attempt, with a reason that
the runner keeps; sizes are recorded one by one then.
"""

from __future__ import annotations

from collections import ChainMap
from threading import Lock
from typing import Any, NamedTuple

import numpy as np

from aster_ml import Tensor, TinyJit, Variable
from aster_ml.errors import ShapeError
from aster_ml.extend import buffer_of
from aster_ml.onnx.ops.model import Spec
from aster_ml.onnx.ops.recorded import IN_STEP, Place
from aster_ml.onnx.ops.registry import Array, Value
from aster_ml.onnx.ops.run import Execution
from aster_ml.onnx.ops.types import numpy_type
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import Ops

# Steps of more than that make nothing quicker.
MOST_STEP = 64
# Outputs of a recording for all sizes lie so near to those of one for these sizes.
NEAR = {"float16": 2e-2, "bfloat16": 1e-1}
NEAR_ENOUGH = 1e-3
# An input: name, and for each axis a size or the name of a variable.
Axes = tuple[tuple[str, Any, tuple[int | str, ...]], ...]


def axes_of(values: dict[str, Value], specs: dict[str, Spec]) -> tuple[Axes, dict[str, int]]:
    """Names the axes of inputs, and finds the size of each name.

    Raises: ShapeError where axes of one name have two sizes.
    """
    axes, sizes = [], dict[str, int]()
    for name, value in values.items():
        if not isinstance(value, Tensor):
            continue
        said = specs[name].shape or (None,) * value.ndim
        kinds: list[int | str] = []
        for at, size in enumerate(value.shape):
            # Some programs name every axis that they do not know "?".
            named = said[at]
            if isinstance(named, int) or size < 2:
                kinds.append(size)
                continue
            kind = named if named and named != "?" else f"{name}.{at}"
            kinds.append(kind)
            if sizes.setdefault(kind, size) != size:
                raise ShapeError(f"axes named {kind!r} have {sizes[kind]} and {size} elements")
        axes.append((name, value.dtype, tuple(kinds)))
    return tuple(axes), sizes


class Range(NamedTuple):
    """The sizes that a variable stands for: from `low` to `high` in steps of `step`."""

    low: int
    high: int
    step: int

    def holds(self, size: int) -> bool:
        """Whether it stands for this size."""
        return self.low <= size <= self.high and size % self.step == 0

    def with_all(self, other: Range) -> Range:
        """The least range that holds both."""
        step = min(self.step, other.step)
        return Range(min(self.low, other.low), max(self.high, other.high), step)


def range_around(size: int) -> Range:
    """The sizes between the powers of two around one."""
    low = 1 << (size.bit_length() - 1)
    return Range(low, 1 << (size - 1).bit_length(), min(size & -size, MOST_STEP))


def range_above(size: int) -> Range:
    """The sizes from one to the next power of two: smaller ones may be too small for a model."""
    return range_around(size)._replace(low=size)


class Dynamic:
    """One recording for all sizes within `ranges`, of inputs whose axes are `axes`."""

    def __init__(
        self,
        execution: Execution,
        values: dict[str, Value],
        axes: Axes,
        ranges: dict[str, Range],
        result: dict[str, Any],
    ) -> None:
        graph = execution.model.graph
        self.execution, self.axes, self.ranges = execution, axes, ranges
        self.variables = {
            name: Variable(f"onnx_{number}", r.low // r.step, r.high // r.step)
            for number, (name, r) in enumerate(ranges.items())
        }
        self.places = [
            Place(
                name,
                dtype,
                [kind if isinstance(kind, int) else ranges[kind].high for kind in kinds],
                execution.device,
            )
            for name, dtype, kinds in axes
        ]
        self.outputs = [n for n, v in result.items() if isinstance(v, Tensor)]
        places = [i for i, name in enumerate(result) if name in self.outputs]
        names = [name for name, _, _ in axes]
        arrays = {n: v for n, v in values.items() if not isinstance(v, Tensor)}

        def step(*tensors: Tensor) -> Any:
            execution.reads = 0
            found = execution.run(graph, ChainMap({**arrays, **dict(zip(names, tensors))}), {})
            if execution.reads or execution.drew:
                raise ShapeError("numbers are looked at on the way, or drawn")
            made = [execution.tensor(found[i]).contiguous() for i in places]
            return made[0] if len(made) == 1 else made

        self.jit: TinyJit[Any] = TinyJit(step)
        self.lock = Lock()

    def holds(self, sizes: dict[str, int]) -> bool:
        """Whether it is for these sizes."""
        return all(self.ranges[name].holds(size) for name, size in sizes.items())

    def __call__(self, values: dict[str, Value], sizes: dict[str, int]) -> dict[str, Tensor]:
        """The outputs for inputs of these sizes."""
        with self.lock:
            bound = {}
            for name, size in sizes.items():
                step = self.ranges[name].step
                bound[name] = self.variables[name].bind(size // step) * step
            tensors = []
            for place, (name, _, kinds) in zip(self.places, self.axes):
                value = values[name]
                place.fill_part(value.numpy(), tuple([slice(0, size) for size in value.shape]))
                cut = [slice(0, bound[kind]) if kind in bound else slice(None) for kind in kinds]
                tensors.append(place.tensor[tuple(cut)] if cut else place.tensor)
            found = self.jit(*tensors)
            several = [found] if len(self.outputs) == 1 else found
            return {name: whole(tensor) for name, tensor in zip(self.outputs, several)}

    def check(self, found: dict[str, Tensor], right: dict[str, Any]) -> None:
        """Raises ShapeError where outputs are not those of a run for these very sizes."""
        for name, tensor in found.items():
            wanted, given = right[name].numpy(), tensor.numpy()
            if wanted.shape != given.shape:
                raise ShapeError(f"output {name!r} would have the shape {list(given.shape)}")
            near = NEAR.get(tensor.dtype.name, NEAR_ENOUGH)
            if not is_near(given, wanted, near):
                raise ShapeError(f"output {name!r} would have other numbers")


def is_near(given: Array, wanted: Array, near: float) -> bool:
    """Whether floats are those wanted but for rounding, and others the same."""
    if given.dtype.kind in "biu":
        return bool((given == wanted).all())
    a, b = given.astype(np.float64), wanted.astype(np.float64)
    finite = b[np.isfinite(b)]
    scale = float(np.abs(finite).max(initial=0))
    return bool(np.allclose(a, b, near, near * scale, equal_nan=True))


def whole(tensor: Tensor) -> Tensor:
    """A result whose sizes are variables as one whose sizes are numbers."""
    sizes = [size if isinstance(size, int) else size.sym_infer({}) for size in tensor.shape]
    if list(tensor.shape) == sizes:
        return tensor
    cut, u = tuple([slice(0, size) for size in sizes]), tensor.uop
    if u.op is Ops.SHRINK and u.device and str(u.device).split(":")[0] in IN_STEP:
        buffer = buffer_of(u.base)
        memory = np.frombuffer(buffer.as_memoryview(), numpy_type(tensor.dtype))
        shown: UOp = u.src[0]
        array = memory.reshape(shown.shape)[cut].copy()
        return Tensor(array, device=tensor.device)
    return tensor[cut].contiguous().realize()
