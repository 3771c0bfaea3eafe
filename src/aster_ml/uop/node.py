"""Defines UOp: the one immutable, interned node that every stage is made of.

Same object means same value: building a node that exists returns the existing one
(`uop/interned.py`). This module builds nodes, without rules or devices. Only integer index
arithmetic is folded while it is built, so that equal sizes are the same object.
"""

from __future__ import annotations

import itertools
import operator
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Self, TypeAlias

from aster_ml.dtype import DType, DTypeLike, dtypes, to_dtype
from aster_ml.errors import ArgumentError, BindError, FieldError, InternalError, ShapeError
from aster_ml.helpers import kind_of, prod
from aster_ml.ops.kernel import KernelMixin
from aster_ml.ops.movement import MovementMixin
from aster_ml.ops.reduce import ReduceMixin
from aster_ml.ops.scalar import ScalarMixin
from aster_ml.ops.shard import ShardMixin
from aster_ml.ops.symbol import ABOVE, SymbolMixin
from aster_ml.ops.walk import WalkMixin
from aster_ml.plugins import find_attribute
from aster_ml.thread_state import SharedWeakTable
from aster_ml.uop.dialect import Dialect
from aster_ml.uop.infer import (
    Shape,
    alu_dtype,
    check_alu,
    max_shape,
    merged_arg,
)
from aster_ml.uop.interned import UNSET, Interned
from aster_ml.uop.ops import (
    COMMUTATIVE,
    MOVEMENT,
    AxisType,
    BufferArg,
    DeviceArg,
    Ops,
    ParamArg,
    RangeArg,
    ReduceArg,
    ScatterArg,
    VarArg,
)

sint: TypeAlias = "int | UOp"

# Names of a module are found faster than members of an Enum, and every node needs these.
BUFFER, PERMUTE, FLIP, RESHAPE, EXPAND = (
    Ops.BUFFER, Ops.PERMUTE, Ops.FLIP, Ops.RESHAPE, Ops.EXPAND,
)  # fmt: skip
(
    ADD, CMPEQ, CMPLT, CMPNE, CONST, IDIV, MAX, MOD, MUL, NEG, RANGE, SHL, SHR, SUB,
) = (
    Ops.ADD, Ops.CMPEQ, Ops.CMPLT, Ops.CMPNE, Ops.CONST, Ops.IDIV, Ops.MAX, Ops.MOD, Ops.MUL,
    Ops.NEG, Ops.RANGE, Ops.SHL, Ops.SHR, Ops.SUB,
)  # fmt: skip
new_tuple = tuple.__new__
FIELDS = frozenset({"op", "dtype", "src", "arg", "tag"})
NOOP, VCONST = Dialect.NOOP, Dialect.VCONST
BUFFER_IDS = itertools.count()


# Node -> the traced calls that made it, filled while TRACEMETA is set.
METADATA: SharedWeakTable[UOp, tuple[Any, ...]] = SharedWeakTable()
# Op -> a function that pickles its nodes; set by the layer that owns their memory.
REDUCERS: dict[Ops, Callable[[UOp], tuple[Any, ...]]] = {}


class UOp(
    Interned,
    KernelMixin,
    ShardMixin,
    SymbolMixin,
    WalkMixin,
    ScalarMixin,
    MovementMixin,
    ReduceMixin,
):
    """A node of the graph: an op, the dtype of its value, its sources and a small argument.

    A `tag` marks a node during a rewrite; a tagged node is another node of the same value.
    """

    __slots__ = ()
    if not TYPE_CHECKING:
        __getattr__ = find_attribute

    def __reduce__(self) -> tuple[Any, ...]:
        special = REDUCERS.get(self.op)
        if special is not None:
            return special(self)
        return UOp, (self.op, self.dtype, self.src, self.arg, self.tag)

    def __repr__(self) -> str:
        dtype = "" if self.dtype is dtypes.void else f" {self.dtype.name}"
        arg = "" if self.arg is None else f" {self.arg!r}"
        return f"<{self.op.name}{dtype}{arg} of {len(self.src)}>"

    def __ne__(self, x: object) -> Any:
        # `==` is identity, since nodes are keys of dicts; `!=` builds a comparison.
        return self.ne(x) if isinstance(x, (UOp, int, float)) else NotImplemented

    def __bool__(self) -> bool:
        low, high = self.surest_bounds()
        if low == high:
            return bool(low)
        raise ArgumentError(
            f"{self.render(False)} may be true or false (it lies between {low} and {high}); "
            "use `resolve` with a default, or bind the variable"
        )

    def __int__(self) -> int:
        return int(self.only_value("int"))

    def __float__(self) -> float:
        return float(self.only_value("float"))

    def surest_bounds(self) -> tuple[Any, Any]:
        """The least and the greatest value; of the simplified node where they differ.

        Bounds treat operands as independent: only simplified, `n * 16 - n * 16` is known to be 0.
        """
        low, high = self.bounds
        if low != high:
            low, high = ABOVE["simplify"](self).bounds
        return low, high

    def only_value(self, what: str) -> Any:
        """The only possible value of a node. Raises: ArgumentError where there are several."""
        low, high = self.surest_bounds()
        if low != high:
            raise ArgumentError(
                f"{what}: {self.render(False)} is no number yet (it lies between {low} and "
                f"{high}); bind its variables, or use `sym_infer`"
            )
        return low

    @property
    def metadata(self) -> tuple[Any, ...] | None:
        """The calls of Tensor methods that made the node, while TRACEMETA is set."""
        return METADATA.get(self)

    @property
    def base(self) -> UOp:
        """Node below all movement ops."""
        u = self
        while u.op in MOVEMENT_SET:
            u = u.src[0]
        return u

    @property
    def marg(self) -> Any:
        """Argument of a movement op, symbolic sizes included."""
        return merged_arg(self)

    # construction

    def replace(self, **changes: Any) -> UOp:
        """The same node with some of op, dtype, src, arg, tag changed."""
        if not changes.keys() <= FIELDS:
            raise FieldError(
                f"replace: a node has op, dtype, src, arg and tag, given {list(changes)}"
            )
        return UOp(
            changes.get("op", self.op),
            changes.get("dtype", self.dtype),
            changes.get("src", self.src),
            changes.get("arg", self.arg),
            changes.get("tag", self.tag),
        )

    @staticmethod
    def const(dtype: DType, value: Any) -> UOp:
        """The constant `value` of `dtype`; of a vector type one value, or a tuple for its lanes."""
        if value is None and dtype is dtypes.void:
            return UOp(NOOP)
        if value.__class__ is tuple and any([v != value[0] for v in value]):
            return UOp(VCONST, dtype, (), dtypes.as_const(value, dtype))
        value = value[0] if value.__class__ is tuple else value
        return UOp(Ops.CONST, dtype, (), dtypes.as_const(value, dtype))

    @staticmethod
    def index_const(value: int) -> UOp:
        """An index constant."""
        return new_node(CONST, INDEX, (), value)

    @staticmethod
    def variable(name: str, min_value: Any, max_value: Any, dtype: DType = dtypes.index) -> UOp:
        """A named number with inclusive bounds, to be bound to a value before it is used."""
        if not isinstance(name, str):
            raise ArgumentError(f"Variable: the name {name!r} is {kind_of(name)}, text is wanted")
        kinds = (int, float) if dtype.kind == "float" else int
        if not isinstance(min_value, kinds) or not isinstance(max_value, kinds):
            raise ArgumentError(
                f"Variable {name}: bounds are ints, given {min_value!r} and {max_value!r}"
            )
        if min_value > max_value:
            raise ArgumentError(
                f"Variable {name}: the least value {min_value} is above the greatest, {max_value}"
            )
        return UOp(Ops.DEFINE_VAR, dtype, (), VarArg(name, min_value, max_value))

    def bind(self, value: int) -> UOp:
        """The variable bound to a value; compiled code works for every value."""
        if self.op is not Ops.DEFINE_VAR:
            raise BindError(f"bind: only a Variable takes a value, this is {self!r}")
        if not isinstance(value, int) and self.dtype.kind != "float":
            raise BindError(
                f"bind: {self.arg.name} takes whole numbers, given {value!r}, a "
                f"{type(value).__name__}"
            )
        if not self.arg.min <= value <= self.arg.max:
            raise BindError(
                f"bind: {self.arg.name} takes {self.arg.min} to {self.arg.max}, given {value}"
            )
        return UOp(Ops.BIND, self.dtype, (self, UOp.const(self.dtype, value)))

    def unbind(self) -> tuple[UOp, int]:
        """The variable and its value."""
        if self.op is not Ops.BIND:
            raise BindError(f"unbind: {self!r} is not bound; bind(value) binds a Variable")
        return self.src[0], self.src[1].arg

    @property
    def val(self) -> int:
        """The value of a bound variable."""
        return self.unbind()[1]

    @staticmethod
    def new_buffer(device: str, size: int, dtype: DType) -> UOp:
        """A new, unique buffer node; the engine attaches memory."""
        u = UOp(BUFFER, dtype, (), new_tuple(BufferArg, (next(BUFFER_IDS), device, size)))
        u._shape, u._device = (size,), device
        return u

    @staticmethod
    def new_memory(device: Any, shape: Shape, dtype: DType, axis: int | None = None) -> UOp:
        """A new buffer viewed in this shape; symbolic axes are allocated for their largest size.

        On several devices there is a buffer on each: for the whole shape, or for a part of `axis`.
        """
        if device.__class__ is tuple:
            local = tuple([s // len(device) if i == axis else s for i, s in enumerate(shape)])
            parts = [UOp.new_memory(d, local, dtype) for d in device]
            return parts[0].beside(parts[1:], axis)
        room = shape if all_plain(shape) else max_shape(shape)
        size = prod(room)
        u = UOp.new_buffer(device, size, dtype)
        if room != (size,):
            u = u._mop(RESHAPE, room)
        return u if room == shape else u._mop(Ops.SHRINK, tuple([(0, s) for s in shape]))

    @staticmethod
    def param(slot: int, size: Any, dtype: Any = (), device: str | None = None) -> UOp:
        """A numbered buffer argument of `size` elements.

        tinygrad's form `param(slot, dtype, shape)` has that shape; () is one element.
        """
        if not isinstance(size, DType):
            return UOp(Ops.PARAM, dtype, (), ParamArg(slot, size, device))
        shape = dtype if isinstance(dtype, tuple) else (dtype,)
        flat = UOp(Ops.PARAM, size, (), ParamArg(slot, prod(shape), device))
        return flat if len(shape) == 1 else flat._mop(RESHAPE, shape)

    @staticmethod
    def range(size: sint, axis_id: int, axis_type: AxisType = AxisType.LOOP) -> UOp:
        """An axis: 0 <= i < size."""
        return UOp(RANGE, dtypes.index, (to_uop(size),), RangeArg(axis_id, axis_type))

    @staticmethod
    def iota(size: sint) -> UOp:
        """0, 1, 2, ... below `size`, along one axis, of index dtype."""
        return UOp(Ops.IOTA, dtypes.index, (to_uop(size),))

    def gather_at(self, *idxs: UOp) -> UOp:
        """Tensor stage: the elements of self at these index tensors, one for each axis of self."""
        return UOp(Ops.INDEX, self.dtype, (self, *idxs))

    def scatter_at(self, shape: tuple[int, ...], *idxs: UOp, op: Ops = Ops.ADD) -> UOp:
        """Tensor stage: zeros of `shape` with elements of self added (or maximized) at indices."""
        return UOp(Ops.SCATTER, self.dtype, (self, *idxs), ScatterArg(op, shape))

    def sink(*src: UOp, arg: Any = None) -> UOp:
        """The root over all effects. `arg` is set for hand-written kernels."""
        return UOp(Ops.SINK, dtypes.void, tuple([s for s in src if s is not None]), arg)

    # primitives of the mixins

    def alu(self, op: Ops, *src: UOp) -> UOp:
        """Elementwise node; index arithmetic is folded."""
        if self.dtype is dtypes.index and len(src) == 1:
            return index_alu(op, self, src[0])
        if op is NEG and self.dtype is dtypes.index:
            return index_alu(MUL, self, MINUS_ONE)
        sources = (self, *src)
        check_alu(op, sources)
        return UOp(op, alu_dtype(op, sources), sources)

    def ufix(self, x: Any) -> UOp:
        """`x` as a constant of self's dtype, or itself if it is a node."""
        return x if x.__class__ is UOp else UOp.const(self.dtype, x)

    def const_like(self, b: Any) -> UOp:
        """The scalar constant `b` of self's dtype (scalars broadcast)."""
        return UOp.const(self.dtype, b)

    def cast(self, dtype: DTypeLike) -> UOp:
        """CAST to `dtype`, or self when it has it already; constants of index type fold."""
        dtype = to_dtype(dtype)
        if self.dtype is dtype:
            return self
        return UOp(Ops.CAST, dtype, (self,))

    def bitcast(self, dtype: DTypeLike) -> UOp:
        """BITCAST to `dtype`, or self when it has it already."""
        dtype = to_dtype(dtype)
        return self if self.dtype is dtype else UOp(Ops.BITCAST, dtype, (self,))

    def where(self, x: Any, y: Any) -> UOp:
        """`x` where self holds, else `y`; one of them may be a Python number."""
        if x.__class__ is not UOp:
            x = y.ufix(x) if y.__class__ is UOp else UOp.const(dtypes.from_py(x), x)
        y = x.ufix(y)
        if x is y:
            return x  # type: ignore[no-any-return]
        return self.alu(Ops.WHERE, x, y)

    def minimum(self, x: Any) -> UOp:
        """The smaller."""
        other = self.ufix(x)
        if self.dtype.kind == "index":
            if self.bounds[1] <= other.bounds[0]:
                return self
            if other.bounds[1] <= self.bounds[0]:
                return other
        return (self < other).where(self, other)

    def _mop(self, op: Ops, arg: Any) -> UOp:
        """Movement node; symbolic sizes become sources, with None in the argument."""
        if op is PERMUTE or op is FLIP or all_plain(arg):
            u = UOp(op, self.dtype, (self,), arg)
            # Properties that would be inferred on demand.
            if op is RESHAPE or op is EXPAND:
                u._shape = arg
            elif op is PERMUTE and self._shape is not UNSET:
                u._shape = tuple(map(self._shape.__getitem__, arg))
            u._device = self._device
            return u
        symbolic: list[UOp] = []
        if op in (Ops.RESHAPE, Ops.EXPAND):
            arg = tuple([split_size(s, symbolic) for s in arg])
        elif op in (Ops.PAD, Ops.SHRINK):
            arg = tuple([(split_size(a, symbolic), split_size(b, symbolic)) for a, b in arg])
        return UOp(op, self.dtype, (self, *symbolic), arg)

    def shaped(self, shape: Shape) -> UOp:
        """The value reshaped; `shape` is known to have as many elements."""
        return self if self.shape == shape else self._mop(RESHAPE, shape)

    def stretch(self, axis: int, start: sint, stop: sint) -> UOp:
        """The value from `start` to `stop` along one axis."""
        shape = self.shape
        if start == 0 and stop == shape[axis]:
            return self
        cut = tuple([(start, stop) if a == axis else (0, n) for a, n in enumerate(shape)])
        return self._mop(Ops.SHRINK, cut)

    def _rop(self, op: Ops, axes: tuple[int, ...]) -> UOp:
        """Tensor-stage REDUCE over `axes`, which stay with size 1."""
        return UOp(Ops.REDUCE, self.dtype, (self,), ReduceArg(op, axes))

    # memory and control

    def index(self, *idxs: UOp | None, ptr: bool = False, dtype: DType | None = None) -> UOp:
        """The element at these indices, one for each axis; with `ptr` a pointer to it."""
        if dtype is None:
            dtype = self.dtype if ptr else self.dtype.base
        return UOp(Ops.INDEX, dtype, (self, *[i for i in idxs if i is not None]))

    def load(self, gate: UOp | None = None, dtype: DType | None = None) -> UOp:
        """The value at this INDEX, 0 where the gate fails."""
        dtype = self.dtype.base if dtype is None else dtype
        return UOp(Ops.LOAD, dtype, (self,) if gate is None else (self, gate))

    def store(self, value: Any, gate: UOp | None = None) -> UOp:
        """Writes `value` here, where the gate holds."""
        value = value if value.__class__ is UOp else UOp.const(self.dtype.base, value)
        src = (self, value) if gate is None else (self, value, gate)
        return UOp(Ops.STORE, dtypes.void, src)

    def after(self, *effects: UOp) -> UOp:
        """Self, after the effects."""
        return UOp(Ops.AFTER, self.dtype, (self, *effects)) if effects else self

    def end(self, *ranges: UOp) -> UOp:
        """Self for every value of the ranges."""
        return UOp(Ops.END, dtypes.void, (self, *ranges)) if ranges else self

    def copy_to(self, device: str) -> UOp:
        """The value on another device."""
        return UOp(Ops.COPY, self.dtype, (self,), DeviceArg(device))

    def __iter__(self) -> Iterator[Self]:
        raise TypeError(f"{self!r} is a node, not a sequence")


# UOp(...) without the overhead of a class call, a fifth of the time: for walks.
new_node: Callable[..., UOp] = types.MethodType(UOp.__new__, UOp)
INDEX = dtypes.index
MOVEMENT_SET = MOVEMENT
Variable = UOp.variable


def to_uop(size: sint) -> UOp:
    """An int or index node as a node."""
    if size.__class__ is UOp:
        return size
    return new_node(CONST, INDEX, (), size)


def to_sint(u: sint) -> sint:
    """A constant index node as an int; anything else as it is."""
    return u.arg if u.__class__ is UOp and u.op is Ops.CONST else u


def all_plain(arg: tuple[Any, ...]) -> bool:
    """Whether sizes (or pairs of them) are plain ints, in plain tuples."""
    for a in arg:
        if a.__class__ is not int and not (
            a.__class__ is tuple and a[0].__class__ is int and a[1].__class__ is int
        ):
            return False
    return arg.__class__ is tuple


def split_size(size: sint, symbolic: list[UOp]) -> int | None:
    """The int itself, or None, with the node added to `symbolic`."""
    size = to_sint(size)
    if size.__class__ is UOp:
        symbolic.append(size)
        return None
    return int(size)


def index_sum(terms: Iterable[UOp]) -> UOp:
    """The sum of some indices."""
    found = UOp.index_const(0)
    for term in terms:
        found = index_alu(ADD, found, term)
    return found


def index_times(u: UOp, n: int) -> UOp:
    """An index times a number."""
    return index_alu(MUL, u, UOp.index_const(n))


def index_alu(op: Ops, x: UOp, y: UOp) -> UOp:
    """Two-source index arithmetic: constants fold, neutral elements vanish, constants are right."""
    if y.dtype is not INDEX:
        if op in (SHL, SHR):
            return new_node(op, INDEX, (x, y))
        check_alu(op, (x, y))
    x_const, y_const = x.op is CONST, y.op is CONST
    if x_const and y_const and op in FOLD:
        if not (op in (IDIV, MOD) and y.arg == 0):
            return new_node(CONST, alu_dtype(op, (x, y)), (), FOLD[op](x.arg, y.arg))
    elif x_const and op in COMMUTATIVE:
        x, y, y_const = y, x, True
    if op is SUB:
        return index_alu(ADD, x, index_alu(MUL, y, MINUS_ONE))
    if y_const:
        c = y.arg
        if (op is ADD and c == 0) or (op in (MUL, IDIV) and c == 1):
            return x
        if (op is MUL and c == 0) or (op is MOD and c == 1):
            return UOp.index_const(0)
        inner = x.src[1] if x.op is op and len(x.src) == 2 else None
        if inner is not None and inner.op is CONST and op in (ADD, MUL):
            return index_alu(op, x.src[0], UOp.index_const(FOLD[op](inner.arg, c)))
    elif op in COMMUTATIVE and op is not CMPNE and x.digest > y.digest:
        x, y = y, x
    if op is CMPLT or op is CMPNE or op is CMPEQ:
        if x is y:
            return new_node(CONST, dtypes.bool, (), op is CMPEQ)
        found = new_node(op, dtypes.bool, (x, y))
        low, high = found.bounds
        return new_node(CONST, dtypes.bool, (), bool(low)) if low == high else found
    if op is MAX:
        if x.bounds[0] >= y.bounds[1]:
            return x
        if y.bounds[0] >= x.bounds[1]:
            return y
    return new_node(op, INDEX, (x, y))


FOLD: dict[Ops, Callable[[int, int], Any]] = {
    Ops.ADD: operator.add,
    Ops.SUB: operator.sub,
    Ops.MUL: operator.mul,
    Ops.IDIV: operator.floordiv,
    Ops.MOD: operator.mod,
    Ops.MAX: max,
    Ops.CMPLT: operator.lt,
    Ops.CMPNE: operator.ne,
    Ops.CMPEQ: operator.eq,
}
MINUS_ONE = UOp.index_const(-1)


def resolve(x: Any, default: bool = True) -> bool:
    """The truth of a condition on sizes; `default` where the bounds do not decide it."""
    if x.__class__ is not UOp:
        return bool(x)
    low, high = x.bounds
    return bool(low) if low == high else default


def smax(*values: Any) -> sint:
    """The largest of ints and index nodes."""
    if len(values) == 1 and isinstance(values[0], (tuple, list)):
        values = tuple(values[0])
    if all(isinstance(v, int) for v in values):
        return max(values)  # type: ignore[no-any-return]
    result = to_uop(values[0])
    for v in values[1:]:
        result = index_alu(Ops.MAX, result, to_uop(v))
    return to_sint(result)


def smin(*values: Any) -> sint:
    """The smallest of ints and index nodes."""
    if len(values) == 1 and isinstance(values[0], (tuple, list)):
        values = tuple(values[0])
    if all(isinstance(v, int) for v in values):
        return min(values)  # type: ignore[no-any-return]
    result = to_uop(values[0])
    for v in values[1:]:
        result = result.minimum(to_uop(v))
    return to_sint(result)


def same_shape(a: Sequence[Any], b: Sequence[Any]) -> bool:
    """Whether two shapes are equal; symbolic sizes by identity."""
    return len(a) == len(b) and all(x is y or x == y for x, y in zip(a, b, strict=True))


def need_int_shape(shape: Shape, what: str) -> tuple[int, ...]:
    """The shape, when every size is an int.

    Raises: ShapeError naming the symbolic size otherwise.
    """
    for s in shape:
        if not isinstance(s, int):
            raise ShapeError(f"{what}: size {s!r} is symbolic; a plain int is wanted here")
    return shape


def need(condition: bool, message: str) -> None:
    """Raises InternalError with the message unless the condition holds."""
    if not condition:
        raise InternalError(message)
