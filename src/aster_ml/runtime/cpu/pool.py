"""Manages the CPU's worker threads: Python threads that wait and work in native code.

Receives the address of a list of kernel calls (`cpu_program` lays it out) and returns when all of
it has run. A worker spins in native code for a moment after each list, so that the next finds it
awake, then sleeps on a Python lock. Knows nothing of buffers or of what a kernel computes.

A run never depends on a worker (see `cpu_worker`), so a thread that could not be started, one that
the system has set aside or a signal between two steps costs time and never a hang.
"""

from __future__ import annotations

import atexit
import functools
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from aster_ml.config import POOL_STRESS, THREADS
from aster_ml.errors import ArgumentError
from aster_ml.runtime.cpu import llvm_jit
from aster_ml.runtime.cpu.native_call import list_call
from aster_ml.runtime.cpu.places import (
    GET_ALLOWED,
    GET_PROCESSOR,
    HOME,
    IDENTITY,
    NOWHERE,
    SET_ALLOWED,
    SYSTEM_FUNCTIONS,
)
from aster_ml.runtime.cpu.worker import (
    COMING,
    LINE,
    LUCK,
    MAX_THREADS,
    PARKED,
    STATE_WORDS,
    STOP,
    YIELD,
    Native,
    native,
)
from aster_ml.thread_state import ENGINE, OWN_NAME

# How long a worker looks for the next list before it sleeps.
SPIN_S = 200e-6
# Kernels keep their LOCAL scratch on the stack, and some systems give threads very little.
STACK_BYTES = 8 << 20


class Words:
    """Aligned words of 8 bytes that native code and Python both read and write."""

    __slots__ = ("address", "array", "view")

    def __init__(self, count: int) -> None:
        self.array = np.zeros(count + LINE, dtype=np.int64)
        skip = -(self.array.ctypes.data // 8) % LINE
        self.address = self.array.ctypes.data + 8 * skip
        # Item access on a memoryview takes half the time of that on an array.
        self.view = memoryview(self.array.data)[skip : skip + count]

    def at(self, word: int) -> int:
        """The address of a word."""
        return self.address + 8 * word


@functools.cache
def processor_count() -> int:
    """Counts the processors this process may use, by its affinity and control group."""
    if hasattr(os, "sched_getaffinity"):
        count = len(os.sched_getaffinity(0))
    else:
        count = os.cpu_count() or 1
    quota, period = cgroup_quota()
    if quota > 0 and period > 0:
        count = min(count, -(-quota // period))
    return max(1, count)


def cgroup_quota() -> tuple[int, int]:
    """Processor time that a container may take in each period, in microseconds; (0, 0) if free."""
    root = Path("/sys/fs/cgroup")
    try:
        quota, period = (root / "cpu.max").read_text(encoding="ascii").split()
    except (OSError, ValueError):
        try:
            quota = (root / "cpu/cpu.cfs_quota_us").read_text(encoding="ascii")
            period = (root / "cpu/cpu.cfs_period_us").read_text(encoding="ascii")
        except OSError:
            return 0, 0
    return (int(quota), int(period)) if quota.strip().isdigit() else (0, 0)


def thread_count() -> int:
    """Threads of the CPU device: the setting THREADS, else one a processor.

    Raises: ArgumentError when THREADS is negative.
    """
    wanted: int = THREADS.value
    if wanted < 0:
        raise ArgumentError(f"THREADS={wanted}: a positive number is wanted, or 0 for one a core")
    return min(wanted or processor_count(), MAX_THREADS)


class ThreadPool:
    """The calling thread and its workers. Workers start when a list first wants them."""

    def __init__(self) -> None:
        self.renew()
        self.closed = False

    def renew(self) -> None:
        """Starts from nothing: no workers, no list, nobody holding the lock."""
        self.lock = threading.RLock()
        self.state = Words(STATE_WORDS)
        self.native: Native | None = None
        self.enter: Callable[[int, int], int]
        self.spin_limit = 0
        self.threads: list[threading.Thread] = []
        # A worker sleeps by acquiring its gate; whoever wakes it releases the gate. (An Event would
        # do as well but is written in Python, and a signal in the middle of it leaves it locked.)
        self.gates: list[threading.Lock] = []

    def open(self) -> Native:
        """Loads the native code and learns how long a pause takes."""
        functions = native(POOL_STRESS.value > 0)
        functions.pause(10)
        start = time.perf_counter()
        functions.pause(1000)
        pause_s = max((time.perf_counter() - start) / 1000, 1e-10)
        self.spin_limit = min(int(SPIN_S / pause_s), 1 << 20)
        name = "SwitchToThread" if os.name == "nt" else "sched_yield"
        self.state.view[YIELD] = llvm_jit.symbol_address(name)
        self.state.view[LUCK] = POOL_STRESS.value
        # A worker that starts before the first list is announced is beside nobody.
        self.state.view[HOME] = NOWHERE
        places = [llvm_jit.symbol_address(name) for name in SYSTEM_FUNCTIONS]
        if all(places):
            for word, address in zip((GET_PROCESSOR, GET_ALLOWED, SET_ALLOWED), places):
                self.state.view[word] = address
        self.enter = list_call(functions, self.state.address)
        self.native = functions
        return functions

    def run(self, list_address: int, threads: int) -> None:
        """Runs a list of kernel calls on up to `threads` threads, this one among them.

        Native code does the whole run in one call, and Python looks at signals only before and
        after it, so Ctrl-C finds either no list open or one that is done.
        """
        with self.lock:
            functions = self.native or self.open()
            helpers = threads - 1
            if len(self.threads) < helpers:
                self.grow(helpers)
                helpers = min(helpers, len(self.threads))
            state = self.state
            try:
                if self.enter(list_address, helpers):
                    for index in range(helpers):
                        if state.view[PARKED + LINE * (index + 1)]:
                            open_gate(self.gates[index])
                    functions.run_list(state.address, list_address, helpers + 1)
            finally:
                # After a signal no list is coming any more, and workers may sleep.
                state.view[COMING] = 0

    def grow(self, count: int) -> None:
        """Starts workers until there are `count`, or as many as the system allows."""
        if self.closed:
            return
        before = threading.stack_size(STACK_BYTES)
        try:
            while len(self.threads) < count:
                number = len(self.threads) + 1
                gate = threading.Lock()
                gate.acquire()
                thread = threading.Thread(
                    target=work,
                    args=(self.native, self.state, number, self.spin_limit, gate),
                    name=f"{OWN_NAME}worker-{number}",
                    daemon=True,
                )
                try:
                    thread.start()
                except RuntimeError:
                    return  # no more threads for this process; a run works with any number
                self.state.view[IDENTITY + LINE * number] = thread.native_id or 0
                self.threads.append(thread)
                self.gates.append(gate)
        except BaseException:
            # A signal in the middle of a start: whether that worker runs is not known.
            self.retire()
            raise
        finally:
            threading.stack_size(before)

    def retire(self) -> list[threading.Thread]:
        """Tells all workers to end, and starts from nothing; returns those that still may run."""
        threads, gates, state = self.threads, self.gates, self.state
        # A worker on its way out reads the old state, and keeps it alive.
        self.threads, self.gates, self.state = [], [], Words(STATE_WORDS)
        self.native = None
        state.view[STOP] = 1
        for gate in gates:
            open_gate(gate)
        return threads

    def stop(self) -> None:
        """Ends all workers. The next run starts new ones."""
        with self.lock:
            deadline = time.monotonic() + 2.0
            for thread in self.retire():
                thread.join(max(0.0, deadline - time.monotonic()))

    def close(self) -> None:
        """Ends all workers for good; later runs have the calling thread alone."""
        with self.lock:
            self.closed = True
            self.stop()


def open_gate(gate: threading.Lock) -> None:
    """Lets the worker through, now or when it comes; only ever called with the pool's lock held."""
    if gate.locked():
        gate.release()


def work(
    functions: Native, state: Words, number: int, spin_limit: int, gate: threading.Lock
) -> None:
    """A worker's life: native code while there is work, asleep while there is none.

    A gate left open by an earlier wake-up only makes it look for work once more.
    """
    while not functions.work(state.address, number, spin_limit):
        if functions.park(state.address, number):
            gate.acquire()


POOL = ThreadPool()
# Threads in native code go on as they began, so others begin where the setting changes.
POOL_STRESS.changed = POOL.stop
atexit.register(POOL.close)


def before_fork() -> None:
    """No list runs and no worker holds anything while the process is copied."""
    # First, as whoever runs a list takes them.
    ENGINE.acquire()
    POOL.lock.acquire()
    POOL.stop()


def after_fork_in_parent() -> None:
    """Lists may run again."""
    POOL.lock.release()
    ENGINE.release()


def after_fork_in_child() -> None:
    """A child has none of the threads, so its pool starts from nothing."""
    POOL.renew()
    ENGINE.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=before_fork,
        after_in_parent=after_fork_in_parent,
        after_in_child=after_fork_in_child,
    )
