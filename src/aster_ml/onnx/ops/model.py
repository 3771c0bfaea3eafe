"""Reads a model file of ONNX, checked, as graphs of nodes whose operators are known.

Receives a path, bytes or a ModelProto of the package `onnx`, which owns the format; returns a
`Model`. All that can be wrong with a file is found here, before anything runs: FormatError says
what, where in the graph and in which file; UnsupportedError names every operator that is absent and
the nodes that want it. Initialisers are read when they are first used. What the operators compute
does not belong here.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from aster_ml.errors import FileMissingError, FormatError, UnsupportedError
from aster_ml.onnx.ops.registry import (
    DOMAINS,
    HOST,
    OPERATORS,
    STANDARD,
    Array,
    Operator,
    lookup,
)
from aster_ml.onnx.ops.strict import (
    EARLIER,
    wrong_attributes,
    wrong_data,
    wrong_head,
    wrong_value,
)
from aster_ml.onnx.ops.types import NUMPY, STRING

# No axis and no tensor of a file may claim more than this.
MOST_ELEMENTS = 1 << 40
# Attributes of these kinds, by the number of AttributeProto.AttributeType.
FLOAT, INT, TEXT, TENSOR, GRAPH, SPARSE, TYPE = 1, 2, 3, 4, 5, 11, 13
FLOATS, INTS, TEXTS, TENSORS, GRAPHS = 6, 7, 8, 9, 10


def onnx_package() -> Any:
    """The package `onnx`. Raises: UnsupportedError, which says what installs it."""
    try:
        import onnx
    except ImportError as error:
        raise UnsupportedError(
            "ONNX files are read by the package onnx, which is absent: pip install 'aster-ml[onnx]'"
        ) from error
    return onnx


@dataclass
class Spec:
    """Declaration of a value in a graph: the number of its element type, and its axes.

    An axis is a number, a name, or None. `shape` is None where nothing is said; `kind` is "tensor",
    "sequence", "optional" or "map".
    """

    name: str
    element: int
    shape: tuple[int | str | None, ...] | None
    kind: str = "tensor"

    def __str__(self) -> str:
        dtype = np.dtype(NUMPY[self.element]).name if self.element in NUMPY else "?"
        dtype = "text" if self.element == STRING else dtype
        shape = "" if self.shape is None else str([size or "?" for size in self.shape])
        return f"{dtype}{shape.replace(chr(39), '')}" + ("" if self.kind == "tensor" else " ...")


@dataclass
class Node:
    """One operation: its inputs and outputs by name ("" is an absent one), attributes decoded."""

    domain: str
    kind: str
    name: str
    inputs: list[str]
    outputs: list[str]
    attributes: dict[str, Any]
    defaults: dict[str, Any] = field(default_factory=dict)
    version: int = 0
    opset: int = 0
    operator: Operator | None = None
    host: Operator | None = None
    schema: Any = None
    proto: Any = None
    # Whether all that it reads is constant, and what came of it then.
    is_constant: bool = False
    result: list[Any] | None = None
    # What its operator made of its attributes.
    prepared: Any = None

    @property
    def place(self) -> str:
        """Name in messages."""
        label = self.name or (self.outputs[0] if self.outputs else "")
        return f"node {label!r} ({self.kind})" if label else f"a node ({self.kind})"

    def graphs(self) -> Iterator[Graph]:
        """The graphs among its attributes."""
        for value in self.attributes.values():
            if isinstance(value, Graph):
                yield value
            elif isinstance(value, list):
                yield from (item for item in value if isinstance(item, Graph))


@dataclass
class Graph:
    """Nodes in running order, with what they start from and what is asked for."""

    name: str
    inputs: dict[str, Spec]
    outputs: dict[str, Spec]
    initializers: dict[str, Initializer]
    nodes: list[Node]
    place: str = ""

    def free_names(self) -> set[str]:
        """Names that it reads of the graphs around it."""
        known = {*self.inputs, *self.initializers}
        free: set[str] = set()
        for node in self.nodes:
            free |= {name for name in node.inputs if name} - known
            for inner in node.graphs():
                free |= inner.free_names() - known
            known.update(node.outputs)
        return free | (set(self.outputs) - known)


@dataclass
class Initializer:
    """A constant of a graph, read from the file when it is first asked for."""

    name: str
    proto: Any
    folder: Path | None
    path: str
    value: Array | None = None

    def check(self) -> None:
        """Raises FormatError for dims, types and sizes of data that cannot be."""
        shape = tuple(self.proto.dims)
        check_sizes(shape, self.place, self.path)
        if self.proto.data_type not in NUMPY:
            self.refuse(f"element type {self.proto.data_type} is unknown")
        wrong = wrong_data(self.proto)
        if wrong is not None:
            self.refuse(wrong)
        if self.proto.data_location == 1:
            external_place(self)
        elif self.proto.HasField("raw_data"):
            bits = 8 * np.dtype(NUMPY[self.proto.data_type]).itemsize
            bits = BITS.get(self.proto.data_type, bits)
            wanted = (int(np.prod(shape, dtype=object)) * bits + 7) // 8
            if len(self.proto.raw_data) != wanted:
                self.refuse(
                    f"{list(shape)} elements take {wanted} bytes, "
                    f"and {len(self.proto.raw_data)} are there"
                )

    @property
    def place(self) -> str:
        """Name in messages."""
        return f"initializer {self.name!r}"

    def refuse(self, reason: str) -> None:
        """Raises FormatError."""
        raise FormatError(reason, self.place, self.path)

    def array(self) -> Array:
        """Its values. Raises: FormatError."""
        if self.value is None:
            if self.proto.data_location == 1:
                self.value = external_array(self)
            else:
                try:
                    self.value = np.asarray(onnx_package().numpy_helper.to_array(self.proto))
                except (ValueError, TypeError, KeyError) as error:
                    self.refuse(str(error))
            assert self.value is not None
            # The bytes of the file are not kept beside the values made of them.
            self.proto = None
        return self.value


# Element types of less than a byte, by their number.
BITS = {21: 4, 22: 4, 23: 4, 25: 2, 26: 2}


def check_sizes(shape: tuple[int, ...], place: str, path: str) -> None:
    """Raises FormatError for a negative axis, and for more elements than memory has addresses."""
    total = 1
    for size in shape:
        if size < 0:
            raise FormatError(f"a negative axis in {list(shape)}", place, path)
        total *= max(size, 1)
    if total > MOST_ELEMENTS:
        raise FormatError(f"{list(shape)} has more elements than any machine holds", place, path)


def external_place(item: Initializer) -> tuple[Path, int, int | None]:
    """The file, offset and length of data that lies outside of the model.

    Raises: FormatError for a path that leaves the model's folder, or data past a file's end;
    FileMissingError.
    """
    entries = {entry.key: entry.value for entry in item.proto.external_data}
    location = entries.get("location", "")
    if item.folder is None:
        item.refuse(f"its data is in the file {location!r}; give the path of the model, not bytes")
    assert item.folder is not None
    if not location or os.path.isabs(location) or "\0" in location:
        item.refuse(f"its data is said to be in {location!r}; a path within the model's folder is")
    folder = Path(os.path.realpath(item.folder))
    file = Path(os.path.realpath(folder / location))
    if folder not in file.parents:
        item.refuse(f"the file of its data, {location!r}, lies outside of the model's folder")
    if not file.is_file():
        raise FileMissingError(
            f"the file of its data, {location!r}, is missing", item.place, item.path
        )
    try:
        offset = int(entries.get("offset", "0"))
        length = int(entries["length"]) if "length" in entries else None
    except ValueError:
        offset, length = -1, None
    size = file.stat().st_size
    if offset < 0 or (length is not None and length < 0) or offset + (length or 0) > size:
        item.refuse(
            f"offset {entries.get('offset')} and length {entries.get('length')} in "
            f"{location!r}, which has {size} bytes"
        )
    return file, offset, length


def external_array(item: Initializer) -> Array:
    """Data outside of the model, mapped into memory and not copied."""
    file, offset, length = external_place(item)
    shape, number = tuple(item.proto.dims), item.proto.data_type
    count = int(np.prod(shape, dtype=object))
    bits = BITS.get(number, 8 * np.dtype(NUMPY[number]).itemsize)
    if number == STRING:
        item.refuse("text does not lie outside of a model")
    nbytes = (count * bits + 7) // 8
    if (length is not None and length != nbytes) or offset + nbytes > file.stat().st_size:
        item.refuse(f"{list(shape)} takes {nbytes} bytes, and {length} are said to be there")
    if not nbytes:
        return np.zeros(shape, NUMPY[number])
    data = np.memmap(file, np.uint8, "r", offset, (nbytes,))
    if bits < 8:
        onnx = onnx_package()
        packed = onnx.TensorProto(data_type=number, dims=shape, raw_data=data.tobytes())
        return np.asarray(onnx.numpy_helper.to_array(packed))
    return data.view(NUMPY[number]).reshape(shape)


@dataclass
class Model:
    """A file that was read: its main graph, its functions, what it needs and where it is from."""

    graph: Graph
    opsets: dict[str, int]
    functions: dict[tuple[str, str], Function]
    path: str
    producer: str = ""
    missing: dict[str, list[str]] = field(default_factory=dict)

    def walk(self) -> Iterator[Node]:
        """Every node, those of inner graphs and of functions included."""
        pending = [self.graph, *[function.graph for function in self.functions.values()]]
        while pending:
            graph = pending.pop()
            for node in graph.nodes:
                yield node
                pending += node.graphs()


@dataclass
class Function:
    """An operator that the file itself defines by a graph."""

    graph: Graph
    outputs: list[str]
    attributes: dict[str, Any]
    calls: set[tuple[str, str]] = field(default_factory=set)


def read_model(source: Any) -> Model:
    """The model of a path, of bytes or of a ModelProto.

    Raises: FileMissingError, FormatError for what is no model or a damaged one, UnsupportedError
    for operators that are absent.
    """
    onnx = onnx_package()
    path, folder, proto = "", None, source
    if isinstance(source, (str, os.PathLike)):
        path = os.fspath(source)
        folder = Path(path).parent
        if not Path(path).exists():
            raise FileMissingError("there is no such file", "", path)
        if not Path(path).is_file():
            raise FormatError("a folder or device, not a file", "", path)
        source = Path(path).read_bytes()
    if isinstance(source, (bytes, bytearray, memoryview)):
        proto = onnx.ModelProto()
        try:
            proto.ParseFromString(bytes(source))
        except Exception as error:
            if type(error).__name__ != "DecodeError":
                raise
            raise FormatError("not an ONNX model, or a truncated one", "protobuf", path) from error
    if not isinstance(proto, onnx.ModelProto):
        raise FormatError(f"a path, bytes or a ModelProto is wanted, given {type(source).__name__}")
    return Reader(proto, folder, path).model()


class Reader:
    """Turns protobuf messages into graphs, and refuses those that make no sense."""

    def __init__(self, proto: Any, folder: Path | None, path: str) -> None:
        self.proto, self.folder, self.path = proto, folder, path
        self.opsets: dict[str, int] = {}
        self.functions: dict[tuple[str, str], Function] = {}
        self.missing: dict[str, list[str]] = {}
        self.declared = {(DOMAINS.get(f.domain, f.domain), f.name): f for f in proto.functions}

    def refuse(self, reason: str, place: str = "") -> None:
        """Raises FormatError."""
        raise FormatError(reason, place, self.path)

    def check_text(self, values: Iterable[Any], place: str) -> None:
        """Raises FormatError where a name is no text: then protobuf hands out its bytes."""
        for value in values:
            if isinstance(value, bytes):
                self.refuse(f"the name {value[:40]!r} is no UTF-8 text", place)

    def model(self) -> Model:
        """The whole model."""
        if not self.proto.HasField("graph"):
            self.refuse("there is no graph in it; not an ONNX model, or a truncated one")
        wrong = wrong_head(self.proto, onnx_package().IR_VERSION)
        if wrong is not None:
            self.refuse(wrong)
        self.opsets = self.versions(self.proto.opset_import)
        for key, function in self.declared.items():
            self.functions[key] = self.function(function)
        self.check_calls()
        graph = self.graph(self.proto.graph, frozenset(), self.opsets, "")
        if self.missing:
            wanted = [
                f"{name} (wanted by {', '.join(nodes[:3])}{' ...' if nodes[3:] else ''})"
                for name, nodes in sorted(self.missing.items())
            ]
            raise UnsupportedError(
                f"{self.path + ': ' if self.path else ''}operators that are not there: "
                + "; ".join(wanted)
            )
        return Model(graph, self.opsets, self.functions, self.path, self.proto.producer_name)

    def versions(self, imports: Any) -> dict[str, int]:
        """Domain -> version of its operators. Raises FormatError for versions that do not exist."""
        defs = onnx_package().defs
        self.check_text([item.domain for item in imports], "opset_import")
        found = {DOMAINS.get(item.domain, item.domain): item.version for item in imports}
        latest = defs.onnx_opset_version()
        version = found.setdefault(STANDARD, latest) if not found else found.get(STANDARD, 1)
        if not 1 <= version <= latest:
            self.refuse(
                f"it wants version {version} of ONNX's operators; "
                f"the package onnx that is installed knows 1 to {latest}",
                "opset_import",
            )
        return found

    def function(self, proto: Any) -> Function:
        """An operator that the file defines."""
        place = f"function {proto.name!r}"
        versions = {
            **self.opsets,
            **(self.versions(proto.opset_import) if proto.opset_import else {}),
        }
        names = [*proto.input, *proto.output]
        self.check_text([*names, proto.name, proto.domain], place)
        if not proto.name:
            self.refuse("a function without a name", place)
        if len(set(proto.input)) != len(proto.input) or "" in names:
            self.refuse("inputs without a name, or two of one name", place)
        graph = Graph(
            proto.name,
            {name: Spec(name, 0, None) for name in proto.input},
            {name: Spec(name, 0, None) for name in proto.output},
            {},
            self.nodes(proto.node, set(proto.input), versions, place),
            place,
        )
        # ONNX's own definitions leave out outputs that nobody asks for.
        made = {*proto.input}.union(*[node.outputs for node in graph.nodes])
        graph.outputs = {name: spec for name, spec in graph.outputs.items() if name in made}
        defaults = {
            a.name: self.attribute(a, versions, frozenset(), place) for a in proto.attribute_proto
        }
        calls = {(node.domain, node.kind) for node in walk_nodes(graph)}
        return Function(graph, list(proto.output), defaults, calls & self.declared.keys())

    def check_calls(self) -> None:
        """Raises FormatError for functions that call themselves, directly or through others."""
        for start in self.functions:
            seen, pending = set(), [start]
            while pending:
                for called in self.functions[pending.pop()].calls:
                    if called == start:
                        self.refuse("it calls itself, which has no end", f"function {start[1]!r}")
                    if called not in seen:
                        seen.add(called)
                        pending.append(called)

    def graph(
        self, proto: Any, outer: frozenset[str], versions: dict[str, int], place: str
    ) -> Graph:
        """A graph and those within it; `outer` are the names that are known around it."""
        where = f"{place}, graph {proto.name!r}" if place else f"graph {proto.name!r}"
        named = [*proto.input, *proto.output, *proto.initializer]
        named += [sparse.values for sparse in proto.sparse_initializer]
        self.check_text([proto.name, *[item.name for item in named]], where)
        if not proto.name:
            self.refuse("a graph without a name", where)
        if not place:
            # Values of inner graphs have types by what is around them.
            for item in (*proto.input, *proto.output, *proto.value_info):
                wrong = wrong_value(item)
                if wrong is not None:
                    self.refuse(wrong, f"value {item.name!r}")
        inputs = {item.name: self.spec(item) for item in proto.input}
        if "" in inputs or len(inputs) != len(proto.input):
            self.refuse("inputs without a name, or two of one name", where)
        initializers = {}
        for tensor in proto.initializer:
            item = Initializer(tensor.name, tensor, self.folder, self.path)
            item.check()
            if tensor.name in initializers or not tensor.name:
                self.refuse("initialisers without a name, or two of one name", where)
            initializers[tensor.name] = item
        for sparse in proto.sparse_initializer:
            name = sparse.values.name
            item = Initializer(name, None, None, self.path, dense(sparse, self.path))
            initializers[name] = item
        known = {*outer, *inputs, *initializers}
        nodes = self.nodes(proto.node, known, versions, where)
        outputs = {item.name: self.spec(item) for item in proto.output}
        graph = Graph(proto.name, inputs, outputs, initializers, nodes, where)
        self.check_outputs(graph, outer)
        return graph

    def check_outputs(self, graph: Graph, outer: frozenset[str]) -> None:
        """Raises FormatError for an output that nothing computes."""
        known = {*outer, *graph.inputs, *graph.initializers}
        known.update(*[node.outputs for node in graph.nodes])
        for name in graph.outputs:
            if name not in known or not name:
                self.refuse(f"its output {name!r} is computed by no node", graph.place)

    def nodes(
        self, protos: Any, known: set[str], versions: dict[str, int], place: str
    ) -> list[Node]:
        """Nodes in running order. Raises FormatError for a name that nothing gives, or a cycle."""
        made = {name for proto in protos for name in proto.output if name}
        computed: set[str] = set()
        nodes = []
        for proto in protos:
            node = self.node(proto, frozenset(known), versions, place)
            wanted = {name for name in node.inputs if name}
            for inner in node.graphs():
                wanted |= inner.free_names()
            for name in sorted(wanted - known):
                if name in made:
                    self.refuse(
                        f"it reads {name!r} before a node computes it: the nodes are in no "
                        "running order, or in a cycle",
                        node.place,
                    )
                self.refuse(f"it reads {name!r}, which nothing gives", node.place)
            twice = computed.intersection(node.outputs)
            if twice:
                self.refuse(f"{min(twice)!r} is computed twice", node.place)
            computed |= {name for name in node.outputs if name}
            known |= computed
            nodes.append(node)
        return nodes

    def node(self, proto: Any, known: frozenset[str], versions: dict[str, int], place: str) -> Node:
        """One node with its operator looked up; one that is absent is noted in `missing`."""
        attributes = [item.name for item in proto.attribute]
        attributes += [item.ref_attr_name for item in proto.attribute]
        names = [proto.domain, proto.op_type, proto.name, *proto.input, *proto.output]
        self.check_text([*names, *attributes], f"{place}: a node")
        wrong = wrong_attributes(proto.attribute, self.schema_of(proto, versions))
        if wrong is not None:
            self.refuse(wrong, f"node {proto.name!r} ({proto.op_type})")
        domain = DOMAINS.get(proto.domain, proto.domain)
        node = Node(domain, proto.op_type, proto.name, list(proto.input), list(proto.output), {})
        node.proto, node.opset = proto, versions.get(domain, 1)
        for attribute in proto.attribute:
            node.attributes[attribute.name] = self.attribute(attribute, versions, known, node.place)
        if (domain, proto.op_type) in self.declared:
            return node
        self.resolve(node, versions)
        if len({name for name in node.outputs if name}) != sum(map(bool, node.outputs)):
            self.refuse("two of its outputs have one name", node.place)
        return node

    def schema_of(self, proto: Any, versions: dict[str, int]) -> Any:
        """The schema of a node's operator in the version of its domain; None without one."""
        defs, domain = onnx_package().defs, DOMAINS.get(proto.domain, proto.domain)
        version = versions.get(domain, 1)
        if (domain, proto.op_type) in self.declared or not defs.has(proto.op_type, domain):
            return None
        try:
            return defs.get_schema(proto.op_type, version, domain)
        except defs.SchemaError:
            return None

    def resolve(self, node: Node, versions: dict[str, int]) -> None:
        """Looks up the function of a node, by the version of its operator, and its defaults."""
        if node.domain not in versions and node.domain in (STANDARD, "ai.onnx.ml"):
            self.refuse(f"opset_import says no version of the domain {node.domain!r}", node.place)
        schema = self.schema_of(node.proto, versions)
        if (
            schema is None
            and node.kind not in EARLIER
            and onnx_package().defs.has(node.kind, node.domain)
        ):
            self.refuse(f"version {node.opset} of its domain has no such operator", node.place)
        node.version = node.opset if schema is None else schema.since_version
        node.operator = lookup(OPERATORS, node.domain, node.kind, node.version)
        node.host = lookup(HOST, node.domain, node.kind, node.version)
        defined = schema is not None and (
            schema.has_function or schema.has_context_dependent_function
        )
        if node.operator is None and node.host is None and not defined:
            label = f"{node.domain + '.' if node.domain else ''}{node.kind}"
            self.missing.setdefault(f"{label} version {node.opset}", []).append(node.place)
            return
        node.schema = schema
        if schema is None:
            return
        if len(node.inputs) > schema.max_input or len(node.outputs) > schema.max_output:
            self.refuse(
                f"{len(node.inputs)} inputs and {len(node.outputs)} outputs; at most "
                f"{schema.max_input} and {schema.max_output} are its own",
                node.place,
            )
        if len(node.inputs) < schema.min_input:
            self.refuse(
                f"{len(node.inputs)} inputs; it has at least {schema.min_input}", node.place
            )
        for name, attribute in schema.attributes.items():
            if name not in node.attributes and attribute.default_value.type:
                node.defaults[name] = self.attribute(
                    attribute.default_value, versions, frozenset(), node.place
                )
            elif name not in node.attributes and attribute.required:
                self.refuse(f"its attribute {name} is missing", node.place)
        unknown = node.attributes.keys() - schema.attributes.keys()
        if unknown:
            self.refuse(f"{', '.join(sorted(unknown))}: no attributes of it", node.place)

    def attribute(
        self, proto: Any, versions: dict[str, int], known: frozenset[str], place: str
    ) -> Any:
        """The value of an attribute; text is str, or bytes where it is no UTF-8."""
        if proto.ref_attr_name:
            return Reference(proto.ref_attr_name)
        kind = proto.type
        if kind in (FLOAT, INT):
            return proto.f if kind == FLOAT else proto.i
        if kind in (FLOATS, INTS):
            return list(proto.floats if kind == FLOATS else proto.ints)
        if kind == TEXT:
            return text(proto.s)
        if kind == TEXTS:
            return [text(item) for item in proto.strings]
        if kind in (TENSOR, TENSORS):
            items = [proto.t] if kind == TENSOR else proto.tensors
            arrays = []
            for item in items:
                lazy = Initializer(f"{place}: {proto.name}", item, self.folder, self.path)
                lazy.check()
                arrays.append(lazy.array())
            return arrays[0] if kind == TENSOR else arrays
        if kind == GRAPH:
            return self.graph(proto.g, known, versions, place)
        if kind == GRAPHS:
            return [self.graph(item, known, versions, place) for item in proto.graphs]
        if kind == SPARSE:
            return dense(proto.sparse_tensor, self.path)
        if kind == TYPE:
            return proto.tp
        self.refuse(f"attribute {proto.name!r} is of kind {kind}, which is unknown", place)
        return None

    def spec(self, proto: Any) -> Spec:
        """Reads the declaration of a value. Raises FormatError for negative axes."""
        kind, tp = "tensor", proto.type
        while tp.WhichOneof("value") in ("sequence_type", "optional_type"):
            kind = "sequence" if tp.WhichOneof("value") == "sequence_type" else "optional"
            tp = tp.sequence_type.elem_type if kind == "sequence" else tp.optional_type.elem_type
        which = tp.WhichOneof("value")
        if which == "map_type" and kind == "tensor":
            kind = "map"
        if which not in ("tensor_type", "sparse_tensor_type"):
            return Spec(proto.name, 0, None, kind)
        tensor = getattr(tp, which)
        shape = None
        if tensor.HasField("shape"):
            axes: list[int | str | None] = []
            for axis in tensor.shape.dim:
                given = axis.WhichOneof("value")
                size = getattr(axis, given) if given else None
                # Some programs write -1 for a size that is not known.
                axes.append(None if size == -1 or isinstance(size, bytes) else size)
            sizes = tuple([size for size in axes if isinstance(size, int)])
            check_sizes(sizes, f"value {proto.name!r}", self.path)
            shape = tuple(axes)
        return Spec(proto.name, tensor.elem_type, shape, kind)


@dataclass(frozen=True)
class Reference:
    """An attribute of a node in a function that is an attribute of the call."""

    name: str


def text(data: bytes) -> str | bytes:
    """Bytes of a file as text, where they are."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data


def dense(sparse: Any, path: str) -> Array:
    """A sparse tensor written out. Raises: FormatError."""
    place = f"sparse tensor {sparse.values.name!r}"
    shape = tuple(sparse.dims)
    check_sizes(shape, place, path)
    if np.prod(shape, dtype=object) > 1 << 28:
        raise FormatError(f"{list(shape)} is too large to write out", place, path)
    parts = []
    for proto in (sparse.values, sparse.indices):
        part = Initializer(proto.name, proto, None, path)
        part.check()
        parts.append(part.array())
    values, places = parts
    result = np.zeros(shape, values.dtype)
    try:
        if places.ndim == 2:
            places = np.ravel_multi_index(tuple(places.T), shape)
        if places.size and places.min() < 0:
            raise IndexError("a negative place")
        result.reshape(-1)[places] = values
    except (ValueError, IndexError, TypeError) as error:
        raise FormatError(f"values outside of {list(shape)}: {error}", place, path) from error
    return result


def walk_nodes(graph: Graph) -> Iterator[Node]:
    """The nodes of a graph and of those within it."""
    pending = [graph]
    while pending:
        for node in pending.pop().nodes:
            yield node
            pending += node.graphs()


def bind_references(node: Node, given: Mapping[str, Any]) -> dict[str, Any]:
    """The attributes of a node, with those of the call put in where it stands in a function."""
    found = dict(node.defaults)
    for name, value in node.attributes.items():
        if not isinstance(value, Reference):
            found[name] = value
        elif value.name in given:
            found[name] = given[value.name]
    return found
