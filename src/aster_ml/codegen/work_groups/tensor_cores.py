"""Lowers products to matrix instructions (MMA) of tensor cores.

Receives a kernel and a row of `target/tensor_cores`. The Opt TC splits the axes m, n and k of a
product into bits: bits of the work-item number are LOCAL, bits of a register UPCAST, and bits of k
UNROLL. The meaning of the kernel is unchanged, and other Opts can split the remaining axes: LOCAL
gives warps, UPCAST several products a warp, STAGE operands in local memory. The pass then places
elements along k as the hardware does.

rewrite: REDUCE(a(m, k) * b(k, n), k) -> REDUCE(MMA(a(m, k of the work-item), b(k of the work-item,
n of the work-item)), what is left of k)
"""

from __future__ import annotations

from typing import NamedTuple

from aster_ml.codegen.kernel import Kernel
from aster_ml.codegen.plans import Fragments, ResultTile
from aster_ml.codegen.work_groups.tma_tiles import multiply_from_tma
from aster_ml.codegen.work_groups.vector_epilogue import store_vectors
from aster_ml.errors import KernelOptError
from aster_ml.target import Target
from aster_ml.target.tensor_cores import ROWS, TensorCore
from aster_ml.uop.graph import toposort
from aster_ml.uop.node import UOp, new_node
from aster_ml.uop.ops import AxisType, LdmatrixArg, MmaArg, Ops
from aster_ml.uop.ranges import size_of
from aster_ml.uop.rules.symbolic import affine_form, simplify


class Product(NamedTuple):
    """A reduction, its factors, and the output axes that only one factor has."""

    reduce: UOp
    a: UOp
    b: UOp
    m: UOp
    n: UOp


def uncast(u: UOp) -> UOp:
    """A value before its widening cast."""
    return u.src[0] if u.op is Ops.CAST else u


def product_of(kernel: Kernel, axis: UOp, core: TensorCore) -> Product | None:
    """The only product of a kernel, over an axis; None where a tensor core cannot multiply it."""
    if len(kernel.reduces) != 1 or axis not in kernel.reduces[0].src[1:]:
        return None
    u = kernel.reduces[0]
    value = u.src[0]
    if u.arg.op is not Ops.ADD or value.op is not Ops.MUL or u.dtype.name != core.result:
        return None
    # A tensor core rounds operands of four bytes itself (TF32); narrower ones have a widening cast.
    wide = core.dtype == core.result
    a, b = value.src if wide else (uncast(value.src[0]), uncast(value.src[1]))
    if {a.dtype.name, b.dtype.name} != {core.dtype}:
        return None
    loops = [r for r in kernel.output_loops if r.src[0].op is Ops.CONST and kernel.may_reorder(r)]
    rows = [r for r in loops if r in a.ranges and r not in b.ranges]
    columns = [r for r in loops if r in b.ranges and r not in a.ranges]
    if not rows or not columns or axis not in a.ranges or axis not in b.ranges:
        return None
    m, n = (
        along(kernel, x, loops, size)
        for x, loops, size in ((a, rows, core.size("m")), (b, columns, core.size("n")))
    )
    return Product(u, a, b, m, n)


def along(kernel: Kernel, operand: UOp, loops: list[UOp], size: int) -> UOp:
    """The axis to tile of those that one operand has alone: contiguous, else the longest.

    why: each strided element costs a sector of memory
    """
    near = {
        r
        for access in kernel.facts.accesses
        if access.node is operand
        for r in loops
        if access.stride(r) == 1 and size_of(r) >= size
    }
    return max(loops, key=lambda r: (r in near, size_of(r)))


def use_tensor_core(kernel: Kernel, axis: UOp, number: int) -> None:
    """Splits the axes of a product as a tensor core wants them.

    Raises: KernelOptError where there is no such product, or its sizes are no multiples.
    """
    if not 0 <= number < len(ROWS):
        raise KernelOptError(f"there are tensor cores 0 to {len(ROWS) - 1}, and {number} is given")
    core = ROWS[number]
    if core.in_group and not core.reads_shared:
        raise KernelOptError(
            f"{core.name} takes operand A from an accumulator; TC chain is wanted in place of TC"
        )
    found = product_of(kernel, axis, core)
    if found is None:
        raise KernelOptError(
            f"{core.name} multiplies two {core.dtype} operands into sums of {core.result}, of "
            "which each has an axis of outputs alone, in the one reduction of a kernel"
        )
    wanted = {"m": found.m, "n": found.n, "k": axis}
    uneven = [f"{w} of {size_of(r)}" for w, r in wanted.items() if size_of(r) % core.size(w)]
    if uneven:
        sizes = " x ".join(str(core.size(w)) for w in "mnk")
        raise KernelOptError(f"multiples of {sizes} are wanted, not {', '.join(uneven)}")
    registers = core.bits("c")[1]
    # Ids of the remaining axes, and of the axes of their bits.
    ids = {word: r.arg.id for word, r in wanted.items()}
    for word, axis_id in [(w, r.arg.id) for w, r in wanted.items()]:
        for bit in range(core.size(word).bit_length() - 1):
            name = f"{word}{bit}"
            kind = AxisType.UPCAST if name in registers else AxisType.LOCAL
            loop = next(r for r in kernel.axes if r.arg.id == axis_id)
            ids[name] = kernel.next_id
            kernel.split(loop, 2, AxisType.UNROLL if word == "k" else kind)
    kernel.add(Fragments(axis=axis.arg.id, core=number, ids=tuple(ids.items())))


def lanes_first(kernel: Kernel, order: list[int]) -> list[int]:
    """An order of work-item axes that ends with those of a warp, in the warp's numbering."""
    parts = kernel.plan(Fragments)
    if parts is None:
        return order
    ids = dict(parts.ids)
    warp = [ids[word] for word in reversed(ROWS[parts.core].bits("c")[0])]
    return [i for i in order if i not in warp] + warp


def reads_boxes(kernel: Kernel) -> bool:
    """Whether a product reads its operands from local memory filled by TMA."""
    parts = kernel.plan(Fragments)
    return parts is not None and ROWS[parts.core].reads_shared


def multiply_together(kernel: Kernel, order: list[int], target: Target) -> None:
    """Replaces the product over the bits of k by an MMA of a warp."""
    parts = kernel.plan(Fragments)
    if parts is None:
        return
    core, ids = ROWS[parts.core], dict(parts.ids)
    ranges = {r.arg.id: r for r in kernel.facts.order if r.op is Ops.RANGE}
    axes = {word: ranges[i] for word, i in ids.items() if word[1:]}
    folded = [axes[f"k{bit}"] for bit in range(core.size("k").bit_length() - 1)]
    u = next(u for u in kernel.reduces if folded[0] in u.src[1:])
    x, y = u.src[0].src
    if core.dtype != core.result:
        x, y = uncast(x), uncast(y)
    a, b = (x, y) if axes["m0"] in x.ranges else (y, x)
    if core.reads_shared:
        multiply_from_tma(kernel, core, ids, (a, b), target)
        return
    operands, lanes = [], []
    # The bits of a work-item's number, by the words of the result.
    numbers = [axes[word] for word in core.bits("c")[0]]
    for operand, value in (("a", a), ("b", b)):
        together = matrices_of(core, operand, value, axes, numbers, target)
        value, own = together or part_of_item(core, operand, value, axes, numbers)
        operands.append(value)
        lanes.append(own)
    own = [axes[word] for word in core.bits("c")[1]]
    arg = MmaArg(core.name, len(lanes[0]), len(lanes[1]))
    product = UOp(Ops.MMA, u.dtype, (*operands, *lanes[0], *lanes[1], *own), arg)
    rest = [r for r in u.src[1:] if r not in folded]
    if all([r.arg.kind.is_lane for r in rest]):
        # A single product is a sum of one term, in an accumulator.
        rest.append(kernel.new_range(1, AxisType.REDUCE))
    changed = UOp(Ops.REDUCE, u.dtype, (product, *rest), u.arg)
    kernel.rewrite({u: changed})
    if kernel.plan(ResultTile) is not None:
        store_vectors(kernel, core, ids, axes, order, target)


def part_of_item(
    core: TensorCore, operand: str, value: UOp, axes: dict[str, UOp], numbers: list[UOp]
) -> tuple[UOp, list[UOp]]:
    """The elements of an operand that a work-item holds, and the lanes of its registers."""
    items, registers = core.bits(operand)
    place = {axes[word]: numbers[i] for i, word in enumerate(items)}
    return moved(value, place), [axes[word] for word in registers]


def moved(value: UOp, place: dict[UOp, UOp]) -> UOp:
    """A value with its axes replaced; the nodes that fill local memory stay unchanged.

    All axes are replaced at once, since one may be replaced by another.
    """
    new: dict[UOp, UOp] = dict(place)
    for u in toposort(value, enter=lambda u: u.op is not Ops.AFTER):
        if u in new:
            continue
        if u.op is Ops.AFTER:
            new[u] = u
            continue
        src = tuple([new.get(s, s) for s in u.src])
        new[u] = u if src == u.src else new_node(u.op, u.dtype, src, u.arg)
    return new[value]


# Rows of matrices that LDMATRIX loads. Source: PTX ISA 8.7, "ldmatrix" (eight numbers of 16 bits).
ROW_NBYTES = 16


def matrices_of(
    core: TensorCore, operand: str, value: UOp, axes: dict[str, UOp], numbers: list[UOp],
    target: Target,
) -> tuple[UOp, list[UOp]] | None:  # fmt: skip
    """An operand loaded from local memory by LDMATRIX, and the lanes of its registers.

    None where its layout does not allow it. `numbers` are the bits of the work-item number. Axes of
    two lanes, of another product or another part of the sum, add matrices to the load.
    """
    memory = value.src[0].src[0] if value.op is Ops.LOAD and len(value.src) == 1 else value
    if "ldmatrix" not in target.features or memory.op is not Ops.AFTER:
        return None
    items, registers = core.bits(operand)
    itemsize = value.dtype.itemsize
    in_word = (4 // itemsize).bit_length() - 1
    per_row = ROW_NBYTES // itemsize
    index = simplify(value.src[0].src[1])
    rest, strides = affine_form(index, set(axes.values()))
    # A row of a matrix has the elements of words; of a transposed one, neighbouring words.
    along = [[*registers[:in_word], *items[:2]], items[2:]]
    for transposed in (False, True):
        columns, rows = along[transposed], along[not transposed]
        walked = [strides.get(axes[word]) for word in columns]
        if walked != [1 << i for i in range(len(walked))] or 1 << len(walked) != per_row:
            continue
        if transposed and itemsize != 2:
            continue
        far = [s for r, s in strides.items() if r not in [axes[word] for word in columns]]
        if any([s is None or s % per_row for s in far]):
            return None
        if any([n % per_row for n in (rest.const, *rest.terms.values())]):
            return None
        matrices = [axes[word] for word in registers[in_word:]]
        beside = [
            r
            for r in sorted(value.ranges, key=lambda r: r.arg.id)
            if r.arg.kind.is_lane and r not in axes.values() and size_of(r) == 2
        ]
        matrices = [*matrices, *beside][: max(2, len(matrices))]
        if len(matrices) > 2:
            return None
        place = dict.fromkeys([axes[word] for word in columns], UOp.index_const(0))
        place |= {axes[word]: numbers[i] for i, word in enumerate(rows)}
        place |= {r: numbers[3 + i] for i, r in enumerate(matrices)}
        at = moved(value.src[0], place)
        words = [axes[word] for word in registers[:in_word]]
        arg = LdmatrixArg(in_word, transposed)
        loaded = UOp(Ops.LDMATRIX, value.dtype, (at, *words, *matrices), arg)
        return loaded, [axes[word] for word in registers]
    return None
