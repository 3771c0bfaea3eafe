"""Hops 1 to 6 together: lazily built nodes become memory.

Receives nodes; returns for each one a node that is memory (a view of a BUFFER) with the same value.
"""

from __future__ import annotations

import functools
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from aster_ml.config import DEBUG, DETERMINISTIC, FUSE, SAME_THREADS, debug_shown
from aster_ml.device import Buffer, Device
from aster_ml.engine import storage
from aster_ml.engine.caches import CACHES
from aster_ml.engine.calls import PENDING, run_pending
from aster_ml.engine.counters import TOTALS
from aster_ml.engine.fallback import take_plainer_way
from aster_ml.engine.fills import fill_memory
from aster_ml.engine.launch import bind, observe
from aster_ml.engine.launch import run_schedule as launch_schedule
from aster_ml.engine.multi import all_parts, have_happened, is_copied, open_nodes, parts
from aster_ml.engine.readers import enter_new, nodes_above, shown_above, tensors_at
from aster_ml.engine.realized import (
    MARKS,
    SEEN_THROUGH,
    SHOWING,
    afters_of,
    base_buffer,
    find_memory,
    find_realized,
    memory_of,
)
from aster_ml.engine.recorded import remember_plan
from aster_ml.engine.repeats import ALIKE, without_repeats
from aster_ml.errors import DeviceError
from aster_ml.helpers import pluralize
from aster_ml.late import late
from aster_ml.plugins import open_module
from aster_ml.schedule.capture import Beforehand, Captured, capture
from aster_ml.schedule.hazards import Effects
from aster_ml.schedule.rewrites.fold_numbers import number_like, number_of
from aster_ml.schedule.slice_offsets import with_variables
from aster_ml.schedule.steps import Schedule
from aster_ml.schedule.work import Plainness, Workers
from aster_ml.target import Target
from aster_ml.target.tensor_cores import chained_dtypes
from aster_ml.thread_state import ENGINE, STATE, take_turn
from aster_ml.uop.graph import toposort
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import MOVEMENT, Ops, RunArg
from aster_ml.uop.sharding import MULTI_SEEN
from aster_ml.watch import WATCHERS

# Most calls find their schedule in the cache.
if TYPE_CHECKING:
    from aster_ml.engine import compile as compiling
    from aster_ml.schedule import plan
    from aster_ml.schedule.early_kernels import Take
    from aster_ml.schedule.fusion import unpacked as bytes_of
else:
    compiling, plan = late("engine.compile"), late("schedule.plan")
    bytes_of = late("schedule.fusion.unpacked")

AFTER = Ops.AFTER


class Request:
    """Request of one call of `realize` to the compiler; with `fills`, memory may be filled here."""

    def __init__(self, nodes: list[UOp], fills: bool = False) -> None:
        self.fills = fills
        self.fresh: list[UOp] = []
        self.assigns: list[UOp] = []
        self.results: list[tuple[UOp, UOp]] = []
        self.known: set[UOp] = set()
        for u in nodes:
            self.add(u)

    def add(self, u: UOp) -> None:
        """One node: nothing to do, effects to run, or a new buffer to fill."""
        while u.op is Ops.NAME:
            # Equal values of several tensors are computed once.
            u = u.src[0]
        if u in self.known:
            return
        # What carries its slopes is mostly computed like any other value.
        value = u
        while value.op in MARKS:
            value = value.src[0]
        known = storage.REALIZED_VIEWS.data
        if value.op in SEEN_THROUGH or weakref.ref(u) in known or weakref.ref(value) in known:
            if find_realized(u) is not None:
                return
            place = find_memory(u)
            if place is not None:
                if self.fills and fill_memory(afters_of(u)) and find_realized(u) is not None:
                    return
                self.known.add(u)
                self.assigns.extend([s for after in afters_of(u) for s in after.src[1:]])
                self.results.append((u, place))
                return
            below = u
            while (below.op is Ops.RESHAPE and len(below.src) == 1) or below.op is Ops.NAME:
                below = below.src[0]
            if below.op is Ops.CONTIGUOUS and below is not u:
                # Memory for what others may name, and this is a view of it.
                self.add(below)
                return
        self.known.add(u)
        device = u.device
        if device is None:
            raise DeviceError(f"{u!r} lives on no device; give one: Tensor(..., device=...)")
        if device.startswith("DISK") and u.op is not Ops.COPY:
            raise DeviceError(
                f"the DISK device computes nothing: move the tensor first, "
                f"x.to('CPU') (asked for {u!r})"
            )
        number = None if STATE.observers else number_of(u)
        if number is not None:
            # Counters are other numbers at each step; the schedule of the rest must not change.
            storage.set_realized_view(u, number_like(u, number))
            return
        x = u
        while x.op in ALIKE or (x.op in MOVEMENT and x.op is not Ops.EXPAND):
            x = x.src[-1 if x.src[0].op is Ops.CONST else 0]
        if x.op is Ops.EXPAND and device.__class__ is str:
            # What differs of it is computed, and shown as often as it is there.
            part = without_repeats(u)
        else:
            part = u
        view = UOp.new_memory(device, part.shape, u.dtype)
        self.fresh.append(view.store(part))
        self.results.append((u, view if part is u else view._mop(Ops.EXPAND, u.shape)))

    def note_numbers(self, buffers: list[UOp], numbers: dict[int, Any]) -> None:
        """Results that turned out to be one number everywhere are that number, in no memory."""
        known = {buffers[i]: value for i, value in numbers.items()}
        for i, (u, memory) in enumerate(self.results):
            if memory.base in known:
                self.results[i] = u, number_like(u, known[memory.base])


def overwritten_by(roots: list[UOp]) -> tuple[set[UOp], set[UOp]]:
    """The STOREs that computing these roots runs, and the memory in use that they overwrite."""
    order = toposort(*roots, enter=lambda u: storage.realized_view(u) is None)
    stores = {
        s
        for u in order
        if u.op is Ops.AFTER and storage.realized_view(u) is None
        for s in u.src[1:]
    }
    stores |= {u for u in order if u.op is Ops.STORE and u in roots}
    return stores, {place for s in stores if (place := base_buffer(s)) in storage.BUFFERS}


def pending_readers(stores: set[UOp], overwritten: set[UOp], known: Iterable[UOp]) -> list[UOp]:
    """Live nodes, none of the known ones, that want what memory held before one of these STOREs."""
    if not overwritten:
        return []
    asked = set(known)
    live = nodes_above(overwritten)
    if MULTI_SEEN:
        live = all_parts([u for u in live if not u.has_multi or find_realized(u) is None])
    lazy = [
        u
        for u in dict.fromkeys(live)
        if u not in asked and find_realized(u) is None and 0 not in u.shape
    ]
    of_memory: dict[UOp, set[UOp]] = {}
    for s in stores:
        of_memory.setdefault(base_buffer(s), set()).add(s)
    effects = Effects()
    below = {place: effects.set_of(group) for place, group in of_memory.items()}
    # Whether a node's value needs content that goes: worked out once for all, sources first.
    needs: dict[UOp, bool] = {}
    # What stands for the nodes that have sources, as the walk has found it.
    stands: dict[UOp, UOp | None] = {}

    def is_open(u: UOp) -> bool:
        found = stands[u] = storage.realized_view(u)
        return found is None and not (u.op is AFTER and not stores.isdisjoint(u.src))

    for u in toposort(*lazy, enter=is_open):
        found = stands[u] if u in stands else storage.realized_view(u)
        if found is not None:
            needs[u] = found.base in overwritten
        elif u.op is AFTER and not stores.isdisjoint(u.src):
            # What it shows is there after some of the STOREs; do others come behind?
            needs[u] = not below[base_buffer(u)].is_part_of(effects.below(u))
        else:
            needs[u] = u in overwritten or any([needs[s] for s in u.src])
    late = [u for u in lazy if needs[u]]
    if late:
        # Recordings that make such a value anew have to see that its memory changes.
        storage.CLOCK.exchanges += 1
    return late


# Work-groups share a kernel: so many, from so few elements on; threads wake up for more.
WORK_GROUPS, MIN_GROUP_LENGTH, MIN_THREAD_LENGTH = 256, 1 << 15, 1 << 17
# Results of a reduction that are few for all work-groups, and for each thread: what lies side by
# side in less than a few cache lines is not read well by several threads.
GROUP_RESULTS, THREAD_RESULTS = 32, 64
# Steps of sums inside of another one that a work-item takes as long for as a launch does: a few
# microseconds, where each of them waits for memory, since no other item has a part of them.
NESTED_STEPS = 256


def workers_of(device: str) -> Workers:
    """Number of workers of a device that share a kernel: threads or work-groups."""
    return workers_for(Device[device].target)


def workers_for(target: Target) -> Workers:
    """The same for a machine that need not be there."""
    if target.has_local:
        return Workers(
            WORK_GROUPS, MIN_GROUP_LENGTH, GROUP_RESULTS, target.max_buffers,
            chained_dtypes(target.tensor_cores) if FUSE else frozenset(),
            NESTED_STEPS, target.max_turns, target.units,
        )  # fmt: skip
    threads = SAME_THREADS if DETERMINISTIC else target.threads
    return Workers(threads, MIN_THREAD_LENGTH, THREAD_RESULTS * threads, target.max_buffers)


def named_values(laid_out: list[UOp], request: Request) -> list[UOp]:
    """The values, not asked for, that are stored on the way and that a live tensor shows.

    They get memory of their own, which the tensor is then.
    """
    if not laid_out:
        return []
    enter_new()
    asked = {u for u, _ in request.results}
    return [
        u
        for u in laid_out
        if u not in asked and find_realized(u) is None and any(shown_above(u, SHOWING))
    ]


Prepared = tuple[Request, Captured, Schedule]


def prepare(nodes: list[UOp], take: Take | None = None, fills: bool = False) -> Prepared | None:
    """The schedule of what these nodes need, or None when all are memory already.

    `take` consumes kernels that are known before the rest is planned. With `fills`, memory that
    begins as a number is filled here.
    """
    if PENDING:
        run_pending(nodes, realize_uops, readers_but)
    request = Request(nodes, fills)
    if not request.fresh and not request.assigns:
        return None
    # What is compiled meanwhile is no planning.
    start = time.perf_counter() - TOTALS.compile_s
    captured: Captured | None = None
    beforehand = Beforehand(storage.realized_view)
    known: set[UOp] = set()
    asked = list(nodes)
    while True:
        if request.assigns:
            # What is overwritten mostly has more readers, which come into the body too.
            beforehand.add([*request.fresh, *request.assigns])
            effects, laid_out = beforehand.effects, beforehand.laid_out
        else:
            captured = capture(request.fresh, request.assigns, storage.realized_view)
            effects, laid_out = captured.effects, captured.laid_out
            if not effects and not laid_out:
                break
        if fills and effects and (filled := fill_memory(effects)):
            beforehand.effects = [u for u in effects if filled.isdisjoint(u.src)]
            request.assigns = [s for s in request.assigns if s not in filled]
            continue
        stores = {*request.assigns, *[s for after in effects for s in after.src[1:]]}
        late: list[UOp] = []
        if stores != known:
            # Readers of what the same stores overwrite have been found already.
            known = stores
            overwritten = {place for s in stores if (place := base_buffer(s)) in storage.BUFFERS}
            late = pending_readers(stores, overwritten, asked)
        late += named_values(laid_out, request)
        if not late:
            break
        for u in late:
            request.add(u)
        # They may have effects of their own, which others wait for.
        asked += late
    if captured is None or request.assigns:
        captured = capture(request.fresh, request.assigns, storage.realized_view)
    schedule = CACHES.find_schedule(captured)
    if schedule is None and not STATE.observers:
        moved = with_variables(captured, CACHES.offsets_of)
        if moved is not captured:
            captured, schedule = moved, CACHES.find_schedule(moved)
    hit = schedule is not None
    if schedule is None:
        schedule = planned(captured, take)
    if schedule.numbers:
        request.note_numbers(captured.buffers, schedule.numbers)
    seconds = time.perf_counter() - TOTALS.compile_s - start
    TOTALS.schedule_s += seconds
    for w in WATCHERS:
        w.planned(captured, schedule, hit, seconds)
    if hit:
        TOTALS.schedule_hits += 1
    else:
        TOTALS.schedule_misses += 1
    if not hit and DEBUG >= 1 and debug_shown("schedule"):
        print(f"scheduled {pluralize('step', len(schedule.steps))} in {seconds * 1e3:.2f} ms")
        if DEBUG >= 3:
            for i, step in enumerate(schedule.steps):
                print(f"  {i:3d} {step.kind:6s} {step.device} slots {step.slots}")
    return request, captured, schedule


class Later(Protocol):
    """Keeps schedules to run them later."""

    def keep(
        self, captured: Captured, schedule: Schedule, memories: list[Buffer]
    ) -> storage.Unfinished:
        """Keeps one, in place of running it on this memory."""


def realize_uops(nodes: list[UOp], times: int = 1, later: Later | None = None) -> list[UOp]:
    """Computes the nodes; returns for each the memory that has its value.

    Constants and views of memory come back as they are: there is nothing to compute. What is done
    several `times` are writes, each of which reads what the last has left; nobody else may be
    waiting to read that memory. What is kept for `later` runs when somebody reads the memory.
    """
    with ENGINE:
        take_turn()
        if MULTI_SEEN and any([u.has_multi for u in nodes]):
            found = compute_parts(nodes, lambda parts: realize_uops(parts, times, later))
            if storage.DUE.data and later is None:
                run_due([b for u in found for b in storage.buffers_below(u)])
            return found
        if (observers := STATE.observers) and observers[-1].outside:
            realize_outside(nodes)
        if later is None:
            early = compiling.EarlyKernels()
            try:
                prepared = prepare(nodes, early.take, not observers)
                was_bound = prepared is not None and bool(prepared[2].bound)
                if prepared is not None and (early.compilation is not None or not was_bound):
                    try:
                        bind(prepared[2], early.compilation)
                    except Exception as error:
                        prepared = bind_somehow(prepared, error)
            finally:
                if early.compilation is not None:
                    early.close()
        else:
            prepared, was_bound = prepare(nodes), False
        if prepared is not None:
            request, captured, schedule = prepared
            if storage.DUE.data:
                run_due(captured.buffers, schedule.overwritten)
            memories = [storage.buffer_of(b) for b in captured.buffers]
            due = None if later is None else later.keep(captured, schedule, memories)
            for _ in range(times if due is None else 0):
                launch_schedule(schedule, memories, captured.values, captured.buffers)
            if was_bound and len(nodes) == 1 and is_plain(request, captured):
                remember_plan(*request.results[0], bind(schedule), captured.buffers)
            places = note_effects(request, captured, memories)
            storage.set_computed(request.results, memories)
            storage.note_overwritten([memories[i] for i in schedule.overwritten])
            if due is not None:
                # What turned out to be a number is there.
                shown = [*places, *[memory for _, memory in request.results]]
                storage.DUE.update({u.base: due for u in shown if u.base.op is Ops.BUFFER})
        found = [memory_of(u) for u in nodes]
        if storage.DUE.data and later is None:
            run_due([u.base for u in found])
        return found


def is_plain(request: Request, captured: Captured) -> bool:
    """Whether a body computes one value to new memory that shows all of it, and nothing else."""
    if len(request.fresh) != 1 or request.assigns or captured.effects or captured.laid_out:
        return False
    u, memory = request.results[0]
    return request.fresh[0].src[1] is u and memory.shape == u.shape and not captured.values


def planned(captured: Captured, take: Take | None) -> Schedule:
    """The schedule of a body that has none, made plainly where that fails inside."""
    try:
        schedule = plan.plan(captured, workers_of, take)
    except Exception as error:
        ways = [
            ("a plain schedule", functools.partial(plan.plan, captured, workers_of, plain=plain))
            for plain in (Plainness.PLAIN, Plainness.PLAINEST)
        ]
        schedule = take_plainer_way("plan", captured.body, None, error, ways)
    # What is observed (a function that is jitted) runs twice before it is recorded, and a schedule
    # that is made anew counts as another.
    CACHES.put_schedule(captured, schedule, again=bool(STATE.observers))
    return schedule


def bind_somehow(prepared: Prepared, error: Exception) -> Prepared:
    """Prepares kernel by kernel where runs of them could not be compiled.

    Raises: the `error` for which they could not, where there are no runs, or it is a user's.
    """
    request, captured, schedule = prepared
    runs = [s.ast for s in schedule.steps if s.ast is not None and is_run(s.ast)]
    if not runs:
        raise error

    def without_runs() -> Schedule:
        plain = plan.plan(captured, workers_of, plain=Plainness.PLAIN)
        CACHES.put_schedule(captured, plain)
        bind(plain)
        return plain

    ways = [("kernels one after the other", without_runs)]
    return request, captured, take_plainer_way("run", runs[0], None, error, ways)


def is_run(ast: UOp) -> bool:
    """Whether a kernel is a run of several."""
    return isinstance(ast.arg, RunArg)


def note_effects(request: Request, captured: Captured, memories: list[Buffer]) -> list[UOp]:
    """The effects of a body have happened, or will whatever else does; returns what they wrote."""
    places = []
    shown = []
    happened = dict.fromkeys(request.assigns)
    # An effect on what another one has left shows the same place; the first of them comes first.
    known: dict[UOp, UOp] = {}
    for after in captured.effects:
        happened.update(dict.fromkeys(after.src[1:]))
        place = known.get(after.src[0])
        if place is None:
            place = find_memory(after)
        if place is not None:
            known[after] = place
            shown.append((after, place))
            places.append(place)
    if happened:
        storage.set_computed(shown, memories)
        below = {s.src[0].base for s in happened if s.op is Ops.STORE}
        superseded = {s for place in below if place.op is Ops.AFTER for s in place.src[1:]}
        storage.note_happened(happened, superseded)
    return places


def compute_parts(nodes: list[UOp], compute: Callable[[list[UOp]], list[UOp]]) -> list[UOp]:
    """Applies `compute` to the nodes of one device that these stand for, and joins the results."""
    reached = open_nodes(nodes)
    # What a tensor names is kept, so that its next reader need not copy or compute it again.
    enter_new()
    kept = [u for u in reached if (u.op is Ops.CONTIGUOUS or is_copied(u)) and tensors_at(u)]
    asked = [*nodes, *kept]
    wanted = all_parts([u for u in asked if find_realized(u) is None])
    time = storage.CLOCK.time
    made = dict(zip(wanted, compute(wanted), strict=True))
    for u in reached:
        if u.op is Ops.AFTER and have_happened(u):
            place = find_memory(u)
            if place is not None:
                storage.set_realized_view(u, place)
                u._at = time + 1
    result = []
    for u in asked:
        found = find_realized(u)
        if found is None:
            memory = [made[part] for part in parts(u)]
            found = memory[0] if len(memory) == 1 else memory[0].beside(memory[1:], u.axis)
            storage.set_realized_view(u, found)
            u._at = time
        result.append(found)
    return result[: len(nodes)]


def run_due(memory: Sequence[UOp], overwritten: Iterable[int] = ()) -> None:
    """Runs what is left of schedules that fill these BUFFERs.

    Of those that are `overwritten` next (by number), also what is left to read them.
    """
    for u in memory:
        due = storage.DUE.get(u)
        if due is not None:
            due.finish()
    gone = {id(storage.buffer_of(memory[i]).base) for i in overwritten}
    if gone:
        for due in dict.fromkeys(storage.DUE.values()):
            if due.touches(gone):
                due.finish()


def realize_outside(nodes: list[UOp]) -> None:
    """While a function is observed: computes what tensors from before it started need, apart.

    Their values are fixed, so a recording has to read them and must not make them anew; and effects
    that were pending before must run once, not with every replay.
    """
    observers = STATE.observers
    outside = {u for u in observers[-1].outside if storage.realized_view(u) is None}
    if not outside:
        return
    stores, overwritten = overwritten_by(nodes)
    roots = [*nodes, *pending_readers(stores, overwritten, ())]
    # What is unpacked from few bytes is unpacked in each replay: its bytes are what it needs.
    unpacked = {u for u in outside if bytes_of.nodes_of_unpacked(u, ())}
    apart = outside - unpacked
    order = toposort(*roots, enter=lambda u: storage.realized_view(u) is None and u not in apart)
    packed = toposort(
        *[u for u in order if u in unpacked], enter=lambda u: storage.realized_view(u) is None
    )
    wanted = [u for u in order if u in apart or (u.op is Ops.COPY and u in packed)]
    wanted = [u for u in wanted if storage.realized_view(u) is None]
    if not wanted:
        return
    observe([])
    try:
        memory = realize_uops(wanted)
    finally:
        observe(observers)
    for observer in observers:
        observer.note_outside(memory)


def realize_readers(buffers: set[UOp]) -> None:
    """Computes what still wants the content of this memory, before somebody overwrites it."""
    readers = pending_readers(set(), buffers, ())
    if readers:
        realize_uops(readers)


def readers_but(buffers: set[UOp], results: set[UOp]) -> list[UOp]:
    """Live nodes that want what this memory holds, not by way of these results."""
    lazy = [
        u
        for u in nodes_above(buffers)
        if u not in results and find_realized(u) is None and 0 not in u.shape
    ]
    needs: dict[UOp, bool] = {}
    for u in toposort(*lazy, enter=lambda u: storage.realized_view(u) is None and u not in results):
        found = storage.realized_view(u)
        if found is not None:
            needs[u] = found.base in buffers
        else:
            needs[u] = u not in results and (u in buffers or any([needs[s] for s in u.src]))
    return [u for u in lazy if needs[u]]


def schedule_uops(nodes: list[UOp]) -> tuple[Schedule, dict[str, int]]:
    """Schedules these nodes: what realizing them would run, and the values of their variables."""
    with ENGINE:
        take_turn()
        prepared = prepare(nodes)
    if prepared is None:
        return Schedule([], [], 0), {}
    return prepared[2], prepared[1].values


open_module(__name__)
