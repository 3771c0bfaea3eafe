"""Prints nodes as Python: what `print(node)` shows, an expression that evaluates to the node.

Receives nodes (anything with op, dtype, src, arg and tag); returns text. A node with several uses
is named at the first, so that the text grows with the number of nodes, not of paths.
"""

from __future__ import annotations

from typing import Any

from aster_ml.dtype import dtypes


def plain(arg: Any) -> Any:
    """An argument as plain tuples, without field names."""
    return tuple([plain(a) for a in arg]) if isinstance(arg, tuple) else arg


def python_text(root: Any) -> str:
    """`UOp(Ops.ADD, dtypes.float32, arg=None, src=(...))`, one node a line, shared ones named."""
    uses: dict[Any, int] = {root: 1}
    stack = [root]
    while stack:
        for s in stack.pop().src:
            uses[s] = uses.get(s, 0) + 1
            if uses[s] == 1:
                stack.append(s)
    names: dict[Any, str] = {}
    lines: list[str] = []
    # A node to open at a depth, or the text that closes one.
    work: list[tuple[Any, int]] = [(root, 0)]
    while work:
        u, depth = work.pop()
        if isinstance(u, str):
            lines[-1] += u
            continue
        indent = "  " * depth
        if u in names:
            lines.append(f"{indent}{names[u]}")
            continue
        name = ""
        if uses[u] > 1:
            names[u] = f"x{len(names)}"
            name = f"{names[u]}:="
        dtype = "" if u.dtype is dtypes.void and not u.src and u.arg is None else f", {u.dtype!r}"
        tag = "" if u.tag is None else f" tag={u.tag!r},"
        line = f"{indent}{name}UOp({u.op!r}{dtype}, arg={plain(u.arg)!r},{tag} src=("
        lines.append(line)
        work.append(("))", depth))
        for s in reversed(u.src):
            work.append((",", depth))
            work.append((s, depth + 1))
    return "\n".join(lines)
