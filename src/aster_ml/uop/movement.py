"""Maps indices of movement ops' results to indices of their sources.

Receives a movement node and an index for each axis of its result; returns an index for each axis of
its source, and for PAD the condition that a source element exists. Indices are not simplified here.
"""

from __future__ import annotations

from typing import Any

from aster_ml.helpers import prod
from aster_ml.uop.infer import max_shape
from aster_ml.uop.node import UOp, index_alu, to_sint, to_uop
from aster_ml.uop.ops import Ops

Indices = tuple[UOp, ...]
ZERO = UOp.index_const(0)


def flat_index(idxs: Indices, shape: tuple[Any, ...]) -> UOp:
    """Row-major offset of an element."""
    total = ZERO
    for i, size in zip(idxs, shape, strict=True):
        if total is not ZERO:
            total = index_alu(Ops.MUL, total, to_uop(size))
        total = i if total is ZERO else total if i is ZERO else index_alu(Ops.ADD, total, i)
    return total


def unflatten_index(flat: UOp, shape: tuple[Any, ...]) -> Indices:
    """An index for each axis from a row-major offset within the shape."""
    result: list[UOp] = []
    for axis in range(len(shape) - 1, -1, -1):
        size = shape[axis]
        if size == 1 and isinstance(size, int):
            result.append(ZERO)
        elif axis == 0 or all(isinstance(s, int) and s == 1 for s in shape[:axis]):
            result.append(flat)
        else:
            result.append(index_alu(Ops.MOD, flat, to_uop(size)))
            flat = index_alu(Ops.IDIV, flat, to_uop(size))
    return tuple(reversed(result))


def reshape_index(old: tuple[Any, ...], new: tuple[Any, ...], idxs: Indices) -> Indices:
    """Source indices of a RESHAPE from `old` to `new`.

    Axes are matched in groups of equal product, so that unchanged axes keep their index and
    divisions stay within a group.
    """
    result: list[UOp] = []
    i = j = 0
    while i < len(old) or j < len(new):
        i0, j0 = i, j
        have = old[i] if i < len(old) else 1
        want = new[j] if j < len(new) else 1
        i, j = min(i + 1, len(old)), min(j + 1, len(new))
        while not (have is want or have == want):
            if not (isinstance(have, int) and isinstance(want, int)):
                # Sizes cannot be compared: the remaining axes are one group.
                i, j = len(old), len(new)
                break
            if not have or not want or (i == len(old) and j == len(new)):
                # There are no elements, so any index is right.
                return (ZERO,) * len(old)
            if have < want and i < len(old):
                have, i = have * old[i], i + 1
            elif j < len(new):
                want, j = want * new[j], j + 1
            else:
                have, i = have * old[i], i + 1
        group_old, group_new = old[i0:i], new[j0:j]
        if len(group_old) == 1 and len(group_new) == 1:
            result.append(idxs[j0])
        elif group_old:
            flat = flat_index(idxs[j0:j], group_new) if group_new else ZERO
            result.extend(unflatten_index(flat, group_old))
    return tuple(result)


def source_index(u: UOp, idxs: Indices) -> tuple[Indices, UOp | None]:
    """The source index of element `idxs` of the movement node `u`, and its gate (None: always)."""
    op = u.op
    source = u.src[0]
    if op is Ops.RESHAPE:
        return reshape_index(source.shape, u.shape, idxs), None
    if op is Ops.EXPAND:
        return tuple(
            [
                ZERO if isinstance(s, int) and s == 1 else i
                for s, i in zip(source.shape, idxs, strict=True)
            ]
        ), None
    if op is Ops.PERMUTE:
        place = sorted(range(len(u.arg)), key=u.arg.__getitem__)
        return tuple([idxs[p] for p in place]), None
    if op is Ops.FLIP:
        return tuple(
            [
                index_alu(Ops.SUB, to_uop(s - 1), i) if axis in u.arg else i
                for axis, (s, i) in enumerate(zip(source.shape, idxs, strict=True))
            ]
        ), None
    if op is Ops.SHRINK:
        return tuple(
            [
                i if start.__class__ is int and not start else index_alu(Ops.ADD, i, to_uop(start))
                for (start, _), i in zip(u.marg, idxs, strict=True)
            ]
        ), None
    result: list[UOp] = []
    valid: UOp | None = None
    for margins, size, i in zip(u.marg, source.shape, idxs, strict=True):
        if margins != NO_MARGINS:
            i, there = below_padding(margins, size, i)
            valid = both(valid, there)
        result.append(i)
    return tuple(result), valid


MINUS_ONE = UOp.index_const(-1)
NO_MARGINS = (0, 0)


def below_padding(margins: tuple[Any, Any], size: Any, i: UOp) -> tuple[UOp, UOp | None]:
    """The source index for index `i` of a padded axis, and the condition that there is one."""
    before, after = margins
    place, there = i, None
    if before.__class__ is not int or before:
        place = index_alu(Ops.SUB, i, to_uop(before))
        there = index_alu(Ops.CMPLT, MINUS_ONE, place)
    if after.__class__ is not int or after:
        there = both(there, index_alu(Ops.CMPLT, place, to_uop(size)))
    return place, there


def both(a: UOp | None, b: UOp | None) -> UOp | None:
    """The conjunction of two conditions, either of which may be absent (always true)."""
    if a is None or a is b:
        return b
    if b is None:
        return a
    return a.alu(Ops.AND, b)


def is_row_major_view(u: UOp) -> bool:
    """Whether `u` has its base's elements in order: only RESHAPE in between."""
    while u.op is Ops.RESHAPE:
        u = u.src[0]
    return u.op in (Ops.BUFFER, Ops.PARAM)


def is_whole_memory(u: UOp) -> bool:
    """Whether `u` is a whole buffer, in order.

    An axis of symbolic size is a prefix of the axis of its largest size.
    """
    if u.op is Ops.MULTI:
        return all([is_whole_memory(s) for s in u.src])
    if u.op is Ops.SHRINK:
        below = u.src[0].shape
        if len(u.src) == 1 or not all(isinstance(s, int) for s in below):
            return False
        if max_shape(u.shape) != below or not all(to_sint(start) == 0 for start, _ in u.marg):
            return False
        u = u.src[0]
    return is_row_major_view(u)


def slice_of_base(u: UOp) -> tuple[UOp, int] | None:
    """The base and element offset, if `u` is a contiguous run of its base's elements; else None.

    Only RESHAPE, and SHRINK of an axis outside of which all sizes are 1, keep a run contiguous.
    """
    offset = 0
    while u.op is Ops.RESHAPE or (u.op is Ops.SHRINK and len(u.src) == 1):
        if u.op is Ops.SHRINK:
            start = start_of_run(u)
            if start is None:
                return None
            offset += start
        u = u.src[0]
    return (u, offset) if u.op in (Ops.BUFFER, Ops.PARAM) else None


def start_of_run(u: UOp) -> int | None:
    """The offset of a SHRINK in its source, if it is a contiguous run of elements; else None."""
    shape = u.src[0].shape
    if not all(isinstance(s, int) for s in shape):
        return None
    offset, whole = 0, True
    step = prod(shape)
    for (start, stop), size in zip(u.arg, shape, strict=True):
        step //= max(size, 1)
        if (start, stop) != (0, size) and not whole:
            return None
        offset += start * step
        # Axes up to the first axis longer than 1 may be cut; axes after it must be whole.
        if stop - start > 1:
            whole = False
    return offset
