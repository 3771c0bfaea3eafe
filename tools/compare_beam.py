"""Times default schedules beside those that a search finds: where a search wins, the cost is wrong.

`python tools/compare_beam.py --seed 4 --into found.json` searches for each kernel of
`tools.beam_kernels` in a time of its own, times both schedules in turns, and prints the ratios,
their geometric mean and the worst. `--again found.json` times what an earlier call has found
without searching: after a change of the cost, or in a quiet minute. One thread, unless THREADS
says more.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import statistics
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path

# Before anything reads it: kernels are compared on one thread.
os.environ.setdefault("THREADS", "1")

from aster_ml.codegen.opts import parse_opts
from aster_ml.codegen.passes import schedule_kernel
from aster_ml.codegen.search_space import applied
from aster_ml.device import Device
from aster_ml.engine.search.beam import Search, Worker
from aster_ml.engine.search.worker import Bench, same_numbers
from aster_ml.target import Target
from aster_ml.uop.node import UOp
from aster_ml.uop.print.text import parse, to_text

DEVICE = "CPU"
# Turns of each schedule, and seconds of each turn.
ROUNDS, TURN_S = 7, 0.008
# A search that wins by more than this has found a defect.
DEFECT = 1.05


@dataclass(frozen=True)
class Compared:
    """A kernel, as text, with its two schedules and the microseconds of each."""

    name: str
    kernel: str
    default: str
    found: str
    tried: int = 0
    default_us: float = 0.0
    found_us: float = 0.0

    @property
    def ratio(self) -> float:
        """How many times faster the schedule is that was found."""
        return self.default_us / self.found_us if self.found != self.default else 1.0


def opts_text(ast: UOp, target: Target) -> str:
    """The default schedule in words."""
    return " ".join(map(repr, schedule_kernel(ast, target).applied))


def search(name: str, ast: UOp, beam: int, seconds: float, cores: int) -> Compared | None:
    """What a search finds; None where not even the default schedule can be timed."""
    target = Device[DEVICE].target
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="aster-beam-")))
        workers = [stack.enter_context(Worker(ast, DEVICE, folder)) for _ in range(cores)]
        found = Search(ast, DEVICE, target, workers, seconds).run(beam)
    if found is None:
        return None
    opts = " ".join(map(repr, found.opts))
    return Compared(name, to_text(ast), opts_text(ast, target), opts, found.tried)


def timed(case: Compared, turns: int = ROUNDS) -> Compared:
    """The medians of the default schedule of now and of the one that was found, in turns.

    A schedule that does not fit, or whose results differ, counts as no gain.
    """
    ast = parse(case.kernel)
    target = Device[DEVICE].target
    case = replace(case, default=opts_text(ast, target))
    if case.found == case.default or applied(ast, target, parse_opts(case.found)) is None:
        return replace(case, found=case.default, default_us=0.0, found_us=0.0)
    bench = Bench(ast, DEVICE)
    both = bench.compiled(None), bench.compiled(case.found)
    right, other = bench.results(both[0]), bench.results(both[1])
    if not all(same_numbers(other[slot], right[slot]) for slot in right):
        return replace(case, found=case.default, default_us=0.0, found_us=0.0)
    times: tuple[list[float], list[float]] = ([], [])
    for i in range(turns):
        for which in (0, 1) if i % 2 else (1, 0):
            times[which].append(bench.seconds(both[which], TURN_S) * 1e6)
    default_us, found_us = map(statistics.median, times)
    return replace(case, default_us=default_us, found_us=found_us)


def summary(cases: list[Compared]) -> list[str]:
    """Every kernel whose search won, the largest gain first; then what there is of all."""
    if not cases:
        return ["no kernel was compared"]
    ratios = [c.ratio for c in cases]
    lines = []
    for case in sorted(cases, key=lambda c: -c.ratio):
        if case.ratio >= DEFECT:
            times = f"{case.default_us:9.1f} us -> {case.found_us:9.1f} us"
            both = [text or "plain loops" for text in (case.default, case.found)]
            lines += [f"{case.ratio:5.2f}x {times}  {case.name}", f"       {'  ->  '.join(both)}"]
    mean = statistics.geometric_mean(ratios)
    won = sum(r >= DEFECT for r in ratios)
    worst = max(cases, key=lambda c: c.ratio)
    return [
        *lines,
        f"{len(cases)} kernels: a search is {mean:.3f} times as fast (geometric mean), by "
        f"{100 * (DEFECT - 1):.0f}% or more for {won}; most {worst.ratio:.2f} times ({worst.name})",
    ]


def write(path: Path | None, cases: list[Compared]) -> None:
    """Keeps what was found for `--again`."""
    if path is not None:
        path.write_text(json.dumps([asdict(c) for c in cases], indent=1), encoding="utf-8")


def read(path: Path) -> list[Compared]:
    """What an earlier call has kept."""
    return [Compared(**c) for c in json.loads(path.read_text(encoding="utf-8"))]


def make_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seed", type=int, default=4, help="what kernels are drawn from")
    parser.add_argument("--only", default="*", help="names that are wanted, as a glob")
    parser.add_argument("--beam", type=int, default=3, help="schedules kept while searching")
    parser.add_argument("--seconds", type=float, default=5.0, help="of search for each kernel")
    parser.add_argument("--cores", type=int, default=os.cpu_count() or 1, help="search processes")
    parser.add_argument("--list", action="store_true", help="names the kernels")
    parser.add_argument("--into", type=Path, help="keeps what is found in this file")
    parser.add_argument("--again", type=Path, help="times what such a file has; no search")
    return parser


def main() -> int:
    """Compares and prints."""
    options = make_parser().parse_args()

    def wanted(name: str) -> bool:
        return fnmatch.fnmatch(name, options.only)

    if options.again is not None:
        cases = [timed(c) for c in read(options.again) if wanted(c.name)]
        write(options.into, cases)
        print("\n".join(summary(cases)))
        return 0
    # Draws of networks and libraries, which a look at an earlier file does without.
    from tools.beam_kernels import kernels

    drawn = kernels(options.seed, wanted)
    if options.list:
        print("\n".join(drawn))
        return 0
    cases = read(options.into) if options.into is not None and options.into.exists() else []
    known = {c.kernel for c in cases}
    for name, ast in drawn.items():
        if to_text(ast) in known:
            continue
        found = search(name, ast, options.beam, options.seconds, options.cores)
        if found is None:
            print(f"{name}: its default schedule could not be timed", file=sys.stderr)
            continue
        cases.append(timed(found))
        print(f"{cases[-1].ratio:5.2f}x {cases[-1].tried:4} tried  {name}", flush=True)
        write(options.into, cases)
    print("\n".join(summary(cases)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
