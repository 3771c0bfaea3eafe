"""BEAM=n: faster schedules than the default one, found by trying its neighbours.

Receives a kernel AST and the name of its device; returns Opts. Candidates are compiled and run in
processes of their own (`search_worker`), which may fail or crash; what is not proven right and
faster is not taken. The best schedule is kept on disk as text that a person can read, under a name
made of the kernel, the target and the settings, and later processes read it from there.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from aster_ml.backend import Backend
from aster_ml.codegen.opts import Opt, parse_opts
from aster_ml.codegen.passes import schedule_kernel
from aster_ml.codegen.policy.protocol import policy_of
from aster_ml.codegen.search_space import applied, neighbours, starts
from aster_ml.config import (
    BEAM,
    BEAM_SECONDS,
    CACHE,
    DEBUG,
    DETERMINISTIC,
    IGNORE_BEAM_CACHE,
    SETTINGS,
    debug_shown,
)
from aster_ml.device import BROUGHT
from aster_ml.interpreters import python_command, python_environment
from aster_ml.private_files import check_folder, make_folder, own_folder, read_own, replace_own
from aster_ml.runtime import verdicts
from aster_ml.runtime.object_cache import cache_folder
from aster_ml.target import Target
from aster_ml.uop.graph import toposort
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import Ops
from aster_ml.uop.print.text import to_text

# A schedule that is faster by less than this is not told apart from noise.
MIN_GAIN = 1.03
# Seconds of runs for each candidate, and for the last comparison with the default.
TRIAL_S, FINAL_S, FINAL_ROUNDS = 0.01, 0.05, 3
# A candidate that takes longer to compile or to run than this is given up.
CANDIDATE_TIMEOUT_S = 20.0
# One that is compiled by the end of the search has so long for its runs.
MIN_TRIAL_S = 0.5
# So often a candidate may end the device for the process that tries it; each takes a new process.
MAX_LOSSES = 3
# Candidates that are estimated to take so many times as long are not tried: estimates spread by a
# factor of 1.7 (docs/explanation/tuning/threads.md).
MAX_SLOWER = 4.0
# What is compiled side by side before it is timed, a worker.
BATCH = 4

Timed = tuple[float, tuple[Opt, ...]]


class Found(NamedTuple):
    """The best schedule of a kernel: its Opts, microseconds of it and of the default."""

    opts: tuple[Opt, ...]
    microseconds: float
    default_microseconds: float
    tried: int


class WorkerError(Exception):
    """A worker could not do what it was asked; the text says why.

    `lost` says that the device failed under it. Its next process may find it well again.
    """

    def __init__(self, why: str, lost: bool = False) -> None:
        super().__init__(why)
        self.lost = lost


class Worker(AbstractContextManager["Worker"]):
    """A process that tries schedules of one kernel; it is started anew after a crash."""

    def __init__(self, ast: UOp, device: str, folder: Path) -> None:
        runtime = runtime_of(device)
        self.opening = {"do": "open", "ast": to_text(ast), "device": device, "runtime": runtime}
        self.environment = worker_environment(folder)
        self.process: subprocess.Popen[str] | None = None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def start(self) -> subprocess.Popen[str]:
        """The process, started where there is none."""
        if self.process is None:
            self.process = subprocess.Popen(
                python_command("-m", "aster_ml.engine.search.worker"),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                encoding="utf-8",
                env=self.environment,
            )
            self.exchange(self.process, self.opening)
        return self.process

    def stop(self) -> None:
        """Ends the process."""
        process, self.process = self.process, None
        if process is not None:
            process.kill()
            process.communicate()

    def ask(
        self,
        what: str,
        opts: tuple[Opt, ...] | None,
        budget_s: float = 0.0,
        limit_s: float | None = None,
    ) -> float:
        """One request for a candidate (None is the default schedule): seconds a run, or 0.

        Raises: WorkerError where the candidate failed, crashed or took too long.
        """
        text = None if opts is None else " ".join(map(repr, opts))
        request = {"do": what, "opts": text, "budget_s": budget_s}
        try:
            answer = self.exchange(self.start(), request, limit_s)
        except OSError as error:
            self.stop()
            raise WorkerError(str(error)) from None
        return float(answer.get("seconds", 0.0))

    def exchange(
        self,
        process: subprocess.Popen[str],
        request: dict[str, Any],
        limit_s: float | None = None,
    ) -> dict[str, Any]:
        """A line there and a line back, in time."""
        assert process.stdin is not None
        assert process.stdout is not None
        limit = CANDIDATE_TIMEOUT_S if limit_s is None else min(limit_s, CANDIDATE_TIMEOUT_S)
        watch = threading.Timer(limit, process.kill)
        watch.start()
        try:
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
        finally:
            watch.cancel()
        if not line:
            self.stop()
            raise WorkerError("the process ended, or had to be")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            lost = bool(answer.get("lost"))
            if lost:
                self.stop()
            raise WorkerError(str(answer["error"]), lost)
        return answer


def runtime_of(device: str) -> str:
    """The module that brings a kind of device from outside; empty for one of Aster's own."""
    runtime = BROUGHT.get(device.partition(":")[0])
    return getattr(runtime, "__name__", "") if runtime is not None else ""


def worker_environment(folder: Path) -> dict[str, str]:
    """Our settings, a disk cache that only this search has, and no search inside of it."""
    given = python_environment()
    # A device from outside of the package is found where this process has found it.
    places = [given["PYTHONPATH"], *[os.path.abspath(path) for path in sys.path]]
    return {
        **given,
        **{name: str(s.value) for name, s in SETTINGS.items() if "codegen" in s.affects},
        "PYTHONPATH": os.pathsep.join(places),
        "CACHEDIR": str(folder),
        "CACHE": "1",
        "BEAM": "0",
        "DEBUG": "0",
        "SPEC": "0",
    }


class Search:
    """A beam search around the default schedule of one kernel."""

    def __init__(
        self, ast: UOp, device: str, target: Target, workers: list[Worker], seconds: float
    ) -> None:
        self.ast = ast
        self.device = device
        self.target = target
        self.workers = workers
        self.stop_at = time.monotonic() + seconds
        self.tried = 0
        # How often the device failed, and how it did at last.
        self.losses = 0
        self.why = ""

    def run(self, width: int) -> Found | None:
        """The best schedule that was proven; None where even the default could not be timed.

        `why` then says what it failed with. Where the device fails again and again, what was found
        so far counts.
        """
        default = tuple(schedule_kernel(self.ast, self.target).applied)
        usual = self.measure(None)
        if usual is None:
            return None
        self.why = ""
        best: list[Timed] = [(usual, default)]
        seen = {default}
        elsewhere = starts(self.ast, self.target)
        while self.may_go_on():
            near = [neighbours(self.ast, self.target, opts, MAX_SLOWER) for _, opts in best]
            timed = list(self.try_all(unseen(chain(elsewhere, *near), seen)))
            # Opts have no order.
            better = sorted([*best, *timed], key=lambda found: found[0])[:width]
            gained = better[0][0] * MIN_GAIN <= best[0][0]
            best, elsewhere = better, iter(())
            if not gained:
                break
        return self.settle(default, best[0][1])

    def time_left(self) -> float:
        """Seconds in which candidates may still be tried."""
        return self.stop_at - time.monotonic()

    def may_go_on(self) -> bool:
        """Whether there is time for more candidates, and the device bears them."""
        return self.time_left() > 0 and self.losses < MAX_LOSSES

    def settle(self, default: tuple[Opt, ...], opts: tuple[Opt, ...]) -> Found | None:
        """Compares the best with the default again, in turns: only a clear gain counts.

        None where the default cannot be timed any more.
        """
        ours, theirs = float("inf"), float("inf")
        for _ in range(FINAL_ROUNDS if opts != default else 1):
            theirs = min(theirs, self.measure(None, FINAL_S) or theirs)
            ours = min(ours, self.measure(opts, FINAL_S) or ours)
        if theirs == float("inf"):
            return None
        if ours * MIN_GAIN > theirs:
            opts, ours = default, theirs
        return Found(opts, ours * 1e6, theirs * 1e6, self.tried)

    def try_all(self, candidates: Iterator[tuple[Opt, ...]]) -> Iterable[Timed]:
        """Compiles some side by side, then times them one after another, while there is time."""
        size = BATCH * len(self.workers)
        # Brings logging with it, which takes longer to import than this module.
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(len(self.workers)) as pool:
            while self.may_go_on() and (some := list(islice(candidates, size))):
                parts = [some[w :: len(self.workers)] for w in range(len(self.workers))]
                compiled = list(pool.map(self.compile_some, self.workers, parts))
                for opts in [c for part in compiled for c in part]:
                    if self.losses >= MAX_LOSSES:
                        return
                    seconds = self.measure(opts, limit_s=max(self.time_left(), MIN_TRIAL_S))
                    self.tried += 1
                    if seconds is not None:
                        yield seconds, opts

    def compile_some(
        self, worker: Worker, candidates: list[tuple[Opt, ...]]
    ) -> list[tuple[Opt, ...]]:
        """Those that can be compiled in the time that is left."""
        good = []
        for opts in candidates:
            left = self.time_left()
            if left <= 0:
                break
            try:
                worker.ask("compile", opts, limit_s=left)
            except WorkerError as error:
                self.why = str(error)
                continue
            good.append(opts)
        return good

    def measure(
        self,
        opts: tuple[Opt, ...] | None,
        budget_s: float = TRIAL_S,
        limit_s: float | None = None,
    ) -> float | None:
        """Seconds of a run whose results are right; None where it is not."""
        try:
            return self.workers[0].ask("time", opts, budget_s, limit_s)
        except WorkerError as error:
            self.losses += error.lost
            self.why = str(error)
            return None


def unseen(
    candidates: Iterable[tuple[Opt, ...]], seen: set[tuple[Opt, ...]]
) -> Iterator[tuple[Opt, ...]]:
    """Those that are not among the seen, where each then is."""
    for opts in candidates:
        if opts not in seen:
            seen.add(opts)
            yield opts


# keeping what was found


@dataclass(frozen=True)
class Record:
    """Record of one kernel, as a file of text has it; times where it tells them."""

    beam: int
    opts: tuple[Opt, ...]
    default: tuple[Opt, ...] = ()
    microseconds: float = 0.0
    default_microseconds: float = 0.0

    @property
    def gain(self) -> float:
        """Speed-up over the default schedule."""
        return self.default_microseconds / self.microseconds if self.microseconds else 1.0


# Of records whose Opts mean what they mean now; it rises with what an Opt does, or its name.
VERSION = 2
# A record is a page of text.
MAX_RECORD_BYTES = 1 << 24
# Without a disk cache, what this process has found.
REMEMBERED: dict[str, Record] = {}


def record_name(ast: UOp, target: Target) -> str:
    """A name for a kernel on a target under the settings of now, equal in every process."""
    settings = [
        f"{s.name}={s.value}" for s in SETTINGS.values() if "codegen" in s.affects and s is not BEAM
    ]
    text = "|".join([ast.key, target.key, *settings])
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def record_path(name: str) -> Path | None:
    """The file of a record; None without a disk cache."""
    folder = cache_folder() if CACHE else None
    return None if folder is None else own_folder(folder, "schedules") / f"{name}.txt"


def record_text(ast: UOp, target: Target, width: int, found: Found) -> str:
    """The file: what was found, and beside it what it was compared with."""
    default = " ".join(map(repr, schedule_kernel(ast, target).applied))
    return (
        f"# The fastest schedule of a kernel among {found.tried} that were tried.\n"
        f"version {VERSION}\n"
        f"beam {width}\n"
        f"opts {' '.join(map(repr, found.opts))}\n"
        f"microseconds {found.microseconds:.2f}\n"
        f"default_opts {default}\n"
        f"default_microseconds {found.default_microseconds:.2f}\n"
        f"target {target.key}\n\n"
        f"{to_text(ast)}\n"
    )


def values_of(text: str) -> dict[str, str]:
    """The lines of a record by their first words."""
    head = text.split("\n\n", 1)[0]
    return {key: rest for key, _, rest in (line.partition(" ") for line in head.splitlines())}


def read_record(text: str) -> Record | None:
    """Parses a file; None where it is no record, or of another version."""
    values = values_of(text)
    if values.get("version") != str(VERSION):
        return None
    try:
        return Record(
            int(values["beam"]),
            parse_opts(values["opts"]),
            parse_opts(values.get("default_opts", "")),
            float(values.get("microseconds", 0.0)),
            float(values.get("default_microseconds", 0.0)),
        )
    except (KeyError, ValueError):
        return None


def look_up(name: str) -> Record | None:
    """Finds the record under a name."""
    path = record_path(name)
    if path is None:
        return REMEMBERED.get(name)
    try:
        check_folder(path.parent)
        text = read_own(str(path), MAX_RECORD_BYTES)
        record = None if text is None else read_record(text.decode())
    except (OSError, UnicodeDecodeError):
        return None
    if text is not None and record is None:
        tell_ignored(name, why_ignored(text.decode()))
    return record


def why_ignored(text: str) -> str:
    """Names what is wrong with a file that is no record of this version."""
    version = values_of(text).get("version", "none")
    if version != str(VERSION):
        return f"its version is {version}, and this one reads {VERSION}"
    return "is no record"


def tell_ended(device: str, search: Search, found: Found | None) -> None:
    """Warns that a search ended early, and says why and what is taken."""
    taken = "the default schedule" if found is None else "the best of what was tried"
    often = f"failed {search.losses} times" if search.losses else "did not run the default schedule"
    warnings.warn(
        f"BEAM: {device} {often} ({search.why[:300]}), so the search ended after {search.tried} "
        f"schedules and {taken} is used; BEAM=0 searches for none",
        stacklevel=2,
    )


def tell_ignored(name: str, why: str) -> None:
    """With DEBUG=1, a line on a saved schedule that is not taken."""
    if DEBUG >= 1 and debug_shown("codegen"):
        print(f"saved schedule {name}: {why}; ignored, and searched for anew")


def keep(name: str, record: Record, text: str) -> None:
    """Writes a record where later processes find it; at least this one knows it from now on."""
    REMEMBERED[name] = record
    path = record_path(name)
    if path is None:
        return
    # A folder that cannot be written is told of where kernels are stored.
    with suppress(OSError):
        make_folder(path.parent)
        replace_own(str(path), text.encode())


def can_search(ast: UOp, backend: Backend) -> bool:
    """Whether trying schedules of this kernel can lead anywhere."""
    return (
        bool(BEAM)
        and not DETERMINISTIC
        and backend.tries_schedules
        and (ast.arg is None or (ast.arg.opts is None and not ast.arg.in_order))
        and all(u.op is not Ops.DEFINE_VAR for u in toposort(ast))
    )


def may_be_taken(ast: UOp, target: Target, opts: tuple[Opt, ...]) -> bool:
    """Whether Opts of a file fit the kernel, and are of a size that a search would have tried."""
    kernel = applied(ast, target, opts)
    if kernel is None:
        return False
    fits = policy_of(target).fits(kernel, target)
    return fits or opts == tuple(schedule_kernel(ast, target).applied)


def find_opts(ast: UOp, device: str, target: Target) -> tuple[Opt, ...] | None:
    """The fastest Opts that are known, or that a search finds now; None for the default ones."""
    name = record_name(ast, target)
    width = int(BEAM.value)
    known = None if IGNORE_BEAM_CACHE else look_up(name)
    if known is not None and known.beam >= width:
        if may_be_taken(ast, target, known.opts):
            return known.opts
        tell_ignored(name, f"this version refuses {' '.join(map(repr, known.opts))}")
    start = time.monotonic()
    with ExitStack() as stack:
        try:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="aster-beam-")))
            verdicts.copy_to(folder)
        except OSError as error:
            warnings.warn(
                f"BEAM: no folder for temporary files can be made ({error}), so the default "
                "schedule is used; BEAM=0 searches for none",
                stacklevel=2,
            )
            return None
        count = max(1, min(os.cpu_count() or 1, 8))
        workers = [stack.enter_context(Worker(ast, device, folder)) for _ in range(count)]
        search = Search(ast, device, target, workers, float(BEAM_SECONDS.value))
        found = search.run(width)
    if search.losses >= MAX_LOSSES or found is None:
        tell_ended(device, search, found)
    if found is None:
        return None
    keep(name, Record(width, found.opts), record_text(ast, target, width, found))
    if DEBUG >= 2 and debug_shown("codegen"):
        print(
            f"searched {time.monotonic() - start:.1f} s, {found.tried} schedules: "
            f"{found.default_microseconds:.1f} us as it was, {found.microseconds:.1f} us with "
            f"{' '.join(map(repr, found.opts)) or 'no Opts'}"
        )
    return found.opts
