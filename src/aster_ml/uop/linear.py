"""Defines Linear: a kernel as a list of nodes in execution order, the input of renderers.

Reading rules of the list (the specification of the linear stage):

- A node stands after its sources. Constants, lane ranges and INDEX are not listed: they are read
  where they are used.
- A RANGE of kind LOOP or REDUCE opens a loop, `END(range)` closes it; loops nest. A THREAD range is
  a loop that runs from `lo` to `hi`, the part that the caller gives this thread. GLOBAL and LOCAL
  ranges are the number of the block and of the work-item: values without a loop.
- Lane ranges (UPCAST, UNROLL, VECTOR) are not loops. A value that depends on lanes has one instance
  for each combination of them; at most one is VECTOR, and its instances make one SIMD value.
- `INDEX(buffer, base, offset)` counts elements. `offset` is a sum of lanes times constants: it is
  a plain number for each instance; lanes whose stride is not constant stand in `base`.
- `LOAD(index, gate?)` is 0 where the gate fails and then touches no memory; a uint32 from a
  narrower dtype is as many neighbours as it has room for, and may lie anywhere.
  `STORE(index, value, gate?)` writes only where the gate holds.
- `DEFINE_REG(start, *lanes)` sets every instance of an accumulator to `start` at that point; as a
  source it means the accumulator's value at the point of use. `ACCUMULATE(reg, value, *unrolled)`
  folds `value` into it with the op of its arg, the unrolled lanes in order.
- A STORE of a LOAD that comes `later` may be done at any time until a `WAIT(n)` behind it that has
  no more than n COMMITs between; until then nobody reads what it writes to, and no other work-item
  before a BARRIER behind that. To do it at once is right, too.
- A block issues a `TMA_LOAD` once, as an asynchronous copy. An ACCUMULATE of an MMA whose operands
  are in local memory is asynchronous, too: its operands stay unchanged and its accumulator unread
  until an `MMA_WAIT(n)` with at most n of them in between.
- A block issues a `TMA_STORE` once, as an asynchronous copy of local memory. It copies what
  work-items stored before their `FENCE` and the BARRIER after that. This memory stays unchanged
  until a BARRIER after a `TMA_STORE_WAIT`; each list waits for its last TMA_STORE.
- `SHUFFLE(value)` is what `value` is for another work-item of the warp. All of a warp run it
  together, as they do MMA, which is a product of matrices that each has a part of: its instances
  over its own lanes are made of all instances of its operands over theirs, and no other lanes of it
  are folded. An ACCUMULATE of it adds the product to what an accumulator holds. Together, too, they
  run LDMATRIX, whose instances over its lanes are what other work-items name the places of (MMA
  alone reads it), and STMATRIX, which stores so.
- `REDUCE(value, *lanes)` folds instances of `value` over these lanes.
- No node has dtype index any more; sizes are numbers or expressions on variables.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from aster_ml.uop.node import UOp, sint
from aster_ml.uop.ops import AxisType, Ops

# Axes whose number is that of a work-group or a work-item: nothing goes along them one by one.
NUMBERS_OF_ITEMS = (AxisType.GLOBAL, AxisType.LOCAL)


@dataclass(frozen=True)
class Linear:
    """A kernel ready to be rendered.

    `params` are the PARAM nodes by slot, `variables` the DEFINE_VAR nodes in argument order (after
    the params), `written` the slots that are stored to. `thread` is the THREAD range, if any; its
    size is the `n` of which each thread runs a part. `global_size` and `local_size` are work-group
    counts and sizes on devices with work-groups.
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
        """The most turns that all loops of one work-item take together."""
        total, open_loops = 0, [1]
        for u in self.uops:
            if u.op is Ops.RANGE and u.arg.kind not in NUMBERS_OF_ITEMS:
                open_loops.append(open_loops[-1] * (int(u.vmax) + 1))
                total += open_loops[-1]
            elif u.op is Ops.END:
                open_loops.pop()
        return total


def shared_nbytes(uops: Iterable[UOp]) -> int:
    """Bytes of the memory that work-items of a block share."""
    arrays = {u.arg.id: u for u in uops if u.op is Ops.DEFINE_LOCAL and not u.arg.private}
    sizes = {i: u.arg.size * u.dtype.itemsize for i, u in arrays.items()}
    taken = 0
    for i, u in arrays.items():
        taken += max(0, sizes[i] - sum([sizes[x] for x in u.arg.over]))
    return taken
