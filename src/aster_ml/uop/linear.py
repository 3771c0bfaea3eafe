"""Defines Linear: a kernel as a list of nodes in execution order, the input of renderers.

Rules of the list (the specification of the linear stage):

- A node comes after its sources. Constants, lane ranges and INDEX are not listed, but inlined where
  they are used.
- A RANGE of kind LOOP or REDUCE opens a loop, `END(range)` closes it; loops nest. A THREAD range is
  a loop that runs from `lo` to `hi`, the part that the caller gives this thread. GLOBAL and LOCAL
  ranges are the number of the block and of the work-item: values without a loop.
- Lane ranges (UPCAST, UNROLL, VECTOR) are not loops. A value that depends on lanes has one instance
  for each combination of them; at most one is VECTOR, and its instances make one SIMD value.
- `INDEX(buffer, base, offset)` counts elements. `offset` is a sum of lanes times constants, so it
  is a constant for each instance; lanes without a constant stride are in `base`.
- `LOAD(index, gate?)` is 0 where the gate fails and then accesses no memory; a uint32 from a
  narrower dtype is a packed word of consecutive elements, which may be unaligned.
  `STORE(index, value, gate?)` writes only where the gate holds.
- `DEFINE_REG(start, *lanes)` sets every instance of an accumulator to `start` at that point; as a
  source it means the accumulator's value at the point of use. `ACCUMULATE(reg, value, *unrolled)`
  folds `value` into it with the op of its arg, the unrolled lanes in order.
- A STORE of a LOAD that comes `later` may be done at any time until a `WAIT(n)` behind it that has
  no more than n COMMITs between; until then nobody reads what it writes to, and no other work-item
  before a BARRIER behind that. To do it at once is right, too.
- A `TMA_LOAD` is begun by a block, as one copy that comes later, and a MMA of operands in local
  memory is an ACCUMULATE that comes later: what it reads stays as it is, and nobody reads the
  accumulator, until an `MMA_WAIT(n)` behind it that has no more than n of them between.
- A `TMA_STORE` is begun by a block, as one copy of local memory that comes later. What it copies is
  as it was there where each work-item has a `FENCE` behind its stores, and a BARRIER behind that.
  It stays as it is until a BARRIER behind a `TMA_STORE_WAIT`, and no list ends before one.
- `SHUFFLE(value)` is what `value` is for another work-item of the warp. All of a warp run it
  together, as they do MMA, which is a product of matrices that each has a part of: its instances
  over its own lanes are made of all instances of its operands over theirs, and no other lanes of it
  are folded. An ACCUMULATE of it adds the product to what an accumulator holds. Together, too, they
  run LDMATRIX, whose instances over its lanes are what other work-items name the places of (MMA
  alone reads it), and STMATRIX, which stores so.
- `REDUCE(value, *lanes)` folds instances of `value` over these lanes.
- No node has dtype index; sizes are numbers or expressions of variables.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from aster_ml.uop.node import UOp, sint
from aster_ml.uop.ops import AxisType, Ops

# Axes that are block or work-item numbers, not loops.
NUMBERS_OF_ITEMS = (AxisType.GLOBAL, AxisType.LOCAL)


@dataclass(frozen=True)
class Linear:
    """A kernel ready to be rendered.

    `params` are the PARAM nodes by slot, `variables` the DEFINE_VAR nodes in argument order (after
    the params), `written` the slots that are stored to. `thread` is the THREAD range, if any, of
    which each thread runs a part. `global_size` and `local_size` are numbers and sizes of blocks on
    devices with work-groups.
    """

    name: str
    uops: tuple[UOp, ...]
    params: tuple[UOp, ...]
    variables: tuple[UOp, ...]
    written: frozenset[int]
    thread: UOp | None = None
    global_size: tuple[sint, ...] = (1, 1, 1)
    local_size: tuple[int, ...] = (1, 1, 1)

    def turns(self) -> int:
        """The largest number of iterations of all loops of a work-item."""
        total, open_loops = 0, [1]
        for u in self.uops:
            if u.op is Ops.RANGE and u.arg.kind not in NUMBERS_OF_ITEMS:
                open_loops.append(open_loops[-1] * (int(u.vmax) + 1))
                total += open_loops[-1]
            elif u.op is Ops.END:
                open_loops.pop()
        return total


def shared_nbytes(uops: Iterable[UOp]) -> int:
    """Bytes of local memory of a block."""
    arrays = {u.arg.id: u for u in uops if u.op is Ops.DEFINE_LOCAL and not u.arg.private}
    sizes = {i: u.arg.size * u.dtype.itemsize for i, u in arrays.items()}
    taken = 0
    for i, u in arrays.items():
        taken += max(0, sizes[i] - sum([sizes[x] for x in u.arg.over]))
    return taken
