"""Defines contractions: matrix products, einsum, convolutions.

Receives Tensors; returns Tensors made of movement, one MUL and one REDUCE: both factors are views
of their operands, spread over the axes of the result and of the sum, so that a kernel sees nothing
but two index expressions. Windows, which convolution shares with pooling, are in `ops.pool`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from aster_ml.config import EXACT, WINO
from aster_ml.device import Device
from aster_ml.dtype import DType, DTypeLike, least_upper_dtype, sum_acc_dtype, to_dtype
from aster_ml.errors import ArgumentError, ShapeError
from aster_ml.helpers import make_tuple
from aster_ml.late import late
from aster_ml.ops import Self
from aster_ml.ops.complexes import complex_result, is_complex
from aster_ml.ops.handle import broadcast_all, cast_node, check_tensor
from aster_ml.ops.movement import broadcast_shapes
from aster_ml.ops.pool import pad_last, resolve_padding, windows_of
from aster_ml.ops.sizes import same_size
from aster_ml.target.tensor_cores import chained_dtypes
from aster_ml.uop.infer import show_shape
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import Ops, ReduceArg

if TYPE_CHECKING:
    from aster_ml.ops import transposed, winograd
else:
    transposed, winograd = late("ops.transposed"), late("ops.winograd")


Labels = tuple[Any, ...]


def dot(self: Self, w: Self, dtype: DTypeLike | None = None) -> Self:
    """Product over the last axis of self and the second-last (of one axis, the only) of `w`.

    Shapes: self [*b, n, k], w [*b, k, m] -> [*b, n, m]; b broadcasts.
    Dtype: `dtype`, in which it also accumulates; else the least upper of both, and sums of
    floats of less than 32 bits accumulate in float32.
    Raises: ShapeError when the two k differ, or a side has no axes.
    Source: Python array API 2023.12, matmul.
    """
    check_tensor(w, "matmul")
    x, xs, ws = self, self.shape, w.shape
    if not xs or not ws:
        raise ShapeError(
            f"matmul: each side needs an axis, in {show_shape(xs)} @ "
            f"{show_shape(ws)}; * multiplies by a scalar"
        )
    k, k_w = xs[-1], ws[-1 if len(ws) == 1 else -2]
    if not (k is k_w or k == k_w):
        raise ShapeError(
            f"matmul: k differs, {show_shape((k,))[1:-1]} against "
            f"{show_shape((k_w,))[1:-1]}, in {show_shape(xs)} @ {show_shape(ws)}"
        )
    result, wide = accumulation_dtypes((x.dtype, w.dtype), dtype)
    if len(xs) > 2 and len(ws) > 2:
        broadcast_shapes("matmul", xs[:-2], ws[:-2])
    left, right = cast_node(x.uop, wide), cast_node(w.uop, wide)
    rows, columns = xs[-2:-1], ws[-1:] if len(ws) > 1 else ()
    if columns:
        last = len(ws) - 1
        right = right._mop(Ops.PERMUTE, (*range(last - 1), last, last - 1))
    # [*b, n, 1, k] and [*b, 1, m, k], spread over [*b, n, m, k].
    left = left.shaped((*xs[:-1], *(1,) * len(columns), k))
    right = right.shaped((*ws[:-2], *(1,) * len(rows), *columns, k))
    if len(xs) <= 2 and len(ws) <= 2 and left.device == right.device:
        spread = (*rows, *columns, k)
        factors: tuple[UOp, ...] = (left._broadcast_to(spread), right._broadcast_to(spread))
    else:
        factors = broadcast_all("matmul", (left, right))
    product = UOp(Ops.MUL, wide, factors)
    shape = product._shape = factors[0].shape
    product._device = factors[0]._device
    if k.__class__ is int and k > 1 and 0 not in shape:
        total = UOp(Ops.REDUCE, wide, (product,), ReduceArg(Ops.ADD, (len(shape) - 1,)))
        total._shape, total._device = (*shape[:-1], 1), product._device
        value = x._derive_with(total._mop(Ops.RESHAPE, shape[:-1]), w)
    else:
        value = x._derive_with(product, w).sum(-1, dtype=wide)
    return value if result is wide else value.cast(result)


def matmul(self: Self, x: Self, reverse: bool = False, dtype: DTypeLike | None = None) -> Self:
    """`self.dot(x)`; with `reverse` `x.dot(self)`.

    Shapes: self [*b, n, k], x [*b, k, m] -> [*b, n, m]; b broadcasts.
    """
    return x.dot(self, dtype) if reverse else self.dot(x, dtype)


def matmul_operator(self: Self, x: Any) -> Self:
    """Multiplies matrices: `self @ x`."""
    if x.__class__ is not self.__class__ and is_complex(x):
        found: Self = complex_result(self, "__matmul__", x, False)
        return found
    if isinstance(x, np.ndarray):
        x = self.__class__(x, device=self.device)
    return self.dot(x)


def rmatmul_operator(self: Self, x: Any) -> Self:
    """Multiplies matrices: `x @ self`."""
    if is_complex(x):
        found: Self = complex_result(self, "__matmul__", x, True)
        return found
    left: Self = self.__class__(x, device=self.device)
    return left.dot(self)


def imatmul(self: Self, x: Any) -> Self:
    """Overwrites self with `self @ x`: `self @= x`."""
    return self.assign(self @ x)


def linear(
    self: Self, weight: Self, bias: Self | None = None, dtype: DTypeLike | None = None
) -> Self:
    """`self @ weight + bias`; a weight of one axis multiplies the last axis instead.

    Shapes: self [*b, k], weight [k, m], bias [m] -> [*b, m].
    Dtype: `dtype`, to which all operands are cast; else as in `dot`.
    """
    if dtype is not None:
        cast = None if bias is None else bias.cast(dtype)
        return self.cast(dtype).linear(weight.cast(dtype), cast)
    out = self * weight if len(weight.shape) == 1 else self.dot(weight)
    return out if bias is None else out + bias


def einsum(formula: str, *operands: Self | Sequence[Self], dtype: DTypeLike | None = None) -> Self:
    """The sum of products that a formula names: `"ij,jk->ik"` is a matrix product.

    Letters name axes; those absent from the right side are summed. A letter twice in one
    operand takes the diagonal, `...` stands for any axes, which broadcast. Without `->` the
    result has the letters that occur once, in alphabetical order. Several operands are
    multiplied from the left, each axis summed as soon as nothing else needs it.

    Dtype: `dtype`, else the least upper of all operands.
    Raises: ArgumentError for a formula that does not fit; ShapeError for sizes that differ.
    Source: numpy.einsum.
    """
    xs: Sequence[Any] = operands
    if len(xs) == 1 and isinstance(xs[0], (list, tuple)):
        xs = xs[0]
    inputs, output = parse_formula(formula, [len(x.shape) for x in xs])
    result, wide = accumulation_dtypes([x.dtype for x in xs], dtype)
    terms = [take_diagonals(x.cast(wide), labels, formula) for x, labels in zip(xs, inputs)]
    check_label_sizes(terms, formula)
    value, labels = terms[0]
    for i, (other, other_labels) in enumerate(terms[1:], 2):
        later = {label for _, rest in terms[i:] for label in rest}.union(output)
        value, labels = sum_unused(value, labels, later.union(other_labels))
        other, other_labels = sum_unused(other, other_labels, later.union(labels))
        value, labels = multiply_sum(value, labels, other, other_labels, output, later)
    value, labels = sum_unused(value, labels, set(output))
    out: Self = value.permute([labels.index(label) for label in output]).cast(result)
    return out


def conv2d(
    self: Self,
    weight: Self,
    bias: Self | None = None,
    groups: int = 1,
    stride: Any = 1,
    dilation: Any = 1,
    padding: Any = 0,
    dtype: DTypeLike | None = None,
) -> Self:
    """Cross-correlation over the last axes, as many as the weight has after its first two.

    `padding` is one number, one an axis, a pair an axis, or all numbers flat with the last
    axis first: (left, right, top, bottom).

    Shapes: self [n, c, h + kh, w + kw], weight [o, c, kh, kw] -> [n, o, h + 1, w + 1];
        self [n, c, t + k], weight [o, c, k] -> [n, o, t + 1].
    Dtype: `dtype`, else the least upper of both; accumulates as `dot` does.
    Raises: ShapeError when channels, groups or kernel do not fit.
    Error: 3x3 windows may be computed in tiles of 2 x 2 results (setting WINO), which are as
        accurate relative to the largest values near by; an inf or nan then reaches all results
        of the tiles it is in. With WINO=1 that of `ops.winograd`.
    Source: torch.nn.functional.conv2d.
    """
    check_tensor(weight, "conv")
    x = self
    kernel = weight.shape[2:]
    dims = len(kernel)
    if not dims or len(x.shape) != dims + 2:
        raise ShapeError(
            f"conv: input {show_shape(x.shape)} and weight "
            f"{show_shape(weight.shape)}; [n, c, *sizes] and "
            "[out, c / groups, *kernel] are wanted, with equally many axes"
        )
    batch, c_in = x.shape[:2]
    c_out, c_group = weight.shape[:2]
    if not same_size(c_group * groups, c_in) or c_out % groups:
        raise ShapeError(
            f"conv: {groups} groups of {c_group} channels against {c_in} in the "
            f"input and {c_out} in the result, in {show_shape(x.shape)} and "
            f"{show_shape(weight.shape)}"
        )
    result, wide = accumulation_dtypes((x.dtype, weight.dtype), dtype)
    pads = resolve_padding(padding, dims, "conv")
    steps = make_tuple(stride, dims), make_tuple(dilation, dims)
    if WINO and not EXACT and steps == ((1, 1), (1, 1)) and not (WINO < 0 and multiplies_narrow(x)):
        tiles = (2,) if WINO < 0 else (2, 4)
        way = winograd.winograd_way(x.uop, weight.uop, wide, pads, groups, tiles)
        if way is not None:
            made = winograd.winograd(
                cast_node(x.uop, wide), cast_node(weight.uop, wide), pads, groups, way
            )
            out = x._derive_with(made, weight).cast(result)
            return out if bias is None else out + bias.reshape((1, -1, 1, 1))
    x = windows_of(pad_last(x.cast(wide), pads), kernel, *steps, "conv")
    sizes = x.shape[2 : 2 + dims]
    # [n, groups, 1, *sizes, c, *kernel] and [1, groups, out, 1.., c, *kernel].
    x = x.reshape((batch, groups, c_group, *sizes, *kernel))
    places = tuple(range(3, 3 + dims))
    x = x.permute((0, 1, *places, 2, *range(3 + dims, 3 + 2 * dims))).unsqueeze(2)
    w = weight.cast(wide).reshape((1, groups, c_out // groups, *(1,) * dims, c_group, *kernel))
    out = (x * w).sum(tuple(range(-1 - dims, 0)), dtype=wide)
    out = out.reshape((batch, c_out, *sizes)).cast(result)
    return out if bias is None else out + bias.reshape((1, -1, *(1,) * dims))


def conv_transpose2d(
    self: Self,
    weight: Self,
    bias: Self | None = None,
    groups: int = 1,
    stride: Any = 1,
    dilation: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
) -> Self:
    """The transpose of `conv2d`: what its gradient with respect to its input is.

    `output_padding` lengthens the far end of each axis.

    Shapes: self [n, c, h, w], weight [c, o, kh, kw] -> [n, o, h + kh - 1, w + kw - 1].
    Raises: ShapeError when channels or groups do not fit.
    Source: torch.nn.functional.conv_transpose2d.
    """
    x = self
    kernel = weight.shape[2:]
    dims = len(kernel)
    if not dims or len(x.shape) != dims + 2:
        raise ShapeError(
            f"conv_transpose: input {show_shape(x.shape)} and weight "
            f"{show_shape(weight.shape)}; [n, c, *sizes] and "
            "[c, out / groups, *kernel] are wanted, with equally many axes"
        )
    if not same_size(weight.shape[0], x.shape[1]) or x.shape[1] % groups:
        raise ShapeError(
            f"conv_transpose: {x.shape[1]} channels in {show_shape(x.shape)} "
            f"against {weight.shape[0]} in {show_shape(weight.shape)}, in "
            f"{groups} groups"
        )
    strides, dilations = make_tuple(stride, dims), make_tuple(dilation, dims)
    if not all(isinstance(s, int) and s > 0 for s in strides):
        raise ArgumentError(f"conv_transpose: stride {strides}; positive whole numbers are wanted")
    axes = [
        transposed.Axis(*given)
        for given in zip(
            x.shape[2:],
            kernel,
            strides,
            dilations,
            resolve_padding(padding, dims, "conv_transpose"),
            make_tuple(output_padding, dims),
        )
    ]
    result, wide = accumulation_dtypes((x.dtype, weight.dtype), None)
    out = transposed.transposed(x.cast(wide), weight.cast(wide), groups, axes, wide).cast(result)
    return out if bias is None else out + bias.reshape((1, -1, *(1,) * dims))


def image_dot(self: Self, w: Self, dtype: DTypeLike | None = None) -> Self:
    """`dot`; no device here has image memory.

    Shapes: self [*b, n, k], w [*b, k, m] -> [*b, n, m]; b broadcasts.
    """
    return self.dot(w, dtype)


def image_conv2d(
    self: Self,
    weight: Self,
    bias: Self | None = None,
    groups: int = 1,
    stride: Any = 1,
    dilation: Any = 1,
    padding: Any = 0,
    dtype: DTypeLike | None = None,
) -> Self:
    """`conv2d`; no device here has image memory."""
    return self.conv2d(weight, bias, groups, stride, dilation, padding, dtype)


def accumulation_dtypes(operands: Sequence[DType], dtype: DTypeLike | None) -> tuple[DType, DType]:
    """The dtype of a sum of products and the one in which products and sum are computed."""
    if dtype is not None:
        return to_dtype(dtype), to_dtype(dtype)
    result = least_upper_dtype(*operands)
    return result, sum_acc_dtype(result)


# einsum: what the formula says, then one operand after the other


def parse_formula(formula: str, ranks: list[int]) -> tuple[list[Labels], Labels]:
    """Labels of each operand and of the result; the axes under `...` are negative numbers."""
    text = formula.replace(" ", "")
    left, arrow, right = text.partition("->")
    parts = left.split(",")
    if len(parts) != len(ranks):
        raise ArgumentError(f"einsum: {formula!r} names {len(parts)} operands, given {len(ranks)}")
    inputs = [expand_labels(part, rank, formula) for part, rank in zip(parts, ranks)]
    wild = max((sum(isinstance(label, int) for label in labels) for labels in inputs), default=0)
    if arrow:
        named = len(right.replace("...", ""))
        output = expand_labels(right, named + (wild if "..." in right else 0), formula)
    else:
        letters = [label for labels in inputs for label in labels if isinstance(label, str)]
        output = (*range(-wild, 0), *sorted(c for c in set(letters) if letters.count(c) == 1))
    known = {label for labels in inputs for label in labels}
    unknown = [str(label) for label in output if label not in known]
    if unknown or len(set(output)) != len(output):
        fault = f"{unknown[0]} is in no operand" if unknown else "a letter stands there twice"
        raise ArgumentError(f"einsum: right side of {formula!r}: {fault}")
    return inputs, output


def expand_labels(part: str, rank: int, formula: str) -> Labels:
    """One label an axis: letters, and -n to -1 for the n axes that `...` stands for."""
    before, dots, after = part.partition("...")
    letters = before + after
    if not all(c.isalpha() for c in letters):
        raise ArgumentError(
            f"einsum: {part!r} in {formula!r}: letters, `...`, `,` and `->` are "
            "all that a formula has"
        )
    if len(letters) > rank or (not dots and len(letters) != rank):
        raise ArgumentError(
            f"einsum: {part!r} in {formula!r} names {len(letters)} axes, the operand has {rank}"
        )
    return (*before, *range(-(rank - len(letters)), 0), *after)


def take_diagonals(x: Self, labels: Labels, formula: str) -> tuple[Self, Labels]:
    """`x` with each label once; labels that occur twice take the diagonal of their axes."""
    for label in dict.fromkeys(labels):
        while labels.count(label) > 1:
            i = labels.index(label)
            j = labels.index(label, i + 1)
            if not same_size(x.shape[i], x.shape[j]):
                raise ShapeError(
                    f"einsum: {label} has sizes {x.shape[i]} and {x.shape[j]} in "
                    f"{formula!r} on {show_shape(x.shape)}"
                )
            x = diagonal_of(x, i, j)
            labels = (*[v for a, v in enumerate(labels) if a not in (i, j)], label)
    return x, labels


def diagonal_of(x: Self, i: int, j: int) -> Self:
    """The diagonal of two equal axes, as the last axis: a row of n + 1 holds one element of it."""
    n = x.shape[i]
    rest = [a for a in range(len(x.shape)) if a not in (i, j)]
    lead = tuple([x.shape[a] for a in rest])
    x = x.permute((*rest, i, j)).reshape((*lead, n * n))
    x = x._pad_zeros([*[(0, 0)] * len(lead), (0, n)]).reshape((*lead, n, n + 1))
    return x.shrink([*[None] * (len(lead) + 1), (0, 1)]).reshape((*lead, n))


def check_label_sizes(terms: list[tuple[Self, Labels]], formula: str) -> None:
    """Raises ShapeError where a label has two sizes, neither of them 1."""
    sizes: dict[Any, Any] = {}
    for x, labels in terms:
        for size, label in zip(x.shape, labels):
            known = sizes.setdefault(label, size)
            if known == 1:
                sizes[label] = size
            elif not (known is size or known == size or size == 1):
                shown = ", ".join(show_shape(t.shape) for t, _ in terms)
                name = "an axis under ..." if isinstance(label, int) else label
                raise ShapeError(
                    f"einsum: {name} has sizes {known} and {size} in {formula!r} on {shown}"
                )


def sum_unused(x: Self, labels: Labels, needed: set[Any]) -> tuple[Self, Labels]:
    """`x` summed over the axes whose label nothing else needs."""
    axes = tuple([a for a, label in enumerate(labels) if label not in needed])
    if not axes:
        return x, labels
    return x.sum(axes, dtype=x.dtype), tuple([label for label in labels if label in needed])


def multiply_sum(
    x: Self, x_labels: Labels, y: Self, y_labels: Labels, output: Labels, later: set[Any]
) -> tuple[Self, Labels]:
    """The product of two operands, summed over the labels that are not needed later."""
    both = dict.fromkeys((*x_labels, *y_labels))
    first = [label for label in output if label in both]
    kept = first + [label for label in both if label in later and label not in first]
    gone = [label for label in both if label not in later]
    labels = (*kept, *gone)
    product = align_axes(x, x_labels, labels) * align_axes(y, y_labels, labels)
    if gone:
        product = product.sum(tuple(range(-len(gone), 0)), dtype=product.dtype)
    return product, tuple(kept)


def align_axes(x: Self, labels: Labels, wanted: Labels) -> Self:
    """`x` with an axis for each wanted label, of size 1 where it has none."""
    x = x.permute([labels.index(label) for label in wanted if label in labels])
    sizes = iter(x.shape)
    return x.reshape(tuple([next(sizes) if label in labels else 1 for label in wanted]))


def multiplies_narrow(x: Any) -> bool:
    """Whether tensor cores of its device multiply numbers of this value's dtype.

    why: they have more multiplications to spare than transforms in float32 save
    """
    if x.dtype.itemsize != 2 or not isinstance(x.device, str):
        return False
    return x.dtype.name in chained_dtypes(Device[x.device].target.tensor_cores)
