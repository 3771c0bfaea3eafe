"""Renders OpenCL C 1.2: one kernel, run by blocks of work-items.

Receives a `Linear`; returns one `__kernel`. GLOBAL ranges are group numbers and LOCAL ranges local
numbers, in the order in which they stand in the list. A buffer is two arguments, its memory and the
byte at which it starts, because a view may start anywhere and a sub-buffer may not; then come the
variables, as 64-bit integers. SIMD widths are 2, 4, 8 and 16. Where the device has no arithmetic of
halves, they are bits, as bfloat16 and fp8 are, and only casts look into them.
"""

from __future__ import annotations

import math

from aster_ml.dtype import DType, dtypes
from aster_ml.errors import InternalError
from aster_ml.renderer.base import Renderer
from aster_ml.renderer.cell import Cell
from aster_ml.renderer.cstyle import BIT_DTYPES, MaskedByElement
from aster_ml.renderer.cstyle_rules import bare
from aster_ml.renderer.lanes import size_of
from aster_ml.uop.linear import Linear
from aster_ml.uop.ops import AxisType, Ops

TYPES = {
    dtypes.float16: "half", dtypes.float32: "float", dtypes.float64: "double",
    dtypes.int8: "char", dtypes.int16: "short", dtypes.int32: "int", dtypes.int64: "long",
    dtypes.uint8: "uchar", dtypes.uint16: "ushort", dtypes.uint32: "uint", dtypes.uint64: "ulong",
}  # fmt: skip
SIGNED = {1: dtypes.int8, 2: dtypes.int16, 4: dtypes.int32, 8: dtypes.int64}
WIDTHS = (2, 4, 8, 16)


class OpenCLRenderer(Renderer):
    """OpenCL C."""

    def render(self, linear: Linear) -> str:
        """The source of one kernel."""
        return OpenCLWriter(self.target, linear).run()


class OpenCLWriter(MaskedByElement):
    """Writes the OpenCL C of one kernel."""

    long_suffix = "L"

    def prologue(self) -> None:
        """Names the arguments."""
        self.has_half = self.target.has_dtype("float16")
        self.local_sizes: list[int] = []
        self.arguments: list[str] = []
        self.head: list[str] = []
        for slot, p in enumerate(self.linear.params):
            kind = self.memory_type(p.dtype)
            const = "" if p.arg.slot in self.linear.written else "const "
            self.names[p] = f"buf{slot}"
            self.arguments += [f"__global {const}char *mem{slot}", f"long at{slot}"]
            pointer = f"__global {const}{kind} *"
            self.head.append(f"  {pointer}buf{slot} = ({pointer})(mem{slot} + at{slot});")
        for v in self.linear.variables:
            kind, name = self.type_of(v.dtype, 1), self.name_variable(v)
            self.arguments.append(f"long wide_{name}")
            self.head.append(f"  {kind} {name} = ({kind})wide_{name};")

    def finish(self) -> str:
        """Extensions, helpers, the kernel."""
        used = {c.dtype for c in self.cells.values()}
        extensions = [
            f"#pragma OPENCL EXTENSION {name} : enable"
            for dtype, name in ((dtypes.float64, "cl_khr_fp64"), (dtypes.float16, "cl_khr_fp16"))
            if dtype in used and (dtype is dtypes.float64 or self.has_half)
        ]
        sizes = ""
        if self.local_sizes:
            x, y, z = (*self.local_sizes, 1, 1, 1)[:3]
            sizes = f"__attribute__((reqd_work_group_size({x}, {y}, {z})))\n"
        body = [*extensions, *self.helpers.values()]
        head = f"{sizes}__kernel void {self.linear.name}({', '.join(self.arguments)}) {{"
        return "\n".join(
            [*body, *([""] if body else []), head, *self.head, *self.scratch, *self.lines, "}", ""]
        )

    def work_item(self, c: Cell, kind: AxisType, dim: int) -> str:
        """`get_group_id(0)`."""
        if dim > 2:
            raise InternalError(f"renderer: {c.u!r} is a fourth dimension of {kind.value} numbers")
        if kind is AxisType.LOCAL:
            self.local_sizes.append(size_of(c.u))
        call = "get_group_id" if kind is AxisType.GLOBAL else "get_local_id"
        name = f"{'g' if kind is AxisType.GLOBAL else 'l'}{c.u.arg.id}"
        self.write(f"{self.type_of(c.dtype, 1)} {name} = {call}({dim});")
        return name

    def barrier(self) -> None:
        """Waits until the work-group has written what it shares."""
        self.write("barrier(CLK_LOCAL_MEM_FENCE);")

    # types

    def is_bits(self, dtype: DType) -> bool:
        """Halves are, where the device has none."""
        return dtype in BIT_DTYPES and not (dtype is dtypes.float16 and self.has_half)

    def type_of(self, dtype: DType, n: int) -> str:
        """OpenCL's names."""
        dtype = BIT_DTYPES[dtype] if self.is_bits(dtype) else dtype
        if n > 1 and n not in WIDTHS:
            raise InternalError(f"renderer: OpenCL has no SIMD type of {n} elements")
        if dtype is dtypes.bool:
            return "bool" if n == 1 else f"char{n}"
        return TYPES[dtype] + ("" if n == 1 else str(n))

    def memory_type(self, dtype: DType) -> str:
        """The type of an element in memory."""
        dtype = BIT_DTYPES[dtype] if self.is_bits(dtype) else dtype
        return "uchar" if dtype is dtypes.bool else TYPES[dtype]

    def special_float(self, value: float, dtype: DType) -> str:
        """Infinity or NaN."""
        text = "NAN" if math.isnan(value) else ("INFINITY" if value > 0 else "(-INFINITY)")
        return text if self.type_of(dtype, 1) == "float" else f"({self.type_of(dtype, 1)}){text}"

    def scratch_line(self, name: str, dtype: DType, size: int, private: bool) -> str:
        """Memory of the block where there are blocks of work-items, else of the work-item."""
        where = "__local " if self.target.has_local and not private else ""
        return f"  {where}{self.memory_type(dtype)} {name}[{size}];"

    # memory

    def load_text(self, name: str, index: str, dtype: DType, n: int, scratch: bool) -> str:
        """An element, or the unaligned loads of OpenCL."""
        text = f"{name}[{index}]" if n == 1 else f"vload{n}(0, {place(name, index)})"
        if dtype is not dtypes.bool:
            return text
        return f"({text} != 0)" if n == 1 else f"({text} != (uchar{n})(0))"

    def store_text(
        self, name: str, index: str, value: str, dtype: DType, n: int, scratch: bool
    ) -> str:
        """The reverse."""
        if n == 1:
            return f"{name}[{index}] = {value};"
        if dtype is dtypes.bool:
            value = f"as_uchar{n}(-({value}))"
        return f"vstore{n}({value}, 0, {place(name, index)});"

    # SIMD values

    def splat(self, value: str, dtype: DType, n: int) -> str:
        """`(float4)(x)`."""
        one = f"-{value}" if dtype is dtypes.bool else bare(value)
        return f"({self.type_of(dtype, n)})({one})"

    def extract(self, value: str, dtype: DType, n: int, i: int) -> str:
        """`v.s0`."""
        value = value if value.isidentifier() else f"({value})"
        text = f"{value}.s{i:x}"
        return f"({text} != 0)" if dtype is dtypes.bool else text

    def build(self, parts: list[str], dtype: DType) -> str:
        """`(float4)(a, b, c, d)`."""
        if dtype is dtypes.bool:
            parts = [p if p == "0" else f"-{p}" for p in parts]
        return f"({self.type_of(dtype, len(parts))})({', '.join(parts)})"

    def reverse(self, value: str, dtype: DType, n: int) -> str:
        """`v.s3210`."""
        return f"({value}).s{''.join(f'{i:x}' for i in reversed(range(n)))}"

    def convert(self, value: str, source: DType, dtype: DType, n: int) -> str:
        """The conversion that wraps integers and rounds floats to nearest."""
        kind = self.type_of(dtype, n)
        if n == 1:
            return f"({kind}){value}"
        rounding = "_rte" if dtype.kind == "float" else ""
        return f"convert_{kind}{rounding}({bare(value)})"

    def reinterpret(self, value: str, source: DType, dtype: DType, n: int) -> str:
        """`as_int4(v)`."""
        before, after = self.type_of(source, n), self.type_of(dtype, n)
        if before == after:
            return value
        if n == 1 and source.kind != "float" and source.itemsize < 4:
            # C makes an int of a small one that is chosen or computed.
            value = f"({before}){value}"
        return f"as_{after}({bare(value)})"

    def from_bits(self, value: str, source: DType, n: int) -> str:
        """Of a half, a load from where the bits are put."""
        if source is not dtypes.float16:
            return super().from_bits(value, source, n)
        kind = self.type_of(dtypes.float32, n)
        load = "vload_half(0, (half *)&x)" if n == 1 else f"vload_half{n}(0, (half *)&x)"
        params, body = f"{self.type_of(source, n)} x", f"return {load};"
        name = self.helper_function(kind, f"half_to_{kind}", params, body)
        return f"{name}({bare(value)})"

    def to_bits(self, value: str, source: DType, dtype: DType, n: int) -> str:
        """Of a half, a store that rounds to nearest, and a look at the bits."""
        if dtype is not dtypes.float16:
            return super().to_bits(value, source, dtype, n)
        if source not in (dtypes.float32, dtypes.float64):
            if source is dtypes.bool and n > 1:
                value, source = f"(-{value})", dtypes.int8
            # By way of float a half is rounded twice, but what would differ is infinite in half.
            value, source = self.convert(value, source, dtypes.float32, n), dtypes.float32
        before, after = self.type_of(source, n), self.type_of(dtype, n)
        store = "vstore_half_rte" if n == 1 else f"vstore_half{n}_rte"
        body = f"{after} bits; {store}(x, 0, (half *)&bits); return bits;"
        name = self.helper_function(after, f"{before}_to_half", f"{before} x", body)
        return f"{name}({bare(value)})"

    def to_mask(self, value: str, source: DType, n: int) -> str:
        """A comparison gives integers as wide as its operands."""
        narrow = source.itemsize == 1
        return value if narrow else f"convert_char{n}({bare(value)})"

    def select(self, condition: str, yes: str, no: str, dtype: DType, n: int) -> str:
        """`select(no, yes, mask)`, with a mask as wide as the values."""
        if dtype is dtypes.bool:
            return f"select({no}, {yes}, {condition})"
        bits = self.type_of(SIGNED[dtype.itemsize], n)
        mask = condition if bits == f"char{n}" else f"convert_{bits}({bare(condition)})"
        return f"select({no}, {yes}, {mask})"

    # arithmetic

    def saturate(self, value: str, source: DType, dtype: DType, n: int) -> str:
        """OpenCL's saturating conversion; what it makes of NaN is left to the device."""
        body = f"return x != x ? 0 : convert_{self.type_of(dtype, 1)}_sat_rtz(x);"
        return self.converted(value, source, dtype, n, body)

    def math_call(self, name: str, args: list[str], dtype: DType, n: int) -> str:
        """The built-in functions take every width."""
        return f"{name}({', '.join(bare(x) for x in args)})"

    def multiply_add(self, args: list[str], dtype: DType, n: int) -> str:
        """The built-in of one rounding."""
        return f"fma({', '.join(bare(x) for x in args)})"

    def accumulate_product(self, reg: Cell, r: int, op: Ops, a: str, b: str) -> None:
        """`acc = fma(a, b, acc);`"""
        name = reg.values[r]
        self.write(f"{name} = {self.multiply_add([a, b, name], reg.dtype, reg.width)};")

    def maximum(self, args: list[str], dtype: DType, n: int) -> str:
        """The built-in ignores NaN and leaves the sign of zero open."""
        kind = self.type_of(dtype, 1)
        body = "return a > b || a != a ? a : a < b || b != b ? b : signbit(a) ? b : a;"
        name = f"max_{self.short(dtype, 1)}"
        self.scalar_helper(name, dtype, f"{kind} a, {kind} b", body)
        if n == 1:
            return self.each(name, dtype, n, args, [dtype, dtype])
        full = f"max_{self.short(dtype, n)}"
        vector = self.type_of(dtype, n)
        bits = self.type_of(SIGNED[dtype.itemsize], n)
        body = (
            f"{bits} equal = a == b;\n"
            f"  {vector} larger = select(b, a, (a > b) | (a != a));\n"
            f"  return select(larger, as_{vector}(as_{bits}(a) & as_{bits}(b)), equal);"
        )
        self.helper_function(vector, full, f"{vector} a, {vector} b", body)
        return f"{full}({', '.join(bare(x) for x in args)})"


def place(name: str, index: str) -> str:
    """A pointer to an element."""
    return name if index == "0" else f"{name} + {index}"
