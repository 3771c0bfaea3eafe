"""Registers operators of PyTorch (ATen): which function of tensors computes which of them.

A function takes what the operator's schema says, dtypes as Aster has them; arguments that say where
and how a result is laid out are left out. What the operators compute stands in the modules of this
folder; graphs of them are run in `torch_backend/graph`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])
# Where everything is computed: the memory of PyTorch's tensors is that of the host.
DEVICE = "CPU"


@dataclass(frozen=True)
class Row:
    """One operator.

    `casts`: "out" casts tensors among the arguments to the dtype of the result, "common" to the
    one that PyTorch computes in; `wants_out`: the function has a parameter `out`, the Spec of the
    result; `draws`: it has a parameter `key`, for random words (`aten/random.py`); `refuses` says
    of a node why it is left to PyTorch, None if it is not.
    """

    function: Callable[..., Any]
    casts: str = ""
    wants_out: bool = False
    draws: bool = False
    refuses: Callable[[Any], str | None] | None = None


# "name.overload" -> row.
OPERATORS: dict[str, Row] = {}


def aten(*names: str, **options: Any) -> Callable[[F], F]:
    """A decorator: the function computes these operators; without an overload, the default one."""

    def register(function: F) -> F:
        for name in names:
            full = name if "." in name else f"{name}.default"
            OPERATORS[full] = Row(function, **options)
        return function

    return register


def expressions(rows: Mapping[str, Callable[..., Any]], **options: Any) -> None:
    """Adds operators that are one expression each, by their names; `options` are those of Row."""
    for names, function in rows.items():
        aten(*names.split(), **options)(function)
