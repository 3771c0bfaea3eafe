"""Renders LLVM IR as text, in SSA form with phi nodes, which `runtime/cpu/llvm_jit.py` makes
machine code.

Receives a `Linear` for a CPU target; returns one module with one function
`void NAME(ptr args, i64 lo, i64 hi)`: the buffers' pointers by slot, then the variables as 64-bit
integers, and the part of the THREAD range to run. No pass runs over the IR, only code generation,
so what a pass would do is done here or before: accumulators are phi nodes, invariants stand outside
of loops, addresses are one pointer and constant offsets, and no access needs a branch. The text of
each op is in `llvm_rules`.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

from aster_ml.dtype import DType, dtypes
from aster_ml.renderer.access import PAGE_NBYTES, unused_before
from aster_ml.renderer.base import Renderer
from aster_ml.renderer.cell import Cell, Value, fold_op
from aster_ml.renderer.llvm.access import LLVMAccessWriter, Pointer
from aster_ml.renderer.llvm.dots import Dot, add_dots, most_of_bytes
from aster_ml.renderer.llvm.maxima import become_one, write_maxima
from aster_ml.renderer.llvm.rules import (
    LLVM_RULES,
    add_dot,
    has_avx512,
    is_x86,
    literal,
    llvm_type,
    mangle,
    memory_type,
)
from aster_ml.target import BLOCK_NBYTES
from aster_ml.uop.linear import Linear
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import AxisType, Ops

# From so many steps on LLVM is told how long the loops of a kernel with such a sum are.
LONG_SUM = 128
FUNCTION_END = "\n}\n"
HORIZONTAL = {
    Ops.ADD: {"float": "fadd", "int": "add", "bool": "or"},
    Ops.MUL: {"float": "fmul", "int": "mul", "bool": "and"},
    Ops.MAX: {"float": "fmaximum", "int": "smax", "uint": "umax", "bool": "or"},
    Ops.OR: {"int": "or", "bool": "or"},
    Ops.AND: {"int": "and", "bool": "and"},
}


def join_modules(sources: Sequence[str]) -> str:
    """Kernels of different names as one module; each text ends with what is said once of one."""
    functions: list[str] = []
    # What is said once of a module, after its functions: those from elsewhere, lengths of loops.
    said: dict[str, None] = {}
    for source in sources:
        end = source.rindex(FUNCTION_END) + len(FUNCTION_END)
        functions.append(source[:end])
        said.update(dict.fromkeys(source[end:].splitlines()))
    return "".join(functions) + "\n".join([*said, ""])


class LLVMRenderer(Renderer):
    """LLVM IR for the CPU."""

    join = staticmethod(join_modules)

    def render(self, linear: Linear) -> str:
        """The IR of one kernel."""
        return LLVMWriter(self.target, linear).run()


class LLVMWriter(LLVMAccessWriter):
    """Writes the IR of one kernel."""

    rules = LLVM_RULES

    def prologue(self) -> None:
        """Loads the arguments; the scratch of the whole kernel joins them at the end."""
        self.lines: list[str] = []
        self.entry: list[str] = []
        self.declarations: dict[str, None] = {}
        self.count = 0
        self.block = "entry"
        self.names: dict[UOp, str] = {}
        # The pointers at each base that are known in each open loop: what is made outside of it is
        # known in it, what is made in it is not known after it.
        self.pointers: list[dict[tuple[UOp, str], Pointer]] = [{}]
        self.phis: list[LoopText] = []
        # The lines that jump back to loops of known length, with their steps.
        self.latches: list[tuple[int, int]] = []
        self.has_long_sum = False
        self.zero_bytes = self.trash_bytes = 0
        # Where an address is seen to be a multiple of so many bytes, as the pointers.
        self.aligned: list[dict[tuple[str, int], str]] = [{}]
        self.streams = False
        for slot, p in enumerate(self.linear.params):
            self.entry.append(f"  %slot{slot} = getelementptr i8, ptr %args, i64 {8 * slot}")
            self.entry.append(f"  %buf{slot} = load ptr, ptr %slot{slot}, align 8")
            self.names[p] = f"%buf{slot}"
        first = len(self.linear.params)
        for i, v in enumerate(self.linear.variables):
            slot = first + i
            kind = llvm_type(v.dtype, 1)
            self.entry.append(f"  %slot{slot} = getelementptr i8, ptr %args, i64 {8 * slot}")
            self.entry.append(f"  %wide{slot} = load i64, ptr %slot{slot}, align 8")
            name = f"%wide{slot}"
            if kind != "i64":
                self.entry.append(f"  %var{slot} = trunc i64 {name} to {kind}")
                name = f"%var{slot}"
            cell = self.cells[v]
            cell.values[0] = name
            self.spread_value(cell, 0)

    def finish(self) -> str:
        """Head, scratch, arguments, body, declarations."""
        name = self.linear.name
        # At the start of a line of the caches, wherever it stands in its library: loops run alike.
        head = [f"define void @{name}(ptr %args, i64 %lo, i64 %hi) nounwind align 64 {{", "entry:"]
        if self.zero_bytes:
            zeros = f"[{self.zero_bytes} x i8]"
            head.append(f"  %zeros = alloca {zeros}, align 16")
            head.append(f"  store {zeros} zeroinitializer, ptr %zeros, align 16")
        if self.trash_bytes:
            head.append(f"  %trash = alloca [{self.trash_bytes} x i8], align 16")
        if self.streams and is_x86(self.target):
            # Other stores would be seen before those that went past the caches.
            self.declarations["declare void @llvm.x86.sse.sfence()"] = None
            self.lines.append("  call void @llvm.x86.sse.sfence()")
        tail = ["  ret void", "}", *self.declarations, *self.weigh_loops()]
        tail += ["!0 = !{i32 1}", ""] if self.streams else [""]
        return "\n".join([*head, *self.entry, *self.lines, *tail])

    def weigh_loops(self) -> list[str]:
        """Says how often loops run, in kernels with a long sum.

        why: LLVM takes each loop to run some 32 times. Two short ones, one inside of the other,
        then count for more than a sum of hundreds, and take its accumulators' registers.
        """
        if not self.has_long_sum:
            return []
        for line, steps in self.latches:
            self.lines[line] += f", !prof !{steps}"
        known = dict.fromkeys([steps for _, steps in self.latches])
        return [f'!{n} = !{{!"branch_weights", i32 {n - 1}, i32 1}}' for n in known]

    # names and constants

    def emit(self, text: str) -> str:
        """A line that computes `text`; the name of the result."""
        self.count += 1
        # Names that are numbers are the quickest for LLVM to read; they may have gaps.
        name = f"%{self.count}"
        self.lines.append(f"  {name} = {text}")
        return name

    def call(self, result: str, name: str, args: str, kinds: str) -> str:
        """A call of an external function or intrinsic, declared once."""
        self.declarations[f"declare {result} @{name}({kinds})"] = None
        return self.emit(f"call {result} @{name}({args})")

    def text(self, value: Value, dtype: DType, n: int) -> str:
        """Names as they are, numbers as literals."""
        return value if value.__class__ is str else literal(value, dtype, n)

    def keep(self, c: Cell, value: str) -> str:
        """Every value has a name already."""
        return value

    def name_value(self, value: str, dtype: DType, n: int) -> str:
        """Every value has a name already."""
        return value

    # loops

    def open_loop(self, c: Cell) -> None:
        """A block with a phi for the counter and for each accumulator that the body changes.

        The test stands at the end, so a loop that may run zero times is jumped over.
        """
        kind = llvm_type(c.dtype, 1)
        size = c.inputs[0][0].values[0]
        start, stop = "0", self.text(size, c.dtype, 1)
        if c.u.arg.kind is AxisType.THREAD:
            start, stop = "%lo", "%hi"
            if kind != "i64":
                start, stop = (self.emit(f"trunc i64 {x} to {kind}") for x in (start, stop))
        self.count += 1
        number = self.count
        label = f"loop{c.u.arg.id}.{number}"
        loop = LoopText(label, f"{label}.end", kind, stop, self.block)
        if size.__class__ is not int or size < 1 or start != "0":
            test = self.emit(f"icmp slt {kind} {start}, {stop}")
            self.lines.append(f"  br i1 {test}, label %{label}, label %{loop.exit}")
            loop.guarded = True
        else:
            self.lines.append(f"  br label %{label}")
        self.lines.append(f"{label}:")
        counter = f"%r{c.u.arg.id}.{number}"
        loop.counter, loop.start, loop.line = counter, start, len(self.lines)
        self.lines.append("")
        c.values[0] = counter
        for reg in c.carried:
            loop.before[reg] = [self.text(v, reg.dtype, reg.width) for v in reg.values]
            names = []
            for _ in range(reg.count):
                self.count += 1
                names.append(f"%{self.count}")
                self.lines.append("")
            loop.phis[reg], reg.values = names, list(names)
        self.block = label
        self.phis.append(loop)
        self.pointers.append({**self.pointers[-1]})
        self.aligned.append({**self.aligned[-1]})

    def close_loop(self, c: Cell) -> None:
        """Counts, jumps back, and fills in what the phis take from the end of the body."""
        loop = self.phis.pop()
        self.pointers.pop()
        self.aligned.pop()
        kind, latch = loop.kind, self.block
        following = self.emit(f"add nuw nsw {kind} {loop.counter}, 1")
        test = self.emit(f"icmp slt {kind} {following}, {loop.stop}")
        steps = c.inputs[0][0].values[0]
        if steps.__class__ is int and steps > 1 and loop.start == "0":
            self.latches.append((len(self.lines), steps))
        if loop.phis:
            summed = loop.summed * (steps if steps.__class__ is int else 1)
            self.has_long_sum |= summed >= LONG_SUM
            if self.phis:
                self.phis[-1].summed = max(self.phis[-1].summed, summed)
        self.lines.append(f"  br i1 {test}, label %{loop.label}, label %{loop.exit}")
        self.lines.append(f"{loop.exit}:")
        line = loop.line
        self.lines[line] = (
            f"  {loop.counter} = phi {kind} [ {loop.start}, %{loop.entry} ], "
            f"[ {following}, %{latch} ]"
        )
        for reg, names in loop.phis.items():
            vector = llvm_type(reg.dtype, reg.width)
            after = list(reg.values)
            for k, name in enumerate(names):
                line += 1
                before = loop.before[reg][k]
                edges = f"[ {before}, %{loop.entry} ], [ {after[k]}, %{latch} ]"
                self.lines[line] = f"  {name} = phi {vector} {edges}"
                if loop.guarded:
                    reg.values[k] = self.emit(f"phi {vector} {edges}")
        self.block = loop.exit

    # accumulators and scratch

    def define_reg(self, c: Cell, start: list[Value]) -> None:
        """An accumulator is whatever value it has now."""
        c.values = start

    def accumulate(self, reg: Cell, r: int, op: Ops, value: str) -> None:
        """The new value takes the place of the old one."""
        before = self.text(reg.values[r], reg.dtype, reg.width)
        reg.values[r] = self.rules[op](self, reg.dtype, reg.width, [before, value], None)

    def accumulate_maxima(self, c: Cell) -> bool:
        """Accumulators that become one have NaN in the first of them alone."""
        if not become_one(c, self.target):
            return False
        reg, (source, m) = c.inputs[0][0], c.inputs[1]
        n, dtype = reg.width, reg.dtype
        instances = [(source, k if m is None else m[k]) for k in range(c.count)]
        operands = (self.wide_text(d, j, self.need(d, j), n) for d, j in instances)
        before = [self.text(v, dtype, n) for v in reg.values]
        reg.values = [*write_maxima(self, dtype, n, before, operands)]
        return True

    def accumulate_product(self, reg: Cell, r: int, op: Ops, a: str, b: str) -> None:
        """One instruction, where the processor has it."""
        before = self.text(reg.values[r], reg.dtype, reg.width)
        if op is Ops.DOT:
            reg.values[r] = add_dot(self, reg.dtype, reg.width, a, b, before)
            return
        reg.values[r] = self.rules[Ops.MULACC](self, reg.dtype, reg.width, [a, b, before], None)

    def combine_folded(self, c: Cell, k: int) -> str:
        """DOTs of int8 are added up by what multiplies."""
        source = c.inputs[0][0]
        if source.op is not Ops.DOT or fold_op(c.u) is not Ops.ADD or c.dtype is not dtypes.int32:
            return super().combine_folded(c, k)
        dots = []
        most = most_of_bytes(source.u.src[0])
        for j in self.folded_instances(c, k):
            x, y = (
                self.wide_text(d, i, self.need(d, i), source.width)
                for d, i in [(d, j if dm is None else dm[j]) for d, dm in source.inputs]
            )
            dots.append(Dot(x, y, most))
        return add_dots(self, source.width, dots, self.target)

    def define_local(self, c: Cell) -> None:
        """Scratch is a piece of the stack, a larger one begins in the middle of a page."""
        size, kind = c.u.arg.size, memory_type(c.dtype, 1)
        name, unused = f"%local{c.u.arg.id}", unused_before(c.dtype, size)
        if unused:
            pages = f"{name}.pages = alloca [{unused + size} x {kind}], align {PAGE_NBYTES}"
            self.entry += [
                f"  {pages}",
                f"  {name} = getelementptr {kind}, ptr {name}.pages, i64 {unused}",
            ]
        else:
            self.entry.append(f"  {name} = alloca [{size} x {kind}], align 64")
        self.names[c.u] = name

    # SIMD values

    def splat(self, value: str, dtype: DType, n: int) -> str:
        """The scalar goes into element 0 and from there into all."""
        kind, vector = llvm_type(dtype, 1), llvm_type(dtype, n)
        first = self.emit(f"insertelement {vector} poison, {kind} {value}, i64 0")
        return self.emit(
            f"shufflevector {vector} {first}, {vector} poison, <{n} x i32> zeroinitializer"
        )

    def extract(self, value: str, dtype: DType, n: int, i: int) -> str:
        """One element."""
        return self.emit(f"extractelement {llvm_type(dtype, n)} {value}, i64 {i}")

    def build(self, parts: list[str], dtype: DType) -> str:
        """One insertion an element."""
        kind, vector = llvm_type(dtype, 1), llvm_type(dtype, len(parts))
        result = "poison"
        for i, part in enumerate(parts):
            result = self.emit(f"insertelement {vector} {result}, {kind} {part}, i64 {i}")
        return result

    def reverse(self, value: str, dtype: DType, n: int) -> str:
        """A shuffle."""
        vector = llvm_type(dtype, n)
        mask = lane_numbers(tuple(range(n - 1, -1, -1)))
        return self.emit(f"shufflevector {vector} {value}, {vector} poison, <{n} x i32> <{mask}>")

    can_shuffle = True

    @property
    def most_woven(self) -> int:  # type: ignore[override]
        """Two registers in any order are one instruction with AVX-512, and about three without."""
        return 7 if has_avx512(self.target) else 3

    def shuffle(
        self, low: str, high: str, dtype: DType, order: list[int], width: int | None = None
    ) -> str:
        """A shuffle of two values."""
        n = len(order)
        vector, mask = llvm_type(dtype, width or n), lane_numbers(tuple(order))
        return self.emit(f"shufflevector {vector} {low}, {vector} {high}, <{n} x i32> <{mask}>")

    def opaque(self, value: str, dtype: DType, n: int) -> str:
        """A value behind a fence, which is no instruction; LLVM has it for floats alone."""
        if dtype not in (dtypes.float32, dtypes.float64):
            return value
        kind = llvm_type(dtype, n)
        return self.call(kind, f"llvm.arithmetic.fence.{mangle(dtype, n)}", f"{kind} {value}", kind)

    def part(self, value: str, dtype: DType, n: int, first: int, count: int) -> str:
        """A shuffle that keeps some elements."""
        if count == n:
            return value
        vector, mask = llvm_type(dtype, n), lane_numbers(tuple(range(first, first + count)))
        return self.emit(
            f"shufflevector {vector} {value}, {vector} poison, <{count} x i32> <{mask}>"
        )

    def join(self, parts: list[str], dtype: DType, n: int) -> str:
        """Shuffles that put neighbours side by side, pair by pair."""
        while len(parts) > 1:
            vector, mask = llvm_type(dtype, n), lane_numbers(tuple(range(2 * n)))
            parts = [
                self.emit(f"shufflevector {vector} {a}, {vector} {b}, <{2 * n} x i32> <{mask}>")
                for a, b in zip(parts[::2], parts[1::2], strict=True)
            ]
            n *= 2
        return parts[0]

    def add_lanes(self, values: list[str], dtype: DType, n: int) -> str:
        """Lanes inside of blocks first, which take a quicker shuffle, then blocks.

        Lanes of one value lie side by side in each block until one is left, as its blocks do then.
        """
        rule, block = self.rules[Ops.ADD], min(BLOCK_NBYTES // dtype.itemsize, n)
        count = 1
        while len(values) > 1:
            size, window = (1, block) if count < block else (block, n)
            low = [
                x
                for start in range(0, n, window)
                for first in (start, n + start)
                for i in range(first, first + window, 2 * size)
                for x in range(i, i + size)
            ]
            high = [x + size for x in low]
            values = [
                rule(self, dtype, n, [self.shuffle(a, b, dtype, x) for x in (low, high)], None)
                for a, b in zip(values[::2], values[1::2], strict=True)
            ]
            count *= 2
        (value,) = values
        while n > count:
            # Blocks that are all alike may as well be those of halves, of which one costs nothing.
            size = block if count > block else n // 2 if n > block else 1
            low = [x for i in range(0, n, 2 * size) for x in range(i, i + size)]
            high = [x + size for x in low]
            parts = [self.shuffle(value, value, dtype, x, n) for x in (low, high)]
            n //= 2
            value = rule(self, dtype, n, parts, None)
        return value

    def horizontal(self, op: Ops, value: str, dtype: DType, n: int) -> str:
        """Halves of floats are combined until one is left; for the rest LLVM's reductions.

        why: of a reduction of floats LLVM makes the same instructions as of these halves, but takes
        0.06 to 0.09 ms longer for each
        """
        if op is Ops.MAX and dtype in (dtypes.float32, dtypes.float64) and is_x86(self.target):
            return self.horizontal_max(value, dtype, n)
        if dtype.kind == "float" and op is not Ops.MAX and n & (n - 1) == 0:
            rule = self.rules[op]
            while n > 2:
                n //= 2
                halves = [self.part(value, dtype, 2 * n, first, n) for first in (0, n)]
                value = rule(self, dtype, n, halves, None)
            ends = [self.extract(value, dtype, n, i) for i in (0, 1)]
            return rule(self, dtype, 1, ends, None)
        names = HORIZONTAL[op]
        name = names.get(dtype.kind, names.get("int", ""))
        kind, vector = llvm_type(dtype, 1), llvm_type(dtype, n)
        full = f"llvm.vector.reduce.{name}.{mangle(dtype, n)}"
        if name not in ("fadd", "fmul"):
            return self.call(kind, full, f"{vector} {value}", vector)
        start = literal(-0.0 if name == "fadd" else 1.0, dtype, 1)
        self.declarations[f"declare {kind} @{full}({kind}, {vector})"] = None
        return self.emit(f"call reassoc {kind} @{full}({kind} {start}, {vector} {value})")

    def horizontal_max(self, value: str, dtype: DType, n: int) -> str:
        """The largest element as integers in the order of the floats, NaN above all of them.

        Of a negative number all bits but the sign are turned around, and turned back at the end.
        """
        bits = dtypes.int32 if dtype is dtypes.float32 else dtypes.int64
        vector, low = llvm_type(dtype, n), literal(dtypes.max(bits), bits, n)
        raw = self.emit(f"bitcast {vector} {value} to {llvm_type(bits, n)}")
        isnan = self.emit(f"fcmp uno {vector} {value}, {value}")
        key = f"{llvm_type(bits, n)} {self.turn_negative(raw, bits, n)}"
        kinds = f"{llvm_type(dtypes.bool, n)} {isnan}, {llvm_type(bits, n)} {low}, {key}"
        value = self.emit(f"select {kinds}")
        rule = self.rules[Ops.MAX]
        while n > 4:
            n //= 2
            halves = [self.part(value, bits, 2 * n, first, n) for first in (0, n)]
            value = rule(self, bits, n, halves, None)
        for step in (2, 1) if n == 4 else (1,):
            order = [(i + step) % n for i in range(n)]
            turned = self.shuffle(value, "poison", bits, order)
            value = rule(self, bits, n, [value, turned], None)
        back = self.turn_negative(value, bits, n)
        found = self.emit(f"bitcast {llvm_type(bits, n)} {back} to {llvm_type(dtype, n)}")
        return self.extract(found, dtype, n, 0)

    def turn_negative(self, value: str, bits: DType, n: int) -> str:
        """The bits of negative numbers inverted, save the sign."""
        kind = llvm_type(bits, n)
        signs = self.emit(f"ashr {kind} {value}, {literal(bits.bits - 1, bits, n)}")
        mask = self.emit(f"and {kind} {signs}, {literal(dtypes.max(bits), bits, n)}")
        return self.emit(f"xor {kind} {value}, {mask}")


@functools.lru_cache(1024)
def lane_numbers(order: tuple[int, ...]) -> str:
    """Which element each one of a shuffle is; a kernel has few orders, and each many times."""
    return "i32 " + ", i32 ".join(map(str, order))


class LoopText:
    """A loop whose end is not written yet."""

    def __init__(self, label: str, exit: str, kind: str, stop: str, entry: str) -> None:
        self.label = label
        self.exit = exit
        self.kind = kind
        self.stop = stop
        self.entry = entry
        self.counter = self.start = ""
        self.line = 0
        self.guarded = False
        # Steps of the longest sum that one step of it adds to.
        self.summed = 1
        # Of each accumulator: its values before the loop, and the names of its phis.
        self.before: dict[Cell, list[str]] = {}
        self.phis: dict[Cell, list[str]] = {}
