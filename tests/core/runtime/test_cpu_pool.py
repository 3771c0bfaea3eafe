"""Threads across forks, signals and the end of the interpreter."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest

from aster_ml.config import Context
from aster_ml.runtime.cpu import llvm_jit
from aster_ml.runtime.cpu.llvm_jit import compile_ir, load_object
from aster_ml.runtime.cpu.places import (
    AWAY_FROM,
    GET_ALLOWED,
    GET_PROCESSOR,
    HOME,
    SET_ALLOWED,
)
from aster_ml.runtime.cpu.pool import MAX_THREADS, POOL, ThreadPool, Words, processor_count
from aster_ml.runtime.cpu.program import CpuProgram, NativeGraph
from aster_ml.runtime.cpu.worker import LINE, STATE_WORDS, native, worker_ir
from tests.core.runtime_kernels import kernel, python_environment, run_python

# A child that stands still ends with where each of its threads is, before who waits gives up.
PREPARE = """
import faulthandler, os, signal, sys, threading, time, warnings
faulthandler.dump_traceback_later(50, exit=True)
# Python 3.12 and later warn of every fork of a process that has threads.
warnings.filterwarnings("ignore", ".*use of fork", DeprecationWarning)
import numpy as np
from aster_ml.config import THREADS
from aster_ml.runtime.cpu.pool import POOL
from aster_ml.runtime.cpu.program import CpuProgram, NativeGraph
from aster_ml.runtime.cpu.llvm_jit import compile_ir, load_object
from tests.core.runtime_kernels import kernel
THREADS.value = 3
counts = np.zeros(64, np.int64)
graph = NativeGraph([(kernel("count"), (counts.ctypes.data,), (), 64, 3)] * 50)
graph.run()
assert set(counts) == {50} and len(POOL.threads) == 2
"""

posix = pytest.mark.skipif(os.name != "posix", reason="signals and forks as POSIX has them")


def counting_graph(parts: int, length: int = 20) -> tuple[NativeGraph, np.ndarray]:  # type: ignore[type-arg]
    counts = np.zeros(64, np.int64)
    call = (kernel("count"), (counts.ctypes.data,), (), 64, parts)
    return NativeGraph([call] * length), counts


def test_workers_start_when_they_are_wanted_and_stay() -> None:
    POOL.stop()
    graph, counts = counting_graph(3)
    with Context(THREADS=1):
        graph.run()
        assert POOL.threads == []
    with Context(THREADS=3):
        graph.run()
        threads = list(POOL.threads)
        assert [thread.name for thread in threads] == ["aster-worker-1", "aster-worker-2"]
        assert all(thread.daemon for thread in threads)
        graph.run()
    assert POOL.threads == threads
    with Context(THREADS=2):
        graph.run()
    assert set(counts) == {80}
    POOL.stop()
    assert not any(thread.is_alive() for thread in threads)


def test_workers_do_their_share() -> None:
    """Each part spins until the other has begun, so one thread alone could not end it."""
    meet = """
    define void @meet(ptr %slots, i64 %lo, i64 %hi) {
    entry:
      %counter = load ptr, ptr %slots
      %p1 = getelementptr i64, ptr %slots, i64 1
      %wanted = load i64, ptr %p1
      %mine = atomicrmw add ptr %counter, i64 1 seq_cst
      br label %wait
    wait:
      %now = load atomic i64, ptr %counter seq_cst, align 8
      %all = icmp sge i64 %now, %wanted
      br i1 %all, label %done, label %wait
    done:
      ret void
    }"""
    program = CpuProgram("meet", load_object(compile_ir(meet), "meet"))
    counter = np.zeros(1, np.int64)
    with Context(THREADS=2):
        for run in range(1, 6):
            program.launch((counter.ctypes.data,), (2 * run,), 2, 2)
            assert counter[0] == 2 * run


def test_a_thread_that_is_held_up_leaves_its_parts_to_others() -> None:
    """The caller stays in its first part until all others have run: seven of the eight are left."""
    held = """
    define void @held(ptr %slots, i64 %lo, i64 %hi) {
    entry:
      %counter = load ptr, ptr %slots
      %p1 = getelementptr i64, ptr %slots, i64 1
      %others = load i64, ptr %p1
      %first = icmp eq i64 %lo, 0
      br i1 %first, label %wait, label %other
    other:
      %mine = atomicrmw add ptr %counter, i64 1 seq_cst
      ret void
    wait:
      %now = load atomic i64, ptr %counter seq_cst, align 8
      %all = icmp sge i64 %now, %others
      br i1 %all, label %done, label %wait
    done:
      ret void
    }"""
    program = CpuProgram("held", load_object(compile_ir(held), "held"))
    counter = np.zeros(1, np.int64)
    with Context(THREADS=2):
        for run in range(1, 6):
            program.launch((counter.ctypes.data,), (7 * run,), 8, 8)
            assert counter[0] == 7 * run


def test_own_parts_come_in_order_and_those_of_others_from_their_end() -> None:
    """Neighbours run one after the other, and who takes over keeps away from where the owner is."""
    log = """
    define void @log(ptr %slots, i64 %lo, i64 %hi) {
      %out = load ptr, ptr %slots
      %p1 = getelementptr i64, ptr %slots, i64 1
      %counter = load ptr, ptr %p1
      %place = atomicrmw add ptr %counter, i64 1 seq_cst
      %p = getelementptr i64, ptr %out, i64 %place
      store i64 %lo, ptr %p
      ret void
    }"""
    program = CpuProgram("log", load_object(compile_ir(log), "log"))
    order, counter = np.zeros(9, np.int64), np.zeros(1, np.int64)
    graph = NativeGraph([(program, (order.ctypes.data, counter.ctypes.data), (), 9, 9)])
    # Nobody else ever comes: these workers are never started.
    state = Words(STATE_WORDS)
    for threads, want in (
        (1, [0, 1, 2, 3, 4, 5, 6, 7, 8]),
        (2, [0, 1, 2, 3, 8, 7, 6, 5, 4]),
        (3, [0, 1, 2, 8, 7, 6, 5, 4, 3]),
    ):
        counter[0] = 0
        native().run_list(state.address, graph.list_address, threads)
        assert order.tolist() == want


def test_a_pool_that_is_closed_runs_alone() -> None:
    graph, counts = counting_graph(4)
    pool = ThreadPool()
    pool.run(graph.list_address, 4)
    assert len(pool.threads) == 3
    threads = list(pool.threads)
    pool.close()
    assert not any(thread.is_alive() for thread in threads)
    pool.run(graph.list_address, 4)
    assert pool.threads == []
    assert set(counts) == {40}


def test_sleepers_are_woken() -> None:
    graph, counts = counting_graph(2)
    with Context(THREADS=2):
        for run in range(30):
            graph.run()
            # Longer than a worker spins, so that it is asleep or on the way there.
            POOL.native.pause(POOL.spin_limit + 100 * run)  # type: ignore[union-attr]
    assert set(counts) == {600}


def test_runs_from_many_threads() -> None:
    results = []

    def churn() -> None:
        graph, counts = counting_graph(3)
        for _ in range(100):
            graph.run()
        results.append(set(counts))

    with Context(THREADS=3):
        threads = [threading.Thread(target=churn) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert results == [{2000}] * 4


def test_words_are_aligned_and_shared() -> None:
    for count in (1, 7, 64, 1000):
        words = Words(count)
        assert words.address % 64 == 0
        assert len(words.view) == count
        words.view[count - 1] = -5
        assert words.array.tolist().count(-5) == 1
        assert words.at(count) == words.address + 8 * count


def test_processor_count_is_sensible() -> None:
    assert 1 <= processor_count() <= (os.cpu_count() or 1)
    assert processor_count() <= MAX_THREADS or sys.platform != "linux"


# forks


@posix
def test_a_forked_child_has_a_pool_of_its_own() -> None:
    code = """
child = os.fork()
graph.run()
assert set(counts) == {100} and len(POOL.threads) == 2, (set(counts), POOL.threads)
assert all(thread.is_alive() for thread in POOL.threads)
if child == 0:
    grandchild = os.fork()
    graph.run()
    assert set(counts) == {150}
    if grandchild:
        assert os.waitpid(grandchild, 0)[1] == 0
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
print("parent and children ran")
"""
    assert run_python(PREPARE + code) == "parent and children ran\n"


@posix
def test_forks_while_another_thread_runs_lists() -> None:
    code = """
stop = threading.Event()
def churn():
    while not stop.is_set():
        graph.run()
thread = threading.Thread(target=churn)
thread.start()
for _ in range(10):
    child = os.fork()
    if child == 0:
        own = np.zeros(64, np.int64)
        kernel("count").launch((own.ctypes.data,), (), 64, 3)
        os._exit(0 if set(own) == {1} else 1)
    assert os.waitpid(child, 0)[1] == 0
stop.set()
thread.join()
assert len(set(counts)) == 1 and counts[0] % 50 == 0
print("all children ran")
"""
    # Python 3.12 warns of forks beside threads, which is what this test is about.
    output = run_python(PREPARE + code, PYTHONWARNINGS="ignore::DeprecationWarning")
    assert output == "all children ran\n"


# signals


@posix
def test_control_c_in_the_middle_leaves_the_pool_usable() -> None:
    code = """
# Whoever starts a job in the background of a shell has it ignore Ctrl-C, and so do its children.
signal.signal(signal.SIGINT, signal.default_int_handler)
graph = NativeGraph([(kernel("count"), (counts.ctypes.data,), (), 64, 3)] * 2000)
counts[:] = 0
interrupted = 0
for _ in range(20):
    try:
        print("running", flush=True)
        while True:
            graph.run()
    except KeyboardInterrupt:
        interrupted += 1
        # Lists are done or not begun, never half.
        assert len(set(counts)) == 1 and counts[0] % 2000 == 0, counts
        counts[:] = 0
        graph.run()
        assert set(counts) == {2000}
        counts[:] = 0
print("survived", interrupted)
"""
    process = subprocess.Popen(
        [sys.executable, "-c", PREPARE + code], env=python_environment(), text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    for _ in range(20):
        line = process.stdout.readline()
        assert line == "running\n", process.communicate()
        process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=60)
    assert (output, process.returncode) == ("survived 20\n", 0), errors


@posix
def test_signals_at_any_step() -> None:
    code = """
class Alarm(Exception):
    pass
def ring(number, frame):
    raise Alarm
signal.signal(signal.SIGALRM, ring)
program = kernel("count")
address = counts.ctypes.data
alarms = 0
for step in range(400):
    try:
        signal.setitimer(signal.ITIMER_REAL, 2e-5 + 1e-6 * (step % 97))
        while True:
            program.launch((address,), (), 64, 3)
    except Alarm:
        alarms += 1
assert len(set(counts)) == 1, set(counts)
before = counts[0]
graph.run()
assert set(counts) == {before + 50}
assert all(thread.is_alive() for thread in POOL.threads)
print(alarms)
"""
    assert run_python(PREPARE + code) == "400\n"


# the end


@pytest.mark.parametrize(
    "ending",
    [
        "",
        "sys.exit(0)",
        "time.sleep(0.05)",  # by then the workers sleep
        "import atexit; atexit.register(graph.run)",
        "class Late:\n    def __del__(self): graph.run()\nlate = Late()",
        "threading.Thread(target=lambda: [graph.run() for _ in range(200)]).start()",
        "threading.Thread(target=lambda: [graph.run() for _ in range(20000)], daemon=True).start()",
    ],
)
def test_the_interpreter_ends(ending: str) -> None:
    assert run_python(f"{PREPARE}\n{ending}\n") == ""


# other processors


@pytest.mark.parametrize(
    "triple, pause",
    [
        ("x86_64-pc-windows-msvc", "pause"),
        ("x86_64-apple-darwin23", "pause"),
        ("aarch64-unknown-linux-gnu", "yield"),
        ("arm64-apple-darwin23", "yield"),
        ("powerpc64le-unknown-linux-gnu", ""),
    ],
)
def test_the_worker_compiles_for_other_processors(triple: str, pause: str) -> None:
    """No call to a helper that a JIT would have to find, and the pause where there is one."""
    llvm = llvm_jit.binding()
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    try:
        target = llvm.Target.from_triple(triple)
    except RuntimeError:
        pytest.skip(f"this LLVM has no code generator for {triple}")
    module = llvm.parse_assembly(worker_ir(triple.partition("-")[0]), llvm.create_context())
    module.verify()
    module.triple = triple
    assembly = target.create_target_machine(opt=1, reloc="pic").emit_assembly(module)
    lines = [line.split() for line in assembly.splitlines()]
    assert pause == "" or [pause] in lines
    assert "__atomic" not in assembly
    assert "aster_run_list" in assembly


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="the system has no affinity")
def test_a_worker_that_is_woken_may_run_anywhere_again() -> None:
    """It is kept off the caller's processor only until it is awake."""
    allowed = os.sched_getaffinity(0)
    pool = ThreadPool()
    functions, state = pool.open(), pool.state
    found = []

    def wake() -> None:
        """What a worker does that the caller has kept off a processor while it slept."""
        away = min(allowed)
        os.sched_setaffinity(0, allowed - {away} or allowed)
        state.view[AWAY_FROM + LINE] = away + 1
        found.append(functions.work(state.address, 1, 1000))
        found.append(os.sched_getaffinity(0))

    thread = threading.Thread(target=wake)
    thread.start()
    thread.join()
    assert found == [0, allowed]
    assert state.view[AWAY_FROM + LINE] == 0


class FakeSystem:
    """A thread's processor, and which ones it may use, for a pool in place of the system's words.

    It may use 0 to 7 at first, and moves to the lowest that is left.
    """

    def __init__(self, pool: ThreadPool) -> None:
        self.processor, self.allowed, self.changes = 0, 255, list[int]()
        ask = ctypes.CFUNCTYPE(ctypes.c_int)
        change = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_size_t, ctypes.c_void_p)
        self.functions = ask(lambda: self.processor), change(self.get), change(self.set)
        for word, function in zip((GET_PROCESSOR, GET_ALLOWED, SET_ALLOWED), self.functions):
            pool.state.view[word] = ctypes.cast(function, ctypes.c_void_p).value or 0

    def get(self, thread: int, nbytes: int, place: int) -> int:
        ctypes.memmove(place, self.allowed.to_bytes(nbytes, "little"), nbytes)
        return 0

    def set(self, thread: int, nbytes: int, place: int) -> int:
        self.allowed = int.from_bytes(ctypes.string_at(place, nbytes), "little")
        self.changes.append(self.allowed)
        while not self.allowed >> self.processor & 1:
            self.processor = (self.processor + 1) % 8
        return 0


def test_a_worker_keeps_away_from_where_the_caller_is_now() -> None:
    """Not from where it was at the last list, nor from processor 0 before the first."""
    pool = ThreadPool()
    pool.open()
    functions, state = pool.native, pool.state
    assert functions is not None
    system = FakeSystem(pool)
    assert functions.work(state.address, 1, 1000) == 0
    assert system.changes == []
    system.processor = 5
    assert functions.announce(state.address, 0) == 0
    assert state.view[HOME] == 5
    assert functions.work(state.address, 1, 1000) == 0
    assert system.changes == [255 - 32, 255]
    assert system.processor == 6
    assert functions.work(state.address, 1, 1000) == 0
    assert system.changes == [255 - 32, 255]


# stress


def shifts(length: int, groups: list[tuple[int, int]]) -> tuple[NativeGraph, np.ndarray]:  # type: ignore[type-arg]
    """Calls each of which reads what the one before wrote, in another place."""
    n = 64
    rows = np.zeros((length + 1, n), np.int64)
    calls = [
        (kernel("shift"), (rows[i].ctypes.data, rows[i + 1].ctypes.data), (n, n // 2), n, 4)
        for i in range(length)
    ]
    return NativeGraph(calls, groups), rows


def wrong_runs(graph: NativeGraph, rows: np.ndarray, runs: int) -> int:  # type: ignore[type-arg]
    """In how many runs a call read what was not there yet."""
    wrong = 0
    for _ in range(runs):
        rows[1:] = 0
        graph.run()
        wrong += set(rows[-1]) != {len(rows) - 1}
    return wrong


def test_stress_finds_a_barrier_that_is_missing() -> None:
    length = 6
    with Context(THREADS=3, POOL_STRESS=5):
        graph, rows = shifts(length, [(i, i + 1) for i in range(length)])
        assert wrong_runs(graph, rows, 200) == 0
        graph, rows = shifts(length, [(0, length)])
        assert wrong_runs(graph, rows, 200) > 0


def test_stress_ends_with_the_setting() -> None:
    with Context(THREADS=2, POOL_STRESS=0):
        graph, _ = counting_graph(3)
        graph.run()
        plain = POOL.native
        with Context(POOL_STRESS=1):
            graph.run()
            assert POOL.native is not None
            assert POOL.native is not plain
        graph.run()
        assert POOL.native is plain


@pytest.mark.parametrize("threads", [1, 2, 7])
def test_every_part_runs_once_under_stress(threads: int) -> None:
    with Context(THREADS=threads, POOL_STRESS=3):
        graph, counts = counting_graph(5)
        for run in range(1, 21):
            graph.run()
            assert set(counts) == {20 * run}
