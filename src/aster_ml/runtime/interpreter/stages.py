"""Interprets asynchronous copies and MMAs: stages of local memory, commits and waits.

Receives nodes of a linear program and returns the steps of the interpreter for them. Asynchronous
operations happen as late as the program allows: the target of a copy is poison until its WAIT, an
accumulator is NaN until its MMA_WAIT. A program that reads earlier, or overwrites an operand, gets
wrong numbers. A tile has rows of 128 bytes; the swizzle concerns only the hardware and is not
modelled.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

from aster_ml.dtype import DType, dtypes, to_dtype, to_numpy_dtype
from aster_ml.errors import InternalError
from aster_ml.runtime.interpreter.state import (
    Block,
    Compiling,
    Item,
    Step,
    Until,
    instance,
    positions,
    register_of,
    strip_after,
)
from aster_ml.target.tensor_cores import TENSOR_CORES
from aster_ml.target.tensor_maps import ROW_NBYTES
from aster_ml.uop.node import UOp

# Alignment of an operand in rows.
ROWS = 8


class Stage:
    """History of one stage: groups of copies that began and that are done, and releases."""

    __slots__ = ("begun", "groups", "released")

    def __init__(self, blocks: int) -> None:
        # Number of groups that each block of the cluster has started.
        self.begun = [0] * blocks
        self.released = 0
        # Copies in flight, of each group.
        self.groups: list[list[Step]] = []


def stage_of(block: Block, number: int) -> Stage:
    """The stage with this number."""
    if number not in block.stages:
        block.stages[number] = Stage(len(block.cluster))
    stage: Stage = block.stages[number]
    return stage


def poison_of(dtype: DType) -> Any:
    """The value of memory that must not be read yet."""
    return float("nan") if dtype.kind == "float" else dtypes.max(dtype)


def wait_for_groups(left: int, item: Item) -> None:
    """Does all copies except those of the last `left` groups."""
    done = max(len(item.groups) - 1 - left, 0)
    for group in item.groups[:done]:
        for write in group:
            write()
    item.groups = item.groups[done:]


def one_of(program: Compiling, source: UOp) -> Callable[[Item], Any]:
    """Compiles a source without lanes: a function that returns its value."""
    number, _ = program.reader((), source)
    return lambda item: item.values[number][0]


def gate_of(program: Compiling, sources: tuple[UOp, ...]) -> Callable[[Item], bool]:
    """Compiles an optional gate: a function that returns whether it holds."""
    return one_of(program, *sources) if sources else lambda item: True


# copies of boxes


def issues_copies(item: Item) -> bool:
    """Whether a work-item is the one that starts copies of its block."""
    return item.is_more or item.number == 0


def compile_tma_load(program: Compiling, u: UOp) -> Step:
    """TMA_LOAD: it is on its way from the COMMIT behind it on."""
    locate, arg = program.compile_place(u.src[0], ()), u.arg
    count = len(arg.sizes)
    places = [one_of(program, s) for s in u.src[2 : 2 + count]]
    gate = gate_of(program, u.src[2 + count :])
    slot, dtype = program.linear.params.index(u.src[1]), u.src[1].dtype
    local = strip_after(strip_after(u.src[0]).src[0])
    # Coordinates of the elements of a box, contiguous dimension first.
    steps = np.indices(arg.box[::-1]).reshape(count, -1)[::-1]
    where = f"{program.linear.name}: TMA_LOAD of buffer {slot}"

    def step(item: Item) -> None:
        if not issues_copies(item) or not gate(item):
            return
        to, elements = locate(item)
        first = elements[0]
        if first < 0 or first + steps.shape[1] > len(to):
            raise InternalError(f"{where}: elements from {first} on of {len(to)} are written")
        if first * dtype.itemsize % (ROWS * ROW_NBYTES):
            raise InternalError(f"{where}: it begins between the rows of its memory")
        at = [steps[i] + int(places[i](item)) for i in range(count)]
        inside = np.logical_and.reduce(
            [(x >= 0) & (x < n) for x, n in zip(at, arg.sizes, strict=True)]
        )
        source = arg.start + sum([x * n for x, n in zip(at, arg.strides, strict=True)])
        memory = item.arrays[slot]
        if inside.any() and not 0 <= source[inside].min() <= source[inside].max() < len(memory):
            raise InternalError(f"{where}: it reads outside of {len(memory)} elements")

        def begin(to: Any) -> Step:
            to[first : first + steps.shape[1]] = poison_of(dtype)

            def deliver(_: Item) -> None:
                found = np.zeros(steps.shape[1], to.dtype)
                found[inside] = memory[source[inside]]
                to[first : first + steps.shape[1]] = found

            return deliver

        block = item.block
        for other in block.cluster if arg.blocks > 1 else [block]:
            place = other.memory[local]
            item.boxes.append((other.rank, functools.partial(begin, place)))

    return step


def compile_commit(program: Compiling, u: UOp) -> Step:
    """COMMIT of asynchronous stores, or of the TMA loads of a stage."""
    if not u.src:
        return lambda item: item.groups.append([])
    number, gate = one_of(program, u.src[0]), gate_of(program, u.src[1:])

    def step(item: Item) -> None:
        if issues_copies(item) and gate(item):
            for other in item.block.cluster:
                stage = stage_of(other, number(item))
                stage.groups.append([begin() for rank, begin in item.boxes if rank == other.rank])
                stage.begun[item.block.rank] += 1
            item.boxes.clear()
        elif item.boxes:
            raise InternalError(f"{program.linear.name}: a box that no COMMIT begins")

    return step


def compile_wait(program: Compiling, u: UOp) -> Step | Until:
    """WAIT for asynchronous stores, or for the TMA loads of a stage."""
    if not u.src:
        return functools.partial(wait_for_groups, u.arg)
    number, turn = one_of(program, u.src[0]), one_of(program, u.src[1])

    def ready(item: Item) -> bool:
        stage, before = stage_of(item.block, number(item)), turn(item)
        if max(stage.begun) > before + 1:
            raise InternalError(
                f"{program.linear.name}: stage {number(item)} is filled again before all "
                "work-items have waited for it"
            )
        for deliver in itertools.chain.from_iterable(stage.groups):
            deliver(item)
        stage.groups.clear()
        return bool(min(stage.begun) == before + 1)

    return Until(ready)


def compile_acquire(program: Compiling, u: UOp) -> Until:
    """ACQUIRE: waits until all work-items of the cluster have released the stage so often."""
    number, turn = one_of(program, u.src[0]), one_of(program, u.src[1])

    def ready(item: Item) -> bool:
        block = item.block
        wanted = turn(item) * block.items * len(block.cluster)
        return bool(stage_of(block, number(item)).released >= wanted)

    return Until(ready)


def compile_release(program: Compiling, u: UOp) -> Step:
    """RELEASE: counts a work-item that has released the stage, in all blocks of the cluster."""
    number, gate = one_of(program, u.src[0]), gate_of(program, u.src[1:])

    def step(item: Item) -> None:
        for other in item.block.cluster if gate(item) else ():
            stage_of(other, number(item)).released += 1

    return step


# products of operands in local memory


def elements_of(rows: int, depth: int, itemsize: int, is_major: bool) -> Any:
    """Offsets of the elements of an operand [rows, depth] from its first.

    Contiguous along the depth (`is_major`), or along the rows, in blocks of 128 bytes of rows with
    the whole depth each.
    """
    row = ROW_NBYTES // itemsize
    i, k = np.indices((rows, depth))
    return i * row + k if is_major else i // row * row * row + k * row + i % row


def compile_shared_product(program: Compiling, u: UOp) -> Step:
    """MMA: a work-item's part of the product of two operands in local memory."""
    core = TENSOR_CORES[u.arg.core]
    number, lanes = program.add(u, []), program.lanes[u]
    own = u.src[2:]
    outer = tuple([r for r in lanes if r not in own])
    kind = to_numpy_dtype(to_dtype(core.dtype))
    depth, row = core.size("k"), ROW_NBYTES // u.src[0].dtype.itemsize
    sides = []
    for axis, load, major in zip("mn", u.src[:2], u.arg.majors, strict=True):
        elements = elements_of(core.size(axis), depth, load.dtype.itemsize, major == "k")
        sides.append((program.compile_place(load.src[0], outer), elements, major == "k"))
    results = [(instance(outer, p), register_of(own, p)) for p in positions(lanes)]

    @functools.cache
    def results_of(lane: int) -> list[tuple[int, int, int]]:
        """The product, row and column of each result of a work-item of a warp."""
        at = [(group, core.place("c", lane, register)) for group, register in results]
        return [(group, place["m"], place["n"]) for group, place in at]

    def operand(item: Item, side: Any, group: int) -> tuple[Any, Any]:
        locate, elements, is_major = side
        memory, firsts = locate(item)
        first = firsts[group]
        if first // row % ROWS or (first % row and not is_major):
            raise InternalError(f"{program.linear.name}: an operand begins between its rows")
        places = elements + first
        if first < 0 or places.max() >= len(memory):
            raise InternalError(f"{program.linear.name}: MMA reads outside of {len(memory)}")
        return memory, places

    def step(item: Item) -> None:
        products, reads = [], []
        for group in range(len(positions(outer))):
            found = []
            for side in sides:
                memory, places = operand(item, side, group)
                found.append(memory[places])
                reads.append((memory, places, found[-1]))
            a, b = (x.view(kind).astype(np.float64) for x in found)
            products.append(a @ b.T)
        places = results_of(item.number % core.warp)
        item.values[number] = [float(products[group][m, n]) for group, m, n in places]
        item.reads[number] = reads

    return step


def hold_sums(item: Item, number: int, sums: list[Any], product: int) -> None:
    """Nobody has an accumulator before MMA_WAIT: its sums are put aside."""
    item.held[number] = sums
    item.values[number] = [float("nan")] * len(sums)
    item.products.append((number, item.reads[product]))


def sums_of(item: Item, number: int) -> list[Any]:
    """Lists the values to which the next product adds: pending sums, or the accumulator."""
    return list(item.held.get(number) or item.values[number])


def compile_mma_wait(program: Compiling, u: UOp) -> Step:
    """MMA_WAIT: products whose operands are still what they were are in their accumulators."""

    def step(item: Item) -> None:
        done = max(len(item.products) - u.arg, 0)
        for number, reads in item.products[:done]:
            for memory, places, was in reads:
                if memory[places].tobytes() != was.tobytes():
                    item.held[number] = [float("nan")] * len(item.held[number])
        item.products = item.products[done:]
        left = {number for number, _ in item.products}
        for number in [n for n in item.held if n not in left]:
            item.values[number] = item.held.pop(number)

    return step


def check_all_done(name: str, items: list[Item]) -> None:
    """Raises: InternalError for a block that ends before its copies and products are waited for."""
    for item in items:
        if item.held:
            raise InternalError(f"{name}: a product that no MMA_WAIT waits for")
    stages = items[0].block.stages.values() if items else ()
    if any(itertools.chain.from_iterable([stage.groups for stage in stages])):
        raise InternalError(f"{name}: a box that no WAIT waits for")
