"""Walks graphs iteratively: topological order, consumers, substitution, search."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator
from typing import TYPE_CHECKING

from aster_ml.late import late
from aster_ml.ops.symbol import ABOVE
from aster_ml.uop.node import UOp, new_node
from aster_ml.uop.ops import Ops

if TYPE_CHECKING:
    from aster_ml.uop.rules import symbolic
else:
    symbolic = late("uop.rules.symbolic")


def toposort(
    *roots: UOp,
    enter: Callable[[UOp], bool] | None = None,
    done: dict[UOp, None] | None = None,
) -> dict[UOp, None]:
    """Every node at and below the roots, sources first.

    `enter` decides whether to go below a node; the node itself is listed either way. Nodes are
    appended to `done`, the order of other roots, if it is given.
    """
    done = {} if done is None else done
    for root in roots:
        if root in done:
            continue
        if enter is not None and not enter(root):
            done[root] = None
            continue
        # Entered nodes, each with its remaining sources.
        stack: list[tuple[UOp, Iterator[UOp]]] = []
        u, left = root, iter(root.src)
        while True:
            for s in left:
                if s in done:
                    continue
                src = s.src
                if src and (enter is None or enter(s)):
                    stack.append((u, left))
                    u, left = s, iter(src)
                    break
                done[s] = None
            else:
                done[u] = None
                if not stack:
                    break
                u, left = stack.pop()
    return done


def consumers(order: Iterable[UOp]) -> dict[UOp, list[UOp]]:
    """Node -> the nodes of the order that have it as a source, once each."""
    result: dict[UOp, list[UOp]] = {}
    for u in order:
        result.setdefault(u, [])
        for s in dict.fromkeys(u.src):
            result.setdefault(s, []).append(u)
    return result


def substitute(
    root: UOp, changes: dict[UOp, UOp], enter: Callable[[UOp], bool] | None = None
) -> UOp:
    """`root` with nodes replaced; nodes below a replaced node are not visited."""
    return substitute_all([root], changes, enter)[0]


def substitute_all(
    roots: Iterable[UOp], changes: dict[UOp, UOp], enter: Callable[[UOp], bool] | None = None
) -> list[UOp]:
    """`substitute` on several roots, sharing the work."""
    roots = list(roots)
    new = dict(changes)
    stack = [*roots]
    while stack:
        u = stack[-1]
        if u in new:
            stack.pop()
            continue
        src = u.src
        if not src or (enter is not None and not enter(u)):
            new[u] = u
            stack.pop()
            continue
        changed = False
        for s in src:
            found = new.get(s)
            if found is None:
                stack.append(s)
            elif found is not s:
                changed = True
        if stack[-1] is u:
            if changed:
                new[u] = new_node(u.op, u.dtype, tuple(map(new.__getitem__, src)), u.arg, u.tag)
            else:
                new[u] = u
            stack.pop()
    return [new[root] for root in roots]


def without_names(root: UOp) -> UOp:
    """`root` without NAME nodes."""
    order = toposort(root)
    if not any([u.op is Ops.NAME for u in order]):
        return root
    new: dict[UOp, UOp] = {}
    for u in order:
        if u.op is Ops.NAME:
            new[u] = new[u.src[0]]
        elif any([new[s] is not s for s in u.src]):
            new[u] = new_node(u.op, u.dtype, tuple([new[s] for s in u.src]), u.arg, u.tag)
        else:
            new[u] = u
    return new[root]


def substitute_ordered(
    roots: Iterable[UOp], changes: dict[UOp, UOp], order: Iterable[UOp]
) -> list[UOp]:
    """`substitute_all` with a known order of the nodes below the roots."""
    new = dict(changes)
    for u in order:
        if u in new:
            continue
        new[u] = u
        for s in u.src:
            if new[s] is not s:
                new[u] = new_node(u.op, u.dtype, tuple(map(new.__getitem__, u.src)), u.arg, u.tag)
                break
    return [new[root] for root in roots]


def rebuilt(
    root: UOp,
    ops: Container[Ops],
    change: Callable[[UOp, UOp], UOp],
    order: Iterable[UOp] | None = None,
) -> UOp:
    """`root` with each node of these ops replaced, sources first.

    `change` receives the old node, and the node over its new sources. `order` is the topological
    order of the graph, if it is known.
    """
    # Replaced node -> its replacement.
    new: dict[UOp, UOp] = {}
    for u in toposort(root) if order is None else order:
        op = u.op
        if not new and op not in ops:
            continue
        fresh = u
        for s in u.src if new else ():
            if s in new:
                fresh = new_node(op, u.dtype, tuple([new.get(s, s) for s in u.src]), u.arg, u.tag)
                break
        if op in ops:
            fresh = change(u, fresh)
        if fresh is not u:
            new[u] = fresh
    return new.get(root, root)


def reaches(root: UOp, wanted: Callable[[UOp], bool]) -> bool:
    """Whether `wanted` holds for some node at or below the root."""
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


def holds(root: UOp, ops: Container[Ops]) -> bool:
    """Whether some node at or below the root has one of these ops."""
    if root.op in ops:
        return True
    seen = {root}
    stack = [root]
    while stack:
        for s in stack.pop().src:
            if s not in seen:
                if s.op in ops:
                    return True
                seen.add(s)
                if s.src:
                    stack.append(s)
    return False


def holds_known(root: UOp, ops: Container[Ops], known: dict[UOp, bool]) -> bool:
    """`holds` for one of many roots; `known` caches results."""
    if root in known:
        return known[root]
    path = [(root, iter((root,)))]
    while path:
        u, left = path[-1]
        for s in left:
            found = known.get(s)
            if found is None:
                if s.op in ops:
                    found = known[s] = True
                elif s.src:
                    path.append((s, iter(s.src)))
                    break
            if found:
                known.update([(v, True) for v, _ in path])
                return True
        else:
            known[u] = False
            path.pop()
    return False


def simplify(u: UOp) -> UOp:
    """`uop.rules.symbolic.simplify`, which is in a higher layer."""
    return symbolic.simplify(u)


ABOVE["simplify"] = simplify
ABOVE["substitute"] = substitute
ABOVE["toposort"] = toposort
ABOVE["consumers"] = consumers
