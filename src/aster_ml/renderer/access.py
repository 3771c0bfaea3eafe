"""Lowers loads and stores: from an INDEX and its lanes to contiguous, masked or element-wise
accesses.

Receives the cells of LOAD and STORE; classifies them once and writes each instance through the
hooks of the language. What is loaded or stored is the business of the walk in `base`.
"""

from __future__ import annotations

import abc

from aster_ml.dtype import DType, dtypes
from aster_ml.errors import InternalError
from aster_ml.renderer.cell import Address, Cell, Input, Instance, Value, strip_after
from aster_ml.renderer.coalescing import runs_of_family
from aster_ml.renderer.lanes import Affine, read_affine, weigh_instances
from aster_ml.renderer.language import Language
from aster_ml.target import BLOCK_NBYTES, Target
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import Ops

# Names of a module are found faster than members of an Enum, and every node is asked for its op.
CONST, INDEX, LOAD, STORE = Ops.CONST, Ops.INDEX, Ops.LOAD, Ops.STORE
# Most instances whose lanes are stored as runs.
MAX_RUN = 16
# How far apart elements may lie so that all between them is loaded.
MAX_SPREAD = 4
# SIMD values that wait in registers to be stored past the caches together.
MAX_WAITING = 4
# Scratch of so many bytes begins in the middle of a page, as far from where arrays begin as can be.
# A load whose address agrees in its last 12 bits with that of a store shortly before waits for it,
# as if it read what is stored (docs/explanation/tuning/pipelining.md).
LEAST_PLACED_NBYTES, PAGE_NBYTES = 512, 4096


def unused_before(dtype: DType, size: int) -> int:
    """Elements from the start of a page to scratch of this size; 0 where it may lie anywhere."""
    itemsize = dtype.itemsize
    return PAGE_NBYTES // 2 // itemsize if size * itemsize >= LEAST_PLACED_NBYTES else 0


# A scalar that is a lane of a SIMD value: which value, of how many lanes, and which of them.
Lane = tuple[str, int, int]


def fit_together(lanes: list[Lane | None]) -> bool:
    """Whether all of these are lanes of two SIMD values at most, and no more than one has."""
    known = [x for x in lanes if x is not None]
    wholes = {whole: width for whole, width, _ in known}
    return len(known) == len(lanes) <= max(wholes.values(), default=0) and len(wholes) <= 2


class AccessWriter(Language):
    """The part of a writer that reaches memory."""

    target: Target
    cells: dict[UOp, Cell]
    asked: list[Address]
    # Loads that stand side by side in memory, each with all of them.
    families: dict[Cell, list[Cell]]
    # The instances of loads that are made together. (No Cell has them: they name it again.)
    groups: dict[Cell, list[list[Instance]]]
    # Scalars that are lanes of a SIMD value.
    lane_of: dict[str, Lane]

    # Most SIMD values that are stored element by element in turn as whole ones.
    most_woven = 0

    @abc.abstractmethod
    def read(self, c: Cell, source: UOp, width: int | None = None) -> Input:
        """The cell of a source of `c`, and which of its instances each of ours reads."""

    @abc.abstractmethod
    def need(self, c: Cell, k: int) -> Value:
        """Instance `k` of a value, written now unless it was."""

    @abc.abstractmethod
    def wide_text(self, d: Cell, j: int, value: Value, n: int) -> str:
        """Instance `j` of `d` as text of width `n`."""

    @abc.abstractmethod
    def complete_readers(self, place: UOp | None) -> None:
        """Writes pending values that read a buffer or accumulator which now changes."""

    def classify_access(self, c: Cell) -> None:
        """Fills in where an access goes: buffer, base, offsets, step of the SIMD lane, gate."""
        u = c.u
        index = strip_after(u.src[0])
        gate = 2 if u.op is STORE else 1
        if index.op is not INDEX:
            raise InternalError(f"renderer: {u!r} goes through {index!r}; an INDEX is wanted")
        c.place = strip_after(index.src[0])
        if c.place not in self.cells:
            raise InternalError(f"renderer: {c.place!r} is accessed before it stands in the list")
        const, weights = read_affine(index.src[2]) if len(index.src) > 2 else Affine(0, {})
        c.offsets = weigh_instances(c.lanes, weights, const)
        if index.src[1].op is CONST:
            c.offsets = [x + int(index.src[1].arg) for x in c.offsets]
        else:
            c.base = self.read(c, index.src[1], 1)
            c.inputs.append(c.base)
        if c.vector is not None:
            moves = c.base is not None and c.base[0].width > 1
            c.step = None if moves else weights.get(c.vector, 0)
        if u.op is LOAD:
            c.unit = u.dtype.itemsize // c.place.dtype.itemsize or 1
        if u.op in (LOAD, STORE) and len(u.src) > gate:
            c.gate = self.read(c, u.src[gate], 1)
            c.inputs.append(c.gate)
        if u.op is STORE:
            c.value = self.read(c, u.src[1], c.width if c.step in (1, -1) else 1)
            c.inputs.append(c.value)

    def write_load(self, c: Cell, k: int) -> Value:
        """LOAD: contiguous, reversed or one element after the other."""
        base, offset, gate = self.operands_of_access(c, k)
        n, dtype = c.width, c.dtype
        if gate is False:
            return dtypes.as_const(0, dtype)
        if n == 1 or (c.step in (c.unit, -c.unit) and not self.gates_elements(c, gate)):
            backwards = n > 1 and c.step == -c.unit
            low = offset - (n - 1) * c.unit if backwards else offset
            if c.u.arg is not None and self.begins_line(c, k):
                self.ask_for(self.address(c, base, low + c.u.arg.ahead))
            found = self.load(self.address(c, base, low), dtype, n, gate)
            return self.reverse(found, dtype, n) if backwards else found
        if c.step == c.unit == 1:
            if c.u.arg is not None:
                self.ask_for(self.address(c, base, offset + c.u.arg.ahead))
            return self.load_masked(self.address(c, base, offset), dtype, n, gate)
        if c.step == 2 and c.unit == 1 and n > 2 and not self.gates_elements(c, gate):
            for pair in self.runs_of(c, 2) if self.can_shuffle and c.count > 1 else []:
                if k in pair and len(pair) == 2:
                    self.load_pair(c, pair)
                    return c.values[k]
            found_apart = self.load_every_second(c, base, offset, gate)
            if found_apart is not None:
                return found_apart
        for group in self.load_groups(c):
            if (c, k) in group:
                self.load_interleaved(group)
                return c.values[k]
        if self.can_shuffle and self.is_spread(c, gate):
            self.load_spread(c, k)
            return c.values[k]
        if gate is not None and c.step is not None and c.unit == 1:
            # Without gates single loads are quicker by a tenth than one instruction for all.
            at = self.address(c, base, offset)
            apart = self.load_apart(at, c.step, dtype, n, gate, self.gates_elements(c, gate))
            if apart is not None:
                return apart
        # Truth is told apart from its bytes in all elements at once.
        stored = dtypes.uint8 if dtype is dtypes.bool and self.can_shuffle else dtype
        parts = []
        for i in range(n):
            part_gate = self.element(c.gate, gate, i)
            if part_gate is False:
                parts.append(self.text(dtypes.as_const(0, stored), stored, 1))
                continue
            address = self.element_address(c, base, offset, i)
            parts.append(self.load(address, stored, 1, None if part_gate is True else part_gate))
        found = self.build(parts, stored)
        return found if stored is dtype else self.from_memory(found, dtype, n)

    def begins_line(self, c: Cell, k: int) -> bool:
        """Whether an instance is the first of those that are as long as a line side by side."""
        beside = self.target.line_nbytes // (c.width * c.dtype.itemsize)
        if beside < 2:
            return True
        maps = [x[1] for x in (c.base, c.gate) if x is not None]
        mine = [
            c.offsets[j] for j in range(c.count) if all(m is None or m[j] == m[k] for m in maps)
        ]
        before = 0
        while c.offsets[k] - (before + 1) * c.width in mine:
            before += 1
        return before % beside == 0

    def load_pair(self, c: Cell, pair: list[int]) -> None:
        """Two instances whose elements alternate: two contiguous loads, each used whole."""
        base, offset, gate = self.operands_of_access(c, pair[0])
        n = c.width
        low, high = (
            self.load(self.address(c, base, x), c.dtype, n, gate) for x in (offset, offset + n)
        )
        for first, k in enumerate(pair):
            order = list(range(first, 2 * n, 2))
            c.values[k] = self.keep(c, self.shuffle(low, high, c.dtype, order))

    def load_every_second(self, c: Cell, base: Value, offset: int, gate: Value) -> str | None:
        """Elements two apart, out of two contiguous loads that end where the last element does."""
        n = c.width
        order = [2 * i if 2 * i < n else 2 * i + 1 for i in range(n)]
        if not self.can_shuffle:
            return None
        low = self.load(self.address(c, base, offset), c.dtype, n, gate)
        high = self.load(self.address(c, base, offset + n - 1), c.dtype, n, gate)
        return self.shuffle(low, high, c.dtype, order)

    def is_spread(self, c: Cell, gate: Value) -> bool:
        """Whether the elements of a SIMD value lie so few apart that loading all between pays."""
        near = c.step is not None and 2 < c.step <= MAX_SPREAD and c.unit == 1 and c.width > c.step
        return near and not self.gates_elements(c, gate)

    def load_spread(self, c: Cell, k: int) -> None:
        """Elements some few apart: all between them is loaded once, and shuffled apart.

        Instances that have the elements between one another's are made of the same loads.
        """
        n, step = c.width, c.step or 1
        run = next(run for run in self.neighbours(c) if k in run)
        start = run.index(k) // step * step
        group = run[start : start + step]
        # Of one alone the last load ends where its last element does.
        length = (n - 1) * step + len(group)
        base, offset, gate = self.operands_of_access(c, group[0])
        starts = [min(i * n, length - n) for i in range(step)]
        # Truth is told apart from its bytes in all elements at once.
        stored = dtypes.uint8 if c.dtype is dtypes.bool else c.dtype
        parts = [self.load(self.address(c, base, offset + x), stored, n, gate) for x in starts]
        for first, member in enumerate(group):
            text = parts[0]
            places = [first + i * step for i in range(n)]
            for number, (part, begin) in enumerate(zip(parts[1:], starts[1:], strict=True)):
                done = starts[number] + n
                order = [
                    (i if number else x) if x < done else min(n + x - begin, 2 * n - 1)
                    for i, x in enumerate(places)
                ]
                text = self.shuffle(text, part, stored, order)
            if stored is not c.dtype:
                text = self.from_memory(text, c.dtype, n)
            c.values[member] = self.keep(c, text)

    def write_stores(self, c: Cell) -> None:
        """STORE: every instance in order."""
        self.complete_readers(c.place)
        if c.value is not None and c.value[0].op is LOAD and c.value[0].fused:
            self.write_copies(c)
            return
        n, value_input = c.width, c.value
        if value_input is None or c.place is None:
            raise InternalError(f"renderer: {c.u!r} stores nothing")
        source, m = value_input
        dtype = source.dtype
        streams = c.u.arg is not None and c.u.arg.streams and dtype is not dtypes.bool
        waiting: list[tuple[Address, str]] = []
        for group in self.store_groups(c):
            k = group[0]
            base, offset, gate = self.operands_of_access(c, k)
            if gate is False:
                continue
            if len(group) > 1:
                if n == 1:
                    self.store_lanes(c, group)
                else:
                    self.store_interleaved(c, group)
                continue
            j = k if m is None else m[k]
            value = self.need(source, j)
            if n == 1 or (c.step in (1, -1) and not self.gates_elements(c, gate)):
                text = self.wide_text(source, j, value, n)
                text = self.reverse(text, dtype, n) if c.step == -1 else text
                low = offset - (n - 1) if c.step == -1 else offset
                if streams and n > 1 and c.step == 1 and gate is None:
                    waiting.append((self.address(c, base, low), text))
                    if len(waiting) == MAX_WAITING:
                        self.store_past_caches(waiting, dtype, n)
                        self.write_asked(len(waiting))
                        waiting = []
                    continue
                self.store(self.address(c, base, low), dtype, n, text, gate)
            elif c.step == 1:
                text = self.wide_text(source, j, value, n)
                self.store_masked(self.address(c, base, offset), dtype, n, text, gate)
            else:
                self.store_elements(c, base, offset, gate, value)
        if waiting:
            self.store_past_caches(waiting, dtype, n)
        self.write_asked(len(self.asked))

    def copies_at_once(self, c: Cell) -> bool:
        """Whether a STORE of a LOAD is a copy of neighbours in the language, begun here."""
        if c.value is None or not self.copies_later:
            return False
        source, m = c.value
        wide = (c.step, source.step) == (1, 1) or c.width == 1
        scalar = [x is None or x[0].width == 1 for x in (c.gate, source.gate)]
        whole = c.width == source.width and c.count == source.count and m is None
        nbytes = c.width * source.dtype.itemsize
        return all([wide, *scalar, whole, c.gate is None, nbytes in self.target.copies.nbytes])

    def write_copies(self, c: Cell) -> None:
        """A STORE of a LOAD as copies that go on beside other work."""
        if c.value is None:
            raise InternalError(f"renderer: {c.u!r} copies nothing")
        source = c.value[0]
        for k in range(c.count):
            to, offset, _ = self.operands_of_access(c, k)
            base, start, gate = self.operands_of_access(source, k)
            text = None if gate is None else self.text(gate, dtypes.bool, 1)
            nbytes = c.width * source.dtype.itemsize
            places = self.address(c, to, offset), self.address(source, base, start)
            self.copy_later(*places, nbytes, text)

    def write_asks(self, c: Cell) -> None:
        """PREFETCH: every instance in order, some after each few stores.

        why: all of them at once hold up the loads behind them
        """
        for k in range(c.count):
            base, offset, _ = self.operands_of_access(c, k)
            self.asked.append(self.address(c, base, offset))

    def write_asked(self, most: int) -> None:
        """So many of what was asked for and is not written yet."""
        now, self.asked = self.asked[:most], self.asked[most:]
        for at in now:
            self.ask_for(at)

    def ask_for(self, at: Address) -> None:
        """Has memory bring what is read soon; nothing where the language has no word for it."""

    def store_past_caches(self, stores: list[tuple[Address, str]], dtype: DType, n: int) -> None:
        """Stores SIMD values that are not read again soon; the language may know better."""
        for at, value in stores:
            self.store(at, dtype, n, value, None)

    def store_groups(self, c: Cell) -> list[list[int]]:
        """Instances to store together: lanes that lie apart, with instances between them.

        A group holds a power of two of instances whose offsets follow one another, so that each
        lane of theirs is a contiguous run; or so few that leave nothing between lanes.
        """
        alone = [[k] for k in range(c.count)]
        if c.value is not None and c.value[0].op is Ops.REDUCE and self.can_shuffle:
            return self.lanes_to_store(c) if c.width == 1 and c.count > 1 else alone
        if c.step is None or abs(c.step) < 2 or c.value is None or not self.can_shuffle:
            return alone
        if c.width != c.value[0].width:
            return alone
        gated = c.gate is not None and c.gate[0].width > 1
        whole = c.step if 2 < c.step <= self.most_woven and not gated else 0
        return self.runs_of(c, min(MAX_RUN, abs(c.step), c.width), whole)

    def lanes_to_store(self, c: Cell) -> list[list[int]]:
        """Instances of one element each, in groups of powers of two that lie side by side.

        All of a group are lanes of one SIMD value or of two.
        """
        if c.value is None:
            return []
        source, m = c.value
        values = [self.need(source, k if m is None else m[k]) for k in range(c.count)]
        of = [self.lane_of.get(str(value)) for value in values]
        groups: list[list[int]] = []
        for run in self.neighbours(c):
            left = run
            while left:
                size = 1
                if of[left[0]] is not None:
                    size = 1 << len(left).bit_length() - 1
                while size > 1 and not fit_together([of[k] for k in left[:size]]):
                    size //= 2
                groups.append(left[:size])
                left = left[size:]
        return groups

    def store_lanes(self, c: Cell, group: list[int]) -> None:
        """Stores lanes of SIMD values that lie side by side in memory."""
        base, offset, gate = self.operands_of_access(c, group[0])
        if c.value is None:
            raise InternalError(f"renderer: {c.u!r} stores nothing")
        source, m = c.value
        dtype = source.dtype
        lanes = [self.lane_of[str(source.values[k if m is None else m[k]])] for k in group]
        wholes = dict.fromkeys([(whole, width) for whole, width, _ in lanes])
        most = max([width for _, width in wholes])
        texts = []
        for whole, width in wholes:
            wide = [i % width for i in range(most)]
            narrow = width < most
            texts.append(self.shuffle(whole, whole, dtype, wide, width) if narrow else whole)
        numbers = [*wholes]
        order = [numbers.index((whole, width)) * most + lane for whole, width, lane in lanes]
        text = texts[0]
        if order != list(range(most)):
            text = self.shuffle(text, texts[-1], dtype, order, most)
        self.store(self.address(c, base, offset), dtype, len(group), text, gate)

    def load_groups(self, c: Cell) -> list[list[Instance]]:
        """Instances to load together, as `store_groups` has them: as many as a block has elements.

        Each lane's elements are loaded side by side then, which takes a fourth of the instructions.
        Where they fill SIMD values of a line, as many as a value has.
        """
        known = self.groups.get(c)
        if known is not None:
            return known
        size = min(BLOCK_NBYTES // max(c.dtype.itemsize, 1), c.width)
        groups: list[list[Instance]] = []
        family = self.families.get(c, [c])
        if (
            self.can_shuffle
            and c.dtype is not dtypes.bool
            and c.unit == 1
            and c.step is not None
            and abs(c.step) >= size > 1
            and (c.gate is None or c.gate[0].width == 1)
        ):
            # Each line of the caches once, in case others throw it out.
            most = sum([d.count for d in family])
            whole = c.width if c.width * c.dtype.itemsize == self.target.line_nbytes else most + 1
            for run in runs_of_family(family) if len(family) > 1 else self.runs_of_one(c):
                while len(run) >= whole:
                    groups.append(run[:whole])
                    run = run[whole:]
                # What is left at the end of a run begins early.
                starts = range(0, len(run), size) if len(run) >= size else ()
                ends = [min(start + size, len(run)) for start in starts]
                groups += [run[end - size : end] for end in ends]
        for d in family:
            self.groups[d] = groups
        return groups

    def runs_of_one(self, c: Cell) -> list[list[Instance]]:
        """The runs of neighbours among the instances of a load."""
        return [[(c, k) for k in run] for run in self.neighbours(c)]

    def runs_of(self, c: Cell, longest: int, whole: int = 0) -> list[list[int]]:
        """All instances, in groups of powers of two whose offsets follow one another.

        As many groups of `whole` as there are come first. What is left of a run and nearly fills
        the next larger group is one that begins early.
        """
        groups: list[list[int]] = []
        for run in self.neighbours(c):
            start, end = 0, len(run)
            while whole and end - start >= whole:
                groups.append(run[start : start + whole])
                start += whole
            while start < end:
                left = end - start
                size = 1 << (min(left, longest).bit_length() - 1)
                over = 1 << (left - 1).bit_length()
                if 3 * over <= 4 * left < 4 * over <= 4 * min(longest, end):
                    start, size = end - over, over
                groups.append(run[start : start + size])
                start += size
        return groups

    @staticmethod
    def neighbours(c: Cell) -> list[list[int]]:
        """All instances, in runs as long as they are whose offsets follow one another."""
        maps = [x[1] for x in (c.base, c.gate) if x is not None]

        def operands(k: int) -> tuple[int, ...]:
            return tuple([m[k] if m else k for m in maps])

        found: list[list[int]] = []
        before: tuple[tuple[int, ...], int] | None = None
        for here, offset, k in sorted([(operands(k), c.offsets[k], k) for k in range(c.count)]):
            if before == (here, offset - 1):
                found[-1].append(k)
            else:
                found.append([k])
            before = here, offset
        return found

    def load_interleaved(self, group: list[Instance]) -> None:
        """Loads the runs of neighbours that the lanes of a group have, and transposes them."""
        c, first = group[0]
        base, offset, gate = self.operands_of_access(c, first)
        n, size, dtype = c.width, len(group), c.dtype
        runs = [
            self.load(self.element_address(c, base, offset, i), dtype, size, gate) for i in range(n)
        ]
        if size == n:
            texts = [text for text, _ in self.columns(runs, dtype, n)]
        else:
            # Lane i of a block is in the i-th value, so that mixing blocks gives whole instances.
            columns = [self.join(runs[j::size], dtype, size) for j in range(size)]
            texts = self.interleave(columns, dtype, n, 1, size)
        for (d, k), text in zip(group, texts, strict=True):
            if d.values[k] is None:
                d.values[k] = self.keep(d, text)

    def store_interleaved(self, c: Cell, group: list[int]) -> None:
        """Stores the runs of neighbours that the lanes of a group make, transposed by shuffles."""
        base, offset, gate = self.operands_of_access(c, group[0])
        if c.value is None or c.step is None:
            raise InternalError(f"renderer: {c.u!r} stores nothing side by side")
        source, m = c.value
        n, run, dtype = c.width, len(group), source.dtype
        chosen = [k if m is None else m[k] for k in group]
        values = [self.wide_text(source, j, self.need(source, j), n) for j in chosen]
        if c.step == run and not self.gates_elements(c, gate):
            if run & (run - 1) == 0:
                woven = self.interleave(values, dtype, n, 1, n)
            else:
                woven = self.weave(values, dtype, n)
            for q, text in enumerate(woven):
                self.store(self.address(c, base, offset + q * n), dtype, n, text, gate)
            return
        for i, (mixed, first) in enumerate(self.columns(values, dtype, n)):
            lane_gate = self.element(c.gate, gate, i)
            if lane_gate is False:
                continue
            text = self.part(mixed, dtype, n, first, run)
            at = self.element_address(c, base, offset, i)
            self.store(at, dtype, run, text, None if lane_gate is True else lane_gate)

    def columns(self, values: list[str], dtype: DType, n: int) -> list[tuple[str, int]]:
        """For each lane: a SIMD value that has the lane's elements of all values, and from where.

        Elements are mixed inside of blocks first, then blocks with one another: an order over the
        whole of a value takes a slower shuffle at each step.
        """
        block = min(BLOCK_NBYTES // max(dtype.itemsize, 1), n)
        side = min(block, len(values))
        groups, blocks = len(values) // side, n // block
        mixed = [
            self.interleave(values[g * side : (g + 1) * side], dtype, n, 1, block)
            for g in range(groups)
        ]
        joined = [
            self.turn_blocks([*m], dtype, n, block)
            if groups == blocks
            else self.interleave([*m], dtype, n, block, n)
            for m in zip(*mixed, strict=True)
        ]
        found = []
        for k in range(blocks):
            for j in range(block):
                text = joined[j * side // block][k * groups // blocks]
                found.append((text, k * groups % blocks * block + j * side % block))
        return found

    def turn_blocks(self, values: list[str], dtype: DType, n: int, block: int) -> list[str]:
        """Block 0 of each of as many SIMD values as each has blocks, then block 1 of each, ...

        The even blocks of two values side by side, and the odd ones, take a quicker shuffle than
        blocks in any other order: half of what it gives comes from each of the two.
        """
        if len(values) == 1:
            return values
        even, odd = (
            [
                self.shuffle(a, b, dtype, [x for x in range(2 * n) if x // block % 2 == parity])
                for a, b in zip(values[::2], values[1::2], strict=True)
            ]
            for parity in (0, 1)
        )
        if len(even) == 2:
            even, odd = ([self.opaque(m, dtype, n) for m in x] for x in (even, odd))
        halves = [self.turn_blocks(x, dtype, n, block) for x in (even, odd)]
        return [m for pair in zip(*halves, strict=True) for m in pair]

    def interleave(
        self, values: list[str], dtype: DType, n: int, unit: int, window: int
    ) -> list[str]:
        """In each window of `n` elements: unit 0 of each of these SIMD values, then unit 1, ..."""
        if len(values) == 1:
            return values
        low = [
            x
            for start in range(0, n, window)
            for i in range(start, start + window // 2, unit)
            for first in (i, n + i)
            for x in range(first, first + unit)
        ]
        high = [x + window // 2 for x in low]
        even = self.interleave(values[::2], dtype, n, unit, window)
        odd = self.interleave(values[1::2], dtype, n, unit, window)
        mixed = [
            self.shuffle(a, b, dtype, order)
            for a, b in zip(even, odd, strict=True)
            for order in (low, high)
        ]
        # A compiler that looks for other ways through two steps finds none and takes its time.
        return [self.opaque(m, dtype, n) for m in mixed] if len(values) == 2 else mixed

    def weave(self, values: list[str], dtype: DType, n: int) -> list[str]:
        """Element 0 of each of these SIMD values, then element 1, ... for any number of values."""
        count = len(values)
        woven = []
        for begin in range(0, count * n, n):
            places = [divmod(x, count) for x in range(begin, begin + n)]
            text = values[0]
            for number, value in enumerate(values[1:], 1):
                # What later values fill in is left at its place.
                order = [
                    n + at if of == number else i if number > 1 else at
                    for i, (at, of) in enumerate(places)
                ]
                text = self.shuffle(text, value, dtype, order)
            woven.append(text)
        return woven

    def store_elements(self, c: Cell, base: Value, offset: int, gate: Value, value: Value) -> None:
        """Stores a SIMD value one element after the other."""
        source = c.value[0] if c.value else c
        if value.__class__ is str and source.width == c.width and c.step is not None:
            at, each = self.address(c, base, offset), self.gates_elements(c, gate)
            if self.store_apart(at, c.step, source.dtype, c.width, str(value), gate, each):
                return
        for i in range(c.width):
            part_gate = self.element(c.gate, gate, i)
            if part_gate is False:
                continue
            part = self.element(c.value, value, i)
            text = part if part.__class__ is str else self.text(part, source.dtype, 1)
            self.store(
                self.element_address(c, base, offset, i),
                source.dtype,
                1,
                text,
                None if part_gate is True else part_gate,
            )

    def load_apart(
        self, at: Address, step: int, dtype: DType, n: int, gate: Value, each: bool
    ) -> str | None:
        """Elements `step` apart at once, each under its own gate or all under one.

        None where the language has no word for it.
        """
        return None

    def store_apart(
        self, at: Address, step: int, dtype: DType, n: int, value: str, gate: Value, each: bool
    ) -> bool:
        """Stores such elements; False where the language has no word for it."""
        return False

    def load_masked(self, at: Address, dtype: DType, n: int, gate: Value) -> str:
        """Contiguous elements, each under its own gate; the language may know better."""
        zero = self.text(dtypes.as_const(0, dtype), dtype, 1)
        return self.build(
            [
                zero if g is False else self.load(self.shift(at, i), dtype, 1, g)
                for i, g in enumerate(self.gate_parts(gate, n))
            ],
            dtype,
        )

    def store_masked(self, at: Address, dtype: DType, n: int, value: str, gate: Value) -> None:
        """Contiguous elements, each under its own gate; the language may know better."""
        for i, g in enumerate(self.gate_parts(gate, n)):
            if g is not False:
                self.store(self.shift(at, i), dtype, 1, self.extract(value, dtype, n, i), g)

    def gate_parts(self, gate: Value, n: int) -> list[Value]:
        """A SIMD gate as scalars; None for what always holds, False for what never does."""
        if gate.__class__ is str:
            return [self.extract(gate, dtypes.bool, n, i) for i in range(n)]
        return [None if g else False for g in gate]

    def operands_of_access(self, c: Cell, k: int) -> tuple[Value, int, Value]:
        """Base (None when it is known), offset, and gate (None when it always holds)."""
        base: Value = None
        offset = c.offsets[k]
        if c.base is not None:
            d, m = c.base
            j = k if m is None else m[k]
            base = d.values[j]
            if base is None:
                base = self.need(d, j)
            if base.__class__ is int:
                base, offset = None, offset + base
        gate = None
        if c.gate is not None:
            d, m = c.gate
            gate = self.need(d, k if m is None else m[k])
            if gate.__class__ is tuple and len(set(gate)) == 1:
                gate = gate[0]
            if gate.__class__ is bool:
                gate = None if gate else False
        return base, offset, gate

    @staticmethod
    def gates_elements(c: Cell, gate: Value) -> bool:
        """Whether each element of a SIMD access has a gate of its own."""
        return gate is not None and c.gate is not None and c.gate[0].width > 1

    def address(self, c: Cell, base: Value, offset: int) -> Address:
        """The address of a scalar or contiguous access."""
        node = c.base[0].u if c.base is not None else None
        if c.place is None:
            raise InternalError(f"renderer: {c.u!r} has no buffer")
        return Address(c.place, base, node, offset)

    def element_address(self, c: Cell, base: Value, offset: int, i: int) -> Address:
        """The address of element `i` of a SIMD access."""
        if c.step is not None:
            return self.address(c, base, offset + i * c.step)
        known = 0 if base is None else self.element(c.base, base, i)
        extra = self.lane_weight(c)
        if known.__class__ is int:
            return self.address(c, None, offset + known + i * extra)
        return self.address(c, known, offset + i * extra)

    @staticmethod
    def lane_weight(c: Cell) -> int:
        """Stride of the SIMD lane in the offset, beside its stride in the base."""
        index = strip_after(c.u.src[0])
        weights = read_affine(index.src[2]).weights if len(index.src) > 2 else {}
        return 0 if c.vector is None else weights.get(c.vector, 0)

    @staticmethod
    def shift(at: Address, elements: int) -> Address:
        """An address so many elements on."""
        return Address(at.place, at.base, at.base_node, at.offset + elements)

    def element(self, source: Input | None, value: Value, i: int) -> Value:
        """Element `i` of a base, gate or stored value; True for a gate that is not there."""
        if source is None or value is None:
            return True
        if value.__class__ is tuple:
            return value[i]
        d = source[0]
        if value.__class__ is not str or d.width == 1:
            return value
        return self.extract(value, d.dtype, d.width, i)
