"""Costs of recomputing a value against storing and loading it.

All costs are in units of one SIMD arithmetic instruction an element; what a schedule assumes of
machines stands in `target/costs`.
"""

from __future__ import annotations

import sys

from aster_ml.target.costs import ASSUMED
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import Ops

# Instructions an element where an op takes more than one: polynomials, divisions, the cipher.
OP_COST: dict[Ops, int] = {
    Ops.EXP2: 10,
    Ops.LOG2: 14,
    Ops.SIN: 24,
    Ops.TANH: 14,
    Ops.POW: 30,
    Ops.SQRT: 5,
    Ops.RECIPROCAL: 4,
    Ops.FDIV: 4,
    Ops.IDIV: 8,
    Ops.MOD: 8,
    Ops.THREEFRY: 100,
    Ops.CAST: 1,
    Ops.PAD: 1,
    Ops.INDEX: 6,
}
# How often the terms of a sum may be computed, for each of them, where that sum is summed in turn.
MAX_AGAIN = 1.5
# The same where most of it is beyond the ends of an operand, with which codegen has nothing to do;
# and how many elements a padded value has for each that it pads, where most of it lies around.
# Measured: on one thread of a Zen 4, 2026-11-25 (docs/explanation/tuning/convolutions.md).
MAX_PADDED = 4
# Steps of a window that is small, and results that each element serves where these are not few.
# Measured: lines and cycles, 2026-11-28 (docs/explanation/tuning/limits.md).
MAX_WINDOW, FEW_RESULTS = 128, 16
# More than this many different readings of one value are not written out.
# Measured: lines and cycles, 2026-11-28 (docs/explanation/tuning/limits.md).
MAX_READINGS = 4
# Full kernels (`MAX_KERNEL_NODES`) that all readings of one value together would write out, beyond
# which it is stored whatever computing it costs: n slices of what was put together from n parts.
MANY_KERNELS = 16


def own_cost(u: UOp) -> int:
    """Cost of this node alone."""
    if u.op in FREE:
        return 0
    return OP_COST.get(u.op, 1)


FREE = frozenset(
    {
        Ops.CONST,
        Ops.PARAM,
        Ops.BUFFER,
        Ops.DEFINE_VAR,
        Ops.IOTA,
        Ops.DEVICE,
        Ops.RESHAPE,
        Ops.EXPAND,
        Ops.PERMUTE,
        Ops.SHRINK,
        Ops.FLIP,
        Ops.DETACH,
        Ops.CONTIGUOUS_BACKWARD,
        Ops.AFTER,
        Ops.REDUCE,
        Ops.SCATTER,
        Ops.CONTIGUOUS,
        Ops.COPY,
        Ops.BIND,
    }
)
# Costs of what is shared are counted for each reader, which grows without end: here they stay
# machine words.
MAX_COST = sys.maxsize
# What is read from memory whatever it was made by.
LOADED = frozenset({Ops.REDUCE, Ops.SCATTER, Ops.PARAM, Ops.COPY, Ops.AFTER})
# A name of a module is found faster than a member of an Enum.
EXPAND = Ops.EXPAND


def fused_costs(order: list[UOp], stored: set[UOp]) -> dict[UOp, tuple[int, int]]:
    """For each node: cost of computing an element from what is stored or reduced, and its loads.

    `order` lists sources first. Shared parts are counted once a reader, which is an upper bound.
    What is repeated by an EXPAND counts as one load: it is cheaper stored below the EXPAND.
    """
    costs: dict[UOp, tuple[int, int]] = {}
    for u in order:
        op, src = u.op, u.src
        if op in LOADED or u in stored:
            costs[u] = 0, 1
            continue
        own = 0 if op in FREE else OP_COST.get(op, 1)
        if len(src) == 1 and not own:
            found = costs[src[0]]
            if op is EXPAND and (compute := found[0]) and u.shape != src[0].shape:
                if found[1] or compute > ASSUMED.as_a_load:
                    found = 0, 1
            costs[u] = found
            continue
        compute, loads = own, 0
        for s in src:
            c, n = costs[s]
            compute += c
            loads += n
        if op is EXPAND and compute and u.shape != src[0].shape:
            if loads or compute > ASSUMED.as_a_load:
                compute, loads = 0, 1
        costs[u] = (
            compute if compute < MAX_COST else MAX_COST,
            loads if loads < MAX_COST else MAX_COST,
        )
    return costs
