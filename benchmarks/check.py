"""Has a ratio fallen? Compares a run with the committed one, against the peers that both have.

A machine that is busy for a moment must not fail a build: what looks fallen is measured again, and
fails when it looks so every time, by the best samples and by the medians.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from benchmarks.results import Data, ratio_among

# Of the committed ratio, what is left at least; and how often a row is measured in all.
LEAST_LEFT, ATTEMPTS = 0.5, 3


def choose(kind: Mapping[str, str], several: Sequence[Data]) -> Data:
    """The results of a machine of this kind, else of one that differs in its last cache alone.

    Else the first. How much of a last cache a virtual machine is told of differs from host to host.
    """
    for wanted in (kind, without_last_cache(kind)):
        for d in several:
            found = d.get("machine", {})
            if wanted.items() <= (found if wanted is kind else without_last_cache(found)).items():
                return d
    return several[0]


def without_last_cache(kind: Mapping[str, Any]) -> dict[str, Any]:
    """What is told of a machine, but for the size of its last cache."""
    return {**kind, "caches": str(kind.get("caches", "")).rpartition(", ")[0]}


class Fall(NamedTuple):
    """A row whose ratio is less than half of what it was."""

    name: str
    threads: int
    before: float
    now: float

    def __str__(self) -> str:
        return (
            f"{self.name}, threads {self.threads}: {self.now:.2f} times the best peer, "
            f"committed {self.before:.2f}"
        )


def peers_of(row: Data) -> list[str]:
    """Libraries other than ours that have figures in a row."""
    return [n for n, f in row["libraries"].items() if n != "aster" and f.get("median")]


def fall_of(before: Data, now: Data) -> Fall | None:
    """How far a row has fallen, if it has by more than half."""
    both = [n for n in peers_of(before) if n in peers_of(now)]
    pairs = []
    for key in ("best", "median"):
        old, new = ratio_among(before, both, key), ratio_among(now, both, key)
        if old is None or new is None:
            return None
        pairs.append((old, new))
    if any(new >= old * LEAST_LEFT for old, new in pairs):
        return None
    return Fall(now["name"], now["threads"], *pairs[1])


def compare(committed: Data, rows: Sequence[Data]) -> tuple[list[Fall], int]:
    """The rows that have fallen, and how many could be compared at all."""
    table = {(r["name"], r["threads"]): r for r in committed["rows"]}
    falls, compared = [], 0
    for now in rows:
        before = table.get((now["name"], now["threads"]))
        if before is None or not set(peers_of(before)) & set(peers_of(now)):
            continue
        compared += ratio_among(before, peers_of(now), "median") is not None
        fall = fall_of(before, now)
        if fall is not None:
            falls.append(fall)
    return falls, compared


def failed_rows(rows: Iterable[Data]) -> list[str]:
    """Rows in which Aster itself failed."""
    return [
        f"{r['name']}: {r['libraries']['aster']['error']}"
        for r in rows
        if "error" in r["libraries"].get("aster", {})
    ]
