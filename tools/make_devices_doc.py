"""Writes docs/reference/devices.md: what each device has, and what was run on what.

`python -m tools.make_devices_doc` writes the page; `--check` writes nothing and fails where the
committed page differs. What a device has is read off its runtime; nothing is asked of this machine.
"""

from __future__ import annotations

import inspect
import sys
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from aster_ml.backend import Backend, Queue
from aster_ml.device import KINDS, STORAGE_KINDS, load_runtime

PAGE = Path(__file__).resolve().parents[1] / "docs" / "reference" / "devices.md"


class Ran(NamedTuple):
    """What a device was run on: hardware, a driver of software, and what else shows it right."""

    extra: str
    hardware: str
    software: str
    shown_by: str


RAN = {
    "CPU": Ran("", "x86-64 with AVX2 and AVX-512", "", "`make test`, `make test-narrow`"),
    "CUDA": Ran(
        "cuda", "nobody yet", "a driver library of the tests; kernels by fibers on the CPU",
        "`tests/core/runtime/test_cuda.py`, `tests/conformance/test_cuda_conformance.py`",
    ),
    "METAL": Ran(
        "", "nobody yet",
        "libraries of the tests for Objective-C and Metal; kernels by fibers on the CPU",
        "`tests/core/runtime/test_metal.py`, `tests/conformance/test_metal_conformance.py`",
    ),
    "OPENCL": Ran("opencl", "nobody yet", "PoCL 3.1 on x86-64", "`tests/conformance`, as CPU"),
    "WEBGPU": Ran(
        "webgpu", "nobody yet", "wgpu on llvmpipe, SwiftShader", "`tests/conformance`, as CPU"
    ),
    "PYTHON": Ran("", "any", "", "the measure of all others"),
    "NULL": Ran("", "any", "", "runs nothing"),
}  # fmt: skip


def backend_of(module: ModuleType) -> type[Backend]:
    """The backend that a runtime has."""
    classes = [value for value in vars(module).values() if inspect.isclass(value)]
    found = [c for c in classes if issubclass(c, Backend) and c.__module__ == module.__name__]
    return found[0]


def queue_of(module: ModuleType) -> type[Queue] | None:
    """The queue that a runtime has: its own, or that of the host."""
    found = [v for v in vars(module).values() if inspect.isclass(v) and issubclass(v, Queue)]
    return next((queue for queue in found if queue is not Queue), None)


def has(value: bool) -> str:
    """`yes`, or nothing."""
    return "yes" if value else ""


def features(kind: str) -> str:
    """The row of a device in the table of what devices have."""
    module = load_runtime(kind)
    assert isinstance(module, ModuleType), module
    backend, queue = backend_of(module), queue_of(module)
    columns = (
        backend.make_graph is not Backend.make_graph,
        backend.keeps_binaries,
        queue is not None and queue.copy is not Queue.copy,
        backend.disassemble is not Backend.disassemble,
    )
    return f"| `{kind}` | {module.DOC} | {' | '.join([has(bool(c)) for c in columns])} |"


def page() -> str:
    """The whole page."""
    computing = [kind for kind in KINDS if kind not in STORAGE_KINDS]
    lines = [
        "# Devices",
        "",
        "What each device has, and what was run on what. `aster doctor` says which work on a",
        "machine and what the others lack. Where `DEV` names none, CUDA or METAL is the default if",
        "it answers, else CPU. Made by `python -m tools.make_devices_doc` from the runtimes.",
        "",
        "## What each has",
        "",
        "| `DEV=` | what | recordings as one native graph | keeps binaries on disk "
        "| copies by itself | assembly (DEBUG=7) |",
        "|---|---|---|---|---|---|",
        *[features(kind) for kind in computing],
        "",
        "## What was run on what",
        "",
        "| `DEV=` | extra | hardware | in its place | shown by |",
        "|---|---|---|---|---|",
    ]
    for kind in computing:
        ran = RAN[kind]
        extra = f"`{ran.extra}`" if ran.extra else ""
        lines.append(f"| `{kind}` | {extra} | {ran.hardware} | {ran.software} | {ran.shown_by} |")
    lines += [
        "",
        "NVRTC and ptxas compile CUDA's kernels without a device, so that code, registers and",
        "spills are tested; speed is not. `make gpu-bench` prints it where there is a processor.",
        "`aster doctor --self-test CUDA`, or another device, holds the one at hand to what the",
        "ops mean, and keeps the outcome: products of boxes of tensors (Hopper) wait for it.",
        "",
    ]
    return "\n".join(lines)


def main() -> int:
    """Writes the page, or compares it."""
    if "--check" in sys.argv:
        return int(PAGE.read_text(encoding="utf-8") != page())
    PAGE.write_text(page(), encoding="utf-8", newline="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
