"""Holds the interpreter's state: work-items, numbered nodes, and places in memory.

Receives the nodes of a linear program one by one; `run` and the modules beside it interpret the
ops. Every access to memory is made and checked here.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from aster_ml.dtype import DType, bitcast_value, dtypes, to_numpy_dtype
from aster_ml.errors import InternalError
from aster_ml.uop.evaluate import evaluate_expr
from aster_ml.uop.linear import Linear
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import Ops

# The values of every node, instance by instance; nodes are numbered.
Values = list[list[Any]]
Step = Callable[["Item"], None]


class Block:
    """State that the work-items of a block share."""

    __slots__ = (
        "board", "boxes", "cluster", "fenced", "items", "memory", "moved", "rank", "stages",
        "unfenced",
    )  # fmt: skip

    def __init__(self, items: int) -> None:
        self.items = items
        # The blocks of the cluster, in order, and the rank of this one.
        self.cluster: list[Block] = [self]
        self.rank = 0
        # Local memory.
        self.memory: dict[UOp, Any] = {}
        # Values that work-items of a warp exchange, by number of the work-item.
        self.board: dict[int, Any] = {}
        # The history of each stage of local memory.
        self.stages: dict[int, Any] = {}
        # TMA stores, some of them read; work-items with stores before a FENCE, and with a FENCE
        # before a BARRIER.
        self.boxes: list[Any] = []
        self.unfenced: set[int] = set()
        self.fenced: set[int] = set()
        # Whether a waiting work-item has continued.
        self.moved = False


class Item:
    """State of one work-item: values, memory, and the part of the THREAD range to run."""

    __slots__ = (
        "arrays", "block", "boxes", "groups", "held", "is_more", "number", "part", "products",
        "reads", "scratch", "values",
    )  # fmt: skip

    def __init__(
        self, values: Values, arrays: Sequence[Any], scratch: dict[UOp, Any], part: tuple[int, int]
    ) -> None:
        # Its number in the block; whether it is an extra one (WARP_ROLE).
        self.number = 0
        self.is_more = False
        self.block = Block(1)
        # TMA loads before a COMMIT, each with its target block; products in flight, and pending
        # sums.
        self.boxes: list[tuple[int, Callable[[], Step]]] = []
        self.products: list[Any] = []
        self.held: dict[int, list[Any]] = {}
        # Number of a product's node -> the operands it has read.
        self.reads: dict[int, list[Any]] = {}
        # Copies in flight, by group; the last group has no COMMIT yet.
        self.groups: list[list[Callable[[], None]]] = [[]]
        self.values = values
        self.arrays = arrays
        self.scratch = scratch
        self.part = part


class Together(NamedTuple):
    """A warp instruction: each work-item publishes a value, then reads values of the others."""

    show: Callable[[Item], Any]
    take: Callable[[Item], None]


class Until(NamedTuple):
    """A wait: the work-item polls until its condition holds."""

    ready: Callable[[Item], bool]


def lanes_of(u: UOp) -> tuple[UOp, ...]:
    """The lanes of a value, which number its instances, the last lane fastest."""
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


def is_shared_place(index: UOp) -> bool:
    """Whether an INDEX refers to local memory that a block shares."""
    memory = strip_after(strip_after(index).src[0])
    return memory.op is Ops.DEFINE_LOCAL and not memory.arg.private


def read_element(array: Any, dtype: DType, where: str, i: int) -> Any:
    """Element `i` as a Python number. Raises: InternalError outside of the buffer."""
    if not 0 <= i < len(array):
        raise InternalError(f"{where}: element {i} of {len(array)} is read")
    value = array[i]
    return float(value) if dtype.kind == "float" else value.item()


def read_word(array: Any, dtype: DType, where: str, i: int) -> int:
    """Consecutive elements from `i` on as a 32-bit word, the first in the lowest bits."""
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


def evaluate_offset(u: UOp, position: dict[UOp, int]) -> int:
    """The offset of an INDEX at these lane values."""
    return int(evaluate_expr(u, position))


def new_scratch(u: UOp) -> Any:
    """Scratch memory, filled with NaN or a conspicuous number."""
    array = np.empty(u.arg.size, dtype=to_numpy_dtype(u.dtype))
    array.view(np.uint8).fill(0xFF if u.dtype.kind == "float" else 0xA5)
    return array


def shared_scratch(arrays: Sequence[UOp]) -> dict[UOp, Any]:
    """The local memory of a block; arrays that are `over` others alias them."""
    by_id = {u.arg.id: u for u in arrays}
    found = {}
    for u in arrays:
        if u.arg.over:
            below = [by_id[i] for i in u.arg.over]
            room = np.concatenate([new_scratch(x).view(np.uint8) for x in below])
            own = new_scratch(u).view(np.uint8)
            room = np.concatenate([room, own[len(room) :]])
            found[u] = room[: len(own)].view(to_numpy_dtype(u.dtype))
            start = 0
            for x in below:
                nbytes = x.arg.size * x.dtype.itemsize
                found[x] = room[start : start + nbytes].view(to_numpy_dtype(x.dtype))
                start += nbytes
    return {u: found[u] if u in found else new_scratch(u) for u in arrays}


class Compiling:
    """Numbers the nodes of a linear program; work-items store values by number."""

    def __init__(self, linear: Linear) -> None:
        self.linear = linear
        self.numbers: dict[UOp, int] = {}
        self.lanes: dict[UOp, tuple[UOp, ...]] = {}
        self.start_values: Values = []

    def add(self, u: UOp, values: list[Any]) -> int:
        """Numbers a node, with its initial values."""
        number = self.numbers[u] = len(self.start_values)
        self.start_values.append(values)
        self.lanes[u] = lanes_of(u)
        return number

    def number(self, u: UOp) -> int:
        """The number of a source. Constants and lanes, which are not listed, are numbered here."""
        u = strip_after(u)
        found = self.numbers.get(u)
        if found is not None:
            return found
        if u.op is Ops.CONST:
            return self.add(u, [u.arg])
        if u.op is Ops.RANGE and u.arg.kind.is_lane:
            return self.add(u, list(range(u.src[0].arg)))
        raise InternalError(f"{self.linear.name}: {u!r} is used before it is listed")

    def reader(self, lanes: tuple[UOp, ...], source: UOp) -> tuple[int, list[int]]:
        """The number of a source, and which of its instances each instance over `lanes` reads."""
        number, source_lanes = self.number(source), self.lanes[strip_after(source)]
        if not set(source_lanes) <= set(lanes):
            raise InternalError(f"{self.linear.name}: {source!r} is read without its lanes")
        return number, [instance(source_lanes, p) for p in positions(lanes)]

    def compile_place(self, index: UOp, lanes: tuple[UOp, ...]) -> Callable[[Item], Any]:
        """Compiles an INDEX: a function that returns the array and the element of each instance."""
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
