"""Adds to UOp what hand-written kernels need: memory, axes, stores and their order.

A kernel's author gets memory (`placeholder`), makes axes (`range`), reads and writes elements
(`m[i, j]`, `m[i, j].set(value)`), says in which order (`after`) and inside of which loops (`end`),
and returns a `sink`. These methods only build nodes, of `Ops` and of the dialect of
`uop/dialect`; `schedule/handwritten` gives them to the compiler.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

from aster_ml.dtype import AddrSpace, DType, DTypeLike, PtrDType, dtypes, to_dtype
from aster_ml.errors import ArgumentError, IndexRangeError, ShapeError
from aster_ml.helpers import prod
from aster_ml.ops.symbol import ABOVE
from aster_ml.uop.dialect import Dialect
from aster_ml.uop.infer import show_shape
from aster_ml.uop.ops import Ops, ParamArg, ReduceArg, ScratchArg

WHOLE = slice(None)


class KernelMixin:
    """Building blocks of hand-written kernels."""

    __slots__ = ()
    op: Any
    dtype: DType
    src: tuple[Any, ...]
    arg: Any

    def make(self, op: Any, dtype: DType, src: tuple[Any, ...] = (), arg: Any = None) -> Self:
        """A node."""
        kind: Any = self.__class__
        return kind(op, dtype, src, arg)  # type: ignore[no-any-return]

    def rtag(self, tag: Any = True) -> Self:
        """The same node with a mark for who rewrites graphs, or, with None, without."""
        return self.replace(tag=tag)  # type: ignore[attr-defined, no-any-return]

    def __str__(self) -> str:
        return self.pyrender()  # type: ignore[attr-defined, no-any-return]

    # memory

    @classmethod
    def placeholder(
        cls,
        shape: Sequence[int],
        dtype: DTypeLike,
        slot: int,
        addrspace: AddrSpace = AddrSpace.GLOBAL,
    ) -> Self:
        """Memory of this shape: argument `slot` of the kernel, or scratch number `slot`.

        Scratch is shared by a block (`AddrSpace.LOCAL`) or of one work-item alone
        (`AddrSpace.REG`); it has no value before it is written.

        Raises: ShapeError for a size that is no int, or for scratch without elements.
        """
        kind: Any = cls
        shape, dtype = tuple(shape), to_dtype(dtype)
        if not all(isinstance(s, int) and s >= 0 for s in shape):
            raise ShapeError(f"placeholder: sizes are ints, given {shape}")
        size = prod(shape)
        if addrspace is AddrSpace.GLOBAL:
            memory: Any = kind(Ops.PARAM, dtype, (), ParamArg(slot, size))
        else:
            if size < 1:
                raise ShapeError(f"placeholder: scratch of shape {shape} holds nothing")
            scratch = ScratchArg(slot, size, addrspace is AddrSpace.REG)
            memory = kind(Ops.DEFINE_LOCAL, dtype, (), scratch)
        return memory if shape == (size,) else memory.reshape(shape)  # type: ignore[no-any-return]

    def placeholder_like(self, slot: int) -> Self:
        """Argument `slot` of a kernel, of our shape and dtype."""
        shape = self.shape  # type: ignore[attr-defined]
        if not all(isinstance(s, int) for s in shape):
            raise ShapeError(
                f"placeholder_like: a size of {show_shape(shape)} is symbolic; a kernel is written "
                "for fixed sizes, so shrink or copy the tensor to one first"
            )
        return self.placeholder(shape, self.dtype, slot)

    @property
    def size(self) -> int:
        """The number of elements."""
        return int(prod(self.shape))  # type: ignore[attr-defined]

    # axes and indices

    @classmethod
    def special(cls, end: Any, name: str, dtype: DType = dtypes.index) -> Self:
        """The number of the block (`gidx0`) or work-item (`lidx0`) that runs, below `end`."""
        kind: Any = cls
        size = end if isinstance(end, cls) else kind(Ops.CONST, dtype, (), int(end))
        return kind(Dialect.SPECIAL, dtype, (size,), name)  # type: ignore[no-any-return]

    @classmethod
    def invalid(cls, count: int = 1) -> Self:
        """An index that touches no memory."""
        kind: Any = cls
        return kind(Dialect.INVALID, dtypes.index.vec(count))  # type: ignore[no-any-return]

    def valid(self, cond: Self) -> Self:
        """Our index where `cond` holds; elsewhere a load gives 0 and a store does nothing."""
        nowhere = self.make(Dialect.INVALID, self.dtype)
        return self.make(Ops.WHERE, self.dtype, (cond, self, nowhere))

    def get_idx(self) -> Self:
        """The index without its condition."""
        gated = self.op is Ops.WHERE and self.src[2].op is Dialect.INVALID
        return self.src[1] if gated else self

    def get_valid(self) -> Self:
        """The condition of an index."""
        if self.op is Ops.WHERE and self.src[2].op is Dialect.INVALID:
            return self.src[0]  # type: ignore[no-any-return]
        return self.make(Ops.CONST, dtypes.bool, (), self.op is not Dialect.INVALID)

    def __getitem__(self, idx: Any) -> Self:
        """The element at these indices (ints or nodes), one an axis; `:` keeps an axis.

        Raises: ShapeError unless there is one index for each axis; IndexRangeError for an int
        outside of its axis.
        """
        at = idx if isinstance(idx, tuple) else (idx,)
        if isinstance(self.dtype, PtrDType) and len(at) == 1 and not isinstance(idx, slice):
            return self.index(self.index_of(idx, self.dtype.size))  # type: ignore[attr-defined, no-any-return]
        shape = self.shape  # type: ignore[attr-defined]
        if shape is None or len(at) != len(shape):
            raise ShapeError(
                f"{self!r} of shape {shape} takes {0 if shape is None else len(shape)} indices, "
                f"one an axis (: keeps an axis), given {len(at)}"
            )
        memory: Any = self
        cuts = [
            (i.start or 0, s if i.stop is None else i.stop) if isinstance(i, slice) else (0, s)
            for i, s in zip(at, shape)
        ]
        if any(isinstance(i, slice) and i.step not in (None, 1) for i in at):
            raise ArgumentError(f"{self!r}: a slice with a step is no place to read or write")
        if any(isinstance(i, slice) and i != WHOLE for i in at):
            memory = memory.shrink(tuple(cuts))
        chosen = [axis for axis, i in enumerate(at) if not isinstance(i, slice)]
        kept = [axis for axis, i in enumerate(at) if isinstance(i, slice)]
        if chosen + kept != list(range(len(at))):
            memory = memory.permute(tuple(chosen + kept))
        idxs = [self.index_of(at[axis], shape[axis]) for axis in chosen]
        return memory.index(*idxs) if idxs else memory  # type: ignore[no-any-return]

    def index_of(self, i: Any, size: Any) -> Self:
        """An index as a node; a negative int counts from the end."""
        if isinstance(i, self.__class__):
            return i
        if isinstance(size, int) and size >= 0 and not -size <= i < size:
            raise IndexRangeError(f"index {i} is outside of an axis of {size}")
        return self.make(Ops.CONST, dtypes.index, (), int(i) + (size if i < 0 else 0))

    # effects and their order

    def set(self, val: Any, end: Any = ()) -> Self:
        """Stores `val` here; returns the memory as it is afterwards, `end` closing loops first."""
        if self.op is not Ops.INDEX:
            raise ArgumentError(f"set: {self!r} is no element; index the memory first, m[i].set(x)")
        ranges = tuple(end) if isinstance(end, (tuple, list)) else (end,)
        effect = self.store(val).end(*ranges)  # type: ignore[attr-defined]
        return self.src[0].after(effect)  # type: ignore[no-any-return]

    def group(*src: Any) -> Any:
        """All of these effects."""
        src = tuple([s for s in src if s is not None])
        return src[0] if len(src) == 1 else src[0].__class__(Dialect.GROUP, dtypes.void, src)

    def barrier(self, *src: Self) -> Self:
        """The point that all work-items of a block reach, having done this, before any goes on."""
        return self.make(Ops.BARRIER, dtypes.void, (self, *src))

    def reduce(self, *ranges: Self, arg: Any = Ops.ADD) -> Self:
        """Our value folded over these axes by `arg`."""
        arg = arg if isinstance(arg, ReduceArg) else ReduceArg(arg)
        return self.make(Ops.REDUCE, self.dtype, (self, *ranges), arg)

    def custom_kernel(*src: Any, fxn: Any, grad_fxn: Any = None) -> list[Any]:
        """Runs a hand-written kernel; returns the nodes of its tensors after it."""
        found: list[Any] = ABOVE["custom_kernel"](*src, fxn=fxn, grad_fxn=grad_fxn)
        return found

    # lanes

    def vectorize(self, *src: Self) -> Self:
        """One vector out of us and more scalars."""
        return self.make(Dialect.VECTORIZE, self.dtype.vec(1 + len(src)), (self, *src))

    def broadcast(self, count: int) -> Self:
        """A vector with us in each of `count` lanes."""
        if count == 1:
            return self
        if self.op is Ops.CONST:
            return self.make(Ops.CONST, self.dtype.vec(count), (), self.arg)
        return self.vectorize(*[self] * (count - 1))

    def gep(self, i: int | tuple[int, ...]) -> Self:
        """Lane `i`, or a vector of these lanes."""
        lanes = (i,) if isinstance(i, int) else tuple(i)
        if self.dtype.vcount == 1 and lanes == (0,):
            return self
        dtype = self.dtype.scalar().vec(len(lanes))
        if self.op is Dialect.VECTORIZE and len(lanes) == 1:
            return self.src[lanes[0]]  # type: ignore[no-any-return]
        if self.op is Ops.CONST:
            return self.make(Ops.CONST, dtype, (), self.arg)
        if self.op is Dialect.VCONST:
            values = tuple([self.arg[lane] for lane in lanes])
            if len(values) == 1:
                return self.make(Ops.CONST, dtype, (), values[0])
            return self.make(Dialect.VCONST, dtype, (), values)
        return self.make(Dialect.GEP, dtype, (self,), lanes)

    def contract(self, *ranges: Self) -> Self:
        """A vector of our values for every number of these axes, which are lanes.

        Raises: ArgumentError for an axis of another kind or without a fixed size.
        """
        axes = []
        for r in ranges:
            if r.op is not Ops.RANGE or not r.arg.kind.is_lane or r.src[0].op is not Ops.CONST:
                raise ArgumentError(
                    f"contract: {r!r} is no lane axis; one is UOp.range(4, 0, AxisType.UPCAST)"
                )
            axes.append((r.arg.id, int(r.src[0].arg)))
        dtype = self.dtype.vec(prod([size for _, size in axes]))
        return self.make(Dialect.CONTRACT, dtype, (self,), tuple(axes))
