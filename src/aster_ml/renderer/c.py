"""Renders readable C for a compiler on PATH: C11 with the SIMD extension that GCC and Clang share.

Receives a `Linear` for a CPU target; returns one file with one function
`void NAME(uint64_t *args, int64_t lo, int64_t hi)`: the buffers' pointers by slot, then the
variables as 64-bit integers, and the part of the THREAD range to run.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from aster_ml.config import EXACT
from aster_ml.dtype import DType, dtypes
from aster_ml.renderer.access import PAGE_NBYTES, unused_before
from aster_ml.renderer.base import Renderer
from aster_ml.renderer.cell import Address, Value
from aster_ml.renderer.cstyle import BIT_DTYPES, CStyleWriter
from aster_ml.renderer.cstyle_rules import bare
from aster_ml.uop.linear import Linear

TYPES = {
    dtypes.bool: "bool", dtypes.float16: "_Float16", dtypes.float32: "float",
    dtypes.float64: "double", **{d: f"{d.name}_t" for d in dtypes.ints},
}  # fmt: skip
# As OpenCL and CUDA name them: `float4`.
VECTORS = {
    dtypes.float16: "half", dtypes.float32: "float", dtypes.float64: "double",
    dtypes.int8: "char", dtypes.int16: "short", dtypes.int32: "int", dtypes.int64: "long",
    dtypes.uint8: "uchar", dtypes.uint16: "ushort", dtypes.uint32: "uint", dtypes.uint64: "ulong",
    dtypes.bool: "char",
}  # fmt: skip
SIGNED = {1: dtypes.int8, 2: dtypes.int16, 4: dtypes.int32, 8: dtypes.int64}


class CRenderer(Renderer):
    """C for the CPU."""

    @property
    def writer(self) -> type[CWriter]:
        """The class that writes one kernel."""
        return CWriter

    def render(self, linear: Linear) -> str:
        """The C source of one kernel."""
        return self.writer(self.target, linear).run()

    def render_all(self, linears: Sequence[Linear], rest: Sequence[str]) -> str:
        """The C source of several kernels, and what stands behind them."""
        helpers: dict[str, str] = {}
        functions: list[str] = []
        for linear in linears:
            writer = self.writer(self.target, linear)
            writer.run()
            helpers.update(writer.helpers)
            functions += [*writer.whole_function(), ""]
        return "\n".join([*headers(helpers), *functions, *rest])


def c_type(dtype: DType) -> str:
    """C99's type of an element; one that C99 lacks is an unsigned integer of its bits."""
    return TYPES[BIT_DTYPES.get(dtype, dtype)]


def headers(helpers: dict[str, str]) -> list[str]:
    """Includes, types and helper functions."""
    body = [*helpers.values()]
    includes = ["#include <stdbool.h>", "#include <stdint.h>"]
    if any("#math" in text for text in body):
        includes.insert(0, "#include <math.h>")
        body = [text for text in body if "#math" not in text]
    return [*includes, "", *body, *([""] if body else [])]


class CWriter(CStyleWriter):
    """Writes the C of one kernel."""

    def prologue(self) -> None:
        """Names the arguments."""
        self.head: list[str] = []
        self.streams = False
        for slot, p in enumerate(self.linear.params):
            kind = self.type_of(p.dtype, 1)
            const = "" if p.arg.slot in self.linear.written else "const "
            self.names[p] = f"buf{slot}"
            self.head.append(f"  {const}{kind} *buf{slot} = ({const}{kind} *)args[{slot}];")
        for i, v in enumerate(self.linear.variables, len(self.linear.params)):
            kind, name = self.type_of(v.dtype, 1), self.name_variable(v)
            self.head.append(f"  {kind} {name} = ({kind})args[{i}];")

    def finish(self) -> str:
        """Headers, types, helpers, the function."""
        return "\n".join([*headers(self.helpers), *self.whole_function(), ""])

    def whole_function(self) -> list[str]:
        """The function alone."""
        return [
            f"void {self.linear.name}(uint64_t *args, int64_t lo, int64_t hi) {{",
            *self.head,
            *self.scratch,
            *self.lines,
            # Other stores would be seen before those that went past the caches.
            *(["#ifdef __SSE2__", "  __builtin_ia32_sfence();", "#endif"] * self.streams),
            "}",
        ]

    def type_of(self, dtype: DType, n: int) -> str:
        """C's own types, and SIMD types named by element and width: `float8`."""
        dtype = BIT_DTYPES[dtype] if self.is_bits(dtype) else dtype
        if n == 1:
            return TYPES[dtype]
        name = f"{VECTORS[dtype]}{n}"
        if name not in self.helpers:
            scalar = TYPES[dtypes.int8 if dtype is dtypes.bool else dtype]
            nbytes = n * dtype.itemsize
            self.helper(name, f"typedef {scalar} {name} __attribute__((vector_size({nbytes})));")
        return name

    def special_float(self, value: float, dtype: DType) -> str:
        """Infinity or NaN, by the compiler's built-ins."""
        double = dtype is dtypes.float64
        text = '__builtin_nan("")' if double else '__builtin_nanf("")'
        if not math.isnan(value):
            text = "__builtin_inf()" if double else "__builtin_inff()"
            text = f"(-{text})" if value < 0 else text
        return f"(_Float16){text}" if dtype is dtypes.float16 else text

    def scratch_line(self, name: str, dtype: DType, size: int, private: bool) -> str:
        """An array on the stack, or the part of one that begins in the middle of a page."""
        kind, unused = self.type_of(dtype, 1), unused_before(dtype, size)
        if not unused:
            return f"  {kind} {name}[{size}] __attribute__((aligned(64)));"
        pages = f"{name}_pages[{unused + size}] __attribute__((aligned({PAGE_NBYTES})))"
        return f"  {kind} {pages}, *{name} = {name}_pages + {unused};"

    # memory

    def load_text(self, name: str, index: str, dtype: DType, n: int, scratch: bool) -> str:
        """An element, or a copy of bytes that the compiler knows as one unaligned load."""
        if n == 1:
            return f"{name}[{index}]"
        return f"{self.load_helper(dtype, n)}({name}{'' if index == '0' else f' + {index}'})"

    def store_text(
        self, name: str, index: str, value: str, dtype: DType, n: int, scratch: bool
    ) -> str:
        """The reverse."""
        if n == 1:
            return f"{name}[{index}] = {value};"
        place = name if index == "0" else f"{name} + {index}"
        return f"{self.store_helper(dtype, n)}({place}, {value});"

    def ask_for(self, at: Address) -> None:
        """The compiler's built-in, into the second cache."""
        self.write(f"__builtin_prefetch({self.names[at.place]} + {self.index(at)}, 0, 2);")

    def store_past_caches(self, stores: list[tuple[Address, str]], dtype: DType, n: int) -> None:
        """A helper, which looks at the address, an instance."""
        name = f"stream_{self.short(dtype, n)}"
        if name not in self.helpers:
            vector = self.type_of(dtype, n)
            body = (
                "__builtin_memcpy(p, &v, sizeof v);\n#else\n"
                f"  if ((uintptr_t)p % {n * dtype.itemsize}) __builtin_memcpy(p, &v, sizeof v);\n"
                f"  else __builtin_nontemporal_store(v, ({vector} *)p);\n#endif"
            )
            body = f"\n#ifndef __clang__\n  {body}"
            params = f"{self.type_of(dtype, 1)} *p, {vector} v"
            self.helper_function("void", name, params, body)
        self.streams = True
        for at, value in stores:
            self.write(f"{name}({self.names[at.place]} + {self.index(at)}, {bare(value)});")

    def load_helper(self, dtype: DType, n: int) -> str:
        """The function that loads a SIMD value."""
        name = f"load_{self.short(dtype, n)}"
        if name not in self.helpers:
            vector = self.type_of(dtype, n)
            result = "-v" if dtype is dtypes.bool else "v"
            body = f"{vector} v; __builtin_memcpy(&v, p, sizeof v); return {result};"
            params = f"const {self.type_of(dtype, 1)} *p"
            self.helper_function(vector, name, params, body)
        return name

    def store_helper(self, dtype: DType, n: int) -> str:
        """The function that stores a SIMD value."""
        name = f"store_{self.short(dtype, n)}"
        if name not in self.helpers:
            params = f"{self.type_of(dtype, 1)} *p, {self.type_of(dtype, n)} v"
            negate = "v = -v; " if dtype is dtypes.bool else ""
            body = f"{negate}__builtin_memcpy(p, &v, sizeof v);"
            self.helper_function("void", name, params, body)
        return name

    # SIMD values

    def splat(self, value: str, dtype: DType, n: int) -> str:
        """A call of a helper that names the value n times."""
        name = f"splat_{self.short(dtype, n)}"
        if name not in self.helpers:
            vector = self.type_of(dtype, n)
            one = "-x" if dtype is dtypes.bool else "x"
            body = f"return ({vector}){{{', '.join([one] * n)}}};"
            self.helper_function(vector, name, f"{self.type_of(dtype, 1)} x", body)
        return f"{name}({value})"

    def extract(self, value: str, dtype: DType, n: int, i: int) -> str:
        """`v[i]`."""
        value = value if value.isidentifier() else f"({value})"
        return f"(bool){value}[{i}]" if dtype is dtypes.bool else f"{value}[{i}]"

    def build(self, parts: list[str], dtype: DType) -> str:
        """A compound literal."""
        if dtype is dtypes.bool:
            parts = [p if p == "0" else f"-{p}" for p in parts]
        return f"({self.type_of(dtype, len(parts))}){{{', '.join(parts)}}}"

    def reverse(self, value: str, dtype: DType, n: int) -> str:
        """A helper that names the elements from the last to the first."""
        name = f"reverse_{self.short(dtype, n)}"
        if name not in self.helpers:
            vector = self.type_of(dtype, n)
            parts = ", ".join(f"v[{i}]" for i in reversed(range(n)))
            body = f"return ({vector}){{{parts}}};"
            self.helper_function(vector, name, f"{vector} v", body)
        return f"{name}({value})"

    def convert(self, value: str, source: DType, dtype: DType, n: int) -> str:
        """A cast, or the built-in that casts each element."""
        kind = self.type_of(dtype, n)
        return f"({kind}){value}" if n == 1 else f"__builtin_convertvector({value}, {kind})"

    def reinterpret(self, value: str, source: DType, dtype: DType, n: int) -> str:
        """The bits, through a helper; of a SIMD value, a cast."""
        before, after = self.type_of(source, n), self.type_of(dtype, n)
        if before == after:
            return value
        if n > 1:
            return f"(({after}){value})"
        name = f"{self.short(source, 1)}_as_{self.short(dtype, 1)}"
        body = f"{after} y; __builtin_memcpy(&y, &x, sizeof y); return y;"
        self.helper(name, self.function(after, name, f"{before} x", body))
        return f"{name}({value})"

    def to_mask(self, value: str, source: DType, n: int) -> str:
        """A comparison gives integers as wide as its operands."""
        mask = self.type_of(dtypes.bool, n)
        return value if source.itemsize == 1 else f"__builtin_convertvector({value}, {mask})"

    def select(self, condition: str, yes: str, no: str, dtype: DType, n: int) -> str:
        """Bitwise, in a helper: C has no `?:` on SIMD values."""
        name = f"select_{self.short(dtype, n)}"
        if name not in self.helpers:
            vector, mask = self.type_of(dtype, n), self.type_of(dtypes.bool, n)
            if dtype.itemsize == 1:
                body = "return (a & c) | (b & ~c);"
                if dtype is not dtypes.bool and dtype is not dtypes.int8:
                    body = f"return (a & ({vector})c) | (b & ~({vector})c);"
            else:
                bits = self.type_of(SIGNED[dtype.itemsize], n)
                body = (
                    f"{bits} m = __builtin_convertvector(c, {bits});\n"
                    f"  return ({vector})((({bits})a & m) | (({bits})b & ~m));"
                )
            params = f"{mask} c, {vector} a, {vector} b"
            self.helper_function(vector, name, params, body)
        return f"{name}({condition}, {yes}, {no})"

    # arithmetic

    def saturate(self, value: str, source: DType, dtype: DType, n: int) -> str:
        """Comparisons with the limits, in a helper."""
        if source is dtypes.float16:
            value, source = self.convert(value, source, dtypes.float32, n), dtypes.float32
        return self.saturate_by_limits(value, source, dtype, n)

    def math_call(self, name: str, args: list[str], dtype: DType, n: int) -> str:
        """math.h; halves by way of float."""
        self.helper("#math", "#math")
        if dtype is dtypes.float16:
            wide = [self.convert(x, dtype, dtypes.float32, n) for x in args]
            return self.convert(
                self.math_call(name, wide, dtypes.float32, n), dtypes.float32, dtype, n
            )
        full = name + ("f" if dtype is dtypes.float32 else "")
        return self.each(full, dtype, n, args, [dtype] * len(args))

    def multiply_add(self, args: list[str], dtype: DType, n: int) -> str:
        """The compiler contracts it where the processor can; with EXACT=1 it contracts nothing."""
        if EXACT:
            return self.math_call("fma", args, dtype, n)
        return f"({args[0]} * {args[1]} + {args[2]})"

    def maximum(self, args: list[str], dtype: DType, n: int) -> str:
        """Equal operands differ only in the sign of zero; `and` of their bits clears it."""
        kind, bits = self.type_of(dtype, 1), SIGNED[dtype.itemsize]
        a, b = self.reinterpret("a", dtype, bits, 1), self.reinterpret("b", dtype, bits, 1)
        zero = self.reinterpret(f"({self.type_of(bits, 1)})({a} & {b})", bits, dtype, 1)
        name = self.scalar_helper(
            f"max_{self.short(dtype, 1)}",
            dtype,
            f"{kind} a, {kind} b",
            f"return a > b || a != a ? a : a == b ? {zero} : b;",
        )
        if n == 1:
            return self.each(name, dtype, n, args, [dtype, dtype])
        return self.vector_maximum(args, dtype, n)

    def vector_maximum(self, args: list[str], dtype: DType, n: int) -> str:
        """The same on SIMD values."""
        name = f"max_{self.short(dtype, n)}"
        if name not in self.helpers:
            vector, mask = self.type_of(dtype, n), self.type_of(SIGNED[dtype.itemsize], n)
            body = (
                f"{mask} first = (a > b) | (a != a), both = a == b, x = ({mask})a, "
                f"y = ({mask})b;\n"
                f"  return ({vector})((first & x) | (both & x & y) | (~first & ~both & y));"
            )
            self.helper_function(vector, name, f"{vector} a, {vector} b", body)
        return f"{name}({args[0]}, {args[1]})"

    def load_masked(self, at: Value, dtype: DType, n: int, gate: Value) -> str:
        """A helper that looks at each element's condition."""
        if gate.__class__ is not str:
            return super().load_masked(at, dtype, n, gate)
        name = f"load_masked_{self.short(dtype, n)}"
        if name not in self.helpers:
            vector, mask = self.type_of(dtype, n), self.type_of(dtypes.bool, n)
            one = "-p[i]" if dtype is dtypes.bool else "p[i]"
            body = (
                f"{vector} v = {{0}};\n"
                f"  for (int i = 0; i < {n}; i++) if (m[i]) v[i] = {one};\n  return v;"
            )
            params = f"const {self.type_of(dtype, 1)} *p, {mask} m"
            self.helper_function(vector, name, params, body)
        return f"{name}({self.names[at.place]} + {self.index(at)}, {gate})"

    def store_masked(self, at: Value, dtype: DType, n: int, value: str, gate: Value) -> None:
        """The same for stores."""
        if gate.__class__ is not str:
            super().store_masked(at, dtype, n, self.name_value(value, dtype, n), gate)
            return
        name = f"store_masked_{self.short(dtype, n)}"
        if name not in self.helpers:
            vector, mask = self.type_of(dtype, n), self.type_of(dtypes.bool, n)
            one = "v[i] != 0" if dtype is dtypes.bool else "v[i]"
            body = f"for (int i = 0; i < {n}; i++) if (m[i]) p[i] = {one};"
            params = f"{self.type_of(dtype, 1)} *p, {vector} v, {mask} m"
            self.helper_function("void", name, params, body)
        place = f"{self.names[at.place]} + {self.index(at)}"
        self.write(f"{name}({place}, {bare(value)}, {bare(gate)});")
