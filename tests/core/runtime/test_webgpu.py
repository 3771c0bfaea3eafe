"""The WEBGPU device: what is missing and what would help, memory, views, launches, graphs."""

from __future__ import annotations

import gc
import importlib.util
import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from aster_ml import Context, Tensor, TinyJit
from aster_ml.backend import Grid, ThreadParts
from aster_ml.device import Buffer, Device
from aster_ml.dtype import dtypes
from aster_ml.errors import (
    CompileError,
    DeviceError,
    DTypeError,
    InternalError,
    OutOfMemoryError,
)
from aster_ml.renderer.wgsl.renderer import WgslRenderer
from aster_ml.runtime.webgpu import device as webgpu
from aster_ml.runtime.webgpu.program import MAX_BLOCKS, WebGpuProgram
from tests.core.linear_builder import GLOBAL, Builder, at

ABSENT = webgpu.missing()


def needs_device(test: Callable[..., None]) -> Callable[..., None]:
    """Marks a test that runs on a device."""
    skip = pytest.mark.skipif(ABSENT is not None, reason=f"WebGPU: {ABSENT}")
    return pytest.mark.webgpu(skip(test))


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    reason = webgpu.missing.__wrapped__()
    assert reason == "wgpu is not installed; pip install 'aster-ml[webgpu]' brings it"


def test_a_missing_driver_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    monkeypatch.setattr(webgpu, "adapters", lambda: ())
    reason = webgpu.missing.__wrapped__()
    assert reason is not None
    assert "there is no adapter for Vulkan, Metal or Direct3D 12" in reason
    assert "apt-get install mesa-vulkan-drivers" in reason


def test_a_broken_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> tuple[object, ...]:
        raise OSError("libwgpu_native.so: cannot open shared object file")

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    monkeypatch.setattr(webgpu, "adapters", fail)
    reason = webgpu.missing.__wrapped__()
    assert reason is not None
    assert "wgpu does not load (libwgpu_native.so" in reason


def test_graphics_processors_come_before_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = [("CPU", "Vulkan"), ("IntegratedGPU", "OpenGL"), ("DiscreteGPU", "Vulkan")]
    every = [SimpleNamespace(info={"adapter_type": a, "backend_type": b}) for a, b in kinds]
    gpu = SimpleNamespace(enumerate_adapters_sync=lambda: every)
    monkeypatch.setattr(webgpu, "binding", lambda: SimpleNamespace(gpu=gpu))
    found = webgpu.adapters.__wrapped__()
    assert [a.info["adapter_type"] for a in found] == ["DiscreteGPU", "CPU"]


@needs_device
def test_the_target_says_what_there_is() -> None:
    target = Device["WEBGPU"].target
    limits = Device["WEBGPU"].limits
    assert target.language == "wgsl"
    assert not target.has_dtype("float64")
    assert target.max_buffers == limits["max-storage-buffers-per-shader-stage"] >= 8
    assert target.max_group >= 256
    assert target.local_bytes >= 16384


@needs_device
def test_float64_is_refused_with_what_would_do() -> None:
    t = Tensor([1.0, 2.0], dtype="float64", device="WEBGPU") + 1
    with pytest.raises(DTypeError, match=r"WEBGPU: it has no float64; cast to one of .*float32.*"):
        t.tolist()


@needs_device
def test_bytes_at_any_place_are_copied() -> None:
    base = Buffer("WEBGPU", 32, dtypes.uint8).copyin(np.arange(32, dtype=np.uint8))
    want = np.arange(32, dtype=np.uint8)
    for offset, size in ((1, 1), (3, 6), (4, 4), (7, 25), (0, 31), (5, 0)):
        given = np.arange(100, 100 + size, dtype=np.uint8)
        base.view(size, dtypes.uint8, offset).ensure_allocated().copyin(given)
        want[offset : offset + size] = given
        np.testing.assert_array_equal(base.numpy(), want)
        part = base.view(size, dtypes.uint8, offset).ensure_allocated().numpy()
        np.testing.assert_array_equal(part, given)


@needs_device
def test_copies_on_the_device_and_past_the_host() -> None:
    backend = Device["WEBGPU"]
    data = np.arange(16, dtype=np.float32)
    a = Buffer("WEBGPU", 16, dtypes.float32).copyin(data)
    b = Buffer("WEBGPU", 16, dtypes.float32).allocate()
    assert backend.queue.copy(b.handle, a.handle, 64)
    np.testing.assert_array_equal(b.numpy(), data)
    assert not backend.queue.copy(b.handle, a.handle, 63)
    assert not backend.queue.copy(a.handle, a.handle, 32)


def doubled(count: int) -> WebGpuProgram:
    """out[i] = in[i] * 2 in `count` blocks."""
    b = Builder("doubled")
    out, given = b.param(count), b.param(count)
    block = b.axis(count, GLOBAL)
    b.store(at(out, block), b.add(b.load(at(given, block)) * 2.0))
    backend = Device["WEBGPU"]
    source = WgslRenderer(backend.target).render(b.build())
    program = backend.load("doubled", backend.compile(source))
    assert isinstance(program, WebGpuProgram)
    return program


@needs_device
def test_more_blocks_than_one_dimension_has() -> None:
    count = (MAX_BLOCKS + 37) * 3
    data = np.arange(count, dtype=np.float32)
    with Context(NOOPT=1):
        found = (Tensor(data, device="WEBGPU") * 2).numpy()
    np.testing.assert_array_equal(found, data * 2)
    out, given = (Buffer("WEBGPU", 4, dtypes.float32).allocate() for _ in "ab")
    with pytest.raises(DeviceError, match=r"65536, 1, 1. blocks; WebGPU has at most 65535"):
        doubled(4)((out.handle, given.handle), (), Grid((MAX_BLOCKS + 1,), (1,)))


@needs_device
def test_one_buffer_is_read_and_written_in_a_launch() -> None:
    base = Buffer("WEBGPU", 8, dtypes.float32).copyin(np.arange(8, dtype=np.float32))
    first = base.view(4, dtypes.float32, 0).ensure_allocated()
    second = base.view(4, dtypes.float32, 16).ensure_allocated()
    program = doubled(4)
    program((second.handle, first.handle), (), Grid((4,), (1,)))
    assert base.numpy().tolist() == [0, 1, 2, 3, 0, 2, 4, 6]
    assert [*program.others] == [(True, True)]


@needs_device
def test_a_launch_that_was_seen_makes_nothing() -> None:
    a, b = (Buffer("WEBGPU", 4, dtypes.float32).copyin(np.ones(4, np.float32)) for _ in "ab")
    program = doubled(4)
    for _ in range(3):
        program((b.handle, a.handle), (), Grid((4,), (1,)))
    assert len(program.groups) == 1
    program((b.handle, a.handle), (), Grid((0,), (1,)))
    assert list(program.groups.values())[1] is None
    assert b.numpy().tolist() == [2] * 4
    with pytest.raises(InternalError, match="WebGPU has blocks of work-items"):
        program((b.handle, a.handle), (), ThreadParts())


@needs_device
def test_launches_go_off_together_and_are_timed() -> None:
    backend = Device["WEBGPU"]
    a, b = (Buffer("WEBGPU", 4, dtypes.float32).copyin(np.ones(4, np.float32)) for _ in "ab")
    program = doubled(4)
    start = backend.queue.signal()
    for _ in range(5):
        program((b.handle, a.handle), (), Grid((4,), (1,)))
    assert len(backend.waiting) == 5
    end = backend.queue.signal()
    assert not backend.waiting
    assert end.seconds_since(start) >= 0
    backend.queue.finish()


@needs_device
def test_a_graph_takes_other_inputs_and_numbers() -> None:
    @TinyJit
    def step(x: Tensor) -> Tensor:
        y = (x * 2 + 1).contiguous().realize()
        return (y.sum(1, keepdim=True) + y).contiguous().realize()

    rng = np.random.default_rng(0)
    for _ in range(6):
        x = rng.normal(size=(5, 7)).astype(np.float32)
        y = x * 2 + 1
        want = y.sum(1, keepdims=True) + y
        found = step(Tensor(x, device="WEBGPU").realize()).numpy()
        np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-5)


# errors


@needs_device
def test_a_buffer_that_is_larger_than_there_can_be() -> None:
    largest = Device["WEBGPU"].limits["max-buffer-size"]
    with pytest.raises(OutOfMemoryError, match=r"WEBGPU has no room for .* in one piece"):
        Buffer("WEBGPU", largest + 1, dtypes.uint8).allocate()


@needs_device
def test_a_buffer_that_is_larger_than_a_binding(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = Device["WEBGPU"]
    monkeypatch.setitem(backend.limits, "max-storage-buffer-binding-size", 8)
    a, b = (Buffer("WEBGPU", 9, dtypes.float32).allocate() for _ in "ab")
    with pytest.raises(DeviceError, match="lets a kernel see 8 B of one; smaller batches"):
        doubled(9)((b.handle, a.handle), (), Grid((9,), (1,)))


@needs_device
def test_kernels_are_split_at_the_buffers_that_there_can_be() -> None:
    most = Device["WEBGPU"].target.max_buffers
    arrays = np.random.default_rng(2).normal(size=(most + 9, 5)).astype(np.float32)
    rows = [Tensor(x, device="WEBGPU").realize() for x in arrays]
    np.testing.assert_allclose(sum(rows[1:], rows[0]).numpy(), arrays.sum(0), rtol=1e-4, atol=1e-5)
    facts = {"buffers": [[4, 1]] * (most + 1), "variables": []}
    with pytest.raises(DeviceError, match=r"a kernel has \d+ buffers, .*contiguous. would do"):
        Device["WEBGPU"].compile(f"// {json.dumps(facts)}\n")


@needs_device
def test_memory_that_only_garbage_knows_is_used_again() -> None:
    """The collector finalizes all of a cycle, and the driver's own object with it."""
    backend, free = Device["WEBGPU"], Buffer("WEBGPU", 12345, dtypes.float32)
    memory = free.copyin(np.arange(12345, dtype=np.float32)).handle.buffer
    cycle: list[Any] = [free]
    cycle.append(cycle)
    del free, cycle
    gc.collect()
    again = Buffer("WEBGPU", 12345, dtypes.float32).allocate()
    assert again.handle.buffer is memory
    ones = np.ones(12345, np.float32)
    np.testing.assert_array_equal(again.copyin(ones).numpy(), ones)
    assert memory in backend.allocator.live


@needs_device
def test_source_that_the_driver_refuses() -> None:
    head = '// {"buffers":[],"variables":[]}\n'
    with pytest.raises(CompileError, match="wgpu refused generated WGSL"):
        Device["WEBGPU"].compile(head + "fn main() { nonsense }")


@needs_device
def test_a_kernel_that_needs_more_than_a_block_has() -> None:
    """Of memory that a block shares, and of work-items."""
    head, backend = '// {"buffers":[],"variables":[]}\n', Device["WEBGPU"]
    room = backend.target.local_bytes
    shared = "var<workgroup> x: array<vec2<u32>, {}>;\n@compute @workgroup_size(1) fn main() {{}}"
    assert backend.compile(head + shared.format(room // 8))
    wanted = rf"needs {room + 8:,} bytes of shared memory in a block and the device has {room:,}"
    with pytest.raises(DeviceError, match=wanted):
        backend.compile(head + shared.format(room // 8 + 1))
    items = 2 * backend.target.max_group
    with pytest.raises(CompileError, match=r"(?i)workgroup size"):
        backend.compile(f"{head}@compute @workgroup_size({items}) fn main() {{}}")


@needs_device
def test_a_lost_device_and_full_memory_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    backend: Any = Device["WEBGPU"]
    wgpu = webgpu.binding()

    def lose() -> None:
        raise wgpu.GPUError("Parent device is lost")

    def fill() -> None:
        raise wgpu.GPUOutOfMemoryError("Not enough memory left")

    with pytest.raises(DeviceError, match="lost; what was on the device is gone, and a new proc"):
        backend.guarded(lose)
    with pytest.raises(MemoryError, match="Not enough memory left"):
        backend.guarded(fill)
