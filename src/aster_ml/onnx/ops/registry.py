"""Registers ONNX operators: which function computes which operator, from which version on.

A function receives the inputs of a node as its positional parameters and the attributes as
parameters of the same names; defaults that the operator's schema states are filled in. An attribute
that later became an input (`axes` of Squeeze) is the parameter of that name in both cases. `**rest`
of a function stands for the attributes of another one, which several operators have. What the
operators compute stands in the modules of this folder; graphs stand in `model` and `run`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

F = TypeVar("F", bound=Callable[..., Any])
# A value of a graph: a tensor, an array that stays on the host, a sequence, or an absent optional.
Value = Any
Array = np.ndarray[Any, Any]
# The domain of the standard operators has two names.
STANDARD = ""
DOMAINS = {"ai.onnx": STANDARD}
ML, MICROSOFT = "ai.onnx.ml", "com.microsoft"
TRAINING = "ai.onnx.preview.training"


@dataclass(frozen=True)
class Operator:
    """One function of the table.

    `host` names the parameters that it wants as NumPy arrays, `raw` says that it takes values of
    any kind as they are. `needs_call` is whether it has a parameter `call`, for what is around it.
    """

    domain: str
    name: str
    since: int
    function: Callable[..., Any]
    host: frozenset[str]
    raw: bool
    is_random: bool
    positional: tuple[str, ...]
    variadic: bool
    keywords: frozenset[str]
    needs_call: bool
    # Parameters without a default that may be None, as inputs in the middle that are absent.
    nullable: frozenset[str]
    is_host: bool = False


# (domain, name) -> operators, the oldest first.
OPERATORS: dict[tuple[str, str], list[Operator]] = {}
HOST: dict[tuple[str, str], list[Operator]] = {}
# Functions with a parameter `**rest`, and the attributes that it stands for.
RESTS: dict[Callable[..., Any], frozenset[str]] = {}


def attributes_of(function: Callable[..., Any]) -> frozenset[str]:
    """The attributes that a function takes by name, or hands on."""
    parameters = inspect.signature(function).parameters.values()
    named = [p.name for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY]
    return RESTS.get(function, frozenset()).union(named)


def describe(
    function: Callable[..., Any],
    domain: str,
    name: str,
    since: int,
    host: str = "",
    raw: bool = False,
    is_random: bool = False,
    is_host: bool = False,
) -> Operator:
    """The row of the table for a function, its parameters looked up."""
    parameters = inspect.signature(function).parameters
    kinds = {name: parameter.kind for name, parameter in parameters.items()}
    positional = tuple(
        [n for n, k in kinds.items() if k is inspect.Parameter.POSITIONAL_OR_KEYWORD]
    )
    variadic = [n for n, k in kinds.items() if k is inspect.Parameter.VAR_POSITIONAL]
    keywords = attributes_of(function)
    bare = [n for n in positional if parameters[n].default is inspect.Parameter.empty]
    nullable = {n for n in bare if "None" in str(parameters[n].annotation)}
    return Operator(
        domain, name, since, function, frozenset(host.split()), raw, is_random,
        positional, bool(variadic), keywords, "call" in keywords,
        frozenset(nullable), is_host,
    )  # fmt: skip


def op(
    *names: str,
    since: int = 1,
    domain: str = STANDARD,
    host: str = "",
    raw: bool = False,
    is_random: bool = False,
    rest: Callable[..., Any] | frozenset[str] = frozenset(),
) -> Callable[[F], F]:
    """A decorator: the function computes these operators from version `since` on.

    `rest` is the attributes of the function's `**rest`, or what takes them.
    """

    def register(function: F) -> F:
        RESTS[function] = attributes_of(rest) if callable(rest) else rest
        for name in names:
            rows = OPERATORS.setdefault((domain, name), [])
            rows.append(describe(function, domain, name, since, host, raw, is_random))
            rows.sort(key=lambda row: row.since)
        return function

    return register


def on_host(*names: str, since: int = 1, domain: str = STANDARD) -> Callable[[F], F]:
    """A decorator: the function computes these operators on NumPy arrays.

    It gives NotImplemented for what had better be a tensor.
    """

    def register(function: F) -> F:
        for name in names:
            rows = HOST.setdefault((domain, name), [])
            rows.append(describe(function, domain, name, since, is_host=True))
            rows.sort(key=lambda row: row.since)
        return function

    return register


def lookup(
    table: dict[tuple[str, str], list[Operator]], domain: str, name: str, version: int
) -> Operator | None:
    """The newest function that is not newer than the version of the operator."""
    found = [row for row in table.get((domain, name), ()) if row.since <= version]
    return found[-1] if found else None
