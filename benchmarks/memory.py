"""Memory: how far a process grows above what importing the library took, and over many steps.

Resident memory of a process of its own, as the system counts it. The peak starts anew once inputs
and parameters are there, so that what drawing them took does not count; they themselves do.
"""

from __future__ import annotations

import gc
import importlib
import os
import platform
from pathlib import Path
from typing import Any

from benchmarks import networks
from benchmarks.libraries import Library
from benchmarks.row import Row, Wanted

SUBJECT = "memory"
PROCESS = Path("/proc/self")
# Steps before a process has all it needs, and calls of which the peak is taken.
SETTLE, CALLS = 50, 5


def resident(peak: bool = False) -> float:
    """MB that this process has in memory now, or had at most since `restart_peak`."""
    status = PROCESS / "status"
    if status.exists():
        name = "VmHWM:" if peak else "VmRSS:"
        lines = status.read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith(name)) / 1e3 * 1.024
    if os.name == "nt":
        raise NotImplementedError("no way to ask this system for resident memory")
    resource = importlib.import_module("resource")
    # All that other systems tell is the peak: bytes on macOS, KiB elsewhere.
    unit = 1e-6 if platform.system() == "Darwin" else 1.024e-3
    return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss) * unit


def restart_peak() -> None:
    """Lets the peak begin at what is resident now, where the system can."""
    if (PROCESS / "clear_refs").exists():
        (PROCESS / "clear_refs").write_text("5")


def count_nodes(library: Library) -> float:
    """Live nodes of Aster; 0 of others."""
    if library.name != "aster":
        return 0.0
    gc.collect()
    return float(len(importlib.import_module("aster_ml.uop.interned").NODES))


def measure_peak(library: Library, case: str, **params: Any) -> dict[str, float]:
    """The peak of a few calls above the library alone."""
    before = resident()
    opened = networks.CASES[case](library, **params)
    gc.collect()
    restart_peak()
    for _ in range(CALLS):
        opened.run()
    return {"peak": max(resident(peak=True) - before, 0.0)}


def measure_growth(library: Library, case: str, steps: int, **params: Any) -> dict[str, float]:
    """What many steps leave behind."""
    opened = networks.CASES[case](library, **params)
    for _ in range(min(SETTLE, steps)):
        opened.run()
    nodes, before = count_nodes(library), resident()
    for _ in range(steps):
        opened.run()
    return {
        "grown": max(resident() - before, 0.0),
        "nodes": max(count_nodes(library) - nodes, 0.0),
    }


def rows() -> list[Row]:
    """Peaks against PyTorch, and growth."""
    found = [
        Row(
            f"{name}: peak above the import", SUBJECT, "peak memory", "MB",
            # At most 1.2 times PyTorch's.
            Wanted(1 / 1.2, of_ratio=True), {"case": case, **params}, quick,
            how="once", key="peak", libraries=("torch",),
        )
        for name, case, params, quick in networks.with_limits()
    ]  # fmt: skip
    steps: dict[str, Any] = {"case": "step", "network": "DigitNet", "batch": 8, "steps": 1000}
    for key, unit, limit, libraries in (
        ("grown", "MB", 2, ("torch",)),
        ("nodes", "nodes", 0, ()),
    ):
        found.append(
            Row(
                f"CNN 32-32-64-64, Adam, batch {{batch}}: {unit} more after {{steps:,}} steps",
                SUBJECT, "growth of memory", unit, Wanted(limit), steps,
                {"batch": 2, "steps": 20}, how="once", key=key, libraries=libraries, compare=False,
            )
        )  # fmt: skip
    return found


CASES = {"peak memory": measure_peak, "growth of memory": measure_growth}
