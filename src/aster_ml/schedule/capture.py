"""Hop 2: from the user's graph to a closed body, and the arguments that fill it.

Buffers become PARAMs numbered in order of first use, bound variables become plain variables with
their values beside (one with several values becomes several). Two graphs of equal structure give
the same body (it is interned), so the body is the key of the schedule cache.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from itertools import islice
from typing import NamedTuple

from aster_ml.dtype import dtypes
from aster_ml.errors import ArgumentError, BindError
from aster_ml.ops.symbol import two_values
from aster_ml.uop.gc_pause import uncollected
from aster_ml.uop.graph import toposort
from aster_ml.uop.interned import UNSET
from aster_ml.uop.node import METADATA, UOp
from aster_ml.uop.ops import BodyArg, Ops, ParamArg

# Names of a module are found faster than members of an Enum, and every node is asked for its op.
AFTER, BIND, BUFFER, CAST = Ops.AFTER, Ops.BIND, Ops.BUFFER, Ops.CAST
CONTIGUOUS, CUSTOM_GRADIENT, IOTA = Ops.CONTIGUOUS, Ops.CUSTOM_GRADIENT, Ops.IOTA
NAME, PARAM = Ops.NAME, Ops.PARAM


class Captured(NamedTuple):
    """`body` is a SINK of STOREs; PARAM i of it stands for `buffers[i]`.

    `effects` are the AFTER nodes of the user's graph whose STOREs the body runs, `laid_out` its
    CONTIGUOUS nodes, whose values it stores. `closed` has what stands in the body for each of the
    user's nodes, sources first.
    """

    body: UOp
    buffers: list[UOp]
    values: dict[str, int]
    effects: list[UOp]
    laid_out: list[UOp]
    closed: dict[UOp, UOp]

    def order(self) -> list[UOp]:
        """The nodes of the body as `toposort` lists them, without another walk."""
        return [*dict.fromkeys(self.closed.values()), self.body]


def capture(
    fresh: list[UOp], assigns: list[UOp], replacement: Callable[[UOp], UOp | None]
) -> Captured:
    """Closes the graph under STOREs to new memory and STOREs to memory that had a value before.

    `replacement` gives the buffer-backed node for a node that has been realized already.
    """
    with uncollected():
        return closed_body(fresh, assigns, replacement)


def closed_body(
    fresh: list[UOp], assigns: list[UOp], replacement: Callable[[UOp], UOp | None]
) -> Captured:
    """`capture`, however long Python's search for circles would take meanwhile."""
    roots = list(dict.fromkeys([*fresh, *assigns]))
    buffers: list[UOp] = []
    values: dict[str, int] = {}
    effects: list[UOp] = []
    laid_out: list[UOp] = []
    checked = False
    new: dict[UOp, UOp] = {}
    # Nodes that have been realized, and what stands for them.
    stands: dict[UOp, UOp] = {}
    # Nodes that are entered, each with those of its sources that are left.
    stack: list[tuple[UOp, Iterator[UOp]]] = []
    for root in roots:
        u, left = root, iter((root,))
        while True:
            for s in left:
                if s in new:
                    continue
                op, src = s.op, s.src
                if op is BUFFER:
                    new[s] = UOp(
                        PARAM, s.dtype, (), ParamArg(len(buffers), s.arg.size, s.arg.device)
                    )
                    buffers.append(s)
                elif op is BIND:
                    variable, value = src[0], src[1].arg
                    arg = variable.arg
                    if values.setdefault(arg.name, value) != value:
                        if not checked:
                            check_bindings(roots, replacement)
                            checked = True
                        arg = arg._replace(name=other_name(arg.name, value, values))
                        values[arg.name] = value
                    new[s] = UOp(Ops.DEFINE_VAR, variable.dtype, (), arg)
                elif not src:
                    if op is PARAM:
                        raise ArgumentError(
                            f"a value made of parameter {s.arg.slot} (as_param) has none of its "
                            "own; give it to Tensor.call with the tensors that it is for"
                        )
                    new[s] = s
                else:
                    stack.append((u, left))
                    stored = replacement(s)
                    if stored is not None and stored is not s:
                        stands[s] = stored
                        src = (stored,)
                    elif op is NAME or op is CUSTOM_GRADIENT:
                        # What its gradient is, and whose value it is, gradients alone ask.
                        stands[s] = src[0]
                        src = src[:1]
                    u, left = s, iter(src)
                    break
            else:
                if not stack:
                    break
                if u in stands:
                    new[u] = new[stands[u]]
                    u, left = stack.pop()
                    continue
                op, src = u.op, u.src
                made = src
                for s in src:
                    if new[s] is not s:
                        made = tuple(map(new.__getitem__, src))
                        break
                if op is CAST and u.dtype is src[0].dtype:
                    # A value of its own: here each version of memory is told apart anyway.
                    closed = made[0]
                elif op is IOTA:
                    # A body that is cached must not keep nodes of users alive, and so their memory.
                    closed = UOp(op, u.dtype, made, "body")
                elif made is src:
                    closed = u
                else:
                    closed = UOp(op, u.dtype, made, u.arg)
                    if not values and closed._shape is UNSET:
                        # With no variable so far, what is known of the one is so of the other.
                        closed._shape, closed._device = u._shape, u._device
                new[u] = closed
                if op is AFTER:
                    effects.append(u)
                elif op is CONTIGUOUS:
                    laid_out.append(u)
                if METADATA.data and (made_by := METADATA.data.get(weakref.ref(u))) is not None:
                    METADATA[closed] = made_by
                u, left = stack.pop()
    body = UOp(Ops.SINK, dtypes.void, tuple([new[root] for root in roots]), BodyArg(len(fresh)))
    return Captured(body, buffers, values, effects, laid_out, new)


class Beforehand:
    """`effects` and `laid_out` of a capture to come, while its roots are still being found.

    why: it makes no nodes, and each further root costs no more than what it adds
    """

    def __init__(self, replacement: Callable[[UOp], UOp | None]) -> None:
        self.replacement = replacement
        self.effects: list[UOp] = []
        self.laid_out: list[UOp] = []
        self.seen: dict[UOp, None] = {}
        # Nodes that have been realized.
        self.settled: set[UOp] = set()

    def add(self, roots: list[UOp]) -> None:
        """Looks at what these roots are made of and was not seen yet."""
        count = len(self.seen)
        toposort(*roots, enter=self.is_open, done=self.seen)
        for u in islice(self.seen, count, None):
            if u.op is AFTER and u not in self.settled:
                self.effects.append(u)
            elif u.op is CONTIGUOUS and u not in self.settled:
                self.laid_out.append(u)

    def is_open(self, u: UOp) -> bool:
        """Whether a node has not been realized."""
        stored = self.replacement(u)
        if stored is None or stored is u:
            return True
        self.settled.add(u)
        return False


def other_name(name: str, value: int, values: dict[str, int]) -> str:
    """A name for a variable that has two values in one body: a variable of its own for each."""
    count = 2
    while values.get(f"{name}_{count}", value) != value:
        count += 1
    return f"{name}_{count}"


def check_bindings(roots: list[UOp], replacement: Callable[[UOp], UOp | None]) -> None:
    """Raises BindError where one expression has a variable with two values.

    What different STOREs are made of may well have different ones: values that were asked for
    together, or that still wait for memory as it was when the variable had its last value.
    """
    stores = [root for root in roots if root.op is Ops.STORE]
    seen_stores = set(stores)
    while stores:
        values: dict[str, int] = {}
        seen: set[UOp] = set()
        stack = [stores.pop()]
        while stack:
            u = stack.pop()
            if u in seen:
                continue
            seen.add(u)
            if u.op is Ops.BIND:
                name, value = u.src[0].arg.name, u.src[1].arg
                if values.setdefault(name, value) != value:
                    raise BindError(two_values(name, values[name], value))
                continue
            stored = replacement(u)
            if stored is not None and stored is not u:
                stack.append(stored)
            elif u.op is Ops.AFTER:
                stack.append(u.src[0])
                fresh = [s for s in u.src[1:] if s not in seen_stores]
                seen_stores.update(fresh)
                stores.extend(fresh)
            else:
                stack.extend(u.src)
