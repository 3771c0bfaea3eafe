"""Metal's runtime on libraries of the tests: messages, memory, launches, graphs, errors, leaks.

Nobody has run it on hardware. The libraries do nothing until somebody waits, and count objects.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator

import numpy as np
import pytest

from aster_ml import Tensor
from aster_ml.backend import Call, Grid, ThreadParts
from aster_ml.device import Buffer, Device
from aster_ml.dtype import dtypes
from aster_ml.errors import (
    CompileError,
    DeviceError,
    DTypeError,
    InternalError,
    OutOfMemoryError,
)
from aster_ml.runtime.metal import device as metal
from aster_ml.runtime.metal import objc as metal_objc
from aster_ml.runtime.metal.graph import MAX_COMMANDS
from aster_ml.runtime.metal.queue import MetalProgram
from aster_ml.target import Target
from tests.shim import metal_stub

ABSENT = metal_stub.missing()
pytestmark = [pytest.mark.cc, pytest.mark.skipif(ABSENT is not None, reason=str(ABSENT))]

HEAD = 'extern "C" int {}_on_cpu(void **a, const unsigned *g, const unsigned *b, unsigned) {{\n'
KERNELS = (
    HEAD.format("twice")
    + "for (unsigned i = 0; i < g[0] * b[0]; i++) ((float *)a[0])[i] = 2 * ((float *)a[1])[i];"
    + "return 0; }\n"
    + HEAD.format("add_n")
    + "for (unsigned i = 0; i < g[0] * b[0]; i++) ((float *)a[0])[i] += *(long *)a[1];"
    + "return 0; }\n"
)


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> Iterator[metal_stub.Stub]:
    """The libraries without faults; after the test no object is left, but for the device's."""
    library = metal_stub.load()
    library.reset()
    with pytest.MonkeyPatch.context() as patch:
        library.put_in_place(patch)
        metal.missing.cache_clear()
        yield library
        library.reset()
        for name in [name for name in Device.opened if name.partition(":")[0] == "METAL"]:
            Device.opened.pop(name).allocator.free_cache()
    metal.missing.cache_clear()
    metal_objc.forget()


@pytest.fixture
def backend(stub: metal_stub.Stub) -> metal.MetalBackend:
    """The device, opened anew, under its name in the registry."""
    opened = Device.opened["METAL"] = metal.open_backend("METAL")
    assert isinstance(opened, metal.MetalBackend)
    return opened


def load(backend: metal.MetalBackend, name: str) -> MetalProgram:
    program = backend.load(name, backend.compile(KERNELS))
    assert isinstance(program, MetalProgram)
    return program


def floats(values: object) -> Buffer:
    data = np.asarray(values, dtype=np.float32)
    return Buffer("METAL", data.size, dtypes.float32).copyin(data)


def calls_of(backend: metal.MetalBackend, x: Buffer, out: Buffer) -> list[Call]:
    """out = (x + 3) * 2 - 1, in place of x."""
    add, twice = load(backend, "add_n"), load(backend, "twice")
    grid = Grid((2, 1, 1), (4, 1, 1))
    return [
        Call(add, (x.handle,), (3,), grid),
        Call(twice, (out.handle, x.handle), (), grid),
        Call(add, (out.handle,), (-1,), grid),
    ]


def test_target_is_plain_data(backend: metal.MetalBackend) -> None:
    target = backend.target
    assert Target.parse(target.key) == target
    assert (target.language, target.local_bytes, target.max_group) == ("metal", 32768, 1024)


def test_launches_copies_and_times(backend: metal.MetalBackend) -> None:
    x, out = floats(np.arange(8)), Buffer("METAL", 8, dtypes.float32).allocate()
    before = backend.queue.signal()
    for call in calls_of(backend, x, out):
        call.program(call.handles, call.vars, call.launch)
    after = backend.queue.signal()
    np.testing.assert_array_equal(out.numpy(), (np.arange(8) + 3) * 2 - 1)
    assert 0 < after.seconds_since(before) < 60
    other = Buffer("METAL", 3, dtypes.float32).copy_from(out.view(3, dtypes.float32, 8))
    np.testing.assert_array_equal(other.numpy(), (np.arange(2, 5) + 3) * 2 - 1)
    out.view(6, dtypes.float32, 8).copy_from(out.view(6, dtypes.float32, 0))
    np.testing.assert_array_equal(out.numpy()[2:], (np.arange(6) + 3) * 2 - 1)


def test_memory_that_is_copied_from_may_be_used_again(backend: metal.MetalBackend) -> None:
    second = Device.opened["METAL:1"] = metal.open_backend("METAL:1")
    data = np.arange(8, dtype=np.float32)
    x = Buffer("METAL:1", 8, dtypes.float32).copyin(data)
    y = Buffer("METAL", 8, dtypes.float32).copy_from(x)
    add = second.load("add_n", second.compile(KERNELS))
    add((x.handle,), (100,), Grid((2,), (4,)))
    second.synchronize()
    np.testing.assert_array_equal(y.numpy(), data)


def test_many_launches_start_without_waiting(backend: metal.MetalBackend) -> None:
    add, x = load(backend, "add_n"), floats(np.zeros(8))
    for _ in range(3000):
        add((x.handle,), (1,), Grid((2,), (4,)))
    np.testing.assert_array_equal(x.numpy(), np.full(8, 3000))


def test_graphs_with_other_memory_variables_and_sizes(backend: metal.MetalBackend) -> None:
    x, out = floats(np.arange(8)), Buffer("METAL", 8, dtypes.float32).allocate()
    graph = backend.make_graph(calls_of(backend, x, out))
    assert graph is not None
    results, wanted = [], []
    for turn in range(8):
        x, out = floats(np.arange(8) * turn), Buffer("METAL", 8, dtypes.float32).allocate()
        for call, slot, b in ((0, 0, x), (1, 0, out), (1, 1, x), (2, 0, out)):
            graph.set_handle(call, slot, b.handle)
        graph.set_var(0, 0, turn)
        graph.run()
        # The commands are read as they run: those on the way see nothing of the next.
        results.append(out)
        wanted.append((np.arange(8) * turn + turn) * 2 - 1)
    for result, want in zip(results, wanted, strict=True):
        np.testing.assert_array_equal(result.numpy(), want)
    graph.set_launch(0, Grid((1, 1, 1), (4, 1, 1)))
    x.copyin(np.zeros(8, np.float32))
    graph.run()
    np.testing.assert_array_equal(out.numpy(), [13] * 4 + [-1] * 4)
    # Launches of nothing are no commands; memory may change meanwhile.
    graph.set_launch(0, Grid((0, 1, 1), (4, 1, 1)))
    x = floats(np.arange(8))
    graph.set_handle(0, 0, x.handle)
    graph.set_handle(1, 1, x.handle)
    graph.run()
    np.testing.assert_array_equal(out.numpy(), np.arange(8) * 2 - 1)
    graph.set_launch(0, Grid((2, 1, 1), (4, 1, 1)))
    graph.run()
    np.testing.assert_array_equal(out.numpy(), (np.arange(8) + 7) * 2 - 1)


@pytest.mark.parametrize(("family", "count"), [(1007, 2), (1008, 2), (1009, 0)])
def test_early_devices_are_shown_the_pipelines_of_a_graph(
    stub: metal_stub.Stub, family: int, count: int
) -> None:
    stub.family(family)
    opened = Device.opened["METAL"] = metal.open_backend("METAL")
    assert isinstance(opened, metal.MetalBackend)
    x, out = floats(np.arange(8)), Buffer("METAL", 8, dtypes.float32).allocate()
    calls = calls_of(opened, x, out)
    graph = opened.make_graph([calls[0], calls[1]])
    assert graph is not None
    graph.run()
    out.numpy()
    assert stub.empty() == count


def test_devices_that_are_not_apples_have_no_warps(stub: metal_stub.Stub) -> None:
    stub.family(0)
    target = metal.open_backend("METAL").target
    assert (target.warp, target.features, target.tensor_cores) == (0, frozenset(), frozenset())


@pytest.mark.parametrize(("start", "count"), [(0, 8), (4, 8), (1, 8), (4, 7), (3, 5)])
def test_copies_of_odd_bytes_go_by_way_of_the_host(
    backend: metal.MetalBackend, start: int, count: int
) -> None:
    data = np.arange(16, dtype=np.uint8)
    x = Buffer("METAL", 16, dtypes.uint8).copyin(data)
    y = Buffer("METAL", 16, dtypes.uint8).copyin(data * 0)
    y.view(count, dtypes.uint8, start).copy_from(x.view(count, dtypes.uint8, start))
    wanted = np.zeros(16, np.uint8)
    wanted[start : start + count] = data[start : start + count]
    np.testing.assert_array_equal(y.numpy(), wanted)


def test_what_is_no_graph(backend: metal.MetalBackend) -> None:
    add, x = load(backend, "add_n"), floats(np.zeros(8))
    assert backend.make_graph([Call(add, (x.handle,), (1,), Grid((0,), (4,)))]) is None
    assert backend.make_graph([Call(add, (x.handle,) * 32, (), Grid((1,), (4,)))]) is None
    call = Call(add, (x.handle,), (1,), Grid((1,), (4,)))
    assert backend.make_graph([call] * (MAX_COMMANDS + 1)) is None
    backend.has_graphs = False
    assert backend.make_graph([Call(add, (x.handle,), (1,), Grid((1,), (4,)))]) is None


def test_nothing_is_left(stub: metal_stub.Stub) -> None:
    def work() -> None:
        backend = metal.open_backend("METAL")
        assert isinstance(backend, metal.MetalBackend)
        Device.opened["METAL"] = backend
        x, out = floats(np.arange(8)), Buffer("METAL", 8, dtypes.float32).allocate()
        graph = backend.make_graph(calls_of(backend, x, out))
        assert graph is not None
        graph.run()
        out.numpy()
        del Device.opened["METAL"]

    work()
    gc.collect()
    before = stub.live()
    for _ in range(3):
        work()
        gc.collect()
    assert stub.live() == before
    assert stub.pooled() == 0


def test_memory_that_only_garbage_knows_is_used_again(backend: metal.MetalBackend) -> None:
    """The collector finalizes all of a cycle, and what would release the buffer with it."""
    cycle: list[object] = [Buffer("METAL", 12345, dtypes.float32).allocate()]
    cycle.append(cycle)
    del cycle
    gc.collect()
    again = Buffer("METAL", 12345, dtypes.float32).allocate()
    assert again.handle.buffer.address
    ones = np.ones(12345, np.float32)
    np.testing.assert_array_equal(again.copyin(ones).numpy(), ones)


def test_kernels_that_fail_say_so_once(backend: metal.MetalBackend, stub: metal_stub.Stub) -> None:
    add, x = load(backend, "add_n"), floats(np.zeros(4))
    for code, words in (
        (3, "touched memory that is not its own"),
        (8, "smaller batches"),
        (99, ""),
    ):
        stub.fail(code)
        add((x.handle,), (1,), Grid((1,), (4,)))
        with pytest.raises(DeviceError, match="kernels failed: Caused GPU Address Fault") as caught:
            x.numpy()
        assert words in str(caught.value)
    assert x.numpy().size == 4
    stub.fail(11)
    add((x.handle,), (1,), Grid((1,), (4,)))
    with pytest.raises(DeviceError, match="kernels failed"):
        backend.synchronize()
    with pytest.raises(DeviceError, match="METAL was lost"):
        add((x.handle,), (1,), Grid((1,), (4,)))


def test_what_the_device_does_not_take(backend: metal.MetalBackend, stub: metal_stub.Stub) -> None:
    x = floats(np.zeros(4))
    stub.max_threads(64)
    add = load(backend, "add_n")
    with pytest.raises(DeviceError, match="128 threads in a block and can have 64"):
        add((x.handle,), (1,), Grid((1, 1, 1), (32, 4, 1)))
    with pytest.raises(DeviceError, match="has 32 buffers and variables, and Metal takes 31"):
        add((x.handle,) * 32, (), Grid((1,), (4,)))
    stub.static_shared(40000)
    with pytest.raises(DeviceError, match="needs 40,000 bytes of threadgroup memory and the"):
        load(backend, "add_n")
    with pytest.raises(InternalError, match="Metal has blocks of threads"):
        add((x.handle,), (1,), ThreadParts(4))
    with pytest.raises(OutOfMemoryError, match="the device takes 256 MB in one piece"):
        Buffer("METAL", 1 << 29, dtypes.uint8).allocate()
    stub.no_memory(1)
    with pytest.raises(OutOfMemoryError, match="the device can use 1 GB"):
        Buffer("METAL", 1 << 20, dtypes.uint8).allocate()


def test_a_dtype_that_there_is_not_is_named(backend: metal.MetalBackend) -> None:
    with pytest.raises(DTypeError, match="METAL: it has no float64; cast to one of bool"):
        (Tensor(np.ones(4), device="METAL") * 2).realize()


def test_source_that_is_refused(backend: metal.MetalBackend) -> None:
    with pytest.raises(CompileError, match=r"Metal refused generated source:\n.*nonsense"):
        backend.compile("nonsense")
    with pytest.raises(CompileError, match="the library has no kernel other"):
        load(backend, "other")


def test_what_is_missing_is_named(stub: metal_stub.Stub, monkeypatch: pytest.MonkeyPatch) -> None:
    assert metal.missing() is None
    stub.no_device(1)
    metal.missing.cache_clear()
    assert "the system shows no Metal device" in str(metal.missing())
    monkeypatch.setitem(metal_objc.PATHS, "CoreGraphics", "/nothing.dylib")
    metal_objc.forget()
    metal.missing.cache_clear()
    assert "Metal's libraries do not load (/nothing.dylib" in str(metal.missing())


@pytest.mark.skipif(sys.platform == "darwin", reason="this is macOS")
def test_elsewhere_it_is_a_part_of_macos() -> None:
    metal.missing.cache_clear()
    assert "Metal is a part of macOS, and this is" in str(metal.missing())
