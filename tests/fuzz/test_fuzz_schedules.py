"""A schedule is its Opts: over the catalogue of kernels, each for every Target that has one.

The Opts of the default schedule, read from their text, give the same program again to the letter.
Of the schedules that a search tries next, those that it drops as equal have equal programs, and
each of the others has a program that is well formed, or is refused with the Opt that cannot be; one
more Opt makes another program. Nothing is run: kernels are compiled to text.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from aster_ml import Context
from aster_ml.codegen.kernel import Kernel
from aster_ml.codegen.opts import Opt, parse_opts
from aster_ml.codegen.passes import lower, schedule_kernel
from aster_ml.codegen.policy.body_size import is_small
from aster_ml.codegen.search_space import changed
from aster_ml.errors import KernelOptError
from aster_ml.target import Target
from aster_ml.uop.linear import Linear
from aster_ml.uop.node import UOp
from aster_ml.uop.spec.verify import verify
from tests.core.golden.kernels import TARGETS, catalogue
from tests.fuzz.budget import check_all, draws

# How many neighbours of a schedule are looked at, of the some hundred that there are.
NEIGHBOURS = len(draws(12, 1000))


def cases() -> list[tuple[str, str]]:
    """All pairs of a kernel and a Target, in an order in which any part has some of each kind."""
    pairs = [(name, target) for name in catalogue() for target in TARGETS]
    random.Random(27).shuffle(pairs)
    return pairs


def case_of(seed: int) -> tuple[str, UOp, Target]:
    """The kernel and the Target of a seed, and both in words."""
    pairs = cases()
    name, target = pairs[seed % len(pairs)]
    return f"{name} for {target}", catalogue()[name], TARGETS[target]


def test_the_default_schedule_is_its_opts(record_property: Callable[[str, str], None]) -> None:
    def check(seed: int) -> str | None:
        text, ast, target = case_of(seed)
        with Context(SPEC=2):
            linear, opts = lower(ast, target)
        verify(linear, "linear")
        again, same = lower(ast, target, parse_opts(" ".join(map(repr, opts))))
        if again != linear or same != opts:
            return f"another program by its own Opts {opts}: {text}"
        return None

    check_all("default schedules replayed", draws(60, 2148), check, record_property)


def wrong_with(ast: UOp, target: Target, seed: int) -> str | None:
    """What is wrong with a neighbour of the default schedule; None where nothing is."""
    linear, opts = lower(ast, target)
    start = schedule_kernel(ast, target, opts)
    known: dict[object, Linear] = {start.value: linear}
    candidates = list(changed(start, opts, target))
    random.Random(seed).shuffle(candidates)
    tried = 0
    for candidate in candidates:
        kernel = scheduled(ast, target, candidate)
        if kernel is None or not is_small(kernel):
            continue
        tried += 1
        if tried > NEIGHBOURS:
            break
        found = lowered(ast, target, candidate)
        if found is None:
            continue
        verify(found, "linear")
        if kernel.value in known and known[kernel.value] != found:
            return f"dropped, and has another program: {candidate}"
        more = candidate[: len(opts)] == opts and kernel.value not in known
        if more and found == linear:
            return f"one more Opt changes nothing: {candidate}"
        known[kernel.value] = found
    return None


def scheduled(ast: UOp, target: Target, opts: tuple[Opt, ...]) -> Kernel | None:
    """The kernel with these Opts; None where one of them is refused in so many words."""
    try:
        return schedule_kernel(ast, target, opts)
    except KernelOptError as error:
        if not any([str(error).startswith(repr(opt)) for opt in opts]):
            raise
        return None


def lowered(ast: UOp, target: Target, opts: tuple[Opt, ...]) -> Linear | None:
    """The program by these Opts; None where one of them is refused in so many words."""
    try:
        return lower(ast, target, opts)[0]
    except KernelOptError as error:
        if not any([opt.op.name in str(error) for opt in opts]):
            raise
        return None


def test_neighbours_that_are_dropped_have_equal_programs_and_no_opt_is_idle(
    record_property: Callable[[str, str], None],
) -> None:
    def check(seed: int) -> str | None:
        text, ast, target = case_of(seed)
        wrong = wrong_with(ast, target, seed)
        return f"{wrong}: {text}" if wrong is not None else None

    check_all("schedules with their neighbours", draws(40, 2148), check, record_property)
