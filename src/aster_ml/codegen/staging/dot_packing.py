"""Packing of narrow operands into words that a dot-product instruction takes, in panels.

Receives a kernel whose Opts are applied, DOT among them; returns its graph with the factors of its
sum of products read from scratch that has been filled beforehand. Which kernels get a DOT, and with
which lanes, is decided in `policy/cpu/dot_product`.

rewrite: REDUCE(CAST(x[i, k]) * CAST(y[k, j]), k) -> REDUCE(DOT(X[i, w], Y[w, j]), w), where a word
X[i, w] is x[i, group*w : group*(w+1)]; with a group of 1, CAST(x) * CAST(y) with both cast before
when: it is the kernel's one reduction, over one axis, and one of both operands has the SIMD lanes
why: an instruction that takes neighbours of a narrow dtype does two or four products a lane; and
without one, each element is converted once instead of once for each result that it serves

What is over from a multiple of the group is a word of its own, with zeros behind it. Words of
neighbours along k are loaded as they lie in memory, others are put together when a panel is filled.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

from aster_ml.codegen.kernel import Access, Kernel
from aster_ml.codegen.plans import PackedWords
from aster_ml.codegen.staging.panel import filled, lanes_of, max_nbytes, places_to_fill
from aster_ml.codegen.staging.stage import Stage, new_stage
from aster_ml.dtype import DType, dtypes
from aster_ml.errors import KernelOptError
from aster_ml.helpers import ceildiv
from aster_ml.target import Target
from aster_ml.uop.graph import substitute
from aster_ml.uop.node import UOp, index_alu
from aster_ml.uop.ops import AxisType, Ops, ReduceArg
from aster_ml.uop.ranges import iterations, size_of

# Source: Intel SDM 2, VPDPBUSD and VDPBF16PS (lanes of 32 bits).
WORD_NBYTES = 4
# Fewest words for which there is a SIMD value. Source: Intel SDM 1, 2.2 (XMM has 128 bits).
LEAST_LANES = 4
# Narrow dtypes that words are made of, and the integers that have their bits.
BITS = {dtypes.int8: dtypes.uint8, dtypes.bfloat16: dtypes.uint16}
# What instructions add their products up in.
SUMS = {dtypes.int8: dtypes.int32, dtypes.bfloat16: dtypes.float32}


class Product(NamedTuple):
    """A sum of products with a narrow operand, or two: the REDUCE, its axis, and both loads."""

    reduce: UOp
    axis: UOp
    factors: tuple[Access, Access]

    @property
    def steps(self) -> int:
        """Number of products that each result adds up."""
        return size_of(self.axis)

    @property
    def narrow(self) -> DType | None:
        """The dtype of both operands; None where they differ, or words of it add up to another."""
        x, y = (f.node.dtype for f in self.factors)
        return x if x is y and SUMS.get(x) in (None, self.reduce.dtype) else None


def find_product(kernel: Kernel) -> Product | None:
    """Recognises a product that DOT computes."""
    reduces = kernel.reduces
    if len(reduces) != 1:
        return None
    reduce = reduces[0]
    value = reduce.src[0]
    if reduce.arg.op is not Ops.ADD or value.op is not Ops.MUL or len(reduce.src) != 2:
        return None
    axis = reduce.src[1]
    if axis.arg.kind is not AxisType.REDUCE or axis.src[0].op is not Ops.CONST:
        return None
    if value.dtype not in (dtypes.int32, dtypes.float32) or value.src[0] is value.src[1]:
        return None
    if not any([is_widened(s) for s in value.src]):
        return None
    loads = [s.src[0] if is_widened(s) else s for s in value.src]
    if not all([u.op is Ops.LOAD for u in loads]):
        return None
    found = {a.node: a for a in kernel.accesses()}
    written = {store.src[0].src[0] for store in kernel.stores}
    factors = [found[u] for u in loads]
    if not all([fits(f, axis, written) for f in factors]):
        return None
    return Product(reduce, axis, (factors[0], factors[1]))


def is_widened(u: UOp) -> bool:
    """Whether a value is a loaded number in a wider dtype of its kind."""
    if u.op is not Ops.CAST or u.src[0].op is not Ops.LOAD:
        return False
    narrow = u.src[0].dtype
    return narrow.kind in ("int", "uint", "float") and 0 < narrow.itemsize < u.dtype.itemsize


def fits(f: Access, axis: UOp, written: set[UOp]) -> bool:
    """Whether an operand lies at constant steps along the reduction and along its lanes."""
    stepped = [r for r in f.strides if r is axis or r.arg.kind.is_lane]
    return (
        f.buffer not in written
        and axis in f.strides
        and all([f.strides[r] is not None for r in stepped])
        and all([r.src[0].op is Ops.CONST for r in f.strides])
        and not any([axis in gate.ranges for gate in f.node.src[1:]])
    )


def has_vector(f: Access) -> bool:
    """Whether an operand has SIMD lanes."""
    return any([r.arg.kind is AxisType.VECTOR for r in f.strides])


def words_of(narrow: DType | None) -> int:
    """Counts the elements of a dtype in one word that a DOT takes; 1 where it takes none."""
    return WORD_NBYTES // narrow.itemsize if narrow in BITS else 1


def group_of(narrow: DType | None, target: Target) -> int:
    """Counts the elements of a dtype in one word: as many as an instruction takes, else 1."""
    return words_of(narrow) if narrow is not None and narrow.name in target.dot_dtypes else 1


def needs_panel(f: Access, product: Product, group: int) -> bool:
    """Whether the operand without SIMD lanes cannot be read where it lies."""
    if group == 1:
        return f.node.dtype is not product.reduce.dtype
    return f.strides[product.axis] != 1


def pack_words(kernel: Kernel, target: Target) -> None:
    """Packs both factors of a product of narrow numbers, four to a word, as `STAGE words` says.

    Raises: KernelOptError where other Opts have left no such product, or one that is too large.
    """
    hinted = hints_of(kernel)
    if not pack_product(kernel, target):
        raise KernelOptError(
            f"STAGE words: a sum of products with SIMD lanes along one operand, and panels of both "
            f"within {max_nbytes(target):,} bytes are wanted; other Opts or longer tiles left none"
        )
    if hinted and not hints_of(kernel):
        raise KernelOptError("PREFETCH: loads that no panel of STAGE words takes are wanted")


def hints_of(kernel: Kernel) -> bool:
    """Whether a load asks for more than it reads."""
    return any([a.node.arg is not None for a in kernel.accesses() if not a.is_store])


def pack_product(kernel: Kernel, target: Target) -> bool:
    """Panels of words for both operands; false where it is no such product, or too large."""
    product, group = find_product(kernel), kernel.count(PackedWords)
    if product is None or group not in (1, words_of(product.narrow)):
        return False
    if not any(map(has_vector, product.factors)) and may_run_along(product, group):
        return word_lanes(kernel, product, target)
    found = operands(kernel, product, group, target)
    if found is None:
        return False
    y, x = found
    taken = list(kernel.facts.order)
    for p in (y, x):
        if isinstance(p, Panel):
            words = new_stage(taken, p.dtype, p.axes)
            taken.append(words.memory)
            p.fill(words)
    kernel.sink = substitute(kernel.sink, {product.reduce: total(product, x, y)})
    return True


def operands(
    kernel: Kernel, product: Product, group: int, target: Target
) -> tuple[Operand, Operand] | None:
    """Both operands of a product, that with SIMD lanes first; None where panels do not fit."""
    wide = [f for f in product.factors if has_vector(f)]
    if len(wide) != 1 or product.steps < group:
        return None
    lanes = wide[0]
    rows = next(f for f in product.factors if f is not lanes)
    again = [r for r in kernel.outputs if not r.arg.kind.is_lane and r not in lanes.strides]
    y: Operand = Operand(kernel, product, lanes, group)
    if again or not may_read_once(lanes.node, y.lies_along_lanes, group, product.reduce, target):
        y = Panel(kernel, product, lanes, group, [])
    x: Operand = Operand(kernel, product, rows, group)
    if needs_panel(rows, product, group):
        x = Panel(kernel, product, rows, group, loops_of(kernel, rows, lanes))
    size = sum([p.size for p in (y, x) if isinstance(p, Panel)])
    return None if size * WORD_NBYTES > max_nbytes(target) else (y, x)


def fits_words(kernel: Kernel, group: int, target: Target) -> bool:
    """Whether a kernel whose loops are final is a product whose panels of words fit."""
    product = find_product(kernel)
    return product is not None and operands(kernel, product, group, target) is not None


def may_read_once(load: UOp, near: bool, group: int, reduce: UOp, target: Target) -> bool:
    """Whether lanes that serve one tile of rows alone are as good without a panel.

    They are where memory gives SIMD values of them; int8 need their sum besides, and masked
    accesses of narrow elements are instructions with the widest registers only.
    """
    whole = len(load.src) == 1 or target.masks
    return near and whole and (group == 1 or reduce.dtype.kind == "float")


def may_run_along(product: Product, group: int) -> bool:
    """Whether the words themselves may be SIMD lanes: both operands have theirs in a row."""
    near = [f.strides[product.axis] == 1 for f in product.factors]
    return group > 1 and all(near) and product.steps >= LEAST_LANES * group


def word_lanes(kernel: Kernel, product: Product, target: Target) -> bool:
    """SIMD lanes along the reduction, which are added up at the end, as in a sum.

    What is over from whole SIMD values is another one, which ends with the last step; what it has
    in common with the one before is masked.
    """
    reduce, group, steps = product.reduce, kernel.count(PackedWords), product.steps
    width = min(target.lanes(WORD_NBYTES), 1 << ((steps // group).bit_length() - 1))
    if width < LEAST_LANES:
        return False
    # The lanes' sum that int8 need is made once, of what has fewer axes.
    rows, lanes = sorted(product.factors, key=lambda f: -len(f.strides))
    x, y = (Operand(kernel, product, f, group) for f in (rows, lanes))
    lane = kernel.new_range(width, AxisType.VECTOR)
    length, dtype = width * group, reduce.dtype
    over = steps % length

    def dot(first: UOp, mask: UOp | None, both: bool) -> UOp:
        """The DOT of the words from `first` on, or of the lanes alone."""
        at = index_alu(Ops.ADD, first, index_alu(Ops.MUL, lane, UOp.index_const(group)))
        b = y.made(at, group)
        a = x.made(at, group) if both else UOp.const(b.dtype, 0)
        if mask is not None:
            # Zeros in one of them do, save that an infinity times 0 is not 0.
            b = b & mask
            a = a & mask if both and dtype.kind == "float" else a
        return UOp(Ops.DOT, dtype, (a, b))

    def over_steps(both: bool) -> UOp:
        """The sum of both, or of the lanes alone, in each lane."""
        k = kernel.new_range(steps // length, AxisType.REDUCE)
        value = dot(index_alu(Ops.MUL, k, UOp.index_const(length)), None, both)
        result = UOp(Ops.REDUCE, dtype, (value, k), ReduceArg(Ops.ADD))
        if not over:
            return result
        known = index_alu(
            Ops.SUB,
            UOp.index_const(length - over),
            index_alu(Ops.MUL, lane, UOp.index_const(group)),
        )
        bits = index_alu(Ops.MUL, index_alu(Ops.MAX, known, UOp.index_const(0)), UOp.index_const(8))
        bits = index_alu(Ops.MUL, bits, UOp.index_const(WORD_NBYTES // group))
        mask = UOp.const(dtypes.uint32, 0xFFFFFFFF) << bits.cast(dtypes.uint32)
        return result + dot(UOp.index_const(steps - length), mask, both)

    value = over_steps(True)
    if dtype.kind != "float":
        value = value - over_steps(False)
    value = UOp(Ops.REDUCE, dtype, (value, lane), ReduceArg(Ops.ADD))
    kernel.sink = substitute(kernel.sink, {reduce: value})
    return True


def loops_of(kernel: Kernel, rows: Access, lanes: Access) -> list[UOp]:
    """The loops of one operand that run inside of those that only the other one depends on."""
    loops = [r for r in kernel.outputs if not r.arg.kind.is_lane]
    first = [i for i, r in enumerate(loops) if r in lanes.strides and r not in rows.strides]
    return [r for r in loops[min(first, default=0) :] if r in rows.strides]


def total(product: Product, rows: Operand, lanes: Operand) -> UOp:
    """The sum of products over the words of both."""
    kernel, reduce = lanes.kernel, product.reduce
    dtype, op = reduce.dtype, Ops.MUL if lanes.group == 1 else Ops.DOT

    def over_steps(x: Operand | None) -> UOp:
        """The sum of what x and the lanes have in common; without x, of the lanes alone."""

        def factor(value: UOp) -> UOp:
            return value if x is not None else UOp.const(value.dtype, 0)

        k = kernel.new_range(product.steps // lanes.group, AxisType.REDUCE)
        y = lanes.word(k)
        value = UOp(op, dtype, (factor(y if x is None else x.word(k)), y))
        result = UOp(Ops.REDUCE, dtype, (value, k), ReduceArg(Ops.ADD))
        if not lanes.over:
            return result
        y = lanes.last()
        return result.alu(Ops.ADD, UOp(op, dtype, (factor(y if x is None else x.last()), y)))

    result = over_steps(rows)
    # A DOT of int8 takes the first operand 128 higher than it is.
    return result if dtype.kind == "float" or lanes.group == 1 else result - over_steps(None)


class Operand:
    """One operand, read where it lies: neighbours along the reduction as one word."""

    def __init__(self, kernel: Kernel, product: Product, access: Access, group: int) -> None:
        self.kernel = kernel
        self.product = product
        self.access = access
        self.group = group
        self.axis = product.axis
        # Steps of the reduction beyond a multiple of the group.
        self.over = product.steps % group
        self.dtype = dtypes.uint32 if group > 1 else product.reduce.dtype
        self.is_run = access.strides[self.axis] == 1
        self.lanes = [r for r in access.strides if r.arg.kind.is_lane]
        self.lanes.sort(key=lambda r: (r.arg.kind is AxisType.VECTOR, r.arg.id))

    @property
    def lies_along_lanes(self) -> bool:
        """Whether neighbours in memory are neighbours among the lanes."""
        return bool(self.lanes) and self.access.strides[self.lanes[-1]] == 1

    def word(self, step: UOp) -> UOp:
        """The elements of one step in a word."""
        return self.made(index_alu(Ops.MUL, step, UOp.index_const(self.group)), self.group)

    def last(self) -> UOp:
        """Remainder, in the low bits of a word."""
        return self.made(UOp.index_const(self.product.steps - self.over), self.over)

    def made(self, first: UOp, count: int) -> UOp:
        """A word of `count` elements from memory."""
        load = self.access.node
        if self.group == 1:
            return substitute(load, {self.axis: first}).cast(self.dtype)
        bits = 8 * load.dtype.itemsize
        if self.is_run:
            # A word that ends with the last element holds some of the step before, lowest.
            before = self.group - count
            at = index_alu(Ops.SUB, first, UOp.index_const(before))
            src = substitute(load, {self.axis: at}).src
            word = UOp(Ops.LOAD, self.dtype, src)
            return word >> (before * bits) if before else word
        result: UOp | None = None
        for i in range(count):
            at = index_alu(Ops.ADD, first, UOp.index_const(i))
            element = substitute(load, {self.axis: at}).bitcast(BITS[load.dtype]).cast(self.dtype)
            part = element << (i * bits) if i else element
            result = part if result is None else result | part
        assert result is not None
        return result


class Panel(Operand):
    """One operand in scratch: over some loops, then the steps of the reduction, then its lanes."""

    def __init__(
        self, kernel: Kernel, product: Product, access: Access, group: int, loops: list[UOp]
    ) -> None:
        super().__init__(kernel, product, access, group)
        self.loops, self.steps = loops, ceildiv(product.steps, group)
        self.size = self.steps * iterations([*loops, *self.lanes])
        self.stage: Stage

    @functools.cached_property
    def step(self) -> UOp:
        """The axis of steps: made when the panel is, since a panel that is only sized has none."""
        return self.kernel.new_range(self.steps, AxisType.REDUCE)

    @property
    def axes(self) -> list[UOp]:
        """The loops, the steps, then the lanes."""
        return [*self.loops, self.step, *self.lanes]

    def word(self, step: UOp) -> UOp:
        """The word of a step, out of the panel."""
        return self.stage.load(self.stage.at({self.step: step}))

    def last(self) -> UOp:
        """The word of what is over, out of the panel."""
        return self.word(UOp.index_const(size_of(self.step) - 1))

    def fill(self, stage: Stage) -> None:
        """Makes the stores that fill the panel, in as few instructions as its memory allows."""
        step = self.kernel.new_range(self.product.steps // self.group, AxisType.LOOP)
        fills = self.fills(stage, super().word(step), step, [*self.loops, step, *self.lanes])
        if self.over:
            step = UOp.index_const(size_of(self.step) - 1)
            fills += self.fills(stage, super().last(), step, [*self.loops, *self.lanes])
        self.stage = stage.after(*fills)

    def fills(self, stage: Stage, word: UOp, step: UOp, axes: list[UOp]) -> list[UOp]:
        """The loops that store words of some steps."""
        strides = {**self.access.strides, step: self.access.strides[self.axis]}
        words = Access(word, stage.memory, False, strides)
        return [
            filled(
                self.kernel, stage, {self.step: substitute(step, at), **at}, substitute(node, at)
            )
            for at, node in places_to_fill(self.kernel, words, axes, lanes_of(self.kernel))
        ]
