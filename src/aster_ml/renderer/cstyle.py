"""Writes C-like source: statements, names and layout that C and OpenCL C share.

Receives a `Linear`; writes one statement for each value that is worth a name and expressions for
the rest, so that a person can read the kernel. What differs between the languages (types, SIMD
syntax, memory access, kernel head) is in `c` and `opencl`; the text of each op in `cstyle_rules`.

Integers wrap: where bounds do not rule a signed overflow out, the arithmetic is unsigned. A SIMD
bool is a mask of signed bytes, 0 or -1; a scalar bool is 0 or 1.
"""

from __future__ import annotations

import abc
import math
import textwrap

from aster_ml.dtype import DType, bitcast_value, dtypes, round_float
from aster_ml.errors import InternalError
from aster_ml.renderer.base import KernelWriter
from aster_ml.renderer.cell import Address, Cell, Value
from aster_ml.renderer.cstyle_rules import CSTYLE_RULES, PLAIN_SUM, bare
from aster_ml.target import Target
from aster_ml.uop.linear import Linear
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import ELEMENTWISE, AxisType, Ops

# Short names of dtypes, of which names of helpers and SIMD types are made.
SHORT = {
    dtypes.bool: "bool", dtypes.float16: "f16", dtypes.float32: "f32", dtypes.float64: "f64",
    dtypes.bfloat16: "bf16", dtypes.fp8e4m3: "e4m3", dtypes.fp8e5m2: "e5m2",
    **{d: f"i{d.bits}" for d in dtypes.sints}, **{d: f"u{d.bits}" for d in dtypes.uints},
}  # fmt: skip
# Types whose arithmetic arrives decomposed where the language lacks it: there they are bits.
BIT_DTYPES = {
    dtypes.bfloat16: dtypes.uint16, dtypes.fp8e4m3: dtypes.uint8, dtypes.fp8e5m2: dtypes.uint8,
    dtypes.float16: dtypes.uint16,
}  # fmt: skip
# An expression longer than this gets a name.
LONGEST_INLINE = 60
COMPOUND = {Ops.ADD: "+", Ops.MUL: "*", Ops.AND: "&", Ops.OR: "|"}


# Operators of C that bind no closer than `<`, beside which a loop's size stands.
BINDS_LOOSER = frozenset(
    {Ops.WHERE, Ops.AND, Ops.OR, Ops.XOR, Ops.CMPLT, Ops.CMPNE, Ops.CMPEQ, Ops.MAX}
)


class CStyleWriter(KernelWriter):
    """Writes one kernel in a C-like language."""

    rules = CSTYLE_RULES
    # The function of a power whose exponent is not above 0.
    falling_power = "exp2"
    # What the type of a 64-bit integer literal ends with.
    long_suffix = "ll"

    def __init__(self, target: Target, linear: Linear) -> None:
        super().__init__(target, linear)
        self.lines: list[str] = []
        # Declarations of scratch, at the top of the function.
        self.scratch: list[str] = []
        # Types and functions before the kernel, by name, in the order in which they are needed.
        self.helpers: dict[str, str] = {}
        self.indent = 1
        self.count = 0
        self.names: dict[UOp, str] = {}

    # lines and names

    def write(self, text: str) -> None:
        """One line of the kernel's body."""
        indent = "  " * self.indent
        if len(indent) + len(text) <= 100:
            self.lines.append(indent + text)
        else:
            self.lines += textwrap.wrap(
                text,
                100,
                initial_indent=indent,
                subsequent_indent=indent + "    ",
                break_long_words=False,
                break_on_hyphens=False,
            )

    def helper(self, name: str, text: str) -> str:
        """A function or type that stands before the kernel; its name."""
        self.helpers.setdefault(name, text)
        return name

    def name_variable(self, v: UOp) -> str:
        """Names a variable as a person knows it; no keyword and no other name is the same."""
        known = "".join([x if x.isascii() and x.isalnum() else "_" for x in v.arg.name])
        name = f"var_{known}"
        while name in self.names.values():
            name += "_"
        self.names[v] = self.cells[v].values[0] = name
        self.spread_value(self.cells[v], 0)
        return name

    def define(self, prefix: str, value: str, dtype: DType, n: int) -> str:
        """A line that names a value; the name."""
        name = f"{prefix}{self.count}"
        self.count += 1
        self.write(f"{self.type_of(dtype, n)} {name} = {bare(value)};")
        return name

    def keep(self, c: Cell, value: str) -> str:
        """A name, unless the value is short and read once, by the instance beside it."""
        d = None if c.consumer is None else self.cells[c.consumer]
        if (
            c.op in ELEMENTWISE
            and c.uses == 1
            and d is not None
            and d.lanes == c.lanes
            and d.depth == c.depth
            and len(value) <= LONGEST_INLINE
            and not c.spread
            and (d.op in ELEMENTWISE or c.width == d.width == 1)
            and all(s.op is not Ops.DEFINE_REG for s, _ in c.inputs)
        ):
            return value
        if value.isidentifier() and all(s.op is not Ops.DEFINE_REG for s, _ in c.inputs):
            return value
        prefix = "v" if c.op is Ops.LOAD else ("is" if c.dtype is dtypes.bool else "t")
        return self.define(prefix, value, c.dtype, c.width)

    def name_value(self, value: str, dtype: DType, n: int) -> str:
        """A name for a value that is no node of its own."""
        return value if value.isidentifier() else self.define("t", value, dtype, n)

    # literals

    def text(self, value: Value, dtype: DType, n: int) -> str:
        """Names as they are, numbers as literals."""
        if value.__class__ is str:
            return str(value)
        if value.__class__ is tuple:
            return self.build([self.literal(v, dtype) for v in value], dtype)
        text = self.literal(value, dtype)
        return text if n == 1 else self.splat(text, dtype, n)

    def literal(self, value: int | float | bool, dtype: DType) -> str:
        """One number."""
        if dtype.kind == "float":
            if self.is_bits(dtype):
                bits = BIT_DTYPES[dtype]
                return self.literal(bitcast_value(value, dtype, bits), bits)
            return self.float_literal(float(value), dtype)
        number = int(value)
        if dtype.kind == "bool":
            return str(number)
        if number < -(1 << (dtype.bits - 1)) + 1:
            # The least number has no literal: a minus sign is an operator.
            return f"({self.literal(number + 1, dtype)} - 1)"
        suffix = ""
        if dtype.kind == "uint" and dtype.bits >= 32:
            suffix = "u" if dtype.bits == 32 else "u" + self.long_suffix
        elif not -(1 << 31) < number < 1 << 31:
            suffix = self.long_suffix
        return f"{number}{suffix}" if number >= 0 else f"({number}{suffix})"

    def float_literal(self, value: float, dtype: DType) -> str:
        """A float, with as many digits as tell it from its neighbours."""
        if not math.isfinite(value):
            return self.special_float(value, dtype)
        double = dtype is dtypes.float64
        text = repr(value) if double else f"{round_float(value, dtype):.9g}"
        if "." not in text and "e" not in text:
            text += ".0"
        text += "" if double else "f"
        if dtype is dtypes.float16 and self.type_of(dtype, 1) != "float":
            text = f"({self.type_of(dtype, 1)}){text}"
        return text if text[0] not in "-(" else f"({text})"

    # loops, accumulators, scratch

    def open_loop(self, c: Cell) -> None:
        """A for loop."""
        name, kind = f"r{c.u.arg.id}", self.type_of(c.dtype, 1)
        start, stop = "0", self.text(c.inputs[0][0].values[0], c.dtype, 1)
        if c.u.src[0].op not in BINDS_LOOSER:
            stop = bare(stop)
        if c.u.arg.kind is AxisType.THREAD:
            start, stop = "lo", "hi"
        self.write(f"for ({kind} {name} = {start}; {name} < {stop}; {name}++) {{")
        self.indent += 1
        c.values[0] = name

    def close_loop(self, c: Cell) -> None:
        """The brace."""
        self.indent -= 1
        self.write("}")

    def define_reg(self, c: Cell, start: list[Value]) -> None:
        """One variable an instance."""
        names = [f"acc{c.u.arg.id}" + (f"_{k}" if c.count > 1 else "") for k in range(c.count)]
        for name, value in zip(names, start, strict=True):
            text = bare(self.text(value, c.dtype, c.width))
            self.write(f"{self.type_of(c.dtype, c.width)} {name} = {text};")
        c.values = list(names)

    def accumulate(self, reg: Cell, r: int, op: Ops, value: str) -> None:
        """`acc += value;`"""
        name = reg.values[r]
        if reg.dtype.kind == "float" and op in COMPOUND:
            self.write(f"{name} {COMPOUND[op]}= {bare(value)};")
        else:
            text = self.rules[op](self, reg.dtype, reg.width, [name, value], None)
            self.write(f"{name} = {bare(text)};")

    def accumulate_product(self, reg: Cell, r: int, op: Ops, a: str, b: str) -> None:
        """`acc += a * b;`"""
        self.write(f"{reg.values[r]} += {a} * {b};")

    def define_local(self, c: Cell) -> None:
        """An array at the top of the function."""
        name = self.names[c.u] = f"local{c.u.arg.id}"
        self.scratch.append(self.scratch_line(name, c.dtype, c.u.arg.size, c.u.arg.private))

    # memory

    @staticmethod
    def index(at: Address) -> str:
        """The element number of an address."""
        if at.base is None:
            return str(at.offset)
        base = bare(at.base)
        if at.offset == 0:
            return base
        base = base if set(base) <= PLAIN_SUM else at.base
        return f"{base} + {at.offset}" if at.offset > 0 else f"{base} - {-at.offset}"

    def load(self, at: Address, dtype: DType, n: int, gate: str | None) -> str:
        """An element or a SIMD value; the gate is a condition in front of it."""
        text = self.load_text(
            self.names[at.place], self.index(at), dtype, n, at.place.op is Ops.DEFINE_LOCAL
        )
        if gate is None:
            return text
        return f"({gate} ? {text} : {self.text(dtypes.as_const(0, dtype), dtype, n)})"

    def store(self, at: Address, dtype: DType, n: int, value: str, gate: str | None) -> None:
        """A statement, behind an if where there is a gate."""
        text = self.store_text(
            self.names[at.place],
            self.index(at),
            bare(value),
            dtype,
            n,
            at.place.op is Ops.DEFINE_LOCAL,
        )
        self.write(text if gate is None else f"if ({bare(gate)}) {text}")

    # helpers of both languages

    def short(self, dtype: DType, n: int) -> str:
        """`f32`, `f32x8`."""
        return SHORT[dtype] if n == 1 else f"{SHORT[dtype]}x{n}"

    def each(self, name: str, dtype: DType, n: int, args: list[str], kinds: list[DType]) -> str:
        """A call of a scalar function for each element: `name` itself or a helper around it."""
        if n == 1:
            return f"{name}({', '.join(bare(a) for a in args)})"
        full = f"{name}_x{n}"
        # A function that is one of several dtypes in C++, is that for several lanes, too.
        key = f"{full} {' '.join([self.short(d, 1) for d in (dtype, *kinds)])}"
        if key not in self.helpers:
            letters = "abc"[: len(args)]
            pairs = list(zip(kinds, letters, strict=True))
            params = ", ".join(f"{self.type_of(d, n)} {x}" for d, x in pairs)
            calls = [
                f"{name}({', '.join(self.extract(x, d, n, i) for d, x in pairs)})" for i in range(n)
            ]
            body = f"return {self.build(calls, dtype)};"
            self.helper_function(self.type_of(dtype, n), full, params, body, key)
        return f"{full}({', '.join(bare(a) for a in args)})"

    def saturate_by_limits(self, value: str, source: DType, dtype: DType, n: int) -> str:
        """`saturate` by comparisons with the limits, in a helper."""
        kind = self.type_of(dtype, 1)
        limit = self.float_literal(float(2 ** (dtype.bits - (dtype.kind == "int"))), source)
        high, low = (self.literal(x, dtype) for x in (dtypes.max(dtype), dtypes.min(dtype)))
        least = f"x > -{limit}" if dtype.kind == "int" else "x > 0"
        body = f"return x >= {limit} ? {high} : {least} ? ({kind})x : x != x ? 0 : {low};"
        return self.converted(value, source, dtype, n, body)

    def converted(self, value: str, source: DType, dtype: DType, n: int, body: str) -> str:
        """Each lane as another dtype, as the body of a helper makes it of a scalar x."""
        name = self.scalar_helper(
            f"{self.short(source, 1)}_to_{self.short(dtype, 1)}",
            dtype,
            f"{self.type_of(source, 1)} x",
            body,
        )
        return self.each(name, dtype, n, [value], [source])

    def helper_function(
        self, result: str, name: str, params: str, body: str, key: str | None = None
    ) -> str:
        """A function before the kernel; its name. A `key` tells it from others of that name."""
        self.helper(key or name, self.function(result, name, params, body))
        return name

    def scalar_helper(self, name: str, result: DType, params: str, body: str) -> str:
        """A function on scalars before the kernel; its name."""
        return self.helper_function(self.type_of(result, 1), name, params, body)

    def horizontal(self, op: Ops, value: str, dtype: DType, n: int) -> str:
        """The elements, folded by halves in a helper."""
        name = f"fold_{op.name.lower()}_{self.short(dtype, n)}"
        if name not in self.helpers:
            parts = [self.extract("v", dtype, n, i) for i in range(n)]
            while len(parts) > 1:
                half = (len(parts) + 1) // 2
                pairs = [
                    self.rules[op](self, dtype, 1, [parts[i], parts[i + half]], None)
                    for i in range(len(parts) - half)
                ]
                parts = pairs + parts[len(pairs) : half]
            params = f"{self.type_of(dtype, n)} v"
            body = f"return {bare(parts[0])};"
            self.scalar_helper(name, dtype, params, body)
        return f"{name}({bare(value)})"

    def function(self, result: str, name: str, params: str, body: str) -> str:
        """A helper function."""
        head = self.function_head(result, name, params)
        if len(head) + len(body) < 92 and "\n" not in body:
            return f"{head} {{ {body} }}"
        return f"{head} {{\n  {body}\n}}"

    def function_head(self, result: str, name: str, params: str) -> str:
        """The head of a helper function, before its body."""
        return f"static inline {result} {name}({params})"

    def is_bits(self, dtype: DType) -> bool:
        """Whether values of a dtype are kept as unsigned integers."""
        return dtype in BIT_DTYPES and dtype is not dtypes.float16

    def from_bits(self, value: str, source: DType, n: int) -> str:
        """The float32 of values that are kept as bits. Raises: InternalError."""
        raise InternalError(f"renderer: the cast of {source} is not decomposed")

    def to_bits(self, value: str, source: DType, dtype: DType, n: int) -> str:
        """The bits of the nearest value of `dtype`. Raises: InternalError."""
        raise InternalError(f"renderer: the cast to {dtype} is not decomposed")

    # what the languages differ in

    @abc.abstractmethod
    def type_of(self, dtype: DType, n: int) -> str:
        """The type of a value; of a SIMD bool, that of its mask."""

    @abc.abstractmethod
    def special_float(self, value: float, dtype: DType) -> str:
        """Infinity or NaN."""

    @abc.abstractmethod
    def scratch_line(self, name: str, dtype: DType, size: int, private: bool) -> str:
        """The declaration of scratch memory, of each work-item its own or shared by a block."""

    @abc.abstractmethod
    def load_text(self, name: str, index: str, dtype: DType, n: int, scratch: bool) -> str:
        """The expression that reads memory."""

    @abc.abstractmethod
    def store_text(
        self, name: str, index: str, value: str, dtype: DType, n: int, scratch: bool
    ) -> str:
        """The statement that writes memory."""

    @abc.abstractmethod
    def convert(self, value: str, source: DType, dtype: DType, n: int) -> str:
        """A SIMD value by plain conversion of each element; masks convert to masks."""

    @abc.abstractmethod
    def reinterpret(self, value: str, source: DType, dtype: DType, n: int) -> str:
        """The same bits as another type of equal width, neither of them bool."""

    @abc.abstractmethod
    def to_mask(self, value: str, source: DType, n: int) -> str:
        """Turns a SIMD comparison of `source` into a mask of bytes."""

    @abc.abstractmethod
    def select(self, condition: str, yes: str, no: str, dtype: DType, n: int) -> str:
        """SIMD WHERE; the condition is a mask of bytes."""

    @abc.abstractmethod
    def saturate(self, value: str, source: DType, dtype: DType, n: int) -> str:
        """A float as an integer of 32 or 64 bits: saturating, NaN gives 0."""

    @abc.abstractmethod
    def math_call(self, name: str, args: list[str], dtype: DType, n: int) -> str:
        """A function of the math library on float32 or float64."""

    @abc.abstractmethod
    def multiply_add(self, args: list[str], dtype: DType, n: int) -> str:
        """a * b + c on floats, in one rounding where that is one instruction."""

    @abc.abstractmethod
    def maximum(self, args: list[str], dtype: DType, n: int) -> str:
        """MAX of floats."""


class MaskedByElement(CStyleWriter):
    """Of a language without masked loads and stores of SIMD values."""

    def load_masked(self, at: Value, dtype: DType, n: int, gate: Value) -> str:
        """Each element behind its own condition."""
        if gate.__class__ is str:
            gate = self.name_value(gate, dtypes.bool, n)
        return super().load_masked(at, dtype, n, gate)

    def store_masked(self, at: Value, dtype: DType, n: int, value: str, gate: Value) -> None:
        """Each element behind its own condition."""
        if gate.__class__ is str:
            gate = self.name_value(gate, dtypes.bool, n)
        super().store_masked(at, dtype, n, self.name_value(value, dtype, n), gate)
