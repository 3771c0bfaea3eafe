"""Keeps state per thread, and the lock on state that all threads share.

`HERE` has for each thread whether it trains, who observes what it runs, and a token that stands for
all of this: the same object whenever the same thread is in the same state, so that one question
tells a call that is like the one before. Settings, each a thread's own, are in `config`.

What all threads share (nodes with memory, schedules, kernels, recordings and their memory) is
worked on by one thread at a time, which holds `ENGINE`. No function of a user runs meanwhile.
Weak tables are of classes of their own: a thread without `ENGINE` may go over one.
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
    """A table by weak keys that one thread goes over while another adds to it.

    The class it is made of puts off only what its own dead entries take away; an entry that is
    added ends a loop over it with a RuntimeError. Loops here go over a copy, made in one step of
    the interpreter. `data` is the dict by weak references, which is read without a call.
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
    """A set of what others keep alive; loops go over a copy, as in `SharedWeakTable`."""

    data: set[Any]

    def __iter__(self) -> Iterator[K]:
        return iter([member for ref in self.data.copy() if (member := ref()) is not None])


# How long a thread that comes to the engine waits between looks at one that is inside.
LOOK_AGAIN_S = 2e-5


class Here(threading.local):
    """The state of the thread that asks."""

    def __init__(self) -> None:
        # Layers that behave otherwise in training do so.
        self.training = False
        # Who is told of every schedule that runs, innermost last.
        self.observers: list[Any] = []
        # Who is told of random numbers that are drawn.
        self.note_draw: Callable[[Any, int], None] | None = None
        # How often this thread has set the seed of random numbers.
        self.seeded = 0
        # The parts of the keys of caches that settings make.
        self.stage_keys: dict[str, Any] = {}
        self.marks: dict[str, Any] = {}
        self.tokens: dict[tuple[Any, ...], object] = {}
        self.token = object()


HERE = Here()


def mark(name: str, value: Any) -> None:
    """Notes a part of this thread's state, which has another token then."""
    marks = HERE.marks
    marks[name] = value
    HERE.token = HERE.tokens.setdefault(tuple(marks.items()), object())


# How the names of Aster's own threads begin.
OWN_NAME = "aster-"


def others_run() -> bool:
    """Whether there are threads of the program beside this one."""
    me = threading.current_thread()
    return any([t is not me and not t.name.startswith(OWN_NAME) for t in threading.enumerate()])


# Held by the thread that works on what all share.
ENGINE = threading.RLock()


# Locks that are held while functions of users run, weakly.
LOCKS: SharedWeakSet[Any] = SharedWeakSet()


def new_lock() -> threading.RLock:
    """A lock that is free in a forked child, unless the thread that forked has it."""
    lock = threading.RLock()
    LOCKS.add(lock)
    return lock


class Turn:
    """Turn at the engine, of more threads than one; a single one need not hold `ENGINE`.

    why: to take and release it is an eighth of a replay of a small kernel. The first thread says
    instead that it is inside, and another that comes first waits until it is not.
    """

    __slots__ = ("inside", "owner", "shared")

    def __init__(self) -> None:
        self.owner = get_ident()
        self.inside = False
        self.shared = False

    def share(self) -> None:
        """From now on everybody holds `ENGINE`; called with it held."""
        self.shared = True
        while self.inside:
            time.sleep(LOOK_AGAIN_S)

    def renew(self) -> None:
        """In a forked child: there is this thread alone."""
        self.owner, self.inside, self.shared = get_ident(), False, False


TURN = Turn()
# For those who hold `ENGINE` already.
HELD = Turn()


def take_turn() -> None:
    """Called first by whoever has taken `ENGINE`."""
    if not TURN.shared and get_ident() != TURN.owner:
        TURN.share()


def before_fork() -> None:
    """Nobody works on what is shared while the process is copied."""
    ENGINE.acquire()
    take_turn()


def after_fork_in_child() -> None:
    """The thread that forked goes on alone."""
    TURN.renew()
    for lock in list(LOCKS):
        if not lock._is_owned():
            lock._at_fork_reinit()
    ENGINE.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=before_fork, after_in_parent=ENGINE.release, after_in_child=after_fork_in_child
    )
