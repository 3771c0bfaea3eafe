"""Interprets a linear program on Python numbers, as the reference semantics of kernels.

Receives a `Linear` and arrays over memory; reads and writes the memory. It follows the rules of
`uop/linear.py` and evaluates ops by `uop/evaluate.py`. Every access is checked against the bounds
of its buffer. Clarity comes before speed, and no code is shared with the renderers, so that each is
an independent test of the other.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Generator, Sequence
from typing import Any

from aster_ml.dtype import dtypes
from aster_ml.errors import InternalError
from aster_ml.runtime.interpreter.stages import (
    check_all_done,
    compile_acquire,
    compile_commit,
    compile_mma_wait,
    compile_release,
    compile_shared_product,
    compile_tma_load,
    compile_wait,
    hold_sums,
    poison_of,
    sums_of,
)
from aster_ml.runtime.interpreter.state import (
    Block,
    Compiling,
    Item,
    Step,
    Together,
    Until,
    Values,
    is_shared_place,
    lanes_of,
    new_scratch,
    positions,
    read_element,
    read_word,
    shared_scratch,
    strip_after,
    write_element,
)
from aster_ml.runtime.interpreter.tma_stores import (
    compile_fence,
    compile_tma_store,
    compile_tma_store_wait,
    write_tma_stores,
)
from aster_ml.runtime.interpreter.warps import (
    compile_matrices,
    compile_product,
    compile_shuffle,
    compile_stored_matrices,
)
from aster_ml.uop.evaluate import evaluate
from aster_ml.uop.linear import Linear
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import ELEMENTWISE, AxisType, Ops, ReduceArg

LOOPS = frozenset({AxisType.LOOP, AxisType.REDUCE, AxisType.THREAD})
BLOCKS = frozenset({AxisType.GLOBAL})
ITEMS = frozenset({AxisType.LOCAL, AxisType.GROUP})
# A stop that is no barrier: the work-item polls its condition again.
LOOKING = -1


class LoopStart:
    """RANGE of a loop: the node, the node of its size, and the place of its END in the steps."""

    __slots__ = ("end", "number", "size", "thread")

    def __init__(self, number: int, size: int, thread: bool) -> None:
        self.number = number
        self.size = size
        self.thread = thread
        self.end = 0


class LoopEnd:
    """END: the place of its RANGE in the steps."""

    __slots__ = ("start",)

    def __init__(self, start: int) -> None:
        self.start = start


class Barrier:
    """BARRIER: waits for the other work-items."""


class Role:
    """WARP_ROLE: who does what follows, and the place of the next one in the steps."""

    __slots__ = ("end", "is_more")

    def __init__(self, is_more: bool) -> None:
        self.is_more = is_more
        self.end = 0


def fold_op(u: UOp) -> Ops:
    """The op by which an ACCUMULATE or REDUCE folds."""
    return u.arg.op if isinstance(u.arg, ReduceArg) else u.arg


class Interpreter(Compiling):
    """A linear program compiled to Python functions."""

    def __init__(self, linear: Linear) -> None:
        super().__init__(linear)
        # Functions, and control-flow objects.
        self.steps: list[Any] = []
        # Arithmetic on variables only, such as sizes, which is needed first.
        self.size_steps: dict[UOp, Step] = {}
        self.scratch: list[UOp] = []
        # Ranges that are numbers of blocks, and of work-items in a block, in order.
        self.blocks: list[UOp] = []
        self.items: list[UOp] = []
        self.has_roles = False
        # How many blocks copy for one another; the first number of a block is that among them.
        self.cluster = max([u.arg.blocks for u in linear.uops if u.op is Ops.TMA_LOAD], default=1)
        open_loops: list[int] = []
        for u in (*linear.params, *linear.variables):
            self.add(u, [None])
        for u in linear.uops:
            self.compile_node(u, open_loops)
        while open_loops:
            self.close_loop(open_loops)

    def run(
        self,
        arrays: Sequence[Any],
        variables: Sequence[int] = (),
        part: tuple[int, int] | None = None,
    ) -> None:
        """Runs the kernel: `arrays` by slot, values of variables, the part of the THREAD range."""
        for p, array in zip(self.linear.params, arrays, strict=True):
            if len(array) < p.arg.size:
                raise InternalError(
                    f"{self.linear.name}: buffer {p.arg.slot} has {len(array)} "
                    f"elements, the kernel wants {p.arg.size}"
                )
        # Memory may be longer than the buffer; elements beyond its end are out of bounds.
        arrays = [a[: p.arg.size] for p, a in zip(self.linear.params, arrays, strict=True)]
        values = list(self.start_values)
        for v, value in zip(self.linear.variables, variables, strict=True):
            values[self.numbers[v]] = [int(value)]
        sizes = [self.size_now(r, values) for r in (*self.blocks, *self.items)]
        outer, inner = sizes[: len(self.blocks)], sizes[len(self.blocks) :]
        if self.cluster > 1 and outer[0] != self.cluster:
            raise InternalError(f"{self.linear.name}: {outer[0]} blocks in {self.cluster}")
        joined = self.cluster > 1
        for rest in itertools.product(*[range(n) for n in outer[joined:]]):
            blocks: list[Block] = []
            runs = []
            for rank in range(self.cluster):
                place = (rank, *rest) if joined else rest
                items = self.items_of(place, inner, values, arrays, part)
                block = items[0].block
                blocks.append(block)
                block.cluster, block.rank = blocks, rank
                runs.append(items)
            self.run_blocks([(item, self.run_item(item)) for items in runs for item in items])
            for items in runs:
                check_all_done(self.linear.name, items)
            for block in blocks:
                write_tma_stores(self.linear.name, block)

    def items_of(
        self, place: tuple[int, ...], inner: list[int], values: Values, arrays: Sequence[Any],
        part: tuple[int, int] | None,
    ) -> list[Item]:  # fmt: skip
        """The work-items of the block with these numbers."""
        numbers = list(itertools.product(*[range(n) for n in inner]))
        block = Block(len(numbers))
        block.memory = shared_scratch([u for u in self.scratch if not u.arg.private])
        items: list[Item] = []
        if self.has_roles:
            # A single work-item represents all extra ones, which do the same.
            numbers.append(tuple(inner))
        for item in numbers:
            mine = list(values)
            for r, i in zip((*self.blocks, *self.items), (*place, *item), strict=True):
                mine[self.numbers[r]] = [i]
            thread = self.linear.thread
            whole = (0, 1 if thread is None else self.size_now(thread, values))
            own = {u: new_scratch(u) for u in self.scratch if u.arg.private}
            state = Item(mine, arrays, {**block.memory, **own}, part or whole)
            state.block, state.number = block, len(items)
            state.is_more = state.number == block.items
            items.append(state)
        return items

    def run_blocks(self, runs: list[tuple[Item, Generator[int]]]) -> None:
        """Runs all work-items of a cluster, or of the only block, from barrier to barrier.

        Raises: InternalError for work-items at different barriers, and for a deadlock.
        """
        stops: dict[Item, int | None] = {}
        waiting, blocks = runs, runs[0][0].block.cluster
        while waiting:
            for block in blocks:
                block.moved = False
            # The order alternates, so that no program can rely on it.
            waiting = waiting[::-1]
            stops |= {item: next(run, None) for item, run in waiting}
            looking = [(item, run) for item, run in waiting if stops[item] == LOOKING]
            # The others are at a barrier, or have ended.
            if looking and any([block.moved for block in blocks]):
                waiting = looking
                continue
            met = self.met(runs, stops)
            waiting = met + looking
            if looking and not met:
                raise InternalError(
                    f"{self.linear.name}: {len(looking)} of {len(runs)} work-items of a block "
                    "wait forever (deadlock)"
                )

    def met(
        self, runs: list[tuple[Item, Generator[int]]], stops: dict[Item, int | None]
    ) -> list[tuple[Item, Generator[int]]]:
        """The work-items that continue after a barrier which all that have not ended have reached.

        Raises: InternalError where some have not reached it.
        """
        found = []
        for block in runs[0][0].block.cluster:
            own = [(item, run) for item, run in runs if item.block is block]
            together = {stops[item] for item, _ in own if not item.is_more}
            waiting = [x for x in own if stops[x[0]] is not None and stops[x[0]] != LOOKING]
            if LOOKING in together:
                continue
            if len(together) > 1:
                raise InternalError(
                    f"{self.linear.name}: {len(waiting)} of {len(own)} work-items "
                    "of a block wait at a barrier that the others never reach"
                )
            if any([s is not None and self.steps[s].__class__ is Barrier for s in together]):
                block.fenced.clear()
            found += waiting
        return found

    def run_item(self, item: Item) -> Generator[int]:
        """Runs a work-item; yields the index of each barrier."""
        place, steps, values = 0, self.steps, item.values
        while place < len(steps):
            step = steps[place]
            kind = step.__class__
            if kind is LoopStart:
                low, high = item.part if step.thread else (0, values[step.size][0])
                values[step.number] = [low]
                place = place + 1 if low < high else step.end + 1
            elif kind is LoopEnd:
                start = steps[step.start]
                following = values[start.number][0] + 1
                high = item.part[1] if start.thread else values[start.size][0]
                values[start.number] = [following]
                place = step.start + 1 if following < high else place + 1
            elif kind is Barrier:
                yield place
                place += 1
            elif kind is Until:
                while not step.ready(item):
                    yield LOOKING
                item.block.moved = True
                place += 1
            elif kind is Role:
                if item.is_more and not step.is_more:
                    return
                place = place + 1 if item.is_more is step.is_more else step.end
            elif kind is Together:
                item.block.board[item.number] = step.show(item)
                yield place
                step.take(item)
                # A barrier: no work-item writes its next value before all have read this one.
                yield place
                place += 1
            else:
                step(item)
                place += 1

    def size_now(self, r: UOp, values: Values) -> int:
        """The size of a range without a loop, from values of variables."""
        size = r.src[0]
        if size.op is Ops.CONST:
            return int(size.arg)
        known = values[self.numbers[size]][0] if size in self.numbers else None
        if known is None:
            item = Item(values, (), {}, (0, 0))
            for step in self.size_steps.values():
                step(item)
            known = values[self.numbers[size]][0]
        return int(known)

    # compiling the list

    def compile_node(self, u: UOp, open_loops: list[int]) -> None:
        """Adds the steps of one listed node."""
        op = u.op
        if op in (Ops.PARAM, Ops.DEFINE_VAR):
            if u not in self.numbers:
                raise InternalError(f"{self.linear.name}: {u!r} is listed but is no argument")
        elif op is Ops.RANGE:
            self.open_range(u, open_loops)
        elif op is Ops.END:
            if u.src[0].arg.kind in LOOPS:
                start = self.steps[open_loops[-1]] if open_loops else None
                if not isinstance(start, LoopStart) or start.number != self.numbers[u.src[0]]:
                    raise InternalError(
                        f"{self.linear.name}: END of {u.src[0]!r}, which is not the innermost loop"
                    )
                self.close_loop(open_loops)
        elif op is Ops.BARRIER:
            self.steps.append(Barrier())
        elif op is Ops.WARP_ROLE:
            self.open_role(bool(u.arg.items))
        elif op is Ops.DEFINE_LOCAL:
            self.scratch.append(u)
        elif op is Ops.PREFETCH:
            pass  # A hint: there are no caches here.
        elif op in ELEMENTWISE:
            step = self.compile_alu(u)
            self.steps.append(step)
            if all(s.op in (Ops.CONST, Ops.DEFINE_VAR) or s in self.size_steps for s in u.src):
                self.size_steps[u] = step
        elif op in COMPILERS:
            self.steps.append(COMPILERS[op](self, u))
        elif op not in (Ops.CONST, Ops.INDEX, Ops.AFTER, Ops.SINK):
            raise InternalError(f"{self.linear.name}: {u!r} has no place at the linear stage")

    def open_range(self, u: UOp, open_loops: list[int]) -> None:
        """Opens a loop, or adds a block or work-item number."""
        kind = u.arg.kind
        if kind in BLOCKS or kind in ITEMS:
            self.add(u, [None])
            (self.blocks if kind in BLOCKS else self.items).append(u)
        elif kind in LOOPS:
            size = self.number(u.src[0])
            open_loops.append(len(self.steps))
            self.steps.append(LoopStart(self.add(u, [None]), size, kind is AxisType.THREAD))
        elif not kind.is_lane:
            raise InternalError(f"{self.linear.name}: {u!r} has no place at the linear stage")

    def open_role(self, is_more: bool) -> None:
        """Starts the code of another role."""
        role = Role(is_more)
        for step in self.steps:
            if step.__class__ is Role and not step.end:
                step.end = len(self.steps) + 1
        self.steps.append(role)
        self.has_roles = True

    def close_loop(self, open_loops: list[int]) -> None:
        """Closes the innermost loop."""
        start = open_loops.pop()
        self.steps[start].end = len(self.steps)
        self.steps.append(LoopEnd(start))

    def compile_alu(self, u: UOp) -> Step:
        """An elementwise op, instance by instance."""
        number = self.add(u, [])
        lanes = self.lanes[u]
        readers = [self.reader(lanes, s) for s in u.src]
        rows = list(zip(*[m for _, m in readers], strict=True))
        sources = [n for n, _ in readers]
        op, dtype, dts = u.op, u.dtype, tuple([s.dtype for s in u.src])

        def step_once(item: Item) -> None:
            values = item.values
            values[number] = [evaluate(op, dtype, tuple([values[n][0] for n in sources]), dts)]

        if len(rows) == 1:
            return step_once

        def step(item: Item) -> None:
            found = [item.values[n] for n in sources]
            item.values[number] = [
                evaluate(op, dtype, tuple([v[i] for v, i in zip(found, row)]), dts) for row in rows
            ]

        return step

    def compile_load(self, u: UOp) -> Step:
        """LOAD: zero where the gate fails, without accessing memory."""
        number = self.add(u, [])
        lanes = self.lanes[u]
        locate = self.compile_place(u.src[0], lanes)
        gate, gate_rows = self.reader(lanes, u.src[1]) if len(u.src) > 1 else (-1, [])
        zero, dtype = dtypes.as_const(0, u.dtype), u.src[0].dtype
        read = read_element if dtype is u.dtype else read_word
        where = f"{self.linear.name}: {describe_access(u)}"

        def step(item: Item) -> None:
            array, elements = locate(item)
            if gate < 0:
                found = [read(array, dtype, where, i) for i in elements]
            else:
                holds = item.values[gate]
                found = [
                    read(array, dtype, where, i) if holds[row] else zero
                    for i, row in zip(elements, gate_rows, strict=True)
                ]
            item.values[number] = found

        return step

    def compile_store(self, u: UOp) -> Step:
        """STORE: every instance in order."""
        lanes = lanes_of(u)
        locate = self.compile_place(u.src[0], lanes)
        value, rows = self.reader(lanes, u.src[1])
        gate, gate_rows = self.reader(lanes, u.src[2]) if len(u.src) > 2 else (-1, rows)
        later = u.arg is not None and u.arg.later
        poison = poison_of(u.src[1].dtype)
        where = f"{self.linear.name}: {describe_access(u)}"
        is_shared = is_shared_place(u.src[0])

        def step(item: Item) -> None:
            array, elements = locate(item)
            values = item.values[value]
            if is_shared:
                item.block.unfenced.add(item.number)
            for i, row, gate_row in zip(elements, rows, gate_rows, strict=True):
                if gate < 0 or item.values[gate][gate_row]:
                    if later:
                        # Poison, so that a read before the WAIT is noticed.
                        write_element(array, where, i, poison)
                        write = functools.partial(write_element, array, where, i, values[row])
                        item.groups[-1].append(write)
                    else:
                        write_element(array, where, i, values[row])

        return step

    def compile_define_reg(self, u: UOp) -> Step:
        """DEFINE_REG: every instance takes the start value."""
        number = self.add(u, [])
        start, rows = self.reader(self.lanes[u], u.src[0])

        def step(item: Item) -> None:
            values = item.values[start]
            item.values[number] = [values[row] for row in rows]

        return step

    def compile_accumulate(self, u: UOp) -> Step:
        """ACCUMULATE: the unrolled lanes in order, the first of them slowest."""
        reg = strip_after(u.src[0])
        lanes = (*u.src[2:], *self.lanes[reg])
        number, reg_rows = self.reader(lanes, reg)
        value, rows = self.reader(lanes, u.src[1])
        op, dtype = fold_op(u), u.dtype
        comes_later = u.src[1].op is Ops.MMA and bool(u.src[1].arg.majors)

        def step(item: Item) -> None:
            sums, values = sums_of(item, number), item.values[value]
            for r, row in zip(reg_rows, rows, strict=True):
                sums[r] = evaluate(op, dtype, (sums[r], values[row]), (dtype, dtype))
            if comes_later:
                hold_sums(item, number, sums, value)
            else:
                item.values[number] = sums

        return step

    def compile_reduce(self, u: UOp) -> Step:
        """REDUCE over lanes, in their order."""
        number = self.add(u, [])
        lanes = (*self.lanes[u], *u.src[1:])
        value, rows = self.reader(lanes, u.src[0])
        share = len(rows) // len(positions(self.lanes[u]))
        groups = [rows[i : i + share] for i in range(0, len(rows), share)]
        op, dtype = fold_op(u), u.dtype

        def step(item: Item) -> None:
            values = item.values[value]
            found = []
            for first, *rest in groups:
                total = values[first]
                for row in rest:
                    total = evaluate(op, dtype, (total, values[row]), (dtype, dtype))
                found.append(total)
            item.values[number] = found

        return step


def compile_any_product(program: Compiling, u: UOp) -> Step | Together:
    """MMA, wherever its operands are."""
    return compile_shared_product(program, u) if u.arg.majors else compile_product(program, u)


COMPILERS: dict[Ops, Callable[[Interpreter, UOp], Step | Together | Until]] = {
    Ops.LOAD: Interpreter.compile_load,
    Ops.STORE: Interpreter.compile_store,
    Ops.DEFINE_REG: Interpreter.compile_define_reg,
    Ops.ACCUMULATE: Interpreter.compile_accumulate,
    Ops.REDUCE: Interpreter.compile_reduce,
    Ops.SHUFFLE: compile_shuffle,
    Ops.LDMATRIX: compile_matrices,
    Ops.MMA: compile_any_product,
    Ops.TMA_LOAD: compile_tma_load,
    Ops.COMMIT: compile_commit,
    Ops.WAIT: compile_wait,
    Ops.MMA_WAIT: compile_mma_wait,
    Ops.ACQUIRE: compile_acquire,
    Ops.RELEASE: compile_release,
    Ops.STMATRIX: compile_stored_matrices,
    Ops.TMA_STORE: compile_tma_store,
    Ops.FENCE: compile_fence,
    Ops.TMA_STORE_WAIT: compile_tma_store_wait,
}


def describe_access(u: UOp) -> str:
    """`LOAD of buffer 0`, `STORE of scratch 1`."""
    buffer = strip_after(strip_after(u.src[0]).src[0])
    if buffer.op is Ops.PARAM:
        return f"{u.op.name} of buffer {buffer.arg.slot}"
    return f"{u.op.name} of scratch {buffer.arg.id}"
