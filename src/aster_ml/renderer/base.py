"""Walks a linear program once and writes its lanes out: the part that all renderers share.

Receives a `Linear` (its docstring has the reading rules) and a `Target`; returns source text. Here
stands everything that does not depend on the language: which instances a value has, which of them
a consumer reads, when a scalar is spread over a SIMD value, which accesses are contiguous, which
integers are constants. A language adds a rule for each op and hooks that write one statement.

Instances are written when something needs them, not node by node: a register tile then loads an
element just before it multiplies it, so few values live at a time. Nothing moves over a write to
the memory or accumulator that it reads, nor out of or into a loop. Different params are different
memory, unless neither is written.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterable, Sequence

from aster_ml.dtype import DType, dtypes
from aster_ml.errors import InternalError
from aster_ml.renderer.access import AccessWriter
from aster_ml.renderer.cell import (
    Address,
    Cell,
    Input,
    Shape,
    Value,
    chosen_inputs,
    fold,
    fold_op,
    shape_over,
    simplify,
    strip_after,
)
from aster_ml.renderer.coalescing import families_of
from aster_ml.renderer.fragments import (
    instance_at,
    place_of,
    places,
    write_products,
    write_shared_products,
)
from aster_ml.renderer.lanes import (
    Lanes,
    instances,
    lane_ranges,
    project,
    size_of,
    split_lanes,
)
from aster_ml.target import Target
from aster_ml.uop.linear import Linear
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import ELEMENTWISE, AxisType, Ops
from aster_ml.watch import WATCHERS

# Names of a module are found faster than members of an Enum, and every node is asked for its op.
(
    ACCUMULATE, ADD, PREFETCH, BARRIER, TMA_LOAD, COMMIT, CONST, DEFINE_REG, DOT, END, LDMATRIX,
    LOAD, MAX, MMA, MUL, RANGE, REDUCE, SHUFFLE, STMATRIX, STORE, TMA_STORE, WAIT, WHERE,
) = (
    Ops.ACCUMULATE, Ops.ADD, Ops.PREFETCH, Ops.BARRIER, Ops.TMA_LOAD, Ops.COMMIT, Ops.CONST,
    Ops.DEFINE_REG, Ops.DOT, Ops.END, Ops.LDMATRIX, Ops.LOAD, Ops.MAX, Ops.MMA, Ops.MUL, Ops.RANGE,
    Ops.REDUCE, Ops.SHUFFLE, Ops.STMATRIX, Ops.STORE, Ops.TMA_STORE, Ops.WAIT, Ops.WHERE,
)  # fmt: skip
# What names a stage of local memory.
OF_STAGES = frozenset({Ops.COMMIT, Ops.WAIT, Ops.ACQUIRE, Ops.RELEASE})
# What a kernel with reductions has, and most lanes of others that are written side by side.
FOLDS, MOST_SIDE_BY_SIDE = frozenset({Ops.DEFINE_REG, Ops.ACCUMULATE, Ops.REDUCE}), 4
ADDED_TOGETHER = frozenset({dtypes.float32, dtypes.float64})
LOOPS = frozenset({AxisType.LOOP, AxisType.REDUCE, AxisType.THREAD})
# Work-items of a block: those that share a reduction count on after the others.
WORK_ITEMS = frozenset({AxisType.GLOBAL, AxisType.LOCAL, AxisType.GROUP})
# What the walk has nothing to write for: read where it is used, or only a mark.
SILENT = frozenset({Ops.CONST, Ops.INDEX, Ops.AFTER, Ops.SINK, Ops.PARAM, Ops.DEFINE_VAR})
LISTED = ELEMENTWISE | {Ops.LOAD, Ops.REDUCE, Ops.SHUFFLE, Ops.LDMATRIX, Ops.MMA}


class Renderer(abc.ABC):
    """A language: turns linear programs into its source text, for one target."""

    def __init__(self, target: Target) -> None:
        self.target = target

    # Makes one source of several, of kernels of different names, where the language can.
    join: Callable[[Sequence[str]], str] | None = None

    @abc.abstractmethod
    def render(self, linear: Linear) -> str:
        """The source of one kernel. Raises: InternalError where the program breaks its rules."""


class KernelWriter(AccessWriter):
    """Writes one kernel, node by node."""

    lines: list[str]

    def __init__(self, target: Target, linear: Linear) -> None:
        self.target = target
        self.linear = linear
        self.cells: dict[UOp, Cell] = {}
        self.pending: dict[Cell, None] = {}
        self.asked = []
        self.families = {}
        self.groups = {}
        self.lane_of = {}
        self.maps: dict[tuple[Lanes, Lanes], list[int] | None] = {}
        # By the ranges that values depend on.
        self.shapes: dict[frozenset[UOp], Shape] = {}
        self.loops: list[Cell] = []
        self.dims = {AxisType.GLOBAL: 0, AxisType.LOCAL: 0}

    def run(self) -> str:
        """The source text of the kernel."""
        self.prepare()
        self.prologue()
        marks: list[int] = []
        for u in self.linear.uops:
            if WATCHERS:
                marks.append(len(self.lines))
            step = STEPS.get(u.op)
            if step is not None:
                step(self, self.cells[u.src[0] if u.op is END else u])
            elif u.op in LISTED:
                self.list_value(self.cells[u])
            elif u.op is BARRIER:
                self.write_barrier()
            elif u.op not in SILENT:
                raise InternalError(f"renderer: {u!r} has no place at the linear stage")
        while self.loops:
            self.leave_loop(self.loops[-1])
        text = self.finish()
        for w in WATCHERS:
            w.rendered(self, marks, text)
        return text

    # cells

    def prepare(self) -> None:
        """Makes the cells of all listed nodes and what follows from seeing all of them."""
        open_loops: list[Cell] = []
        depths: dict[Cell, int] = {}
        folds: list[Cell] = []
        loads: dict[Cell, UOp | None] = {}
        for u in (*self.linear.params, *self.linear.variables):
            self.add_cell(u)
        for u in self.linear.uops:
            op = u.op
            if op is END:
                open_loops = [c for c in open_loops if c.u is not u.src[0]]
                continue
            if op is BARRIER or (op in SILENT and u not in self.cells):
                continue
            c = self.cells.get(u) or self.add_cell(u)
            c.depth = len(open_loops)
            if op in ELEMENTWISE:
                continue
            if op is RANGE and u.arg.kind in LOOPS:
                open_loops.append(c)
            elif op is DEFINE_REG:
                depths[c] = len(open_loops)
            elif op is LOAD and c.width > 1:
                loads[c] = open_loops[-1].u if open_loops else None
            elif op is STORE and u.arg is not None and u.arg.later and c.value is not None:
                c.value[0].fused = self.copies_at_once(c)
            elif op is ACCUMULATE:
                folds.append(c)
                reg = c.inputs[0][0]
                for loop in open_loops[depths[reg] :]:
                    loop.carried[reg] = None
        stays = {u for u in self.linear.params if u.arg.slot not in self.linear.written}
        self.families = families_of({c: loop for c, loop in loads.items() if c.place in stays})
        self.side_by_side = not any([u.op in FOLDS for u in self.linear.uops])
        for c in folds:
            product = c.inputs[1][0]
            if product.op is MMA:
                product.fused = True
                # Where they lie is all that is read of these loads.
                for s, major in zip(product.u.src, product.u.arg.majors, strict=False):
                    self.cell(s).fused = major != "r"
            elif (
                fold_op(c.u) is ADD
                and product.uses == 1
                and (product.op is DOT or (product.op is MUL and product.dtype.kind == "float"))
                and product.vector is c.inputs[0][0].vector
                and all([d.op is not DEFINE_REG for d, _ in product.inputs])
            ):
                product.fused = True

    def cell(self, u: UOp) -> Cell:
        """The cell of a source. Constants and lanes are not listed, so theirs are made here."""
        u = strip_after(u)
        found = self.cells.get(u)
        if found is not None:
            return found
        if u.op is CONST or (u.op is RANGE and u.arg.kind.is_lane):
            return self.add_cell(u)
        raise InternalError(f"renderer: {u!r} is used before it stands in the list")

    def add_cell(self, u: UOp) -> Cell:
        """A new cell for a node whose sources have theirs."""
        op = u.op
        if op is DEFINE_REG:
            # The longest lane goes slowest: what it does not change is then read again soonest,
            # and fewest values of the other operand wait in registers.
            shape = shape_over(sorted(u.src[1:], key=lambda r: -size_of(r)))
        else:
            ranges = u.ranges
            known = self.shapes.get(ranges)
            if known is None:
                known = self.shapes[ranges] = shape_over(lane_ranges(u))
            shape = known
        c = self.cells[u] = Cell(u, shape)
        if op in ELEMENTWISE:
            for s in u.src:
                c.inputs.append(self.read(c, s))
        elif op is CONST:
            c.values = [u.arg]
        elif op is RANGE:
            if c.vector is u:
                c.values = [tuple(range(c.width))]
            elif u.arg.kind.is_lane:
                c.values = list(range(c.count))
            elif u.arg.kind is not AxisType.GLOBAL:
                # How many work-groups there are is the launch's affair.
                c.inputs = [self.read(c, u.src[0])]
        elif op in (LOAD, STORE, PREFETCH, LDMATRIX):
            self.classify_access(c)
        elif op is DEFINE_REG:
            c.inputs = [self.read(c, u.src[0])]
        elif op is ACCUMULATE:
            reg = self.cell(u.src[0])
            c.lanes = (*split_lanes(u.src[2:])[0], *reg.lanes)
            c.count = instances(c.lanes)
            c.inputs = [self.read(c, u.src[0]), self.read(c, u.src[1], reg.width)]
        elif op is SHUFFLE:
            c.inputs = [self.read(c, u.src[0])]
        elif op is TMA_LOAD or op is TMA_STORE:
            self.classify_access(c)
            c.inputs += [self.read(c, s) for s in u.src[2:]]
        elif op is STMATRIX:
            self.classify_access(c)
            c.inputs.append(self.read(c, u.src[1]))
        elif op in OF_STAGES:
            c.inputs = [self.read(c, s) for s in u.src]
        elif op is MMA:
            # Which instances it reads is said where it is written.
            for s in u.src[:2]:
                # Several products read each part of an operand.
                self.cell(s).uses += 2
        elif op is REDUCE:
            folded, _ = split_lanes(u.src[1:])
            c.lanes = (*c.lanes, *folded)
            c.inputs = [self.read(c, u.src[0])]
            c.lanes = c.lanes[: len(c.lanes) - len(folded)]
        return c

    def read(self, c: Cell, source: UOp, width: int | None = None) -> Input:
        """The cell of a source of `c`, and which of its instances each of ours reads."""
        d = self.cells.get(source) or self.cell(source)
        d.uses += 1
        d.consumer = c.u
        if d.width == 1:
            width = c.width if width is None else width
            if width > 1:
                d.spread.add(width)
        if c.lanes is d.lanes:
            return d, None
        key = (c.lanes, d.lanes)
        if key in self.maps:
            return d, self.maps[key]
        found = self.maps[key] = project(*key)
        return d, found

    # the walk

    def list_value(self, c: Cell) -> None:
        """A value in list order: written now, or, where it has lanes, when it is needed.

        Few lanes of a kernel without reductions are written side by side, node after node: each
        instruction of a chain waits for the one before, and a processor looks only so far ahead.
        """
        if c.fused:
            return
        if c.count == 1:
            self.need(c, 0)
        elif c.op is SHUFFLE:
            # Here, where all work-items run it.
            self.complete(c)
        elif self.side_by_side and c.count <= MOST_SIDE_BY_SIDE and c.op in ELEMENTWISE:
            for k in range(c.count):
                self.need(c, k)
        else:
            self.pending[c] = None

    def need(self, c: Cell, k: int) -> Value:
        """Instance `k` of a value, written now unless it was."""
        if c.values[k] is None:
            stack = [(c, k)]
            while stack:
                d, i = stack[-1]
                inputs = d.inputs
                if d.op is WHERE:
                    inputs = chosen_inputs(d, i)
                elif d.op is REDUCE:
                    inputs = []
                for s, m in inputs:
                    j = i if m is None else m[i]
                    if s.values[j] is None:
                        # What comes first in the sources is written first.
                        stack.append((s, j))
                        break
                else:
                    stack.pop()
                    elementwise = d.op in ELEMENTWISE
                    d.values[i] = self.write_alu(d, i) if elementwise else self.write_value(d, i)
                    if d.spread:
                        self.spread_value(d, i)
        return c.values[k]

    def spread_value(self, d: Cell, i: int) -> None:
        """Makes the SIMD forms of a scalar where it is written, which is before any use of it."""
        if d.values[i].__class__ is str:
            for n in d.spread:
                d.splats[i, n] = self.splat(d.values[i], d.dtype, n)

    def write_value(self, c: Cell, k: int) -> Value:
        """Writes one instance, of no elementwise op, whose sources are written."""
        if c.op is LOAD:
            value = self.write_load(c, k)
        elif c.op is LDMATRIX:
            return self.write_matrices(c, k)
        elif c.op is REDUCE:
            value = self.write_reduce(c, k)
        elif c.op is SHUFFLE:
            d, m = c.inputs[0]
            text = self.wide_text(
                d, k if m is None else m[k], d.values[k if m is None else m[k]], c.width
            )
            return self.name_value(self.exchange(text, c.dtype, c.width, c.u.arg), c.dtype, c.width)
        else:
            raise InternalError(f"renderer: {c.u!r} is read outside the loop that it stands in")
        return self.keep(c, value) if value.__class__ is str else value

    def write_matrices(self, c: Cell, k: int) -> Value:
        """LDMATRIX: the words of all matrices at once, each of which is several instances."""
        own = c.u.src[1:]
        words, matrices = own[: c.u.arg.word], own[c.u.arg.word :]
        place = place_of(c, k)
        base, offset, _ = self.operands_of_access(c, k)
        of = [[instance_at(c, place | w | m) for w in places(words)] for m in places(matrices)]
        names = [f"{self.name_word()}" for _ in of]
        self.load_matrices(names, self.address(c, base, offset), c.u.arg.transposed)
        for name, mine in zip(names, of, strict=True):
            for j in mine:
                c.values[j] = name
        return c.values[k]

    def write_alu(self, c: Cell, k: int) -> Value:
        """An elementwise op; what is known of integers is computed here and now."""
        n = c.width
        values = []
        known = 0
        for d, m in c.inputs:
            j = k if m is None else m[k]
            v = d.values[j]
            if v.__class__ is not str:
                known += 1
            elif d.width != n:
                v = self.widen(d, j, n)
            values.append(v)
        src = c.u.src
        if known:
            if c.op is WHERE and values[0].__class__ is bool:
                return values[1] if values[0] else values[2]
            found = fold(c, values) if known == len(values) else None
            found = simplify(c, values) if found is None else found
            if found is not None:
                return found
            for i, v in enumerate(values):
                if v.__class__ is not str:
                    values[i] = self.text(v, src[i].dtype, n)
        rule = self.rules.get(c.op)
        if rule is None:
            raise InternalError(
                f"renderer: {c.op} is not decomposed, and {type(self).__name__} has no rule for it"
            )
        return self.keep(c, rule(self, c.dtype, n, values, c.u))

    def widen(self, d: Cell, j: int, n: int) -> str:
        """Instance `j` of a scalar in all elements of a SIMD value."""
        # An accumulator changes, so it is spread where it is read.
        if d.op is DEFINE_REG:
            return self.splat(d.values[j], d.dtype, n)
        return d.splats[j, n]

    def complete(self, c: Cell) -> None:
        """Writes what is still missing of a pending value."""
        for k in range(c.count):
            self.need(c, k)
        self.pending.pop(c, None)

    def complete_readers(self, place: UOp | None) -> None:
        """Writes pending values that read a buffer or accumulator which now changes."""
        for c in list(self.pending):
            if c.place is place or any([d.u is place for d, _ in c.inputs]):
                self.complete(c)

    def enter_loop(self, c: Cell) -> None:
        """RANGE: lanes are silent, work-items are values, the rest opens a loop."""
        kind = c.u.arg.kind
        if kind.is_lane:
            return
        if kind in WORK_ITEMS:
            level = AxisType.GLOBAL if kind is AxisType.GLOBAL else AxisType.LOCAL
            c.values[0] = self.work_item(c, level, self.dims[level])
            if c.spread:
                self.spread_value(c, 0)
            self.dims[level] += 1
            return
        if kind not in LOOPS:
            raise InternalError(f"renderer: {c.u!r} is no loop; it is lowered before the list")
        if kind is not AxisType.THREAD and c.inputs[0][0].values[0] == 1:
            c.values[0] = 0
            return
        for d in list(self.pending):
            self.complete(d)
        self.loops.append(c)
        self.open_loop(c)
        if c.spread:
            self.spread_value(c, 0)

    def leave_loop(self, c: Cell) -> None:
        """END of the innermost loop; what is pending in it has no consumer."""
        if c.values[0] == 0 or c.u.arg.kind in WORK_ITEMS:
            return
        if not self.loops or self.loops[-1] is not c:
            raise InternalError(f"renderer: END of {c.u!r}, which is not the innermost loop")
        self.pending.clear()
        self.close_loop(c)
        self.loops.pop()

    def start_reg(self, c: Cell) -> None:
        """DEFINE_REG: every instance takes the start value."""
        self.complete_readers(c.u)
        start, m = c.inputs[0]
        values = []
        for k in range(c.count):
            j = k if m is None else m[k]
            value = self.need(start, j)
            if value.__class__ is str and start.width != c.width:
                value = self.widen(start, j, c.width)
            values.append(value)
        self.define_reg(c, values)

    def accumulate_all(self, c: Cell) -> None:
        """ACCUMULATE: lane after lane, one statement for each instance of the accumulator."""
        reg, source = c.inputs[0][0], c.inputs[1][0]
        self.complete_readers(reg.u)
        op, n, dtype = fold_op(c.u), reg.width, reg.dtype
        m = c.inputs[1][1]
        if source.op is MMA:
            operands = self.cell(source.u.src[0]), self.cell(source.u.src[1])
            if source.u.arg.majors:
                write_shared_products(c, operands, self.place_of_operand, self.one_instance, self)
                return
            write_products(c, operands, self.one_instance, self)
            return
        if op is MAX and self.accumulate_maxima(c):
            return
        gated = [x for x in source.inputs if x[0].op is LOAD and x[0].gate is not None]
        for k in order_of_products(c) if source.fused else range(c.count):
            r, j = k % reg.count, k if m is None else m[k]
            if source.fused:
                if gated:
                    loaded = [self.need(d, j if dm is None else dm[j]) for d, dm in gated]
                    if not all([value.__class__ is str for value in loaded]):
                        # Loaded from where there is nothing: it adds nothing to the sum.
                        continue
                factors = []
                for d, dm in source.inputs:
                    i = j if dm is None else dm[j]
                    factors.append(self.wide_text(d, i, self.need(d, i), n))
                self.accumulate_product(reg, r, source.op, *factors)
                continue
            value = self.need(source, j)
            if source.width > n:
                text = self.text(value, dtype, source.width)
                for i in range(source.width):
                    self.accumulate(reg, r, op, self.extract(text, dtype, source.width, i))
            else:
                self.accumulate(reg, r, op, self.wide_text(source, j, value, n))

    def one_instance(self, d: Cell, j: int) -> str:
        """Instance `j` of `d` as text, written now unless it was."""
        return self.wide_text(d, j, self.need(d, j), 1)

    def wide_text(self, d: Cell, j: int, value: Value, n: int) -> str:
        """Instance `j` of `d` as text of width `n`."""
        if value.__class__ is not str:
            return self.text(value, d.dtype, n)
        if d.width == n:
            return str(value)
        return self.widen(d, j, n)

    def write_reduce(self, c: Cell, k: int) -> str:
        """REDUCE: halves of the instances are combined until one is left, then its elements."""
        source = c.inputs[0][0]
        _, vector = split_lanes(c.u.src[1:])
        op, n, dtype = fold_op(c.u), source.width, c.dtype
        if vector is source.vector is not None:
            group = self.added_together(c, k)
            if len(group) > 1:
                return self.write_sums(c, group, k)
        value = self.combine_folded(c, k)
        if vector is None:
            return value
        if vector is source.vector:
            return self.horizontal(op, value, dtype, n)
        return self.combine(op, dtype, n, [value] * size_of(vector))

    def combine_folded(self, c: Cell, k: int) -> str:
        """Folds instance `k` of a REDUCE to one SIMD value."""
        return self.combine(fold_op(c.u), c.dtype, c.inputs[0][0].width, self.folded_values(c, k))

    def folded_instances(self, c: Cell, k: int) -> list[int]:
        """Which instances of its source instance `k` of a REDUCE folds."""
        m = c.inputs[0][1]
        total = instances(split_lanes(c.u.src[1:])[0])
        return [i if m is None else m[i] for i in range(k * total, (k + 1) * total)]

    def folded_values(self, c: Cell, k: int) -> list[str]:
        """Lists the values that instance `k` of a REDUCE folds, SIMD lanes aside."""
        source = c.inputs[0][0]
        needed = [self.need(source, j) for j in self.folded_instances(c, k)]
        return [self.text(value, c.dtype, source.width) for value in needed]

    def added_together(self, c: Cell, k: int) -> range:
        """The instances of a sum over SIMD lanes whose lanes are added up together with those of k.

        As many as there are lanes, or as are left, a power of two.
        """
        n = c.inputs[0][0].width
        if not self.can_shuffle or fold_op(c.u) is not ADD or c.dtype not in ADDED_TOGETHER:
            return range(k, k + 1)
        start, size = 0, n
        while n & (n - 1) == 0:
            size = min(size, 1 << (c.count - start).bit_length() - 1)
            if k < start + size:
                return range(start, start + size)
            start += size
        return range(k, k + 1)

    def write_sums(self, c: Cell, group: range, k: int) -> str:
        """Sums over the lanes of several instances, a lane of one SIMD value each; that of `k`."""
        n, dtype, size = c.inputs[0][0].width, c.dtype, len(group)
        values = [self.combine(ADD, dtype, n, self.folded_values(c, j)) for j in group]
        total = self.add_lanes(values, dtype, n)
        for i, j in enumerate(group):
            c.values[j] = text = self.extract(total, dtype, size, i)
            self.lane_of[text] = (total, size, i)
            if c.spread and j != k:
                self.spread_value(c, j)
        return str(c.values[k])

    def combine(self, op: Ops, dtype: DType, n: int, values: list[str]) -> str:
        """Values folded by halves."""
        while len(values) > 1:
            half = (len(values) + 1) // 2
            pairs = [
                self.name_value(
                    self.rules[op](self, dtype, n, [values[i], values[i + half]], None), dtype, n
                )
                for i in range(len(values) - half)
            ]
            values = pairs + values[len(pairs) : half]
        return values[0]

    def place_of_operand(self, c: Cell, k: int) -> Address:
        """Where an operand of a product lies that is read from local memory."""
        base, offset, _ = self.operands_of_access(c, k)
        return self.address(c, base, offset)

    def write_box(self, c: Cell) -> None:
        """TMA_LOAD: what is copied, where to, and the place of the box in its tensor."""
        base, offset, _ = self.operands_of_access(c, 0)
        places = [self.text(self.need(d, 0), d.dtype, 1) for d, _ in c.inputs[-len(c.u.src) + 2 :]]
        self.copy_box(c.u, self.address(c, base, offset), places[: len(c.u.arg.sizes)])

    def write_store_box(self, c: Cell) -> None:
        """TMA_STORE: what is copied, where from, and the place of the box in its tensor."""
        base, offset, _ = self.operands_of_access(c, 0)
        places = [self.text(self.need(d, 0), d.dtype, 1) for d, _ in c.inputs[-len(c.u.src) + 2 :]]
        self.store_box(c.u, self.address(c, base, offset), places)

    def write_stored_matrices(self, c: Cell) -> None:
        """STMATRIX: words of all matrices at once, each of elements that are several instances."""
        own = c.u.src[2:]
        words, matrices = own[: c.u.arg.word], own[c.u.arg.word :]
        source, m = c.inputs[-1]
        self.complete_readers(c.place)
        for outer in places([r for r in reversed(c.lanes) if r not in own]):
            found = []
            for matrix in places(matrices):
                of = [instance_at(c, outer | matrix | word) for word in places(words)]
                values = [self.need(source, k if m is None else m[k]) for k in of]
                found.append([self.text(value, source.dtype, 1) for value in values])
            base, offset, _ = self.operands_of_access(c, of[0])
            self.store_matrices(found, self.address(c, base, offset), c.u.arg.transposed)

    def write_settle(self, c: Cell) -> None:
        """MMA_WAIT: how many products may be left."""
        self.settle(c.u.arg)

    def write_role(self, c: Cell) -> None:
        """WARP_ROLE: how many more work-items one of which does what follows, and their registers.

        What is computed before stands where all roles see it, and what a role has, others do not.
        """
        for d in list(self.pending) if c.u.arg.items else ():
            self.complete(d)
        self.pending.clear()
        self.take_role(*c.u.arg)

    def write_acquire(self, c: Cell) -> None:
        """ACQUIRE: the stage, and how often it was filled before."""
        self.acquire(*[self.text(self.need(d, 0), d.dtype, 1) for d, _ in c.inputs])

    def write_release(self, c: Cell) -> None:
        """RELEASE: the stage, and a gate."""
        self.release(*[self.text(self.need(d, 0), d.dtype, 1) for d, _ in c.inputs])

    def write_commit(self, c: Cell) -> None:
        """COMMIT: what it names of a stage."""
        self.commit([self.text(self.need(d, 0), d.dtype, 1) for d, _ in c.inputs])

    def write_wait(self, c: Cell) -> None:
        """WAIT: how many groups may be left, and what it names of a stage."""
        self.wait(c.u.arg, [self.text(d.values[0], d.dtype, 1) for d, _ in c.inputs])

    def write_barrier(self) -> None:
        """BARRIER: no load moves over it."""
        for c in list(self.pending):
            if c.op in (LOAD, LDMATRIX):
                self.complete(c)
        self.barrier()


STEPS: dict[Ops, Callable[[KernelWriter, Cell], None]] = {
    Ops.RANGE: KernelWriter.enter_loop,
    Ops.END: KernelWriter.leave_loop,
    Ops.DEFINE_REG: KernelWriter.start_reg,
    Ops.DEFINE_LOCAL: lambda w, c: w.define_local(c),
    Ops.ACCUMULATE: KernelWriter.accumulate_all,
    Ops.STORE: KernelWriter.write_stores,
    Ops.PREFETCH: KernelWriter.write_asks,
    Ops.COMMIT: KernelWriter.write_commit,
    Ops.WAIT: KernelWriter.write_wait,
    Ops.TMA_LOAD: KernelWriter.write_box,
    Ops.TMA_STORE: KernelWriter.write_store_box,
    Ops.STMATRIX: KernelWriter.write_stored_matrices,
    Ops.FENCE: lambda w, c: w.fence(),
    Ops.TMA_STORE_WAIT: lambda w, c: w.drain(),
    Ops.MMA_WAIT: KernelWriter.write_settle,
    Ops.WARP_ROLE: KernelWriter.write_role,
    Ops.ACQUIRE: KernelWriter.write_acquire,
    Ops.RELEASE: KernelWriter.write_release,
}


def order_of_products(c: Cell) -> Iterable[int]:
    """The order in which products are added up: those of what is loaded from one place together.

    why: lanes along a window and along what it moves over load each place many times, and all that
    is loaded in them would not fit the registers
    """
    source, m = c.inputs[1]
    factors = [d for d, _ in source.inputs]
    if not any([len(set(d.offsets)) < len(d.offsets) for d in factors]):
        return range(c.count)
    places = []
    for d, dm in source.inputs:
        of = [k if m is None else m[k] for k in range(c.count)]
        offsets = d.offsets or [0] * d.count
        places.append([offsets[j if dm is None else dm[j]] for j in of])
    most = max(places, key=lambda offsets: len(set(offsets)))
    return sorted(range(c.count), key=most.__getitem__)
