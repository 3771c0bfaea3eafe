"""Names weights as the network that a function calls knows them.

Receives a function; returns the tensors of the objects that it is a method of, that it closes over,
or that it finds among the globals of its module, by the keys of their state dicts. Several objects
have the names of their variables in front.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple

from aster_ml.device import Buffer
from aster_ml.extend import whole_buffer
from aster_ml.jit.tiny_jit import TinyJit
from aster_ml.nn.state import get_state_dict

# What holds no weights of its own.
PLAIN = (ModuleType, FunctionType, BuiltinFunctionType, type, str, bytes, int, float)


class Named(NamedTuple):
    """A tensor of a network, and the memory that it is."""

    name: str
    shape: tuple[int, ...]
    buffer: Buffer


def named_weights(function: Callable[..., Any]) -> list[Named]:
    """The tensors with memory of a function's networks."""
    groups = {label: get_state_dict(owner) for label, owner in owners(function)}
    groups = {label: state for label, state in groups.items() if state}
    found = []
    for label, state in groups.items():
        for key, t in state.items():
            name = ".".join([x for x in (label if len(groups) > 1 else "", key) if x])
            buffer = whole_buffer(t.uop)
            if buffer is not None and all([isinstance(n, int) for n in t.shape]):
                found.append(Named(name or label, tuple(t.shape), buffer))
    return found


def owners(function: Callable[..., Any]) -> Iterator[tuple[str, Any]]:
    """The objects whose tensors a function may use, each with the name of its variable."""
    waiting: list[tuple[str, Any]] = [("self", function)]
    seen = set()
    while waiting:
        name, value = waiting.pop()
        if value is None or id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, TinyJit):
            waiting.append((name, value.function))
        elif isinstance(value, MethodType):
            waiting.append((name, value.__self__))
        elif isinstance(value, functools.partial):
            waiting += [(f"argument{i}", x) for i, x in enumerate(value.args)]
            waiting += [*value.keywords.items(), (name, value.func)]
        elif isinstance(value, FunctionType) and name == "self":
            waiting += outside(value)
        elif not isinstance(value, PLAIN):
            yield name, value


def outside(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """The variables of a function that are not its own."""
    code = function.__code__
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:
            # It has no value yet.
            continue
    for name in code.co_names:
        yield name, function.__globals__.get(name)
