"""Runs a linear program on Python numbers: the living definition of what a kernel means.

Receives a `Linear` and arrays over memory; reads and writes the memory. It follows the reading
rules of `uop/linear.py` one by one and takes the meaning of each op from `uop/evaluate.py`. Every
access is checked against the bounds of its buffer. Nothing here is fast, and nothing is shared with
the renderers, so that each can be wrong alone.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Generator, Sequence
from typing import Any, NamedTuple

import numpy as np

from aster_ml.dtype import (
    DType,
    bitcast_value,
    dtypes,
    round_float,
    to_dtype,
    to_numpy_dtype,
)
from aster_ml.errors import InternalError
from aster_ml.target.tensor_cores import TENSOR_CORES
from aster_ml.uop.evaluate import evaluate, evaluate_expr
from aster_ml.uop.linear import Linear
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import ELEMENTWISE, AxisType, Ops, ReduceArg

LOOPS = frozenset({AxisType.LOOP, AxisType.REDUCE, AxisType.THREAD})
BLOCKS = frozenset({AxisType.GLOBAL})
ITEMS = frozenset({AxisType.LOCAL, AxisType.GROUP})

# The values of every node, instance by instance; nodes are numbered.
Values = list[list[Any]]
Step = Callable[["Item"], None]


class Item:
    """What one work-item knows: values, memory, and the part of the THREAD range to run."""

    __slots__ = ("arrays", "board", "groups", "number", "part", "scratch", "values")

    def __init__(
        self, values: Values, arrays: Sequence[Any], scratch: dict[UOp, Any], part: tuple[int, int]
    ) -> None:
        # Its number in the block, and what the block's work-items show one another.
        self.number = 0
        self.board: dict[int, Any] = {}
        # Copies under way, by group; those of the last have no COMMIT yet.
        self.groups: list[list[Callable[[], None]]] = [[]]
        self.values = values
        self.arrays = arrays
        self.scratch = scratch
        self.part = part


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
    """BARRIER: the other work-items get here first."""


class Together(NamedTuple):
    """What a warp runs together: each shows something, then takes of what all have shown."""

    show: Callable[[Item], Any]
    take: Callable[[Item], None]


def lanes_of(u: UOp) -> tuple[UOp, ...]:
    """The lanes of a value; its instances are numbered by them, the last one fastest."""
    if u.op is Ops.DEFINE_REG:
        return u.src[1:]
    return tuple(sorted([r for r in u.ranges if r.arg.kind.is_lane], key=lambda r: r.arg.id))


def positions(lanes: tuple[UOp, ...]) -> list[dict[UOp, int]]:
    """The lanes' values in each instance."""
    sizes = [range(r.src[0].arg) for r in lanes]
    return [dict(zip(lanes, p, strict=True)) for p in itertools.product(*sizes)]


def instance(lanes: tuple[UOp, ...], position: dict[UOp, int]) -> int:
    """The number of the instance at these lane values."""
    number = 0
    for r in lanes:
        number = number * int(r.src[0].arg) + position[r]
    return number


def register_of(lanes: tuple[UOp, ...], position: dict[UOp, int]) -> int:
    """The number of the register that a part of an operand is in: the first lane is bit 0."""
    return sum([position[r] << i for i, r in enumerate(lanes)])


def strip_after(u: UOp) -> UOp:
    """The node that AFTER marks."""
    while u.op is Ops.AFTER:
        u = u.src[0]
    return u


def fold_op(u: UOp) -> Ops:
    """The op by which an ACCUMULATE or REDUCE folds."""
    return u.arg.op if isinstance(u.arg, ReduceArg) else u.arg


def read_element(array: Any, dtype: DType, where: str, i: int) -> Any:
    """Element `i` as a Python number. Raises: InternalError outside of the buffer."""
    if not 0 <= i < len(array):
        raise InternalError(f"{where}: element {i} of {len(array)} is read")
    value = array[i]
    return float(value) if dtype.kind == "float" else value.item()


def read_word(array: Any, dtype: DType, where: str, i: int) -> int:
    """Neighbours from element `i` on as one word of 32 bits, the first in the lowest ones."""
    storage = {1: dtypes.uint8, 2: dtypes.uint16}[dtype.itemsize]
    word = 0
    for k in range(4 // dtype.itemsize):
        value = read_element(array, dtype, where, i + k)
        word |= bitcast_value(value, dtype, storage) << (8 * dtype.itemsize * k)
    return word


def write_element(array: Any, where: str, i: int, value: Any) -> None:
    """Sets element `i`. Raises: InternalError outside of the buffer."""
    if not 0 <= i < len(array):
        raise InternalError(f"{where}: element {i} of {len(array)} is written")
    array[i] = value


def wait_for_groups(left: int, item: Item) -> None:
    """Does all copies but those of the last groups, which are as many as may be `left`."""
    done = max(len(item.groups) - 1 - left, 0)
    for group in item.groups[:done]:
        for write in group:
            write()
    item.groups = item.groups[done:]


class Interpreter:
    """A linear program made ready to run."""

    def __init__(self, linear: Linear) -> None:
        self.linear = linear
        self.numbers: dict[UOp, int] = {}
        self.lanes: dict[UOp, tuple[UOp, ...]] = {}
        self.start_values: Values = []
        # Functions, and the objects that steer between them.
        self.steps: list[Any] = []
        # Arithmetic on variables alone, such as sizes: some of it is needed before the rest.
        self.size_steps: dict[UOp, Step] = {}
        self.scratch: list[UOp] = []
        # Ranges that are numbers of blocks, and of work-items in a block, in order.
        self.blocks: list[UOp] = []
        self.items: list[UOp] = []
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
        # Memory is often longer than the buffer; what is past its end is still out of bounds.
        arrays = [a[: p.arg.size] for p, a in zip(self.linear.params, arrays, strict=True)]
        values = list(self.start_values)
        for v, value in zip(self.linear.variables, variables, strict=True):
            values[self.numbers[v]] = [int(value)]
        sizes = [self.size_now(r, values) for r in (*self.blocks, *self.items)]
        outer, inner = sizes[: len(self.blocks)], sizes[len(self.blocks) :]
        for block in itertools.product(*[range(n) for n in outer]):
            shared = {u: new_scratch(u) for u in self.scratch if not u.arg.private}
            runs: list[Generator[int]] = []
            board: dict[int, Any] = {}
            for item in itertools.product(*[range(n) for n in inner]):
                mine = list(values)
                for r, i in zip((*self.blocks, *self.items), (*block, *item), strict=True):
                    mine[self.numbers[r]] = [i]
                thread = self.linear.thread
                whole = (0, 1 if thread is None else self.size_now(thread, values))
                own = {u: new_scratch(u) for u in self.scratch if u.arg.private}
                item_state = Item(mine, arrays, {**shared, **own}, part or whole)
                item_state.board, item_state.number = board, len(runs)
                runs.append(self.run_item(item_state))
            self.run_block(runs)

    def run_block(self, runs: list[Generator[int]]) -> None:
        """All work-items of a block, from barrier to barrier.

        Raises: InternalError where some wait at another barrier than the others, or at none.
        """
        while runs:
            stops = [next(run, None) for run in runs]
            waiting = [run for run, stop in zip(runs, stops, strict=True) if stop is not None]
            if len(set(stops)) > 1:
                raise InternalError(
                    f"{self.linear.name}: {len(waiting)} of {len(runs)} work-items "
                    "of a block wait at a barrier that the others never reach"
                )
            runs = waiting

    def run_item(self, item: Item) -> Generator[int]:
        """One work-item; stops at each barrier, and says at which."""
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
            elif kind is Together:
                item.board[item.number] = step.show(item)
                yield place
                step.take(item)
                # Nobody shows anything else before all have taken this.
                yield place
                place += 1
            else:
                step(item)
                place += 1

    def size_now(self, r: UOp, values: Values) -> int:
        """The size of a range that no loop runs; variables have their values by then."""
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

    def add(self, u: UOp, values: list[Any]) -> int:
        """A number for a node, and its values as they are at the start."""
        number = self.numbers[u] = len(self.start_values)
        self.start_values.append(values)
        self.lanes[u] = lanes_of(u)
        return number

    def number(self, u: UOp) -> int:
        """The number of a source. Constants and lanes are not listed and get theirs here."""
        u = strip_after(u)
        found = self.numbers.get(u)
        if found is not None:
            return found
        if u.op is Ops.CONST:
            return self.add(u, [u.arg])
        if u.op is Ops.RANGE and u.arg.kind.is_lane:
            return self.add(u, list(range(u.src[0].arg)))
        raise InternalError(f"{self.linear.name}: {u!r} is used before it stands in the list")

    def reader(self, lanes: tuple[UOp, ...], source: UOp) -> tuple[int, list[int]]:
        """The number of a source, and which of its instances each instance over `lanes` reads."""
        number, source_lanes = self.number(source), self.lanes[strip_after(source)]
        if not set(source_lanes) <= set(lanes):
            raise InternalError(f"{self.linear.name}: {source!r} is read without its lanes")
        return number, [instance(source_lanes, p) for p in positions(lanes)]

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
        elif op is Ops.COMMIT:
            self.steps.append(lambda item: item.groups.append([]))
        elif op is Ops.WAIT:
            self.steps.append(functools.partial(wait_for_groups, u.arg))
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
        """A loop begins, or a number of a block or work-item joins the values."""
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

    def close_loop(self, open_loops: list[int]) -> None:
        """The innermost loop ends."""
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

    def compile_place(self, index: UOp, lanes: tuple[UOp, ...]) -> Callable[[Item], Any]:
        """What gives the array that an INDEX goes to, and the element for each instance."""
        index = strip_after(index)
        if index.op is not Ops.INDEX:
            raise InternalError(f"{self.linear.name}: an access through {index!r}, not an INDEX")
        buffer = strip_after(index.src[0])
        base, rows = self.reader(lanes, index.src[1])
        offsets = [0] * len(rows)
        if len(index.src) > 2:
            offsets = [evaluate_offset(index.src[2], p) for p in positions(lanes)]
        pairs = list(zip(rows, offsets, strict=True))
        slot = self.linear.params.index(buffer) if buffer.op is Ops.PARAM else -1

        def locate(item: Item) -> Any:
            array = item.scratch[buffer] if slot < 0 else item.arrays[slot]
            start = item.values[base]
            return array, [start[row] + offset for row, offset in pairs]

        return locate

    def compile_load(self, u: UOp) -> Step:
        """LOAD: zero where the gate fails, without a look at the memory."""
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
        poison = float("nan") if u.src[1].dtype.kind == "float" else dtypes.max(u.src[1].dtype)
        where = f"{self.linear.name}: {describe_access(u)}"

        def step(item: Item) -> None:
            array, elements = locate(item)
            values = item.values[value]
            for i, row, gate_row in zip(elements, rows, gate_rows, strict=True):
                if gate < 0 or item.values[gate][gate_row]:
                    if later:
                        # Nobody may read it, and nobody does without its being seen.
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

        def step(item: Item) -> None:
            sums, values = list(item.values[number]), item.values[value]
            for r, row in zip(reg_rows, rows, strict=True):
                sums[r] = evaluate(op, dtype, (sums[r], values[row]), (dtype, dtype))
            item.values[number] = sums

        return step

    def compile_shuffle(self, u: UOp) -> Together:
        """SHUFFLE: the value of another work-item of the block."""
        number = self.add(u, [])
        source, rows = self.reader(self.lanes[u], u.src[0])

        def take(item: Item) -> None:
            other = item.number ^ u.arg
            if other not in item.board:
                raise InternalError(f"{self.linear.name}: there is no work-item {other}")
            item.values[number] = item.board[other]

        return Together(lambda item: [item.values[source][row] for row in rows], take)

    def compile_matrices(self, u: UOp) -> Together:
        """LDMATRIX: elements of rows that eight work-items name for each matrix."""
        number, lanes = self.add(u, []), self.lanes[u]
        words, own = u.src[1 : 1 + u.arg.word], u.src[1:]
        outer = tuple([r for r in lanes if r not in own])
        locate = self.compile_place(u.src[0], outer)
        where = f"{self.linear.name}: LDMATRIX"
        found = []
        for p in positions(lanes):
            part, matrix = register_of(words, p), register_of(own[len(words) :], p)
            found.append((instance(outer, p), matrix, part))

        def take(item: Item) -> None:
            first, lane = item.number // 32 * 32, item.number % 32
            values = []
            for group, matrix, part in found:
                column = lane % 4 * (1 << len(words)) + part
                row, column = (column, lane // 4) if u.arg.transposed else (lane // 4, column)
                array, elements = item.board[first + 8 * matrix + row]
                values.append(read_element(array, u.dtype, where, elements[group] + column))
            item.values[number] = values

        return Together(locate, take)

    def compile_product(self, u: UOp) -> Together:
        """MMA: each element of the result is a sum over what two rows of work-items have."""
        core = TENSOR_CORES[u.arg.core]
        number, lanes = self.add(u, []), self.lanes[u]
        count = 2 + u.arg.a
        of_a, of_b = u.src[2:count], u.src[count : count + u.arg.b]
        own = u.src[count + u.arg.b :]
        outer = tuple([r for r in lanes if r not in own])
        operands = []
        for operand, value, mine in (("a", u.src[0], of_a), ("b", u.src[1], of_b)):
            node, rows = self.reader((*outer, *reversed(mine)), value)
            where = {
                tuple(sorted(core.place(operand, i, r).items())): (i, r)
                for i in range(core.warp)
                for r in range(1 << len(mine))
            }
            operands.append((node, rows, 1 << len(mine), where))
        kind, given = to_dtype(core.dtype), u.src[0].dtype

        def meant(x: Any) -> Any:
            # Where there is no such dtype, these are its bits.
            return x if given is kind else bitcast_value(x, given, kind)

        (a, a_rows, a_count, a_at), (b, b_rows, b_count, b_at) = operands
        results = [(instance(outer, p), register_of(own, p)) for p in positions(lanes)]

        def take(item: Item) -> None:
            first = item.number // core.warp * core.warp
            found = []
            for group, register in results:
                at = core.place("c", item.number - first, register)
                total = 0.0
                for k in range(core.size("k")):
                    i, r = a_at[("k", k), ("m", at["m"])]
                    j, s = b_at[("k", k), ("n", at["n"])]
                    x = item.board[first + i][0][a_rows[group * a_count + r]]
                    y = item.board[first + j][1][b_rows[group * b_count + s]]
                    total += meant(x) * meant(y)
                found.append(round_float(total, u.dtype))
            item.values[number] = found

        return Together(lambda item: (item.values[a], item.values[b]), take)

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


COMPILERS: dict[Ops, Callable[[Interpreter, UOp], Step | Together]] = {
    Ops.LOAD: Interpreter.compile_load,
    Ops.STORE: Interpreter.compile_store,
    Ops.DEFINE_REG: Interpreter.compile_define_reg,
    Ops.ACCUMULATE: Interpreter.compile_accumulate,
    Ops.REDUCE: Interpreter.compile_reduce,
    Ops.SHUFFLE: Interpreter.compile_shuffle,
    Ops.LDMATRIX: Interpreter.compile_matrices,
    Ops.MMA: Interpreter.compile_product,
}


def evaluate_offset(u: UOp, position: dict[UOp, int]) -> int:
    """The offset of an INDEX at these lane values."""
    return int(evaluate_expr(u, position))


def describe_access(u: UOp) -> str:
    """`LOAD of buffer 0`, `STORE of scratch 1`."""
    buffer = strip_after(strip_after(u.src[0]).src[0])
    if buffer.op is Ops.PARAM:
        return f"{u.op.name} of buffer {buffer.arg.slot}"
    return f"{u.op.name} of scratch {buffer.arg.id}"


def new_scratch(u: UOp) -> Any:
    """Scratch memory; what nobody wrote is NaN, or a number that stands out."""
    array = np.empty(u.arg.size, dtype=to_numpy_dtype(u.dtype))
    array.view(np.uint8).fill(0xFF if u.dtype.kind == "float" else 0xA5)
    return array
