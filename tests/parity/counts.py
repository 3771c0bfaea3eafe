"""How many kernels a schedule has, as the reference's tests ask: fewer are as good as stated.

A test file that states numbers of kernels has a function of its own for it, which wants exactly
that number. While it runs here, that name means the function below: more kernels are a failure, and
none where some are stated; after fewer the test goes on, so that its values are compared as well.
A file that reads `GlobalCounters.kernel_count` has a number that compares so.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from aster_ml import Context, Tensor
from aster_ml.engine.counters import GlobalCounters
from aster_ml.engine.items import CompiledRunner, ExecItem
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import Ops


class TooManyKernelsError(AssertionError):
    """A schedule has more kernels than stated, or none."""


def compare_count(count: int, stated: int) -> None:
    """Raises TooManyKernelsError for more kernels than stated, and for none instead of some."""
    if count > stated or (count == 0) != (stated == 0):
        raise TooManyKernelsError(f"{count} kernels, {stated} are stated")


class KernelCount(int):
    """A number of kernels that have run; equal to every number that states as many or more."""

    __hash__ = int.__hash__

    def __eq__(self, stated: object) -> bool:
        if not isinstance(stated, int):
            return NotImplemented
        return int(self) <= int(stated) and (int(self) == 0) == (int(stated) == 0)

    def __ne__(self, stated: object) -> bool:
        return not self == stated

    def __sub__(self, before: int) -> KernelCount:
        return KernelCount(int(self) - int(before))

    def __radd__(self, before: int) -> KernelCount:
        return KernelCount(int(before) + int(self))

    __add__ = __radd__


class Counters:
    """`aster_ml.GlobalCounters` with a `kernel_count` that compares so."""

    def __getattr__(self, name: str) -> Any:
        value = getattr(GlobalCounters, name)
        return KernelCount(value) if name == "kernel_count" else value

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(GlobalCounters, name, int(value) if name == "kernel_count" else value)


COUNTERS_VIEW = Counters()


def schedule_within(
    t: Any, allowed: int, to_prerealize: list[Tensor] | None = None, filter_sink: bool = True
) -> list[ExecItem]:
    """The schedule of one or several tensors, or of a node, with at most so many kernels.

    Without `filter_sink` every step counts.
    """
    if to_prerealize:
        with Context(DEBUG=0):
            Tensor.realize(*to_prerealize)
    tensors = t if isinstance(t, list) else [Tensor(t) if isinstance(t, UOp) else t]
    items = Tensor.schedule(*tensors)
    for item in items:
        item.lower()
    compare_count(
        sum([isinstance(i.prg, CompiledRunner) or not filter_sink for i in items]), allowed
    )
    return items


def asts_within(desired_count: int, t: Tensor) -> None:
    """Checks that the schedule of a tensor has at most so many kernels."""
    compare_count(sum([item.ast.op is Ops.SINK for item in t.schedule()]), desired_count)


# What the files call the function, and what it is here.
COUNTERS = {"check_schedule": schedule_within, "_check_ast_count": asts_within}


def replace_counters(module: ModuleType) -> None:
    """Gives a test file that states numbers of kernels the functions above."""
    for name, function in COUNTERS.items():
        if hasattr(module, name):
            setattr(module, name, function)
