"""Writes C++ of graphics processors: what CUDA C++ and Metal's language share.

Receives a `Linear` of a target with work-groups. SIMD values are `aster_vec<T, N>`, a struct with
operators on elements that stands before the kernel where one is used; a loop over its elements is
unrolled, so that it lives in registers. What differs (types, heads, the numbers of blocks and
work-items, narrow floats) is in `cuda` and `metal`; texts that stand before kernels are in
`gpu.hpp`.
"""

from __future__ import annotations

import abc
import math

from aster_ml.dtype import DType, bitcast_value, dtypes, round_float
from aster_ml.errors import InternalError
from aster_ml.renderer.alignment import Divisors
from aster_ml.renderer.cell import Address, Cell
from aster_ml.renderer.cstyle import BIT_DTYPES, MaskedByElement
from aster_ml.renderer.cstyle_rules import bare
from aster_ml.renderer.lanes import size_of
from aster_ml.uop.linear import Linear, shared_nbytes
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import AxisType, Ops

NARROW = (dtypes.float16, dtypes.bfloat16)
# A load or store of neighbours moves so many bytes at most.
WIDEST_NBYTES = 16
INTEGER_WORDS = {
    dtypes.int8: "signed char", dtypes.int16: "short", dtypes.int32: "int",
    dtypes.uint8: "unsigned char", dtypes.uint16: "unsigned short", dtypes.uint32: "unsigned int",
}  # fmt: skip


class GpuCppWriter(MaskedByElement):
    """Writes one kernel in a C++ for graphics processors."""

    # What stands before kernels, by name; each brings what it needs.
    texts: dict[str, str]
    needs: dict[str, tuple[str, ...]]
    words: dict[DType, str]

    def prologue(self) -> None:
        """Names the arguments."""
        self.local_sizes: list[int] = []
        self.arguments: list[str] = []
        self.head: list[str] = []
        self.divisors = Divisors()
        for slot, p in enumerate(self.linear.params):
            self.names[p] = f"buf{slot}"
            self.arguments.append(self.buffer_argument(p, slot))
        for number, v in enumerate(self.linear.variables):
            kind, name = self.type_of(v.dtype, 1), self.name_variable(v)
            self.arguments.append(self.variable_argument(name, number))
            self.head.append(f"  {kind} {name} = ({kind})wide_{name};")

    def bring(self, name: str) -> str:
        """A text before the kernel, and what it needs; its name."""
        wanted = [] if name in self.helpers else [name]
        for x in wanted:
            wanted += self.needs[x]
        # What is needed stands before what needs it.
        for x in reversed(wanted):
            self.helper(x, self.texts[x])
        return name

    def function(self, result: str, name: str, params: str, body: str) -> str:
        """A helper function."""
        text = super().function(result, name, params, body)
        return text.replace("static inline", self.function_words, 1)

    function_words = "static inline"

    # types

    def is_bits(self, dtype: DType) -> bool:
        """Only fp8: the other narrow floats are types here."""
        return dtype in BIT_DTYPES and dtype not in NARROW

    def memory_type(self, dtype: DType) -> str:
        """The type of an element in memory, which is that of a scalar."""
        return self.type_of(dtype, 1)

    def type_of(self, dtype: DType, n: int) -> str:
        """The language's words; SIMD types by element and width, as `f32x4`."""
        dtype = BIT_DTYPES[dtype] if self.is_bits(dtype) else dtype
        dtype = dtypes.int8 if dtype is dtypes.bool and n > 1 else dtype
        word = self.words[dtype]
        if word in self.texts:
            self.bring(word)
        if n == 1:
            return word
        if n & (n - 1):
            raise InternalError(f"renderer: SIMD values of {n} elements are of no power of two")
        name = self.short(dtype, n)
        if name not in self.helpers:
            self.bring("aster_vec")
            self.helper(name, f"typedef aster_vec<{word}, {n}> {name};")
        return name

    def float_literal(self, value: float, dtype: DType) -> str:
        """A float; of a narrow type, its bits."""
        if dtype in NARROW and self.words[dtype] in self.texts:
            bits = bitcast_value(round_float(value, dtype), dtype, dtypes.uint16)
            return f"{self.type_of(dtype, 1)}::of(0x{int(bits):04x})"
        return super().float_literal(value, dtype)

    def special_float(self, value: float, dtype: DType) -> str:
        """Infinity or NaN."""
        text = "NAN" if math.isnan(value) else ("INFINITY" if value > 0 else "(-INFINITY)")
        return text if self.type_of(dtype, 1) == "float" else f"({self.type_of(dtype, 1)}){text}"

    # blocks

    def work_item(self, c: Cell, kind: AxisType, dim: int) -> str:
        """The number of the block or of the work-item."""
        if dim > 2:
            raise InternalError(f"renderer: {c.u!r} is a fourth dimension of {kind.value} numbers")
        if kind is AxisType.LOCAL:
            self.local_sizes.append(size_of(c.u))
        name = f"{'g' if kind is AxisType.GLOBAL else 'l'}{c.u.arg.id}"
        number, word = self.number_of(kind, dim), self.type_of(c.dtype, 1)
        self.write(f"{word} {name} = ({word}){number};")
        return name

    # memory

    def load(self, at: Address, dtype: DType, n: int, gate: str | None) -> str:
        """An element, or neighbours in as few pieces as their place allows."""
        if n == 1:
            return super().load(at, dtype, n, gate)
        place = self.place(at, dtype)
        call = self.bring(self.mover("load", at, dtype, n))
        text = f"{call}<{self.type_of(dtype, n)}, {self.alignment(at, dtype, n)}>({place})"
        text = f"(-{text})" if dtype is dtypes.bool else text
        if gate is None:
            return text
        return f"({gate} ? {text} : {self.text(dtypes.as_const(0, dtype), dtype, n)})"

    def store(self, at: Address, dtype: DType, n: int, value: str, gate: str | None) -> None:
        """The reverse."""
        if n == 1:
            super().store(at, dtype, n, value, gate)
            return
        value = f"-{value}" if dtype is dtypes.bool else bare(value)
        call = self.bring(self.mover("store", at, dtype, n))
        place = self.place(at, dtype)
        text = f"{call}<{self.alignment(at, dtype, n)}>({place}, {value});"
        self.write(text if gate is None else f"if ({bare(gate)}) {text}")

    def mover(self, word: str, at: Address, dtype: DType, n: int) -> str:
        """The function that loads or stores neighbours; buffers may begin at any element."""
        return f"aster_{word}" if at.place.op is Ops.DEFINE_LOCAL else f"aster_{word}_any"

    def store_groups(self, c: Cell) -> list[list[int]]:
        """Instances of one element each that fill a piece of memory: one store has them all.

        So are the results of a tensor core, of which a thread has neighbours.
        """
        if c.width > 1 or c.place is None or c.value is None or not is_tile(c.place):
            return super().store_groups(c)
        dtype = c.value[0].dtype
        groups: list[list[int]] = []
        for run in self.neighbours(c) if dtype is not dtypes.bool else []:
            left = run
            while left:
                base, offset, gate = self.operands_of_access(c, left[0])
                at, size = self.address(c, base, offset), 1 << len(left).bit_length() - 1
                size = min(size, WIDEST_NBYTES // dtype.itemsize) if gate is not False else 1
                while size > 1 and self.alignment(at, dtype, size) < size * dtype.itemsize:
                    size //= 2
                groups.append(left[: max(size, 1)])
                left = left[max(size, 1) :]
        # Else in the order in which they were asked for.
        wide = any([len(group) > 1 for group in groups])
        return groups if wide else super().store_groups(c)

    def store_lanes(self, c: Cell, group: list[int]) -> None:
        """Stores elements that lie side by side at once."""
        assert c.value is not None
        base, offset, gate = self.operands_of_access(c, group[0])
        source, m = c.value
        numbers = [k if m is None else m[k] for k in group]
        parts = [self.text(self.need(source, j), source.dtype, 1) for j in numbers]
        whole = self.build(parts, source.dtype)
        self.store(self.address(c, base, offset), source.dtype, len(group), whole, gate)

    def place(self, at: Address, dtype: DType) -> str:
        """A pointer to the first of neighbours; bools are bytes there."""
        index = self.index(at)
        name = self.names[at.place]
        if dtype is dtypes.bool:
            const = "const " if self.is_const(at.place) else ""
            name = f"({self.pointer_words(at.place)}{const}signed char *){name}"
        return name if index == "0" else f"{name} + {index}"

    def pointer_words(self, place: UOp) -> str:
        """Writes the qualifiers before the type in a pointer to this memory."""
        return ""

    def is_const(self, place: UOp) -> bool:
        """Whether a buffer is only read."""
        return place.op is Ops.PARAM and place.arg.slot not in self.linear.written

    def alignment(self, at: Address, dtype: DType, n: int) -> int:
        """Bytes that divide the distance of neighbours from the start of their buffer."""
        step = n * dtype.itemsize
        known = at.offset * dtype.itemsize
        if at.base is not None:
            factor = 1 if at.base_node is None else self.divisors.of(at.base_node)
            known = math.gcd(known, factor * dtype.itemsize)
        return min(math.gcd(known, step, WIDEST_NBYTES), WIDEST_NBYTES)

    def load_text(self, name: str, index: str, dtype: DType, n: int, scratch: bool) -> str:
        """An element."""
        return f"{name}[{index}]"

    def store_text(
        self, name: str, index: str, value: str, dtype: DType, n: int, scratch: bool
    ) -> str:
        """An element."""
        return f"{name}[{index}] = {value};"

    # SIMD values

    def splat(self, value: str, dtype: DType, n: int) -> str:
        """One element in all places."""
        one = f"-{value}" if dtype is dtypes.bool else bare(value)
        return f"{self.bring('aster_splat')}<{self.type_of(dtype, n)}>({one})"

    def extract(self, value: str, dtype: DType, n: int, i: int) -> str:
        """`v.at[0]`."""
        value = value if value.isidentifier() else f"({value})"
        text = f"{value}.at[{i}]"
        return f"({text} != 0)" if dtype is dtypes.bool else text

    def build(self, parts: list[str], dtype: DType) -> str:
        """A helper that takes the elements."""
        n = len(parts)
        name = f"make_{self.short(dtype, n)}"
        if name not in self.helpers:
            kind = self.type_of(dtypes.int8 if dtype is dtypes.bool else dtype, 1)
            vector, letters = self.type_of(dtype, n), [f"x{i}" for i in range(n)]
            body = self.filled(letters, dtype)
            params = ", ".join([f"{kind} {x}" for x in letters])
            self.helper_function(vector, name, params, f"{vector} v; {body} return v;")
        if dtype is dtypes.bool:
            parts = [p if p == "0" else f"-{p}" for p in parts]
        return f"{name}({', '.join([bare(p) for p in parts])})"

    def filled(self, parts: list[str], dtype: DType) -> str:
        """`v.at[0] = x0; v.at[1] = x1;`"""
        return " ".join([f"v.at[{i}] = {x};" for i, x in enumerate(parts)])

    def reverse(self, value: str, dtype: DType, n: int) -> str:
        """The elements from the last to the first."""
        self.type_of(dtype, n)
        return f"{self.bring('aster_reverse')}({bare(value)})"

    def convert(self, value: str, source: DType, dtype: DType, n: int) -> str:
        """A cast, of each element."""
        kind = self.type_of(dtype, n)
        if n == 1:
            return f"({kind}){value}"
        return f"{self.bring('aster_convert')}<{kind}>({bare(value)})"

    def reinterpret(self, value: str, source: DType, dtype: DType, n: int) -> str:
        """The same bits."""
        before, after = self.type_of(source, n), self.type_of(dtype, n)
        if before == after:
            return value
        if n > 1:
            return f"{self.bring('aster_bits')}<{after}>({bare(value)})"
        if source.kind != "float" and source.itemsize < 4:
            # C makes an int of a small one that is chosen or computed.
            value = f"({before}){value}"
        return f"{self.bring('aster_as')}<{after}>({bare(value)})"

    def to_mask(self, value: str, source: DType, n: int) -> str:
        """A comparison of SIMD values gives a mask of bytes."""
        return value

    def select(self, condition: str, yes: str, no: str, dtype: DType, n: int) -> str:
        """Element by element."""
        values = ", ".join([bare(x) for x in (condition, yes, no)])
        return f"{self.bring('aster_select')}({values})"

    # arithmetic

    def saturate(self, value: str, source: DType, dtype: DType, n: int) -> str:
        """Comparisons with the limits, in a helper."""
        if source in NARROW:
            value, source = self.convert(value, source, dtypes.float32, n), dtypes.float32
        return self.saturate_by_limits(value, source, dtype, n)

    def math_call(self, name: str, args: list[str], dtype: DType, n: int) -> str:
        """The built-in functions; of narrow floats by way of float."""
        if dtype in NARROW:
            args, kind = [self.convert(x, dtype, dtypes.float32, n) for x in args], dtypes.float32
        else:
            kind = dtype
        found = self.each(self.built_in(name, kind), kind, n, args, [kind] * len(args))
        return found if kind is dtype else self.convert(found, kind, dtype, n)

    def multiply_add(self, args: list[str], dtype: DType, n: int) -> str:
        """The built-in of one rounding; narrow floats have one of their own."""
        name = (
            self.bring(f"{self.words[dtype]}_fma")
            if dtype in NARROW
            else self.built_in("fma", dtype)
        )
        return self.each(name, dtype, n, args, [dtype] * 3)

    def accumulate_product(self, reg: Cell, r: int, op: Ops, a: str, b: str) -> None:
        """`acc = fma(a, b, acc);`"""
        name = reg.values[r]
        self.write(f"{name} = {self.multiply_add([a, b, name], reg.dtype, reg.width)};")

    def maximum(self, args: list[str], dtype: DType, n: int) -> str:
        """A helper that looks for NaN and at the sign of zero."""
        name = self.bring("aster_max")
        kind = dtypes.float32 if dtype in NARROW else dtype
        wide = [x if kind is dtype else self.convert(x, dtype, kind, n) for x in args]
        found = self.each(name, kind, n, wide, [kind, kind])
        return found if kind is dtype else self.convert(found, kind, dtype, n)

    # what the languages differ in

    @abc.abstractmethod
    def buffer_argument(self, p: UOp, slot: int) -> str:
        """The argument of a buffer, `buf0`."""

    @abc.abstractmethod
    def variable_argument(self, name: str, number: int) -> str:
        """The argument of a variable, a 64-bit integer `wide_NAME`."""

    @abc.abstractmethod
    def number_of(self, kind: AxisType, dim: int) -> str:
        """The number of the block or of the work-item in a dimension."""

    @abc.abstractmethod
    def built_in(self, name: str, dtype: DType) -> str:
        """The name of a function of the math library on float32 or float64."""


def is_tile(place: UOp) -> bool:
    """Whether neighbours are stored together: in buffers, and in tiles of pieces in an order."""
    return place.op is Ops.PARAM or (place.op is Ops.DEFINE_LOCAL and place.arg.xor is not None)


def takes(linear: Linear) -> int:
    """Bytes of memory that the work-items of a block share."""
    return shared_nbytes(linear.uops)
