"""Native code as functions of Python."""

from __future__ import annotations

import sys
import threading
import time

import numpy as np
import pytest

from aster_ml import Tensor, TinyJit
from aster_ml.runtime.cpu import llvm_jit
from aster_ml.runtime.cpu.native_call import serial_call
from aster_ml.runtime.cpu.pool import POOL, ThreadPool, Words
from aster_ml.runtime.cpu.program import CpuProgram, NativeGraph

ADD_ONE = """
define void @add_one(ptr %args, i64 %lo, i64 %hi) {
  %p = load ptr, ptr %args
  %v = load i64, ptr %p
  %w = add i64 %v, 1
  store i64 %w, ptr %p
  ret void
}
"""


def add_one() -> CpuProgram:
    """A kernel that counts its calls in the memory of its one argument."""
    return CpuProgram("add_one", llvm_jit.load_object(llvm_jit.compile_ir(ADD_ONE), "add_one"))


def test_runs_the_records_and_returns_nothing_of_interest() -> None:
    words = Words(1)
    graph = NativeGraph([(add_one(), (words.address,), (), 1, 1)] * 3)
    run = graph.entry()
    assert [run() for _ in range(5)] == [0] * 5
    assert words.view[0] == 15


def test_none_at_all() -> None:
    assert serial_call(0, 0)() == 0


def test_references_are_balanced() -> None:
    run = serial_call(0, 0)
    before = sys.getrefcount(0), sys.getrefcount(None)
    for _ in range(1000):
        run()
    after = sys.getrefcount(0), sys.getrefcount(None)
    assert max(abs(a - b) for a, b in zip(after, before)) < 100


def test_takes_no_arguments() -> None:
    with pytest.raises(TypeError, match="no arguments"):
        serial_call(0, 0)(1)  # type: ignore[call-arg]


def test_lets_go_of_the_interpreter() -> None:
    """Other threads of Python run while a kernel does."""
    a = Tensor(np.ones((1024, 1024), dtype=np.float32)).realize()
    jitted = TinyJit(lambda a: (a @ a).realize())
    for _ in range(4):
        jitted(a)
    stop, turns = threading.Event(), [0]

    def count() -> None:
        while not stop.is_set():
            turns[0] += 1

    thread = threading.Thread(target=count)
    thread.start()
    before, start = turns[0], time.perf_counter()
    while time.perf_counter() - start < 0.3:
        jitted(a)
    counted = turns[0] - before
    stop.set()
    thread.join()
    assert counted > 100


def test_a_list_on_several_threads_wakes_who_sleeps() -> None:
    words = Words(2)
    pool = ThreadPool()
    program = add_one()
    calls = [(program, (words.at(k),), (), 2, 2 - k) for k in range(2)]
    graph = NativeGraph(calls)
    for pause_s in (0.0, 0.0, 0.01, 0.0, 0.01):
        time.sleep(pause_s)
        pool.run(graph.list_address, 2)
    pool.close()
    assert words.view[1] == 5
    assert POOL is not pool
