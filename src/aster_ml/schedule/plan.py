"""Hop 3: from a captured body to a Schedule.

Kernels are handed on as they become final, to whoever compiles them meanwhile.

Where effects collide (an assign that reads its target elsewhere, a value that needs memory both
before and after it is overwritten), the body gets one more stored value and is planned again.
"""

from __future__ import annotations

from aster_ml.errors import InternalError
from aster_ml.kernel_library.rows import keep
from aster_ml.schedule.capture import Captured
from aster_ml.schedule.early_kernels import MANY_NODES, Ahead, Take
from aster_ml.schedule.fusion.buffer_limit import without_crowds
from aster_ml.schedule.fusion.materialize import StagePlanner
from aster_ml.schedule.hazards import snapshot_value, snapshot_version
from aster_ml.schedule.kernels.horizontal_fusion import merge_drafts
from aster_ml.schedule.kernels.joined_results import join_results
from aster_ml.schedule.kernels.kernel_tiling import join_runs
from aster_ml.schedule.kernels.kernelize import Splitter
from aster_ml.schedule.kernels.order import order_drafts
from aster_ml.schedule.rewrites.copies import copy_before_views
from aster_ml.schedule.rewrites.fold_numbers import fold_numbers
from aster_ml.schedule.rewrites.join_bytes import join_bytes
from aster_ml.schedule.rewrites.narrow_padding import has_narrow_products, pad_before_widening
from aster_ml.schedule.rewrites.sink_gather import gather_before_storing
from aster_ml.schedule.rewrites.sink_shrink import crop_before_reducing
from aster_ml.schedule.rewrites.split_matmul_sums import split_products
from aster_ml.schedule.rewrites.split_reduce import split_long_reductions
from aster_ml.schedule.steps import HazardError, Schedule
from aster_ml.schedule.work import Plainness, Work, WorkersOf, devices_of
from aster_ml.uop.gc_pause import uncollected
from aster_ml.uop.graph import toposort
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import Ops
from aster_ml.uop.passes import Pass, PassClock
from aster_ml.watch import WATCHERS


def plan(
    captured: Captured, workers: WorkersOf, take: Take | None = None, plain: int = 0
) -> Schedule:
    """Plans what was captured; `take` is called with kernels that are known before the rest.

    `workers` says how many share a kernel of a device; it depends on settings alone. `plain` is one
    of `Plainness`.
    """
    with uncollected():
        return make_schedule(captured.body, captured.order(), workers, take, plain)


def memory_of(store: UOp) -> int:
    """The argument that a STORE of a body writes to."""
    place = store.src[0]
    while place.op is not Ops.PARAM:
        place = place.src[0]
    return int(place.arg.slot)


def folds(work: Work) -> bool:
    """Bodies of which no plainest schedule is wanted."""
    return work.plain != Plainness.PLAINEST


BODY_PASSES = (
    Pass(
        "fold numbers", fold_numbers, applies=folds, needed=True,
        why="first: what is a number needs no kernel, and no pass below",
    ),
    Pass(
        "join bytes", join_bytes,
        why="before gathers, which go through what is element-wise",
    ),
    Pass(
        "sink gathers", gather_before_storing,
        why="before copies: what is not gathered is not copied either",
    ),
    Pass(
        "sink copies", copy_before_views, needed=True,
        why="before kernels: a device that only holds data computes nothing",
    ),
    Pass(
        "sink shrinks", crop_before_reducing,
        why="before reductions are split: a part of one may be short",
    ),
    Pass(
        "pad before widening", pad_before_widening, applies=has_narrow_products,
        why="before kernels: whether padding is stored is decided there, and in which dtype",
    ),
    Pass(
        "split sums of products", split_products,
        why="before reductions are split: each product then has loops of its own",
    ),
    Pass(
        "split long reductions", split_long_reductions,
        why="last: which reductions are long is known once nothing else changes them",
    ),
)  # fmt: skip
DRAFT_PASSES = (
    Pass(
        "join results", join_results,
        why="before fusion: it leaves what large reductions make apart",
    ),
    Pass(
        "horizontal fusion", merge_drafts,
        why="on ordered kernels: one may only run earlier if nothing between is in its way",
    ),
    Pass(
        "kernel tiling", join_runs,
        why="after fusion: the fewer kernels hand on a temporary, the larger its parts may be",
    ),
)  # fmt: skip
# What stands between them.
MATERIALIZE = Pass(
    "materialize", StagePlanner.run, needed=True,
    why="once the body is final: costs count how each value is read",
)  # fmt: skip
KERNELIZE = Pass(
    "kernelize", Splitter.split, needed=True, why="once it is known which values have memory"
)


def order_of(made: UOp, body: UOp, order: list[UOp]) -> list[UOp]:
    """The nodes of what a pass has made of a body: most passes leave most bodies as they are."""
    return order if made is body else list(toposort(made))


def make_schedule(
    body: UOp, order: list[UOp], workers: WorkersOf, take: Take | None = None, plain: int = 0
) -> Schedule:
    """Plans a body, whose nodes are given sources first; `take` as in `plan`."""
    params = sorted([u for u in order if u.op is Ops.PARAM], key=lambda u: u.arg.slot)
    if [p.arg.slot for p in params] != list(range(len(params))):
        raise InternalError(f"plan: parameters are not numbered 0..{len(params) - 1}: {params}")
    devices = devices_of(order, workers)
    clock, work = PassClock(), Work(workers, plain, devices)
    made = body
    for step in BODY_PASSES:
        if (step.needed or not plain) and (step.applies is None or step.applies(work)):
            body, order = made, order_of(made, body, order)
            made = step.run(body, order, work)
            clock(step, made)
    limits = {name: w.buffers for name, w in devices.items() if w.buffers}
    nested = {name: w.nested for name, w in devices.items() if w.nested}
    chained = {name: w.chained for name, w in devices.items() if w.chained}
    memory_ops = [u for u in order if u.op in (Ops.PARAM, Ops.AFTER, Ops.STORE)]
    for _ in range(1 + 2 * len(memory_ops) + len(params)):
        body, order = made, order_of(made, body, order)
        planner = StagePlanner(body, order)
        planner.nested = nested
        if not plain:
            planner.multiplied = chained
            if chained:
                planner.keep_inside(keep(order, chained))
        ahead = None
        if take is not None and len(order) >= MANY_NODES:
            planner.follower = ahead = Ahead(planner, params, take)
        if plain == Plainness.PLAINEST:
            planner.fuse = 0
        planner.run()
        clock(MATERIALIZE, planner)
        if limits and (made := without_crowds(body, planner, limits)) is not body:
            continue
        splitter = Splitter(planner, params, ahead.splitter if ahead else None)
        try:
            drafts = order_drafts(splitter.split(), planner, params)
            clock(KERNELIZE, drafts)
        except HazardError as hazard:
            if hazard.value is not None:
                made = snapshot_value(body, hazard.value)
            else:
                assert hazard.version is not None
                made = snapshot_version(body, hazard.version)
            continue
        first = drafts
        written = frozenset([d.writes for d in drafts if d.writes < len(params)])
        new = {memory_of(store) for store in body.src[: body.arg.fresh]}
        for step in DRAFT_PASSES:
            if step.needed or not plain:
                drafts = step.run(drafts, splitter, work)
                clock(step, drafts)
        steps = [splitter.close(d) for d in drafts]
        made_of = Schedule(steps, splitter.slots, len(params), written, written - new, work.numbers)
        for w in WATCHERS:
            w.closed(planner, first, drafts, made_of)
        return made_of
    raise InternalError("plan: effects collide however often values are stored beforehand")
