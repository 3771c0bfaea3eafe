"""Walks over graphs: order, consumers, substitution, search. All of them iterative."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from aster_ml.mixin.symbol import ABOVE
from aster_ml.uop.node import UOp


def toposort(*roots: UOp, enter: Callable[[UOp], bool] | None = None) -> dict[UOp, None]:
    """Every node below the roots (and they), sources first.

    `enter` says whether to go below a node; the node itself is listed either way.
    """
    done: dict[UOp, None] = {}
    stack: list[tuple[UOp, bool]] = [(root, False) for root in reversed(roots)]
    while stack:
        u, ready = stack.pop()
        if u in done:
            continue
        if ready or not u.src or (enter is not None and not enter(u)):
            done[u] = None
            continue
        stack.append((u, True))
        for s in reversed(u.src):
            if s not in done:
                stack.append((s, False))
    return done


def consumers(order: Iterable[UOp]) -> dict[UOp, list[UOp]]:
    """For each node of the order, the nodes of the order that have it as a source, once each."""
    result: dict[UOp, list[UOp]] = {}
    for u in order:
        result.setdefault(u, [])
        for s in dict.fromkeys(u.src):
            result.setdefault(s, []).append(u)
    return result


def substitute(
    root: UOp, changes: dict[UOp, UOp], enter: Callable[[UOp], bool] | None = None
) -> UOp:
    """`root` with nodes replaced; what stands below a replaced node is not looked at."""
    return substitute_all([root], changes, enter)[0]


def substitute_all(
    roots: Iterable[UOp], changes: dict[UOp, UOp], enter: Callable[[UOp], bool] | None = None
) -> list[UOp]:
    """`substitute` on several roots, sharing the work."""
    roots = list(roots)
    new = dict(changes)
    stack = [(root, False) for root in roots]
    while stack:
        u, ready = stack.pop()
        if u in new:
            continue
        if not u.src or (enter is not None and not enter(u)):
            new[u] = u
        elif ready:
            src = tuple([new[s] for s in u.src])
            new[u] = u if src == u.src else UOp(u.op, u.dtype, src, u.arg, u.tag)
        else:
            stack.append((u, True))
            stack.extend([(s, False) for s in u.src if s not in new])
    return [new[root] for root in roots]


def reaches(root: UOp, wanted: Callable[[UOp], bool]) -> bool:
    """Whether some node at or below the root is wanted."""
    seen = {root}
    stack = [root]
    while stack:
        u = stack.pop()
        if wanted(u):
            return True
        for s in u.src:
            if s not in seen:
                seen.add(s)
                stack.append(s)
    return False


ABOVE["substitute"] = substitute
ABOVE["toposort"] = toposort
ABOVE["consumers"] = consumers
