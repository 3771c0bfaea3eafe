"""Flattens the arguments and results of a jitted function, and puts them together again.

Receives nests of lists, tuples and dicts; says what is the same from call to call (the key of a
recording) and what is exchanged (memory, values of variables), and fills a result's nest with the
tensors of another call. An object that is made of tensors, such as a complex one, says of which by
`tensor_parts`, and makes one of others by `with_tensor_parts`. Knows nothing of recording.
"""

from __future__ import annotations

import enum
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from aster_ml.dtype import DType
from aster_ml.engine import storage
from aster_ml.engine.realized import find_memory, find_realized
from aster_ml.errors import JitError
from aster_ml.helpers import kind_of
from aster_ml.ops.assign import is_shared, take_private_copy
from aster_ml.ops.handle import INHERITED, Flag, own_memory
from aster_ml.ops.live import wake
from aster_ml.ops.views import Steps, shown, steps_after
from aster_ml.tensor import Tensor
from aster_ml.uop.graph import substitute, toposort, without_names
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import Ops, ParamArg

# Compared by value; a float by its bits.
PLAIN = (int, str, bytes, type(None), bool, DType, type, enum.Enum, complex, range)


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every leaf of nested lists, tuples, dicts and what is made of tensors, with its place."""
    if isinstance(value, (list, tuple)):
        for i, v in enumerate(value):
            yield from leaves(v, f"{path}[{i}]")
    elif isinstance(value, dict):
        for k, v in value.items():
            yield from leaves(v, f"{path}[{k!r}]")
    elif hasattr(value, "tensor_parts"):
        for i, v in enumerate(value.tensor_parts()):
            yield from leaves(v, f"{path}, part {i}")
    else:
        yield path, value


def base_buffer(u: UOp) -> UOp:
    """The BUFFER that a view shows."""
    while u.op is not Ops.BUFFER:
        u = u.src[0]
    return u


class Same:
    """An object in a key: equal to itself alone, without being kept alive."""

    __slots__ = ("number", "ref")

    def __init__(self, value: Any) -> None:
        self.number = id(value)
        try:
            self.ref: Callable[[], Any] = weakref.ref(value)
        except TypeError:
            self.ref = lambda: value

    def __hash__(self) -> int:
        return self.number

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Same):
            return False
        mine = self.ref()
        return mine is not None and mine is other.ref()


class Inputs:
    """The arguments of one call.

    `key` has all that must be the same for a replay: structure, plain values, shapes, dtypes,
    devices, views, which arguments are one memory, and which variables are bound. `bases` is the
    memory, `values` the variables' values, `below` the memory of each tensor, `slices` the numbers
    of those that show parts of it.

    The memory of a tensor is what its node shows, and where that has to be computed (a view in a
    way that is computed, a view of a value without memory) the node is computed first. Only those
    whose numbers are in `by_whole`, views that the function writes through, are taken as views of
    the memory of their whole.

    Raises: JitError for what no replay could exchange.
    """

    def __init__(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        by_whole: frozenset[int] = frozenset(),
    ) -> None:
        self.tensors: list[Tensor] = []
        self.values: dict[str, int] = {}
        self.bases: list[UOp] = []
        self.objects: list[Any] = []
        self.slices: list[int] = []
        tokens: list[Any] = []
        for i, arg in enumerate(args):
            self.take(arg, tokens, lambda i=i: f"argument {i}")  # type: ignore[misc]
        if kwargs:
            tokens.append(tuple(kwargs))
            for name, arg in kwargs.items():
                self.take(arg, tokens, lambda name=name: f"argument {name}")  # type: ignore[misc]
        if by_whole:
            self.realize_wholes([self.tensors[i] for i in by_whole])
        lazy = [
            t
            for i, t in enumerate(self.tensors)
            if not storage.is_memory_view(t.uop) and i not in by_whole
        ]
        if lazy:
            Tensor.realize(*lazy)
            for t in lazy:
                if t._cell is not None and not storage.is_memory_view(t.uop):
                    # A view in a way that is computed, of memory that holds one number now.
                    t.uop = own_memory(t.uop, t.device)
                    wake(t)
                    t.realize()
        self.below = [memory_below(t) for t in self.tensors]
        for i, (t, below) in enumerate(zip(self.tensors, self.below)):
            form = self.form(t, below)
            tokens.append(form)
            if form.__class__ is UOp and is_slice(t.uop):
                self.slices.append(i)
        self.key = tuple(tokens)

    def realize_wholes(self, views: list[Tensor]) -> None:
        """Makes what these tensors are views of memory, which they show from then on."""
        for t in views:
            if t._cell is None:
                continue
            whole = Tensor._naming(t._cell.root).realize().uop
            if not storage.is_memory_view(whole):
                # One number, in no memory.
                whole = Tensor._naming(own_memory(whole, t.device)).realize().uop
            t._cell.renew(whole)
            t.uop = shown(whole, t._steps)
            t._cell.note(t)
            wake(t)

    def take(self, value: Any, tokens: list[Any], where: Callable[[], str]) -> None:
        """One argument, or one element of one."""
        kind = value.__class__
        if isinstance(value, Tensor):
            tokens.append((Tensor, value._requires_grad))
            self.tensors.append(value)
        elif isinstance(value, float):
            tokens.append((kind, value.hex()))
        elif isinstance(value, PLAIN):
            tokens.append((kind, value))
        elif isinstance(value, (list, tuple)):
            tokens.append((kind, len(value)))
            for i, v in enumerate(value):
                self.take(v, tokens, lambda i=i: f"{where()}[{i}]")  # type: ignore[misc]
        elif isinstance(value, dict):
            tokens.append((kind, tuple(value)))
            for k, v in value.items():
                self.take(v, tokens, lambda k=k: f"{where()}[{k!r}]")  # type: ignore[misc]
        elif isinstance(value, UOp):
            tokens.append(self.unbound(value, where))
        elif hasattr(value, "tensor_parts"):
            tokens.append(kind)
            for i, v in enumerate(value.tensor_parts()):
                self.take(v, tokens, lambda i=i: f"{where()}, part {i}")  # type: ignore[misc]
        elif isinstance(value, np.generic):
            tokens.append((kind, value.tobytes()))
        elif isinstance(value, slice):
            tokens.append(slice)
            for part in (value.start, value.stop, value.step):
                self.take(part, tokens, where)
        elif isinstance(value, (set, frozenset)) and all(isinstance(v, PLAIN) for v in value):
            tokens.append((kind, frozenset(value)))
        elif hasattr(value, "__array_interface__") or hasattr(value, "__array__"):
            raise JitError(
                f"{where()} of a jitted function is a {kind.__name__}, whose values a "
                "recording would freeze; pass Tensor(...) of it"
            )
        else:
            self.objects.append(value)
            tokens.append(Same(value))

    def unbound(self, u: UOp, where: Callable[[], str]) -> UOp:
        """The node with variables in place of bound ones, whose values are noted."""
        binds = [x for x in toposort(u) if x.op is Ops.BIND]
        free = [
            x for x in toposort(u, enter=lambda x: x.op is not Ops.BIND) if x.op is Ops.DEFINE_VAR
        ]
        if free or (not binds and u.op is not Ops.CONST):
            raise JitError(
                f"{where()} is {u!r}; a jitted function takes bound variables: "
                "Variable(name, low, high).bind(value)"
            )
        for bind in binds:
            variable, value = bind.unbind()
            name = variable.arg.name
            if self.values.setdefault(name, value) != value:
                raise JitError(
                    f"{where()} binds {name} to {value}, another argument binds it to "
                    f"{self.values[name]}"
                )
        return substitute(u, {bind: bind.src[0] for bind in binds}) if binds else u

    def form(self, t: Tensor, bases: list[UOp]) -> Any:
        """View of a tensor into its memory, which is numbered."""
        u = without_names(t.uop)
        if not bases:
            raise JitError(
                f"a jitted function was given {t!r}, which is a constant without "
                "memory; pass x.contiguous().realize() instead"
            )
        for base in bases:
            if base not in self.bases:
                self.bases.append(base)
        base = bases[0]
        slot, arg = self.bases.index(base), base.arg
        if u is base:
            return slot, base.dtype, arg.device, arg.size
        if u.op is Ops.RESHAPE and u.src == (base,):
            return slot, base.dtype, arg.device, u.arg
        view = self.unbound(u, lambda: f"the size of {t!r}") if has_variables(u) else u
        return substitute(view, {b: param_of(b, self.bases.index(b)) for b in bases})

    def numbers_of(self, tensors: list[Tensor]) -> list[int]:
        """Which of the arguments are among these tensors."""
        known = {id(t) for t in tensors}
        return [i for i, t in enumerate(self.tensors) if id(t) in known]

    def memory_shared_with(self, tensors: list[Tensor], known: set[int]) -> frozenset[UOp]:
        """The memory of arguments that others of these tensors show, too, or that is `known`."""
        mine = {id(t) for t in self.tensors}
        shown = known | {
            id(storage.buffer_of(base).base)
            for t in tensors
            if id(t) not in mine and (whole := find_memory(t._whole)) is not None
            for base in storage.buffers_below(whole)
        }
        found: set[UOp] = set()
        for below in self.below:
            if any([id(storage.buffer_of(base).base) in shown for base in below]):
                found.update(below)
        return frozenset(found)

    def take_own_memory(self, numbers: set[int] | None = None) -> bool:
        """Gives inputs that will be written to (all, when None) memory that nobody else names.

        Returns whether a tensor shows other memory than before.
        """
        changed = []
        for t, bases in zip(self.tensors, self.below):
            if numbers is not None and numbers.isdisjoint([self.bases.index(b) for b in bases]):
                continue
            if is_shared(t):
                if is_apart(t):
                    t.uop = own_memory(t.uop, t.device)
                    wake(t)
                else:
                    t._whole = own_memory(t._whole, t.device)
                changed.append(t)
            else:
                for base in bases:
                    take_private_copy(base)
        if changed:
            Tensor.realize(*changed)
        return bool(changed)


def memory_of_whole(t: Tensor) -> list[UOp]:
    """The BUFFERs of what a tensor is a view of, one a device; none where that is no memory."""
    whole = None if t._cell is None else find_realized(t._cell.root)
    return [] if whole is None else storage.buffers_below(whole)


def memory_below(t: Tensor) -> list[UOp]:
    """The BUFFERs that a tensor shows, one a device, or those of its whole; none without memory."""
    return storage.buffers_below(t.uop) or memory_of_whole(t)


def is_apart(t: Tensor) -> bool:
    """Whether a tensor has memory of its own though it is a view: its whole has none, or other."""
    return t._cell is not None and memory_below(t) != memory_of_whole(t)


def is_slice(u: UOp) -> bool:
    """Whether a view shows a part of fixed size of one memory."""
    found = False
    while len(u.src) == 1:
        found = found or u.op is Ops.SHRINK
        u = u.src[0]
    return found and u.op is Ops.BUFFER


def has_variables(u: UOp) -> bool:
    """Whether a view has sources beside what it shows: sizes that are no ints."""
    while u.op is not Ops.BUFFER:
        if u.op is Ops.MULTI:
            return any([has_variables(s) for s in u.src])
        if len(u.src) > 1:
            return True
        u = u.src[0]
    return False


def param_of(base: UOp, slot: int) -> UOp:
    """Placeholder of memory that is exchanged."""
    return UOp(Ops.PARAM, base.dtype, (), ParamArg(slot, base.arg.size, base.arg.device))


class Template:
    """A tensor of the result, with its memory and the values of variables left open."""

    def __init__(self, t: Tensor, memory: dict[UOp, UOp]) -> None:
        self.requires_grad: Flag = t._requires_grad
        shown = without_names(t.uop)
        binds = {x: x.src[0] for x in toposort(shown) if x.op is Ops.BIND}
        self.variables = {v.arg.name: v for v in binds.values()}
        known = {b: memory[b] for b in storage.buffers_below(t.uop) if b in memory}
        self.params = list(known.values())
        changes = {**binds, **known}
        self.uop = substitute(shown, changes) if changes else shown
        # Of what it is a view, if of an argument, of what was there before, or of another result
        # (which list, and the place there), and how it shows it.
        self.host: tuple[str, int] | None = None
        self.steps: Steps = None
        # Number of the memory and shape, where the tensor shows all of it in row-major order.
        self.whole: tuple[int, Any] | None = None
        if self.uop.op is Ops.PARAM:
            self.whole = self.uop.arg.slot, None
        elif self.uop.op is Ops.RESHAPE and self.uop.src == tuple(self.params):
            self.whole = self.params[0].arg.slot, self.uop.arg

    @property
    def flag(self) -> Flag:
        """`requires_grad` of a result."""
        return self.requires_grad and INHERITED

    def find_host(self, t: Tensor, hosts: list[tuple[str, int, Any]]) -> None:
        """Finds what `t`, of which this is the template, is a view of."""
        if t._cell is None:
            return
        for kind, number, host in hosts:
            if host is not t and host._cell is t._cell:
                found = steps_after(t._steps, host._steps)
                if found is not None and (kind != "result" or found[0] is not None):
                    self.host, self.steps = (kind, number), found[0]
                    return

    def fill(self, bases: list[UOp], values: dict[str, int]) -> Tensor:
        """The tensor over the memory of another call."""
        changes = {v: v.bind(values[name]) for name, v in self.variables.items()}
        for param in self.params:
            changes[param] = bases[param.arg.slot]
        return Tensor._naming(substitute(self.uop, changes) if changes else self.uop, self.flag)


class InputTemplate:
    """A result that is an argument itself."""

    def __init__(self, number: int) -> None:
        self.number = number


def rebuild(value: Any, change: Callable[[Any], Any]) -> Any:
    """The same nest of lists, tuples and dicts with its leaves changed."""
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*[rebuild(v, change) for v in value])
    if isinstance(value, (list, tuple)):
        return type(value)([rebuild(v, change) for v in value])
    if isinstance(value, dict):
        made = value.copy()
        made.update({k: rebuild(v, change) for k, v in value.items()})
        return made
    if hasattr(value, "tensor_parts"):
        return value.with_tensor_parts([rebuild(v, change) for v in value.tensor_parts()])
    return change(value)


def check_result(result: Any, inputs: Inputs) -> None:
    """Raises JitError for leaves of a result that a replay could not give again.

    why: a number that Python works out would be the same in every replay
    """
    for path, leaf in leaves(result):
        if leaf is None or isinstance(leaf, (Tensor, types.FunctionType)):
            continue
        if not any(leaf is x for x in inputs.objects):
            raise JitError(
                f"the result{path} of a jitted function is {kind_of(leaf)}, "
                "which a replay cannot work out; return tensors (or None), in lists, tuples "
                "and dicts"
            )
