"""What a result was measured on: processor, cores, caches, memory, system, versions."""

from __future__ import annotations

import math
import os
import platform
import re
import subprocess
import time
from pathlib import Path

CACHES = Path("/sys/devices/system/cpu/cpu0/cache")


def cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def processor() -> str:
    """The model, as the system names it."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        found = re.search(r"^model name\s*:\s*(.+)$", info.read_text(), re.MULTILINE)
        if found:
            return found[1].strip()
    if platform.system() == "Darwin":
        asked = subprocess.run(
            ["sysctl", "-n", "machdep.cpu.brand_string"],
            capture_output=True,
            text=True,
            check=False,
        )
        if asked.stdout.strip():
            return asked.stdout.strip()
    return platform.processor() or platform.machine()


def vectors() -> str:
    """The widest vector extension that the processor names, or that ISA leaves."""
    info = Path("/proc/cpuinfo")
    flags = set(info.read_text().split()) if info.exists() else set()
    if os.environ.get("ISA") == "avx2" and "avx512f" in flags:
        return "avx2 (AVX-512 left out by ISA=avx2)"
    for name in ("avx512f", "avx2", "avx", "asimd", "neon"):
        if name in flags:
            return name
    return "not told"


def caches() -> str:
    """Sizes of the caches of one core, where the system tells."""
    found = []
    for folder in sorted(CACHES.glob("index*")) if CACHES.exists() else []:
        kind = (folder / "type").read_text().strip()
        level = (folder / "level").read_text().strip()
        size = (folder / "size").read_text().strip()
        if kind != "Instruction":
            found.append(f"L{level} {size}")
    return ", ".join(found) or "not told"


def memory() -> str:
    """Of the machine, in GiB."""
    try:
        return f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GiB"
    except (AttributeError, ValueError, OSError):
        return "not told"


def load() -> str:
    """How many other processes wanted to run just before, where the system tells."""
    if hasattr(os, "getloadavg"):
        return f"{os.getloadavg()[0]:.1f}"
    return "not told"


class Thing:
    """What a turn of `python_turn_ns` makes."""

    __slots__ = ("number", "pair")

    def __init__(self, number: int) -> None:
        self.number = number
        self.pair = (number & 1023, number & 7)


def python_turn_ns() -> int:
    """Nanoseconds for a turn of a plain loop with an object, a tuple and a dict, best of seven.

    why: compiling is for a good part Python's own work, and builds of one version differ by half,
    those without profile-guided optimisation being the slow ones
    """
    turns, best = 50_000, math.inf
    for _ in range(7):
        counts: dict[tuple[int, int], int] = {}
        start = time.perf_counter()
        for i in range(turns):
            pair = Thing(i).pair
            counts[pair] = counts.get(pair, 0) + 1
        best = min(best, time.perf_counter() - start)
    return round(best / turns * 1e9)


def kind() -> dict[str, str]:
    """What of a machine decides by how much one library is quicker than another."""
    return {"processor": processor(), "vectors": vectors(), "caches": caches()}


def describe() -> dict[str, str | int]:
    """All of it."""
    return {
        **kind(),
        "cores": cores(),
        "memory": memory(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "python_turn_ns": python_turn_ns(),
        "load": load(),
    }
