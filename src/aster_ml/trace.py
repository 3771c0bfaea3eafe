"""Traces kernels to Tensor methods and lines of the user's program.

With TRACEMETA=1 the methods of Tensor are wrapped: nodes that a call builds have the name of the
outermost call (`UOp.metadata`), and so do the kernels that compute them (`ExecItem.metadata`, the
lines of DEBUG=2). Without it methods are not wrapped, and nothing here runs.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any, NamedTuple

from aster_ml.config import TRACEMETA
from aster_ml.frames import user_line
from aster_ml.jit.pytree import leaves
from aster_ml.tensor import Tensor
from aster_ml.thread_state import SharedWeakSet
from aster_ml.uop.graph import toposort
from aster_ml.uop.node import METADATA, UOp
from aster_ml.uop.ops import Ops


class Metadata(NamedTuple):
    """A traced call: the method, and the line of the user that called it."""

    name: str
    caller: str
    backward: bool = False
    # The enclosing calls, innermost first, if `STACK` has a function for them.
    stack: tuple[Any, ...] = ()


# The current traced call.
_METADATA: ContextVar[Metadata | None] = ContextVar("_METADATA", default=None)

OPERATORS = frozenset(
    f"__{prefix}{name}__"
    for name in (
        "add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor",
        "lshift", "rshift", "eq", "ne", "lt", "le", "gt", "ge", "neg", "invert", "getitem",
        "setitem",
    )
    for prefix in ("", "r", "i")
)  # fmt: skip
# Methods that build no values, or that all others use.
UNTRACED = frozenset({
    "realize", "schedule", "schedule_with_vars", "numpy", "data", "tolist", "item", "from_uop",
    "alu", "ufix", "requires_grad_", "numel", "size", "element_size", "nbytes",
    "is_floating_point", "backward", "gradient", "train", "manual_seed", "allclose", "replace",
    "assign", "sequential",
})  # fmt: skip
MARKED_ALREADY = frozenset({Ops.BUFFER, Ops.CONST, Ops.DEVICE, Ops.DEFINE_VAR, Ops.BIND})
ORIGINALS: dict[str, Any] = {}
# A function that returns the enclosing calls, while a run is recorded.
STACK: list[Callable[[], tuple[Any, ...]]] = []
# Threads with TRACEMETA: methods stay wrapped as long as there is one.
ASKING: SharedWeakSet[threading.Thread] = SharedWeakSet()
LOCK = threading.Lock()


def tensors_in(value: Any) -> Iterator[Tensor]:
    """The tensors in nested lists, tuples and dicts."""
    for _, leaf in leaves(value):
        if isinstance(leaf, Tensor):
            yield leaf


def mark(made: Metadata, result: Any, known: set[UOp]) -> None:
    """Records the call on every node of its results that it has built."""
    roots = [t.uop for t in tensors_in(result)]
    for u in toposort(*roots, enter=lambda u: u not in known and u not in METADATA):
        if u not in known and u not in METADATA and u.op not in MARKED_ALREADY:
            METADATA[u] = (made,)


def traced(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The method, with a wrapper that records the nodes it builds."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if not TRACEMETA or _METADATA.get() is not None:
            return function(*args, **kwargs)
        file, line = user_line()
        made = Metadata(name, f"{file}:{line}", stack=STACK[-1]() if STACK else ())
        known = {t.uop for t in tensors_in([args, kwargs])}
        token = _METADATA.set(made)
        try:
            result = function(*args, **kwargs)
        finally:
            _METADATA.reset(token)
        mark(made, result, known)
        return result

    return call


def wrapped(name: str, found: Any) -> Any:
    """The traced form of an attribute of the class; None if it is not traced."""
    if isinstance(found, classmethod):
        return classmethod(traced(name, found.__func__))
    if isinstance(found, staticmethod):
        return staticmethod(traced(name, found.__func__))
    return traced(name, found) if inspect.isfunction(found) else None


def follow() -> None:
    """Wraps or unwraps the methods of Tensor, as TRACEMETA says in this and other threads."""
    with LOCK:
        (ASKING.add if TRACEMETA else ASKING.discard)(threading.current_thread())
        wanted = bool(TRACEMETA.initial) or any([t.is_alive() for t in ASKING])
        if wanted != bool(ORIGINALS):
            wrap_methods(wanted)


def wrap_methods(wanted: bool) -> None:
    """Wraps the methods of Tensor, or unwraps them."""
    if wanted:
        for name in dir(Tensor):
            if name in UNTRACED or (name.startswith("_") and name not in OPERATORS):
                continue
            made = wrapped(name, inspect.getattr_static(Tensor, name))
            if made is not None:
                ORIGINALS[name] = Tensor.__dict__.get(name)
                setattr(Tensor, name, made)
        return
    for name, original in ORIGINALS.items():
        if original is None:
            delattr(Tensor, name)
        else:
            setattr(Tensor, name, original)
    ORIGINALS.clear()


TRACEMETA.changed = follow
follow()
