"""Orders steps: places readers of overwritten memory before or after each STORE.

Receives drafts, sources first; returns them in execution order, or raises HazardError with the
value to store beforehand.
"""

from __future__ import annotations

from aster_ml.errors import InternalError
from aster_ml.schedule.fusion.materialize import StagePlanner
from aster_ml.schedule.hazards import Version
from aster_ml.schedule.steps import Draft, HazardError
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import Ops


def order_drafts(drafts: list[Draft], planner: StagePlanner, params: list[UOp]) -> list[Draft]:
    """Orders drafts so that each reader of overwritten memory sees the right version.

    The given order respects data dependences; a STORE to an argument must come after readers of the
    old value and before readers of the new one. Otherwise the order is kept.
    """
    writers: dict[int, list[int]] = {}
    for i, d in enumerate(drafts):
        writers.setdefault(d.writes, []).append(i)
    assigned = {d.writes for d in drafts if d.writes < len(params)}
    before: list[set[int]] = [set() for _ in drafts]
    # Memory that is written without a STORE of the body.
    apart = {d.writes for d in drafts if d.store is None}
    of_store = {d.store: i for i, d in enumerate(drafts) if d.store is not None}
    fresh = [d.store is not None and is_fresh(d.store, planner) for d in drafts]
    for i, d in enumerate(drafts):
        for slot, after in d.reads:
            for w in writers.get(slot, ()):
                if w == i:
                    continue
                store = drafts[w].store
                if slot not in assigned or store is None:
                    before[i].add(w)
                elif store in after or fresh[w]:
                    before[i].add(w)
                else:
                    before[w].add(i)
        before[i].update(last_writers(d, drafts, of_store))
        for w in writers.get(d.writes, ()) if d.writes in apart else ():
            if w < i and (d.store is None or drafts[w].store is None):
                before[i].add(w)
    result: list[Draft] = []
    state = [0] * len(drafts)
    for root in range(len(drafts)):
        stack = [root]
        while stack:
            i = stack[-1]
            if state[i] == 2:
                stack.pop()
                continue
            state[i] = 1
            waiting = [b for b in sorted(before[i], reverse=True) if state[b] != 2]
            if not waiting:
                state[i] = 2
                result.append(drafts[stack.pop()])
                continue
            for b in waiting:
                if state[b] == 1:
                    path = [x for x in stack[stack.index(b) :] if state[x] == 1]
                    raise HazardError(version=cycle_version(drafts, path, params))
            stack.extend(waiting)
    return result


def last_writers(d: Draft, drafts: list[Draft], of_store: dict[UOp, int]) -> list[int]:
    """The drafts whose STOREs must come directly before a draft's own.

    why: the last of n writes waits for one write and not for n
    """
    found = []
    number, left = d.target_after.number, d.target_after.bits
    at = d.store.src[0] if d.store is not None else None
    while left and at is not None and at.op is not Ops.PARAM:
        for store in at.src[1:] if at.op is Ops.AFTER else ():
            bit = 1 << number[store]
            if left & bit and store in of_store:
                w = of_store[store]
                found.append(w)
                left &= ~drafts[w].target_after.bits
            left &= ~bit
        at = at.src[0]
    return found


def is_fresh(store: UOp, planner: StagePlanner) -> bool:
    """Whether a STORE fills new memory, from which other steps read the value."""
    return planner.is_target(store)


def cycle_version(drafts: list[Draft], path: list[int], params: list[UOp]) -> Version:
    """Old content that a step in a cycle of waiting steps reads.

    A step that waits for a reader of the memory which it overwrites need not wait once the reader
    has a copy.
    """
    for waiting, reader in zip(path, [*path[1:], path[0]], strict=True):
        store, slot = drafts[waiting].store, drafts[waiting].writes
        for read, after in drafts[reader].reads:
            if read == slot < len(params) and store is not None and store not in after:
                if drafts[reader].step.kind != "copy":
                    return Version(params[slot], after)
    raise InternalError("split: a cycle of waiting steps in which none reads overwritten memory")
