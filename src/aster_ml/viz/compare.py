"""Compares two recorded runs: which kernels changed, and how.

Receives the data of two runs; returns rows, those that changed first.
"""

from __future__ import annotations

import difflib
from typing import Any

Data = dict[str, Any]
ORDER = {"changed": 0, "only before": 1, "only after": 2, "same": 3}


def microseconds(data: Data, kernel: int) -> float | None:
    """The least time that a kernel took; None where it did not run."""
    times = [e[5] for e in data["events"] if e[0] == "kernel" and e[6] == kernel]
    return min(times) if times else None


def opts_of(kernel: Data) -> list[list[str]]:
    """The Opts of each part."""
    return [part["opts"] for part in kernel["parts"]]


def differences(a: Data, b: Data) -> list[str]:
    """In what two kernels differ."""
    found = []
    if a["digest"] != b["digest"]:
        found.append("graph")
    if opts_of(a) != opts_of(b):
        found.append("Opts")
    if a["source"] != b["source"]:
        found.append("source")
    if a["asm"] != b["asm"]:
        found.append("assembly")
    return found


def pairs_of(a: Data, b: Data) -> list[tuple[int | None, int | None]]:
    """Kernels that correspond: those of one graph; else those that stand in the same place."""
    first = [k["digest"] for k in a["kernels"]]
    second = [k["digest"] for k in b["kernels"]]
    pairs: list[tuple[int | None, int | None]] = []
    matcher = difflib.SequenceMatcher(None, first, second, autojunk=False)
    for kind, i0, i1, j0, j1 in matcher.get_opcodes():
        left, right = [*range(i0, i1)], [*range(j0, j1)]
        count = len(left) if kind == "equal" else min(len(left), len(right))
        pairs += zip(left[:count], right[:count], strict=True)
        pairs += [(i, None) for i in left[count:]]
        pairs += [(None, j) for j in right[count:]]
    return pairs


def compared(a: Data, b: Data) -> list[dict[str, Any]]:
    """A row for each pair of kernels; what changed comes first, by how much its time did."""
    rows = []
    for i, j in pairs_of(a, b):
        row: dict[str, Any] = {"before": i, "after": j, "what": []}
        row["us_before"] = None if i is None else microseconds(a, i)
        row["us_after"] = None if j is None else microseconds(b, j)
        if i is None or j is None:
            row["state"] = "only after" if i is None else "only before"
        else:
            row["what"] = differences(a["kernels"][i], b["kernels"][j])
            row["state"] = "changed" if row["what"] else "same"
        known = a["kernels"][i] if i is not None else b["kernels"][j or 0]
        row["name"] = known["name"]
        rows.append(row)

    def change(row: dict[str, Any]) -> float:
        return -abs(float(row["us_after"] or 0.0) - float(row["us_before"] or 0.0))

    return sorted(rows, key=lambda row: (ORDER[row["state"]], change(row)))
