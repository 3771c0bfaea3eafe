"""Computes operators on NumPy arrays: shapes, axes and other small numbers.

They run where all inputs are arrays already, so that chains like Shape, Gather, Concat, Reshape
make no kernels. What gives many elements (`ConstantOfShape`) is left to the tensors. Functions that
take arrays as well as tensors stand in `shape`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from aster_ml.errors import ShapeError
from aster_ml.onnx.ops.registry import Array, on_host
from aster_ml.onnx.ops.types import INT32, INT64, NUMPY, boxed, is_variable
from aster_ml.uop.node import UOp

# More elements than that are no shape.
MOST = 1 << 16


def ints(values: Any) -> list[Any]:
    """Python numbers of an array; sizes that are variables as they are."""
    flat = np.asarray(values).reshape(-1)
    return [value if isinstance(value, UOp) else int(value) for value in flat]


def register_plain() -> None:
    """The operators that NumPy has under other names."""
    unary = {
        "Neg": np.negative, "Abs": np.abs, "Floor": np.floor, "Ceil": np.ceil, "Sqrt": np.sqrt,
        "Not": np.logical_not, "Sign": np.sign, "Exp": np.exp, "Log": np.log,
        "Round": np.round, "BitwiseNot": np.invert,
    }  # fmt: skip
    binary = {
        "Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Equal": np.equal,
        "Greater": np.greater, "Less": np.less, "GreaterOrEqual": np.greater_equal,
        "LessOrEqual": np.less_equal, "And": np.logical_and, "Or": np.logical_or,
        "Xor": np.logical_xor, "BitwiseAnd": np.bitwise_and, "BitwiseOr": np.bitwise_or,
        "BitwiseXor": np.bitwise_xor,
    }  # fmt: skip
    for name, function in unary.items():
        on_host(name)(lambda x, function=function: same_kind(function(x), x))
    for name, function in binary.items():
        on_host(name, since=7)(
            lambda a, b, name=name, function=function: both(name, function, a, b)
        )
    for name, function in {"Max": np.maximum, "Min": np.minimum}.items():
        on_host(name)(lambda *xs, function=function: many(function, xs))


COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "Equal": operator.eq, "Greater": operator.gt, "Less": operator.lt,
    "GreaterOrEqual": operator.ge, "LessOrEqual": operator.le,
}  # fmt: skip


def both(name: str, function: Any, a: Array, b: Array) -> Array:
    """A function of two arrays; comparisons of variable sizes are decided by their bounds."""
    if name not in COMPARISONS or not (is_variable(a) or is_variable(b)):
        return boxed(function(a, b))
    decide = COMPARISONS[name]
    if name == "Equal":
        decide = is_equal
    return np.vectorize(lambda x, y: bool(decide(x, y)), otypes=[np.bool_])(a, b)


def is_equal(a: Any, b: Any) -> bool:
    """Whether two sizes are one. Raises: ShapeError where that hangs on a variable."""
    if a is b:
        return True
    ends = [(x.vmin, x.vmax) if isinstance(x, UOp) else (x, x) for x in (a, b)]
    if ends[0][0] == ends[0][1] == ends[1][0] == ends[1][1]:
        return True
    if ends[0][1] < ends[1][0] or ends[1][1] < ends[0][0]:
        return False
    raise ShapeError(f"whether {a} is {b} hangs on a size that is a variable")


def same_kind(result: Any, x: Array) -> Array:
    """A result in the dtype of what it came from."""
    return np.asarray(result, x.dtype)


def many(function: Any, values: tuple[Array, ...]) -> Array:
    """A function of two over any number of arrays."""
    result = values[0]
    for value in values[1:]:
        result = function(result, value)
    return np.asarray(result)


register_plain()


@on_host("Div", since=7)
def div(a: Array, b: Array) -> Any:
    """Quotients; those of integers lose their fraction."""
    if is_variable(a) or is_variable(b):
        # Rounded down, which is towards zero where nothing is negative.
        if any(not (x >= 0) for x in a.reshape(-1)) or any(not (x > 0) for x in b.reshape(-1)):
            raise ShapeError("a quotient of sizes that may be negative")
        return boxed(np.floor_divide(a, b))
    if a.dtype.kind in "iu":
        if not np.all(b):
            return NotImplemented
        quotient = np.abs(a) // np.abs(b) if a.dtype.kind == "i" else a // b
        return np.asarray(
            np.sign(a) * np.sign(b) * quotient if a.dtype.kind == "i" else quotient, a.dtype
        )
    return np.asarray(a / b, a.dtype)


@on_host("Mod")
def mod(a: Array, b: Array, *, fmod: int) -> Any:
    """Remainders, with the sign of the divisor or (`fmod`) of the dividend."""
    if a.dtype.kind in "iu" and not np.all(b):
        return NotImplemented
    return np.asarray(np.fmod(a, b) if fmod else np.mod(a, b))


@on_host("Pow")
def pow_(x: Array, y: Array) -> Any:
    """Powers."""
    if x.dtype.kind in "iu" and y.dtype.kind in "iu" and np.any(y < 0):
        return NotImplemented
    return np.power(x, y).astype(x.dtype)


@on_host("Cast", since=6)
def cast(x: Array, *, to: int, saturate: int = 1, round_mode: str = "up") -> Any:
    """Another element type, of those that NumPy converts as ONNX says."""
    if is_variable(x):
        return x if to in (INT64, INT32) else NotImplemented
    kinds = x.dtype.kind + np.dtype(NUMPY[to]).kind
    if any(kind not in "biuf" for kind in kinds):
        return NotImplemented
    if kinds[0] == "f" and kinds[1] in "iu" and not np.all(np.isfinite(x)):
        return NotImplemented
    return x.astype(NUMPY[to])


@on_host("Gather")
def gather(data: Array, indices: Array, *, axis: int) -> Array:
    """Elements along an axis; negative indices count from its end."""
    return boxed(np.take(data, indices, axis))


@on_host("GatherND", since=12)
def gather_nd(data: Array, indices: Array, *, batch_dims: int) -> Any:
    """Parts of an array by rows of indices."""
    if batch_dims:
        return NotImplemented
    return np.asarray(data[tuple(np.moveaxis(indices, -1, 0))])


@on_host("Concat")
def concat(*xs: Array, axis: int = 1) -> Array:
    """Arrays one behind the other."""
    return np.concatenate(xs, axis)


@on_host("Slice")
def slice_(
    data: Array, starts: Array, ends: Array, axes: Array | None = None, steps: Array | None = None
) -> Any:
    """A part along some axes."""
    if is_variable(starts) or is_variable(ends):
        return NotImplemented
    cut: list[Any] = [slice(None)] * data.ndim
    axes = np.arange(len(starts)) if axes is None else axes
    steps = np.ones(len(starts), np.int64) if steps is None else steps
    for start, end, axis, step in zip(ints(starts), ints(ends), ints(axes), ints(steps)):
        low = -data.shape[axis] - 1
        cut[axis] = slice(start, None if step < 0 and end <= low else end, step)
    return data[tuple(cut)]


@on_host("Transpose")
def transpose(data: Array, *, perm: list[int] | None = None) -> Array:
    """Axes in another order, reversed without one."""
    return np.ascontiguousarray(np.transpose(data, perm))


@on_host("Expand")
def expand(x: Array, shape: Array) -> Any:
    """Broadcast to a shape, both ways."""
    if is_variable(shape):
        return NotImplemented
    sizes = np.broadcast_shapes(x.shape, tuple(ints(shape)))
    return np.broadcast_to(x, sizes).copy() if np.prod(sizes) <= MOST else NotImplemented


@on_host("Tile", since=6)
def tile(x: Array, repeats: Array) -> Any:
    """Repeated along each axis."""
    if is_variable(repeats):
        return NotImplemented
    count = x.size * int(np.prod(repeats))
    return np.tile(x, ints(repeats)) if count <= MOST else NotImplemented


@on_host("Where")
def where(condition: Array, x: Array, y: Array) -> Array:
    """Of x where the condition holds, else of y."""
    return np.where(condition, x, y)


@on_host("Range")
def range_(start: Array, limit: Array, delta: Array, *, stash_type: int = 1) -> Any:
    """From start to below limit in steps."""
    if any(is_variable(v) for v in (start, limit, delta)):
        return NotImplemented
    if start.dtype.kind not in "iu" or delta.size != 1 or not int(delta.reshape(-1)[0]):
        return NotImplemented
    first, last, step = (int(v.reshape(-1)[0]) for v in (start, limit, delta))
    count = max(-((first - last) // step), 0)
    return np.arange(first, last, step, dtype=start.dtype) if count <= MOST else NotImplemented


@on_host("ConstantOfShape")
def constant_of_shape(shape: Array, *, value: Array | None = None) -> Any:
    """One value everywhere."""
    if is_variable(shape):
        return NotImplemented
    fill = np.zeros(1, np.float32) if value is None else value
    small = np.prod(shape, dtype=object) <= MOST and np.all(shape >= 0)
    return np.full(ints(shape), fill.reshape(()), fill.dtype) if small else NotImplemented


@on_host("Split")
def split_(
    x: Array, split: Array | None = None, *, axis: int, num_outputs: int = 0, call: Any
) -> Any:
    """Parts along an axis: of these sizes, or equal ones."""
    size = x.shape[axis]
    if split is None:
        count = num_outputs or call.results
        part = -(-size // count)
        split = np.asarray([min(part, max(size - i * part, 0)) for i in range(count)])
    if split.sum() != size:
        return NotImplemented
    return tuple(np.split(x, np.cumsum(split)[:-1], axis))


@on_host("CumSum")
def cumsum(x: Array, axis: Array, *, exclusive: int, reverse: int) -> Any:
    """Sums of all up to a place."""
    if exclusive or reverse:
        return NotImplemented
    return np.cumsum(x, int(axis.reshape(())), dtype=x.dtype)


@on_host("Clip", since=11)
def clip(x: Array, min: Array | None = None, max: Array | None = None) -> Array:
    """Between two bounds."""
    x = x if min is None else np.maximum(x, min)
    return np.asarray(x if max is None else np.minimum(x, max))


def reduction(name: str, function: Any) -> None:
    """Registers a reduction of integers."""

    @on_host(name)
    def reduce(
        data: Array, axes: Array | None = None, *, keepdims: int, noop_with_empty_axes: int = 0
    ) -> Any:
        along = () if axes is None else tuple(ints(axes))
        if not data.size or not (data.dtype.kind in "iu" or is_variable(data)):
            return NotImplemented
        if not along:
            if noop_with_empty_axes:
                return data
            along = tuple(range(data.ndim))
        return boxed(function(data, axis=along, keepdims=bool(keepdims)), data.dtype)


for name_, function_ in {
    "ReduceSum": np.sum, "ReduceProd": np.prod, "ReduceMax": np.max, "ReduceMin": np.min,
}.items():  # fmt: skip
    reduction(name_, function_)
