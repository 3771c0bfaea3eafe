"""Prints a recorded run in a terminal: lists, one kernel, two runs compared.

Receives data of runs; returns lines of text. What a program has named is shown with its control
characters escaped, so that it says nothing to the terminal.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from aster_ml.errors import ArgumentError
from aster_ml.viz.compare import compared, microseconds
from aster_ml.viz.graph_text import graph_lines

Data = dict[str, Any]
# What `show` prints of a kernel.
VIEWS = ("passes", "why", "graph", "linear", "source", "asm", "accesses")


def plain(text: str) -> str:
    """Text without characters that steer a terminal."""
    return "".join([c if c.isprintable() else f"\\x{ord(c):02x}" for c in text])


def time_text(us: float | None) -> str:
    """Microseconds, or that it never ran."""
    return f"{us:10.1f} us" if us is not None else "   not run   "


def line_of(data: Data, realize: Data) -> str:
    """Where a request stands in the program."""
    if not realize["stack"]:
        return "?"
    file, line, function, _ = data["frames"][realize["stack"][0]]
    return plain(f"{data['files'][file]['path']}:{line} in {function}")


def listed(data: Data) -> Iterator[str]:
    """The whole run: requests, their steps, kernels with times."""
    made = data["made"]
    yield plain(f"{made['script'] or 'a run'}, {made['at']}, {made['seconds']:.2f} s")
    if made["error"]:
        yield plain(f"it ended with: {made['error']}")
    for number, r in enumerate(data["realizes"]):
        times = f", {r['times']} times" if r["times"] > 1 else ""
        yield f"realize {number}: {line_of(data, r)}{times}"
        for i, step in enumerate(data["schedules"][r["schedule"]]["steps"]):
            kernel = step.get("kernel", -1)
            if kernel < 0:
                yield f"  {i:3d} {step['kind']} {step['bytes']:,} bytes on {step['device']}"
                continue
            name = data["kernels"][kernel]["name"]
            yield (
                f"  {i:3d} kernel {kernel:3d} {plain(name):34s} {step['device']:8s} "
                f"{time_text(microseconds(data, kernel))}"
            )
    if not data["kernels"]:
        yield "no kernel was compiled"
    for what, count in data["dropped"].items():
        if count:
            yield f"{count:,} {what} are not in it"
    yield from map(plain, data["failures"])


def kernel_of(data: Data, wanted: str) -> Data:
    """A kernel by number or name. Raises: ArgumentError where there is none."""
    kernels: list[Data] = data["kernels"]
    if wanted.isdigit() and int(wanted) < len(kernels):
        return kernels[int(wanted)]
    found = [k for k in kernels if wanted in (k["name"], *k["names"])]
    if not found:
        raise ArgumentError(
            f"no kernel is called {wanted!r}; there are {len(kernels)}, numbered from 0 "
            "(aster viz ls FILE)"
        )
    return found[0]


def pass_lines(data: Data, part: Data) -> Iterator[str]:
    """Each pass that changed something, and each rewrite in it."""
    for entry in part["passes"]:
        name = f"opt {entry['opt']}" if "opt" in entry else f"pass {entry['name']}"
        yield f"{name}  ({entry['us']:.1f} us)"
        for rule, before, after in entry.get("fired", ()):
            said = data["rules"][rule].get("rewrite", "")
            yield f"   {rule}: {said}"
            yield f"      {graph_lines(data, before)[-1]}"
            yield f"   -> {graph_lines(data, after)[-1]}"


def shown(data: Data, kernel: Data, view: str) -> Iterator[str]:
    """One view of a kernel."""
    if view == "source":
        yield from kernel["source"]
        return
    if view == "asm":
        yield from kernel["asm"] or [kernel["no_asm"]]
        return
    for part in kernel["parts"]:
        if view == "passes":
            yield from pass_lines(data, part)
        elif view == "why":
            yield from part["why"]
        elif view == "graph":
            yield from graph_lines(data, part["ast"])
        elif view == "linear":
            yield from part["linear"]["lines"]
        else:
            for row in part["accesses"]["rows"]:
                where = f"slot {row['slot']}" if row["slot"] >= 0 else "scratch"
                yield f"{row['place']:4d} {row['op']:5s} {where}: {row['verdict']}"


def kernel_lines(data: Data, kernel: Data, views: list[str]) -> Iterator[str]:
    """Some views of a kernel, one after the other."""
    yield f"kernel {plain(kernel['name'])} on {kernel['device']}"
    for view in views:
        yield f"--- {view}"
        yield from map(plain, shown(data, kernel, view))


def difference_lines(a: Data, b: Data) -> Iterator[str]:
    """Two runs, what changed first."""
    rows = compared(a, b)
    changed = sum([row["state"] != "same" for row in rows])
    yield f"{changed} of {len(rows)} kernels differ"
    for row in rows:
        what = f" ({', '.join(row['what'])})" if row["what"] else ""
        yield (
            f"{row['state']:11s} {plain(row['name']):34s} {time_text(row['us_before'])} -> "
            f"{time_text(row['us_after'])}{what}"
        )
