"""Runs a graph of ATen operators on tensors of Aster.

Receives a graph of torch.fx whose values are described by fake tensors; returns tensors, not
computed yet, for tensors. Whose memory arguments and results are is decided in `program`, what
operators compute in `aten`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from aster_ml import Tensor
from aster_ml.dtype import DType
from aster_ml.errors import InternalError, UnsupportedError
from aster_ml.torch_backend.aten.families import FAMILIES
from aster_ml.torch_backend.aten.random import Key
from aster_ml.torch_backend.aten.registry import OPERATORS, Row
from aster_ml.torch_backend.types import Spec, aster_dtype, spec_of

# Importing them has filled the table.
assert FAMILIES
# Keywords that say where a result lies and how, and nothing of what it is.
PLACEMENT = frozenset({"device", "layout", "pin_memory", "memory_format"})
# Sizes of tensors, asked for as a part of the graph.
SIZES: dict[str, Callable[..., Any]] = {
    "sym_size.int": lambda x, dim: x.shape[dim],
    "sym_numel.default": lambda x: x.numel(),
}


def name_of(node: Any) -> str:
    """The operator of a node, "name.overload"; "" for a Python function."""
    schema = getattr(node.target, "_schema", None)
    return "" if schema is None else str(node.target).removeprefix("aten.")


def is_number(value: Any) -> bool:
    """Whether a value of a graph is a number and no tensor, known or symbolic."""
    return isinstance(value, (int, float, bool)) or hasattr(value, "node")


def filled(argument: Any, values: dict[Any, Any]) -> Any:
    """An argument, or each element of a list of them, with its value in place of a node."""
    if isinstance(argument, (list, tuple)):
        return [values[a] if hasattr(a, "meta") else a for a in argument]
    return values[argument] if hasattr(argument, "meta") else argument


class Call:
    """One node: an operator and its arguments, ready to be called."""

    def __init__(self, node: Any, torch: Any, number: int) -> None:
        self.node = node
        self.name = name_of(node)
        self.row: Row = OPERATORS[self.name]
        self.number = number
        self.args, self.kwargs = arguments_of(node, torch)
        value = node.meta["val"]
        self.several = isinstance(value, (list, tuple))
        self.specs = [spec_of(v) for v in value] if self.several else [spec_of(value)]
        self.computes_in = self.dtype_of_work(torch)

    def dtype_of_work(self, torch: Any) -> DType | None:
        """The dtype that tensors among the arguments are cast to, if to any."""
        if self.row.casts == "out":
            found = self.specs[0]
            return None if found is None else found.dtype
        if not self.row.casts:
            return None
        from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND as KINDS
        from torch._prims_common import elementwise_dtypes

        given = [a.meta["val"] if hasattr(a, "meta") else a for a in self.args]
        given = [a for a in given if isinstance(a, (int, float, bool, torch.Tensor))]
        kind = KINDS.NO_OPMATH if hasattr(KINDS, "NO_OPMATH") else KINDS.DEFAULT
        return aster_dtype(elementwise_dtypes(*given, type_promotion_kind=kind)[1])

    def run(self, values: dict[Any, Any], words: Tensor | None) -> Any:
        """Computes the node from the values of those before it."""
        args = [self.given(a, values) for a in self.args]
        kwargs = {k: self.given(a, values) for k, a in self.kwargs.items()}
        if self.row.wants_out:
            kwargs["out"] = self.specs[0]
        if self.row.draws:
            assert words is not None
            kwargs["key"] = Key(words, self.number)
        found = self.row.function(*args, **kwargs)
        if not self.several:
            return self.checked(found, self.specs[0])
        return [self.checked(f, spec) for f, spec in zip(found, self.specs, strict=True)]

    def given(self, argument: Any, values: dict[Any, Any]) -> Any:
        """An argument with values in place of nodes."""
        found = filled(argument, values)
        if self.computes_in is not None and isinstance(found, Tensor):
            return found.cast(self.computes_in)
        return found

    def checked(self, value: Any, spec: Spec | None) -> Any:
        """A result in its dtype. Raises: InternalError for another shape than PyTorch's."""
        if value is None or spec is None:
            return value
        if len(value.shape) != len(spec.shape) or any(
            wanted is not None and wanted != size for wanted, size in zip(spec.shape, value.shape)
        ):
            raise InternalError(
                f"aten.{self.name} gives {list(value.shape)}; {list(spec.shape)} is wanted"
            )
        return value.cast(spec.dtype)


def arguments_of(node: Any, torch: Any) -> tuple[list[Any], dict[str, Any]]:
    """The arguments of a node: by position where the schema has a position, dtypes as Aster's."""

    def change(value: Any) -> Any:
        return aster_dtype(value) if isinstance(value, torch.dtype) else value

    args = [change(a) for a in node.args]
    rest = {k: change(a) for k, a in node.kwargs.items() if k not in PLACEMENT}
    for place, argument in enumerate(node.target._schema.arguments):
        if argument.kwarg_only or not rest.keys() - {a.name for a in only_by_name(node)}:
            break
        if place == len(args):
            args.append(rest.pop(argument.name, argument.default_value))
    return args, rest


def only_by_name(node: Any) -> list[Any]:
    """The arguments of an operator that have no position."""
    return [a for a in node.target._schema.arguments if a.kwarg_only]


class Graph:
    """The nodes of a graph in running order; `run` gives the values of some of them.

    Raises: UnsupportedError, which names it, for an operator that there is none of here.
    """

    def __init__(self, nodes: list[Any], torch: Any) -> None:
        self.steps: list[tuple[Any, Callable[[dict[Any, Any], Any], Any]]] = []
        self.draws = 0
        for node in nodes:
            if node.op == "call_function":
                self.steps.append((node, self.step_of(node, torch)))

    def step_of(self, node: Any, torch: Any) -> Callable[[dict[Any, Any], Any], Any]:
        """Makes the function that computes a node."""
        if node.target is operator.getitem:
            source, place = node.args
            return lambda values, words: values[source][place]
        name = name_of(node)
        if name in SIZES or is_number(node.meta.get("val")):
            function = SIZES.get(name, node.target)
            return lambda values, words: function(*[filled(a, values) for a in node.args])
        if name not in OPERATORS:
            raise UnsupportedError(f"torch.compile: operator {node.target} is not there")
        call = Call(node, torch, self.draws)
        self.draws += call.row.draws
        return call.run

    def run(self, values: dict[Any, Any], wanted: list[Any], words: Tensor | None) -> list[Any]:
        """The values of the nodes `wanted`, for those of arguments."""
        for node, step in self.steps:
            values[node] = step(values, words)
        return [values[node] for node in wanted]
