"""Lanes of a value: which instances it has, and which instance a consumer reads.

Receives nodes of the linear stage and returns plain tuples and numbers. An instance is numbered by
its lanes in mixed radix, the first lane slowest. Writes no text.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Sequence
from typing import NamedTuple

from aster_ml.errors import InternalError
from aster_ml.helpers import prod
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import AxisType, Ops

# Names of a module are found faster than members of an Enum, and every node is asked for its op.
(
    ADD, CAST, CONST, MUL, NEG, RANGE, SHL, SUB,
) = (
    Ops.ADD, Ops.CAST, Ops.CONST, Ops.MUL, Ops.NEG, Ops.RANGE, Ops.SHL, Ops.SUB,
)  # fmt: skip
Lanes = tuple[UOp, ...]
BY_ID = operator.attrgetter("arg.id")


def size_of(lane: UOp) -> int:
    """Number of values of a lane range; lanes have constant sizes."""
    size = lane.src[0]
    if size.op is not CONST:
        raise InternalError(f"renderer: lane {lane!r} has a size that is no constant")
    return int(size.arg)


def split_lanes(ranges: Sequence[UOp]) -> tuple[Lanes, UOp | None]:
    """The lanes that are written out, and the one that is SIMD, if any; in the given order.

    Raises: InternalError for two SIMD lanes in one value.
    """
    scalar: list[UOp] = []
    vector: UOp | None = None
    for r in ranges:
        if r.arg.kind is AxisType.VECTOR:
            if vector is not None and vector is not r:
                raise InternalError(f"renderer: one value has two SIMD lanes, {vector!r} and {r!r}")
            vector = r
        else:
            scalar.append(r)
    return tuple(scalar), vector


def lane_ranges(u: UOp) -> list[UOp]:
    """The lane ranges that a value depends on, ordered by id."""
    ranges = u.ranges
    found = [r for r in ranges if r.arg.kind.is_lane] if ranges else []
    if len(found) > 1:
        found.sort(key=BY_ID)
    return found


def instances(lanes: Lanes) -> int:
    """Number of instances of a value with these lanes."""
    return int(prod([size_of(r) for r in lanes]))


def weigh_instances(lanes: Lanes, weights: dict[UOp, int], start: int = 0) -> list[int]:
    """For each instance over `lanes`, `start` plus each lane's value times its weight."""
    result = [start]
    for r in lanes:
        step = weights.get(r, 0)
        n = size_of(r)
        if step == 0:
            result = [x for x in result for _ in range(n)]
        else:
            result = [x + step * i for x in result for i in range(n)]
    return result


def project(consumer: Lanes, source: Lanes) -> list[int] | None:
    """For each instance of the consumer the instance of the source; None when they are the same.

    Raises: InternalError when the source has a lane that the consumer lacks.
    """
    if consumer == source:
        return None
    lacking = [r for r in source if r not in consumer]
    if lacking:
        raise InternalError(f"renderer: a value is read without its lanes {lacking}")
    weights: dict[UOp, int] = {}
    step = 1
    for r in reversed(source):
        weights[r] = step
        step *= size_of(r)
    return weigh_instances(consumer, weights)


class Affine(NamedTuple):
    """`const` plus each lane's value times its weight."""

    const: int
    weights: dict[UOp, int]


def read_affine(u: UOp) -> Affine:
    """A sum of lanes times constants, as it stands in the third source of INDEX.

    Raises: InternalError when the expression is anything else.
    """
    const = 0
    weights: dict[UOp, int] = {}
    stack = [(u, 1)]
    while stack:
        x, factor = stack.pop()
        op = x.op
        if op is CONST:
            const += factor * int(x.arg)
        elif op is RANGE and x.arg.kind.is_lane:
            weights[x] = weights.get(x, 0) + factor
        elif op is ADD or op is SUB:
            stack.append((x.src[0], factor))
            stack.append((x.src[1], factor if op is ADD else -factor))
        elif (op is MUL or op is SHL) and x.src[1].op is CONST:
            times = int(x.src[1].arg)
            stack.append((x.src[0], factor * times if op is MUL else factor << times))
        elif op is MUL and x.src[0].op is CONST:
            stack.append((x.src[1], factor * int(x.src[0].arg)))
        elif op is NEG or op is CAST:
            stack.append((x.src[0], -factor if op is NEG else factor))
        else:
            raise InternalError(
                f"renderer: {x!r} in an offset, which is a sum of lanes times constants"
            )
    return Affine(const, {r: w for r, w in weights.items() if w})


def combinations(lanes: Lanes) -> itertools.product[tuple[int, ...]]:
    """The values of the lanes, instance by instance."""
    return itertools.product(*[range(size_of(r)) for r in lanes])
