"""Computes operators that move elements: views, joins, pads, and tensors made of numbers."""

from __future__ import annotations

import math
from typing import Any

from aster_ml import Tensor
from aster_ml.torch_backend.aten.registry import DEVICE, aten, expressions
from aster_ml.torch_backend.types import Spec


@aten("view.dtype", refuses=lambda node: other_width(node), wants_out=True)
def view_dtype(x: Tensor, dtype: Any, *, out: Spec) -> Any:
    """The bits of x as another dtype."""
    return x.bitcast(out.dtype)


def other_width(node: Any) -> str | None:
    """A view of bytes as elements of another size."""
    given = node.args[0].meta["val"].dtype.itemsize
    return None if given == node.meta["val"].dtype.itemsize else "elements of another size"


@aten("expand", "expand_copy")
def expand(x: Tensor, size: Any, implicit: bool = False) -> Any:
    """x repeated along axes of one element, without being copied."""
    lead = len(size) - x.ndim
    sizes = [x.shape[i - lead] if s == -1 else s for i, s in enumerate(size)]
    return x.expand(tuple(sizes))


@aten("permute", "permute_copy")
def permute(x: Tensor, dims: Any) -> Any:
    """The axes in another order."""
    return x.permute(tuple([d % x.ndim for d in dims])) if x.ndim else x


@aten("squeeze", "squeeze.dim", "squeeze.dims")
def squeeze(x: Tensor, dim: Any = None) -> Any:
    """Without axes of one element."""
    named = range(x.ndim) if dim is None else [dim] if isinstance(dim, int) else dim
    gone = {d % x.ndim for d in named} if x.ndim else set()
    return x.reshape(tuple([s for i, s in enumerate(x.shape) if i not in gone or s != 1]))


@aten("select.int")
def select(x: Tensor, dim: int, index: int) -> Any:
    """One place of an axis."""
    axis = dim % x.ndim
    place = index % x.shape[axis]
    ends = [(place, place + 1) if i == axis else None for i in range(x.ndim)]
    return x.shrink(ends).squeeze(axis)


def clip(place: Any, size: int, default: int) -> int:
    """The end of a slice, inside of the axis."""
    found = default if place is None else place
    return int(min(max(found + size if found < 0 else found, 0), size))


@aten("slice.Tensor")
def slice_(x: Tensor, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Any:
    """A part of an axis, each `step`-th element."""
    axis = dim % x.ndim
    size = x.shape[axis]
    low = clip(start, size, 0)
    high = max(low, clip(end, size, size))
    return x[tuple([slice(low, high, step) if i == axis else slice(None) for i in range(x.ndim)])]


@aten("slice_scatter")
def slice_scatter(
    x: Tensor, source: Tensor, dim: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> Any:
    """x with `source` in place of a part of an axis."""
    axis = dim % x.ndim
    size = x.shape[axis]
    low = clip(start, size, 0)
    high = max(low, clip(end, size, size))
    if low == high:
        return x
    source = source.cast(x.dtype)
    if step == 1:
        before = x.shrink([(0, low) if i == axis else None for i in range(x.ndim)])
        after = x.shrink([(high, size) if i == axis else None for i in range(x.ndim)])
        parts = [p for p in (before, source, after) if p.shape[axis]]
        return parts[0].cat(*parts[1:], dim=axis)
    shape = [size if i == axis else 1 for i in range(x.ndim)]
    place = Tensor.arange(size, device=DEVICE).reshape(shape)
    inside = (place >= low) & (place < high) & ((place - low) % step).eq(0)
    taken = ((place - low) // step).clamp(0, source.shape[axis] - 1)
    return inside.where(source.gather(axis, taken.expand(x.shape)), x)


@aten("select_scatter")
def select_scatter(x: Tensor, source: Tensor, dim: int, index: int) -> Any:
    """x with `source` in one place of an axis."""
    axis = dim % x.ndim
    place = index % x.shape[axis]
    return slice_scatter(x, source.unsqueeze(axis), axis, place, place + 1)


@aten("cat", wants_out=True)
def cat(tensors: Any, dim: int = 0, *, out: Spec) -> Any:
    """Tensors one after the other; those of one axis without elements do not count."""
    parts = [p.cast(out.dtype) for p in tensors if p.shape != (0,)]
    return parts[0].cat(*parts[1:], dim=dim) if parts else tensors[0].cast(out.dtype)


@aten("stack", wants_out=True)
def stack(tensors: Any, dim: int = 0, *, out: Spec) -> Any:
    """Tensors along a new axis."""
    parts = [p.cast(out.dtype) for p in tensors]
    return parts[0].stack(*parts[1:], dim=dim)


@aten("roll")
def roll(x: Tensor, shifts: Any, dims: Any = ()) -> Any:
    """Elements moved on along axes, round the end."""
    return x.roll(tuple(shifts), tuple(dims)) if dims else x.roll(shifts[0])


@aten("reflection_pad1d", "reflection_pad2d", "reflection_pad3d")
def reflection_pad(x: Tensor, pad: Any) -> Any:
    """x mirrored around itself."""
    return x.pad(tuple(pad), mode="reflect")


@aten("replication_pad1d", "replication_pad2d", "replication_pad3d")
def replication_pad(x: Tensor, pad: Any) -> Any:
    """x with its edges repeated around it."""
    return x.pad(tuple(pad), mode="replicate")


def is_laid_otherwise(node: Any) -> str | None:
    """`as_strided` names places in memory, which Aster's values have in row-major order."""
    value = node.args[0].meta["val"]
    if value.is_contiguous() and value.storage_offset() == 0:
        return None
    return "memory that is not row-major"


@aten("as_strided", refuses=is_laid_otherwise)
def as_strided(x: Tensor, size: Any, stride: Any, offset: Any = None) -> Any:
    """Elements of the memory of x by steps along each axis."""
    place = Tensor.full((1,) * len(size), offset or 0, dtype="int32", device=DEVICE)
    for i, (n, step) in enumerate(zip(size, stride)):
        shape = [n if j == i else 1 for j in range(len(size))]
        place = place + Tensor.arange(n, dtype="int32", device=DEVICE).reshape(shape) * step
    return x.flatten()[place.expand(tuple(size))]


@aten("full", wants_out=True)
def full(size: Any, value: Any, *, out: Spec, dtype: Any = None) -> Any:
    """One number everywhere."""
    return Tensor.full(tuple(size), value, dtype=out.dtype, device=DEVICE)


@aten("full_like", wants_out=True)
def full_like(x: Tensor, value: Any, *, out: Spec, dtype: Any = None) -> Any:
    """One number in the shape of x."""
    return Tensor.full(x.shape, value, dtype=out.dtype, device=DEVICE)


@aten("empty_strided", wants_out=True)
def empty_strided(size: Any, stride: Any, *, out: Spec, dtype: Any = None) -> Any:
    """Zeros; where they lie is decided for results alone."""
    return full(size, 0, out=out)


@aten("arange.start_step", wants_out=True)
def arange(start: Any, end: Any, step: Any = 1, *, out: Spec, dtype: Any = None) -> Any:
    """Numbers at equal distances, up to the end without it."""
    count = max(0, math.ceil((end - start) / step))
    place = Tensor.arange(count, dtype="int64" if out.dtype.kind != "float" else out.dtype)
    return (place.to(DEVICE) * step + start).cast(out.dtype)


expressions(
    {
        "view _unsafe_view reshape view_copy": lambda x, size: x.reshape(tuple(size)),
        "transpose.int": lambda x, one, two: x.transpose(one, two) if x.ndim else x,
        "t": lambda x: x.transpose(0, 1) if x.ndim == 2 else x,
        "unsqueeze": lambda x, dim: x.unsqueeze(dim),
        "split_with_sizes": lambda x, sizes, dim=0: x.split(list(sizes), dim),
        "split.Tensor": lambda x, size, dim=0: x.split(size, dim),
        "unbind.int": lambda x, dim=0: [select(x, dim, i) for i in range(x.shape[dim])],
        "flip": lambda x, dims: x.flip(tuple(dims)) if dims and x.ndim else x,
        "repeat": lambda x, repeats: x.repeat(tuple(repeats)),
        "diagonal": lambda x, offset=0, dim1=0, dim2=1: x.diagonal(offset, dim1, dim2),
        "tril": lambda x, diagonal=0: x.tril(diagonal),
        "triu": lambda x, diagonal=0: x.triu(diagonal),
        "constant_pad_nd": lambda x, pad, value=0: x.pad(tuple(pad), value=value),
    },
)

expressions(
    {
        "zeros_like empty_like": lambda x, *, out, dtype=None: full_like(x, 0, out=out),
        "ones_like": lambda x, *, out, dtype=None: full_like(x, 1, out=out),
        "zeros empty.memory_format": lambda size, *, out, dtype=None: full(size, 0, out=out),
        "ones": lambda size, *, out, dtype=None: full(size, 1, out=out),
        "scalar_tensor": lambda value, *, out, dtype=None: full((), value, out=out),
        "fill.Scalar": lambda x, value, *, out: full_like(x, value, out=out),
        "fill.Tensor": lambda x, value, *, out: value.cast(out.dtype).expand(x.shape),
    },
    wants_out=True,
)
