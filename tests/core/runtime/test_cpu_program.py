"""Launches and recorded graphs: every part runs once, in an order that the barriers allow."""

from __future__ import annotations

import ctypes
import gc
import random
import sys
import threading
import weakref
from typing import Any

import numpy as np
import pytest

from aster_ml.backend import Call, ThreadParts
from aster_ml.config import Context
from aster_ml.device import Buffer, Device
from aster_ml.dtype import dtypes
from aster_ml.errors import InternalError
from aster_ml.runtime.cpu import program as cpu_program
from aster_ml.runtime.cpu.llvm_jit import compile_ir, load_object
from aster_ml.runtime.cpu.pool import POOL
from aster_ml.runtime.cpu.program import CpuProgram, NativeGraph, graph_of_calls
from aster_ml.runtime.host_memory import HostHandle
from tests.core.runtime_kernels import COUNT, kernel

THREADS = [1, 2, 3, 5]


def data(array: np.ndarray[Any, Any]) -> int:
    return int(array.ctypes.data)


def calls_of(function: Any) -> int:
    """How many Python and C functions a call goes through."""
    count = 0

    def profile(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(profile)
    try:
        function()
    finally:
        sys.setprofile(None)
    return count - 1  # the call that ends the profile


# one launch


@pytest.mark.parametrize("parts", [1, 2, 3, 7, 64])
@pytest.mark.parametrize("n", [0, 1, 2, 5, 63, 64, 1000])
def test_every_index_runs_once(n: int, parts: int) -> None:
    counts = np.zeros(1002, np.int64)
    with Context(THREADS=3):
        for launch in range(3):
            kernel("count").launch((data(counts) + 8,), (), n, parts)
            assert counts[1 : n + 1].tolist() == [launch + 1] * n
    assert counts.sum() == 3 * n


def test_variables_come_after_buffers() -> None:
    x, y = np.arange(20, dtype=np.float32), np.ones(20, np.float32)
    kernel("axpy").launch((data(x), data(y)), (-3,), 20, 1)
    assert y.tolist() == (1 - 3 * x).tolist()
    kernel("axpy").launch((data(x), data(y)), (3,), 20, 2)
    assert y.tolist() == [1] * 20


def test_a_sum_in_parts() -> None:
    values = np.random.default_rng(1).integers(-1000, 1000, (40, 1000))
    sums = np.zeros(40, np.int64)
    with Context(THREADS=2):
        kernel("row_sum").launch((data(values), data(sums)), (1000,), 40, 40)
    assert sums.tolist() == values.sum(1).tolist()


def test_parts_are_balanced() -> None:
    """No part is more than one longer than another, and together they are the whole."""
    recorder = load_object(
        compile_ir("""
        define void @spans(ptr %slots, i64 %lo, i64 %hi) {
          %out = load ptr, ptr %slots
          %size = sub i64 %hi, %lo
          %p = getelementptr i64, ptr %out, i64 %lo
          store i64 %size, ptr %p
          ret void
        }"""),
        "spans",
    )
    program = CpuProgram("spans", recorder)
    for n, parts in [(10, 3), (7, 7), (100, 8), (5, 9), (1000, 64)]:
        spans = np.zeros(n, np.int64)
        program.launch((data(spans),), (), n, parts)
        sizes = spans[spans > 0]
        assert sizes.sum() == n
        assert len(sizes) == min(n, parts)
        assert sizes.max() - sizes.min() <= 1


def test_launches_from_many_threads_at_once() -> None:
    """Slots are not shared, so threads do not see one another's addresses."""
    outputs = [np.zeros(64, np.int64) for _ in range(6)]

    def launch(index: int) -> None:
        source = np.full(64, index, np.int64)
        for step in range(300):
            kernel("shift").launch((data(source), data(outputs[index])), (64, 1), 64, 1 + step % 3)

    threads = [threading.Thread(target=launch, args=(index,)) for index in range(6)]
    with Context(THREADS=2):
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    for index, output in enumerate(outputs):
        assert output.tolist() == [index + 1] * 64


def test_a_small_launch_is_few_calls() -> None:
    counts = np.zeros(4, np.int64)
    addresses = (data(counts),)
    program = kernel("count")
    program.launch(addresses, (), 4, 1)
    # The launch itself, two lengths, the packer of slots and its lookup; the kernel is not seen.
    assert calls_of(lambda: program.launch(addresses, (), 4, 1)) <= 7
    assert counts.tolist() == [2] * 4


# graphs


def chain(n: int, steps: int, parts: Any) -> tuple[list[Any], np.ndarray[Any, Any]]:
    """`steps` kernels, each reading what threads other than its own wrote in the one before."""
    buffers = np.zeros((2, n), np.int64)
    calls = []
    for step in range(steps):
        source, target = buffers[step % 2], buffers[(step + 1) % 2]
        values = (n, n // 2 + step)
        calls.append((kernel("shift"), (data(source), data(target)), values, n, parts(step)))
    return calls, buffers


@pytest.mark.parametrize("threads", THREADS)
def test_barriers_hold(threads: int) -> None:
    with Context(THREADS=threads):
        calls, buffers = chain(97, 200, lambda step: threads)
        graph = NativeGraph(calls)
        for run in range(20):
            graph.run()
            assert set(buffers[0]) == {200 * (run + 1)}


@pytest.mark.parametrize("threads", THREADS)
def test_divided_and_whole_calls_mix(threads: int) -> None:
    rng = random.Random(threads)
    with Context(THREADS=threads):
        calls, buffers = chain(50, 301, lambda step: rng.choice([1, 1, 2, 3, 8]))
        graph = NativeGraph(calls)
        for run in range(1, 11):
            graph.run()
            assert set(buffers[1]) == {301 * run}
            buffers[0] = buffers[1]


@pytest.mark.parametrize("threads", [2, 3])
def test_thousands_of_lists(threads: int) -> None:
    """Short lists one after another, of all sorts, with workers awake, on their way and asleep."""
    rng = random.Random(7)
    counts = np.zeros((8, 64), np.int64)
    wanted = np.zeros(8, np.int64)
    graphs = []
    for _ in range(24):
        rows = [rng.randrange(8) for _ in range(rng.randint(1, 6))]
        calls = [
            Call(
                kernel("count"),
                (HostHandle(data(counts[row]), 512, counts),),
                (),
                ThreadParts(64, parts),
            )
            for row in rows
            for parts in (rng.randint(1, 4),)
        ]
        graphs.append((graph_of_calls(calls), rows))
    with Context(THREADS=threads):
        for step in range(4000):
            graph, rows = rng.choice(graphs)
            graph.run()
            np.add.at(wanted, rows, 1)
            if step % 500 == 0:
                POOL.native.pause(POOL.spin_limit * 3)  # type: ignore[union-attr]
                assert np.array_equal(counts, np.repeat(wanted[:, None], 64, 1))
    assert np.array_equal(counts, np.repeat(wanted[:, None], 64, 1))


def test_calls_without_a_barrier_all_run_before_the_next_group() -> None:
    n = 64
    parts = np.zeros((8, n), np.int64)
    total = np.zeros(n, np.int64)
    calls: list[Any] = [(kernel("count"), (data(parts[i]),), (), n, 2) for i in range(8)]
    transposed = [(kernel("shift"), (data(parts[i]), data(total)), (n, i), n, 2) for i in range(8)]
    with Context(THREADS=2):
        graph = NativeGraph(calls + transposed, [(0, 8), *[(8 + i, 9 + i) for i in range(8)]])
        for run in range(1, 200):
            graph.run()
            assert (parts == run).all()
            assert total.tolist() == [run + 1] * n


def test_addresses_variables_and_sizes_change_between_runs() -> None:
    x, y = np.arange(10, dtype=np.float32), np.zeros(10, np.float32)
    other = np.full(10, 100, np.float32)
    graph = NativeGraph([(kernel("axpy"), (data(x), data(y)), (1,), 10, 2)] * 2)
    graph.run()
    assert y.tolist() == (2 * x).tolist()
    graph.set_var(0, 0, 5)
    graph.set_address(1, 0, data(other))
    graph.run()
    assert y.tolist() == (2 * x + 5 * x + other).tolist()
    graph.set_launch(0, ThreadParts(1))
    graph.set_launch(1, ThreadParts(0))
    y[:] = -1
    graph.run()
    assert y.tolist() == [-1] * 10
    graph.set_launch(1, ThreadParts(4))
    graph.run()
    assert y.tolist() == [99] * 4 + [-1] * 6


def test_an_empty_graph_runs() -> None:
    graph = NativeGraph([])
    graph.run()
    assert (graph.count, graph.parts) == (0, 1)


def test_whole_calls_alone_never_wake_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: Any) -> None:
        raise AssertionError("the pool was used")

    monkeypatch.setattr(POOL, "run", fail)
    counts = np.zeros(64, np.int64)
    graph = NativeGraph([(kernel("count"), (data(counts),), (), 64, 1)] * 100)
    graph.run()
    assert counts.tolist() == [100] * 64


def test_replay_is_two_calls_however_many_kernels() -> None:
    counts = np.zeros(1, np.int64)
    for size in (10, 1000):
        graph = NativeGraph([(kernel("count"), (data(counts),), (), 1, 1)] * size)
        graph.run()
        # The lambda and `run`; the native call is one more that the profile does not see.
        assert calls_of(graph.run) <= 2
    assert counts[0] == 2 * 1010


def test_replay_of_divided_calls_does_not_grow_either() -> None:
    counts = np.zeros(4, np.int64)
    seen = []
    with Context(THREADS=2):
        for size in (10, 1000):
            graph = NativeGraph([(kernel("count"), (data(counts),), (), 4, 2)] * size)
            graph.run()
            seen.append(min(calls_of(graph.run) for _ in range(5)))
    # `run`, the thread count, the pool, its lock; a worker that sleeps is woken with some more.
    assert max(seen) <= 40
    assert counts.tolist() == [6 * 1010] * 4


def test_graphs_keep_their_kernels_loaded() -> None:
    program = CpuProgram("count", load_object(compile_ir(COUNT), "count"))
    alive = weakref.ref(program)
    counts = np.zeros(8, np.int64)
    graph = NativeGraph([(program, (data(counts),), (), 8, 2)])
    program.launch((data(counts),), (), 8, 2)
    del program
    gc.collect()
    assert alive() is not None
    graph.run()
    assert counts.tolist() == [2] * 8
    del graph
    assert alive() is None  # by reference counts alone: there is no circle


def test_more_threads_than_the_pool_may_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody else has to come: the calling thread does the parts of all."""
    POOL.stop()

    class NoThread(threading.Thread):
        def start(self) -> None:
            raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading, "Thread", NoThread)
    with Context(THREADS=4):
        calls, buffers = chain(40, 50, lambda step: 4)
        NativeGraph(calls).run()
    assert POOL.threads == []
    assert set(buffers[0]) == {50}


# what waits for what


def handle_of(array: np.ndarray[Any, Any]) -> HostHandle:
    return HostHandle(data(array), array.nbytes, array)


def test_groups_follow_from_what_calls_write() -> None:
    a, b, c = (handle_of(np.zeros(64, np.int64)) for _ in range(3))

    def shift(source: Any, target: Any, parts: int) -> Call:
        return Call(
            kernel("shift"), (source, target), (64, 1), ThreadParts(64, parts), frozenset({1})
        )

    graph = graph_of_calls([shift(a, b, 1), shift(b, a, 1), shift(b, c, 2)])
    assert graph.groups() == [(0, 2), (2, 3)]
    # Two readers of the same memory need not wait for one another.
    assert graph_of_calls([shift(a, b, 2), shift(a, c, 2)]).groups() == [(0, 2)]
    # A kernel of which nothing is known may write to everything.
    unknown = [Call(kernel("count"), (a,), (), ThreadParts(64, 2))] * 2
    assert graph_of_calls(unknown).groups() == [(0, 1), (1, 2)]


def test_a_graph_is_checked_on_the_memory_of_now() -> None:
    a, b, c = (handle_of(np.zeros(64, np.int64)) for _ in range(3))
    calls = [
        Call(kernel("shift"), (source, target), (64, 1), ThreadParts(64, 2), frozenset({1}))
        for source, target in ((a, b), (a, c))
    ]
    graph = graph_of_calls(calls)
    graph.check(calls)
    calls[1] = calls[1]._replace(handles=(b, c))
    with pytest.raises(InternalError, match=r"calls 0 and 1 run side by side, in 2 and 2 parts"):
        graph.check(calls)


# through the device


def test_the_backend_makes_graphs_of_handles() -> None:
    backend = Device["CPU"]
    x = Buffer("CPU", 30, dtypes.int64).copyin(np.arange(30))
    y = Buffer("CPU", 30, dtypes.int64).ensure_allocated()
    z = Buffer("CPU", 30, dtypes.int64).ensure_allocated()
    graph = backend.make_graph(
        [
            Call(kernel("shift"), (x.handle, y.handle), (30, 1), ThreadParts(30, 2)),
            Call(kernel("shift"), (y.handle, z.handle), (30, 1), ThreadParts(30)),
        ]
    )
    assert graph is not None
    graph.run()
    assert z.numpy().tolist() == [(i + 2) % 30 + 2 for i in range(30)]
    graph.set_handle(1, 0, x.handle)
    graph.set_var(1, 1, 0)
    graph.run()
    assert z.numpy().tolist() == [i + 1 for i in range(30)]


def test_kernels_of_other_devices_are_refused() -> None:
    null = Device["NULL"]
    program = null.load("k", b"")
    with pytest.raises(InternalError, match="is no kernel of the CPU"):
        Device["CPU"].make_graph([Call(program, ())])
    assert null.make_graph([Call(program, ())]) is None


def test_slots_are_packed_as_the_kernel_reads_them() -> None:
    packed = cpu_program.slot_packer(3)(1, -1, 1 << 62)
    assert list((ctypes.c_int64 * 3).from_buffer_copy(packed)) == [1, -1, 1 << 62]
