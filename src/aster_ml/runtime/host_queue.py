"""Implements the queue of synchronous devices: a launch is done when it returns.

Such devices (CPU, PYTHON, NULL, and storage devices) have nothing to wait for; an event is the time
of its creation.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from aster_ml.backend import Event, Queue


class HostEvent(Event):
    """A time of the host's clock."""

    def __init__(self) -> None:
        self.time = time.perf_counter()

    def wait(self) -> None:
        """It has happened."""
        return

    def seconds_since(self, earlier: HostEvent) -> float:
        """By the host's clock."""
        return self.time - earlier.time


class HostQueue(Queue):
    """An always empty queue. `move` copies between two handles, if the device can."""

    def __init__(self, move: Callable[[Any, Any, int], bool] | None = None) -> None:
        self.move = move

    def signal(self) -> HostEvent:
        """Now."""
        return HostEvent()

    def copy(self, target: Any, source: Any, nbytes: int) -> bool:
        """By `move`, if there is one."""
        return self.move is not None and self.move(target, source, nbytes)
