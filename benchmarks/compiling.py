"""Compiler time a UOp: seconds from a graph to running code, over the nodes of the graph.

End to end: everything that the first `realize` takes and a later one does not (schedule, codegen,
LLVM, loading), in a fresh process with an empty disk cache.
"""

from __future__ import annotations

import importlib
import time
from typing import Any

from benchmarks import networks
from benchmarks.libraries import Lazy, Library
from benchmarks.row import Row, Wanted

SUBJECT = "compile time"
# Steps after the first: their kernels are compiled, and the quickest shows what running takes.
AGAIN = 3


def measure_compiling(library: Library, case: str, **params: Any) -> dict[str, float]:
    """Microseconds a node, and the nodes."""
    assert isinstance(library, Lazy)
    opened = networks.CASES[case](library, **params)
    assert opened.value is not None
    toposort = importlib.import_module("aster_ml.uop.graph").toposort
    realize = library.module.Tensor.realize

    def timed() -> tuple[float, int]:
        tensors = opened.value()
        count = len(toposort(*[t.uop for t in tensors]))
        start = time.perf_counter()
        realize(*tensors)
        library.wait()
        return time.perf_counter() - start, count

    first, count = timed()
    again = min(timed()[0] for _ in range(AGAIN))
    return {"each": (first - again) / count * 1e6, "nodes": float(count)}


def rows() -> list[Row]:
    """The networks that have limits on their first call."""
    return [
        Row(
            f"{name}: compiling, each UOp", SUBJECT, "compiling", "us/UOp", Wanted(20),
            {"case": case, **params}, quick, how="once", key="each", libraries=(),
        )
        for name, case, params, quick in networks.with_limits()
    ]  # fmt: skip


CASES = {"compiling": measure_compiling}
