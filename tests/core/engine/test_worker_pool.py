"""Calls beside the caller, and kernels that are compiled so."""

from __future__ import annotations

import gc
import os
import re
import signal
import sys
import threading
from typing import Any

import numpy as np
import pytest

from aster_ml import Context, GlobalCounters, Tensor
from aster_ml.device import Device
from aster_ml.engine.caches import CACHES
from aster_ml.engine.compile import compile_kernels
from aster_ml.engine.realize import schedule_uops
from aster_ml.engine.worker_pool import SWITCH_S, WorkerPool
from aster_ml.errors import CompileError
from aster_ml.runtime.cpu import llvm_jit
from aster_ml.runtime.cpu.device import CpuBackend
from aster_ml.uop.gc_pause import uncollected

IR = "define i64 @f() {{\n  ret i64 {0}\n}}\n"


@pytest.mark.parametrize("threads", [0, 1, 3])
def test_results_are_those_of_the_calls(threads: int) -> None:
    with WorkerPool(threads) as beside:
        jobs = [beside.begin(lambda i=i: i * i) for i in range(20)]
        for job in jobs[::2]:
            job.run_now()
        assert [job.result() for job in jobs] == [i * i for i in range(20)]


@pytest.mark.parametrize("threads", [0, 1])
def test_a_call_runs_once(threads: int) -> None:
    ran = []
    with WorkerPool(threads) as beside:
        jobs = [beside.begin(lambda i=i: ran.append(i)) for i in range(3)]
        for job in jobs:
            job.run_now()
            job.result()
            job.run_now()
            job.result()
    assert sorted(ran) == [0, 1, 2]


@pytest.mark.parametrize("threads", [0, 1])
def test_control_c_ends_more_than_the_call_that_it_meets(threads: int) -> None:
    def work() -> None:
        raise KeyboardInterrupt

    with WorkerPool(threads) as beside:
        busy = threading.Event()
        first = beside.begin(lambda: busy.wait(30))
        job = beside.begin(work)
        with pytest.raises(KeyboardInterrupt):
            job.run_now()
        with pytest.raises(KeyboardInterrupt):
            job.result()
        busy.set()
        assert first.result()


@pytest.mark.parametrize("early", [True, False])
def test_control_c_while_a_thread_is_started(early: bool, monkeypatch: Any) -> None:
    """It is itself, and no error of threads; none of them is left."""
    plain, before = threading.Thread.start, threading.active_count()
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)

    def start(thread: threading.Thread) -> None:
        if early:
            signal.raise_signal(signal.SIGINT)
        plain(thread)
        if not early:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(threading.Thread, "start", start)
    try:
        with pytest.raises(KeyboardInterrupt), WorkerPool(2) as beside:
            beside.begin(lambda: None)
    finally:
        signal.signal(signal.SIGINT, handler)
    assert threading.active_count() == before


def test_calls_run_while_the_caller_goes_on() -> None:
    begun, go_on = threading.Event(), threading.Event()

    def work() -> str:
        begun.set()
        assert go_on.wait(30)
        return threading.current_thread().name

    with WorkerPool(1) as beside:
        job = beside.begin(work)
        assert begun.wait(30)
        # It has begun, so this leaves it where it is.
        job.run_now()
        go_on.set()
        assert job.result() != threading.current_thread().name


def test_the_caller_takes_what_nobody_has_begun() -> None:
    go_on = threading.Event()
    with WorkerPool(1) as beside:
        first = beside.begin(lambda: go_on.wait(30))
        second = beside.begin(threading.get_ident)
        second.run_now()
        go_on.set()
        assert first.result()
        assert second.result() == threading.get_ident()


@pytest.mark.parametrize("threads", [0, 2])
def test_an_error_of_a_call_is_raised_where_its_result_is_wanted(threads: int) -> None:
    with WorkerPool(threads) as beside:
        job = beside.begin(lambda: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            job.result()


def test_the_switch_interval_is_as_before() -> None:
    before = sys.getswitchinterval()
    with WorkerPool(1):
        with WorkerPool(2):
            assert sys.getswitchinterval() == pytest.approx(min(before, SWITCH_S))
        assert sys.getswitchinterval() == pytest.approx(min(before, SWITCH_S))
    assert sys.getswitchinterval() == pytest.approx(before)


def test_the_search_for_circles_rests_and_comes_back() -> None:
    assert gc.isenabled()
    with uncollected():
        with uncollected():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()
    with pytest.raises(ValueError, match="wrong"), uncollected():
        raise ValueError("wrong")
    assert gc.isenabled()


def normal(*shape: int) -> Tensor:
    """Normal numbers in memory."""
    return Tensor(np.random.RandomState(0).randn(*shape).astype(np.float32)).realize()


def kernels(count: int) -> list[Tensor]:
    """Values that no kernel serves together."""
    return [normal(7 + i, 9).exp2().sum(axis=i % 2) for i in range(count)]


@pytest.mark.parametrize("threads", [1, 4])
def test_kernels_compiled_in_threads_are_right(threads: int) -> None:
    values = kernels(12)
    expected = [np.exp2(normal(7 + i, 9).numpy()).sum(axis=i % 2) for i in range(12)]
    with Context(CACHE=0, THREADS=threads):
        CACHES.kernels.clear()
        before = GlobalCounters.compiled_kernels
        Tensor.realize(*values)
    assert GlobalCounters.compiled_kernels - before >= 12
    for found, wanted in zip(values, expected, strict=True):
        np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-5)


@pytest.mark.parametrize("count, threads", [(1, 2), (8, 1), (9, 2)])
def test_the_compiler_gets_each_kernel_once(count: int, threads: int, monkeypatch) -> None:
    compile_source, seen = CpuBackend.compile, []

    def note(self: CpuBackend, source: str) -> bytes:
        seen.append(source)
        return compile_source(self, source)

    values = kernels(count)
    monkeypatch.setattr(CpuBackend, "compile", note)
    with Context(CACHE=0, THREADS=threads):
        CACHES.kernels.clear()
        Tensor.realize(*values)
    made = [text for source in seen for text in re.findall(r"^define .*?^}", source, re.M | re.S)]
    assert len(made) == len(set(made)) == count
    # Small ones are compiled together.
    assert len(seen) < count or count == 1 or threads > 1


def test_equal_kernels_are_compiled_once() -> None:
    steps = schedule_uops([t.uop for t in kernels(2)])[0].steps
    asts = [(step.ast, Device["CPU"]) for step in steps if step.ast is not None]
    with Context(CACHE=0):
        CACHES.kernels.clear()
        before = GlobalCounters.compiled_kernels
        found = compile_kernels([*asts, *asts])
        assert GlobalCounters.compiled_kernels - before == len(set(asts))
        assert found[: len(asts)] == found[len(asts) :]
        assert compile_kernels(asts) == found[: len(asts)]
    assert GlobalCounters.compiled_kernels - before == len(set(asts))


def test_a_kernel_that_is_refused_leaves_nothing_behind(monkeypatch) -> None:
    values = kernels(6)

    def refuse(self: CpuBackend, source: str) -> bytes:
        raise CompileError("refused")

    with Context(CACHE=0, THREADS=3):
        CACHES.kernels.clear()
        monkeypatch.setattr(CpuBackend, "compile", refuse)
        with pytest.raises(CompileError, match="refused"):
            Tensor.realize(*values)
        assert not CACHES.kernels.entries
        monkeypatch.undo()
        Tensor.realize(*values)
    assert gc.isenabled()
    assert np.isfinite(values[5].numpy()).all()


def test_llvm_gives_several_threads_what_it_gives_one() -> None:
    sources = [IR.format(i) for i in range(40)]
    alone = [llvm_jit.compile_ir(source) for source in sources]
    with WorkerPool(4) as beside:
        jobs = [beside.begin(lambda s=s: llvm_jit.compile_ir(s)) for s in sources]
        assert [job.result() for job in jobs] == alone
        refused = beside.begin(lambda: llvm_jit.compile_ir("define i64 @f() { ret i32 0 }"))
        with pytest.raises(CompileError, match="refused"):
            refused.result()


def test_a_generator_that_is_given_back_while_one_is_made_is_noted_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A copy of the process takes the lock of each: twice, and it would wait for itself."""
    level = llvm_jit.CODEGEN_LEVEL
    old = llvm_jit.Generator("", level)
    monkeypatch.setattr(llvm_jit, "IDLE_GENERATORS", {("", level): []})
    monkeypatch.setattr(llvm_jit, "GENERATORS", [old])
    make = llvm_jit.make_target_machine

    def make_late(isa: str, codegen_level: int) -> Any:
        llvm_jit.IDLE_GENERATORS[isa, level].append(old)
        return make(isa, codegen_level)

    monkeypatch.setattr(llvm_jit, "make_target_machine", make_late)
    made = llvm_jit.take_generator("", level)
    assert made is not old
    assert llvm_jit.GENERATORS == [old, made]
    assert llvm_jit.take_generator("", level) is old


# From 3.12 on Python warns of every copy that is made beside threads.
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="copies of a process are of POSIX alone")
def test_a_copy_of_the_process_compiles_while_threads_do() -> None:
    stop = threading.Event()

    def compile_on() -> int:
        count = 0
        while not stop.is_set():
            llvm_jit.compile_ir(IR.format(count % 7))
            count += 1
        return count

    with WorkerPool(2) as beside:
        jobs = [beside.begin(compile_on) for _ in range(2)]
        codes = []
        for i in range(5):
            child = os.fork()
            if not child:
                code = 1
                try:
                    code = 0 if llvm_jit.compile_ir(IR.format(100 + i)) else 2
                finally:
                    os._exit(code)
            codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        stop.set()
        assert codes == [0] * 5
        assert all(job.result() > 0 for job in jobs)


def test_what_launches_need_is_made_ready_beside_kernels(monkeypatch) -> None:
    made: list[str] = []
    monkeypatch.setattr(
        CpuBackend, "prepare", lambda self: made.append(threading.current_thread().name)
    )
    with Context(CACHE=0, THREADS=2):
        CACHES.kernels.clear()
        Tensor.realize(*kernels(3))
        assert len(made) == 1
        assert made[0] != threading.current_thread().name
        Tensor.realize(*kernels(3))
    with Context(CACHE=0, THREADS=1):
        CACHES.kernels.clear()
        Tensor.realize(*kernels(4))
    assert len(made) == 1


def test_an_error_of_making_ready_is_raised(monkeypatch) -> None:
    def refuse(self: CpuBackend) -> None:
        raise CompileError("refused")

    monkeypatch.setattr(CpuBackend, "prepare", refuse)
    with Context(CACHE=0, THREADS=2):
        CACHES.kernels.clear()
        with pytest.raises(CompileError, match="refused"):
            Tensor.realize(*kernels(5))
