"""Compiler time a UOp: seconds from a graph to running code, over the nodes that they are spent on.

End to end: everything that the first `realize` takes and a later one does not (schedule, codegen,
LLVM, loading), in a fresh process with an empty disk cache. Kernels that run on threads are left
out of both, with the start of these threads: GPT-2's take as long as all else in its first step,
and what disturbs them now and then would be most of the difference. Once a process, and not for
each UOp, LLVM is loaded, rules become matchers of Python code, and the system provides memory: that
is done before the clock starts, and the rows of first calls have it.

The limit is for the nodes that the compiler makes. Other rows have the seconds over what
is left of them in three forms (the tensors' graph, the kernels' graphs, the linear programs, which
keep lanes as one node), over the tensors' graph alone, and over kernels.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import importlib.util
import time
from collections.abc import Callable
from types import FrameType
from typing import Any, Self

import numpy as np

from benchmarks import networks
from benchmarks.calls import run_seen
from benchmarks.libraries import Lazy, Library
from benchmarks.row import Row, Wanted

SUBJECT = "compile time"
# Steps after the first, whose kernels are compiled.
AGAIN = 3
# Blocks from one page up to more than any result of the networks, or what their temporaries share
# (76 MB for the CNN's step). Where the machine is a virtual one, its host provides memory at the
# first touch: 2.7 ms a MB where the limits were set.
PAGE_NBYTES, LARGEST_NBYTES = 4096, 96 << 20


def count_kernels(tensors: list[Any]) -> tuple[int, int]:
    """Different kernels that realizing these takes, those of runs too, and the nodes of their two
    forms.
    """
    toposort = importlib.import_module("aster_ml.uop.graph").toposort
    lower = importlib.import_module("aster_ml.codegen.passes").lower
    schedule_uops = importlib.import_module("aster_ml.engine.realize").schedule_uops
    target = importlib.import_module("aster_ml.device").Device["CPU"].target
    steps = schedule_uops([t.uop for t in tensors])[0].steps
    run_arg = importlib.import_module("aster_ml.uop.ops").RunArg
    asts = set()
    for step in steps:
        if step.ast is not None:
            asts.update(step.ast.src if isinstance(step.ast.arg, run_arg) else [step.ast])
    return len(asts), sum(len(toposort(ast)) + len(lower(ast, target)[0].uops) for ast in asts)


def count_made(work: Callable[[], Any]) -> int:
    """Nodes that are made, not found, while `work` compiles what it needs from the beginning."""
    make = importlib.import_module("aster_ml.uop.node").UOp.__new__.__code__
    if importlib.util.find_spec("aster_ml.engine.caches"):
        caches = importlib.import_module("aster_ml.engine.caches").CACHES
        caches.forget_schedules()
        caches.kernels.clear()
    else:
        # The version before may be one whose caches stood apart.
        importlib.import_module("aster_ml.schedule.plan").CACHE.clear()
        importlib.import_module("aster_ml.engine.compile").MEMORY_CACHE.clear()
    # Or nodes of the first compilation, which is the one that is timed, are found and not made.
    gc.collect()
    count = 0

    def see(frame: FrameType, event: str, arg: Any) -> None:
        nonlocal count
        count += event == "c_call" and frame.f_code is make and arg.__name__ == "__new__"

    with importlib.import_module("aster_ml.config").Context(CACHE=0):
        run_seen(see, work)
    return count


def load_and_touch(library: Lazy) -> None:
    """What a process does once: loads the compiler, for small kernels that have most kinds of nodes
    between them, and is given memory.

    A block of each size that the allocator has stays in its pool; given back to the system, the
    memory would be provided again while the clock runs.
    """
    x = library.tensor(np.ones((64, 64), dtype=np.float32))
    library.values((x @ x).relu().softmax())
    library.values((x == x.max()).where(x.cast("int32") // 3, x[x.cast("int32").abs()][:, 0]))
    library.values(x[:, :63].T.reshape(-1, 9))
    size_class = importlib.import_module("aster_ml.allocator").size_class
    allocator = importlib.import_module("aster_ml.device").Device["CPU"].allocator
    blocks = []
    nbytes = PAGE_NBYTES
    while nbytes <= LARGEST_NBYTES:
        blocks.append((allocator.alloc(nbytes), nbytes))
        ctypes.memset(blocks[-1][0].address, 0, nbytes)
        nbytes = size_class(nbytes + 1)
    for handle, nbytes in blocks:
        allocator.free(handle, nbytes)


class KernelClock:
    """Seconds inside of kernels that run on threads, within a `with` block."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.pool = importlib.import_module("aster_ml.runtime.cpu.pool").ThreadPool
        self.run = self.pool.run

    def __enter__(self) -> Self:
        def run(pool: Any, list_address: int, threads: int) -> None:
            start = time.perf_counter()
            self.run(pool, list_address, threads)
            self.seconds += time.perf_counter() - start

        self.pool.run = run
        return self

    def __exit__(self, *error: object) -> None:
        self.pool.run = self.run


def measure_compiling(library: Library, case: str, **params: Any) -> dict[str, float]:
    """Microseconds a node, the nodes, and the kernels."""
    assert isinstance(library, Lazy)
    opened = networks.CASES[case](library, **params)
    value = opened.value
    assert value is not None
    load_and_touch(library)
    toposort = importlib.import_module("aster_ml.uop.graph").toposort
    realize = library.module.Tensor.realize

    def timed() -> float:
        tensors = value()
        with KernelClock() as kernels:
            start = time.perf_counter()
            realize(*tensors)
            library.wait()
            return time.perf_counter() - start - kernels.seconds

    seconds = timed()
    seconds -= min(timed() for _ in range(AGAIN))
    tensors = value()
    graph = len(toposort(*[t.uop for t in tensors]))
    kernels, nodes = count_kernels(tensors)
    made = count_made(lambda: realize(*tensors))
    return {
        "made": seconds / made * 1e6,
        "each": seconds / (graph + nodes) * 1e6,
        "graph": seconds / graph * 1e6,
        "kernel": seconds / kernels * 1e3,
    }


def rows() -> list[Row]:
    """The networks that have limits on their first call."""
    found = []
    for name, case, params, quick in networks.with_limits():
        for key, text, unit, wanted in (
            ("made", "each UOp that the compiler makes", "us/UOp", Wanted(20)),
            ("each", "each UOp of the three forms", "us/UOp", None),
            ("graph", "each UOp of the tensors' graph", "us/UOp", None),
            ("kernel", "each kernel", "ms/kernel", None),
        ):
            row = Row(
                f"{name}: compiling, {text}", SUBJECT, "compiling", unit, wanted,
                {"case": case, **params}, quick, how="once", key=key, libraries=(),
            )  # fmt: skip
            found.append(row)
    return found


CASES = {"compiling": measure_compiling}
