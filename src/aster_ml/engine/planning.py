"""Plans graphs for whoever looks at schedules: anew, for this machine or for another one.

Receives a body (numbered arguments in place of buffers) or a schedule of one; returns a schedule.
Nothing is compiled or run, and no cache is written.
"""

from __future__ import annotations

from aster_ml.codegen.passes import AFTER_OPTS, BEFORE_OPTS, LINEARIZE, ON_LINEAR
from aster_ml.config import Context
from aster_ml.engine.caches import CACHES
from aster_ml.engine.realize import workers_for, workers_of
from aster_ml.schedule.plan import BODY_PASSES, DRAFT_PASSES, KERNELIZE, MATERIALIZE, make_schedule
from aster_ml.schedule.steps import Schedule
from aster_ml.target import Target
from aster_ml.uop.graph import toposort
from aster_ml.uop.node import UOp
from aster_ml.uop.passes import Pass


def plan_body(body: UOp, target: Target | None = None) -> Schedule:
    """Plans a body anew, for the devices that it names, or with a `target` for such a machine.

    Raises: InternalError for a body whose parameters are not numbered from 0.
    """
    shared = workers_of if target is None else lambda _: workers_for(target)
    return make_schedule(body, list(toposort(body)), shared)


def plan_for(schedule: Schedule, target: Target) -> Schedule:
    """Plans what a schedule computes for another machine, without kernels that run part by part.

    How many workers share a kernel is part of a schedule. One of kernels that are written by hand,
    or one that the cache has given up, is returned as it is.
    """
    body = next((key[0] for key, s in CACHES.schedules.entries.items() if s is schedule), None)
    if not isinstance(body, UOp):
        return schedule
    with Context(DEPTH_FIRST=0):
        return plan_body(body, target)


def schedule_passes() -> tuple[Pass, ...]:
    """Lists the passes from a body to kernels, in the order in which they run."""
    return *BODY_PASSES, MATERIALIZE, KERNELIZE, *DRAFT_PASSES


def kernel_passes() -> tuple[Pass, ...]:
    """Lists the passes from a kernel to a linear program, in the order in which they run."""
    return *BEFORE_OPTS, *AFTER_OPTS, LINEARIZE, *ON_LINEAR
