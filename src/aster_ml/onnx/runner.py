"""Opens a model of ONNX and runs it: OnnxRunner.

Receives files of the format (through the package `onnx`, extra `onnx`); returns tensors. Graphs are
read in `onnx/ops/model.py` and run in `onnx/ops/run.py`; each operator is one function of
Tensors in a module of its family there. A graph whose values need not be looked at on the way is
recorded as one native graph for each combination of shapes (`TinyJit`), and replayed.
"""

from __future__ import annotations

from collections import ChainMap, OrderedDict
from typing import Any

import numpy as np

from aster_ml import Tensor
from aster_ml.errors import ArgumentError, AsterError, DTypeError, ShapeError
from aster_ml.onnx.ops.dynamic import Dynamic, axes_of, range_above, range_around
from aster_ml.onnx.ops.families import FAMILIES
from aster_ml.onnx.ops.model import Graph, Model, Node, Spec, read_model
from aster_ml.onnx.ops.recorded import Again, Recorded
from aster_ml.onnx.ops.registry import Array, Value
from aster_ml.onnx.ops.run import Execution
from aster_ml.onnx.ops.types import ASTER, NUMPY, element_type, is_ours

# So many combinations of shapes and small numbers are kept recorded; past that the oldest goes.
MOST_RECORDED = 32
# So many combinations have recordings of their own, whose kernels know the sizes; for the next ones
# there is one recording with variables.
OWN_RECORDINGS = 2
# An input of at most so many integers from which shapes are computed is looked at before a run.
MOST_LOOKED_AT = 64
# What is imported for its operators.
assert FAMILIES


class OnnxRunner:
    """A model of ONNX, ready to run: `runner({"input": x})` gives a dict of output name -> Tensor.

    `model` is a path, bytes or a `ModelProto`. Tensors of the model are made on `device`, the
    default one without it. `graph_inputs` and `graph_outputs` say what goes in and comes out.

    Raises: FileMissingError; FormatError, with path, place and reason, for a file that is damaged;
    UnsupportedError, which names operators that are absent and the nodes that want them; all of
    these before anything runs.
    """

    def __init__(self, model: Any, device: str | None = None) -> None:
        self.model: Model = read_model(model)
        self.device = device
        self.execution = Execution(self.model, device)
        graph = self.model.graph
        known = graph.initializers.keys()
        self.graph_inputs = {n: spec for n, spec in graph.inputs.items() if n not in known}
        self.graph_outputs = dict(graph.outputs)
        self.looked_at = inputs_of_shapes(graph)
        self.used = {*graph.outputs}.union(*[node.inputs for node in self.model.walk()])
        self.recorded: OrderedDict[Any, Recorded | None] = OrderedDict()
        # Recordings for all sizes of axes that are no fixed numbers, and why there are none.
        self.dynamic: OrderedDict[Any, Dynamic] = OrderedDict()
        self.why_not_dynamic = ""
        # What answers a call that is like the last one.
        self.again: Again | None = None

    @property
    def graph_nodes(self) -> list[Node]:
        """The nodes of the main graph in running order."""
        return self.model.graph.nodes

    def to(self, device: str | None) -> OnnxRunner:
        """Runs on this device from now on."""
        if device != self.device:
            self.device, self.execution = device, Execution(self.model, device)
            for node in self.model.walk():
                node.result = node.prepared = None
            self.recorded.clear()
            self.dynamic.clear()
            self.again = None
        return self

    def get_empty_input_data(
        self, device: str | None = None, dtype: Any = None
    ) -> dict[str, Tensor]:
        """A tensor without values for each input; axes that are not fixed have one element."""
        return {
            name: Tensor.empty(
                *[size if isinstance(size, int) else 1 for size in spec.shape or ()],
                device=device or self.device,
                dtype=dtype or element_type(spec.element),
            )
            for name, spec in self.graph_inputs.items()
        }

    def __call__(self, inputs: dict[str, Any], debug: int = 0) -> dict[str, Any]:
        """Runs the model: input name -> Tensor, array or number; output name -> Tensor.

        A sequence is a list of these, a map a dict. `debug` is there for programs of tinygrad;
        DEBUG=2 shows kernels.

        Raises: ArgumentError for inputs that are missing or unknown, ShapeError and DTypeError for
        those that do not fit, FormatError, which names the node, for what a node cannot take.
        """
        if self.again is not None:
            answer = self.again(inputs)
            if answer is not None:
                return answer
        values = self.given(inputs)
        tensors = {n: v for n, v in values.items() if isinstance(v, Tensor)}
        key = tuple(
            [
                (n, v.shape, v.dtype) if isinstance(v, Tensor) else (n, frozen(v))
                for n, v in values.items()
            ]
        )
        if key in self.recorded:
            recorded = self.recorded[key]
            if recorded is None:
                return self.run(values)[0]
            found = recorded(list(tensors.values()))
            self.again = recorded.next(inputs, list(tensors.values()))
            return found
        if len(self.recorded) >= OWN_RECORDINGS:
            dynamic = self.run_dynamic(values)
            if dynamic is not None:
                return dynamic
        result, is_recordable = self.run_plain(values)
        while len(self.recorded) >= MOST_RECORDED:
            self.recorded.popitem(last=False)
        arrays = {n: v for n, v in values.items() if not isinstance(v, Tensor)}
        made = None
        if is_recordable and tensors:
            made = Recorded(self.execution, list(tensors), arrays, result)
        self.recorded[key] = made
        return result

    def run_plain(self, values: dict[str, Value]) -> tuple[dict[str, Any], bool]:
        """Outputs, computed, and whether no numbers were looked at on the way."""
        result, is_recordable = self.run(values)
        for value in result.values():
            for tensor in value if isinstance(value, list) else [value]:
                if isinstance(tensor, Tensor):
                    tensor.realize()
        return result, is_recordable

    def run_dynamic(self, values: dict[str, Value]) -> dict[str, Any] | None:
        """Outputs by a recording for all sizes; None, and `why_not_dynamic`, where none can be.

        Its first outputs are held to those of a run for these very sizes.
        """
        try:
            axes, sizes = axes_of(values, self.model.graph.inputs)
            if not sizes:
                return None
            others = tuple([(n, frozen(v)) for n, v in values.items() if not isinstance(v, Tensor)])
            known = self.dynamic.get((axes, others))
            if known is not None and known.holds(sizes):
                return known(values, sizes)
        except AsterError as error:
            self.why_not_dynamic = str(error) or type(error).__name__
            return None
        if self.why_not_dynamic:
            return None
        right, is_recordable = self.run_plain(values)
        if not is_recordable or any(not isinstance(v, Tensor) for v in right.values()):
            self.why_not_dynamic = "numbers are looked at on the way, or drawn"
            return None
        for around in (range_around, range_above):
            ranges = {name: around(size) for name, size in sizes.items()}
            if known is not None:
                ranges = {name: r.with_all(known.ranges[name]) for name, r in ranges.items()}
            try:
                made = Dynamic(self.execution, values, axes, ranges, right)
                made.check(made(values, sizes), right)
            except AsterError as error:
                self.why_not_dynamic = str(error) or type(error).__name__
                continue
            while len(self.dynamic) >= MOST_RECORDED:
                self.dynamic.popitem(last=False)
            self.dynamic[axes, others] = made
            self.why_not_dynamic = ""
            return right
        return None

    def run(self, values: dict[str, Value]) -> tuple[dict[str, Any], bool]:
        """Outputs for checked inputs, not computed yet, and whether no numbers were looked at."""
        execution = self.execution
        execution.reads = 0
        found = execution.run(self.model.graph, ChainMap(dict(values)), {})
        result = {name: self.handed_out(v) for name, v in zip(self.graph_outputs, found)}
        return result, not execution.reads and not execution.drew

    def handed_out(self, value: Value) -> Any:
        """An output as the caller gets it."""
        if isinstance(value, list):
            return [self.handed_out(item) for item in value]
        if isinstance(value, np.ndarray) and is_ours(value):
            return self.execution.tensor(value)
        return value

    def given(self, inputs: dict[str, Any]) -> dict[str, Value]:
        """The inputs of a call, checked and made tensors."""
        absent = [
            n for n, s in self.graph_inputs.items() if n not in inputs and s.kind != "optional"
        ]
        unknown = inputs.keys() - self.model.graph.inputs.keys()
        if absent or unknown:
            raise ArgumentError(
                f"inputs {sorted(inputs)} given; the model wants {sorted(self.graph_inputs)}"
            )
        values = {}
        for name, spec in self.model.graph.inputs.items():
            if name in inputs and name in self.used:
                values[name] = self.input_value(inputs[name], spec)
            elif spec.kind == "optional":
                values[name] = None
        return values

    def input_value(self, value: Any, spec: Spec) -> Value:
        """One input of a call: a tensor, or an array where shapes may be computed from it."""
        if spec.kind == "map" or isinstance(value, dict):
            if spec.kind != "map" or not isinstance(value, dict):
                raise ArgumentError(f"input {spec.name!r} is {spec}, given {type(value).__name__}")
            return value
        if value is None or (isinstance(value, (list, tuple)) and spec.kind != "tensor"):
            return (
                value if value is None else [self.input_value(v, element_of(spec)) for v in value]
            )
        if spec.name in self.looked_at and spec.element in NUMPY:
            if not isinstance(value, Tensor) or value.numel() <= MOST_LOOKED_AT:
                array = value.numpy() if isinstance(value, Tensor) else np.asarray(value)
                if array.size <= MOST_LOOKED_AT:
                    check_shape(array.shape, spec)
                    return array.astype(NUMPY[spec.element])
        if not isinstance(value, Tensor):
            if spec.element in NUMPY and spec.element not in ASTER:
                return np.asarray(value, NUMPY[spec.element])
            array = value if isinstance(value, np.ndarray) else np.asarray(value)
            if spec.element in ASTER and not isinstance(value, np.ndarray):
                array = array.astype(NUMPY[spec.element])
            value = Tensor(np.ascontiguousarray(array).reshape(array.shape), device=self.device)
        if spec.element in ASTER and value.dtype is not ASTER[spec.element]:
            raise DTypeError(
                f"input {spec.name!r} is {value.dtype.name}; {ASTER[spec.element].name} is wanted"
            )
        check_shape(value.shape, spec)
        # A recording wants its inputs in memory, and one number may be a constant.
        return value if value.shape else value.contiguous().realize()


def element_of(spec: Spec) -> Spec:
    """Declaration of the elements of a sequence."""
    return Spec(spec.name, spec.element, spec.shape)


def frozen(value: Value) -> Any:
    """An input that is no tensor, as a part of a key."""
    if isinstance(value, list):
        return tuple([(v.shape, v.dtype) if isinstance(v, Tensor) else frozen(v) for v in value])
    if isinstance(value, dict):
        return tuple(value.items())
    if not isinstance(value, np.ndarray):
        return value
    data: Any = tuple(value.reshape(-1)) if value.dtype == np.object_ else value.tobytes()
    return value.shape, value.dtype.name, data


def check_shape(shape: tuple[Any, ...], spec: Spec) -> None:
    """Raises ShapeError where a shape is none that an input may have."""
    wanted = spec.shape
    if wanted is None:
        return
    if len(wanted) != len(shape) or any(
        isinstance(w, int) and w != s for w, s in zip(wanted, shape)
    ):
        raise ShapeError(f"input {spec.name!r} has the shape {list(shape)}; it should be {spec}")


def inputs_of_shapes(graph: Graph) -> set[str]:
    """Integer inputs from which shapes, axes or conditions are computed on the host."""
    wanted: set[str] = set()
    makers: dict[str, Node] = {}
    pending = [graph]
    while pending:
        for node in pending.pop().nodes:
            makers.update(dict.fromkeys(node.outputs, node))
            pending += node.graphs()
            if node.operator is not None:
                names = node.operator.positional
                wanted |= {x for n, x in zip(names, node.inputs) if n in node.operator.host and x}
    seen: set[str] = set()
    while wanted:
        name = wanted.pop()
        seen.add(name)
        node_of_name = makers.get(name)
        if node_of_name is not None and node_of_name.host is not None:
            wanted |= {x for x in node_of_name.inputs if x} - seen
    return seen & graph.inputs.keys()


def array_of(value: Any) -> Array:
    """A value that a model gave, as an array."""
    return value.numpy() if isinstance(value, Tensor) else np.asarray(value)
