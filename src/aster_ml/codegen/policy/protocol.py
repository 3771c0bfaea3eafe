"""Chooses the policy for a Target, and states what a policy answers.

A policy is a module for one kind of machine, with these functions: the default schedule of a
kernel, and the changes to a schedule that a search tries. That of devices with work-groups is
imported when it is first asked for. Which is faster of two schedules no policy knows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Protocol

from aster_ml.codegen.kernel import Kernel
from aster_ml.codegen.opts import Opt
from aster_ml.codegen.policy.cpu import policy as cpu
from aster_ml.late import late
from aster_ml.target import Target

if TYPE_CHECKING:
    from aster_ml.codegen.policy.gpu import policy as gpu
else:
    gpu = late("codegen.policy.gpu.policy")

Opts = tuple[Opt, ...]


class Policy(Protocol):
    """Choices for one kind of machine."""

    def choose(
        self, kernel: Kernel, target: Target, rank: int = 0, by_hand: Opts | None = None
    ) -> None:
        """Applies the default schedule; after Opts that were written by hand, what completes them.

        With a `rank` above 0, the next best schedule by price, and so on: for a search.
        Raises: KernelOptError where an Opt written by hand cannot be done to the kernel.
        """

    def ranks(self, target: Target) -> int:
        """Counts the whole schedules, by price, that a search sets out from."""

    def sizes(self, opt: Opt, target: Target) -> Iterable[Opt]:
        """An Opt with other numbers, or done another way."""

    def additions(self, kernel: Kernel, target: Target) -> Iterator[Opts]:
        """Opts that may still come, each with those that it needs before it."""

    def insert(self, opts: Opts, more: Opts) -> Opts:
        """Opts with more of them, each where it can be applied."""

    def fits(self, kernel: Kernel, target: Target) -> bool:
        """Whether a machine has room for a kernel, as far as shows without compiling it."""

    def cycles(self, kernel: Kernel, target: Target) -> float:
        """Estimates a kernel, to tell candidates apart."""


def policy_of(target: Target) -> Policy:
    """The policy for a Target."""
    return gpu if target.has_local else cpu
