"""The OpenCL device: what is missing and what would help, memory, views, launches, the cache."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest

from aster_ml.backend import Grid, ThreadParts
from aster_ml.device import Buffer, Device
from aster_ml.dtype import dtypes
from aster_ml.errors import CompileError, DeviceError, InternalError, OutOfMemoryError
from aster_ml.renderer.opencl import OpenCLRenderer
from aster_ml.runtime import object_cache, opencl
from aster_ml.target import Target
from tests.core.linear_builder import GLOBAL, LOCAL, Builder, at
from tests.core.linear_programs import CASES, check_outputs, f32, i32

ABSENT = opencl.missing()


def needs_device(test: Callable[..., None]) -> Callable[..., None]:
    """Marks a test that runs on a device."""
    skip = pytest.mark.skipif(ABSENT is not None, reason=f"OpenCL: {ABSENT}")
    return pytest.mark.opencl(skip(test))


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    reason = opencl.missing.__wrapped__()
    assert reason == "pyopencl is not installed; pip install 'aster-ml[opencl]' brings it"


def test_a_missing_platform_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    monkeypatch.setattr(opencl, "devices", lambda: ())
    reason = opencl.missing.__wrapped__()
    assert reason is not None
    assert "no OpenCL platform has a device" in reason
    assert "apt-get install pocl-opencl-icd" in reason


def test_a_broken_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> tuple[object, ...]:
        raise ImportError("libOpenCL.so.1: cannot open shared object file")

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    monkeypatch.setattr(opencl, "devices", fail)
    reason = opencl.missing.__wrapped__()
    assert reason is not None
    assert "does not load (libOpenCL.so.1" in reason


def test_driver_names_become_one_word() -> None:
    assert opencl.one_word("Portable Computing, Language  a=b") == "Portable-Computing-Language-a-b"


@needs_device
def test_target_is_plain_data() -> None:
    target = Device["OPENCL"].target
    assert Target.parse(target.key) == target
    assert target.has_local
    assert target.max_group >= 1
    assert target.local_bytes > 0
    assert target.has_dtype("float32")
    assert target.has_op("EXP2")


def double_kernel(n: int) -> tuple[str, bytes, object]:
    """out = x * 2 in blocks of 4 work-items; the loaded program with its source and binary."""
    b = Builder("double_it")
    out, x = b.param(n), b.param(n)
    g, item = b.axis(n // 4, GLOBAL), b.axis(4, LOCAL)
    i = b.add(g * i32(4) + item)
    b.store(at(out, i), b.add(b.load(at(x, i)) * f32(2)))
    backend = Device["OPENCL"]
    source = OpenCLRenderer(backend.target).render(b.build())
    binary = backend.compile(source)
    return source, binary, backend.load("double_it", binary)


@needs_device
def test_launch_and_time() -> None:
    _, _, program = double_kernel(16)
    data = np.arange(16, dtype=np.float32)
    x = Buffer("OPENCL", 16, dtypes.float32).copyin(data)
    out = Buffer("OPENCL", 16, dtypes.float32).allocate()
    queue = Device["OPENCL"].queue
    before = queue.signal()
    program((out.handle, x.handle), (), Grid((4, 1, 1), (4, 1, 1)))
    assert 0 < queue.signal().seconds_since(before) < 10
    np.testing.assert_array_equal(out.numpy(), data * 2)


@needs_device
def test_launches_run_in_order_without_waiting() -> None:
    _, _, program = double_kernel(16)
    a = Buffer("OPENCL", 16, dtypes.float32).copyin(np.ones(16, np.float32))
    b = Buffer("OPENCL", 16, dtypes.float32).allocate()
    for _ in range(5):
        program((b.handle, a.handle), (), Grid((4,), (4,)))
        program((a.handle, b.handle), (), Grid((4,), (4,)))
    Device["OPENCL"].synchronize()
    np.testing.assert_array_equal(a.numpy(), np.full(16, 1024))


@needs_device
def test_no_blocks_is_no_launch() -> None:
    _, _, program = double_kernel(16)
    x = Buffer("OPENCL", 16, dtypes.float32).copyin(np.ones(16, np.float32))
    program((x.handle, x.handle), (), Grid((0, 1, 1), (4, 1, 1)))
    np.testing.assert_array_equal(x.numpy(), np.ones(16))


@needs_device
def test_views_start_anywhere() -> None:
    _, _, program = double_kernel(8)
    base = Buffer("OPENCL", 64, dtypes.float32).copyin(np.arange(64, dtype=np.float32))
    x, out = base.view(8, dtypes.float32, 3 * 4), base.view(8, dtypes.float32, 33 * 4)
    program((out.handle, x.handle), (), Grid((2, 1, 1), (4, 1, 1)))
    want = np.arange(64, dtype=np.float32)
    want[33:41] = want[3:11] * 2
    np.testing.assert_array_equal(base.numpy(), want)
    inner = base.view(16, dtypes.float32, 8).view(4, dtypes.float32, 4)
    np.testing.assert_array_equal(inner.numpy(), want[3:7])
    inner.copyin(np.full(4, -1, np.float32))
    want[3:7] = -1
    np.testing.assert_array_equal(base.numpy(), want)


@needs_device
def test_copies_between_devices() -> None:
    data = np.arange(5, dtype=np.float64)
    source = Buffer("CPU", 5, dtypes.float64).copyin(data)
    there = Buffer("OPENCL", 5, dtypes.float64).copy_from(source)
    other = Buffer("OPENCL:1", 5, dtypes.float64).copy_from(there)
    back = Buffer("CPU", 5, dtypes.float64).copy_from(other)
    np.testing.assert_array_equal(back.numpy(), data)


@needs_device
def test_a_device_copies_by_itself() -> None:
    data = np.arange(64, dtype=np.float32)
    base = Buffer("OPENCL", 64, dtypes.float32).copyin(data)
    other = Buffer("OPENCL", 16, dtypes.float32).copy_from(base.view(16, dtypes.float32, 12))
    np.testing.assert_array_equal(other.numpy(), data[3:19])
    base.view(16, dtypes.float32, 160).copy_from(other)
    data[40:56] = data[3:19]
    np.testing.assert_array_equal(base.numpy(), data)
    # Within one memory object, where parts may overlap, the host copies.
    base.view(16, dtypes.float32, 8).copy_from(base.view(16, dtypes.float32, 0))
    data[2:18] = data[:16].copy()
    np.testing.assert_array_equal(base.numpy(), data)


@needs_device
def test_a_queue_waits_for_events_of_others() -> None:
    ours, there = Device["OPENCL"].queue, Device["OPENCL:1"].queue
    for event in (ours.signal(), there.signal(), Device["CPU"].queue.signal()):
        ours.wait(event)
        event.wait()
    first = ours.signal()
    assert ours.signal().seconds_since(first) >= 0
    ours.finish()


@needs_device
def test_source_that_the_driver_refuses() -> None:
    with pytest.raises(CompileError, match="the driver refused generated OpenCL C"):
        Device["OPENCL"].compile("__kernel void broken(__global int *x) { x[0] = nonsense; }")


@needs_device
def test_a_kernel_that_is_not_in_the_binary() -> None:
    _, binary, _ = double_kernel(16)
    with pytest.raises(CompileError, match="kernel other could not be loaded"):
        Device["OPENCL"].load("other", binary)
    with pytest.raises(CompileError, match="kernel double_it could not be loaded"):
        Device["OPENCL"].load("double_it", b"no binary")


@needs_device
def test_groups_that_the_device_refuses() -> None:
    _, _, program = double_kernel(16)
    x = Buffer("OPENCL", 16, dtypes.float32).copyin(np.ones(16, np.float32))
    with pytest.raises(DeviceError, match=r"kernel double_it with .* work-items failed"):
        program((x.handle, x.handle), (), Grid((2, 1, 1), (8, 1, 1)))
    with pytest.raises(InternalError, match="OpenCL has blocks of work-items"):
        program((x.handle, x.handle), (), ThreadParts(16))


@needs_device
def test_a_device_that_is_lost_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """By what drivers answer then, wherever they are asked."""
    cl, backend = opencl.binding(), Device["OPENCL"]
    _, _, program = double_kernel(16)
    x = Buffer("OPENCL", 16, dtypes.float32).copyin(np.ones(16, np.float32))
    event = backend.queue.signal()

    def lose(*args: object, **keys: object) -> None:
        raise cl.RuntimeError("clFinish failed: OUT_OF_RESOURCES")

    for name in ("enqueue_copy", "enqueue_marker", "enqueue_nd_range_kernel"):
        monkeypatch.setattr(cl, name, lose)
    monkeypatch.setattr(event, "event", SimpleNamespace(wait=lose))
    monkeypatch.setattr(backend.queue, "queue", SimpleNamespace(finish=lose))
    for action in (
        x.numpy,
        lambda: x.copyin(np.ones(16, np.float32)),
        lambda: program((x.handle, x.handle), (), Grid((2, 1, 1), (8, 1, 1))),
        backend.queue.signal,
        backend.queue.finish,
        event.wait,
    ):
        with pytest.raises(DeviceError, match=r"OUT_OF_RESOURCES.* a new process can use it again"):
            action()


@needs_device
def test_a_buffer_larger_than_the_device_takes() -> None:
    nbytes = Device["OPENCL"].device.max_mem_alloc_size * 2
    with pytest.raises(OutOfMemoryError, match=r"the device takes .* in one piece"):
        Buffer("OPENCL", nbytes, dtypes.uint8).allocate()


@needs_device
def test_binaries_are_cached_on_disk() -> None:
    source, binary, _ = double_kernel(32)
    cache = object_cache.current_cache()
    assert cache is not None
    hits = cache.hits
    assert Device["OPENCL"].compile(source) == binary
    assert cache.hits == hits + 1


@needs_device
def test_numbers_past_the_last_device_start_again() -> None:
    case = CASES["group_sum"]()
    backend = Device["OPENCL:7"]
    program = backend.load(
        case.linear.name, backend.compile(OpenCLRenderer(backend.target).render(case.linear))
    )
    memory = [
        Buffer("OPENCL:7", x.size, p.dtype).copyin(x.copy())
        for x, p in zip(case.buffers, case.linear.params, strict=True)
    ]
    program(tuple(m.handle for m in memory), (), Grid((3, 1, 1), (8, 1, 1)))
    check_outputs([m.numpy() for m in memory], case)
