"""Hop 3: from a captured body to a Schedule, cached by the body.

Where effects collide (an assign that reads its target elsewhere, a value that needs memory both
before and after it is overwritten), the body gets one more stored value and is planned again.
"""

from __future__ import annotations

from aster_ml.config import stage_key
from aster_ml.errors import InternalError
from aster_ml.schedule.copies import copy_before_views
from aster_ml.schedule.effects import snapshot_param, snapshot_value
from aster_ml.schedule.split import HazardError, Schedule, Splitter, order_drafts
from aster_ml.schedule.split_reduce import split_long_reductions
from aster_ml.schedule.stages import plan_stages
from aster_ml.uop.graph import toposort
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import Ops

CACHE: dict[tuple[object, ...], Schedule] = {}
CACHE_LIMIT = 2048


def plan(body: UOp) -> tuple[Schedule, bool]:
    """The schedule of a body, and whether it was in the cache."""
    key = (body, *stage_key("schedule"))
    found = CACHE.get(key)
    if found is not None:
        return found, True
    if len(CACHE) >= CACHE_LIMIT:
        # Oldest half goes: dicts keep insertion order.
        for old in list(CACHE)[: CACHE_LIMIT // 2]:
            del CACHE[old]
    schedule = CACHE[key] = make_schedule(body)
    return schedule, False


def memory_of(store: UOp) -> int:
    """The argument that a STORE of a body writes to."""
    place = store.src[0]
    while place.op is not Ops.PARAM:
        place = place.src[0]
    return int(place.arg.slot)


def make_schedule(body: UOp) -> Schedule:
    """Plans a body from scratch."""
    params = sorted([u for u in toposort(body) if u.op is Ops.PARAM], key=lambda u: u.arg.slot)
    if [p.arg.slot for p in params] != list(range(len(params))):
        raise InternalError(f"plan: parameters are not numbered 0..{len(params) - 1}: {params}")
    body = split_long_reductions(copy_before_views(body))
    for _ in range(1 + 2 * len(body.src) + len(params)):
        planner = plan_stages(body)
        splitter = Splitter(planner, params)
        try:
            drafts = order_drafts(splitter.split(), planner, params)
        except HazardError as hazard:
            if hazard.value is not None:
                body = snapshot_value(body, hazard.value)
            else:
                assert hazard.param is not None
                body = snapshot_param(body, hazard.param)
            continue
        written = frozenset([d.writes for d in drafts if d.writes < len(params)])
        new = {memory_of(store) for store in body.src[: body.arg.fresh]}
        return Schedule([d.step for d in drafts], splitter.slots, len(params), written,
                        written - new)
    raise InternalError("plan: effects collide however often values are stored beforehand")
