"""Prints graphs and linear programs as text, and parses it back to the same objects.

One node a line: `%3 = ADD float32 (%1, %2)`, sources before the argument; a comment behind `#`
repeats scalar expressions in infix form. Receives nodes and `Linear`s, returns text, and the
reverse. All stages have the same form, which golden tests and bug reports use.
"""

from __future__ import annotations

import ast
import contextlib
import math
import re
import struct
from collections.abc import Iterable, Iterator
from typing import Any

from aster_ml.dtype import DType, dtypes, to_dtype
from aster_ml.errors import FormatError, InternalError
from aster_ml.uop.graph import toposort
from aster_ml.uop.linear import Linear
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import (
    AxisType,
    BodyArg,
    BufferArg,
    CallArg,
    DeviceArg,
    KernelArg,
    LdmatrixArg,
    LoadArg,
    Memory,
    MmaArg,
    MultiArg,
    NameArg,
    Ops,
    ParamArg,
    PowerArg,
    RangeArg,
    ReduceArg,
    RuleArg,
    RunArg,
    ScatterArg,
    ScratchArg,
    StageArg,
    StoreArg,
    TmaArg,
    VarArg,
    WarpRoleArg,
)
from aster_ml.uop.print.infix import render_expr

# Op -> the type of its argument, if it is a named tuple.
ARG_TYPES: dict[Ops, Any] = {
    Ops.BUFFER: BufferArg,
    Ops.PARAM: ParamArg,
    Ops.DEFINE_VAR: VarArg,
    Ops.RANGE: RangeArg,
    Ops.DEFINE_LOCAL: ScratchArg,
    Ops.DEFINE_REG: ScratchArg,
    Ops.DEVICE: DeviceArg,
    Ops.COPY: DeviceArg,
    Ops.MULTI: MultiArg,
    Ops.REDUCE: ReduceArg,
    Ops.SCATTER: ScatterArg,
    Ops.NAME: NameArg,
    Ops.STAGE: StageArg,
    Ops.EXP2: PowerArg,
    Ops.CUSTOM_GRADIENT: RuleArg,
    Ops.LOAD: LoadArg,
    Ops.STORE: StoreArg,
    Ops.SINK: BodyArg,
    Ops.CALL: CallArg,
    Ops.LDMATRIX: LdmatrixArg,
    Ops.STMATRIX: LdmatrixArg,
    Ops.MMA: MmaArg,
    Ops.TMA_LOAD: TmaArg,
    Ops.TMA_STORE: TmaArg,
    Ops.WARP_ROLE: WarpRoleArg,
}
FIELD_ENUMS: dict[str, Any] = {"kind": AxisType, "op": Ops, "memory": Memory}


def value_text(value: Any, what: object) -> str:
    """One field of an argument."""
    if isinstance(value, (AxisType, Memory, Ops)):
        return value.name
    if isinstance(value, float):
        return float_text(value)
    if value is None or isinstance(value, (int, str)):
        return repr(value)
    if isinstance(value, tuple):
        inner = ", ".join([value_text(v, what) for v in value])
        return f"({inner},)" if len(value) == 1 else f"({inner})"
    raise InternalError(f"text: {value!r} in the argument of {what!r} has no written form")


def float_text(value: float) -> str:
    """A float as text that reads back to the same bits."""
    if value == value:
        return repr(value)
    bits = struct.unpack("<Q", struct.pack("<d", value))[0]
    return "nan" if bits == struct.unpack("<Q", struct.pack("<d", math.nan))[0] else f"nan:{bits:x}"


def read_float(text: str) -> float:
    """The reverse of `float_text`."""
    if text.startswith("nan:"):
        return float(struct.unpack("<d", struct.pack("<Q", int(text[4:], 16)))[0])
    return float(text)


def arg_text(u: UOp) -> str:
    """The argument as text; named tuples as `field=value`, without defaults."""
    kind = ARG_TYPES.get(u.op)
    if kind is None:
        return value_text(u.arg, u)
    if isinstance(u.arg, (KernelArg, RunArg)):
        kind = type(u.arg)
    if u.arg.__class__ is not kind:
        raise InternalError(f"text: the argument of {u!r} is no {kind.__name__}")
    defaults = kind._field_defaults
    return " ".join(
        [
            f"{f}={value_text(v, u)}"
            for f, v in zip(kind._fields, u.arg)
            if f not in defaults or v != defaults[f]
        ]
    )


def node_text(u: UOp, number: int, numbers: dict[UOp, int]) -> str:
    """One line."""
    words = [f"%{number} =", u.op.name, u.dtype.name]
    if u.src:
        words.append(f"({', '.join([f'%{numbers[s]}' for s in u.src])})")
    if u.arg is not None:
        words.append(arg_text(u))
    if u.dtype is dtypes.index and u.op in SHOWN and any(s.src for s in u.src):
        words.append(f" # {render_expr(u)}")
    return " ".join(words)


SHOWN = frozenset({Ops.ADD, Ops.MUL, Ops.IDIV, Ops.MOD, Ops.MAX, Ops.WHERE})


def to_text(*roots: UOp) -> str:
    """The graph below the roots, sources first, each root on a line of its own at the end."""
    numbers: dict[UOp, int] = {}
    lines = []
    for u in toposort(*roots):
        numbers[u] = len(numbers)
        lines.append(node_text(u, numbers[u], numbers))
    if len(roots) != 1 or (lines and numbers[roots[0]] != len(lines) - 1):
        lines.append(f"roots {refs_text(roots, numbers)}")
    return "\n".join(lines) + "\n"


def refs_text(uops: Iterable[UOp], numbers: dict[UOp, int]) -> str:
    """`(%1, %2)`."""
    return f"({', '.join([f'%{numbers[u]}' for u in uops])})"


LINE = re.compile(r"%(\d+) (:?=) (\w+) (\w+)(?: \(((?:%\d+(?:, )?)*)\))?(?: (.*))?$")
FIELD = re.compile(r"(\w+)=('(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|\([^=]*\)|[^ ]+)")


def parse(text: str) -> UOp:
    """The root of a graph written by `to_text`: the same object, if it is alive.

    Raises: FormatError naming the line that does not read.
    """
    roots = parse_all(text)
    if len(roots) != 1:
        raise FormatError(f"text: one root is wanted, there are {len(roots)}")
    return roots[0]


def parse_all(text: str) -> list[UOp]:
    """The roots of a graph written by `to_text`."""
    nodes: dict[int, UOp] = {}
    roots: list[UOp] | None = None
    last: UOp | None = None
    for line_number, line in enumerate(text.splitlines(), 1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        with reading(line_number, line):
            if line.startswith("roots "):
                roots = read_refs(line[6:], nodes, line_number)
            else:
                last = read_node(line, nodes, line_number)[1]
    if roots is None:
        if last is None:
            raise FormatError("text: no node in it; lines `%0 = OP dtype (sources)` are wanted")
        return [last]
    return roots


def read_refs(text: str, nodes: dict[int, UOp], line_number: int) -> list[UOp]:
    """`(%1, %2)` or `%1, %2` as nodes."""
    found = [int(ref) for ref in re.findall(r"%(\d+)", text)]
    for ref in found:
        if ref not in nodes:
            raise FormatError(f"text, line {line_number}: %{ref} is in no line above it")
    return [nodes[ref] for ref in found]


def read_node(line: str, nodes: dict[int, UOp], line_number: int) -> tuple[bool, UOp]:
    """The node of a line, entered into `nodes`, and whether the line lists it (`=`)."""
    match = LINE.match(line)
    if match is None:
        raise FormatError(f"text, line {line_number}: no node: {line!r}")
    number, equals, op_name, dtype_name, refs, rest = match.groups()
    op = Ops[op_name]
    dtype = DType.registry.get(dtype_name) or to_dtype(dtype_name)
    src = tuple(read_refs(refs or "", nodes, line_number))
    arg = read_arg(op, dtype, strip_comment(rest or ""))
    node = UOp(op, dtype, src, arg)
    nodes[int(number)] = node
    return equals == "=", node


@contextlib.contextmanager
def reading(line_number: int, line: str) -> Iterator[None]:
    """Turns any error in the block into a FormatError that names the line."""
    try:
        yield
    except FormatError:
        raise
    except Exception as error:  # what reads literals and what checks nodes raise of all kinds
        raise FormatError(f"text, line {line_number}: {error}: {line[:200]!r}") from error


def strip_comment(text: str) -> str:
    """The text without a closing comment, which no argument contains outside quotes."""
    quoted = re.match(r"((?:[^#'\"]|'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")*)", text)
    return (quoted.group(1) if quoted else text).strip()


def read_value(text: str, kind: Any = None) -> Any:
    """A field's value; `kind` is the enum it belongs to."""
    if kind is not None:
        return kind[text]
    return ast.literal_eval(text)


def read_arg(op: Ops, dtype: DType, text: str) -> Any:
    """The argument of a node of `op`."""
    if op is Ops.CONST:
        if dtype.kind == "float":
            return read_float(text)
        return ast.literal_eval(text)
    if not text:
        return None
    kind = ARG_TYPES.get(op)
    if kind is None:
        return Ops[text] if text in Ops.__members__ else ast.literal_eval(text)
    fields = {name: read_value(value, FIELD_ENUMS.get(name)) for name, value in FIELD.findall(text)}
    if op is Ops.SINK and "fresh" not in fields:
        kind = RunArg if "axes" in fields else KernelArg
    return kind(**fields)


# linear programs


def linear_to_text(linear: Linear) -> str:
    """A linear program as text: listed nodes are `%n = ...`, inlined ones `%n := ...`."""
    return "\n".join([line for line, _ in linear_lines(linear)]) + "\n"


def linear_lines(linear: Linear) -> list[tuple[str, UOp | None]]:
    """The lines of `linear_to_text`, each with the node that it writes."""
    numbers: dict[UOp, int] = {}
    lines: list[tuple[str, UOp | None]] = [(f"kernel {linear.name}", None)]
    depth = 1

    def say(text: str) -> None:
        lines.append((f"  {text}", None))

    def write(u: UOp, sign: str) -> None:
        numbers[u] = len(numbers)
        line = node_text(u, numbers[u], numbers).replace(" = ", f" {sign} ", 1)
        lines.append(("  " * depth + line, u))

    def write_inline(*uops: UOp) -> None:
        for s in toposort(*uops, enter=lambda x: x not in numbers):
            if s not in numbers:
                write(s, ":=")

    listed = set(linear.uops)
    for u in linear.uops:
        if u.op is Ops.END:
            depth -= 1
        write_inline(*u.src)
        if u in numbers:
            lines.append(("  " * depth + f"again %{numbers[u]}", u))
        else:
            write(u, "=")
        if u.op is Ops.RANGE and u.arg.kind not in UNLOOPED:
            depth += 1
    depth = 1
    sizes = [s for s in linear.global_size if s.__class__ is UOp]
    write_inline(*linear.params, *linear.variables, *sizes)
    if linear.thread is not None and linear.thread not in listed:
        write_inline(linear.thread)
    say(f"params {refs_text(linear.params, numbers)}")
    say(f"variables {refs_text(linear.variables, numbers)}")
    say(f"written {tuple(sorted(linear.written))!r}")
    if linear.thread is not None:
        say(f"thread %{numbers[linear.thread]}")
    shown = [f"%{numbers[s]}" if s.__class__ is UOp else str(s) for s in linear.global_size]
    say(f"global_size ({', '.join(shown)})")
    say(f"local_size {tuple(linear.local_size)!r}")
    return lines


UNLOOPED = frozenset(
    {
        AxisType.GLOBAL,
        AxisType.LOCAL,
        AxisType.UPCAST,
        AxisType.UNROLL,
        AxisType.VECTOR,
    }
)


def linear_from_text(text: str) -> Linear:
    """The reverse of `linear_to_text`.

    Raises: FormatError naming the line that does not read.
    """
    nodes: dict[int, UOp] = {}
    uops: list[UOp] = []
    fields: dict[str, Any] = {}
    for line_number, line in enumerate(text.splitlines(), 1):
        line = line.strip()
        with reading(line_number, line):
            read_program_line(line, line_number, nodes, uops, fields)
    missing = {"name", "params", "variables", "written"} - fields.keys()
    if missing:
        raise FormatError(f"text: a linear program needs a line for {', '.join(sorted(missing))}")
    return Linear(uops=tuple(uops), **fields)


def read_program_line(
    line: str, line_number: int, nodes: dict[int, UOp], uops: list[UOp], fields: dict[str, Any]
) -> None:
    """One line of a linear program, entered into what it belongs to."""
    word, _, rest = line.partition(" ")
    if line.startswith("%"):
        listed, node = read_node(line, nodes, line_number)
        if listed:
            uops.append(node)
    elif word == "kernel":
        fields["name"] = rest
    elif word == "again":
        uops += read_refs(rest, nodes, line_number)
    elif word in ("params", "variables"):
        fields[word] = tuple(read_refs(rest, nodes, line_number))
    elif word == "thread":
        (fields[word],) = read_refs(rest, nodes, line_number)
    elif word == "global_size":
        fields[word] = tuple(
            [
                read_refs(part, nodes, line_number)[0] if part.startswith("%") else int(part)
                for part in rest.strip("()").replace(",", " ").split()
            ]
        )
    elif word == "local_size":
        fields[word] = ast.literal_eval(rest)
    elif word == "written":
        fields[word] = frozenset(ast.literal_eval(rest))
    elif line and not line.startswith("#"):
        raise FormatError(f"text, line {line_number}: unknown kind of line: {line!r}")
