"""Kernels that are compiled together, and what of them stands on the disk."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aster_ml import Context, GlobalCounters, Tensor
from aster_ml.backend import ONCE
from aster_ml.device import Device
from aster_ml.engine import disk_cache
from aster_ml.engine.caches import CACHES
from aster_ml.engine.disk_cache import DiskCache
from aster_ml.engine.module_batches import FEWEST_CHARACTERS, MOST_CHARACTERS, Batches, Draft
from aster_ml.engine.storage import buffer_of
from aster_ml.engine.worker_pool import WorkerPool
from aster_ml.errors import CompileError
from aster_ml.renderer.llvm.renderer import join_modules
from aster_ml.runtime import object_cache
from aster_ml.runtime.cpu import llvm_jit
from aster_ml.runtime.cpu.device import CpuBackend

SOURCE = """define void @{name}(ptr %args, i64 %lo, i64 %hi) nounwind {{
  %1 = load ptr, ptr %args
  %2 = call float @llvm.sqrt.f32(float {number})
  store float %2, ptr %1
  ret void
}}
declare float @llvm.sqrt.f32(float)
"""


def draft(name: str, number: float = 4.0, length: int = 0, **fields: Any) -> Draft:
    """A kernel that stores the root of a number, of at least so many characters."""
    source = SOURCE.format(name=name, number=number)
    source += ";" * max(length - len(source) - 1, 0) + "\n" * bool(length)
    backend = Device["CPU"]
    known = {"name": name, "var_names": (), "launch": ONCE, "written": frozenset({0})}
    return Draft(backend, known | fields | {"source": source}, None, join_modules)


def value_of(program: Any) -> float:
    """What a kernel of one output stores."""
    out = Tensor(np.zeros(1, dtype=np.float32)).realize()
    program(
        (buffer_of(out.uop.base).handle,),
    )
    return float(out.numpy()[0])


def finished(drafts: list[Draft], threads: int = 0) -> Batches:
    """The batches of these drafts, compiled and loaded."""
    with WorkerPool(threads) as beside:
        made = Batches(beside)
        for d in drafts:
            made.add(d)
        made.finish()
    return made


@pytest.mark.parametrize("threads", [0, 1, 3])
def test_each_gets_its_own_function(threads: int) -> None:
    drafts = [draft(f"root{i}", float(i * i)) for i in range(40)]
    made = finished(drafts, threads)
    assert [value_of(made.programs[d]) for d in drafts] == list(range(40))
    assert sorted([d.name for b in made.made for d in b.drafts]) == sorted([d.name for d in drafts])


def test_kernels_of_one_name_are_apart() -> None:
    drafts = [draft("same", float(i * i)) for i in range(5)]
    made = finished(drafts)
    assert len(made.made) == 5
    assert [value_of(made.programs[d]) for d in drafts] == list(range(5))


def test_batches_are_as_long_as_pays() -> None:
    long = [draft(f"long{i}", length=MOST_CHARACTERS // 2 + 1) for i in range(4)]
    short = [draft(f"short{i}", length=FEWEST_CHARACTERS // 4) for i in range(8)]
    made = finished([*short, *long])
    sizes = [[len(d.source) for d in b.drafts] for b in made.made]
    assert all(len(s) == 1 or sum(s) <= MOST_CHARACTERS for s in sizes)
    assert sum([len(s) for s in sizes]) == 12
    # Those that take longest come first, and short ones are never alone while others are there.
    assert [s[0] for s in sizes] == sorted([s[0] for s in sizes], reverse=True)
    assert all(len(s) > 1 for s in sizes[len(long) : -1])


def test_what_waits_can_be_dropped() -> None:
    with WorkerPool(0) as beside:
        made, first, second = Batches(beside), draft("first"), draft("second")
        made.add(first)
        made.add(second)
        assert made.drop(first)
        assert not made.drop(first)
        made.finish()
        assert list(made.programs) == [second]
        assert not made.drop(second)


def test_an_error_is_that_of_the_batch() -> None:
    bad = draft("bad")
    bad.fields["source"] = bad.source.replace("float %2", "double %2")
    with pytest.raises(CompileError, match="refused"):
        finished([draft("good"), bad])


def test_a_joined_source_says_everything_once() -> None:
    joined = join_modules([draft(f"k{i}").source for i in range(3)])
    assert joined.count("declare float @llvm.sqrt.f32") == 1
    assert re.findall(r"^define void @(\w+)", joined, re.M) == ["k0", "k1", "k2"]
    assert llvm_jit.compile_ir(joined)


def test_a_language_without_joining_compiles_each_by_itself(monkeypatch) -> None:
    seen: list[str] = []
    compile_source = CpuBackend.compile
    monkeypatch.setattr(
        CpuBackend, "compile", lambda self, s: seen.append(s) or compile_source(self, s)
    )
    drafts = [draft(f"alone{i}") for i in range(3)]
    for d in drafts:
        d.join = None
    made = finished(drafts)
    assert sorted(seen) == sorted([d.source for d in drafts])
    assert value_of(made.programs[drafts[2]]) == 2.0


def keep(names: list[str]) -> bytes:
    """A binary of these kernels on the disk, under their names; returns it."""
    drafts = [draft(name, float(i * i)) for i, name in enumerate(names)]
    binary = Device["CPU"].compile(join_modules([d.source for d in drafts]))
    disk_cache.put([(d.name, d.fields) for d in drafts], binary)
    return binary


def test_kernels_of_one_binary_come_back(tmp_path: Path, monkeypatch) -> None:
    with Context(CACHE=1, CACHEDIR=str(tmp_path)):
        keep(["zero", "one", "two"])
        shelf, loads = DiskCache(), []
        load_all = CpuBackend.load_all
        monkeypatch.setattr(
            CpuBackend, "load_all", lambda self, b: loads.append(b) or load_all(self, b)
        )
        found = [shelf.get(name, Device["CPU"]) for name in ("two", "one")]
        assert [value_of(f["program"]) for f in found if f] == [2.0, 1.0]
        assert len(loads) == 1
        assert found[0] is not None
        assert {k: v for k, v in found[0].items() if k != "program"} == {
            "name": "two", "var_names": (), "launch": ONCE, "written": frozenset({0}),
        }  # fmt: skip
        assert shelf.get("three", Device["CPU"]) is None


KNOWN = b'{"odd": {"name": "a", "vars": [], "launch": [1, 1], "grid": false, "written": []}}'


@pytest.mark.parametrize(
    "entry",
    [
        b"",
        b"nothing of ours",
        b"\x02\0\0\0{}",
        b"\x03\0\0\0[1]onothing",
        len(KNOWN).to_bytes(4, "little") + KNOWN,
        len(KNOWN).to_bytes(4, "little") + KNOWN + b"onothing",
        len(KNOWN).to_bytes(4, "little") + KNOWN + b"?nothing",
        b'\x0e\0\0\0{"odd": {"n":1}}',
    ],
)
def test_an_entry_that_is_odd_counts_as_missing(entry: bytes, tmp_path: Path) -> None:
    with Context(CACHE=1, CACHEDIR=str(tmp_path)):
        object_cache.put("odd", entry)
        assert DiskCache().get("odd", Device["CPU"]) is None


SCRIPT = """
import numpy as np
from aster_ml import GlobalCounters, Tensor
x = [Tensor(np.ones((2 + i, 10), dtype=np.float32)).realize() for i in range(8)]
values = [(v * 2).exp2().sum(axis=i % 2) for i, v in enumerate(x)]
Tensor.realize(*values)
print(GlobalCounters.compiled_kernels, float(sum([v.sum().item() for v in values])))
"""


def test_a_second_process_compiles_nothing_whatever_was_together(tmp_path: Path) -> None:
    def run() -> list[str]:
        environment = {**os.environ, "CACHEDIR": str(tmp_path)}
        command = [sys.executable, "-c", SCRIPT]
        return subprocess.run(
            command, env=environment, capture_output=True, text=True, check=True
        ).stdout.split()

    cold, warm = run(), run()
    assert int(cold[0]) > 4
    assert warm == ["0", cold[1]]
    # What is damaged is made again, and what is compiled with it too.
    for path in (tmp_path / "objects").iterdir():
        path.write_bytes(path.read_bytes()[:-1])
    assert run() == cold


def test_counters_tell_of_kernels_and_not_of_batches() -> None:
    with Context(CACHE=0):
        CACHES.kernels.clear()
        before = GlobalCounters.compiled_kernels
        values = [Tensor(np.ones((7 + i, 9), np.float32)).exp2().sum(axis=i % 2) for i in range(6)]
        Tensor.realize(*values)
    assert GlobalCounters.compiled_kernels - before >= 6
