"""Renders WGSL: one compute shader, run by blocks of work-items.

Receives a `Linear`; returns one module with the entry point `main`. GLOBAL ranges are numbers of
blocks and LOCAL ranges those of work-items. Binding 0 is a uniform, `args`, of 32-bit words: a
zero, the element at which each buffer starts (a view may start anywhere, a binding at multiples of
256 bytes), and the variables. The buffers follow.

The first line is a comment that says in JSON what a launch has to know (`LaunchFacts` of the
runtime): `buffers`, each with the bytes of an element and whether it is written; `variables`, each
with the words that it takes; `words`, where some buffers are accessed by several elements at a
time, of each the bytes at whose multiples it has to begin for that.

What memory consists of stands in `wgsl_memory`. In registers numbers of 8 and 16 bits are 32 bits,
64-bit integers are two words (`functions.wgsl`), and float64 does not exist. Compilers of WGSL may
take it that there are no infinities or NaN: constants of that kind are made at run time, and NaN is
told by its bits.
"""

from __future__ import annotations

import json
import math
import struct

from aster_ml.dtype import DType, dtypes
from aster_ml.errors import CompileError, InternalError
from aster_ml.helpers import ceildiv
from aster_ml.renderer.base import Renderer
from aster_ml.renderer.cell import Cell, Value
from aster_ml.renderer.cstyle import BIT_DTYPES
from aster_ml.renderer.cstyle_rules import bare
from aster_ml.renderer.lanes import size_of
from aster_ml.renderer.texts import read_texts
from aster_ml.renderer.wgsl.memory import Form, WgslMemory
from aster_ml.renderer.wgsl.rules import LEAST_NORMAL, WGSL_RULES
from aster_ml.uop.linear import Linear
from aster_ml.uop.ops import AxisType, Ops

WORD = "vec2<u32>"
HELPERS = read_texts("wgsl/functions.wgsl")


class WgslRenderer(Renderer):
    """WGSL."""

    def render(self, linear: Linear) -> str:
        """The source of one kernel. Raises: CompileError for more iterations than it allows."""
        most = self.target.max_turns
        if most and (turns := linear.turns()) > most:
            raise CompileError(
                f"{linear.name}: a work-item would run {turns:,} iterations of loops, and the "
                f"driver ({self.target.arch}) ends them after {most:,} without an error; another "
                "adapter, DEV=CPU, or parts of it that are realized first would do"
            )
        return WgslWriter(self.target, linear).run()


class WgslWriter(WgslMemory):
    """Writes the WGSL of one kernel."""

    rules = WGSL_RULES

    def prologue(self) -> None:
        """Names the arguments."""
        self.local_sizes: list[int] = []
        self.numbers: list[str] = []
        self.shared: list[str] = []
        for slot, p in enumerate(self.linear.params):
            self.names[p] = f"buf{slot}"
        for v in self.linear.variables:
            self.name_variable(v)
        self.choose_forms()

    def finish(self) -> str:
        """Arguments, helpers, the kernel."""
        params, written = self.linear.params, self.linear.written
        units = [[self.unit(p.dtype), int(p.arg.slot in written)] for p in params]
        words = [2 if v.dtype.itemsize == 8 else 1 for v in self.linear.variables]
        facts: dict[str, object] = {"buffers": units, "variables": words}
        if any([p in self.forms for p in params]):
            facts["words"] = [
                self.forms[p].nbytes if p in self.forms else self.unit(p.dtype) for p in params
            ]
        fields = ["zero: u32", *[f"at{slot}: i32" for slot in range(len(params))]]
        body = [f"  let at{slot} = args.at{slot};" for slot in range(len(params))]
        for v, count in zip(self.linear.variables, words, strict=True):
            name = self.names[v]
            if count == 2:
                fields += [f"{name}: u32", f"{name}_high: u32"]
                body.append(f"  let {name} = {WORD}(args.{name}, args.{name}_high);")
            else:
                kind = self.type_of(v.dtype, 1)
                fields.append(f"{name}: {kind}")
                body.append(f"  let {name} = args.{name};")
        half = self.target.has_dtype("float16")
        used = {c.dtype for c in self.cells.values()}
        lines = [f"// {json.dumps(facts, separators=(',', ':'))}"]
        lines += ["enable f16;"] * (half and dtypes.float16 in used)
        lines += ["struct Args {", *[f"  {field}," for field in fields], "}"]
        lines.append("@group(0) @binding(0) var<uniform> args: Args;")
        lines += [self.declaration(p, slot) for slot, p in enumerate(params)]
        lines += [*self.shared, *self.helpers.values()]
        sizes = ", ".join(map(str, self.local_sizes or [1]))
        lines += [
            f"@compute @workgroup_size({sizes})",
            "fn main(@builtin(workgroup_id) wid: vec3<u32>,",
            "        @builtin(local_invocation_id) lid: vec3<u32>) {",
            *body, *self.numbers, *self.scratch, *self.lines, "}", "",
        ]  # fmt: skip
        return "\n".join(lines)

    def work_item(self, c: Cell, kind: AxisType, dim: int) -> str:
        """`wid.x`."""
        if dim > 2:
            raise InternalError(f"renderer: {c.u!r} is a fourth dimension of {kind.value} numbers")
        xyz = "xyz"[dim]
        if kind is AxisType.LOCAL:
            self.local_sizes.append(size_of(c.u))
        text = f"{'wid' if kind is AxisType.GLOBAL else 'lid'}.{xyz}"
        name = f"{'g' if kind is AxisType.GLOBAL else 'l'}{c.u.arg.id}"
        self.numbers.append(f"  let {name} = {self.type_of(c.dtype, 1)}({text});")
        return name

    def barrier(self) -> None:
        """Waits until the workgroup has written what it shares."""
        self.write("workgroupBarrier();")

    # statements

    def define(self, prefix: str, value: str, dtype: DType, n: int) -> str:
        """`let t0 = ...;`"""
        name = f"{prefix}{self.count}"
        self.count += 1
        self.write(f"let {name} = {bare(value)};")
        return name

    def open_loop(self, c: Cell) -> None:
        """A for loop."""
        if c.dtype.itemsize != 4 or c.u.arg.kind is AxisType.THREAD:
            raise InternalError(f"renderer: {c.u!r} is no loop of WGSL, which counts in 32 bits")
        name, kind = f"r{c.u.arg.id}", self.type_of(c.dtype, 1)
        stop = self.text(c.inputs[0][0].values[0], c.dtype, 1)
        self.write(f"for (var {name} = {kind}(0); {name} < {stop}; {name}++) {{")
        self.indent += 1
        c.values[0] = name

    def define_reg(self, c: Cell, start: list[Value]) -> None:
        """One variable an instance."""
        names = [f"acc{c.u.arg.id}" + (f"_{k}" if c.count > 1 else "") for k in range(c.count)]
        for name, value in zip(names, start, strict=True):
            text = bare(self.text(value, c.dtype, 1))
            self.write(f"var {name}: {self.type_of(c.dtype, 1)} = {text};")
        c.values = list(names)

    def accumulate_product(self, reg: Cell, r: int, op: Ops, a: str, b: str) -> None:
        """`acc = fma(a, b, acc);`, in one rounding or two as the device likes."""
        name = reg.values[r]
        self.write(f"{name} = fma({plain(a)}, {plain(b)}, {name});")

    def define_local(self, c: Cell) -> None:
        """An array: of the block in front of the kernel, of the work-item in it."""
        name = self.names[c.u] = f"local{c.u.arg.id}"
        if self.target.has_local and not c.u.arg.private:
            form = self.forms.get(c.u, Form(1, self.type_of(c.dtype, 1), 0))
            size = ceildiv(c.u.arg.size, form.per)
            self.shared.append(f"var<workgroup> {name}: array<{form.kind}, {size}>;")
        else:
            self.scratch.append(self.scratch_line(name, c.dtype, c.u.arg.size, True))

    def scratch_line(self, name: str, dtype: DType, size: int, private: bool) -> str:
        """An array of the work-item."""
        return f"  var {name}: array<{self.type_of(dtype, 1)}, {size}>;"

    # types and numbers

    def is_bits(self, dtype: DType) -> bool:
        """Halves are, where the device has none."""
        return dtype in BIT_DTYPES and not (
            dtype is dtypes.float16 and self.target.has_dtype("float16")
        )

    def type_of(self, dtype: DType, n: int) -> str:
        """Names the type of a value in registers."""
        if n != 1:
            raise InternalError(f"renderer: {n} elements side by side are no value of this WGSL")
        dtype = BIT_DTYPES[dtype] if self.is_bits(dtype) else dtype
        if dtype is dtypes.float64:
            raise InternalError("renderer: WGSL has no float64")
        if dtype.kind == "float":
            return f"f{dtype.bits}"
        if dtype is dtypes.bool:
            return "bool"
        if dtype.itemsize == 8:
            return WORD
        return "i32" if dtype.kind == "int" else "u32"

    def unit(self, dtype: DType) -> int:
        """Bytes of an element in memory."""
        return int(dtype.itemsize)

    def literal(self, value: int | float | bool, dtype: DType) -> str:
        """One number."""
        if dtype is dtypes.bool:
            return "true" if value else "false"
        if dtype.kind == "float" or self.is_bits(dtype):
            return super().literal(value, dtype)
        number = int(value)
        if dtype.itemsize == 8:
            return f"{WORD}({number & 0xFFFFFFFF}u, {number >> 32 & 0xFFFFFFFF}u)"
        if dtype.kind == "uint":
            return f"{number}u"
        return str(number) if number >= 0 else f"({number})"

    def float_literal(self, value: float, dtype: DType) -> str:
        """A float; what is no normal number by its bits."""
        if dtype is dtypes.float16:
            return self.half_literal(value)
        if not math.isfinite(value) or 0.0 < abs(value) < LEAST_NORMAL:
            return self.special_float(value, dtype)
        return super().float_literal(value, dtype)

    def half_literal(self, value: float) -> str:
        """A half by its bits, at run time: their literals are not for all numbers."""
        bits = struct.unpack("<H", struct.pack("<e", value))[0]
        self.use("half_of_bits")
        return f"half_of_bits({bits}u)"

    def special_float(self, value: float, dtype: DType) -> str:
        """Infinity, NaN or a number below the normal ones, made at run time."""
        bits = struct.unpack("<I", struct.pack("<f", value))[0]
        bits = 0x7FC00000 if math.isnan(value) else bits
        self.use("float_of_bits")
        return f"float_of_bits({bits}u)"

    def use(self, name: str) -> str:
        """A helper of `functions.wgsl`, and those that it calls, in any order; its name."""
        wanted = [name]
        while wanted:
            helper = wanted.pop()
            self.helper(helper, HELPERS.texts[helper])
            wanted += [other for other in HELPERS.needs[helper] if other not in self.helpers]
        return name

    def call(self, name: str, *args: str) -> str:
        """A call of a helper of `functions.wgsl`."""
        self.use(name)
        return f"{name}({', '.join(map(plain, args))})"

    def function_head(self, result: str, name: str, params: str) -> str:
        """`fn name(x: f32) -> f32`."""
        return f"fn {name}({params}) -> {result}"

    # values

    def splat(self, value: str, dtype: DType, n: int) -> str:
        """There is no SIMD here, nor in what follows."""
        raise self.no_simd(n)

    def extract(self, value: str, dtype: DType, n: int, i: int) -> str:
        """See `splat`."""
        raise self.no_simd(n)

    def build(self, parts: list[str], dtype: DType) -> str:
        """See `splat`."""
        raise self.no_simd(len(parts))

    def reverse(self, value: str, dtype: DType, n: int) -> str:
        """See `splat`."""
        raise self.no_simd(n)

    def to_mask(self, value: str, source: DType, n: int) -> str:
        """See `splat`."""
        raise self.no_simd(n)

    def select(self, condition: str, yes: str, no: str, dtype: DType, n: int) -> str:
        """`select(no, yes, condition)`."""
        return f"select({plain(no)}, {plain(yes)}, {plain(condition)})"

    def convert(self, value: str, source: DType, dtype: DType, n: int) -> str:
        """Between numbers in registers; floats to integers are `saturate`."""
        kind = self.type_of(dtype, 1)
        if source.itemsize == 8 and source.kind != "float":
            if dtype.kind == "float":
                text = self.call(f"float_of_{source.name}", value)
                return text if dtype is dtypes.float32 else f"{kind}({text})"
            return value if dtype.itemsize == 8 else self.wrap(f"{kind}({value}.x)", dtype)
        if dtype.itemsize == 8 and dtype.kind != "float":
            if source is dtypes.bool:
                return f"{WORD}(u32({plain(value)}), 0u)"
            signed = source.kind == "int"
            return self.call("words_of_int", value) if signed else f"{WORD}({plain(value)}, 0u)"
        if dtype is dtypes.float32 and source is dtypes.uint32:
            return self.call("float_of_uint32", value)
        if dtype is dtypes.float16 and source.kind in ("int", "uint"):
            return f"f16(f32({plain(value)}))"
        text = f"{kind}({plain(value)})"
        if dtype.kind == "float" or source is dtypes.bool:
            return text
        inside = source.bits < dtype.bits and (source.kind == "uint" or dtype.kind == "int")
        return text if inside else self.wrap(text, dtype)

    def reinterpret(self, value: str, source: DType, dtype: DType, n: int) -> str:
        """The same bits; those of narrow ones stand in the low bits of 32."""
        if source.itemsize == 8:
            return value
        if source.itemsize == 4:
            return f"bitcast<{self.type_of(dtype, 1)}>({plain(value)})"
        half = dtypes.float16
        if source is half and not self.is_bits(half):
            value, source = self.call("bits_of_half", value), dtypes.uint16
        if dtype is half and not self.is_bits(half):
            return self.call("half_of_bits", f"u32({plain(value)})")
        if dtype.kind == "int":
            return self.wrap(f"i32({plain(value)})", dtype)
        if source.kind == "int":
            return f"(u32({plain(value)}) & {(1 << 8 * source.itemsize) - 1}u)"
        return value

    def from_bits(self, value: str, source: DType, n: int) -> str:
        """Of a half."""
        if source is not dtypes.float16:
            return super().from_bits(value, source, n)
        return self.call("float_of_half", value)

    def to_bits(self, value: str, source: DType, dtype: DType, n: int) -> str:
        """Of a half; by way of float it is rounded twice, but what would differ is infinite."""
        if dtype is not dtypes.float16:
            return super().to_bits(value, source, dtype, n)
        if source is not dtypes.float32:
            value = self.convert(value, source, dtypes.float32, n)
        return self.call("half_of_float", value)

    def saturate(self, value: str, source: DType, dtype: DType, n: int) -> str:
        """By a function that looks at the bits."""
        value = value if source is dtypes.float32 else f"f32({plain(value)})"
        return self.call(f"{dtype.name}_of_float", value)

    def math_call(self, name: str, args: list[str], dtype: DType, n: int) -> str:
        """The built-in functions; of halves by way of float, whose errors vanish in a half."""
        if name == "exp2":
            self.use("exp2_float")
            name = "exp2_float"
        if dtype is dtypes.float16 and name != "trunc":
            return f"f16({name}({', '.join(f'f32({plain(x)})' for x in args)}))"
        return f"{name}({', '.join(map(plain, args))})"

    def multiply_add(self, args: list[str], dtype: DType, n: int) -> str:
        """Rounded twice, or once where a compiler joins them."""
        return f"({args[0]} * {args[1]} + {args[2]})"

    def maximum(self, args: list[str], dtype: DType, n: int) -> str:
        """The built-in leaves NaN and the sign of zero open."""
        if dtype is dtypes.float16:
            return f"f16({self.call('max_float', *[f'f32({plain(x)})' for x in args])})"
        return self.call("max_float", *args)


def plain(text: str) -> str:
    """An argument without its parentheses, unless a comparison could be taken for a template."""
    inner = bare(text)
    return text if "<" in inner or ">" in inner else inner
