"""How many Python calls a step of the pipeline takes, and how deep the stack is: no seconds.

`sys.setprofile` sees each call of a Python function (generators and comprehensions too, where the
interpreter runs them in a frame of their own); calls of C functions are not counted. Tests assert
the limits below with the same functions.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from benchmarks.libraries import Lazy, Library
from benchmarks.row import Row, Wanted

SUBJECT = "Python calls"
# What Aster may need at most.
LIMITS = {"build": 12, "realize": 60, "launch": 5, "render": 8}


def run_seen(see: Callable[[FrameType, str, Any], None], work: Callable[[], Any]) -> None:
    """Runs `work` while Python tells `see` of each call (`sys.setprofile`)."""
    before = sys.getprofile()
    sys.setprofile(see)
    try:
        work()
    finally:
        sys.setprofile(before)


def count_calls(work: Callable[[], Any]) -> int:
    """Calls of Python functions while `work` runs, its own call among them."""
    count = 0

    def see(frame: FrameType, event: str, arg: Any) -> None:
        nonlocal count
        count += event == "call"

    run_seen(see, work)
    return count


def frames_of(frame: FrameType | None) -> Iterator[str]:
    """The qualified names of a stack, innermost first."""
    while frame is not None:
        yield frame.f_code.co_qualname
        frame = frame.f_back


def stack_at(work: Callable[[], Any], *names: str) -> list[str]:
    """The stack from `work` to the first call of a function whose name ends in one of these.

    Qualified names, innermost first, that of `work` itself last.

    Raises: LookupError when no such function is called.
    """
    # This one and those that it was called from, and `run_seen`.
    outside = len(list(frames_of(sys._getframe()))) + 1
    found: list[str] = []

    def see(frame: FrameType, event: str, arg: Any) -> None:
        if event == "call" and not found and frame.f_code.co_qualname.endswith(names):
            found.extend(list(frames_of(frame))[:-outside])

    run_seen(see, work)
    if not found:
        raise LookupError(f"nothing named {' or '.join(names)} was called")
    return found


def make_counters(tensor: Any) -> dict[str, Callable[[], int]]:
    """The four counts for a `Tensor` class, under the names of LIMITS."""
    a, b = tensor.ones(64, 64).contiguous().realize(), tensor.ones(64, 64).contiguous().realize()

    def small() -> Any:
        return (a @ b + 2).relu()

    def warm() -> Callable[[], Any]:
        for _ in range(3):
            small().realize()
        return small().realize  # type: ignore[no-any-return]

    def build() -> int:
        # The first one may import; the lambda is a call of ours.
        return min(count_calls(lambda: a + b) - 1 for _ in range(2))

    def render() -> int:
        # A constant that no cache has seen, so that the kernel is rendered.
        fresh = float(time.perf_counter_ns() % 1_000_003)
        return len(stack_at((a * fresh + 5).relu().realize, "Renderer.render", "Language.render"))

    return {
        "build": build,
        "realize": lambda: count_calls(warm()),
        "launch": lambda: len(stack_at(warm(), "Program.__call__", "run_recorded")),
        "render": render,
    }


def measure_calls(library: Library) -> dict[str, float]:
    """All four, for the table."""
    assert isinstance(library, Lazy)
    counters = make_counters(library.module.Tensor)
    return {name: float(count()) for name, count in counters.items()}


def rows() -> list[Row]:
    """Counts of calls and depths of the stack."""
    texts = {
        "build": ("build a + b", "calls"),
        "realize": ("warm realize of (a @ b + 2).relu()", "calls"),
        "launch": ("stack from realize to the launch of a kernel", "frames"),
        "render": ("stack from realize to the renderer", "frames"),
    }
    return [
        Row(
            text,
            SUBJECT,
            "calls",
            unit,
            Wanted(LIMITS[key]),
            how="once",
            key=key,
            libraries=("tinygrad",),
        )
        for key, (text, unit) in texts.items()
    ]


CASES = {"calls": measure_calls}
