"""Declares what a language writes for the renderer: one small statement or expression each.

The walk over the program is in `base`, memory access in `access`; they call these.
"""

from __future__ import annotations

import abc
from typing import Any, ClassVar

from aster_ml.dtype import DType
from aster_ml.errors import InternalError
from aster_ml.renderer.cell import Address, Cell, Rule, Value
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import AxisType, Ops


class Language(abc.ABC):
    """Hooks of one language; `rules` has the text of each elementwise op."""

    rules: ClassVar[dict[Ops, Rule]]

    @abc.abstractmethod
    def prologue(self) -> None:
        """Head of the function; gives params and variables their text."""

    @abc.abstractmethod
    def finish(self) -> str:
        """The whole source."""

    @abc.abstractmethod
    def open_loop(self, c: Cell) -> None:
        """Opens a loop over the RANGE of `c` and gives it its value."""

    @abc.abstractmethod
    def close_loop(self, c: Cell) -> None:
        """Closes it."""

    @abc.abstractmethod
    def define_reg(self, c: Cell, start: list[Value]) -> None:
        """Makes an accumulator, one start value an instance."""

    @abc.abstractmethod
    def define_local(self, c: Cell) -> None:
        """Makes scratch memory."""

    @abc.abstractmethod
    def accumulate(self, reg: Cell, r: int, op: Ops, value: str) -> None:
        """Folds `value` into instance `r` of an accumulator."""

    def accumulate_maxima(self, c: Cell) -> bool:
        """Writes a whole ACCUMULATE by MAX where the language knows better than one by one."""
        return False

    @abc.abstractmethod
    def accumulate_product(self, reg: Cell, r: int, op: Ops, a: str, b: str) -> None:
        """Adds a MUL of floats, in one rounding where possible, or a DOT to an accumulator."""

    @abc.abstractmethod
    def text(self, value: Value, dtype: DType, n: int) -> str:
        """A value as text of width `n`; numbers become literals."""

    @abc.abstractmethod
    def keep(self, c: Cell, value: str) -> str:
        """Returns the text that consumers of an instance of `c` read: itself or a name for it."""

    @abc.abstractmethod
    def name_value(self, value: str, dtype: DType, n: int) -> str:
        """A name for a value that is no node of its own."""

    @abc.abstractmethod
    def splat(self, value: str, dtype: DType, n: int) -> str:
        """A scalar in all elements of a SIMD value."""

    @abc.abstractmethod
    def extract(self, value: str, dtype: DType, n: int, i: int) -> str:
        """Element `i`."""

    @abc.abstractmethod
    def build(self, parts: list[str], dtype: DType) -> str:
        """A SIMD value of these elements."""

    @abc.abstractmethod
    def reverse(self, value: str, dtype: DType, n: int) -> str:
        """The elements in reverse order."""

    # Whether `shuffle` is there.
    can_shuffle = False

    def from_memory(self, value: str, dtype: DType, n: int) -> str:
        """A value as it is in registers, from what was loaded."""
        return value

    def shuffle(
        self, low: str, high: str, dtype: DType, order: list[int], width: int | None = None
    ) -> str:
        """Elements `order` of two SIMD values side by side, each `width` wide or as the result."""
        raise InternalError(f"renderer: {type(self).__name__} has no shuffle of two values")

    def add_lanes(self, values: list[str], dtype: DType, n: int) -> str:
        """One SIMD value: the sum of the lanes of each of so many, both numbers powers of two.

        Sums of two values side by side take two shuffles and an addition at each step, those of one
        alone as many for half of the lanes.
        """
        raise InternalError(f"renderer: {type(self).__name__} has no shuffle of two values")

    def opaque(self, value: str, dtype: DType, n: int) -> str:
        """A SIMD value that a compiler behind the language takes as it is, where it can be told."""
        return value

    def part(self, value: str, dtype: DType, n: int, first: int, count: int) -> str:
        """Neighbours among the `n` elements of a SIMD value, as a narrower one."""
        raise InternalError(f"renderer: {type(self).__name__} has no parts of a value")

    def join(self, parts: list[str], dtype: DType, n: int) -> str:
        """SIMD values of `n` elements side by side, a power of two of them, as a wider one."""
        raise InternalError(f"renderer: {type(self).__name__} joins no values")

    @abc.abstractmethod
    def horizontal(self, op: Ops, value: str, dtype: DType, n: int) -> str:
        """The elements folded to one."""

    @abc.abstractmethod
    def load(self, at: Address, dtype: DType, n: int, gate: str | None) -> str:
        """`n` elements from memory, zeros where the scalar gate fails."""

    @abc.abstractmethod
    def store(self, at: Address, dtype: DType, n: int, value: str, gate: str | None) -> None:
        """`n` elements to memory, where the scalar gate holds."""

    def work_item(self, c: Cell, kind: AxisType, dim: int) -> str:
        """The number of the block or work-item in a dimension."""
        raise InternalError(f"renderer: {c.u!r} on a target without work-groups")

    def exchange(self, value: str, dtype: DType, n: int, distance: int) -> str:
        """Shuffles: reads a value of the work-item whose number differs in these bits."""
        raise InternalError(f"renderer: {type(self).__name__} has no values of other work-items")

    def add_product(self, core: str, sums: list[str], a: list[str], b: list[str]) -> None:
        """Adds a product of matrices to accumulators, of which a warp has all parts together."""
        raise InternalError(f"renderer: {type(self).__name__} has no tensor core {core}")

    def add_shared_products(
        self, core: str, majors: str, products: list[tuple[list[str], Any, Address]]
    ) -> None:
        """Begins products of operands in local memory: accumulators, and where both operands lie.

        Of A they may be the words that a work-item has ("r" in `majors`). They go on beside other
        work until `settle`.
        """
        raise InternalError(f"renderer: {type(self).__name__} has no tensor core {core}")

    def copy_box(self, box: UOp, to: Address, places: list[str]) -> None:
        """A box of a tensor is one of the copies that the next `commit` begins."""
        raise InternalError(f"renderer: {type(self).__name__} has no boxes of tensors")

    def take_role(self, more: int, registers: int) -> None:
        """Begins the code of so many more work-items; with 0, of those that have numbers."""
        raise InternalError(f"renderer: {type(self).__name__} has no roles of warps")

    def acquire(self, stage: str, turn: str) -> None:
        """Waits until all warps have released a stage."""
        raise InternalError(f"renderer: {type(self).__name__} has no stages that are released")

    def release(self, stage: str, gate: str) -> None:
        """A warp reads no more of a stage."""
        raise InternalError(f"renderer: {type(self).__name__} has no stages that are released")

    def settle(self, left: int) -> None:
        """Products but the last ones are in their accumulators."""
        raise InternalError(f"renderer: {type(self).__name__} has no products beside other work")

    def store_matrices(self, words: list[list[str]], at: Address, transposed: bool) -> None:
        """Stores words of matrices, each of these elements, that a warp has together."""
        raise InternalError(f"renderer: {type(self).__name__} stores no matrices")

    def store_box(self, box: UOp, source: Address, places: list[str]) -> None:
        """Begins to store a box of a tensor, once for the block; behind its places is a gate."""
        raise InternalError(f"renderer: {type(self).__name__} has no boxes of tensors")

    def fence(self) -> None:
        """Makes stores to local memory visible to TMA."""
        raise InternalError(f"renderer: {type(self).__name__} has no boxes of tensors")

    def await_tma_stores(self) -> None:
        """All boxes that were stored have been read from local memory."""
        raise InternalError(f"renderer: {type(self).__name__} has no boxes of tensors")

    def words_of(self, core: str, elements: list[str]) -> list[str]:
        """The elements of an operand as the language's product takes them."""
        return elements

    def name_word(self) -> str:
        """A new name for a word of 32 bits."""
        raise InternalError(f"renderer: {type(self).__name__} loads no matrices")

    def load_matrices(self, words: list[str], at: Address, transposed: bool) -> None:
        """Declares words of 32 bits that a warp loads together, a matrix each."""
        raise InternalError(f"renderer: {type(self).__name__} loads no matrices")

    @property
    def copies_later(self) -> bool:
        """Whether copies may go on while a kernel does other work."""
        return False

    def copy_later(self, to: Address, source: Address, nbytes: int, gate: str | None) -> None:
        """Begins a copy of so many bytes, of zeros where the gate fails."""
        raise InternalError(f"renderer: {type(self).__name__} has no copies beside other work")

    def commit(self, stage: list[str]) -> None:
        """Copies begun since the last time are a group; nothing where they are done at once."""
        return

    def wait(self, left: int, stage: list[str]) -> None:
        """All groups but the last ones are there; nothing where they are done at once."""
        return

    def barrier(self) -> None:
        """All work-items of the block get here before any goes on; nothing where there is one."""
        return
