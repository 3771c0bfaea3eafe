"""Times parts of a program: blocks timed and profiled, spans and marks of a time line.

Events are recorded in `cpu_events` while the setting PROFILE is not 0. What kernels take is
counted by `GlobalCounters` and printed by DEBUG=2.
"""

from __future__ import annotations

import contextlib
import cProfile
import decimal
import pstats
import sys
import time
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from aster_ml.config import foreign
from aster_ml.helpers import colored


class Timing(contextlib.ContextDecorator):
    """Prints how long a `with` block took: `with Timing("load: "): ...`; `et` has nanoseconds.

    `on_exit` makes more text of the nanoseconds.
    """

    def __init__(
        self, prefix: str = "", on_exit: Callable[[int], str] | None = None, enabled: bool = True
    ) -> None:
        self.prefix = prefix
        self.on_exit = on_exit
        self.enabled = enabled

    def __enter__(self) -> Timing:
        self.st = time.perf_counter_ns()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.et = time.perf_counter_ns() - self.st
        if self.enabled:
            tail = self.on_exit(self.et) if self.on_exit else ""
            print(f"{self.prefix}{self.et * 1e-6:6.2f} ms{tail}")


class Profiling(contextlib.ContextDecorator):
    """Profiles a `with` block by Python's cProfile and prints the functions that take most.

    `sort` is a key of `pstats` ("cumtime", "tottime", "ncalls"), `frac` the part of all functions
    that is shown, `fn` a file for the whole profile, `ts` what times are divided by.
    """

    def __init__(
        self,
        enabled: bool = True,
        sort: str = "cumtime",
        frac: float = 0.2,
        fn: str | None = None,
        ts: float = 1,
    ) -> None:
        self.enabled = enabled
        self.sort = sort
        self.frac = frac
        self.fn = fn
        self.ts = ts

    def __enter__(self) -> Profiling:
        self.pr = cProfile.Profile()
        if self.enabled:
            self.pr.enable()
        return self

    def __exit__(self, *error: Any) -> None:
        if not self.enabled:
            return
        self.pr.disable()
        if self.fn:
            self.pr.dump_stats(self.fn)
        stats: Any = pstats.Stats(self.pr).strip_dirs().sort_stats(self.sort)
        for function in stats.fcn_list[: int(len(stats.fcn_list) * self.frac)]:
            _, calls, own, total, callers = stats.stats[function]
            print(self.line(function, calls, own, total, callers))

    def line(
        self, function: Any, calls: int, own: float, total: float, callers: dict[Any, Any]
    ) -> str:
        """Writes the line of one function: calls, times of its own and in all, its main caller."""
        scale = 1e3 / self.ts
        text = f"n:{calls:8d}  tm:{own * scale:7.2f}ms  tot:{total * scale:7.2f}ms "
        text += colored(f"{place(function):50s}", "yellow")
        if callers:
            most = max(callers, key=lambda c: callers[c][2])
            share = callers[most][2] / max(own, 1e-12)
            text += " " + colored(f"<- {share:3.0%} {place(most)}", "BLACK")
        return text


def place(function: tuple[str, int, str]) -> str:
    """A function of a profile as file, line and name."""
    return f"{function[0].replace('.py', '')}:{function[1]}:{function[2]}"


def perf_counter_us() -> decimal.Decimal:
    """Microseconds of a clock that only goes forward."""
    return decimal.Decimal(time.perf_counter_ns()) / 1000


@dataclass(frozen=True)
class TracingKey:
    """Name of a span of a time line, and its categories."""

    display_name: str
    keys: tuple[Any, ...] = ()
    ret: Any = None
    tb: tuple[tuple[Any, ...], ...] | None = None


class ProfileEvent:
    """Something on the time line."""


@dataclass
class ProfileRangeEvent(ProfileEvent):
    """A span: from `st` to `en`, in microseconds of `perf_counter_us`."""

    device: str
    name: str | TracingKey
    st: decimal.Decimal
    en: decimal.Decimal | None = None
    is_copy: bool = False


@dataclass(frozen=True)
class ProfilePointEvent(ProfileEvent):
    """A mark at one time."""

    device: str
    name: str
    key: Any
    arg: dict[str, Any] = field(default_factory=dict)
    ts: decimal.Decimal = field(default_factory=perf_counter_us)


# What has been recorded, in order.
cpu_events: list[ProfileEvent] = []


def is_profiling() -> bool:
    """Whether events are recorded."""
    return bool(foreign("PROFILE"))


@contextlib.contextmanager
def cpu_profile(
    name: str | TracingKey, device: str = "TINY", is_copy: bool = False, display: bool = True
) -> Iterator[ProfileRangeEvent]:
    """The span of a `with` block; recorded unless `display` is False."""
    event = ProfileRangeEvent(device, name, perf_counter_us(), is_copy=is_copy)
    try:
        yield event
    finally:
        event.en = perf_counter_us()
        if display and is_profiling():
            cpu_events.append(event)


def profile_marker(name: str, color: str = "gray") -> None:
    """A mark on the time line."""
    if is_profiling():
        cpu_events.append(ProfilePointEvent("TINY", "marker", None, {"name": name, "color": color}))


def get_stacktrace(
    frm: types.FrameType | None, max_frames: int = 30
) -> tuple[tuple[Any, ...], ...]:
    """(file, line, function, source is not read) of the frames below one, innermost first."""
    found: list[tuple[Any, ...]] = []
    frame = frm if frm is not None else sys._getframe(1)
    while frame is not None and len(found) < max_frames:
        found.append((frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name, None))
        frame = frame.f_back  # type: ignore[assignment]
    return tuple(found)
