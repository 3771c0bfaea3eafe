"""Rewrites a graph by a table of rules until none applies.

Receives graphs and tables, returns graphs. It knows no rules and no stages; `uop/passes` runs
sequences of passes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from aster_ml.errors import InternalError
from aster_ml.uop.graph import toposort
from aster_ml.uop.node import UOp
from aster_ml.uop.pattern import PatternMatcher

# Limit of rewrites for each node of a graph, and for a small graph: far more than a terminating
# table needs.
STEPS_A_NODE, MIN_STEPS = 200, 10_000


def graph_rewrite(root: UOp, pm: PatternMatcher, ctx: Any = None, bottom_up: bool = False) -> UOp:
    """`root` with the rules applied everywhere until none applies any more.

    A rule sees a node after its sources have been rewritten. With `bottom_up`, tinygrad's name, it
    sees the node first, and the sources of its replacement afterwards.

    Raises: InternalError naming the rule when the rewriting does not end.
    """
    return rewrite_all([root], pm, ctx, bottom_up)[0]


def rewrite_all(
    roots: Sequence[UOp], pm: PatternMatcher, ctx: Any = None, bottom_up: bool = False
) -> list[UOp]:
    """`graph_rewrite` on several roots, sharing the work."""
    done: dict[UOp, UOp] = {}
    walk = rewrite_first if bottom_up else rewrite_after
    for root in roots:
        if root not in done:
            walk(root, pm, ctx, done)
    return [done[root] for root in roots]


def rewrite_after(root: UOp, pm: PatternMatcher, ctx: Any, done: dict[UOp, UOp]) -> None:
    """Fills `done` for everything below `root`: sources first, then the node, then its result."""
    table = pm.table
    # (node, what it waits for): None for its sources, a node for its replacement.
    stack: list[tuple[UOp, UOp | None]] = [(root, None)]
    waiting: set[UOp] = set()
    steps, limit = 0, MIN_STEPS
    while stack:
        u, became = stack.pop()
        if became is not None:
            done[u] = done[became]
            waiting.discard(u)
            continue
        if u in done:
            continue
        pending = [s for s in u.src if s not in done]
        if pending:
            waiting.add(u)
            stack.append((u, None))
            for s in pending:
                # Only nodes in progress above a node wait: the rules have made a cycle.
                if s in waiting:
                    raise not_ending(pm, s, ctx, "it becomes something that contains it")
                stack.append((s, None))
            continue
        waiting.discard(u)
        new = u
        src = u.src
        if src:
            changed = tuple([done[s] for s in src])
            if changed != src:
                new = UOp(u.op, u.dtype, changed, u.arg, u.tag)
                if new in done:
                    done[u] = done[new]
                    continue
        matcher = table[new.op]
        result = matcher(new, ctx) if matcher is not None else None
        if result is None:
            done[u] = done[new] = new
        elif result in done:
            done[u] = done[new] = done[result]
        else:
            steps += 1
            if steps > limit:
                limit = steps_allowed(root)
                if steps > limit:
                    raise not_ending(pm, new, ctx, f"{steps} results")
            if result in waiting:
                raise not_ending(pm, new, ctx, "it becomes what has become it")
            waiting.add(u)
            stack.append((u, result))
            if new is not u:
                waiting.add(new)
                stack.append((new, result))
            stack.append((result, None))


def rewrite_first(root: UOp, pm: PatternMatcher, ctx: Any, done: dict[UOp, UOp]) -> None:
    """Fills `done` for everything below `root`: the node, then the sources of its replacement."""
    table = pm.table
    stack: list[tuple[UOp, UOp | None, bool]] = [(root, None, False)]
    waiting: set[UOp] = set()
    steps, limit = 0, MIN_STEPS
    while stack:
        u, became, entered = stack.pop()
        if became is not None:
            done[u] = done[became]
            waiting.discard(u)
            continue
        if u in done:
            continue
        result: UOp | None = None
        if entered:
            src = tuple([done[s] for s in u.src])
            if src == u.src:
                done[u] = u
                waiting.discard(u)
                continue
            result = UOp(u.op, u.dtype, src, u.arg, u.tag)
        else:
            if u in waiting:
                raise not_ending(pm, u, ctx, "it becomes something that contains it")
            waiting.add(u)
            matcher = table[u.op]
            if matcher is not None:
                result = matcher(u, ctx)
        if result is not None:
            steps += 1
            if steps > limit:
                limit = steps_allowed(root)
                if steps > limit:
                    raise not_ending(pm, u, ctx, f"{steps} results")
            stack.append((u, result, True))
            stack.append((result, None, False))
        elif not u.src:
            done[u] = u
            waiting.discard(u)
        else:
            stack.append((u, None, True))
            stack.extend([(s, None, False) for s in u.src if s not in done])


def steps_allowed(root: UOp) -> int:
    """Limit of rewrites of a graph; computed only after many rewrites."""
    return STEPS_A_NODE * len(toposort(root))


def not_ending(pm: PatternMatcher, u: UOp, ctx: Any, how: str) -> InternalError:
    """The error for rules that do not terminate."""
    found = pm.explain(u, ctx)
    rule = "no single rule" if found is None else f"rule {found[0]!r} gives {found[1]!r}"
    return InternalError(f"rewriting does not end at {u!r}: {how}; {rule}")
