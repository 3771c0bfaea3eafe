"""A chain of very many dependent ops: built, realized, differentiated, freed.

Two tensors, `x = x + w` and `x = x * w` in turn, and the gradients of the sum of the end by both:
no constant folds, and every value of the chain matters to the gradient.
"""

from __future__ import annotations

import gc
import importlib
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.libraries import Lazy, Library
from benchmarks.row import Row, Wanted

SUBJECT = "long chains"
SIZE = 64
# What caches of kernels and schedules may keep: not the chain.
NODES_KEPT, BYTES_KEPT = 1_000, 1 << 19


def grow(x: Any, w: Any, n: int) -> Any:
    """The chain of n ops."""
    for i in range(n):
        x = x * w if i & 1 else x + w
    return x


def expected(n: int) -> tuple[float, float]:
    """The end of the chain, and its derivative by the start, in float64."""
    x = factor = 1.0
    for i in range(n):
        x, factor = (x * (1 - 2**-17), factor * (1 - 2**-17)) if i & 1 else (x + 1 - 2**-17, factor)
    return x, factor


class Stopwatch:
    """Seconds of consecutive parts, by name."""

    def __init__(self) -> None:
        self.values: dict[str, float] = {}
        self.last = time.perf_counter()

    def note(self, name: str) -> None:
        """Ends a part."""
        now = time.perf_counter()
        self.values[name] = now - self.last
        self.last = time.perf_counter()


def run_lazy(library: Lazy, n: int) -> dict[str, float]:
    """Aster and tinygrad."""
    x0 = library.tensor(np.ones(SIZE, np.float32))
    w = library.tensor(np.full(SIZE, 1 - 2**-17, np.float32))
    x0.requires_grad = w.requires_grad = True
    watch = Stopwatch()
    x = grow(x0, w, n)
    watch.note("built")
    x.realize()
    library.wait()
    watch.note("realized")
    check_close("end", float(x.numpy()[0]), expected(n)[0])
    del x
    y = grow(x0, w, n)
    watch.last = time.perf_counter()
    y.sum().backward()
    library.module.Tensor.realize(x0.grad, w.grad)
    library.wait()
    watch.note("differentiated")
    check_close("gradient", float(x0.grad.numpy()[0]), expected(n)[1])
    watch.last = time.perf_counter()
    del y, x0, w
    gc.collect()
    watch.note("freed")
    return watch.values


def run_torch(library: Library, n: int) -> dict[str, float]:
    """PyTorch, which realizes while it builds."""
    x0 = library.tensor(np.ones(SIZE, np.float32)).requires_grad_()
    w = library.tensor(np.full(SIZE, 1 - 2**-17, np.float32)).requires_grad_()
    watch = Stopwatch()
    x = grow(x0, w, n)
    watch.note("built")
    watch.values["realized"] = 0.0
    check_close("end", float(x.detach().numpy()[0]), expected(n)[0])
    watch.last = time.perf_counter()
    x.sum().backward()
    watch.note("differentiated")
    check_close("gradient", float(x0.grad.numpy()[0]), expected(n)[1])
    watch.last = time.perf_counter()
    del x, x0, w
    gc.collect()
    watch.note("freed")
    return watch.values


def check_close(what: str, got: float, wanted: float) -> None:
    """A chain that comes out wrong has no time."""
    if abs(got - wanted) > 1e-2 * abs(wanted):
        raise ArithmeticError(f"the {what} of the chain is {got}, not {wanted}")


def count_live(library: Library) -> tuple[int, int]:
    """Live nodes and bytes of device memory, of Aster, without the schedules in their cache."""
    importlib.import_module("aster_ml.engine.caches").CACHES.forget_schedules()
    gc.collect()
    nodes = importlib.import_module("aster_ml.uop.interned").NODES
    return len(nodes), library.module.GlobalCounters.mem_used


def measure_chain(library: Library, n: int) -> dict[str, float]:
    """Seconds of each part and of all, and what is left when everything is freed."""
    run: Callable[..., dict[str, float]] = run_lazy if isinstance(library, Lazy) else run_torch
    values = run(library, n)
    values["total"] = sum(values.values())
    if library.name == "aster":
        # A second time, because the kernels that the first compiled stay in their cache.
        before = count_live(library)
        run(library, n)
        nodes, nbytes = count_live(library)
        values["nodes left"] = nodes - before[0]
        values["bytes left"] = nbytes - before[1]
    return values


def rows() -> list[Row]:
    """Seconds of each part, and what is left."""
    sizes: dict[str, Any] = {
        "params": {"n": 100_000},
        "quick_params": {"n": 2_000},
        "how": "once",
        "libraries": ("torch", "tinygrad"),
    }
    parts = ("built", "realized", "differentiated", "freed")
    found = [
        Row(
            f"chain of {{n:,}} ops: {part}", SUBJECT, "chain", "s", key=part, compare=False, **sizes
        )
        for part in parts
    ]
    found.append(Row("chain of {n:,} ops: total", SUBJECT, "chain", "s", key="total", **sizes))
    for part, unit, limit in (
        ("nodes left", "nodes", NODES_KEPT),
        ("bytes left", "bytes", BYTES_KEPT),
    ):
        found.append(
            Row(
                f"chain of {{n:,}} ops: {part}",
                SUBJECT,
                "chain",
                unit,
                Wanted(limit),
                key=part,
                **{**sizes, "libraries": ()},
            )
        )
    return found


CASES = {"chain": measure_chain}
