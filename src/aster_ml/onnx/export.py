"""Writes functions of Tensors as ONNX models.

Receives a function and tensors to call it with; returns a `ModelProto` that computes the same for
tensors of these shapes: one ONNX node for a node of Aster's graph, products that are summed as one
Einsum. What the function reads besides its arguments (weights) becomes initialisers. Random numbers
and shapes that are variables have no place in such a file.
"""

from __future__ import annotations

import inspect
import os
import types
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from aster_ml import Tensor, dtypes
from aster_ml.dtype import DType
from aster_ml.errors import ArgumentError, UnsupportedError
from aster_ml.extend import buffer_of, identity_of, written_views
from aster_ml.nn.state import get_parameters
from aster_ml.onnx.carriers import carrier
from aster_ml.onnx.ops.model import onnx_package
from aster_ml.onnx.ops.types import ASTER, INT64, number_of, numpy_type
from aster_ml.uop.graph import toposort
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import GRADIENT_MARKS, Ops

# The version of operators that is written: the first one that has all that is needed.
OPSET, IR = 18, 10
# Passed on as what they are of.
SAME = (Ops.CONTIGUOUS, Ops.CONTIGUOUS_BACKWARD, *GRADIENT_MARKS, Ops.COPY, Ops.NAME)
UNARY = {
    Ops.NEG: "Neg", Ops.SIN: "Sin", Ops.TANH: "Tanh", Ops.SQRT: "Sqrt",
    Ops.RECIPROCAL: "Reciprocal",
}  # fmt: skip
BINARY = {
    Ops.ADD: "Add", Ops.SUB: "Sub", Ops.MUL: "Mul", Ops.FDIV: "Div", Ops.MAX: "Max",
    Ops.POW: "Pow", Ops.CMPLT: "Less", Ops.CMPEQ: "Equal", Ops.XOR: "BitwiseXor",
    Ops.OR: "BitwiseOr", Ops.AND: "BitwiseAnd",
}  # fmt: skip
OF_BOOLS = {
    Ops.ADD: "Or", Ops.MUL: "And", Ops.MAX: "Or", Ops.XOR: "Xor", Ops.OR: "Or", Ops.AND: "And",
    Ops.CMPEQ: "Equal",
}  # fmt: skip
REDUCTIONS = {Ops.ADD: "ReduceSum", Ops.MAX: "ReduceMax", Ops.MUL: "ReduceProd"}
# Of booleans as the numbers 0 and 1: any of them is their greatest, all of them their product.
OF_BOOL_AXES = {
    Ops.ADD: "ReduceMax", Ops.OR: "ReduceMax", Ops.MAX: "ReduceMax", Ops.MUL: "ReduceProd",
    Ops.AND: "ReduceProd",
}  # fmt: skip
MEETINGS = {Ops.ADD: "add", Ops.MAX: "max"}
# Stands for memory that no value was written to yet, and for what is computed from it.
UNWRITTEN = "<unwritten>"
COMPARISONS = frozenset({"Less", "Equal"})
UNSIGNED_OF = {1: dtypes.uint8, 2: dtypes.uint16, 4: dtypes.uint32, 8: dtypes.uint64}
LETTERS = "abcdefghijklmnopqrstuvwxyz"


def to_onnx(
    function: Callable[..., Any],
    inputs: Tensor | Sequence[Tensor] | Mapping[str, Tensor],
    path: str | os.PathLike[str] | None = None,
) -> Any:
    """The ONNX model of a function, for tensors of the shapes and dtypes of `inputs`.

    Inputs of the model have the names of the mapping (whose tensors are given by name), or those of
    the function's parameters; outputs the keys of a dict that it returns, or output0, output1, ...
    With a `path` the file is written too. The result has passed `onnx.checker`.

    Raises: ArgumentError where an input does not reach a result, which happens too when the
    function takes numbers out of a tensor (`numpy`, `item`); UnsupportedError for what ONNX has no
    operator for, random numbers among it.
    """
    names, tensors, by_name = named_inputs(function, inputs)
    compute_weights(function)
    given = [tensor.detach().clone().contiguous().realize() for tensor in tensors]
    found = function(**dict(zip(names, given))) if by_name else function(*given)
    results = named_results(found)
    writer = GraphWriter(dict(zip(names, given)))
    model = writer.model(results)
    onnx_package().checker.check_model(model, full_check=True)
    if path is not None:
        Path(path).write_bytes(model.SerializeToString())
    return model


def compute_weights(function: Any) -> None:
    """Computes the parameters that a function has at hand; some are drawn when asked for."""
    read: list[Any] = []
    if isinstance(function, types.FunctionType):
        found = inspect.getclosurevars(function)
        read = [*found.nonlocals.values(), *found.globals.values()]
    for held in (function, getattr(function, "__self__", None), *read):
        if isinstance(held, types.ModuleType | type):
            continue
        weights = get_parameters(held)
        if weights:
            Tensor.realize(*weights)


def named_inputs(function: Any, inputs: Any) -> tuple[list[str], list[Tensor], bool]:
    """Names and tensors, and whether they are given by name."""
    if isinstance(inputs, Mapping):
        names, tensors, by_name = list(inputs), list(inputs.values()), True
    else:
        tensors, by_name = [inputs] if isinstance(inputs, Tensor) else list(inputs), False
        try:
            known = list(inspect.signature(function).parameters)
        except (TypeError, ValueError):
            known = []
        names = [known[i] if i < len(known) else f"input{i}" for i in range(len(tensors))]
        if len(set(names)) != len(names) or "args" in names:
            names = [f"input{i}" for i in range(len(tensors))]
    for name, tensor in zip(names, tensors):
        if not isinstance(tensor, Tensor):
            raise ArgumentError(f"to_onnx: {name} is {type(tensor).__name__}; a Tensor is wanted")
    return names, tensors, by_name


def named_results(found: Any) -> dict[str, Tensor]:
    """The outputs by name."""
    if isinstance(found, Mapping):
        results = dict(found)
    else:
        several = list(found) if isinstance(found, (tuple, list)) else [found]
        results = {f"output{i}": value for i, value in enumerate(several)}
    for name, value in results.items():
        if not isinstance(value, Tensor):
            raise ArgumentError(f"to_onnx: {name} is {type(value).__name__}; a Tensor is wanted")
    if not results:
        raise ArgumentError("to_onnx: the function returns nothing")
    return results


def element(dtype: DType) -> int:
    """The number of ONNX for a dtype; indices are int64. Raises: UnsupportedError."""
    if dtype is dtypes.index:
        return INT64
    if dtype not in ASTER.values() or dtype in dtypes.fp8s:
        raise UnsupportedError(
            f"to_onnx: {dtype.name} is no element type of opset {OPSET} of ONNX; cast it to float16"
        )
    return number_of(dtype)


class GraphWriter:
    """Writes nodes of Aster as nodes of ONNX, each value once."""

    def __init__(self, inputs: dict[str, Tensor]) -> None:
        self.onnx = onnx_package()
        self.inputs = inputs
        self.nodes: list[Any] = []
        self.initializers: dict[str, Any] = {}
        self.names: dict[UOp, str] = {}
        self.count = 0
        self.bases = {base_of(tensor.uop): name for name, tensor in inputs.items()}
        self.reached: set[str] = set()

    def model(self, results: dict[str, Tensor]) -> Any:
        """The whole model."""
        helper = self.onnx.helper
        outputs = []
        for name, tensor in results.items():
            for node in toposort(tensor.uop):
                if node not in self.names:
                    self.names[node] = self.value(node)
            if self.names[tensor.uop] == UNWRITTEN:
                raise UnsupportedError(
                    f"to_onnx: {name} depends on memory that no value was written to (Tensor.empty)"
                )
            self.nodes.append(helper.make_node("Identity", [self.names[tensor.uop]], [name]))
            outputs.append(
                helper.make_tensor_value_info(name, element(tensor.dtype), sizes(tensor.uop))
            )
        idle = self.inputs.keys() - self.reached
        if idle:
            raise ArgumentError(
                f"to_onnx: no result depends on {', '.join(sorted(idle))}: the function does not "
                "use it, or takes its numbers out (numpy, item) on the way"
            )
        inputs = [
            helper.make_tensor_value_info(name, element(t.dtype), sizes(t.uop))
            for name, t in self.inputs.items()
        ]
        graph = helper.make_graph(
            self.used_nodes(list(results)), "aster", inputs, outputs, list(self.used_constants())
        )
        return helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR,
            producer_name="aster-ml",
        )  # fmt: skip

    def used_nodes(self, wanted: list[str]) -> list[Any]:
        """The nodes that an output is made of; an Einsum leaves what it takes in unused."""
        needed, kept = set(wanted), []
        for node in reversed(self.nodes):
            if needed.intersection(node.output):
                needed |= set(node.input)
                kept.append(node)
        self.needed = needed
        return kept[::-1]

    def used_constants(self) -> list[Any]:
        """The initialisers that a node reads."""
        return [tensor for name, tensor in self.initializers.items() if name in self.needed]

    def node(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """A new node; the name of its output."""
        if UNWRITTEN in inputs:
            return UNWRITTEN
        self.count += 1
        name = f"{kind.lower()}_{self.count}"
        self.nodes.append(self.onnx.helper.make_node(kind, list(inputs), [name], **attributes))
        return name

    def typed(
        self, kind: str, dtype: DType, *inputs: str, others: Sequence[str] = (), **attributes: Any
    ) -> str:
        """A node whose inputs, of one dtype, and result are carried by a type that it has.

        `others` are inputs behind them that stay as they are.
        """
        wide = carrier(kind, dtype)
        if wide is dtype:
            return self.node(kind, *inputs, *others, **attributes)
        carried = [self.node("Cast", name, to=element(wide)) for name in inputs]
        found = self.node(kind, *carried, *others, **attributes)
        return found if kind in COMPARISONS else self.node("Cast", found, to=element(dtype))

    def constant(self, values: Any, kind: Any = np.int64) -> str:
        """An initialiser; equal small ones are one."""
        array = np.ascontiguousarray(np.asarray(values, kind)).reshape(np.shape(values))
        name = f"constant_{len(self.initializers)}"
        if array.size <= 16:
            text = "_".join(map(str, array.reshape(-1).tolist()))
            shape = "x".join(map(str, array.shape))
            name = f"c_{array.dtype}_{shape}_{text}".replace("-", "m").replace(".", "p")
        if name not in self.initializers:
            self.initializers[name] = self.onnx.numpy_helper.from_array(array, name)
        return name

    def value(self, u: UOp) -> str:
        """The name of what a node of Aster computes, its sources being written."""
        op = u.op
        if u.dtype is dtypes.void:
            return ""
        if op is Ops.CONST:
            kind = np.int64 if u.dtype is dtypes.index else numpy_type(u.dtype)
            return self.constant(u.arg, kind)
        if op is Ops.BUFFER:
            return self.memory(u)
        src = [self.names[s] for s in u.src]
        if op in SAME:
            return src[0]
        if op is Ops.AFTER:
            return self.written(u)
        if op is Ops.SCATTER:
            return self.met(u, src)
        if op is Ops.IOTA:
            return self.node("Range", self.constant(0), src[0], self.constant(1))
        if op in MOVEMENTS:
            return MOVEMENTS[op](self, u, src[0])
        if op is Ops.REDUCE:
            return self.reduction(u, src[0])
        if op is Ops.INDEX:
            return self.picked(u, src)
        if op is Ops.CAST:
            return self.node("Cast", src[0], to=element(u.dtype))
        if op is Ops.WHERE:
            return self.chosen(u.dtype, *src)
        return self.computed(u, src)

    def memory(self, u: UOp) -> str:
        """An input, flat, or memory that the function reads by itself."""
        name = self.bases.get(u)
        if name is not None:
            self.reached.add(name)
            return self.node("Reshape", name, self.constant([-1]))
        if not buffer_of(u).is_allocated():
            return UNWRITTEN
        values = Tensor.from_uop(u)
        if u.dtype in (dtypes.bfloat16, *dtypes.fp8s):
            return self.node("Cast", self.constant(values.numpy(), np.float32), to=element(u.dtype))
        return self.constant(values.numpy(), numpy_type(u.dtype))

    def chosen(self, dtype: DType, condition: str, one: str, other: str) -> str:
        """The elements of `one` where the condition holds, else those of `other`."""
        wide = carrier("Where", dtype)
        if wide is not dtype:
            one, other = (self.node("Cast", name, to=element(wide)) for name in (one, other))
        found = self.node("Where", condition, one, other)
        return found if wide is dtype else self.node("Cast", found, to=element(dtype))

    def computed(self, u: UOp, src: list[str]) -> str:
        """An operation element by element; on bfloat16 in float32, and rounded.

        Raises: UnsupportedError.
        """
        narrow = dtypes.bfloat16
        if u.src[0].dtype is not narrow or u.op is Ops.BITCAST:
            return self.elementwise(u, src)
        wide = tuple([UOp(Ops.CAST, dtypes.float32, (s,)) for s in u.src])
        names = [self.node("Cast", name, to=element(dtypes.float32)) for name in src]
        dtype = dtypes.float32 if u.dtype is narrow else u.dtype
        found = self.elementwise(UOp(u.op, dtype, wide, u.arg), names)
        return self.node("Cast", found, to=element(narrow)) if u.dtype is narrow else found

    def elementwise(self, u: UOp, src: list[str]) -> str:
        """An operation element by element in the dtype that it has. Raises: UnsupportedError."""
        op, kind = u.op, u.src[0].dtype
        if op in UNARY:
            return self.typed(UNARY[op], kind, *src)
        if op is Ops.EXP2:
            return self.node("Pow", self.constant(2, numpy_type(kind)), src[0])
        if op is Ops.LOG2:
            part = self.constant(1 / np.log(2), numpy_type(kind))
            return self.node("Mul", self.node("Log", src[0]), part)
        if op is Ops.TRUNC:
            size = self.node("Floor", self.node("Abs", src[0]))
            return self.node("Mul", self.node("Sign", src[0]), size)
        if op is Ops.CMPNE:
            return self.node("Not", self.typed("Equal", kind, *src))
        if op in (Ops.IDIV, Ops.MOD):
            return self.division(u, src)
        if kind is dtypes.bool and op in OF_BOOLS:
            return self.node(OF_BOOLS[op], *src)
        if kind is dtypes.bool and op is Ops.CMPLT:
            return self.node("And", self.node("Not", src[0]), src[1])
        if op in (Ops.SHL, Ops.SHR):
            return self.shifted(u, src)
        if op in BINARY:
            return self.typed(BINARY[op], kind, *src)
        if op is Ops.MULACC:
            product = self.typed("Mul", kind, src[0], src[1])
            return self.typed("Add", kind, product, src[2])
        if op is Ops.LDEXP:
            down = self.node("Floor", src[1]) if dtypes.is_float(u.src[1].dtype) else src[1]
            power = self.node("Cast", down, to=element(kind))
            two = self.constant(2, numpy_type(kind))
            return self.node("Mul", src[0], self.node("Pow", two, power))
        if op is Ops.THREEFRY:
            raise UnsupportedError(
                "to_onnx: random numbers; draw them outside and give them as an input"
            )
        raise UnsupportedError(f"to_onnx: {op.name} of {kind.name} has no operator of ONNX")

    def shifted(self, u: UOp, src: list[str]) -> str:
        """Bits moved: as unsigned numbers, of which as many zeros come in as are asked for."""
        kind, bits = u.dtype, 8 * u.dtype.itemsize
        plain = UNSIGNED_OF[kind.itemsize]
        way = "LEFT" if u.op is Ops.SHL else "RIGHT"
        x, by = (self.node("Cast", name, to=element(plain)) for name in src)
        turned = None
        if way == "RIGHT" and kind is not plain:
            # A negative number moved is the inverse of its inverse moved.
            negative = self.node("Less", src[0], self.constant(0, numpy_type(kind)))
            ones = self.constant(2**bits - 1, numpy_type(plain))
            turned = self.node("Where", negative, ones, self.constant(0, numpy_type(plain)))
            if carrier("Where", plain) is not plain:
                turned = self.chosen(plain, negative, ones, self.constant(0, numpy_type(plain)))
            x = self.node("BitwiseXor", x, turned)
        # How far bits move is defined below the width alone.
        inside = self.node("Less", by, self.constant(bits, numpy_type(plain)))
        zero = self.constant(0, numpy_type(plain))
        near = self.chosen(plain, inside, by, zero)
        found = self.node("BitShift", x, near, direction=way)
        found = self.chosen(plain, inside, found, zero)
        if turned is not None:
            found = self.node("BitwiseXor", found, turned)
        return found if kind is plain else self.node("Cast", found, to=element(kind))

    def division(self, u: UOp, src: list[str]) -> str:
        """Quotients and remainders: of indices rounded down, else towards zero."""
        down = u.dtype is dtypes.index
        if u.op is Ops.MOD:
            return self.node("Mod", *src, fmod=0 if down else 1)
        if not down:
            return self.node("Div", *src)
        return self.node("Div", self.node("Sub", src[0], self.node("Mod", *src)), src[1])

    def picked(self, u: UOp, src: list[str]) -> str:
        """Elements by an index for each axis."""
        places = self.places(u.src[1:], src[1:], sizes(u))
        return self.node("GatherND", src[0], places)

    def places(self, indices: Sequence[UOp], names: Sequence[str], shape: list[int]) -> str:
        """Indices, one an axis, as rows of int64 for each element of `shape`."""
        last, parts = self.constant([-1]), []
        for node, index in zip(indices, names):
            whole = self.node("Expand", index, self.constant(shape))
            if node.dtype is not dtypes.index:
                whole = self.node("Cast", whole, to=INT64)
            parts.append(self.node("Unsqueeze", whole, last))
        return self.node("Concat", *parts, axis=-1)

    def reduction(self, u: UOp, source: str) -> str:
        """A reduction; that of a product is an Einsum."""
        axes, op = u.arg.axes, u.arg.op
        x = u.src[0]
        if op is Ops.ADD and x.op is Ops.MUL and dtypes.is_float(x.dtype):
            made = self.product(u, x)
            if made is not None:
                return made
        if x.dtype is dtypes.bool and op in OF_BOOL_AXES:
            whole = self.node("Cast", source, to=element(dtypes.int32))
            folded = self.node(OF_BOOL_AXES[op], whole, self.constant(axes), keepdims=1)
            return self.node("Cast", folded, to=element(dtypes.bool))
        if op not in REDUCTIONS or x.dtype is dtypes.bool:
            raise UnsupportedError(f"to_onnx: a reduction of {x.dtype.name} by {op.name}")
        if op is Ops.MAX and x.dtype is dtypes.uint64:
            # In the order of signed numbers once the highest bit is turned over.
            high = self.constant(1 << 63, np.uint64)
            turned = self.node("BitwiseXor", source, high)
            found = self.typed("ReduceMax", x.dtype, turned, others=[self.constant(axes)])
            return self.node("BitwiseXor", found, high)
        return self.typed(REDUCTIONS[op], x.dtype, source, others=[self.constant(axes)], keepdims=1)

    def met(self, u: UOp, src: list[str]) -> str:
        """Elements that are added up, or whose greatest is taken, where indices say."""
        op, dtype = u.arg.op, u.dtype
        if op not in MEETINGS:
            raise UnsupportedError(f"to_onnx: SCATTER by {op.name} has no operator of ONNX")
        wide = carrier("ScatterND", dtype)
        start = self.constant(identity_of(op, dtype), numpy_type(dtype))
        values = src[0]
        if wide is not dtype:
            start, values = (self.node("Cast", n, to=element(wide)) for n in (start, values))
        empty = self.node("Expand", start, self.constant(u.arg.shape))
        places = self.places(u.src[1:], src[1:], sizes(u.src[0]))
        found = self.node("ScatterND", empty, places, values, reduction=MEETINGS[op])
        return found if wide is dtype else self.node("Cast", found, to=element(dtype))

    def written(self, u: UOp) -> str:
        """Memory after values were written to parts of it."""
        name, place = self.names[u.src[0]], u.src[0]
        count = int(np.prod(sizes(place), dtype=object))
        for effect in u.src[1:]:
            if effect.op is not Ops.STORE or len(effect.src) != 2:
                raise UnsupportedError(f"to_onnx: {effect.op.name}, a kernel of its own")
            numbers = np.arange(count).reshape(sizes(place))
            for view in reversed(written_views(u, effect)):
                if view.op not in MOVED_NUMBERS:
                    raise UnsupportedError(f"to_onnx: a write through {view.op.name}")
                numbers = MOVED_NUMBERS[view.op](numbers, view)
            values = self.names[effect.src[1]]
            values = self.node("Expand", values, self.constant(numbers.shape))
            if numbers.size == count and (numbers.reshape(-1) == np.arange(count)).all():
                name = self.node("Reshape", values, self.constant(sizes(place)), allowzero=1)
                continue
            parts = [
                self.constant(numbers.reshape(-1)),
                self.node("Reshape", values, self.constant([-1])),
            ]
            flat = self.node("Reshape", name, self.constant([-1]))
            found = self.node("ScatterElements", flat, *parts)
            name = self.node("Reshape", found, self.constant(sizes(place)), allowzero=1)
        return name

    def product(self, u: UOp, x: UOp) -> str | None:
        """A sum of products as an Einsum; None where both factors have all axes."""
        rank = len(sizes(x))
        if rank > len(LETTERS):
            return None
        parts, terms = [], []
        for factor in x.src:
            inner = factor.src[0] if factor.op is Ops.EXPAND else factor
            shape = sizes(inner)
            if len(shape) != rank:
                return None
            full = sizes(x)
            kept = [i for i in range(rank) if shape[i] == full[i] and full[i] != 1]
            gone = [i for i in range(rank) if i not in kept]
            name = self.names[inner]
            parts.append(self.node("Squeeze", name, self.constant(gone)) if gone else name)
            terms.append("".join([LETTERS[i] for i in kept]))
        if len(terms[0]) == rank and len(terms[1]) == rank:
            return None
        out = [i for i in range(rank) if i not in u.arg.axes and LETTERS[i] in terms[0] + terms[1]]
        equation = f"{terms[0]},{terms[1]}->{''.join([LETTERS[i] for i in out])}"
        made = self.node("Einsum", *parts, equation=equation)
        return self.node("Reshape", made, self.constant(sizes(u)))

    # movement

    def reshaped(self, u: UOp, source: str) -> str:
        """The same elements in another shape."""
        return self.node("Reshape", source, self.constant(sizes(u)), allowzero=1)

    def expanded(self, u: UOp, source: str) -> str:
        """Axes of size 1 repeated."""
        return self.typed("Expand", u.dtype, source, others=[self.constant(sizes(u))])

    def permuted(self, u: UOp, source: str) -> str:
        """Axes in another order."""
        return self.node("Transpose", source, perm=list(u.arg))

    def padded(self, u: UOp, source: str) -> str:
        """Zeros around."""
        pads = [int(before) for before, _ in u.arg] + [int(after) for _, after in u.arg]
        return self.typed("Pad", u.dtype, source, others=[self.constant(pads)])

    def shrunk(self, u: UOp, source: str) -> str:
        """A part."""
        starts, ends = ([int(part[i]) for part in u.arg] for i in (0, 1))
        axes = list(range(len(starts)))
        return self.node("Slice", source, *map(self.constant, (starts, ends, axes)))

    def flipped(self, u: UOp, source: str) -> str:
        """Axes reversed."""
        axes = list(u.arg)
        starts, ends, steps = [-1] * len(axes), [-(1 << 62)] * len(axes), [-1] * len(axes)
        return self.node("Slice", source, *map(self.constant, (starts, ends, axes, steps)))


# Of arrays of numbers, what a view of memory shows of them.
MOVED_NUMBERS: dict[Ops, Callable[[Any, UOp], Any]] = {
    Ops.RESHAPE: lambda x, u: x.reshape(sizes(u)),
    Ops.PERMUTE: lambda x, u: x.transpose(u.arg),
    Ops.SHRINK: lambda x, u: x[tuple([slice(int(a), int(b)) for a, b in u.arg])],
    Ops.FLIP: lambda x, u: np.flip(x, u.arg),
}
MOVEMENTS: dict[Ops, Callable[[GraphWriter, UOp, str], str]] = {
    Ops.RESHAPE: GraphWriter.reshaped,
    Ops.EXPAND: GraphWriter.expanded,
    Ops.PERMUTE: GraphWriter.permuted,
    Ops.PAD: GraphWriter.padded,
    Ops.SHRINK: GraphWriter.shrunk,
    Ops.FLIP: GraphWriter.flipped,
}


def sizes(u: UOp) -> list[int]:
    """The shape of a node as numbers. Raises: UnsupportedError for variables."""
    for size in u.shape:
        if not isinstance(size, int):
            raise UnsupportedError("to_onnx: a shape with a variable; bind sizes as plain numbers")
    return list(u.shape)


def base_of(u: UOp) -> UOp:
    """The memory that a realized tensor shows."""
    while u.op is Ops.RESHAPE:
        u = u.src[0]
    return u
