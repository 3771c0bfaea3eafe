"""Figures of one library, results of one row, whether libraries agree; all of it as plain data.

What is printed, drawn and compared is made from the plain data, so that it can be made again from
benchmarks/results.json. Measures nothing.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.row import Row, is_less_better

Data = dict[str, Any]
# What the geometric mean and the worst case of a set have to be.
SET_MEAN, SET_WORST = 1.0, 0.6


@dataclass
class Figures:
    """What one library reached in one row, in the row's unit."""

    values: list[float] = field(default_factory=list)
    facts: dict[str, float] = field(default_factory=dict)
    error: str = ""
    less_is_better: bool = True

    @property
    def best(self) -> float:
        """The least time, the highest rate."""
        return min(self.values) if self.less_is_better else max(self.values)

    @property
    def median(self) -> float:
        """The middle one."""
        return statistics.median(self.values)


@dataclass
class Result:
    """One row of the table at one number of threads."""

    row: Row
    title: str
    threads: int
    figures: dict[str, Figures]
    # Of the row that bounds this one, measured in turn with it.
    ceiling: Figures | None = None

    @property
    def share(self) -> float | None:
        """The part of what bounds it that Aster reaches, by the medians."""
        ours, bound = self.figures.get("aster"), self.ceiling
        if ours is None or not ours.values or bound is None or not bound.values:
            return None
        return ours.median / bound.median

    def ratio(self, of: Callable[[Figures], float]) -> float | None:
        """How many times better Aster is than the best peer; None without one to compare."""
        ours = self.figures.get("aster")
        peers = [
            f
            for name, f in self.figures.items()
            if name != "aster" and name not in self.row.aside and f.values
        ]
        if ours is None or not ours.values or not peers or not self.row.compare:
            return None
        mine = of(ours)
        if self.row.less_is_better:
            theirs = min(of(f) for f in peers)
            return theirs / mine if mine else None
        return mine / max(of(f) for f in peers)

    @property
    def met(self) -> bool | None:
        """Whether the median is what is wanted; None where nothing is, or it cannot be told."""
        wanted, ours = self.row.wanted, self.figures.get("aster")
        if wanted is None:
            return None
        if ours is None or not ours.values:
            return False
        if wanted.of_ratio:
            ratio = self.ratio(lambda f: f.median)
            return None if ratio is None else ratio >= wanted.at(self.threads)
        if wanted.over_peer:
            ratio = self.ratio(lambda f: f.median)
            most = None if ratio is None else ours.median * ratio + wanted.at(self.threads)
            return None if most is None else ours.median <= most
        if self.row.less_is_better:
            return ours.median <= wanted.at(self.threads)
        return ours.median >= wanted.at(self.threads)


def compare_checks(
    checks: dict[str, list[float]], errors: dict[str, str], tolerance: float
) -> None:
    """A library whose numbers are not Aster's gets an error instead of a time.

    Where its peers agree with each other, and none with Aster, it is Aster that gets it.
    """
    if "aster" not in checks:
        return
    ours = checks["aster"]
    peers = [name for name in checks if name != "aster"]
    against = [name for name in peers if not agree(ours, checks[name], tolerance)]
    if against and against == peers:
        first = checks[peers[0]]
        if all(agree(first, checks[name], tolerance) for name in peers):
            errors["aster"] = f"the result differs: {shown(ours)}, {peers[0]} {shown(first)}"
            return
    for name in against:
        errors[name] = f"the result differs: {shown(checks[name])}, aster {shown(ours)}"


def agree(a: list[float], b: list[float], tolerance: float) -> bool:
    """Whether two lists of numbers are the same up to rounding."""
    return len(a) == len(b) and all(
        abs(x - y) <= tolerance * max(abs(x), abs(y)) + 1e-9 for x, y in zip(a, b, strict=True)
    )


def shown(numbers: list[float]) -> str:
    """Numbers for a message."""
    return "[" + ", ".join(f"{v:.6g}" for v in numbers) + "]"


def rounded(value: float | None) -> float | None:
    """As many digits as anybody can repeat."""
    return None if value is None else float(f"{value:.4g}")


def plain_figures(f: Figures) -> Data:
    """One library's figures in a row."""
    if f.error:
        return {"error": f.error}
    figures: Data = {
        "best": rounded(f.best),
        "median": rounded(f.median),
        "samples": len(f.values),
    }
    return {**figures, "facts": f.facts} if f.facts else figures


def plain_row(r: Result) -> Data:
    """A result as plain data."""
    wanted = r.row.wanted
    row: Data = {
        "name": r.title,
        "subject": r.row.subject,
        "threads": r.threads,
        "unit": r.row.unit,
        "libraries": {n: plain_figures(f) for n, f in r.figures.items() if f.error or f.values},
        "ratio_best": rounded(r.ratio(lambda f: f.best)),
        "ratio_median": rounded(r.ratio(lambda f: f.median)),
        "met": r.met,
        "wanted": wanted.text(r.row.less_is_better, r.threads) if wanted else None,
    }
    if r.row.drawn:
        row["drawn"] = r.row.drawn
    if r.row.ceiling is not None and r.ceiling is not None:
        row["ceiling"] = {"name": r.row.ceiling.name, **plain_figures(r.ceiling)}
        row["share"] = rounded(r.share)
    return row


def set_summaries(rows: Sequence[Data]) -> list[Data]:
    """Geometric mean and worst case of each set at each number of threads, by the medians."""
    groups: dict[tuple[str, int], list[Data]] = {}
    for row in rows:
        if row.get("drawn"):
            groups.setdefault((row["drawn"], row["threads"]), []).append(row)
    found = []
    for (name, threads), cases in groups.items():
        failed = [r["name"] for r in cases if "error" in r["libraries"].get("aster", {})]
        summary: Data = {"set": name, "threads": threads, "cases": len(cases), "failed": failed}
        known = sorted((r["ratio_median"], r["name"]) for r in cases if r["ratio_median"])
        if known:
            mean = math.exp(sum(math.log(ratio) for ratio, _ in known) / len(known))
            best = math.exp(
                sum(math.log(r["ratio_best"]) for r in cases if r["ratio_best"]) / len(known)
            )
            worst, case = known[0]
            summary.update(
                compared=len(known),
                mean=rounded(mean),
                mean_best=rounded(best),
                worst=worst,
                worst_case=case,
                below=sum(ratio < SET_WORST for ratio, _ in known),
                met=mean >= SET_MEAN and worst >= SET_WORST and not failed,
            )
        found.append(summary)
    return found


def plain_data(results: Sequence[Result], about: Data) -> Data:
    """Everything that a run found out."""
    rows = [plain_row(r) for r in results]
    return {**about, "sets": set_summaries(rows), "rows": rows}


def put_into(old: Data, new: Data) -> Data:
    """An earlier run with the rows of a later one in their places, or behind all others.

    `again` names these. Those of a machine of another kind say which, in `machine`.
    """
    where = machine_of(new)
    mark = {} if where == machine_of(old) else {"machine": where}
    fresh = {(r["name"], r["threads"]): {**r, **mark} for r in new["rows"]}
    rows = [fresh.pop((r["name"], r["threads"]), r) for r in old["rows"]]
    rows += fresh.values()
    again = sorted({*old.get("again", []), *(r["name"] for r in new["rows"])})
    about = {
        "again": again,
        # Of libraries that are measured for the first time; others keep what most rows are of.
        "versions": {**new.get("versions", {}), **old.get("versions", {})},
        "left_out": {n: why for n, why in old.get("left_out", {}).items()
                     if n not in new.get("versions", {})},
    }  # fmt: skip
    return {**old, **about, "sets": set_summaries(rows), "rows": rows}


def machine_of(data: Data) -> str:
    """The kind of machine that a run was on, in words."""
    machine = data.get("machine", {})
    parts = (machine.get("processor"), machine.get("vectors"), machine.get("caches"))
    return ", ".join([part for part in parts if part])


def ratio_among(row: Data, names: Sequence[str], key: str) -> float | None:
    """The ratio to the best of some peers alone; None where it cannot be told."""
    found = {n: f[key] for n, f in row["libraries"].items() if f.get(key)}
    peers = [found[n] for n in names if n in found and n != "aster"]
    if row["ratio_median"] is None or "aster" not in found or not peers:
        return None
    if is_less_better(row["unit"]):
        return float(min(peers) / found["aster"])
    return float(found["aster"] / max(peers))


def to_json(data: Data) -> str:
    """One line a row, so that a change of a figure is a change of its line."""
    head = {k: v for k, v in data.items() if k not in ("sets", "rows")}
    parts = [json.dumps(head, indent=1)[:-2]]
    for key in ("sets", "rows"):
        lines = ",\n".join("  " + json.dumps(item) for item in data.get(key, []))
        parts.append(f' "{key}": [\n{lines}\n ]')
    return ",\n".join(parts) + "\n}\n"
