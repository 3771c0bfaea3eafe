"""Manages the CPU's worker threads: Python threads that wait and work in native code.

Receives the address of a list of kernel calls (`cpu/program` lays it out) and returns when it has
run. A worker spins in native code for a moment after each list, in case another follows, then
sleeps on a Python lock. Buffers and kernels do not belong here.

A run never depends on a worker (see `cpu/worker`), so a thread that fails to start, is preempted,
or receives a signal costs time and never hangs.
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

# Time for which a worker spins before it sleeps.
SPIN_S = 200e-6
# Kernels keep LOCAL scratch on the stack, and some systems give threads very little.
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
    """CPU quota and period of a container, in microseconds; (0, 0) without a quota."""
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
    """The calling thread and its workers. Workers start when a list first needs them."""

    def __init__(self) -> None:
        self.renew()
        self.closed = False

    def renew(self) -> None:
        """Resets the pool: no workers, no list, a free lock."""
        self.lock = threading.RLock()
        self.state = Words(STATE_WORDS)
        self.native: Native | None = None
        self.enter: Callable[[int, int], int]
        self.spin_limit = 0
        self.threads: list[threading.Thread] = []
        # A worker sleeps by acquiring its gate, which is released to wake it. (An Event would do,
        # but it is written in Python, and a signal in the middle of it leaves it locked.)
        self.gates: list[threading.Lock] = []

    def open(self) -> Native:
        """Loads the native code and measures the duration of a pause."""
        functions = native(POOL_STRESS.value > 0)
        functions.pause(10)
        start = time.perf_counter()
        functions.pause(1000)
        pause_s = max((time.perf_counter() - start) / 1000, 1e-10)
        self.spin_limit = min(int(SPIN_S / pause_s), 1 << 20)
        name = "SwitchToThread" if os.name == "nt" else "sched_yield"
        self.state.view[YIELD] = llvm_jit.symbol_address(name)
        self.state.view[LUCK] = POOL_STRESS.value
        # Before the first list the caller's processor is unknown.
        self.state.view[HOME] = NOWHERE
        places = [llvm_jit.symbol_address(name) for name in SYSTEM_FUNCTIONS]
        if all(places):
            for word, address in zip((GET_PROCESSOR, GET_ALLOWED, SET_ALLOWED), places):
                self.state.view[word] = address
        self.enter = list_call(functions, self.state.address)
        self.native = functions
        return functions

    def run(self, list_address: int, threads: int) -> None:
        """Runs a list of kernel calls on up to `threads` threads, including this one.

        The run is one native call, and Python handles signals only before and after it, so Ctrl-C
        never interrupts an open list.
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
                # After a signal no list follows, and workers may sleep.
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
            # A signal during a start: it is unknown whether that worker runs.
            self.retire()
            raise
        finally:
            threading.stack_size(before)

    def retire(self) -> list[threading.Thread]:
        """Signals all workers to end, and resets the pool; returns threads that may still run."""
        threads, gates, state = self.threads, self.gates, self.state
        # An ending worker reads the old state, and keeps it alive.
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
        """Ends all workers permanently; later runs use the calling thread only."""
        with self.lock:
            self.closed = True
            self.stop()


def open_gate(gate: threading.Lock) -> None:
    """Wakes the worker, now or at its next sleep; called with the pool's lock held."""
    if gate.locked():
        gate.release()


def work(
    functions: Native, state: Words, number: int, spin_limit: int, gate: threading.Lock
) -> None:
    """The main function of a worker: runs native code while there is work, else sleeps.

    A gate left open by an earlier wake-up causes one more look for work.
    """
    while not functions.work(state.address, number, spin_limit):
        if functions.park(state.address, number):
            gate.acquire()


POOL = ThreadPool()
# Threads read the setting when they start, so a change restarts them.
POOL_STRESS.changed = POOL.stop
atexit.register(POOL.close)


def before_fork() -> None:
    """Acquires the locks, so that no list runs during a fork."""
    # The order in which a run acquires the locks.
    ENGINE.acquire()
    POOL.lock.acquire()
    POOL.stop()


def after_fork_in_parent() -> None:
    """Releases the locks."""
    POOL.lock.release()
    ENGINE.release()


def after_fork_in_child() -> None:
    """Resets the pool of a child, which has none of the threads."""
    POOL.renew()
    ENGINE.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=before_fork,
        after_in_parent=after_fork_in_parent,
        after_in_child=after_fork_in_child,
    )
