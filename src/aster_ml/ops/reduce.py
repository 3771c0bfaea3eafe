"""Defines the reductions of UOp and Tensor, all over the one primitive `_rop`.

Receives axes as users give them; returns values whose reduced axes are gone, or have size 1 with
`keepdim`. In which dtype a reduction accumulates is decided here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self

from aster_ml.dtype import DType, DTypeLike, dtypes, least_upper_float, sum_acc_dtype, to_dtype
from aster_ml.errors import ArgumentError
from aster_ml.helpers import prod
from aster_ml.uop.ops import Ops

Axis = Any  # int | Sequence[int] | None; None means all axes


def identity_of(op: Ops, dtype: DType) -> Any:
    """Result of a reduction of no elements."""
    if op is Ops.ADD or op is Ops.OR:
        return dtypes.as_const(0, dtype)
    if op is Ops.MUL or op is Ops.AND:
        return dtypes.as_const(1, dtype)
    return dtypes.min(dtype)


def deviation(variance: Any) -> Any:
    """The root of a variance, with the slope 0 where nothing varies."""
    constant = variance.eq(0)
    return constant.where(0, constant.where(1, variance).sqrt())


class ReduceMixin:
    """Fewer values out of many. Stands beside ElementwiseMixin and MovementMixin."""

    __slots__ = ()

    if TYPE_CHECKING:
        # What the mixins beside this one give; UOp lists them before it.
        dtype: DType
        alu: Callable[..., Self]
        _binop: Callable[..., Self]
        bitwise_not: Callable[[], Self]
        _own: Callable[[], Self]
        _broadcast_to: Callable[[tuple[Any, ...]], Self]
        cast: Callable[[DTypeLike], Self]
        const_like: Callable[[Any], Self]
        _resolve_axes: Callable[[Any, str], tuple[int, ...]]
        reshape: Callable[..., Self]
        sqrt: Callable[[], Self]

        @property
        def shape(self) -> tuple[Any, ...]:
            """Sizes, outermost first."""

    def _rop(self, op: Ops, axes: tuple[int, ...]) -> Self:
        """`axes` folded with `op`; they stay, with size 1."""
        raise NotImplementedError

    def _linked(self, value: Self) -> Self:
        """`value`, which self has no influence on."""
        return value

    def _full_of(self, shape: tuple[Any, ...], value: Any) -> Self:
        """`value` everywhere, with our dtype and device."""
        return self.const_like(value)._broadcast_to(shape)

    def _fold(self, op: Ops, axis: Axis, keepdim: bool, what: str) -> Self:
        """`axis` folded with `op`; without `keepdim` the axes go."""
        axes = self._resolve_axes(axis, what)
        shape = self.shape
        real = tuple([a for a in axes if not shape[a] == 1])
        kept = tuple([1 if i in axes else s for i, s in enumerate(shape)])
        if any(isinstance(s, int) and s == 0 for s in shape):
            value = self._linked(self._full_of(kept, identity_of(op, self.dtype)))
        else:
            value = self._rop(op, tuple(sorted(real))) if real else self._own()
        if keepdim or not axes:
            return value
        return value.reshape(tuple([s for i, s in enumerate(shape) if i not in axes]))

    def sum(self, axis: Axis = None, keepdim: bool = False, dtype: DTypeLike | None = None) -> Self:
        """Sum over `axis`.

        Shapes: self [n, m], axis=1 -> [n]; self [n, *b] -> [];
            self [n, m], axis=0, keepdim=True -> [1, m].
        Dtype: `dtype`, else that of self for floats, at least 32 bits for ints; floats of less than
        32 bits accumulate in float32.
        """
        if dtype is not None:
            return self.cast(to_dtype(dtype))._fold(Ops.ADD, axis, keepdim, "sum")
        total = self.cast(sum_acc_dtype(self.dtype))._fold(Ops.ADD, axis, keepdim, "sum")
        return total.cast(self.dtype) if self.dtype.kind == "float" else total

    def prod(
        self, axis: Axis = None, keepdim: bool = False, dtype: DTypeLike | None = None
    ) -> Self:
        """Product over `axis`.

        Shapes: self [n, m], axis=1 -> [n].
        Dtype: `dtype`, else that of self.
        """
        value = self if dtype is None else self.cast(to_dtype(dtype))
        return value._fold(Ops.MUL, axis, keepdim, "prod")

    def max(self, axis: Axis = None, keepdim: bool = False) -> Self:
        """Greatest value over `axis`; NaN where there is one.

        Shapes: self [n, m], axis=1 -> [n].
        """
        op = Ops.OR if self.dtype is dtypes.bool else Ops.MAX
        return self._fold(op, axis, keepdim, "max")

    def min(self, axis: Axis = None, keepdim: bool = False) -> Self:
        """Least value over `axis`; NaN where there is one.

        Shapes: self [n, m], axis=1 -> [n].
        """
        if self.dtype is dtypes.bool:
            return self._fold(Ops.AND, axis, keepdim, "min")
        return self._reversed_order()._fold(Ops.MAX, axis, keepdim, "min")._reversed_order()

    def _reversed_order(self) -> Self:
        """A value of the same dtype whose order is the reverse; twice gives self again."""
        if self.dtype.kind == "float":
            return self.alu(Ops.NEG)
        # The negative of the least int does not exist; its bits turned over do.
        return self.bitwise_not()

    def any(self, axis: Axis = None, keepdim: bool = False) -> Self:
        """Tests whether any element over `axis` is true.

        Shapes: self [n, m], axis=1 -> [n].
        Dtype: bool.
        """
        return self.cast(dtypes.bool)._fold(Ops.OR, axis, keepdim, "any")

    def all(self, axis: Axis = None, keepdim: bool = False) -> Self:
        """Tests whether all elements over `axis` are true.

        Shapes: self [n, m], axis=1 -> [n].
        Dtype: bool.
        """
        return self.cast(dtypes.bool)._fold(Ops.AND, axis, keepdim, "all")

    def _reduced_count(self, axis: Axis, what: str) -> Any:
        """Number of elements that meet in each result."""
        return prod([self.shape[a] for a in self._resolve_axes(axis, what)])

    def _divided(self, count: Any) -> Self:
        """Self, a float, by a count that may be symbolic."""
        return self._binop(Ops.FDIV, float(count) if isinstance(count, (int, float)) else count)

    def mean(self, axis: Axis = None, keepdim: bool = False) -> Self:
        """Mean over `axis`.

        Shapes: self [n, m], axis=1 -> [n].
        Dtype: that of self for floats, which accumulate in 32 bits or more; else the default float.
        """
        dtype = least_upper_float(self.dtype)
        total = self.cast(sum_acc_dtype(dtype))._fold(Ops.ADD, axis, keepdim, "mean")
        return total._divided(self._reduced_count(axis, "mean")).cast(dtype)

    def var(self, axis: Axis = None, keepdim: bool = False, correction: float = 1) -> Self:
        """Variance over `axis`, the sum of squares divided by the count less `correction`.

        Shapes: self [n, m], axis=1 -> [n].
        """
        return self.var_mean(axis, keepdim, correction)[0]

    def var_mean(
        self, axis: Axis = None, keepdim: bool = False, correction: float = 1
    ) -> tuple[Self, Self]:
        """Variance and mean over `axis`.

        Shapes: self [n, m], axis=1 -> [n], [n].
        """
        if isinstance(correction, str):
            raise ArgumentError(f"var: correction {correction!r} is a str; a number is wanted")
        dtype = least_upper_float(self.dtype)
        wide = self.cast(sum_acc_dtype(dtype))
        self._resolve_axes(axis, "var")
        mean = wide.mean(axis, keepdim=True)
        off = wide.alu(Ops.SUB, mean._broadcast_to(wide.shape))
        squares = off.alu(Ops.MUL, off)._fold(Ops.ADD, axis, keepdim, "var")
        count = self._reduced_count(axis, "var") - correction
        variance = squares._divided(max(count, 0) if isinstance(count, (int, float)) else count)
        return variance.cast(dtype), mean.reshape(variance.shape).cast(dtype)

    def std(self, axis: Axis = None, keepdim: bool = False, correction: float = 1) -> Self:
        """Standard deviation over `axis`, the root of `var`.

        Shapes: self [n, m], axis=1 -> [n].
        """
        root: Self = deviation(self.var(axis, keepdim, correction))
        return root

    def std_mean(
        self, axis: Axis = None, keepdim: bool = False, correction: float = 1
    ) -> tuple[Self, Self]:
        """Standard deviation and mean over `axis`.

        Shapes: self [n, m], axis=1 -> [n], [n].
        """
        variance, mean = self.var_mean(axis, keepdim, correction)
        return deviation(variance), mean
