"""Runs the recorded graph of a form that was realized before: from nodes to launch in one look-up.

Receives a tensor whose node is to be computed; returns memory with its value, or None where the
long way (`engine/realize`) has to go. That way tells of what it has realized (`remember_plan`). A
form is the graph without its memory: ops, dtypes, arguments, which node reads which, and sizes of
buffers. Of equal forms, under the same settings, all is equal that hops 1 to 5 work out, so what is
left is to give memory to the launches, which are one recorded graph.

It knows no rule of its own: where a node is in any way special (effects, marks, bound variables,
values that were realized before), where somebody observes or waits, the long way goes.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from sys import getrefcount
from typing import Any

from aster_ml.backend import Call, Graph
from aster_ml.config import DEBUG, SPEC, stage_key
from aster_ml.device import Buffer, Device
from aster_ml.engine import storage
from aster_ml.engine.caches import CACHES, Mark
from aster_ml.engine.calls import PENDING
from aster_ml.engine.counters import TOTALS
from aster_ml.engine.launch import Bound, call_of, graph_of
from aster_ml.helpers import ONE_NAME
from aster_ml.thread_state import ENGINE, STATE, take_turn
from aster_ml.uop.interned import UNSET
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import ELEMENTWISE, GRADIENT_MARKS, MOVEMENT, Ops
from aster_ml.watch import WATCHERS

# What a form may be made of.
BUFFER, CUSTOM_GRADIENT, NAME = Ops.BUFFER, Ops.CUSTOM_GRADIENT, Ops.NAME
RESHAPE = Ops.RESHAPE
PLAIN = ELEMENTWISE | MOVEMENT | GRADIENT_MARKS | {BUFFER, Ops.CONST, Ops.DEVICE, Ops.REDUCE}
# Larger graphs gain little.
MOST_NODES = 64
# Under which key the settings of forms stand among the keys of stages.
STAGE = "recorded"
# Of a form without a graph, so that it is not looked at each time.
NO_GRAPH = Mark()


class RecordedGraph(Mark):
    """Plan of a form: its schedule, the recorded graph, and the places of its memory in it.

    `inputs` are the BUFFERs of the form in its order, each with the places (call, slot) where the
    graph has it, and `output` those of the result, which is new memory of this form.
    """

    def __init__(
        self,
        bound: Bound,
        graph: Graph,
        inputs: list[list[tuple[int, int]]],
        output: list[tuple[int, int]],
        memory: UOp,
    ) -> None:
        self.schedule = bound.schedule
        self.graph, self.launch = graph, graph.entry()
        self.inputs, self.output = inputs, output
        self.device, self.size = memory.base.arg.device, memory.base.arg.size
        self.shape, self.dtype = memory.shape, memory.dtype
        self.is_flat = memory.op is BUFFER
        self.allocator = Device[self.device].allocator
        kernels = [c for c in bound.compiled if c is not None]
        self.kernels = len(kernels)
        self.ops = sum([c.estimates.ops for c in kernels])
        self.mem = sum([c.estimates.mem for c in kernels])


def form_of(root: UOp) -> tuple[tuple[Any, ...], list[UOp]] | None:
    """The form of a graph under the settings of now, and its BUFFERs.

    None of a graph that is large, or in any way special.
    """
    settings = settings_now()
    if settings is None:
        return None
    while root.op is NAME:
        root = root.src[0]
    order, number = [root], {root: 0}
    form = [settings]
    buffers: list[UOp] = []
    for u in order:
        op = u.op
        if op is BUFFER:
            buffers.append(u)
            form += op, u.dtype, u.arg[1:]
            continue
        if op not in PLAIN or u._at is not UNSET:
            return None
        src = u.src
        # Floats by their bits.
        form += op, u.dtype, u._key[3]
        if op is CUSTOM_GRADIENT:
            # Derivatives matter to gradients alone.
            src = src[:1]
        for s in src:
            while s.op is NAME:
                # Whose value it is, is asked for by gradients alone, too.
                s = s.src[0]
            at = number.get(s)
            if at is None:
                at = number[s] = len(order)
                order.append(s)
            form.append(at)
        if len(order) > MOST_NODES:
            return None
    return tuple(form), buffers


def settings_now() -> object | None:
    """Stands for the settings of now in forms; None where the long way has to go."""
    keys = STATE.stage_keys
    if STAGE not in keys:
        key = (*stage_key("schedule"), *stage_key("codegen"))
        keys[STAGE] = None if DEBUG or SPEC else CACHES.settings.setdefault(key, object())
    found: object | None = keys[STAGE]
    return found


def run_recorded(tensor: Any) -> UOp | None:
    """Memory with the value of a tensor's node, where a graph of its form is known."""
    if STATE.observers or PENDING or storage.DUE.data or WATCHERS:
        return None
    with ENGINE:
        take_turn()
        graphs = CACHES.graphs.entries
        found = form_of(tensor.uop) if graphs else None
        if found is None:
            return None
        form, buffers = found
        seen = graphs.get(form)
        if seen.__class__ is not RecordedGraph:
            return None
        known, graph = storage.BUFFERS.data, seen.graph
        memories = []
        for u, places in zip(buffers, seen.inputs, strict=True):
            buffer = known.get(weakref.ref(u))
            if buffer.__class__ is not Buffer:
                return None
            if not (buffer._base is None or buffer.is_initialized()):
                return None
            handle = buffer._handle
            if handle is None:
                return None
            memories.append(buffer)
            for call, slot in places:
                graph.set_handle(call, slot, handle)
        made = Buffer.fresh(seen.device, seen.size, seen.dtype, seen.allocator)
        memory = base = UOp.new_buffer(seen.device, seen.size, seen.dtype)
        if not seen.is_flat:
            memory = UOp(RESHAPE, seen.dtype, (base,), seen.shape)
            memory._shape, memory._device = seen.shape, seen.device
        storage.BUFFERS[base] = made
        for call, slot in seen.output:
            graph.set_handle(call, slot, made._handle)
        seen.schedule.used = CACHES.turn
        totals = TOTALS
        totals.graph_hits += 1
        totals.schedule_hits += 1
        totals.kernel_count += seen.kernels
        totals.global_ops += seen.ops
        totals.global_mem += seen.mem
        seen.launch()
        del found, form, buffers
        node = tensor.uop
        if getrefcount(node) != ONE_NAME:
            # Others have the node, and would compute it again.
            storage.set_computed([(node, memory)], [*memories, made])
        return memory


def remember_plan(root: UOp, memory: UOp, bound: Bound, buffers: Sequence[UOp]) -> None:
    """Notes what a node was realized to: `memory`, which is new, by a schedule on these BUFFERs."""
    found = form_of(root)
    if found is None or found[0] in CACHES.graphs.entries:
        return
    CACHES.graphs.put(found[0], NO_GRAPH)
    schedule = bound.schedule
    memories = {i: storage.buffer_of(u) for i, u in enumerate(buffers)} | bound.kept
    places: dict[int, list[tuple[int, int]]] = {}
    calls: list[Call] = []
    for step, compiled in zip(schedule.steps, bound.compiled, strict=True):
        if compiled is None or not compiled.static or compiled.var_names:
            return
        if step.device != schedule.steps[0].device or not memories.keys() >= {*step.slots}:
            return
        for slot, number in enumerate(step.slots):
            places.setdefault(number, []).append((len(calls), slot))
        calls.append(call_of(compiled, {}, [memories[number] for number in step.slots]))
    if not calls or schedule.numbers or schedule.overwritten:
        return
    graph = graph_of(schedule.steps[0], calls)
    if graph is not None:
        slots = {u: i for i, u in enumerate(buffers)}
        inputs = [places.get(slots[u], []) for u in found[1]]
        made = RecordedGraph(bound, graph, inputs, places[slots[memory.base]], memory)
        CACHES.graphs.put(found[0], made)
