"""Hop 3: from a captured body to a Schedule, cached by the body.

Where effects collide (an assign that reads its target elsewhere, a value that needs memory both
before and after it is overwritten), the body gets one more stored value and is planned again.
"""

from __future__ import annotations

from functools import partial

from aster_ml.config import stage_key
from aster_ml.errors import InternalError
from aster_ml.schedule.capture import Captured
from aster_ml.schedule.early_kernels import MANY_NODES, Ahead, Begin
from aster_ml.schedule.fusion.materialize import StagePlanner
from aster_ml.schedule.hazards import snapshot_value, snapshot_version
from aster_ml.schedule.kernels.horizontal_fusion import merge_drafts
from aster_ml.schedule.kernels.kernel_tiling import join_runs
from aster_ml.schedule.kernels.kernelize import Splitter
from aster_ml.schedule.kernels.order import order_drafts
from aster_ml.schedule.rewrites.copies import copy_before_views
from aster_ml.schedule.rewrites.fold_numbers import fold_numbers
from aster_ml.schedule.rewrites.sink_gather import gather_before_storing
from aster_ml.schedule.rewrites.sink_shrink import crop_before_reducing
from aster_ml.schedule.rewrites.split_matmul_sums import split_products
from aster_ml.schedule.rewrites.split_reduce import WorkersOf, split_long_reductions
from aster_ml.schedule.steps import HazardError, Schedule
from aster_ml.uop.gc_pause import uncollected
from aster_ml.uop.graph import toposort
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import Ops

# About how many bytes a schedule takes, and more for each node of its body: that, what its kernels
# have of it, keys of tables.
SCHEDULE_NBYTES, NODE_NBYTES = 4096, 1200
# Large bodies that are remembered by their digest.
MAX_SEEN = 25
# A body with more nodes is kept from the second time on that it is planned: most graphs of such a
# size are built once, and then nothing of them should stay.
LARGE_BODY = 20_000


class ScheduleCache:
    """Schedules by body and settings. How many are kept, `engine.bounds` decides."""

    def __init__(self) -> None:
        self.entries: dict[tuple[object, ...], tuple[Schedule, int]] = {}
        self.nodes = 0
        # How many were put here.
        self.turn = 0
        # Digests of large bodies that were planned once.
        self.seen: dict[tuple[object, ...], None] = {}

    def get(self, key: tuple[object, ...]) -> Schedule | None:
        """What is kept under a key."""
        found = self.entries.get(key)
        if found is None:
            return None
        found[0].used = self.turn
        return found[0]

    def put(self, body: UOp, settings: tuple[object, ...], schedule: Schedule, count: int) -> None:
        """Keeps a schedule, unless its body, of so many nodes, is large and new."""
        if count > LARGE_BODY:
            mark = (body.digest, *settings)
            if mark not in self.seen:
                if len(self.seen) >= MAX_SEEN:
                    del self.seen[next(iter(self.seen))]
                self.seen[mark] = None
                return
        self.turn += 1
        schedule.used = self.turn
        self.entries[body, *settings] = schedule, count
        self.nodes += count

    def drop(self, key: tuple[object, ...]) -> None:
        """Forgets one schedule."""
        self.nodes -= self.entries.pop(key)[1]

    def nbytes_of(self, count: int) -> int:
        """About how many bytes a schedule takes whose body has so many nodes."""
        return SCHEDULE_NBYTES + NODE_NBYTES * count

    @property
    def nbytes(self) -> int:
        """About how many bytes all of them take."""
        return SCHEDULE_NBYTES * len(self.entries) + NODE_NBYTES * self.nodes

    def clear(self) -> None:
        """Forgets all schedules."""
        self.entries.clear()
        self.seen.clear()
        self.nodes = 0


CACHE = ScheduleCache()


def plan(
    captured: Captured, workers: WorkersOf, begin: Begin | None = None
) -> tuple[Schedule, bool]:
    """The schedule of what was captured, and whether that of its body was in the cache.

    `workers` says how many share a kernel of a device; it depends on settings alone. `begin` gets
    kernels that are known before the rest is planned.
    """
    body, settings = captured.body, stage_key("schedule")
    found = CACHE.get((body, *settings))
    if found is not None:
        return found, True
    with uncollected():
        order = captured.order()
        schedule = make_schedule(body, order, workers, begin)
    CACHE.put(body, settings, schedule, len(order))
    return schedule, False


# How plain a schedule is: as it is planned first; without rewrites, merged kernels and runs, which
# only make it faster; and without fused reductions and numbers known beforehand, too.
PLAIN, PLAINEST = 1, 2


def plan_plainly(captured: Captured, workers: WorkersOf, plain: int) -> Schedule:
    """A plainer schedule of what was captured, which takes the place of another in the cache."""
    with uncollected():
        order = captured.order()
        schedule = make_schedule(captured.body, order, workers, plain=plain)
    CACHE.put(captured.body, stage_key("schedule"), schedule, len(order))
    return schedule


def memory_of(store: UOp) -> int:
    """The argument that a STORE of a body writes to."""
    place = store.src[0]
    while place.op is not Ops.PARAM:
        place = place.src[0]
    return int(place.arg.slot)


def order_of(made: UOp, body: UOp, order: list[UOp]) -> list[UOp]:
    """The nodes of what a pass has made of a body: most passes leave most bodies as they are."""
    return order if made is body else list(toposort(made))


def make_schedule(
    body: UOp,
    order: list[UOp],
    workers: WorkersOf,
    begin: Begin | None = None,
    plain: int = 0,
) -> Schedule:
    """Plans a body, whose nodes are given sources first, from scratch."""
    params = sorted([u for u in order if u.op is Ops.PARAM], key=lambda u: u.arg.slot)
    if [p.arg.slot for p in params] != list(range(len(params))):
        raise InternalError(f"plan: parameters are not numbered 0..{len(params) - 1}: {params}")
    made, numbers = (body, {}) if plain == PLAINEST else fold_numbers(body, order)
    splits = partial(split_long_reductions, workers=workers)
    passes = (
        gather_before_storing, copy_before_views, crop_before_reducing, split_products, splits,
    )  # fmt: skip
    for rewrite in (copy_before_views,) if plain else passes:
        body, order = made, order_of(made, body, order)
        made = rewrite(body, order)
    memory_ops = [u for u in order if u.op in (Ops.PARAM, Ops.AFTER, Ops.STORE)]
    for _ in range(1 + 2 * len(memory_ops)):
        body, order = made, order_of(made, body, order)
        planner = StagePlanner(body, order)
        ahead = None
        if begin is not None and len(order) >= MANY_NODES:
            planner.follower = ahead = Ahead(planner, params, begin)
        if plain == PLAINEST:
            planner.fuse = 0
        planner.run()
        splitter = Splitter(planner, params, ahead.splitter if ahead else None)
        try:
            drafts = order_drafts(splitter.split(), planner, params)
        except HazardError as hazard:
            if hazard.value is not None:
                made = snapshot_value(body, hazard.value)
            else:
                assert hazard.version is not None
                made = snapshot_version(body, hazard.version)
            continue
        written = frozenset([d.writes for d in drafts if d.writes < len(params)])
        new = {memory_of(store) for store in body.src[: body.arg.fresh]}
        if not plain:
            drafts = join_runs(merge_drafts(drafts, splitter), splitter, workers)
        steps = [splitter.close(d) for d in drafts]
        return Schedule(steps, splitter.slots, len(params), written, written - new, numbers)
    raise InternalError("plan: effects collide however often values are stored beforehand")
