"""Writes loads and stores in LLVM IR: pointers, gates without branches, masks, strided lanes.

Receives addresses and SIMD values as text; writes the lines that reach memory. Which accesses are
contiguous, and which lanes go together, is decided in `access`; the rest of the language stands in
`llvm`.
"""

from __future__ import annotations

import abc

from aster_ml.dtype import DType, dtypes
from aster_ml.renderer.base import KernelWriter
from aster_ml.renderer.cell import Address, Value
from aster_ml.renderer.llvm.rules import has_avx512, literal, llvm_type, mangle, memory_type
from aster_ml.uop.node import UOp

# From so many accesses on, what their pointer is the sum of is hidden.
MANY_USES = 3
HIDDEN = "llvm.launder.invariant.group.p0"
# What a processor that scatters takes at once, in bytes.
SCATTER_BYTES = 64


class Pointer:
    """A pointer, the line that makes it, and how many accesses go through it."""

    __slots__ = ("line", "name", "uses")

    def __init__(self, name: str, line: int) -> None:
        self.name = name
        self.line = line
        self.uses = 0


class LLVMAccessWriter(KernelWriter):
    """The part of a writer of IR that reaches memory."""

    lines: list[str]
    declarations: dict[str, None]
    names: dict[UOp, str]
    pointers: list[dict[tuple[UOp, str], Pointer]]
    aligned: list[dict[tuple[str, int], str]]
    zero_bytes: int
    trash_bytes: int
    count: int
    block: str
    streams: bool

    @abc.abstractmethod
    def emit(self, text: str) -> str:
        """A line that computes `text`; the name of the result."""

    @abc.abstractmethod
    def call(self, result: str, name: str, args: str, kinds: str) -> str:
        """A call of an external function or intrinsic, declared once."""

    def pointer(self, at: Address) -> str:
        """The pointer of an address: one for each base, and constant offsets from it."""
        found = self.names[at.place]
        kind = memory_type(at.place.dtype, 1)
        if at.base is not None and at.base_node is not None:
            known = self.pointers[-1]
            key = (at.place, at.base)
            pointer = known.get(key)
            if pointer is None:
                index = self.wide_index(at.base, at.base_node)
                found = self.emit(f"getelementptr {kind}, ptr {found}, {index}")
                pointer = known[key] = Pointer(found, len(self.lines) - 1)
            found = pointer.name
            pointer.uses += 1
            if pointer.uses == MANY_USES and self.loops:
                self.hide_sum(pointer)
        if at.offset == 0:
            return found
        return self.emit(f"getelementptr {kind}, ptr {found}, i64 {at.offset}")

    def hide_sum(self, pointer: Pointer) -> None:
        """Hides what a pointer is the sum of, which is no instruction, from here on and before.

        why: LLVM looks at each access of a loop for the best sum of what its address consists of.
        Here they are constant offsets from the pointer in any case.
        """
        self.declarations[f"declare ptr @{HIDDEN}(ptr)"] = None
        name = pointer.name
        _, _, text = self.lines[pointer.line].partition(" = ")
        whole = f"%sum{name[1:]}"
        self.lines[pointer.line] = f"  {whole} = {text}\n  {name} = call ptr @{HIDDEN}(ptr {whole})"

    def wide_index(self, base: str, node: UOp) -> str:
        """A base as a 64-bit index; what is never negative needs no sign."""
        dtype = node.dtype
        if dtype.itemsize == 8:
            return f"i64 {base}"
        unsigned = dtype.kind == "uint" or node.vmin >= 0
        return "i64 " + self.emit(
            f"{'zext' if unsigned else 'sext'} {llvm_type(dtype, 1)} {base} to i64"
        )

    def load(self, at: Address, dtype: DType, n: int, gate: str | None) -> str:
        """Where the gate fails, zeros of our own are read instead, so no branch is needed."""
        pointer = self.pointer(at)
        if gate is not None:
            self.zero_bytes = max(self.zero_bytes, n * dtype.itemsize)
            pointer = self.emit(f"select i1 {gate}, ptr {pointer}, ptr %zeros")
        kind = memory_type(dtype, n)
        align = min(dtype.itemsize, at.place.dtype.itemsize)
        found = self.emit(f"load {kind}, ptr {pointer}, align {align}")
        return self.from_memory(found, dtype, n) if dtype is dtypes.bool else found

    def store(self, at: Address, dtype: DType, n: int, value: str, gate: str | None) -> None:
        """Where the gate fails, the value goes to scratch that nobody reads."""
        value = self.to_memory(value, dtype, n)
        pointer = self.pointer(at)
        if gate is not None:
            self.trash_bytes = max(self.trash_bytes, n * dtype.itemsize)
            pointer = self.emit(f"select i1 {gate}, ptr {pointer}, ptr %trash")
        self.lines.append(
            f"  store {memory_type(dtype, n)} {value}, ptr {pointer}, align {dtype.itemsize}"
        )

    def ask_for(self, at: Address) -> None:
        """A prefetch into the second cache."""
        self.declarations["declare void @llvm.prefetch.p0(ptr, i32, i32, i32)"] = None
        pointer = self.pointer(at)
        self.lines.append(f"  call void @llvm.prefetch.p0(ptr {pointer}, i32 0, i32 2, i32 1)")

    def store_past_caches(self, stores: list[tuple[Address, str]], dtype: DType, n: int) -> None:
        """Non-temporal stores, which take whole SIMD values of memory, where the addresses are."""
        kind, nbytes = memory_type(dtype, n), n * dtype.itemsize
        lines = []
        checks: dict[str, None] = {}
        for at, value in stores:
            value, pointer = self.to_memory(value, dtype, n), self.pointer(at)
            checks[self.is_aligned(at, pointer, nbytes)] = None
            lines.append(f"  store {kind} {value}, ptr {pointer}, align ")
        self.streams = True
        test, *others = checks
        for other in others:
            test = self.emit(f"and i1 {test}, {other}")
        self.count += 1
        whole, any_place, after = [f"{x}{self.count}" for x in ("whole", "any", "stored")]
        self.lines += [
            f"  br i1 {test}, label %{whole}, label %{any_place}",
            f"{whole}:",
            *[f"{line}{nbytes}, !nontemporal !0" for line in lines],
            f"  br label %{after}",
            f"{any_place}:",
            *[f"{line}{dtype.itemsize}" for line in lines],
            f"  br label %{after}",
            f"{after}:",
        ]
        self.block = after

    def is_aligned(self, at: Address, pointer: str, nbytes: int) -> str:
        """The bit that says whether an address is a multiple of `nbytes`."""
        over = at.offset * at.place.dtype.itemsize % nbytes
        key = (f"{self.names[at.place]} {at.base}", over)
        known = self.aligned[-1].get(key)
        if known is not None:
            return known
        number = self.emit(f"ptrtoint ptr {pointer} to i64")
        rest = self.emit(f"and i64 {number}, {nbytes - 1}")
        self.aligned[-1][key] = found = self.emit(f"icmp eq i64 {rest}, 0")
        return found

    def load_masked(self, at: Address, dtype: DType, n: int, gate: Value) -> str:
        """LLVM's masked load, which touches no memory where the gate fails."""
        mask, kind = self.text(gate, dtypes.bool, n), memory_type(dtype, n)
        name = f"llvm.masked.load.{mangle(dtype, n, memory=True)}.p0"
        found = self.call(
            kind,
            name,
            f"ptr {self.pointer(at)}, i32 {dtype.itemsize}, "
            f"<{n} x i1> {mask}, {kind} zeroinitializer",
            f"ptr, i32, <{n} x i1>, {kind}",
        )
        return self.from_memory(found, dtype, n)

    def store_masked(self, at: Address, dtype: DType, n: int, value: str, gate: Value) -> None:
        """LLVM's masked store; of one lane that is known, a store of that lane.

        why: LLVM 22.1 makes such a masked store one of the whole register that a narrower value
        is cut from, which writes behind the lane (llvm/llvm-project issue 179489)
        """
        if gate.__class__ is tuple and gate.count(True) == 1:
            super().store_masked(at, dtype, n, value, gate)
            return
        mask, kind = self.text(gate, dtypes.bool, n), memory_type(dtype, n)
        name = f"llvm.masked.store.{mangle(dtype, n, memory=True)}.p0"
        self.declarations[f"declare void @{name}({kind}, ptr, i32, <{n} x i1>)"] = None
        value = self.to_memory(value, dtype, n)
        self.lines.append(
            f"  call void @{name}({kind} {value}, ptr {self.pointer(at)}, "
            f"i32 {dtype.itemsize}, <{n} x i1> {mask})"
        )

    def load_apart(
        self, at: Address, step: int, dtype: DType, n: int, gate: Value, each: bool
    ) -> str | None:
        """One instruction of the processor, where it has it."""
        if not self.reaches_apart(step, dtype, n):
            return None
        kind = llvm_type(dtype, n)
        name = f"llvm.masked.gather.{mangle(dtype, n)}.v{n}p0"
        kinds = f"<{n} x ptr>, i32, <{n} x i1>, {kind}"
        pointers = self.pointers_apart(at, step, dtype, n)
        mask = self.mask_of(gate, n, each)
        args = f"{pointers}, i32 {dtype.itemsize}, {mask}, {kind} zeroinitializer"
        return self.call(kind, name, args, kinds)

    def store_apart(
        self, at: Address, step: int, dtype: DType, n: int, value: str, gate: Value, each: bool
    ) -> bool:
        """One instruction of the processor, where it has it."""
        if not self.reaches_apart(step, dtype, n):
            return False
        kind = llvm_type(dtype, n)
        name = f"llvm.masked.scatter.{mangle(dtype, n)}.v{n}p0"
        self.declarations[f"declare void @{name}({kind}, <{n} x ptr>, i32, <{n} x i1>)"] = None
        pointers = self.pointers_apart(at, step, dtype, n)
        mask = self.mask_of(gate, n, each)
        self.lines.append(
            f"  call void @{name}({kind} {value}, {pointers}, i32 {dtype.itemsize}, {mask})"
        )
        return True

    def reaches_apart(self, step: int, dtype: DType, n: int) -> bool:
        """Whether the processor reaches so many elements, `step` apart, with one instruction."""
        return (
            has_avx512(self.target)
            and dtype.itemsize in (4, 8)
            and n * dtype.itemsize == SCATTER_BYTES
            and step != 0
            and abs(step) * n < 1 << 31
        )

    def pointers_apart(self, at: Address, step: int, dtype: DType, n: int) -> str:
        """The pointers of elements that lie `step` apart."""
        steps = literal(tuple([i * step for i in range(n)]), dtypes.int32, n)
        return f"<{n} x ptr> " + self.emit(
            f"getelementptr {memory_type(dtype, 1)}, ptr {self.pointer(at)}, <{n} x i32> {steps}"
        )

    def mask_of(self, gate: Value, n: int, each: bool) -> str:
        """The gates of `n` elements, where each has one, or all of them one, or none any."""
        kind = f"<{n} x i1>"
        if gate is None or each:
            return f"{kind} {self.text(True if gate is None else gate, dtypes.bool, n)}"
        return f"{kind} " + self.emit(
            f"select i1 {gate}, {kind} splat (i1 true), {kind} zeroinitializer"
        )

    def from_memory(self, value: str, dtype: DType, n: int) -> str:
        """A bool is a byte in memory and a bit in a value."""
        if dtype is not dtypes.bool:
            return value
        return self.emit(f"icmp ne {memory_type(dtype, n)} {value}, {literal(0, dtypes.uint8, n)}")

    def to_memory(self, value: str, dtype: DType, n: int) -> str:
        """The reverse of `from_memory`."""
        if dtype is not dtypes.bool:
            return value
        return self.emit(f"zext {llvm_type(dtype, n)} {value} to {memory_type(dtype, n)}")
