"""Runs graphs of ONNX: on NumPy arrays what shapes are computed from, on Tensors the rest.

Receives a `Model` and values for the inputs of its graph; returns values of its outputs. Tensors
are lazy, so a run makes a graph of Aster's and computes nothing, unless an operator wants numbers:
`reads` counts how often that happened, and a run without any may be recorded. Values that all come
from constants are computed once and kept with their node.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from aster_ml import Tensor
from aster_ml.config import LOOP_LIMIT
from aster_ml.errors import (
    AsterError,
    DTypeError,
    FormatError,
    InternalError,
    JitError,
    OutOfMemoryError,
    UnsupportedError,
)
from aster_ml.onnx.ops.model import (
    Function,
    Graph,
    Initializer,
    Model,
    Node,
    Reader,
    bind_references,
    onnx_package,
)
from aster_ml.onnx.ops.registry import Array, Operator, Value
from aster_ml.onnx.ops.types import NUMBERS, is_ours, number_of, to_tensor

# What an operator raises for values that it cannot take.
MISTAKES = (AsterError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
NOT_OURS = (InternalError, JitError, OutOfMemoryError)
# Arrays of at most so many elements are computed on the host; more had better be tensors.
MOST_ON_HOST = 4096
Scope = ChainMap[str, Value]


class Call:
    """Context of an operator while it runs: its node, and how to run graphs."""

    def __init__(self, execution: Execution, node: Node, scope: Scope, given: Mapping[str, Any]):
        self.execution, self.node, self.scope, self.given = execution, node, scope, given
        self.version = node.version

    @property
    def device(self) -> str | None:
        """Where tensors are made."""
        return self.execution.device

    def wants(self, number: int) -> bool:
        """Whether anybody asks for output `number`."""
        return number < len(self.node.outputs) and bool(self.node.outputs[number])

    @property
    def results(self) -> int:
        """Number of outputs of the node."""
        return len(self.node.outputs)

    def read(self, value: Value) -> Array:
        """The numbers of a value."""
        return self.execution.read(value)

    def iterate(self) -> None:
        """Counts one more iteration of a loop.

        Raises: UnsupportedError where a run has made more than LOOP_LIMIT.
        """
        self.execution.iterations += 1
        if LOOP_LIMIT and self.execution.iterations > LOOP_LIMIT.value:
            raise UnsupportedError(
                f"its loops are not at their end after {LOOP_LIMIT.value} iterations; "
                f"LOOP_LIMIT={4 * LOOP_LIMIT.value} would allow more, 0 any number"
            )

    def draws(self) -> None:
        """Notes that random numbers are drawn, so that the run is not recorded."""
        self.execution.drew = True

    def tensor(self, value: Value) -> Tensor:
        """A value as a tensor."""
        return self.execution.tensor(value)

    def prepared(self, make: Callable[[], Any]) -> Any:
        """Makes a value from the attributes of the node, once."""
        if self.node.prepared is None:
            self.node.prepared = make()
        return self.node.prepared

    def run(self, graph: Graph, values: Sequence[Value]) -> list[Value]:
        """The outputs of a graph within this node."""
        if len(values) > len(graph.inputs):
            raise FormatError(
                f"{len(values)} values for the {len(graph.inputs)} inputs of a graph", graph.place
            )
        scope = self.scope.new_child(dict(zip(graph.inputs, values)))
        return self.execution.run(graph, scope, self.given)


class Execution:
    """One way of running a model: the device of its tensors and what is kept between runs."""

    def __init__(self, model: Model, device: str | None = None) -> None:
        self.model, self.device = model, device
        self.reads = self.iterations = 0
        self.drew = False
        # Arrays that are constant, by id, and the tensors made of them.
        self.held: dict[int, tuple[Array, Any]] = {}
        self.bodies: dict[Any, Function] = {}
        mark_constants(model.graph, frozenset())

    def tensor(self, value: Value) -> Tensor:
        """A value as a tensor; that of a constant is made once."""
        if isinstance(value, Tensor):
            return value
        found = self.held.get(id(value))
        if found is None:
            return to_tensor(value, self.device)
        if found[1] is None:
            found = self.held[id(value)] = value, to_tensor(value, self.device)
        return found[1]

    def read(self, value: Value) -> Array:
        """The numbers of a value. Those of a tensor are computed, and the run is not recorded."""
        if isinstance(value, Tensor):
            self.reads += 1
            return value.numpy()
        return np.asarray(value)

    def run(self, graph: Graph, scope: Scope, given: Mapping[str, Any]) -> list[Value]:
        """The outputs of a graph whose inputs stand in `scope`."""
        if graph is self.model.graph:
            self.iterations = 0
        for name, item in graph.initializers.items():
            scope.maps[0].setdefault(name, item)
        for node in graph.nodes:
            self.step(node, scope, given)
        return [self.value(name, scope) for name in graph.outputs]

    def value(self, name: str, scope: Scope) -> Value:
        """A value by its name; "" is an absent one."""
        if not name:
            return None
        try:
            value = scope[name]
        except KeyError:
            # A graph in a node, or an operator, gives fewer outputs than are named.
            raise FormatError(f"no node gave {name!r}", "", self.model.path) from None
        if isinstance(value, Initializer):
            value = value.array()
            self.held.setdefault(id(value), (value, None))
        return value

    def step(self, node: Node, scope: Scope, given: Mapping[str, Any]) -> None:
        """Runs one node. Raises: FormatError, which names it, for values that it cannot take."""
        results = node.result
        if results is None:
            try:
                results = self.outputs_of(node, scope, given)
            except NOT_OURS:
                raise
            except MISTAKES as error:
                if isinstance(error, FormatError) and error.place:
                    raise
                if isinstance(error, UnsupportedError):
                    raise UnsupportedError(f"{node.place}: {error}") from error
                reason = str(error) or type(error).__name__
                raise FormatError(reason, node.place, self.model.path) from error
            if node.is_constant:
                node.result = results
                self.keep(node, results, scope)
        scope.update(zip(node.outputs, results))

    def keep(self, node: Node, results: list[Value], scope: Scope) -> None:
        """Takes note of what came of constants.

        Tensors that take no more memory than what they are made of are computed now; others
        (weights of int8 that are unpacked) stay as they are, a part of what reads them.
        """
        before = sum([nbytes(self.value(name, scope)) for name in node.inputs])
        for value in results:
            if isinstance(value, np.ndarray):
                self.held.setdefault(id(value), (value, None))
            elif isinstance(value, Tensor) and nbytes(value) <= before:
                value.realize()

    def outputs_of(self, node: Node, scope: Scope, given: Mapping[str, Any]) -> list[Value]:
        """The outputs of one node."""
        inputs = [self.value(name, scope) for name in node.inputs]
        attributes = bind_references(node, given)
        declared = self.model.functions.get((node.domain, node.kind))
        if declared is not None:
            return self.call(declared, inputs, attributes)
        host = node.host
        on_host = all(isinstance(value, np.ndarray) or value is None for value in inputs)
        foreign = any(isinstance(value, np.ndarray) and not is_ours(value) for value in inputs)
        if host is not None and on_host and (foreign or node.is_constant or self.is_small(inputs)):
            found = self.apply(host, node, inputs, attributes, scope, given)
            if found is not NotImplemented:
                return found
        if node.operator is not None:
            return self.apply(node.operator, node, inputs, attributes, scope, given)
        if host is not None:
            return self.apply(host, node, list(map(self.read, inputs)), attributes, scope, given)
        return self.call(self.body(node, inputs), inputs, attributes)

    @staticmethod
    def is_small(values: list[Value]) -> bool:
        """Whether arrays are such as shapes are computed from."""
        return all(value is None or value.size <= MOST_ON_HOST for value in values)

    def apply(
        self,
        operator: Operator,
        node: Node,
        inputs: list[Value],
        attributes: dict[str, Any],
        scope: Scope,
        given: Mapping[str, Any],
    ) -> Any:
        """Calls the function of an operator."""
        positional = operator.positional
        named = dict(zip(positional, inputs))
        rest = inputs[len(positional) :]
        if rest and not operator.variadic:
            if any(value is not None for value in rest):
                raise FormatError(f"{len(inputs)} inputs, it knows {len(positional)}")
        keywords: dict[str, Any] = {}
        for name, value in attributes.items():
            if name in operator.keywords:
                keywords[name] = value
            elif name in positional and named.get(name) is None:
                named[name] = value if value.__class__ is str else np.asarray(value)
            elif name not in IGNORED:
                raise UnsupportedError(f"its attribute {name} is not known here")
        if operator.needs_call:
            keywords["call"] = Call(self, node, scope, given)
        convert = self.converted
        arguments = {n: convert(operator, n, v) for n, v in named.items() if v is not None}
        for name in named.keys() & operator.nullable - arguments.keys():
            arguments[name] = None
        if rest and operator.variadic:
            first = [arguments.get(n) for n in positional]
            more = [convert(operator, "", value) for value in rest]
            result = operator.function(*first, *more, **keywords)
        else:
            result = operator.function(**arguments, **keywords)
        if result is NotImplemented:
            return result
        return list(result) if result.__class__ is tuple else [result]

    def converted(self, operator: Operator, name: str, value: Value) -> Value:
        """An input as the function of an operator wants it."""
        if operator.is_host:
            return value
        if name in operator.host:
            return self.read(value)
        if operator.raw or value.__class__ in (list, str) or value is None:
            return value
        return self.tensor(value)

    def call(
        self, function: Function, inputs: list[Value], attributes: dict[str, Any]
    ) -> list[Value]:
        """The outputs of an operator that is defined by a graph."""
        graph = function.graph
        values = dict.fromkeys(graph.inputs)
        values.update(zip(graph.inputs, inputs))
        found = self.run(graph, ChainMap(values), {**function.attributes, **attributes})
        named = dict(zip(graph.outputs, found))
        return [named.get(name) for name in function.outputs]

    def body(self, node: Node, inputs: list[Value]) -> Function:
        """The graph by which ONNX itself defines an operator."""
        schema = node.schema
        types = [type_of(value) for value in inputs]
        key = (id(node), *[None if t is None else t.SerializeToString() for t in types])
        if key not in self.bodies:
            proto = function_proto(node, types)
            reader = Reader(onnx_package().ModelProto(), None, self.model.path)
            latest = onnx_package().defs.onnx_opset_version()
            standard = self.model.opsets.get("", 0) or latest
            reader.opsets = {"": standard, node.domain: node.opset}
            function = reader.function(proto)
            if reader.missing:
                raise UnsupportedError(f"{schema.name} is made of {', '.join(reader.missing)}")
            self.bodies[key] = function
        return self.bodies[key]


def nbytes(value: Value) -> int:
    """Number of bytes of a value."""
    return (
        value.nbytes
        if isinstance(value, np.ndarray)
        else (int(value.nbytes()) if isinstance(value, Tensor) else 0)
    )


# Attributes that say nothing about values.
IGNORED = frozenset({"consumed_inputs"})


def function_proto(node: Node, types: list[Any]) -> Any:
    """The definition of an operator as a FunctionProto, for inputs of these types.

    Raises: UnsupportedError where ONNX has none.
    """
    onnx, schema = onnx_package(), node.schema
    proto = onnx.FunctionProto()
    if schema.has_function:
        versions = [v for v in schema.function_opset_versions if v <= node.opset]
        data = schema.get_function_with_opset_version(
            max(versions or schema.function_opset_versions)
        )
        proto.ParseFromString(data)
        return proto
    versions = schema.context_dependent_function_opset_versions
    version = max([v for v in versions if v <= node.opset] or versions)
    given = [b"" if t is None else t.SerializeToString() for t in types]
    data = schema.get_context_dependent_function_with_opset_version(
        version, node.proto.SerializeToString(), given
    )
    if not data:
        raise UnsupportedError("ONNX does not define it for these inputs")
    proto.ParseFromString(data)
    return proto


def type_of(value: Value) -> Any:
    """The type of a value as a TypeProto; None for an absent one."""
    onnx = onnx_package()
    if value is None:
        return None
    if isinstance(value, list):
        inner = type_of(value[0]) if value else onnx.TypeProto()
        return onnx.helper.make_sequence_type_proto(inner)
    if isinstance(value, Tensor):
        return onnx.helper.make_tensor_type_proto(number_of(value.dtype), value.shape)
    if value.dtype not in NUMBERS:
        raise DTypeError(f"{value.dtype} is no element type of ONNX")
    return onnx.helper.make_tensor_type_proto(NUMBERS[value.dtype], value.shape)


def mark_constants(graph: Graph, outer: frozenset[str]) -> None:
    """Notes of each node whether all that it reads is constant."""
    constant = {*outer, *(graph.initializers.keys() - graph.inputs.keys())}
    for node in graph.nodes:
        inner = list(node.graphs())
        for part in inner:
            mark_constants(part, frozenset(constant))
        operator = node.operator
        node.is_constant = (
            not inner
            and (operator is None or not operator.is_random)
            and all(not name or name in constant for name in node.inputs)
            and (operator is not None or node.host is not None)
        )
        if node.is_constant:
            constant |= {name for name in node.outputs if name}
