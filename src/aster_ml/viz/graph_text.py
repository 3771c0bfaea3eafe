"""Graphs of a recorded run as text, in the form of `uop/print/text`.

Receives the data of a run and the number of a root; returns the lines that `to_text` would have
written of the graph while it was there.
"""

from __future__ import annotations

from typing import Any

Data = dict[str, Any]


def order_below(data: Data, root: int) -> list[int]:
    """The nodes below a root and it, sources first, as `toposort` lists them."""
    src = data["nodes"]["src"]
    done: dict[int, None] = {}
    stack = [(root, iter(src[root]))]
    while stack:
        u, left = stack[-1]
        for s in left:
            if s not in done:
                stack.append((s, iter(src[s])))
                break
        else:
            done[u] = None
            stack.pop()
    return [*done]


def graph_lines(data: Data, root: int) -> list[str]:
    """One line a node."""
    nodes = data["nodes"]
    numbers: dict[int, int] = {}
    lines = []
    for u in order_below(data, root):
        numbers[u] = len(numbers)
        words = [f"%{numbers[u]} =", nodes["ops"][nodes["op"][u]]]
        words.append(nodes["dtypes"][nodes["dtype"][u]])
        if nodes["src"][u]:
            words.append(f"({', '.join([f'%{numbers[s]}' for s in nodes['src'][u]])})")
        arg = nodes["args"][nodes["arg"][u]]
        if arg:
            words.append(arg)
        note = nodes["note"].get(u, nodes["note"].get(str(u)))
        if note:
            words.append(f" # {note}")
        lines.append(" ".join(words))
    return lines


def steps_of(data: Data, start: int, passes: list[dict[str, Any]]) -> list[tuple[str, list[str]]]:
    """Lists the stages to step through: the graph at the beginning, each rewrite, each pass.

    Each with its name and the lines of what there is after it.
    """
    found = [("as it begins", graph_lines(data, start))]
    for entry in passes:
        for rule, _, after in entry.get("fired", ()):
            found.append((rule, graph_lines(data, after)))
        if "root" in entry:
            found.append((entry.get("opt", entry["name"]), graph_lines(data, entry["root"])))
        elif "linear" in entry:
            found.append((entry["name"], entry["linear"]["lines"]))
    return found
