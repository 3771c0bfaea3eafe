"""Simplifies vectors: rules over the dialect's lanes, beside Aster's own simplifier.

`sym` is Aster's table `symbolic` for scalars and rules that fold constants of vectors, look lanes
up and join them; `expander` makes axes of lanes (UNROLL) into vectors and back (CONTRACT). Both are
`PatternMatcher`s for `graph_rewrite`.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from aster_ml.compat.patterns import PatternMatcher, UPat, graph_rewrite
from aster_ml.extend import simplify, symbolic
from aster_ml.uop.dialect import Dialect
from aster_ml.uop.evaluate import evaluate
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import ELEMENTWISE, Ops

CONSTANTS = (Ops.CONST, Dialect.VCONST)
Axes = Sequence[tuple[int, int]]


def by_own_rules(u: UOp) -> UOp | None:
    """Simplifies a node without lanes by Aster's own table."""
    if isinstance(u.op, Dialect) or u.dtype.vcount != 1:
        return None
    return None if any(s.dtype.vcount != 1 for s in u.src) else symbolic.rewrite(u)


def lane_values(u: UOp) -> tuple[Any, ...]:
    """The numbers of a constant."""
    return u.arg if u.op is Dialect.VCONST else (u.arg,) * u.dtype.vcount


def fold_vector(u: UOp) -> UOp | None:
    """An elementwise op over constants of which one has lanes."""
    if u.dtype.vcount == 1 or any(s.op not in CONSTANTS for s in u.src):
        return None
    dtype, count = u.dtype.scalar(), u.dtype.vcount
    dts = tuple([s.dtype.scalar() for s in u.src])
    columns = [lane_values(s) * (count if s.dtype.vcount == 1 else 1) for s in u.src]
    rows = zip(*columns, strict=True)
    return UOp.const(u.dtype, tuple([evaluate(u.op, dtype, row, dts) for row in rows]))


def constant_lanes(u: UOp) -> UOp | None:
    """A vector of constants as one constant."""
    if not u.src or any(s.op is not Ops.CONST or s.dtype.vcount != 1 for s in u.src):
        return None
    return UOp.const(u.dtype, tuple([s.arg for s in u.src]))


def chosen_lanes(u: UOp) -> UOp | None:
    """Lanes of something whose lanes are known."""
    source, lanes = u.src[0], u.arg if isinstance(u.arg, tuple) else (u.arg,)
    if source.op in CONSTANTS:
        found = lane_values(source)
        return UOp.const(
            u.dtype, tuple([found[i] for i in lanes]) if len(lanes) > 1 else found[lanes[0]]
        )
    if source.op is Dialect.VECTORIZE and all(s.dtype.vcount == 1 for s in source.src):
        picked = [source.src[i] for i in lanes]
        return picked[0] if len(picked) == 1 else picked[0].vectorize(*picked[1:])
    if source.op is Dialect.GEP:
        return source.src[0].gep(tuple([source.arg[i] for i in lanes]))
    if lanes == tuple(range(source.dtype.vcount)):
        return source
    if source.op in ELEMENTWISE and len(lanes) < source.dtype.vcount:
        parts = tuple([s if s.dtype.vcount == 1 else s.gep(lanes) for s in source.src])
        return UOp(source.op, u.dtype, parts, source.arg)
    return None


def positions(axes: Axes) -> list[dict[int, int]]:
    """Every combination of numbers of some axes, the last axis fastest."""
    sizes = [range(size) for _, size in axes]
    return [dict(zip([axis for axis, _ in axes], at)) for at in itertools.product(*sizes)]


def lane_at(axes: Axes, at: dict[int, int]) -> int:
    """The lane of a vector over `axes` at these numbers."""
    lane = 0
    for axis, size in axes:
        lane = lane * size + at[axis]
    return lane


def lanes_over(axes: Axes, wanted: Axes) -> tuple[int, ...]:
    """For each lane of a vector over `wanted`, the lane over fewer `axes` that has its value."""
    return tuple([lane_at(axes, at) for at in positions(wanted)])


def expand(u: UOp) -> UOp | None:
    """An op over axes of lanes: a vector op over all of the axes."""
    unrolled = [s for s in u.src if s.op is Dialect.UNROLL]
    if not unrolled:
        return None
    axes = tuple(sorted({pair for s in unrolled for pair in s.arg}))
    count = len(positions(axes))
    sources = []
    for s in u.src:
        if s.op is Dialect.UNROLL:
            source = s.src[0]
            sources.append(source if s.arg == axes else source.gep(lanes_over(s.arg, axes)))
        else:
            sources.append(s.broadcast(count))
    made = UOp(u.op, u.dtype.scalar().vec(count), tuple(sources), u.arg)
    return UOp(Dialect.UNROLL, u.dtype, (made,), axes)


def contract(u: UOp) -> UOp:
    """Axes of lanes as a vector; other axes stay, and what does not change with one is repeated."""
    source = u.src[0]
    if source.op is not Dialect.UNROLL:
        return source.broadcast(u.dtype.vcount)
    rest = tuple([pair for pair in source.arg if pair not in u.arg])
    lanes = [
        lane_at(source.arg, {**outer, **inner})
        for outer in positions(rest)
        for inner in positions(u.arg)
    ]
    made = source.src[0].gep(tuple(lanes))
    return made if not rest else UOp(Dialect.UNROLL, u.dtype, (made,), rest)


sym = PatternMatcher(
    [
        (UPat(name="u"), by_own_rules),
        (UPat(Dialect.VECTORIZE, name="u"), constant_lanes),
        (UPat(Dialect.GEP, name="u"), chosen_lanes),
        (UPat(tuple(ELEMENTWISE), name="u"), fold_vector),
    ]
)


def simplify_lanes(u: UOp) -> UOp:
    """The same value by fewer operations, also of a vector."""
    return simplify(u) if u.dtype.vcount == 1 else graph_rewrite(u, sym)


expander = PatternMatcher(
    [
        (UPat((*ELEMENTWISE, Ops.LOAD, Ops.INDEX), name="u"), expand),
        (UPat(Dialect.CONTRACT, name="u"), contract),
    ]
)
