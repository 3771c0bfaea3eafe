"""Defines Handle, a mutable name for a node, which every operation on tensors goes through.

Receives Python numbers, NumPy values, nodes and other handles as operands; promotes, broadcasts and
builds the node. Data that comes from outside, memory and realizing do not belong here.
"""

from __future__ import annotations

import itertools
import math
import threading
import weakref
from _thread import get_ident
from collections.abc import Callable, Sequence
from sys import getrefcount
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import numpy as np

from aster_ml.config import GRAPH_LIMIT
from aster_ml.device import Device
from aster_ml.dtype import (
    DType,
    DTypeLike,
    cast_value,
    dtypes,
    largest,
    least_upper_dtype,
    number_dtype,
    stored_number,
    to_dtype,
    truncate,
)
from aster_ml.engine import storage
from aster_ml.engine.guard import graph_is_too_large
from aster_ml.engine.readers import Tensors
from aster_ml.errors import (
    DeviceError,
    DTypeError,
    GradientError,
    PreconditionError,
    ShapeError,
)
from aster_ml.helpers import ONE_NAME, kind_of
from aster_ml.migration_hints import TENSOR, hint
from aster_ml.ops.complexes import (
    COMPLEX_KINDS,
    OPERATORS,
    complex_choice,
    complex_result,
    is_complex,
)
from aster_ml.ops.elementwise import ElementwiseMixin
from aster_ml.ops.live import LIVE, LeafRef, TensorRef, forget, wake
from aster_ml.ops.movement import MovementMixin, broadcast_shapes
from aster_ml.ops.reduce import ReduceMixin
from aster_ml.ops.views import (
    ROOM,
    SHOWING,
    Cell,
    GradientCell,
    Steps,
    is_view,
    joined,
    new_cell,
    own_value,
    shown,
    shows_memory,
    steps_to,
)
from aster_ml.uop.graph import reaches, substitute, toposort
from aster_ml.uop.infer import show_shape
from aster_ml.uop.interned import NODES, UNSET
from aster_ml.uop.movement import is_whole_memory
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import COMPARE, DeviceArg, NameArg, Ops, ReduceArg
from aster_ml.uop.sharding import MULTI_SEEN, breaks_up_axis
from aster_ml.uop.users import NOTING, link, users_of

# `requires_grad` of what was computed from something that requires a gradient: true, and `backward`
# leaves one there as well, but it was not asked for by name.
INHERITED = 2
# `requires_grad` of what was not asked, and to which a value that requires a gradient was written:
# true until it is realized. Then it is data, as state that is carried on from step to step has to
# be, or each step would keep the ones before; no gradient goes on from there in silence.
WRITTEN = 3
Flag = bool | int | None

NUMBER_KINDS = frozenset({"int", "uint", "float"})
# Numbers of tensors whose value is a node that another tensor had before.
NAMES = itertools.count()


class Touched:
    """Which handles this thread makes, or gives another node, while the `with` block lasts.

    A thread that observes a function is not to take what others do meanwhile for the function's.
    Python notes who sets an attribute only where it is told to, so handles are told as long as
    somebody asks; to read one costs what it always does.
    """

    LOCK = threading.Lock()
    # By thread: those that are listening, each with what it has heard of by id. Others' handles may
    # have the ids of those that are gone, so the handles themselves are known, weakly.
    LISTENING: ClassVar[dict[int, list[dict[int, weakref.ref[Any]]]]] = {}
    SLOT: ClassVar[Any] = None

    def __enter__(self) -> Touched:
        self.seen: dict[int, weakref.ref[Any]] = {}
        with Touched.LOCK:
            if not Touched.LISTENING:
                Touched.SLOT = Handle.__dict__["uop"]
                slot = Touched.SLOT
                Handle.uop = property(slot.__get__, note_uop, note_gone)  # type: ignore[misc, assignment]
            Touched.LISTENING.setdefault(get_ident(), []).append(self.seen)
        return self

    def has(self, handle: Handle) -> bool:
        """Whether this thread made the handle, or gave it another node."""
        found = self.seen.get(id(handle))
        return found is not None and found() is handle

    def __exit__(self, *_: object) -> None:
        with Touched.LOCK:
            mine = Touched.LISTENING[get_ident()]
            mine.pop()
            if not mine:
                del Touched.LISTENING[get_ident()]
            if not Touched.LISTENING:
                Handle.uop = Touched.SLOT  # type: ignore[misc]


def note_uop(handle: Handle, uop: UOp) -> None:
    """Sets the node of a handle while some thread listens."""
    Touched.SLOT.__set__(handle, uop)
    for seen in Touched.LISTENING.get(get_ident(), ()):
        seen[id(handle)] = weakref.ref(handle)


def note_gone(handle: Handle) -> None:
    """Takes the node of a handle away, as what it shows was written, while some thread listens."""
    Touched.SLOT.__delete__(handle)
    for seen in Touched.LISTENING.get(get_ident(), ()):
        seen[id(handle)] = weakref.ref(handle)


def either_flag(one: Flag, other: Flag) -> Flag:
    """`requires_grad` of a value made of two: inherited if either is; None if either is open."""
    if one or other:
        return INHERITED
    return None if one is None or other is None else False


def check_tensor(value: Any, what: str) -> None:
    """Raises DTypeError for what is no tensor."""
    if not isinstance(value, Handle):
        raise DTypeError(f"{what}: {value!r} is {kind_of(value)}; a Tensor is wanted")


def name_of(u: UOp, kind: str) -> UOp:
    """A node of its own with a value, of a tensor that is this to the one with the value's node."""
    return UOp(Ops.NAME, u.dtype, (u,), NameArg(next(NAMES), kind))


def described(x: Handle) -> str:
    """Shape, dtype and place of a tensor, without its values."""
    grad = ", requires_grad" if x.requires_grad else ""
    return f"<{x.__class__.__name__} {show_shape(x.shape)} {x.dtype.name} on {x.device}{grad}>"


def device_constant(value: Any, dtype: DType, device: str | tuple[str, ...]) -> UOp:
    """The scalar `value` as a tensor on `device` (or several); it takes no memory."""
    place = UOp(Ops.DEVICE, dtypes.void, (), DeviceArg(device))
    return UOp(Ops.CONST, dtype, (place,), stored_number(value, dtype))


def is_pending_number(uop: UOp) -> bool:
    """Whether the value is one constant that is still to be written to memory of its own.

    Asked for memory once more, such a value gets another: each of them may be written to.
    """
    if uop.op is not Ops.AFTER or len(uop.src) != 2 or storage.realized_view(uop) is not None:
        return False
    place, value = uop.src[1].src[:2]
    return place is uop.src[0] and is_number(value)


def size_dtype(size: UOp) -> DType:
    """The dtype of a size as a value that is given none: int64 where it may exceed the default int.

    why: a recording is replayed for other values of its variables, so their ranges decide
    """
    return dtypes.default_int if holds_size(dtypes.default_int, size) else dtypes.int64


def holds_size(dtype: DType, size: UOp) -> bool:
    """Whether an integer dtype holds a size, whatever the values of its variables."""
    bound = {u: u.src[0] for u in toposort(size) if u.op is Ops.BIND}
    low, high = (substitute(size, bound) if bound else size).bounds
    return bool(dtypes.min(dtype) <= low and high <= dtypes.max(dtype))


def number_node(size: UOp, dtype: DType | None, device: str | tuple[str, ...]) -> UOp:
    """A size as the value of a tensor.

    A size lives nowhere; a constant in a sum says on which device the tensor is.
    """
    dtype = size_dtype(size) if dtype is None else dtype
    return size.cast(dtype).alu(Ops.ADD, device_constant(0, dtype, device))


def is_stored(uop: UOp) -> bool:
    """Whether the value lies in memory of its own, elements in row-major order."""
    while (uop.op is Ops.RESHAPE and len(uop.src) == 1) or uop.op in (Ops.AFTER, Ops.NAME):
        uop = uop.src[0]
    if uop.op is Ops.MULTI:
        return all([is_stored(s) for s in uop.src])
    return uop.op is Ops.BUFFER or (uop.op is Ops.SHRINK and is_whole_memory(uop))


def number_everywhere(uop: UOp) -> bool:
    """Whether the value is one constant, spread over a shape of known size."""
    return uop.base.op is Ops.CONST and all(isinstance(size, int) for size in uop.shape)


def is_number(uop: UOp) -> bool:
    """Whether the value is one constant, or one a device."""
    if uop.op is Ops.MULTI:
        return all([number_everywhere(s) for s in uop.src])
    return number_everywhere(uop)


def is_buffer(uop: UOp) -> bool:
    """Whether the node is memory."""
    return uop.op is Ops.BUFFER


def is_leaf_of_data(uop: UOp) -> bool:
    """Whether a value made of the node may be another than one made of numbers alone."""
    return uop.op is Ops.BUFFER or uop.op is Ops.BIND or uop.op is Ops.CONTIGUOUS


class Handle(ElementwiseMixin, MovementMixin, ReduceMixin):
    """A mutable name for a node: operations make new handles, assignment changes the node.

    Handles that show the same elements have one `cell`, and each the `steps` from its root to
    itself; a write through another of them takes `uop` away, which is built anew when asked for.
    """

    __slots__ = (
        "__weakref__", "_cell", "_old_nodes", "_ref", "_requires_grad", "_steps", "grad", "uop",
    )  # fmt: skip
    uop: UOp
    # The key in `LIVE`.
    _ref: TensorRef
    grad: Self | None
    _cell: Cell | None
    _steps: Steps
    # The nodes before it was written to, where the memory is another one since, for gradients.
    _old_nodes: list[weakref.ref[UOp]] | None
    _requires_grad: Flag
    __hash__ = object.__hash__

    @classmethod
    def from_uop(cls, y: UOp, requires_grad: Flag = None) -> Self:
        """A tensor whose value is that of the node `y`; of memory, as it is now."""
        if y.op in SHOWING and shows_memory(y):
            y = own_value(y)
        return cls._naming(y, requires_grad)

    @classmethod
    def _naming(cls, y: UOp, requires_grad: Flag = None) -> Self:
        """A tensor that names the node `y`, which may be memory that no other tensor names."""
        self = object.__new__(cls)
        if y.dtype is dtypes.index and not y.shape:
            y = number_node(y, None, Device.DEFAULT)
        kind = LeafRef if requires_grad is True else TensorRef
        ref = self._ref = kind(self, forget)
        self.uop = None  # type: ignore[assignment]
        self._cell = self._steps = self.grad = self._old_nodes = None
        self._requires_grad = requires_grad
        # `claim`, without a call where nobody has the node.
        if y._owner is UNSET and not y.src:
            y._owner = ref
        elif y._is_linked or y._users is not UNSET or not link(y, ref):
            y = self._claim(y, is_new=True)
        self.uop = y
        LIVE[ref] = None
        if len(NODES) > GRAPH_LIMIT.value and graph_is_too_large(y):
            self.realize()  # type: ignore[attr-defined]
        return self

    def _claim(self, y: UOp, kind: str = "equal", is_new: bool = False) -> UOp:
        """The node, or where another tensor has it, the same value under a name of our own.

        Equal expressions are one node, and gradients are asked for tensors. `kind` is what we are
        to the other tensor (NameArg). What a new tensor has on the way to its value is none of the
        tensors that are made later.
        """
        with NOTING:
            owner = y._owner
            if (owner is UNSET and not (is_new and y.dtype.kind == "float" and users_of(y))) or (
                y.src and y.op is not Ops.CONST and is_unused(y)
            ):
                y._owner = self._ref
            elif owner is not self._ref:
                if y.dtype.kind != "float":
                    # No gradient is asked for, so the node may be that of several. It is ours
                    # before that is told: another thread that enters us now finds it.
                    self.uop = y
                    wake(self)
                elif y.src or y.op is not Ops.CONST:
                    y = name_of(y, kind)
                    y._owner = self._ref
            if y.src and not y._is_linked:
                link(y)
        return y

    def _derive(self, uop: UOp) -> Self:
        """A tensor for a node made from ours alone, or for ours as a value of its own."""
        if uop is self.uop:
            uop = name_of(uop, "view")
        # `from_uop`, without a call.
        if uop.op in SHOWING and shows_memory(uop):
            uop = own_value(uop)
        flag = self._requires_grad
        return self._naming(uop, INHERITED if flag else flag)

    def _derive_memory(self) -> Self:
        """Our value in memory of its own."""
        flag = INHERITED if self._requires_grad else self._requires_grad
        return self._naming(own_memory(self.uop, self.device), flag)

    def _derive_with(self, uop: UOp, *others: Handle) -> Self:
        """A tensor for a node made from ours and those of others."""
        flag = INHERITED if self._requires_grad else self._requires_grad
        for other in others:
            flag = either_flag(flag, other._requires_grad)
        return self.from_uop(uop, flag)

    if TYPE_CHECKING:
        # pyright gives an attached function the parameters that a base declares for its name.
        def div(
            self,
            x: Any,
            reverse: bool = False,
            rounding_mode: Literal["trunc", "floor"] | None = None,
        ) -> Self:
            """self / x."""

    # what it shows

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """The node of a tensor that shows what was written since it was last asked for."""
            if name == "uop" and self._cell is not None:
                node = shown(self._cell.root, self._steps)
                self.uop = mine = self._claim(node)
                if mine is not node:
                    self._steps = steps_to(mine, node, self._steps)
                self._cell.note(self)
                if self._cell.__class__ is GradientCell:
                    self._note_written()
                return self.uop
            if name in TENSOR:
                raise AttributeError(hint(name, "a Tensor", TENSOR), name=name, obj=self)
            # What a property raises is told as it is.
            return object.__getattribute__(self, name)

    def _own_cell(self) -> Cell:
        """Our cell, made where we had none so far."""
        cell = self._cell
        if cell is None:
            cell = self._cell = new_cell(self.uop)
            cell.note(self)
        return cell

    def view_as(self, node: UOp) -> Self:
        """A tensor that shows ours in another way: `node` is made of our node by movement alone."""
        flag = INHERITED if self._requires_grad else self._requires_grad
        if node is self.uop:
            node = name_of(node, "view")
        elif (below := node.src[0]) is not self.uop:
            # What is on the way is none of the tensors that show us so.
            way = apart(self.uop, below)
            if way is not below:
                node = UOp(node.op, node.dtype, (way, *node.src[1:]), node.arg)
        made = self._naming(node, flag)
        made._join(self._own_cell(), steps_to(made.uop, self.uop, self._steps))
        return made

    def _seen_as(self, make: Callable[[Any], Any]) -> Self:
        """Applies `make` to our node, movement alone, as one view, whatever it pads on the way."""
        node = u = make(self.uop)
        while u is not self.uop:
            if MULTI_SEEN and u.has_multi:
                check_local(u)
            u = u.src[0]
        return self if node is self.uop else self.view_as(node)

    def _view_by(self, steps: Steps, flag: Flag) -> Self:
        """A tensor that shows ours in this way."""
        node = shown(self.uop, steps)
        made = self._naming(node, flag)
        steps = joined(self._steps, steps)
        made._join(self._own_cell(), steps if made.uop is node else steps_to(made.uop, node, steps))
        return made

    def _join(self, cell: Cell, steps: Steps) -> None:
        """Makes self one of the tensors that show a cell; `uop` is what the steps make of it."""
        self._cell, self._steps = cell, steps
        cell.note(self)

    def _show(self, other: Handle) -> None:
        """Makes self show what another tensor shows, written through either."""
        node = other.uop
        self.uop = mine = self._claim(node, "view")
        self._join(other._own_cell(), steps_to(mine, node, other._steps))

    def _leave(self) -> None:
        """Makes self a whole where no other tensor shows any of it."""
        cell = self._cell
        if cell is not None and getrefcount(cell) == ONE_NAME:
            self._rename(self.uop)

    def _rename(self, node: UOp) -> None:
        """Makes self a whole with this node, and no view any more."""
        self.uop = self._claim(node)
        self._cell = self._steps = None

    def _note_written(self) -> None:
        """A value that requires a gradient was written to what self shows."""
        if self._requires_grad is None:
            self._requires_grad = WRITTEN

    def _note_written_everywhere(self) -> None:
        """The same, of all tensors that show it."""
        self._note_written()
        cell = self._cell
        if cell is not None:
            cell.__class__ = GradientCell
            for handle in [h for ref in list(cell.fresh) if (h := ref()) is not None]:
                handle._note_written()

    def _note_old_nodes(self) -> None:
        """Keeps the nodes that stand for self, which is given other memory, while others do.

        So do tensors that show the same.
        """
        cell = self._cell
        for ref in () if cell is None else list(cell.fresh):
            handle = ref()
            if handle is not None and handle is not self and handle._cell is cell:
                handle._note_own_old_nodes()
        self._note_own_old_nodes()

    def _note_own_old_nodes(self) -> None:
        """The same for self alone."""
        if self._requires_grad is not True or self._steps is not None:
            return
        known = [ref for ref in self._old_nodes or () if ref() is not None]
        own = (self.uop, *storage.origins_of(self.uop))
        self._old_nodes = known + [weakref.ref(u) for u in own]

    @property
    def _whole(self) -> UOp:
        """The node of what self is a view of, or our own."""
        return self.uop if self._cell is None else self._cell.root

    @_whole.setter
    def _whole(self, node: UOp) -> None:
        if self._cell is None:
            self.uop = self._claim(node)
        else:
            self._cell.renew(node)

    def _own(self) -> Self:
        """The same elements as a value that no write to those of self changes."""
        uop = self.uop
        return self._derive(uop if number_everywhere(uop) else own_value(uop))

    # what it is

    @property
    def dtype(self) -> DType:  # type: ignore[override]
        """Element type."""
        return self.uop.dtype

    @property
    def shape(self) -> tuple[Any, ...]:
        """Sizes, outermost first; a symbolic size is a node."""
        return self.uop.shape  # type: ignore[no-any-return]

    @property
    def device(self) -> Any:
        """Where the value lives: a name, or a tuple of several."""
        return self.uop.device or Device.DEFAULT

    @property
    def requires_grad(self) -> bool | None:
        """Says whether gradients are wanted; None leaves that to an optimiser.

        Set on a tensor, `backward` leaves a gradient there; what is computed from it inherits it,
        and stays a step that gradients go through where True is set on it as well.
        """
        return None if self._requires_grad is None else bool(self._requires_grad)

    @requires_grad.setter
    def requires_grad(self, value: bool | None) -> None:
        if value and self._requires_grad in (INHERITED, WRITTEN):
            return
        self._requires_grad = value
        self._ref.__class__ = LeafRef if value else TensorRef
        if not value:
            return
        if not is_view(self.uop) and not reaches(self.uop, is_buffer):
            # Numbers alone: an optimiser writes to memory. Graphs may have the node of before.
            self._old_nodes = [weakref.ref(self.uop)]
            self._whole = own_memory(name_of(self._whole, "detached"), self.device)
        node = self.uop
        owner = node._owner
        if owner is UNSET or owner() is None:
            node._owner = self._ref
        elif owner is not self._ref:
            self.uop = mine = self._claim(node)
            if self._cell is not None:
                self._steps = steps_to(mine, node, self._steps)

    def requires_grad_(self, requires_grad: bool | None = True) -> Self:
        """Sets `requires_grad` and returns self."""
        self.requires_grad = requires_grad
        return self

    def element_size(self) -> int:
        """Bytes of one element."""
        return self.dtype.itemsize

    def nbytes(self) -> Any:
        """Bytes of all elements."""
        return self.numel() * self.dtype.itemsize

    def is_floating_point(self) -> bool:
        """Whether the dtype is a float."""
        return self.dtype.kind == "float"

    def size(self, dim: int | None = None) -> Any:
        """The shape, or the size of axis `dim`."""
        return self.shape if dim is None else self.shape[self._resolve_axis(dim, "size")]

    # primitives

    def alu(self, op: Ops, *src: Self) -> Self:
        """Elementwise node over values whose dtypes and shapes fit already."""
        if not src:
            return self._derive(UOp(op, self.uop.dtype, (self.uop,)))
        return self._derive_with(self.uop.alu(op, *[s.uop for s in src]), *src)

    def _mop(self, op: Ops, arg: Any) -> Self:
        """Movement node with a complete, checked argument."""
        uop = self.uop
        moved = uop._mop(op, arg)
        if MULTI_SEEN and moved.has_multi:
            check_local(moved)
        made = self._naming(moved, INHERITED if self._requires_grad else self._requires_grad)
        if op is Ops.PAD:
            return made
        # `join`, without calls: half of what a network is built of is movement.
        cell = self._cell
        if cell is None:
            cell = self._cell = Cell()
            cell.root, cell.fresh, cell.room, cell.without = uop, {}, ROOM, ()
            cell.fresh[weakref.ref(self)] = None
        steps = self._steps, op, moved.dtype, moved.src[1:], moved.arg
        mine = made.uop
        made._steps = steps if mine is moved else (steps, mine.op, mine.dtype, (), mine.arg)
        made._cell = cell
        fresh = cell.fresh
        fresh[weakref.ref(made)] = None
        if len(fresh) > cell.room:
            cell.sweep()
        return made

    def _rop(self, op: Ops, axes: tuple[int, ...]) -> Self:
        """REDUCE over `axes`, which stay with size 1."""
        uop = self.uop
        return self._derive(UOp(Ops.REDUCE, uop.dtype, (uop,), ReduceArg(op, axes)))

    def cast(self, dtype: DTypeLike) -> Self:
        """The value as another dtype.

        A float becomes an int by rounding towards zero, saturated at the ends; ints wrap.

        Raises: DTypeError for what is no dtype.
        """
        target = dtype if dtype.__class__ is DType else to_dtype(dtype)
        uop = self.uop
        source = uop.dtype
        if source is target:
            return self
        if target is dtypes.void:
            raise DTypeError(f"cast: {source.name} to void; an element type is wanted")
        if target is dtypes.index:
            return self._derive(UOp(Ops.CAST, target, (uop,)))
        return self._derive(cast_node(uop, target))

    def bitcast(self, dtype: DTypeLike) -> Self:
        """The bits as another dtype; between widths, the last axis grows or shrinks.

        Shapes: self [*b, n], dtype="int32" -> [*b, n]; self [*b, n], dtype="uint8" -> [*b, 4 * n].
        Raises: ShapeError when the last axis does not hold a whole number of wider elements;
        GradientError for what requires a gradient, as bits have none.
        """
        target, uop = to_dtype(dtype), self.uop
        source = uop.dtype
        if self._requires_grad:
            raise GradientError(
                f"bitcast: a tensor of {source.name} that requires a gradient, and there is none "
                "of bits; detach() it, or cast"
            )
        if source is target:
            return self
        if source.itemsize != target.itemsize:
            if not self.shape:
                raise ShapeError(
                    f"bitcast: a scalar {source.name} has no axis to make room for "
                    f"{target.name}; reshape it to [1] first"
                )
            nbytes = self.shape[-1] * source.itemsize
            if isinstance(nbytes, int) and nbytes % target.itemsize:
                raise ShapeError(
                    f"bitcast: the last axis of {show_shape(self.shape)} has {nbytes} "
                    f"bytes, which is no multiple of the {target.itemsize} that "
                    f"{target.name} takes"
                )
        node = UOp(Ops.BITCAST, target, (uop,))
        # Elements of another width are a value of their own.
        return self.view_as(node) if source.itemsize == target.itemsize else self._derive(node)

    def const_like(self, b: Any) -> Self:
        """`b` everywhere, with the dtype, shape and device of self."""
        return self._full_of(self.shape, b)

    def _full_of(self, shape: tuple[Any, ...], value: Any) -> Self:
        """`value` everywhere, with our dtype and device."""
        scalar = self.from_uop(device_constant(value, self.uop.dtype, self.device), False)
        return scalar._broadcast_to(shape)

    def _scalar(self, value: Any) -> Self:
        """`value` as a constant of our dtype without axes, which may stand beside self."""
        dtype = self.uop.dtype
        return self.from_uop(UOp(Ops.CONST, dtype, (), truncate(value, dtype)), False)

    # operands

    def _operand(self, x: Any, what: str) -> UOp:
        """`x` as a node that may stand beside ours; Python numbers take our dtype if they can.

        Raises: DTypeError for what is no number and no tensor; NumberRangeError for a number that
        our dtype does not hold.
        """
        if isinstance(x, Handle):
            return x.uop
        dtype = self.uop.dtype
        if isinstance(x, np.generic):
            x = x.item()
        if isinstance(x, (int, float)):
            if dtype.kind == "float" or (dtype.kind != "bool" and isinstance(x, int)):
                return UOp(Ops.CONST, dtype, (), stored_number(x, dtype))
            return UOp.const(number_dtype(x), x)
        if isinstance(x, UOp):
            if dtype.kind == "float":
                return x.cast(dtype)
            # A recording is replayed for other values, so the range decides whether ours holds it.
            needed = size_dtype(x)
            if dtype.kind not in NUMBER_KINDS:
                return x.cast(needed)
            return x.cast(dtype if holds_size(dtype, x) else least_upper_dtype(dtype, needed))
        if isinstance(x, np.ndarray):
            return self.__class__(x, device=self.device).uop  # type: ignore[call-arg]
        if hasattr(x, "__dlpack__") or hasattr(x, "__array__"):
            return self.__class__(x, device=self.device).uop  # type: ignore[call-arg]
        hint = "; wrap it in Tensor(...)" if isinstance(x, (list, tuple)) else ""
        raise DTypeError(
            f"{what}: {kind_of(x)} ({str(x)[:40]}) stands beside a tensor; a "
            f"number or a Tensor is wanted{hint}"
        )

    def ufix(self, x: Any) -> Self:
        """`x` as a tensor that may stand beside self."""
        return (
            x if isinstance(x, self.__class__) else self.from_uop(self._operand(x, "ufix"), False)
        )

    def _binop(self, op: Ops, x: Any, reverse: bool = False) -> Self:
        """`op` of self and `x` (of `x` and self when `reverse`), promoted and broadcast."""
        a = self.uop
        dtype = a.dtype
        kind = x.__class__
        if kind is self.__class__:
            b = x.uop
            shape = a.shape
            if b.dtype is dtype and b.shape == shape and a.device == b.device:
                uop = UOp(
                    op, dtypes.bool if op in COMPARE else dtype, (b, a) if reverse else (a, b)
                )
                uop._shape, uop._device = shape, a._device
                flag = self._requires_grad
                if flag or flag is not x._requires_grad:
                    flag = either_flag(flag, x._requires_grad)
                # What is computed shows no memory.
                return self._naming(uop, flag)
        elif (kind is float and dtype.kind == "float") or (
            kind is int and dtype.kind in NUMBER_KINDS
        ):
            value = truncate(x, dtype)
            if value != x and (dtype.kind != "float" or value - value != 0 or dtype.itemsize == 1):
                return self._binop_promoted(op, x, reverse)
            b = UOp(Ops.CONST, dtype, (), value)
            uop = UOp(op, dtypes.bool if op in COMPARE else dtype, (b, a) if reverse else (a, b))
            uop._shape, uop._device = a.shape, a._device
            flag = self._requires_grad
            return self._naming(uop, INHERITED if flag else flag)
        return self._binop_promoted(op, x, reverse)

    def _binop_promoted(self, op: Ops, x: Any, reverse: bool) -> Self:
        """`_binop` where dtypes, shapes or kinds of operand differ."""
        what = op.name.lower()
        if not isinstance(x, (Handle, int, float)) and is_complex(x) and op in OPERATORS:
            found: Self = complex_result(self, OPERATORS[op], x, reverse)
            return found
        if op in COMPARE and isinstance(x, (int, float, np.number)) and x.__class__ is not bool:
            number = x.item() if isinstance(x, np.generic) else x
            if self.dtype.kind == "float" and self._beyond(number):
                return self.cast(dtypes.float64)._binop(op, number, reverse)
            known, x = compared_number(op, number, self.dtype, reverse)
            if known is not None:
                truth = self.from_uop(device_constant(known, dtypes.bool, self.device), False)
                return truth._broadcast_to(self.shape)
        b = self._operand(x, what)
        src = promote_all(what, (b, self.uop) if reverse else (self.uop, b))
        uop = UOp(op, dtypes.bool if op in COMPARE else src[0].dtype, src)
        return self._derive_with(uop, x) if isinstance(x, Handle) else self._derive(uop)

    def _beyond(self, number: float) -> bool:
        """Whether our float dtype would make a number another one than the nearest."""
        finite = abs(number) < math.inf
        return abs(number) > largest(self.dtype) and (finite or self.dtype is dtypes.fp8e4m3)

    def where(self, x: Any, y: Any) -> Self:
        """`x` where self is true, else `y`; all three broadcast.

        Shapes: self bool [*b, n, m], x [*b, n, m], y [*b, n, m] -> [*b, n, m]; b broadcasts.
        Dtype: least upper of x and y; Python numbers take the dtype of the other.
        """
        condition = self if self.dtype is dtypes.bool else self.cast(dtypes.bool)
        if x.__class__ in COMPLEX_KINDS or y.__class__ in COMPLEX_KINDS:
            chosen: Self = complex_choice(condition, x, y)
            return chosen
        if isinstance(x, Handle):
            first, second = x.uop, x._operand(y, "where")
        elif isinstance(y, Handle):
            first, second = y._operand(x, "where"), y.uop
        else:
            first, second = plain_node(x), plain_node(y)
        choice = condition.uop
        number, other = (first, second) if first.op is Ops.CONST else (second, first)
        if (
            first.dtype is second.dtype
            and number.op is Ops.CONST
            and other.shape == choice.shape != ()
            and other.device == choice.device
            and not number.src
        ):
            # As a rectifier has it: what is chosen beside a number is of one form already.
            uop = UOp(Ops.WHERE, first.dtype, (choice, first, second))
            uop._shape, uop._device = choice._shape, choice._device
        else:
            first, second = promote_dtypes("where", (first, second))
            src = broadcast_all("where", (choice, first, second))
            uop = UOp(Ops.WHERE, first.dtype, src)
        flag: Flag = False
        for value in (x, y):
            if isinstance(value, Handle):
                flag = either_flag(flag, value._requires_grad)
        return self.from_uop(uop, flag)

    def _broadcasted(self, *others: Any) -> tuple[Self, ...]:
        """Self and others at one dtype and one shape.

        Shapes: self [*b, n], others=() -> [*b, n].
        """
        nodes = [self.uop, *[self._operand(x, "broadcasted") for x in others]]
        shape = broadcast_shapes("broadcasted", *[u.shape for u in nodes])
        made = promote_dtypes("broadcasted", tuple(nodes))
        result: list[Any] = []
        for x, u in zip((self, *others), made, strict=True):
            value = u._broadcast_to(shape)
            if not isinstance(x, Handle):
                result.append(self.from_uop(value, False))
            else:
                result.append(x if x.uop is value else x._derive(value))
        return tuple(result)

    # comparisons that Python spells with operators

    def __eq__(self, x: object) -> Self:  # type: ignore[override]
        if x is None or isinstance(x, str):
            return NotImplemented
        return self.eq(x)

    def __ne__(self, x: object) -> Self:  # type: ignore[override]
        if x is None or isinstance(x, str):
            return NotImplemented
        return self.ne(x)

    def __bool__(self) -> bool:
        raise TypeError(
            "the truth of a Tensor is not known before it is computed; `.item()` gives the value "
            "of one element, `.any()` and `.all()` make one of many"
        )

    # marks

    def detach(self) -> Self:
        """The same value, through which no gradient passes."""
        made = self.view_as(UOp(Ops.DETACH, self.uop.dtype, (self.uop,)))
        made._requires_grad = False
        return made

    def _with_slope(self, value: Self, slope: Self) -> Self:
        """`value`, a function of self, whose gradient is `slope` times that of the result.

        A slope of bools says where no gradient passes; elsewhere it passes as it is.
        why: formulas that are right to the last digits have derivatives that are not
        """
        return self._derive(UOp(Ops.CUSTOM_GRADIENT, value.dtype, (value.uop, self.uop, slope.uop)))

    def _linked(self, value: Self) -> Self:
        """`value`, which self has no influence on: gradients of self are zeros."""
        if self.dtype.kind != "float" or value.dtype is not self.dtype:
            return value
        none = UOp.const(self.dtype, 0)
        return self._derive(UOp(Ops.CUSTOM_GRADIENT, value.dtype, (value.uop, self.uop, none)))

    def contiguous(self, *, arg: Sequence[Any] | None = None) -> Self:
        """The value stored row-major in memory of its own; self where it is so already.

        `arg` are Opts for the kernel that stores it; without it the cost decides.
        """
        uop = self.uop
        if arg is not None:
            opts = " ".join([str(opt) for opt in arg])
            return self._derive(UOp(Ops.CONTIGUOUS, uop.dtype, (uop,), opts))
        if uop.op is Ops.CONTIGUOUS or (is_stored(uop) and not is_pending_number(uop)):
            return self
        if is_number(uop) or not reaches(uop, is_leaf_of_data):
            # Equal values of numbers alone are one node, but memory is asked for to be written to:
            # each has its own.
            return self._derive_memory()
        return self._derive(UOp(Ops.CONTIGUOUS, uop.dtype, (uop,)))

    def clone(self) -> Self:
        """A copy in memory of its own, and one of its `grad` where it has one.

        Shapes: self [*s] -> [*s].
        """
        copy = self._derive_memory()
        if self.grad is not None:
            copy.grad = self.grad.clone()
        return copy

    def contiguous_backward(self) -> Self:
        """The same value, whose gradient is stored."""
        return self._derive(UOp(Ops.CONTIGUOUS_BACKWARD, self.uop.dtype, (self.uop,)))


def nodes_of(ref: TensorRef) -> list[UOp]:
    """The nodes that a tensor may have to be computed from: its own, none once it is gone.

    Of a tensor that has no node now, that of the whole it shows. Also that of a whole that is still
    to be computed, where a view has memory of its own: written to, it shows the whole again.
    """
    handle = ref()
    if handle is None:
        return []
    node = node_now(handle)
    if node is None:
        # Another thread may be about to give the tensor its first node.
        return [] if handle._cell is None else [handle._cell.root]
    if handle._steps is not None and storage.is_memory_view(node):
        whole = handle._cell.root
        if not storage.is_memory_view(whole):
            return [node, whole]
    return [node]


def node_now(handle: Any) -> UOp | None:
    """The node of a tensor, None where a write has taken it away."""
    try:
        return vars(Handle)["uop"].__get__(handle)  # type: ignore[no-any-return]
    except AttributeError:
        return None


def own_memory(uop: UOp, device: str | tuple[str, ...]) -> UOp:
    """The value in a new buffer of its own, which is filled when it is first needed."""
    axis = uop.axis if device.__class__ is tuple else None
    target = UOp.new_memory(device, uop.shape, uop.dtype, axis)
    return target.after(target.store(uop))


def check_local(u: UOp) -> None:
    """Raises PreconditionError for a reshape or shrink that takes apart what the devices have."""
    if breaks_up_axis(u):
        source = u.src[0]
        raise PreconditionError(
            f"{u.op.name.lower()}: {show_shape(source.shape)} to {show_shape(u.shape)} would move "
            f"elements between devices, as axis {source.axis} is split over {len(u.device)}; keep "
            "to the parts of one device, index instead, or bring it together before: .to('CPU')"
        )


def plain_node(x: Any) -> UOp:
    """A number, or the value of a size, that no tensor beside it gives a dtype."""
    if isinstance(x, UOp):
        return x.cast(size_dtype(x))
    return UOp.const(number_dtype(x), x)


def compared_number(op: Ops, x: Any, dtype: DType, reverse: bool) -> tuple[bool | None, Any]:
    """Compares all values of a dtype with a number, None where they differ; and a number
    the dtype holds and with which they compare alike.
    """
    if dtype.kind not in ("int", "uint", "bool"):
        return None, x
    if x != x:
        return op is Ops.CMPNE, x
    low, high = int(dtypes.min(dtype)), int(dtypes.max(dtype))
    if op is not Ops.CMPLT:
        if x - x != 0 or x != int(x) or not low <= x <= high:
            return op is Ops.CMPNE, x
        return None, int(x)
    if x - x == 0:
        # A whole number is below (above) the same numbers as what it is rounded up (down) from.
        x = math.floor(x) if reverse else math.ceil(x)
    if (x < low) if reverse else (x > high):
        return True, x
    if (x >= high) if reverse else (x <= low):
        return False, x
    return None, x


def promote_dtypes(what: str, nodes: tuple[UOp, ...]) -> tuple[UOp, ...]:
    """The nodes at their least common dtype."""
    if all([u.dtype is nodes[0].dtype for u in nodes]):
        return nodes
    dtype = least_upper_dtype(*[u.dtype for u in nodes])
    return tuple([cast_node(u, dtype) for u in nodes])


def cast_node(u: UOp, dtype: DType) -> UOp:
    """The node as `dtype`; constants become constants."""
    if u.dtype is dtype:
        return u
    if u.op is Ops.CONST and not (u.src and dtype.kind == u.dtype.kind == "float"):
        return UOp(Ops.CONST, dtype, u.src, cast_value(u.arg, u.dtype, dtype))
    return UOp(Ops.CAST, dtype, (u,))


def broadcast_all(what: str, nodes: tuple[UOp, ...]) -> tuple[UOp, ...]:
    """The nodes at one shape; scalar constants stay, they stand beside any shape and device."""
    shape = broadcast_shapes(what, *[u.shape for u in nodes])
    device: str | None = None
    made = []
    for u in nodes:
        if u.op is Ops.CONST and shape and not u.src:
            made.append(u)
            continue
        found = u.device
        if found is not None and device is not None and found != device and number_everywhere(u):
            # A number lives anywhere.
            u = UOp(Ops.CONST, u.dtype, (), u.base.arg)
            found = None
        if found is not None and device is not None and found != device:
            # Nothing is computed on DISK: what is there is moved, whichever side it stands on.
            place = found if str(device).startswith("DISK") else device
            raise DeviceError(
                f"{what}: one value is on {device}, the other on {found}; .to({place!r}) moves it"
            )
        device = found if device is None else device
        made.append(apart(u, u._broadcast_to(shape)))
    return tuple(made)


def is_unused(u: UOp) -> bool:
    """Whether the tensor of a node is gone, and no graph has the node."""
    owner = u._owner
    return owner is not UNSET and owner is not nobody and owner() is None and not users_of(u)


def nobody() -> None:
    """Refers to the tensor of a node that an operation has made for itself: there is none."""


def apart(u: UOp, made: UOp) -> UOp:
    """Applies movement to a node, or where a tensor has some of that, the same apart from it.

    What an operation does with its operand is no use of another tensor that shows it so.
    """
    way = []
    x = made
    while x is not u:
        way.append(x)
        x = x.src[0]
    if all([x._owner is UNSET or x._owner is nobody for x in way]):
        for x in way:
            x._owner = nobody
        return made
    x = name_of(u, "view")
    for step in reversed(way):
        x = UOp(step.op, step.dtype, (x, *step.src[1:]), step.arg)
    return x


def promote_all(what: str, nodes: tuple[UOp, ...]) -> tuple[UOp, ...]:
    """The nodes at one dtype and one shape."""
    return broadcast_all(what, promote_dtypes(what, nodes))


Tensors.nodes_of = staticmethod(nodes_of)
