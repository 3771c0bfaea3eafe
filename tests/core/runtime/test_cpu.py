"""What the CPU device says of itself, and its memory."""

from __future__ import annotations

import gc
import sys
from pathlib import Path

import numpy as np
import pytest

from aster_ml.allocator import MEMORY
from aster_ml.backend import Grid, ThreadParts
from aster_ml.config import Context
from aster_ml.device import Buffer, Device
from aster_ml.dtype import dtypes
from aster_ml.errors import CompileError, InternalError
from aster_ml.runtime import host_memory
from aster_ml.runtime.cpu import device as cpu
from aster_ml.runtime.cpu import llvm_jit
from aster_ml.runtime.cpu import pool as cpu_pool
from aster_ml.target import Target
from tests.core.runtime_kernels import AXPY


def test_the_target_is_this_machine() -> None:
    target = Device["CPU"].target
    assert (target.device, target.language) == ("CPU", "llvm")
    assert target.arch == llvm_jit.host().key
    assert (target.vector_bits, target.vector_registers) == llvm_jit.host().vector
    assert target.move_bits == llvm_jit.host().move_bits
    assert 0 < target.cache_bytes[0] < target.cache_bytes[1]
    assert target.has_dtype("float64")
    assert not target.has_local
    assert Target.parse(target.key) == target
    assert Device["CPU:1"].target is target


def test_threads_follow_the_setting() -> None:
    with Context(THREADS=0):
        assert Device["CPU"].target.threads == cpu_pool.processor_count() >= 1
    with Context(THREADS=3):
        assert Device["CPU"].target.threads == 3
    with Context(THREADS=10_000):
        assert Device["CPU"].target.threads == cpu_pool.MAX_THREADS
    with Context(THREADS=-2), pytest.raises(ValueError, match="THREADS=-2: a positive number"):
        _ = Device["CPU"].target


@pytest.mark.parametrize(
    "files, wanted",
    [
        ({"cpu.max": "200000 100000\n"}, (200000, 100000)),
        ({"cpu.max": "max 100000\n"}, (0, 0)),
        ({"cpu/cpu.cfs_quota_us": "150000\n", "cpu/cpu.cfs_period_us": "100000"}, (150000, 100000)),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000"}, (0, 0)),
        ({}, (0, 0)),
    ],
)
def test_quota_of_a_container(
    files: dict[str, str], wanted: tuple[int, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(cpu_pool, "Path", lambda path: tmp_path)
    assert cpu_pool.cgroup_quota() == wanted


@pytest.mark.parametrize(
    "text, wanted", [("48K", 49152), ("32M", 32 << 20), ("1G", 1 << 30), ("512", 512), ("", 0),
                     ("K", 0), ("many", 0)],
)  # fmt: skip
def test_sizes_of_caches(text: str, wanted: int) -> None:
    assert cpu.parse_size(text) == wanted


def test_a_machine_that_tells_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "read_text", lambda path: "")
    monkeypatch.setattr(sys, "platform", "linux")
    assert cpu.cache_bytes.__wrapped__() == cpu.SMALLEST_CACHES


def test_compile_load_and_launch() -> None:
    backend = Device["CPU"]
    program = backend.load("axpy", backend.compile(AXPY))
    x = Buffer("CPU", 100, dtypes.float32).copyin(np.arange(100, dtype=np.float32))
    y = Buffer("CPU", 100, dtypes.float32).copyin(np.ones(100, dtype=np.float32))
    before = backend.queue.signal()
    program((x.handle, y.handle), (2,), ThreadParts(100, 2))
    assert 0 < backend.queue.signal().seconds_since(before) < 10
    assert y.numpy().tolist() == [1 + 2 * i for i in range(100)]
    part = y.view(10, dtypes.float32, 40)
    program((x.handle, part.handle), (1,), ThreadParts(10))
    assert y.numpy()[9:21].tolist() == [19] + [21 + 3 * i for i in range(10)] + [41]
    with pytest.raises(InternalError, match="a CPU has no work-groups"):
        program((x.handle, part.handle), (1,), Grid((10,), (1,)))


def test_bad_source_and_bad_binaries() -> None:
    backend = Device["CPU"]
    with pytest.raises(CompileError, match="LLVM refused"):
        backend.compile("int main;")
    with pytest.raises(InternalError, match="starts with one of"):
        backend.load("f", b"x123")
    with pytest.raises(CompileError, match="could not be linked"):
        backend.load("f", b"o123")


def test_disassembly_is_assembly() -> None:
    text = Device["CPU"].disassemble(AXPY)
    assert "axpy:" in text
    assert "ret" in text


@pytest.mark.parametrize("nbytes", [1, 64, 1000, 4096, 100_000, 4 << 20, (8 << 20) + 4])
def test_blocks_are_aligned(nbytes: int) -> None:
    allocator = Device["CPU"].allocator
    handle = allocator.alloc(nbytes)
    alignment = 64 if nbytes < 4096 else 4096 if nbytes < 4 << 20 else 2 << 20
    assert handle.address % alignment == 0
    data = np.frombuffer(allocator.as_memoryview(handle, nbytes), np.uint8)
    data[:] = 5
    assert int(data.sum()) == 5 * nbytes
    allocator.free(handle, nbytes)


def test_freed_memory_is_taken_again() -> None:
    first = Buffer("CPU", 12345, dtypes.float32).allocate()
    address = first.handle.address
    del first
    assert Buffer("CPU", 12345, dtypes.float32).allocate().handle.address == address


def test_the_pool_has_a_limit() -> None:
    allocator = host_memory.HostAllocator("CPU:9", limit_bytes=1 << 20)
    for handle in [allocator.alloc(1 << 18) for _ in range(8)]:
        allocator.free(handle, 1 << 18)
    allocator.try_drain()
    assert allocator.pool_bytes == 1 << 20
    assert allocator.free_cache() == 1 << 20
    assert Device["CPU"].allocator.limit_bytes == (host_memory.machine_bytes() or 4 << 30) // 4


def test_more_than_the_machine_has(monkeypatch: pytest.MonkeyPatch) -> None:
    gc.collect()
    # What other tests have freed would do.
    Device["CPU"].allocator.free_cache()
    monkeypatch.setattr(host_memory, "machine_bytes", lambda: MEMORY.in_use() + (1 << 20))
    with pytest.raises(MemoryError, match=r"CPU has no room for 2 MB: .* \(the machine has "):
        Buffer("CPU", 2 << 20, dtypes.uint8).allocate()
    assert Buffer("CPU", 1 << 19, dtypes.uint8).allocate().is_allocated()


def test_missing_says_what_would_help(monkeypatch: pytest.MonkeyPatch) -> None:
    assert cpu.missing() is None
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert cpu.missing() == "llvmlite is not installed; pip install llvmlite brings it"
