"""Keeps state per thread, and the lock on state that all threads share.

`STATE` is thread-local: whether the thread trains, who observes what it runs, and a token that
stands for all of this: the same object whenever the same thread is in the same state, so that one
question tells a call that is like the one before. Settings, each a thread's own, are in `config`.

Shared state (nodes with memory, schedules, kernels, recordings and their memory) is used by one
thread at a time, which holds `ENGINE`. No user function runs meanwhile. Weak tables have their own
classes, which a thread without `ENGINE` may iterate.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from _thread import get_ident
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class SharedWeakTable(weakref.WeakKeyDictionary[K, V]):
    """A weak-key dictionary that one thread can iterate while another adds to it.

    The base class only defers removal of dead entries; an added entry ends an iteration with a
    RuntimeError. Iterations here use a copy, made in one step of the interpreter. `data` is the
    dict by weak references, which is read without a call.
    """

    data: dict[Any, V]

    def __iter__(self) -> Iterator[K]:
        return iter([key for ref in self.data.copy() if (key := ref()) is not None])

    keys = __iter__

    def values(self) -> Iterator[V]:  # type: ignore[override]
        """The values of live keys."""
        return iter([value for ref, value in self.data.copy().items() if ref() is not None])

    def items(self) -> Iterator[tuple[K, V]]:  # type: ignore[override]
        """Live keys with their values."""
        pairs = self.data.copy().items()
        return iter([(key, value) for ref, value in pairs if (key := ref()) is not None])


class SharedWeakSet(weakref.WeakSet[K]):
    """A weak set; iterations use a copy, as in `SharedWeakTable`."""

    data: set[Any]

    def __iter__(self) -> Iterator[K]:
        return iter([member for ref in self.data.copy() if (member := ref()) is not None])


# Interval at which a thread that waits for the engine checks whether the owner has left.
POLL_S = 2e-5


class ThreadState(threading.local):
    """The state of the thread that asks."""

    def __init__(self) -> None:
        # Whether layers behave as in training.
        self.training = False
        # Observers of every schedule that runs, innermost last.
        self.observers: list[Any] = []
        # Called when random numbers are drawn.
        self.note_draw: Callable[[Any, int], None] | None = None
        # How often this thread has set the seed of random numbers.
        self.seeded = 0
        # Stage -> the part of cache keys that depends on settings.
        self.stage_keys: dict[str, Any] = {}
        self.marks: dict[str, Any] = {}
        self.tokens: dict[tuple[Any, ...], object] = {}
        self.token = object()


STATE = ThreadState()


def mark(name: str, value: Any) -> None:
    """Notes a part of this thread's state, which has another token then."""
    marks = STATE.marks
    marks[name] = value
    STATE.token = STATE.tokens.setdefault(tuple(marks.items()), object())


# Prefix of the names of Aster's own threads.
OWN_NAME = "aster-"


def others_run() -> bool:
    """Whether the program has other threads than this one."""
    me = threading.current_thread()
    return any([t is not me and not t.name.startswith(OWN_NAME) for t in threading.enumerate()])


# Held by the thread that uses shared state.
ENGINE = threading.RLock()


# Locks that may be held while user functions run, weakly.
LOCKS: SharedWeakSet[Any] = SharedWeakSet()


def new_lock() -> threading.RLock:
    """A lock that is free in a forked child, unless the forking thread held it."""
    lock = threading.RLock()
    LOCKS.add(lock)
    return lock


class Turn:
    """Biased lock of the engine: a single thread need not hold `ENGINE`.

    why: to acquire and release `ENGINE` takes an eighth of a replay of a small kernel. The owner
    sets `inside` instead; the first other thread waits until it is cleared, and makes the lock
    shared.
    """

    __slots__ = ("inside", "owner", "shared")

    def __init__(self) -> None:
        self.owner = get_ident()
        self.inside = False
        self.shared = False

    def share(self) -> None:
        """Makes all threads use `ENGINE` from now on; called with `ENGINE` held."""
        self.shared = True
        while self.inside:
            time.sleep(POLL_S)

    def renew(self) -> None:
        """Resets the lock in a forked child, which has a single thread."""
        self.owner, self.inside, self.shared = get_ident(), False, False


TURN = Turn()
# For callers that hold `ENGINE` already.
HELD = Turn()


def take_turn() -> None:
    """Makes the lock shared if another thread owns it; called right after acquiring `ENGINE`."""
    if not TURN.shared and get_ident() != TURN.owner:
        TURN.share()


def before_fork() -> None:
    """Acquires the engine, so that no thread uses shared state during a fork."""
    ENGINE.acquire()
    take_turn()


def after_fork_in_child() -> None:
    """Resets locks for the only thread of a forked child."""
    TURN.renew()
    for lock in list(LOCKS):
        if not lock._is_owned():
            lock._at_fork_reinit()
    ENGINE.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=before_fork, after_in_parent=ENGINE.release, after_in_child=after_fork_in_child
    )
