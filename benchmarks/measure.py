"""Runs rows: the libraries take turns, and every row ends with samples of each or with a reason."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from benchmarks import start
from benchmarks.machine import cores
from benchmarks.peers import Peer, PeerError, make_environment
from benchmarks.results import Figures, Result, compare_checks
from benchmarks.row import COUNTS, MEASURED, Row

# Who runs the row that bounds another: Aster, in a second process.
CEILING = "ceiling"
# Libraries that keep compiled code on disk; for the others a second process is like the first.
DISK_CACHED = frozenset({"aster", "before", "tinygrad", "compile"})
# About how long a group takes in full, in seconds, so that a run knows whether it is late.
EXPECTED_S = {"timed": 12.0, "fresh": 60.0, "process": 15.0, "once": 30.0, "turns": 60.0}
EXPECTED_DRAWN_S = 1.5
# Between turns, so that the next library finds a machine at rest (see also `Peer`).
PAUSE_S = 0.02
# How many times as long torch.compile may take to answer: it starts a C++ compiler for each kernel.
COMPILE_PATIENCE = 4
# A fresh process that takes longer, or a first call, is not asked for again.
ONCE_ENOUGH_S, FRESH_ENOUGH_S = 30.0, 4.0
# The part of the time that is left by which a run may be late before it takes fewer rounds.
LEEWAY = 0.08


@dataclass(frozen=True)
class Form:
    """How long a run takes: turns of each library, and seconds of each turn.

    Many short turns are better than a few long ones: what else a machine does comes and goes within
    seconds, and should meet all libraries alike.

    `drawn_s` and `drawn_rounds` are those of a case of a random set. Where a run is behind
    `limit_s`, spread over all there is to do, groups have as many rounds less as that takes, at
    least `fewest`: a slow machine measures less, not longer.
    A library that takes longer than `slow_s` for a call has `fewest` rounds, too.
    """

    name: str
    rounds: int
    fresh_rounds: int
    budget_s: float
    smallest_s: float
    timeout_s: float
    drawn_rounds: int
    drawn_s: float
    limit_s: float
    fewest: int
    slow_s: float = 1.0


FULL = Form(
    "full", rounds=10, fresh_rounds=3, budget_s=0.125, smallest_s=0.01, timeout_s=150,
    drawn_rounds=5, drawn_s=0.02, limit_s=3500, fewest=2,
)  # fmt: skip
QUICK = Form(
    "quick", rounds=2, fresh_rounds=1, budget_s=0.02, smallest_s=0.001, timeout_s=60,
    drawn_rounds=2, drawn_s=0.01, limit_s=150, fewest=1,
)  # fmt: skip


@dataclass(frozen=True)
class Group:
    """Rows whose figures come out of the same measurement."""

    rows: tuple[Row, ...]
    threads: int

    @property
    def expected_s(self) -> float:
        """About how long it takes in the full form."""
        row = self.rows[0]
        return EXPECTED_DRAWN_S if row.drawn else EXPECTED_S[row.how]


def group_rows(rows: Iterable[Row], threads: list[int] | None, quick: bool) -> Iterator[Group]:
    """Rows of the same case, sizes and way of measuring, for each number of threads."""
    table: dict[Any, list[Row]] = {}
    for row in rows:
        both = row.one_thread_too and not (quick and row.drawn)
        counts = threads or ([1, cores()] if both else [cores()])
        if row.unit in COUNTS or row.unit in MEASURED:
            counts = [max(counts)]
        key = (row.case, str(row.params_for(quick)), row.how, tuple(sorted(set(counts))))
        table.setdefault(key, []).append(row)
    for (_, _, _, counts), found in table.items():
        for count in counts:
            yield Group(tuple(found), count)


class Session(AbstractContextManager["Session"]):
    """The processes of a run, started where they are first needed."""

    def __init__(self, pythons: dict[str, str], form: Form, folder: Path) -> None:
        self.pythons = pythons
        self.form = form
        self.folder = folder
        self.peers: dict[tuple[str, int], Peer] = {}
        self.versions: dict[str, str] = {}
        self.left_out: dict[str, str] = {}
        self.folders = 0
        self.began = time.monotonic()
        # The part of all that is done, by the time that it was expected to take.
        self.done = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for peer in self.peers.values():
            peer.close()

    def fresh_folder(self) -> Path:
        """A folder that is empty."""
        self.folders += 1
        path = self.folder / f"cache-{self.folders}"
        path.mkdir()
        return path

    def start(self, library: str, threads: int, cache: Path) -> Peer:
        """A new process."""
        name = "aster" if library == CEILING else library
        patience = COMPILE_PATIENCE if name == "compile" else 1
        return Peer(name, self.pythons[name], threads, cache, patience * self.form.timeout_s)

    def peer(self, library: str, threads: int) -> Peer:
        """The living process of a library."""
        found = self.peers.get((library, threads))
        if found is None or not found.alive:
            if found is not None:
                found.close()
            found = self.peers[library, threads] = self.start(library, threads, self.fresh_folder())
        return found

    def look_around(self) -> None:
        """Finds out which libraries there are."""
        for library in list(self.pythons):
            try:
                peer = self.peer(library, cores())
            except (PeerError, OSError) as error:
                self.left_out[library] = str(error)
                del self.pythons[library]
            else:
                self.versions[library] = peer.version

    def rounds(self, usual: int) -> int:
        """As many as usual, or fewer when the run is behind its time."""
        left = self.form.limit_s - (time.monotonic() - self.began)
        # What is still to do, by the time that it was expected to take.
        wanted = self.form.limit_s * max(1 - self.done, 1e-3)
        part = min(left / wanted + LEEWAY, 1.0)
        return min(usual, max(self.form.fewest, int(usual * part)))

    def rounds_of(self, row: Row, usual: int) -> int:
        """As many turns as the form has, or as few as the row wants."""
        return min(self.rounds(usual), row.most_rounds)

    def libraries(self, row: Row) -> list[str]:
        """Those that take part in a row, Aster first."""
        taking = {"aster", "before", *row.libraries}
        return [name for name in self.pythons if name in taking]

    def libraries_of(self, group: Group) -> list[str]:
        """Those that take part in any row of a group."""
        taking = {name for row in group.rows for name in self.libraries(row)}
        return [name for name in self.pythons if name in taking]

    def turns(self, row: Row) -> dict[str, Row]:
        """Whose turn is when, and what they run: that which bounds a row comes next to ours."""
        found = {}
        for name in self.libraries(row):
            found[name] = row
            if name == "aster" and row.ceiling is not None:
                found[CEILING] = row.ceiling
        return found

    def run(self, group: Group) -> list[Result]:
        """All rows of a group."""
        row = group.rows[0]
        take = {
            "timed": self.timed,
            "turns": self.in_turns,
            "once": self.once,
            "fresh": self.fresh,
            "process": self.process,
        }[row.how]
        raw: dict[str, dict[str, list[float]]] = {}
        facts: dict[str, dict[str, float]] = {}
        errors: dict[str, str] = {}
        take(group, raw, facts, errors)
        return [
            Result(
                r,
                r.title(self.form is QUICK),
                group.threads,
                {
                    name: self.figures(
                        r, raw.get(name, {}), facts.get(name, {}), errors.get(name, "")
                    )
                    for name in self.libraries(r)
                },
                r.ceiling
                and self.figures(r.ceiling, raw.get(CEILING, {}), {}, errors.get(CEILING, "")),
            )
            for r in group.rows
        ]

    def figures(
        self, row: Row, raw: dict[str, list[float]], facts: dict[str, float], error: str
    ) -> Figures:
        """One library's samples in the unit of a row."""
        values = [] if error else [row.value(v) for v in raw.get(row.key, [])]
        return Figures(values, facts, error, row.less_is_better)

    def timed(self, group: Group, raw: Any, facts: Any, errors: Any) -> None:
        """Living processes in turn."""
        row = group.rows[0]
        checks: dict[str, list[float]] = {}
        for name, runs in self.turns(row).items():
            try:
                peer = self.peer(name, group.threads)
                peer.ask("open", case=runs.case, params=runs.params_for(self.form is QUICK))
                answer = peer.ask("check")
                checks[name], facts[name] = answer["check"], answer["facts"]
                raw[name] = {row.key: []}
            except PeerError as error:
                errors[name] = str(error)
        compare_checks({n: c for n, c in checks.items() if n != CEILING}, errors, row.tolerance)
        usual = self.form.drawn_rounds if row.drawn else self.form.rounds
        for number in range(self.rounds(usual)):
            # Who comes after whom makes a difference of 2 or 3% where memory is the limit.
            for name in list(checks) if number % 2 == 0 else reversed(checks):
                samples = raw[name][row.key]
                slow = number >= self.form.fewest and min(samples, default=0) > self.form.slow_s
                if name not in errors and not slow:
                    self.take_turn(name, group.threads, samples, errors, row)
        self.close_cases(checks, group.threads, errors)

    def close_cases(self, names: Iterable[str], threads: int, errors: dict[str, str]) -> None:
        """Lets living processes forget what was open."""
        for name in names:
            peer = self.peers.get((name, threads))
            if peer is not None and peer.alive:
                try:
                    peer.ask("close")
                except PeerError as error:
                    # It is killed by then, and begins anew with the next row.
                    errors[name] = str(error)

    def take_turn(
        self, name: str, threads: int, samples: list[float], errors: dict[str, str], row: Row
    ) -> None:
        """One turn of one library."""
        time.sleep(PAUSE_S)
        budget = self.form.drawn_s if row.drawn else self.form.budget_s
        smallest = min(self.form.smallest_s, budget / 5)
        try:
            samples += self.peers[name, threads].ask("time", budget_s=budget, smallest_s=smallest)[
                "samples"
            ]
        except PeerError as error:
            errors[name] = str(error)

    def in_turns(self, group: Group, raw: Any, facts: Any, errors: Any) -> None:
        """Named figures of cases that stay open in living processes, the libraries in turn."""
        row = group.rows[0]
        names = self.libraries_of(group)
        for name in names:
            try:
                peer = self.peer(name, group.threads)
                peer.ask("open", case=row.case, params=row.params_for(self.form is QUICK))
            except PeerError as error:
                errors[name] = str(error)
        for _ in range(self.rounds_of(row, self.form.rounds)):
            for name in names:
                if name not in errors:
                    try:
                        values = self.peers[name, group.threads].ask("turn")["values"]
                    except PeerError as error:
                        errors[name] = str(error)
                        continue
                    for key, value in values.items():
                        raw.setdefault(name, {}).setdefault(key, []).append(value)
        self.close_cases(names, group.threads, errors)

    def once(self, group: Group, raw: Any, facts: Any, errors: Any) -> None:
        """Named figures, each time of a new process with an empty disk cache."""
        row = group.rows[0]
        params = row.params_for(self.form is QUICK)
        counts_only = all(r.unit in COUNTS for r in group.rows)
        slow: set[str] = set()
        for _ in range(1 if counts_only else self.rounds_of(row, self.form.rounds)):
            for name in self.libraries_of(group):
                if name in errors or name in slow:
                    continue
                begin = time.monotonic()
                try:
                    with self.start(name, group.threads, self.fresh_folder()) as peer:
                        values = peer.ask("values", case=row.case, params=params)["values"]
                except PeerError as error:
                    errors[name] = str(error)
                    continue
                if time.monotonic() - begin > ONCE_ENOUGH_S:
                    slow.add(name)
                for key, value in values.items():
                    raw.setdefault(name, {}).setdefault(key, []).append(value)

    def fresh(self, group: Group, raw: Any, facts: Any, errors: Any) -> None:
        """The first call in new processes: with an empty disk cache, then with the same again."""
        row = group.rows[0]
        params = row.params_for(self.form is QUICK)

        def first(name: str, cache: Path) -> float:
            with self.start(name, group.threads, cache) as peer:
                peer.ask("open", case=row.case, params=params)
                return float(peer.ask("first")["seconds"])

        self.cold_and_warm(group, first, raw, errors)

    def process(self, group: Group, raw: Any, facts: Any, errors: Any) -> None:
        """Whole processes. `look_around` has let Python write its own caches of every library."""

        def whole(name: str, cache: Path) -> float:
            environment = make_environment(name, group.threads, cache)
            return start.run_program(
                name, self.pythons[name], environment, cache, self.form.timeout_s
            )

        self.cold_and_warm(group, whole, raw, errors)

    def cold_and_warm(
        self,
        group: Group,
        measure: Callable[[str, Path], float],
        raw: Any,
        errors: dict[str, str],
    ) -> None:
        """Samples under the keys "cold" and "warm", the libraries in turn."""
        keys = {r.key for r in group.rows}
        for _ in range(self.rounds(self.form.fresh_rounds)):
            for name in self.libraries(group.rows[0]):
                samples = raw.setdefault(name, {"cold": [], "warm": []})
                if name in errors or min(samples["cold"], default=0) > FRESH_ENOUGH_S:
                    continue
                cache = self.fresh_folder()
                try:
                    cold = measure(name, cache)
                    again = "warm" in keys and name in DISK_CACHED
                    samples["cold"].append(cold)
                    samples["warm"].append(measure(name, cache) if again else cold)
                except (PeerError, RuntimeError, subprocess.TimeoutExpired) as error:
                    errors[name] = str(error)
