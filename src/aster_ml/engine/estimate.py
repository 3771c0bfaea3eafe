"""Estimates what a kernel computes (on its AST) and what its program loads and stores."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from aster_ml.helpers import prod
from aster_ml.late import late
from aster_ml.uop.graph import toposort
from aster_ml.uop.linear import Linear
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import ELEMENTWISE, Ops, RunArg
from aster_ml.uop.ranges import iterations

if TYPE_CHECKING:
    from aster_ml.codegen.lower import linearize
else:
    linearize = late("codegen.lower.linearize")


class Estimates(NamedTuple):
    """`ops` arithmetic operations, `mem` bytes of all buffers touched, each once.

    `lds` are bytes of loads and stores as the program runs, 0 where it was not counted.
    """

    ops: int = 0
    mem: int = 0
    lds: int = 0


# Names of a module are found faster than members of an Enum, and every node is asked for its op.
CONST, PARAM, REDUCE, WHERE = Ops.CONST, Ops.PARAM, Ops.REDUCE, Ops.WHERE
LOAD, STORE = Ops.LOAD, Ops.STORE
INTEGERS = frozenset({"index", "int", "uint"})
ARITHMETIC = ELEMENTWISE - {Ops.CAST, Ops.BITCAST}
COUNTING = ELEMENTWISE | {Ops.RANGE, Ops.CONST, Ops.DEFINE_VAR}


def estimate(ast: UOp) -> Estimates:
    """Counts every arithmetic node once for each combination of the ranges that it depends on."""
    if isinstance(ast.arg, RunArg):
        return estimate_run(ast)
    ops = 0
    # How many values the nodes within some ranges have; most of a kernel stand within the same.
    volumes: dict[frozenset[UOp], int] = {}
    # What a kernel loads and stores in one place it moves twice.
    touched: dict[tuple[UOp, Ops], int] = {}
    # Indices, and what is made of indices and numbers alone: an arange, say, or a gate.
    indices: set[UOp] = set()
    for u in toposort(ast):
        op, kind = u.op, u.dtype.kind
        if kind == "index" or (kind in INTEGERS and op in COUNTING and indices.issuperset(u.src)):
            indices.add(u)
        elif kind == "bool" and (op is CONST or (op in ELEMENTWISE and indices.issuperset(u.src))):
            indices.add(u)
        elif op is WHERE and u.src[0] in indices and is_masked_load(u):
            continue
        elif op in ARITHMETIC or op is REDUCE:
            ops += volume(u.src[0] if op is REDUCE else u, volumes)
        elif op is LOAD or op is STORE:
            buffer = u.src[0].src[0]
            if buffer.op is PARAM:
                count = min(volume(u.src[0], volumes), buffer.arg.size) * buffer.dtype.itemsize
                touched[buffer, op] = max(touched.get((buffer, op), 0), count)
    return Estimates(ops, sum(touched.values()))


def estimate_run(ast: UOp) -> Estimates:
    """The work of all parts; of memory, each slot that is whole once."""
    arg: RunArg = ast.arg
    sizes: dict[int, int] = {}
    for kernel, slots in zip(ast.src, arg.slots, strict=True):
        for p in [u for u in toposort(kernel) if u.op is Ops.PARAM]:
            slot = slots[p.arg.slot]
            sizes[slot] = 0 if arg.scratch[slot] else p.arg.size * p.dtype.itemsize
    return Estimates(sum([estimate(k).ops for k in ast.src]) * arg.parts, sum(sizes.values()))


def is_masked_load(u: UOp) -> bool:
    """Whether a choice is between what is loaded and a number: a gate, said another way."""
    return {s.op for s in u.src[1:]} == {Ops.LOAD, Ops.CONST}


def bytes_of_accesses(linear: Linear) -> int:
    """Bytes that a program loads and stores, registers aside: what a cache may have to give."""
    loops: list[int] = []
    total = 0
    for u in linear.uops:
        if u.op is Ops.RANGE:
            # Work-items have numbers, not loops, but each one runs what comes after.
            loops.append(int(u.src[0].vmax))
        elif u.op is Ops.END:
            loops.pop()
        elif u.op in (Ops.LOAD, Ops.STORE) and linearize.memory_of(u).op is Ops.PARAM:
            at, value = u.src[0], u if u.op is Ops.LOAD else u.src[1]
            lanes = [r for r in {*at.ranges, *value.ranges} if r.arg.kind.is_lane]
            count = prod(loops) * prod([int(r.src[0].vmax) for r in lanes])
            total += count * at.src[0].dtype.itemsize
    return total


def volume(u: UOp, known: dict[frozenset[UOp], int]) -> int:
    """Iterations of the ranges that a node depends on; `known` are those of some sets of ranges."""
    ranges = u.ranges
    if ranges not in known:
        known[ranges] = iterations(ranges)
    return known[ranges]
