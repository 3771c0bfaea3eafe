"""Writes memory accesses in WGSL: elements that share words, and neighbours that are accessed
together.

Receives addresses and values of a kernel that `wgsl` writes; writes its loads and stores. There are
no elements of 8 and 16 bits in memory: they are packed in words, and stored by two atomic
operations. Where all stores to a buffer fill whole words, those are stored plainly; a buffer of
32-bit numbers of which neighbours are accessed by fours is an array of `vec4`, whose elements are
16 bytes. Both want the buffer to begin at a whole word. Views may begin anywhere, so a line that
takes this for granted ends in `ALIGNED`, and the one that does not follows, behind `ANYWHERE`: the
runtime takes one of the two by where the buffers of a launch begin (`unaligned_source`).
"""

from __future__ import annotations

from typing import NamedTuple

from aster_ml.dtype import DType, dtypes
from aster_ml.errors import InternalError
from aster_ml.renderer.alignment import Divisors
from aster_ml.renderer.cell import Address, Cell, Instance, Value
from aster_ml.renderer.cstyle import CStyleWriter
from aster_ml.renderer.cstyle_rules import PLAIN_SUM, bare
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import Ops

# The end of a line for buffers that begin at whole words, and the start of the one for all others.
ALIGNED, ANYWHERE = " //-", "//| "
# Neighbours that are one element of an array of `vec4`, and their names.
FOUR, PARTS = 4, ("x", "y", "z", "w")


class Form(NamedTuple):
    """Storage of a buffer or an array: `per` neighbours are one element `kind` of `nbytes`."""

    per: int
    kind: str
    nbytes: int


class WgslMemory(CStyleWriter):
    """The part of a writer of WGSL that reaches memory."""

    def choose_forms(self) -> None:
        """Which buffers and arrays are accessed by neighbours that are one element of theirs.

        Of those all stores are; loads of others take a part of an element.
        """
        self.divisors = Divisors()
        self.forms: dict[UOp, Form] = {}
        # The instances of an access that go together, and of which group one is.
        self.runs: dict[Cell, list[list[int]]] = {}
        self.group_of: dict[Instance, list[int]] = {}
        # Texts that are parts of what was loaded.
        self.parts: set[str] = set()
        accesses: dict[UOp, list[Cell]] = {}
        for c in self.cells.values():
            if c.op in (Ops.LOAD, Ops.STORE) and c.place is not None:
                accesses.setdefault(c.place, []).append(c)
        for place, cells in accesses.items():
            form = self.form_of(place)
            if form is None:
                continue
            runs = {c: self.runs_in(c, form.per) for c in cells}
            whole = [sum(map(len, runs[c])) == c.count for c in cells if c.op is Ops.STORE]
            if not all(whole) or not any(runs.values()):
                continue
            self.forms[place] = form
            self.runs |= runs
            self.group_of |= {(c, k): run for c in cells for run in runs[c] for k in run}

    def form_of(self, place: UOp) -> Form | None:
        """The form of memory whose neighbours go together; None where there is none."""
        dtype, nbytes = place.dtype, place.dtype.itemsize
        if nbytes > 4 or (place.op is Ops.DEFINE_LOCAL and place.arg.private):
            return None
        if place.op is Ops.PARAM and self.is_packed(dtype):
            return Form(4 // nbytes, "u32", 4)
        return Form(FOUR, f"vec4<{self.type_of(dtype, 1)}>", FOUR * nbytes)

    def runs_in(self, c: Cell, per: int) -> list[list[int]]:
        """The instances of an access that are `per` neighbours from a multiple of that on."""
        wide = c.width > 1 or c.unit > 1 or c.fused
        if wide or (c.base is not None and self.divisors.of(c.base[0].u) % per):
            return []
        runs = []
        for run in self.neighbours(c):
            start = -c.offsets[run[0]] % per
            runs += [run[i : i + per] for i in range(start, len(run) - per + 1, per)]
        return runs

    # text

    def is_packed(self, dtype: DType) -> bool:
        """Whether several elements share a word of memory."""
        return dtype.itemsize < 4 and (dtype is not dtypes.float16 or self.is_bits(dtype))

    def is_written(self, place: UOp) -> bool:
        """Whether a buffer is."""
        return place.arg.slot in self.linear.written

    def memory_type(self, p: UOp) -> str:
        """The type of a buffer's elements, wherever it begins."""
        if not self.is_packed(p.dtype):
            return self.type_of(p.dtype, 1)
        return "atomic<u32>" if self.is_written(p) else "u32"

    def declaration(self, p: UOp, slot: int) -> str:
        """The binding of a buffer."""
        access = "read_write" if self.is_written(p) else "read"
        place = f"@group(0) @binding({slot + 1}) var<storage, {access}> buf{slot}"
        text = f"{place}: array<{self.memory_type(p)}>;"
        form = self.forms.get(p)
        return text if form is None else either(f"{place}: array<{form.kind}>;", text)

    def accessor(self, name: str, place: UOp, aligned: str, anywhere: str) -> str:
        """A function of a buffer that has a form, in both of its versions; its name."""
        return self.helper(name, either(aligned, anywhere) if place in self.forms else anywhere)

    def place_in(self, at: Address) -> str:
        """The element number in its buffer or scratch."""
        text = self.index(at)
        if at.place.op is Ops.DEFINE_LOCAL:
            return text
        name = f"at{self.names[at.place].removeprefix('buf')}"
        if text == "0":
            return name
        return f"{name} + {text if PLAIN_SUM.issuperset(text) else f'({text})'}"

    def word_of(self, at: Address, per: int) -> str:
        """The number of a word of an array; the part that is known is divided here."""
        known = at.offset // per
        if at.base is None:
            return str(known)
        text = f"({bare(at.base)} >> {per.bit_length() - 1}u)"
        return f"{text} + {known}" if known else bare(text)

    def wrap(self, text: str, dtype: DType) -> str:
        """A number of 32 bits cut to a narrower dtype."""
        if dtype.bits >= 32:
            return text
        if dtype.kind == "int":
            left = 32 - dtype.bits
            return f"(({text} << {left}u) >> {left}u)"
        return f"({text} & {(1 << dtype.bits) - 1}u)"

    @staticmethod
    def no_simd(n: int) -> InternalError:
        """Error of a kernel with SIMD lanes."""
        return InternalError(f"renderer: a value of {n} elements on a target without SIMD")

    # single elements

    def load(self, at: Address, dtype: DType, n: int, gate: str | None) -> str:
        """An element; where the gate fails something is read, and 0 chosen."""
        if n != 1:
            raise self.no_simd(n)
        index, stored = self.place_in(at), at.place.dtype
        if dtype.itemsize > stored.itemsize:
            text = self.load_wide(at.place, index, dtype, stored)
        else:
            text = self.load_element(at.place, index, dtype)
        if gate is None:
            return text
        zero = self.text(dtypes.as_const(0, dtype), dtype, 1)
        return self.select(gate, text, zero, dtype, 1)

    def load_element(self, place: UOp, index: str, dtype: DType) -> str:
        """An element of a word that several share, or a whole one."""
        name = self.names[place]
        if place.op is Ops.DEFINE_LOCAL:
            return f"{name}[{index}]" if place not in self.forms else part_at(name, index)
        if not self.is_packed(dtype):
            if place not in self.forms:
                return f"{name}[{index}]"
            head = f"fn one_{name}(i: i32) -> {self.type_of(dtype, 1)}"
            one = self.accessor(
                f"one_{name}", place, f"{head} {{ return {part_at(name, 'i')}; }}",
                f"{head} {{ return {name}[i]; }}",
            )  # fmt: skip
            return f"{one}({index})"
        return self.from_word(f"{self.reader(place, dtype.itemsize)}({index})", dtype)

    def from_word(self, bits: str, dtype: DType) -> str:
        """A narrow element in registers, from its bits."""
        if dtype is dtypes.bool:
            return f"({bits} != 0u)"
        return bits if dtype.kind != "int" else self.wrap(f"i32({bits})", dtype)

    def load_wide(self, place: UOp, index: str, dtype: DType, stored: DType) -> str:
        """A word of several neighbours."""
        reader, bits = self.reader(place, stored.itemsize), 8 * stored.itemsize
        full = self.helper(
            f"{reader}_wide",
            self.function(
                "u32", f"{reader}_wide", "i: i32",
                "return " + " | ".join(
                    f"({reader}(i + {k}) << {k * bits}u)" for k in range(32 // bits)
                ) + ";",
            ),
        )  # fmt: skip
        return f"{full}({index})"

    def reader(self, place: UOp, itemsize: int) -> str:
        """A function that reads an element of a buffer of words, as its bits."""
        name = self.names[place]
        shift = {1: 2, 2: 1}[itemsize]
        word = f"{name}[u32(i) >> {shift}u]"
        mask, low = (1 << 8 * itemsize) - 1, (1 << shift) - 1
        head, tail = f"fn read_{name}(i: i32) -> u32", f"((u32(i) & {low}u) * {8 * itemsize}u)"
        plain, atomic = (
            f"{head} {{\n  return ({x} >> {tail}) & {mask}u;\n}}"
            for x in (word, f"atomicLoad(&{word})")
        )
        anywhere = atomic if self.is_written(place) else plain
        if plain == anywhere:
            return self.helper(f"read_{name}", plain)
        return self.accessor(f"read_{name}", place, plain, anywhere)

    def store(self, at: Address, dtype: DType, n: int, value: str, gate: str | None) -> None:
        """A statement, behind an if where there is a gate."""
        if n != 1:
            raise self.no_simd(n)
        name, index = self.names[at.place], self.place_in(at)
        if at.place.op is Ops.DEFINE_LOCAL or not self.is_packed(dtype):
            self.write_if(gate, f"{name}[{index}] = {bare(value)};")
            return
        writer = self.helper(f"write_{name}", self.atomic_store(name, dtype.itemsize))
        self.write_if(gate, f"{writer}({index}, u32({bare(value)}));")

    def write_if(self, gate: str | None, text: str) -> None:
        """A statement, behind an if where there is a gate."""
        self.write(text if gate is None else f"if ({bare(gate)}) {{ {text} }}")

    @staticmethod
    def atomic_store(name: str, itemsize: int) -> str:
        """A function that changes the bits of a word that are an element's."""
        shift = {1: 2, 2: 1}[itemsize]
        mask, low = (1 << 8 * itemsize) - 1, (1 << shift) - 1
        return (
            f"fn write_{name}(i: i32, x: u32) {{\n"
            f"  let shift = (u32(i) & {low}u) * {8 * itemsize}u;\n"
            f"  atomicAnd(&{name}[u32(i) >> {shift}u], ~({mask}u << shift));\n"
            f"  atomicOr(&{name}[u32(i) >> {shift}u], (x & {mask}u) << shift);\n"
            "}"
        )

    def load_text(self, name: str, index: str, dtype: DType, n: int, scratch: bool) -> str:
        """Not of this language, which has to know the buffer."""
        raise InternalError(f"renderer: {name}[{index}] is loaded without its buffer")

    def store_text(
        self, name: str, index: str, value: str, dtype: DType, n: int, scratch: bool
    ) -> str:
        """See `load_text`."""
        raise InternalError(f"renderer: {name}[{index}] is stored without its buffer")

    # neighbours

    def write_load(self, c: Cell, k: int) -> Value:
        """LOAD: of neighbours that are one element in memory all at once."""
        group = self.group_of.get((c, k))
        if group is None or c.place is None:
            return super().write_load(c, k)
        base, offset, gate = self.operands_of_access(c, group[0])
        if gate is False:
            return dtypes.as_const(0, c.dtype)
        form, at = self.forms[c.place], self.address(c, base, offset)
        text = self.whole_at(at, form)
        if gate is not None:
            text = self.select(gate, text, f"{form.kind}()", c.dtype, 1)
        name = f"v{self.count}"
        self.count += 1
        self.write(f"let {name} = {text};")
        for i, j in enumerate(group):
            text = self.piece(name, c.dtype, form, i)
            if form.kind != "u32":
                self.parts.add(text)
            c.values[j] = self.keep(c, text)
        return c.values[k]

    def keep(self, c: Cell, value: str) -> str:
        """Parts of what was loaded need no name."""
        return value if value in self.parts else super().keep(c, value)

    def piece(self, value: str, dtype: DType, form: Form, i: int) -> str:
        """An element of a word that was loaded: `v0.x`, or bits."""
        if form.kind != "u32":
            return f"{value}.{PARTS[i]}"
        bits = 32 // form.per
        shifted = f"({value} >> {i * bits}u)" if i else value
        last = i == form.per - 1
        return self.from_word(shifted if last else f"({shifted} & {(1 << bits) - 1}u)", dtype)

    def store_groups(self, c: Cell) -> list[list[int]]:
        """Instances that are one element in memory are stored together."""
        return self.runs[c] if c in self.runs else super().store_groups(c)

    def store_lanes(self, c: Cell, group: list[int]) -> None:
        """Stores neighbours at once."""
        if c.value is None or c.place is None:
            raise InternalError(f"renderer: {c.u!r} stores nothing")
        base, offset, gate = self.operands_of_access(c, group[0])
        source, m = c.value
        form, at, dtype = self.forms[c.place], self.address(c, base, offset), source.dtype
        numbers = [k if m is None else m[k] for k in group]
        parts = [self.text(self.need(source, j), dtype, 1) for j in numbers]
        whole = self.word_text(form, parts, dtype)
        gate_text = None if gate is None else self.text(gate, dtypes.bool, 1)
        if c.place.op is Ops.DEFINE_LOCAL:
            name = self.names[c.place]
            self.write_if(gate_text, f"{name}[{self.word_of(at, form.per)}] = {whole};")
            return
        call = self.putter(c.place, form)
        self.write_if(gate_text, f"{call}({self.halves(at, form)}, {whole});")

    def word_text(self, form: Form, parts: list[str], dtype: DType) -> str:
        """Packs neighbours into a word of memory."""
        if form.kind != "u32":
            names = {x.partition(".")[0] for x in parts}
            whole = names.pop() if len(names) == 1 else ""
            same = parts == [f"{whole}.{x}" for x in PARTS] and self.parts.issuperset(parts)
            return whole if same else f"{form.kind}({', '.join(map(bare, parts))})"
        bits = 32 // form.per
        texts = []
        for i, x in enumerate(parts):
            text = f"u32({bare(x)})" if dtype is dtypes.bool or dtype.kind == "int" else x
            if dtype.kind == "int" and i < form.per - 1:
                text = f"({text} & {(1 << bits) - 1}u)"
            texts.append(f"({text} << {i * bits}u)" if i else text)
        return " | ".join(texts)

    def halves(self, at: Address, form: Form) -> str:
        """The arguments of a function of words: elements up to the base, and words behind it."""
        base = Address(at.place, at.base, at.base_node, 0)
        return f"{self.place_in(base)}, {at.offset // form.per}"

    def whole_at(self, at: Address, form: Form) -> str:
        """A whole element of memory."""
        name = self.names[at.place]
        if at.place.op is Ops.DEFINE_LOCAL:
            return f"{name}[{self.word_of(at, form.per)}]"
        shift, per = form.per.bit_length() - 1, form.per
        head = f"fn whole_{name}(i: i32, k: i32) -> {form.kind}"
        if form.kind == "u32":
            reader = self.reader(at.place, 4 // per)
            each = [f"({reader}(j + {x}) << {x * 32 // per}u)" for x in range(per)]
            value = " | ".join(each)
        else:
            value = f"{form.kind}({', '.join([f'{name}[j + {x}]' for x in range(per)])})"
        call = self.accessor(
            f"whole_{name}", at.place,
            f"{head} {{ return {name}[(i >> {shift}u) + k]; }}",
            f"{head} {{\n  let j = i + {per} * k;\n  return {value};\n}}",
        )  # fmt: skip
        return f"{call}({self.halves(at, form)})"

    def putter(self, place: UOp, form: Form) -> str:
        """A function that stores a whole element of memory."""
        name, per = self.names[place], form.per
        head = f"fn put_{name}(i: i32, k: i32, x: {form.kind})"
        if form.kind == "u32":
            bits = 32 // per
            lines = [f"  write_{name}(j + {k}, x >> {k * bits}u);" for k in range(per)]
            self.helper(f"write_{name}", otherwise(self.atomic_store(name, 4 // per)))
        else:
            lines = [f"  {name}[j + {k}] = x.{PARTS[k]};" for k in range(per)]
        return self.accessor(
            f"put_{name}", place,
            f"{head} {{ {name}[(i >> {per.bit_length() - 1}u) + k] = x; }}",
            "\n".join([f"{head} {{", f"  let j = i + {per} * k;", *lines, "}"]),
        )  # fmt: skip


def part_at(name: str, index: str) -> str:
    """An element of an array of `vec4`."""
    return f"{name}[({index}) >> 2u][({index}) & 3]"


def otherwise(text: str) -> str:
    """Lines that are there where a buffer does not begin at a whole word."""
    return "\n".join([ANYWHERE + line for line in text.split("\n")])


def either(aligned: str, anywhere: str) -> str:
    """Two versions of the same lines."""
    lines = [line + ALIGNED for line in aligned.split("\n")]
    return "\n".join([*lines, otherwise(anywhere)])
