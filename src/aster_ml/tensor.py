"""Defines Tensor, a mutable handle on a node: construction, realizing, moving, reading, gradients.

Receives data and other tensors; returns tensors, NumPy arrays, Python numbers. `ops` defines the
operations, `engine` runs them.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Container, Iterable, Iterator, Set
from operator import attrgetter
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from aster_ml.device import Buffer, Device
from aster_ml.dtype import DTypeLike, dtypes, to_dtype
from aster_ml.engine import history, storage
from aster_ml.engine.launch import is_recording
from aster_ml.engine.realize import realize_uops, schedule_uops
from aster_ml.engine.realized import SHOWING, find_realized, ready_buffer
from aster_ml.engine.recorded import run_recorded
from aster_ml.errors import (
    DTypeError,
    GradientError,
    JitError,
    ShapeError,
    SymbolicSizeError,
    UnreducedError,
)
from aster_ml.helpers import all_int
from aster_ml.kernel_library.formulas import FormulaMixin
from aster_ml.late import late
from aster_ml.migration_hints import TENSOR, hint
from aster_ml.ops.assign import REALIZED, note_memory
from aster_ml.ops.create import CreateMixin
from aster_ml.ops.data import node_of
from aster_ml.ops.devices import check_device, move
from aster_ml.ops.handle import (
    INHERITED,
    WRITTEN,
    Handle,
    check_tensor,
    described,
    device_constant,
    is_stored,
    name_of,
    number_everywhere,
    own_memory,
)
from aster_ml.ops.live import LIVE, LeafRef, TensorRef, forget, live_handles, wake
from aster_ml.ops.operations import Operations
from aster_ml.ops.random import STREAMS, RandomMixin
from aster_ml.ops.sizes import same_size
from aster_ml.plugins import open_module
from aster_ml.thread_state import STATE, ThreadState, mark
from aster_ml.uop.graph import toposort
from aster_ml.uop.infer import show_shape
from aster_ml.uop.interned import UNSET
from aster_ml.uop.node import MOVEMENT_SET, UOp
from aster_ml.uop.ops import Ops

if TYPE_CHECKING:
    import aster_ml.downloads as downloads
    import aster_ml.gradient as rules
    from aster_ml.engine import explain, items
    from aster_ml.engine.items import ExecItem
else:
    downloads, rules = late("downloads"), late("gradient")
    explain, items = late("engine.explain"), late("engine.items")


def set_training(cls: type[Tensor], mode: bool) -> None:
    """Sets the mode of layers, training or not, in this thread."""
    STATE.training = mode
    mark("training", mode)


class TensorType(type):
    """Attributes of the class itself: the training mode of a thread, hints for missing names."""

    # Read without a call of Python.
    training = property(attrgetter("_state.training"), set_training)

    if not TYPE_CHECKING:

        def __getattr__(cls, name: str) -> Any:
            raise AttributeError(hint(name, "type object 'Tensor'", TENSOR), name=name, obj=cls)


class Tensor(Operations, FormulaMixin, CreateMixin, RandomMixin, metaclass=TensorType):
    """A value of some shape and dtype on a device, computed when it is needed.

    `Tensor(data, device, dtype, requires_grad)` takes numbers, nested lists, NumPy arrays, bytes,
    files (pathlib.Path) and nodes. Arrays, lists and bytearrays are copied at once, so the tensor
    does not see later changes of them. `Tensor(tensor)` is a view, unless it is moved or cast.
    """

    __slots__ = ()
    _state: ClassVar[ThreadState] = STATE

    # Of the class, in truth: each thread has its own.
    training = property(attrgetter("_state.training"))

    def __init__(
        self,
        data: Any,
        device: str | tuple[str, ...] | list[str] | None = None,
        dtype: DTypeLike | None = None,
        requires_grad: bool | None = None,
    ) -> None:
        place = Device.canonicalize(check_device(device))
        # The lanes of a vector type are the last axis, which the data has already.
        element = None if dtype is None else to_dtype(dtype).scalar()
        if isinstance(data, Handle):
            moved = data if device is None else move(data, place)
            uop = moved.uop if element is None else moved.cast(element).uop
        else:
            uop = node_of(data, element, place)
            if uop.device != place and uop.device is not None:
                if place.__class__ is tuple:
                    uop = uop.shard(place)
                elif device is not None or uop.device.__class__ is tuple:
                    uop = uop.copy_to(place)
        self.uop = uop
        self._ref = TensorRef(self, forget)
        self._cell = self._steps = self.grad = self._old_nodes = None
        self._requires_grad = None
        LIVE[self._ref] = None
        if isinstance(data, Handle) and data.uop is uop:
            self._show(data)
        else:
            self.uop = self._claim(uop)
        if requires_grad is not None:
            self.requires_grad = requires_grad

    def __reduce__(self) -> tuple[Any, ...]:
        return rebuild, (
            self.numpy(),
            self.device,
            self.dtype.name,
            self.requires_grad,
            self.uop.axis,
        )

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError(
                "len() of a Tensor without axes; float(t), int(t) or t.item() is its number"
            )
        size: int = self.shape[0]
        return size

    def __iter__(self) -> Iterator[Self]:
        if not self.shape:
            raise TypeError(
                "iteration over a Tensor without axes; float(t), int(t) or t.item() is its number"
            )
        for i in range(self.shape[0]):
            yield self[i]

    @classmethod
    def from_url(cls, url: str, gunzip: bool = False, **kwargs: Any) -> Self:
        """The bytes of a file that is downloaded to the cache folder.

        `kwargs` are those of `Tensor`; without a device the file itself is the memory (DISK).

        Raises: DownloadError when the file is not in the cache and the download fails.
        """
        return cls(downloads.fetch(url, gunzip=gunzip), **kwargs)

    # computing

    def realize(self, *lst: Tensor, do_update_stats: bool = True) -> Self:
        """Computes self and the others together; afterwards each is memory. Returns self."""
        if not lst and not self._requires_grad and self._cell is None and not history.CUT:
            memory = run_recorded(self)
            if memory is not None:
                self.uop = memory
                REALIZED.add(memory.base)
                return self
        tensors: list[Tensor] = [self, *lst]
        nodes = [t.uop if 0 not in t.shape else empty_node(t) for t in tensors]
        kept = [t for t in tensors if t._requires_grad == INHERITED and is_float(t)]
        if kept:
            self._realize_with_past(tensors, nodes)
            return self
        for tensor, node, new in zip(tensors, nodes, realize_uops(nodes), strict=True):
            tensor._become(node, new)
        return self

    def _realize_with_past(self, tensors: list[Tensor], nodes: list[UOp]) -> None:
        """Realizes nodes of tensors, some of which depend on tensors that require gradients."""
        self._become_with_past(tensors, nodes, realize_uops(nodes))

    def _become_with_past(self, tensors: list[Tensor], nodes: list[UOp], memory: list[UOp]) -> None:
        """`_become` for tensors whose former nodes gradients may need."""
        wanted = LeafNames()
        for tensor, node, new in zip(tensors, nodes, memory, strict=True):
            is_made = tensor._requires_grad == INHERITED and is_float(tensor)
            if is_made and node is not tensor.uop:
                # No schedule computes an empty tensor, but gradients pass it like any other value.
                node = tensor.uop
                storage.set_realized_view(node, new)
            if not is_made or history.keep_past(node, wanted, rules.passes_gradient):
                tensor._become(node, new)

    def _become(self, node: UOp, memory: UOp) -> None:
        """Replaces the tensor's node by a name of the memory that the node was realized to."""
        self._leave()
        if self._requires_grad == WRITTEN:
            history.note_cut(memory)
            self._requires_grad = None
        elif history.CUT:
            history.note_rewritten(node, memory, rules.passes_gradient)
        if memory is not self.uop:
            is_apart = is_float(node) and is_detached(node)
            if is_apart or (node._at is UNSET and is_float(node)):
                # Graphs have the node, and nothing leads from its memory to it.
                known = [ref for ref in self._old_nodes or () if ref() is not None]
                self._old_nodes = [*known, weakref.ref(node)]
            if is_apart:
                # A gradient could pass from the memory, or other names, to its inputs.
                memory = name_of(memory, "detached")
            # Two equal views of one tensor are equal, and neither is a view of the other.
            memory = self._claim(memory, "equal" if node.op in MOVEMENT_SET else "view")
            self.uop = memory
            if self._steps is not None:
                # The base of a view may not be computed yet.
                wake(self)
            elif self._cell is not None:
                self._cell.root = memory
            whole = None if self._steps is None else find_realized(self._whole)
            if whole is None or whole.base is not memory.base:
                note_memory(node, memory)

    def schedule_with_vars(self, *lst: Tensor) -> tuple[list[ExecItem], dict[str, int]]:
        """Lists the items that `realize` would run, and the values of their variables.

        Afterwards each tensor is memory, which running the items fills: `for item in
        x.schedule(): item.lower(); item.run()`. Reading a tensor runs what is left.
        """
        tensors: list[Tensor] = [self, *lst]
        nodes = [t.uop if 0 not in t.shape else empty_node(t) for t in tensors]
        memory, found, values = items.schedule_items(nodes)
        self._become_with_past(tensors, nodes, memory)
        for handle in live_handles():
            # Pending writes that were scheduled with it are memory now, too.
            if handle.uop.op is Ops.AFTER and not handle.requires_grad:
                node, place = handle.uop, storage.place_after(handle.uop)
                if place is not None:
                    handle._become(node, place)
        return list(found), values

    def schedule(self, *lst: Tensor) -> list[ExecItem]:
        """The kernels, copies and views that `realize` would run, as items to run one by one."""
        return self.schedule_with_vars(*lst)[0]

    def explain(self, *lst: Tensor) -> str:
        """Explains what `realize` would run: the work and the Opts of each kernel, and the reasons.

        Costs are those that decided; nothing is compiled or run.
        """
        nodes = [t.uop if 0 not in t.shape else empty_node(t) for t in (self, *lst)]
        return explain.explain_schedule(schedule_uops(nodes)[0])

    # reading

    def _memory(self) -> Buffer:
        """The Buffer of the tensor's elements, row-major; realizes the tensor.

        Raises: ShapeError when a size is symbolic.
        """
        for size in self.shape:
            if not isinstance(size, int):
                raise SymbolicSizeError(
                    f"a tensor of shape {show_shape(self.shape)} cannot be read: a "
                    "size is symbolic; shrink it to a fixed size, or reduce over it"
                )
        if is_recording():
            raise JitError(
                "a value is read (item, tolist, numpy, data) while TinyJit records: a "
                "replay could not follow it; return the tensor and read it after the "
                "call, or decide on tensors with where()"
            )
        if self.device.__class__ is tuple:
            if not self.requires_grad:
                self.realize()
            return self.to("CPU")._memory()
        if self.device.startswith("DISK") and not is_stored(self.uop):
            return self.to("CPU")._memory()
        if self._requires_grad != WRITTEN and self._cell is None and not history.CUT:
            held = ready_buffer(self.uop)
            if held is not None:
                return held
        if self._requires_grad == WRITTEN or (self._requires_grad and not is_stored(self.uop)):
            # Reading a loss must keep its graph, since backward may follow.
            node = realize_uops([self.uop])[0]
            if is_stored(node):
                note_memory(self.uop, node)
                return storage.buffer_of(node.base).ensure_allocated()
        self.realize()
        # What gradients still need has kept its node, with its memory beside it.
        found = find_realized(self.uop)
        shown = self.uop if found is None else found
        if is_stored(shown):
            return storage.buffer_of(shown.base).ensure_allocated()
        # A view of memory, or a constant: its elements are copied row-major.
        node = (
            own_memory(self.uop, self.device)
            if number_everywhere(self.uop)
            else UOp(Ops.CONTIGUOUS, self.dtype, (self.uop,))
        )
        apart = self._naming(node, False).realize()
        return storage.buffer_of(apart.uop.base).ensure_allocated()

    def numpy(self) -> np.ndarray[Any, Any]:
        """The value as a NumPy array, a copy that later writes do not change.

        Dtype: the same; float32 for bfloat16 and fp8, which NumPy lacks.
        """
        array = self._memory().numpy(copy=True).reshape(self.shape)
        return array.astype(np.float32) if self.dtype.fmt is None else array

    def data(self) -> memoryview:
        """The value as a memoryview of the tensor's shape, a copy that later writes do not change.

        Raises: DTypeError for dtypes that memoryviews do not know (bfloat16, fp8).
        """
        fmt = self.dtype.fmt
        if fmt is None:
            raise DTypeError(
                f"data: memoryviews have no {self.dtype.name}; cast to float32, or use .numpy()"
            )
        view: Any = self._memory().as_memoryview(copy=True)
        # No memoryview has a shape with a size of 0.
        found: memoryview = view.cast(fmt) if 0 in self.shape else view.cast(fmt, self.shape)
        return found

    def tolist(self) -> Any:
        """The value as nested Python lists; of a tensor without axes, as a number."""
        return self.numpy().tolist()

    def item(self) -> Any:
        """The value of a tensor of one element as a Python number.

        Raises: ShapeError when there are more or fewer.
        """
        if not same_size(self.numel(), 1):
            error = ShapeError if all_int(self.shape) else SymbolicSizeError
            raise error(
                f"item: {show_shape(self.shape)} has {show_shape((self.numel(),))[1:-1]} elements; "
                "one is wanted, `.tolist()` gives all"
            )
        return self.reshape(()).tolist()

    def allclose(
        self, other: Any, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False
    ) -> bool:
        """Whether `isclose` holds for every element; computes it."""
        return bool(self.isclose(other, rtol, atol, equal_nan).all().item())

    # gradients

    def gradient(
        self, *targets: Tensor, gradient: Tensor | None = None, materialize_grads: bool = False
    ) -> list[Self]:
        """The gradients of self for each of the targets, as tensors.

        `gradient` is the gradient of self, required unless self has one element.

        Raises: GradientError when self does not depend on a target; with `materialize_grads` such
        a gradient is zeros.
        """
        for target in targets:
            check_tensor(target, "gradient")
        ends = {u for t in targets if t._requires_grad is True for u in writes_of(t)}
        found = self._gradients_of([graph_names(t) for t in targets], gradient, ends)
        result = []
        # x[0:0].sum() and x ** 0 are constants when built, whose gradients are zeros.
        zeros = materialize_grads or (None in found and is_constant(self.uop))
        for target, grad in zip(targets, found, strict=True):
            if grad is None and not zeros and 0 not in target.shape:
                raise GradientError(
                    f"gradient: {described(self)} does not depend on {described(target)}; "
                    "materialize_grads=True gives zeros for it"
                )
            result.append(self.from_uop(target.const_like(0).uop if grad is None else grad, False))
        return result

    def backward(self, gradient: Tensor | None = None) -> Self:
        """Adds to `.grad` of every tensor below that requires a gradient. Returns self.

        A tensor computed from one that requires a gradient requires a gradient as well.

        Raises: GradientError when self has more than one element and no `gradient` is given, and
        when nothing below requires a gradient.
        """
        past = history.past_of(self.uop, rules.passes_gradient)
        below = toposort(self.uop, *past[1].values())
        wanted = [t for t in flagged_in(below) if is_float(t)]
        names = [graph_names(t) for t in wanted]
        places = {n for t, group in zip(wanted, names) if t._requires_grad is True for n in group}
        ends = {u for t in wanted if t._requires_grad is True for u in writes_of(t)}
        grads = self._gradients_of(names, gradient, ends, past)
        # Results of jitted functions are not leaves, although they may have a gradient.
        if storage.NO_GRADIENT:
            check_graph(self.uop, places, past[1])
        if all(g is None or t.uop is self.uop for t, g in zip(wanted, grads)) and (
            self.uop not in places
        ):
            raise GradientError(
                f"backward: nothing below {described(self)} requires a gradient; set "
                "requires_grad=True on what should have one (an optimizer does, of its parameters)"
            )
        for tensor, grad in zip(wanted, grads, strict=True):
            if grad is not None:
                made = self.from_uop(grad, False)
                if tensor.grad is None:
                    tensor.grad = made
                elif not is_zero(grad) and not storage.is_lost(tensor.grad.uop):
                    # In place: references to `.grad` stay the sum, also in jitted functions.
                    # Memory that a jitted function has discarded stays unreadable.
                    tensor.grad.assign(tensor.grad + made)
        return self

    def _gradients_of(
        self,
        targets: list[list[UOp]],
        gradient: Tensor | None,
        ends: Set[UOp] = frozenset(),
        past: history.WalkedBack | None = None,
    ) -> list[UOp | None]:
        """The gradient for each target, which has one or several names in the graph.

        No gradient passes a node of `ends`. `past` is `history.past_of` of the tensor's node, if it
        is known.
        """
        if gradient is not None:
            check_tensor(gradient, "gradient")
        if gradient is None and not same_size(self.numel(), 1):
            raise UnreducedError(
                f"gradient: of {show_shape(self.shape)}, which has "
                f"{self.numel()} elements; reduce it to one, with .sum() or "
                ".mean(), or give the gradient of each"
            )
        if not is_float(self):
            raise GradientError(f"gradient: of a tensor of {self.dtype.name}; cast it to a float")
        start = UOp.const(self.dtype, 1.0) if gradient is None else gradient.uop
        if gradient is not None and gradient.numel() == self.numel() == 1:
            start = gradient.reshape(self.shape).uop
        elif gradient is not None and gradient.shape != self.shape:
            raise ShapeError(
                f"gradient: {show_shape(gradient.shape)} for a tensor of "
                f"{show_shape(self.shape)}; the same shape is wanted"
            )
        names = {name for group in targets for name in group if name.dtype.kind == "float"}
        root = self.uop
        order, values = past or history.past_of(root, rules.passes_gradient)
        if values:
            targets = with_values(targets, values)
            names = {name for group in targets for name in group if name.dtype.kind == "float"}
        check_graph(root, names, values)
        changed = history.as_read(root, values.values())
        if changed is not None:
            root = changed.read(root)
            known = {memory: changed.read(value) for memory, value in values.items()}
            order, values = history.walk_back(root, rules.passes_gradient, known)
            targets = [
                [n for u in group for n in (u, *changed.anew.get(u, ()))] for group in targets
            ]
            ends |= {n for u in ends for n in changed.anew.get(u, ())}
            names = {name for group in targets for name in group if name.dtype.kind == "float"}
        wanted = names.union(values.values())
        if changed is not None:
            wanted.update(changed.unread)
        if history.CUT:
            order = toposort(root, enter=rules.passes_gradient) if order is None else order
            wanted.update([u for u in order if u in history.CUT])
        found = rules.compute_gradient(root, start, wanted, order, values, ends)
        history.check_kept(found, names)
        if changed is not None:
            changed.check(found, names, ends, rules.passes_gradient)
        result: list[UOp | None] = []
        for group in targets:
            total: UOp | None = None
            for name in group:
                part = found.get(name)
                if part is not None:
                    total = part if total is None else total.alu(Ops.ADD, part)
            result.append(total)
        if None in result:
            # Rounding and comparing pass no gradient; their derivative is zero.
            seen = set(toposort(root, *values.values(), enter=lambda u: u not in ends))
            for i, group in enumerate(targets):
                reached = [name for name in group if name in seen and name.dtype.kind == "float"]
                if result[i] is None and reached:
                    zero = device_constant(0.0, reached[0].dtype, self.device)
                    result[i] = self.from_uop(zero, False).expand(reached[0].shape).uop
        return result

    @classmethod
    @contextlib.contextmanager
    def train(cls, mode: bool = True) -> Iterator[None]:
        """Sets `Tensor.training` during a `with` block or a decorated function.

        The mode is thread-local, and False in a new thread.
        """
        before, Tensor.training = Tensor.training, mode
        try:
            yield
        finally:
            Tensor.training = before


def rebuild(
    array: Any, device: Any, dtype: str, requires_grad: bool | None, axis: int | None = None
) -> Tensor:
    """A tensor from what pickling wrote."""
    if axis is None:
        return Tensor(array, device, dtype, requires_grad)
    tensor = Tensor(array, None, dtype).shard(device, axis)
    tensor.requires_grad = requires_grad
    return tensor


def is_detached(u: UOp) -> bool:
    """Whether a node shows memory through a mark that stops gradients."""
    while u.op in SHOWING:
        if u.op is Ops.DETACH:
            return True
        if storage.realized_view(u) is not None:
            return False
        u = u.src[0]
    return False


def is_zero(u: UOp) -> bool:
    """Whether a node is the number 0 everywhere, as the gradient through a DETACH is."""
    while u.op in MOVEMENT_SET or u.op is Ops.CAST:
        u = u.src[0]
    return u.op is Ops.CONST and u.arg == 0


def is_float(x: Any) -> bool:
    """Whether a tensor can have a gradient."""
    return bool(x.dtype is not dtypes.index and x.dtype.kind == "float")


def is_constant(root: UOp) -> bool:
    """Whether a value is made of numbers alone."""
    return all([u.src or u.op in (Ops.CONST, Ops.DEVICE) for u in toposort(root)])


def with_values(targets: list[list[UOp]], values: dict[UOp, UOp]) -> list[list[UOp]]:
    """The names of targets, with the value of memory in place of that memory."""
    by_place = {storage.realized_view(value): value for value in values.values()}
    result = []
    for group in targets:
        value = by_place.get(group[0])
        if value is not None:
            group = [value, *[name for name in group[1:] if name is not value]]
        result.append(group)
    return result


def check_graph(root: UOp, names: set[UOp], values: dict[UOp, UOp]) -> None:
    """Raises GradientError where a gradient would have to pass through a jitted function.

    `values` maps memory to the value that it was computed from.
    """
    if not storage.NO_GRADIENT:
        return
    passes = rules.passes_gradient
    order = toposort(root, *values.values(), enter=lambda u: u not in names and passes(u))
    for u in order:
        if u in storage.NO_GRADIENT and u not in names:
            raise GradientError(
                "gradient: it would pass through the result of a jitted function, which has no "
                "graph; compute the gradient inside of that function, or detach the result"
            )


def graph_names(tensor: Any) -> list[UOp]:
    """The nodes of a tensor in graphs: its present node, and those before it was realized.

    Gradients do not pass a write to a leaf; graphs from before the write refer to the same tensor.
    """
    own = [tensor.uop]
    if tensor._requires_grad is True:
        while tensor._steps is None and own[-1].op is Ops.AFTER:
            own.append(own[-1].src[0])
    if tensor._old_nodes is not None:
        own += [u for ref in tensor._old_nodes if (u := ref()) is not None]
    # Memory stands for equal values of other tensors too, which have their own names.
    origins = [v for u in own for v in storage.origins_of(u) if not is_of_another(v, tensor)]
    names = dict.fromkeys([*own, *origins])
    for u in own:
        if u.op is Ops.NAME:
            # The named value was realized, and the name has stayed.
            names.update(
                {UOp(u.op, u.dtype, (v,), u.arg): None for v in storage.origins_of(u.src[0])}
            )
    return list(names)


def is_of_another(u: UOp, tensor: Any) -> bool:
    """Whether a node is the value of a live tensor that is not this one."""
    owner = u._owner
    return owner is not UNSET and owner is not tensor._ref and owner() is not None


def flagged_in(below: Iterable[UOp]) -> list[Any]:
    """The live tensors that require a gradient and are named by one of these nodes."""
    found: dict[int, Any] = {}
    for u in below:
        owner = u._owner
        if owner is UNSET:
            continue
        t = owner()
        if t is not None and t._requires_grad and id(t) not in found and u in graph_names(t):
            found[id(t)] = t
    return list(found.values())


class LeafNames(Container[UOp]):
    """The nodes in graphs of leaf tensors, which were set to require a gradient.

    Tensors that were deleted are included: values computed from them may be asked for a gradient.
    """

    def __contains__(self, u: object) -> bool:
        return u._owner.__class__ is LeafRef  # type: ignore[attr-defined]


def writes_of(tensor: Any) -> list[UOp]:
    """The nodes of a tensor in graphs that are writes to it."""
    return [u for u in graph_names(tensor) if u.op is Ops.AFTER or u in history.ASSIGNED]


def empty_node(tensor: Tensor) -> UOp:
    """Memory for a tensor without elements."""
    uop = tensor.uop
    if storage.is_memory_view(uop):
        return uop
    axis = uop.axis if tensor.device.__class__ is tuple else None
    return UOp.new_memory(tensor.device, tensor.shape, tensor.dtype, axis)


STREAMS.kind = Tensor

open_module(__name__)
