"""Links the parts of a recorded run: a line, its nodes, steps, list, source, assembly.

Receives the data of a run (as `viz/model` makes it, or as it reads back) and one place in it;
returns all places that it came from, and all that came of it. The page does the same
(`assets/links.js`), and a test holds the one to the other.

Places are texts: `line:FILE:LINE`, `node:N` of the tensor graph, `step:I`, `ast:PART:N`,
`lin:PART:I`, `src:LINE`, `asm:LINE`. The last four are those of the kernel of one step.
"""

from __future__ import annotations

from typing import Any, NamedTuple

Data = dict[str, Any]
HOPS = ("line", "node", "step", "ast", "lin", "src", "asm")


class View(NamedTuple):
    """Which request of a run is looked at, and which of its steps."""

    realize: int
    step: int


def lines_of(data: Data, call: int) -> set[str]:
    """The lines of the program around a call."""
    frames = [data["frames"][f] for f in data["calls"][call]["stack"]]
    return {f"line:{f[0]}:{f[1]}" for f in frames}


def table_of(data: Data, view: View) -> list[dict[str, set[str]]]:
    """For each hop but the last: a place -> what comes of it in the next hop."""
    realize = data["realizes"][view.realize]
    schedule = data["schedules"][realize["schedule"]]
    tables: list[dict[str, set[str]]] = [{} for _ in HOPS[1:]]

    def join(hop: int, before: str, after: str) -> None:
        tables[hop].setdefault(before, set()).add(after)

    for node, call in realize["calls"].items():
        for line in lines_of(data, call):
            join(0, line, f"node:{node}")
    for i, step in enumerate(schedule["steps"]):
        for p, origin in enumerate(step.get("from", ())):
            for ast, nodes in origin.items():
                for node in nodes:
                    join(1, f"node:{node}", f"step:{i}")
                if i == view.step:
                    join(2, f"step:{i}", f"ast:{p}:{ast}")
    if view.step >= len(schedule["steps"]):
        return tables
    kernel = schedule["steps"][view.step].get("kernel", -1)
    if kernel < 0:
        return tables
    record = data["kernels"][kernel]
    for p, part in enumerate(record["parts"]):
        for ast, places in part["lowered"].items():
            for place in places:
                join(3, f"ast:{p}:{ast}", f"lin:{p}:{place}")
    for number, found in enumerate(record["places"]):
        if found:
            join(4, f"lin:{found[0]}:{found[1]}", f"src:{number}")
    for number, source in enumerate(record["asm_lines"]):
        if source:
            join(5, f"src:{source - 1}", f"asm:{number}")
    return tables


def between(data: Data, view: View) -> dict[str, set[str]]:
    """Nodes of the tensor graph -> those of the step's kernel, and the reverse."""
    realize = data["realizes"][view.realize]
    steps = data["schedules"][realize["schedule"]]["steps"]
    found: dict[str, set[str]] = {}
    for p, origin in enumerate(steps[view.step].get("from", ()) if steps else ()):
        for ast, nodes in origin.items():
            for node in nodes:
                found.setdefault(f"node:{node}", set()).add(f"ast:{p}:{ast}")
                found.setdefault(f"ast:{p}:{ast}", set()).add(f"node:{node}")
    return found


def reverse(table: dict[str, set[str]]) -> dict[str, set[str]]:
    """A table read from right to left."""
    found: dict[str, set[str]] = {}
    for before, after in table.items():
        for place in after:
            found.setdefault(place, set()).add(before)
    return found


def follow(table: dict[str, set[str]], places: set[str]) -> set[str]:
    """Collects the entries of a table for any of these places."""
    return set().union(*[table.get(p, set()) for p in places]) if places else set()


def linked(data: Data, view: View, place: str) -> set[str]:
    """The place, what it came from, hop by hop to the left, and what came of it, to the right.

    From a node of the tensor graph to the right it goes to the steps that have it, and, in the
    step that is looked at, to the nodes of the kernel that are made of it.
    """
    tables, direct = table_of(data, view), between(data, view)
    hop = HOPS.index(place.partition(":")[0])
    found = {place}
    now = {place}
    for h in range(hop, len(tables)):
        if h == 1:
            found |= follow(tables[1], now)
            now = follow(direct, now)
        elif h == 2 and hop < 2:
            # From the tensor graph it went to the kernel's nodes at once.
            continue
        else:
            now = follow(tables[h], now)
        found |= now
    now = {place}
    for h in range(hop - 1, -1, -1):
        if h == 2:
            found |= follow(reverse(tables[2]), now)
            now = follow(direct, now)
        elif h == 1 and hop > 2:
            continue
        else:
            now = follow(reverse(tables[h]), now)
        found |= now
    return found
