"""CUDA's runtime on a driver library of the tests: memory, copies, launches, events, errors, leaks.

The library does nothing until somebody waits, so what the driver does not promise does not happen.
"""

from __future__ import annotations

import ctypes
import gc
import os
import subprocess
import sys
from collections.abc import Iterator

import numpy as np
import pytest

from aster_ml import Context
from aster_ml.backend import Call, Grid, ThreadParts
from aster_ml.device import Buffer, Device
from aster_ml.dtype import dtypes
from aster_ml.errors import CompileError, DeviceError, InternalError, OutOfMemoryError
from aster_ml.renderer.cuda.renderer import CudaRenderer
from aster_ml.runtime.cuda import compiler as cuda_compiler
from aster_ml.runtime.cuda import context as cuda_device
from aster_ml.runtime.cuda import device as cuda
from aster_ml.runtime.cuda import memory as cuda_memory
from aster_ml.runtime.cuda.queue import CudaProgram
from aster_ml.target import Target
from aster_ml.uop.linear import Linear
from tests.core.linear_builder import LOCAL, VECTOR, Builder, at
from tests.shim import cuda_stub

ABSENT = cuda_stub.missing()
pytestmark = [pytest.mark.cc, pytest.mark.skipif(ABSENT is not None, reason=str(ABSENT))]

KERNELS = """
extern "C" __global__ void twice(float *out, const float *x, const unsigned long long *table) {
  if (table) { out = (float *)table[0]; x = (const float *)table[1]; }
  unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  out[i] = x[i] * 2;
}
extern "C" __global__ void add_n(float *x, long long n, const unsigned long long *table) {
  if (table) { x = (float *)table[0]; n = (long long)table[1]; }
  x[(blockIdx.y * gridDim.x + blockIdx.x) * blockDim.x + threadIdx.x] += n;
}
"""


@pytest.fixture(scope="module")
def driver() -> Iterator[cuda_stub.Stub]:
    """The library; after the module its driver has no device, as before."""
    with cuda_stub.in_place() as stub:
        yield stub


@pytest.fixture
def stub(driver: cuda_stub.Stub) -> Iterator[cuda_stub.Stub]:
    """The library without faults; nothing that a test makes is left, but its context."""
    gc.collect()
    driver.reset()
    cuda_device.CURRENT.device = None
    before = driver.live()
    yield driver
    driver.reset()
    gc.collect()
    for name in [name for name in Device.opened if name.partition(":")[0] == "CUDA"]:
        close(Device.opened.pop(name))
    after = driver.live()
    # A device keeps its stream as long as the process.
    assert {**after, "STREAMS": 0} == {**before, "STREAMS": 0}


def close(backend: cuda.CudaBackend) -> None:
    """Gives back what a backend keeps for reuse; what is lost in the test is asked for again."""
    backend.device.lost = ""
    backend.allocator.free_cache()
    backend.allocator.staging.free()


@pytest.fixture
def backend(stub: cuda_stub.Stub) -> cuda.CudaBackend:
    """The first device, opened anew, under its name in the registry."""
    opened = Device.opened["CUDA"] = cuda.open_backend("CUDA")
    assert isinstance(opened, cuda.CudaBackend)
    return opened


def load(backend: cuda.CudaBackend, name: str, shared: int = 0) -> CudaProgram:
    binary = cuda_compiler.pack(cuda_compiler.Binary(cuda_stub.library_of(KERNELS), shared))
    program = backend.load(name, binary)
    assert isinstance(program, CudaProgram)
    return program


def floats(values: object, device: str = "CUDA") -> Buffer:
    data = np.asarray(values, dtype=np.float32)
    return Buffer(device, data.size, dtypes.float32).copyin(data)


def test_target_is_plain_data(backend: cuda.CudaBackend) -> None:
    target = backend.target
    assert Target.parse(target.key) == target
    assert (target.language, target.arch, target.max_group) == ("cuda", "sm_90a", 1024)
    assert (target.local_bytes, target.units) == (227 << 10, 4)


def test_launches_are_in_order_and_not_waited_for(
    backend: cuda.CudaBackend, stub: cuda_stub.Stub
) -> None:
    twice, add = load(backend, "twice"), load(backend, "add_n")
    x, out = floats(np.arange(16)), Buffer("CUDA", 16, dtypes.float32).allocate()
    before = backend.queue.signal()
    add((x.handle,), (3,), Grid((2, 2), (4,)))
    twice((out.handle, x.handle), (), Grid((4, 1, 1), (4, 1, 1)))
    add((out.handle,), (-1,), Grid((4, 1, 1), (4, 1, 1)))
    after = backend.queue.signal()
    assert stub.calls("cuStreamSynchronize") == stub.calls("cuEventSynchronize") == 0
    np.testing.assert_array_equal(out.numpy(), (np.arange(16) + 3) * 2 - 1)
    assert 0 <= after.seconds_since(before) < 60


def test_no_blocks_is_no_launch(backend: cuda.CudaBackend, stub: cuda_stub.Stub) -> None:
    load(backend, "add_n")((floats([1]).handle,), (3,), Grid((0, 1, 1), (4, 1, 1)))
    assert stub.calls("cuLaunchKernel") == 0


def test_copies_of_many_pieces(backend: cuda.CudaBackend, stub: cuda_stub.Stub) -> None:
    count = (cuda_memory.PIECE_NBYTES * (2 * cuda_memory.PIECES) + 12) // 4
    data = np.random.default_rng(1).standard_normal(count).astype(np.float32)
    given = data.copy()
    x = floats(given)
    given[:] = 0
    np.testing.assert_array_equal(x.numpy(), data)
    np.testing.assert_array_equal(x.view(3, dtypes.float32, 4 * (count - 3)).numpy(), data[-3:])
    assert stub.live()["PINNED"] == cuda_memory.PIECES


def test_one_pinned_piece_serves_small_copies(
    backend: cuda.CudaBackend, stub: cuda_stub.Stub
) -> None:
    pinned = stub.live()["PINNED"]
    for i in range(20):
        assert floats([i, 2.5]).numpy().tolist() == [i, 2.5]
    assert stub.live()["PINNED"] - pinned <= cuda_memory.PIECES


def test_views_and_copies_within_the_device(backend: cuda.CudaBackend) -> None:
    data = np.arange(64, dtype=np.float32)
    base = floats(data)
    other = Buffer("CUDA", 16, dtypes.float32).copy_from(base.view(16, dtypes.float32, 12))
    np.testing.assert_array_equal(other.numpy(), data[3:19])
    # Where the two overlap, the host copies.
    base.view(16, dtypes.float32, 8).copy_from(base.view(16, dtypes.float32, 0))
    data[2:18] = data[:16].copy()
    np.testing.assert_array_equal(base.numpy(), data)
    there = Buffer("CPU", 64, dtypes.float32).copy_from(base)
    np.testing.assert_array_equal(there.numpy(), data)


def test_two_devices_and_copies_between_them(
    backend: cuda.CudaBackend, stub: cuda_stub.Stub
) -> None:
    second = Device.opened["CUDA:1"] = cuda.open_backend("CUDA:1")
    add, add_there = load(backend, "add_n"), load(second, "add_n")
    x = floats(np.arange(8))
    add((x.handle,), (5,), Grid((2,), (4,)))
    y = Buffer("CUDA:1", 8, dtypes.float32).copy_from(x)
    # Memory that has been copied from may be used again at once.
    add((x.handle,), (100,), Grid((2,), (4,)))
    add_there((y.handle,), (1,), Grid((2,), (4,)))
    z = Buffer("CUDA", 8, dtypes.float32).copy_from(y)
    np.testing.assert_array_equal(z.numpy(), np.arange(8) + 6)
    np.testing.assert_array_equal(x.numpy(), np.arange(8) + 105)
    assert stub.calls("cuMemcpyPeerAsync") == 2
    with pytest.raises(DeviceError, match=r"'CUDA:2' is not there: .* shows CUDA to CUDA:1"):
        cuda.open_backend("CUDA:2")


def test_queues_wait_for_events_of_others(backend: cuda.CudaBackend, stub: cuda_stub.Stub) -> None:
    second = Device.opened["CUDA:1"] = cuda.open_backend("CUDA:1")
    for event in (backend.queue.signal(), second.queue.signal(), Device["CPU"].queue.signal()):
        backend.queue.wait(event)
    assert stub.calls("cuStreamWaitEvent") == 2
    backend.synchronize()
    second.synchronize()


def test_freed_memory_is_used_again(backend: cuda.CudaBackend, stub: cuda_stub.Stub) -> None:
    for _ in range(10):
        floats(np.arange(1000))
    assert stub.calls("cuMemAlloc") == 1
    assert backend.allocator.free_cache() == 4096
    assert stub.calls("cuMemFree") == 1


def test_out_of_memory_frees_the_pool_and_tries_again(
    backend: cuda.CudaBackend, stub: cuda_stub.Stub
) -> None:
    stub.set("memory", 3 << 20)
    del_me = Buffer("CUDA", 2 << 20, dtypes.uint8).allocate()
    del del_me
    half = Buffer("CUDA", 5 << 19, dtypes.uint8).allocate()
    assert stub.calls("cuMemFree") == 1
    with pytest.raises(OutOfMemoryError) as caught:
        Buffer("CUDA", 1 << 20, dtypes.uint8).allocate()
    text = str(caught.value)
    assert "CUDA has no room for 1 MB" in text
    assert "0 MB of its 3 MB are free" in text
    assert half.is_allocated()


def test_pinned_memory_that_there_is_not(backend: cuda.CudaBackend, stub: cuda_stub.Stub) -> None:
    stub.fail("cuMemAllocHost", 2)
    with pytest.raises(
        OutOfMemoryError, match=r"host has no room for 4 MB of pinned memory, which"
    ):
        floats([1])
    assert floats([7]).numpy().tolist() == [7]


def test_what_the_driver_takes_for_itself_the_pool_gives_back(
    backend: cuda.CudaBackend, stub: cuda_stub.Stub
) -> None:
    """Modules, stacks and graphs take memory that nobody has asked the pool for."""
    x = floats(np.zeros(4))
    for name in ("cuModuleLoadData", "cuLaunchKernel", "cuGraphInstantiate", "cuGraphLaunch"):
        floats(np.arange(1000))
        given, kept = stub.calls("cuMemFree"), backend.allocator.pool_bytes
        assert backend.allocator.has_block(4000)
        stub.fail(name, 2)
        add = load(backend, "add_n")
        add((x.handle,), (1,), Grid((1,), (4,)))
        graph = backend.make_graph([Call(add, (x.handle,), (1,), Grid((1,), (4,)))])
        graph.run()
        assert stub.calls("cuMemFree") > given
        assert backend.allocator.pool_bytes < max(kept, 1)
    np.testing.assert_array_equal(x.numpy(), np.full(4, 8))
    # With nothing to give back, or where that is not enough, it is said.
    backend.allocator.free_cache()
    stub.fail("cuLaunchKernel", 2)
    with pytest.raises(OutOfMemoryError, match=r"no room for kernel add_n .* MB are free; smaller"):
        add((x.handle,), (1,), Grid((1,), (4,)))


@pytest.mark.parametrize("status", [700, 715, 719, 214, 226, 721])
def test_a_lost_device_says_so_and_nothing_hangs(
    backend: cuda.CudaBackend, stub: cuda_stub.Stub, status: int
) -> None:
    add, x = load(backend, "add_n"), floats(np.arange(4))
    event = backend.queue.signal()
    stub.lose(status)
    add((x.handle,), (5,), Grid((1,), (4,)))
    with pytest.raises(DeviceError) as caught:
        x.numpy()
    assert "CUDA is lost: " in str(caught.value)
    assert cuda_device.FATAL[status] in str(caught.value)
    assert "a new process can use the device" in str(caught.value)
    made = stub.calls("cuLaunchKernel")
    for action in (
        lambda: add((x.handle,), (5,), Grid((1,), (4,))),
        backend.synchronize,
        event.wait,
        lambda: floats([1]),
        lambda: load(backend, "twice"),
    ):
        with pytest.raises(DeviceError, match="CUDA was lost"):
            action()
    assert stub.calls("cuLaunchKernel") == made
    # What a device that is lost holds nobody gives back, so it is found again for that.
    stub.reset()
    backend.device.lost = ""


def test_a_kernel_that_needs_more_threads_than_there_are(
    backend: cuda.CudaBackend, stub: cuda_stub.Stub
) -> None:
    add, x = load(backend, "add_n"), floats(np.zeros(2048))
    stub.set("max_threads", 256)
    with pytest.raises(DeviceError, match=r"512 threads in a block and can have 256, with 40 reg"):
        add((x.handle,), (1,), Grid((1, 1, 1), (512, 1, 1)))
    with pytest.raises(DeviceError, match=r"at most 2,147,483,647 blocks in its first dimension"):
        add((x.handle,), (1,), Grid((1, 70000, 1), (4, 1, 1)))
    with pytest.raises(DeviceError, match=r"a block 64 threads in its third"):
        add((x.handle,), (1,), Grid((1, 1, 1), (1, 2, 65)))
    with pytest.raises(InternalError, match="CUDA has blocks of threads"):
        add((x.handle,), (1,), ThreadParts(16))


def test_shared_memory_is_asked_for(backend: cuda.CudaBackend, stub: cuda_stub.Stub) -> None:
    x = floats(np.zeros(4))
    program = load(backend, "add_n", shared=100 << 10)
    program((x.handle,), (1,), Grid((1,), (4,)))
    np.testing.assert_array_equal(x.numpy(), np.ones(4))
    assert stub.calls("cuFuncSetAttribute") == 1
    with pytest.raises(
        DeviceError, match=r"needs 307,200 bytes of shared memory in a block and the device has 232"
    ):
        load(backend, "add_n", shared=300 << 10)
    # What the code itself has, and what aligns the rest of it, counts.
    stub.set("fixed_shared", 1024)
    load(backend, "add_n", shared=226 << 10)
    with pytest.raises(DeviceError, match=r"needs 233,472 bytes of shared memory in a block"):
        load(backend, "add_n", shared=227 << 10)


def test_binaries_that_are_none(backend: cuda.CudaBackend) -> None:
    with pytest.raises(CompileError, match="loading kernel other failed: there is no such name"):
        load(backend, "other")
    with pytest.raises(CompileError, match="the binary is none for this device"):
        backend.load("k", cuda_compiler.pack(cuda_compiler.Binary(b"no ELF" * 20, 0)))
    with pytest.raises(CompileError, match="a binary of CUDA begins with"):
        backend.load("k", b"nothing")


def calls_of(backend: cuda.CudaBackend, x: Buffer, out: Buffer) -> list[Call]:
    """out = (x + 3) * 2 - 1, in place of x; the first kernel has a variable."""
    add, twice = load(backend, "add_n"), load(backend, "twice")
    grid = Grid((2, 1, 1), (4, 1, 1))
    return [
        Call(add, (x.handle,), (3,), grid),
        Call(twice, (out.handle, x.handle), (), grid),
        Call(add, (out.handle,), (-1,), grid),
    ]


def test_a_graph_is_one_launch(backend: cuda.CudaBackend, stub: cuda_stub.Stub) -> None:
    x, out = floats(np.arange(8)), Buffer("CUDA", 8, dtypes.float32).allocate()
    graph = backend.make_graph(calls_of(backend, x, out))
    for turn in range(1, 4):
        graph.run()
        np.testing.assert_array_equal(out.numpy(), (np.arange(8) + 3 * turn) * 2 - 1)
    assert stub.calls("cuGraphLaunch") == 3
    assert stub.calls("cuLaunchKernel") == 0


def test_inputs_and_variables_are_exchanged_without_changing_the_graph(
    backend: cuda.CudaBackend, stub: cuda_stub.Stub
) -> None:
    x, out = floats(np.arange(8)), Buffer("CUDA", 8, dtypes.float32).allocate()
    graph = backend.make_graph(calls_of(backend, x, out))
    results, wanted = [], []
    for turn in range(20):
        # Each run is on other memory, and the host waits for none of them.
        x, out = floats(np.arange(8) * turn), Buffer("CUDA", 8, dtypes.float32).allocate()
        for call, slot, b in ((0, 0, x), (1, 0, out), (1, 1, x), (2, 0, out)):
            graph.set_handle(call, slot, b.handle)
        graph.set_var(0, 0, turn)
        graph.run()
        results.append(out)
        wanted.append((np.arange(8) * turn + turn) * 2 - 1)
    # Each node changes once, when it begins to look into the table.
    assert stub.calls("cuGraphExecKernelNodeSetParams") == 3
    assert stub.calls("cuGraphLaunch") == 20
    for result, want in zip(results, wanted, strict=True):
        np.testing.assert_array_equal(result.numpy(), want)
    before = stub.calls("cuMemcpyHtoDAsync")
    graph.set_var(0, 0, 19)
    graph.set_handle(1, 1, x.handle)
    graph.run()
    assert stub.calls("cuMemcpyHtoDAsync") == before


def test_sizes_of_a_graph_change(backend: cuda.CudaBackend, stub: cuda_stub.Stub) -> None:
    x = floats(np.zeros(16))
    add = load(backend, "add_n")
    graph = backend.make_graph([Call(add, (x.handle,), (1,), Grid((0, 1, 1), (4, 1, 1)))])
    want = np.zeros(16)
    for blocks in (0, 4, 4, 2, 0, 1):
        graph.set_launch(0, Grid((blocks, 1, 1), (4, 1, 1)))
        graph.run()
        want[: 4 * blocks] += 1
        np.testing.assert_array_equal(x.numpy(), want)
    # The second four blocks are as those before.
    assert stub.calls("cuGraphExecKernelNodeSetParams") == 4
    with pytest.raises(DeviceError, match=r"kernel add_n with .* blocks of .* threads"):
        graph.set_launch(0, Grid((1, 70000, 1), (4, 1, 1)))


def test_a_device_that_is_lost_in_a_graph(backend: cuda.CudaBackend, stub: cuda_stub.Stub) -> None:
    x, out = floats(np.arange(8)), Buffer("CUDA", 8, dtypes.float32).allocate()
    graph = backend.make_graph(calls_of(backend, x, out))
    stub.lose(700)
    graph.run()
    with pytest.raises(DeviceError, match="a kernel touched memory that is not its own"):
        backend.synchronize()
    with pytest.raises(DeviceError, match="CUDA was lost"):
        graph.run()
    stub.reset()
    backend.device.lost = ""


def fresh_missing() -> str | None:
    cuda.missing.cache_clear()
    return cuda.missing()


def test_what_is_missing_is_named(stub: cuda_stub.Stub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_compiler, "version", lambda: (13, 5))
    assert fresh_missing() is None
    stub.set("version", 12040)
    reason = fresh_missing()
    assert reason is not None
    assert "is for CUDA 12.4 and NVRTC is of CUDA 13.5: a driver of CUDA 13 would do" in reason
    monkeypatch.setattr(cuda_compiler, "version", lambda: (12, 9))
    assert fresh_missing() is None
    stub.set("devices", 0)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    assert "finds no device (CUDA_VISIBLE_DEVICES is '7')" in str(fresh_missing())
    stub.fail("cuInit", 803)
    assert "does not start: the driver's library and its kernel module" in str(fresh_missing())
    stub.fail("cuInit", 207)
    assert "does not start: error 207; nvidia-smi may say more" in str(fresh_missing())
    monkeypatch.setattr(cuda, "has_driver", lambda: False)
    assert "there is no NVIDIA driver" in str(fresh_missing())
    monkeypatch.setattr(cuda, "has_package", lambda name: False)
    assert "pip install 'aster-ml[cuda]'" in str(fresh_missing())
    cuda.missing.cache_clear()


def test_a_forked_child_is_told(backend: cuda.CudaBackend) -> None:
    x = floats([1, 2])
    child = os.fork()
    if child == 0:
        # Nothing of the parent's is freed here, and the driver is asked for nothing.
        try:
            x.numpy()
        except DeviceError as error:
            told = "it does not survive a fork (start processes by spawn)" in str(error)
            os._exit(0 if told and not backend.device.may_free() else 1)
        os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert x.numpy().tolist() == [1, 2]


@pytest.mark.parametrize(
    ("major", "words"),
    [
        (7, r"is of compute capability 7.0; there is code for 7.5 and later ones, and DEV=OPENCL"),
        (
            14,
            r"is of compute capability 14.0, for which NVRTC 13.0 makes no code \(it does for 7.5,",
        ),
    ],
)
def test_devices_that_there_is_no_code_for(
    stub: cuda_stub.Stub, monkeypatch: pytest.MonkeyPatch, major: int, words: str
) -> None:
    monkeypatch.setattr(cuda_compiler, "architectures", lambda: frozenset({75, 80, 90}))
    stub.set("major", major)
    with pytest.raises(DeviceError, match=words):
        cuda.open_backend("CUDA")


ENDS = """
import os
import numpy as np
from aster_ml import Tensor, dtypes
from tests.shim import cuda_stub
place = cuda_stub.in_place()
stub = place.__enter__()
x = Tensor(np.ones(4, np.float32), device="CUDA").realize()
y = (x + 1).realize()
if {lost}:
    stub.lose(700)
    try:
        (y + 1).numpy()
    except RuntimeError as error:
        print("lost" if "a kernel touched memory" in str(error) else error)
else:
    print(y.numpy().tolist())
# Ends with work in the stream, and with everything alive.
z = (y * 2).realize() if not {lost} else None
"""


@pytest.mark.parametrize("lost", [pytest.param(False, marks=pytest.mark.slow), True])
def test_a_process_ends_in_silence(lost: bool) -> None:
    code = ENDS.format(lost=lost)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.strip() == ("lost" if lost else "[2.0, 2.0, 2.0, 2.0]")


COMPILE_CUBIN, VERSION = cuda_compiler.compile_cubin, cuda_compiler.version


def test_compiler_needs_no_driver(stub: cuda_stub.Stub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_compiler, "compile_cubin", COMPILE_CUBIN)
    monkeypatch.setattr(cuda_compiler, "version", VERSION)
    cuda_compiler.missing.cache_clear()
    pytest.importorskip("cuda.bindings.nvrtc", reason="cuda-bindings is absent")
    if cuda_compiler.missing() is not None:
        pytest.skip("NVRTC is absent: pip install 'aster-ml[cuda]'")
    source = "// Dynamic shared memory: 65536 bytes\n" + KERNELS
    for arch in ("sm_80", "sm_90a"):
        cubin, shared, *_ = cuda_compiler.unpack(cuda_compiler.compile_source(source, arch))
        assert cubin.startswith(b"\x7fELF")
        assert shared == 65536
    if cuda_compiler.disassembler() is not None:
        assert "FADD" in cuda_compiler.disassemble(cubin)
    with pytest.raises(CompileError, match=r"refused generated CUDA C\+\+ for sm_80:\n.*error"):
        cuda_compiler.compile_source("extern int x", "sm_80")


def test_code_that_spills_has_the_registers_of_one_block() -> None:
    """Where more blocks at once were asked for, and never otherwise."""
    source = 'extern "C" __global__ void __launch_bounds__(256, {})\nf() {{}}'
    spills = "ptxas info: 48 bytes stack frame, 48 bytes spill stores, 44 bytes spill loads"
    fits = "ptxas info: 0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads"
    assert cuda_compiler.roomier(source.format(2), spills) == source.format(1)
    assert cuda_compiler.roomier(source.format(2), fits) is None
    assert cuda_compiler.roomier(source.format(1), spills) is None


def test_arguments_are_prepared_once(backend: cuda.CudaBackend) -> None:
    add, x = load(backend, "add_n"), floats(np.zeros(4))
    add((x.handle,), (1,), Grid((1,), (4,)))
    kept = add.arguments
    add((x.handle,), (-(2**40),), Grid((1,), (4,)))
    assert add.arguments is kept
    assert ctypes.addressof(kept.values) == kept.places[0]
    np.testing.assert_array_equal(x.numpy(), np.full(4, np.float32(1 - 2.0**40)))


def test_importing_needs_nothing_of_nvidia() -> None:
    code = (
        "import sys, aster_ml.runtime.cuda.device; "
        "assert not any(m.partition('.')[0] == 'cuda' for m in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_memory_that_begins_anywhere_has_code_that_looks(
    backend: cuda.CudaBackend, stub: cuda_stub.Stub
) -> None:
    """Sixteen bytes are moved at a time where that can be, and the right ones elsewhere."""
    size = 64
    whole = floats(np.arange(size + 4))
    sources: list[str] = []
    compile_cubin = cuda_compiler.compile_cubin

    def noted(source: str, arch: str) -> bytes:
        sources.append(source)
        return compile_cubin(source, arch)

    with pytest.MonkeyPatch.context() as patch, Context(CACHE=0):
        patch.setattr(cuda_compiler, "compile_cubin", noted)
        source = CudaRenderer(backend.target).render(copy_by_four(size))
        program = backend.load("copy", backend.compile(source))
        launch = Grid((1, 1, 1), (size // 4, 1, 1))
        for begin, compiled in ((0, 1), (4, 1), (1, 2), (3, 2), (0, 2)):
            out = Buffer("CUDA", size, dtypes.float32).allocate()
            x = whole.view(size, dtypes.float32, 4 * begin)
            program((out.handle, x.handle), (), launch)
            np.testing.assert_array_equal(out.numpy(), np.arange(begin, begin + size))
            assert len(sources) == compiled
        assert [s.startswith(cuda_compiler.ALIGNED) for s in sources] == [True, False]
        out = Buffer("CUDA", size, dtypes.float32).allocate()
        graph = backend.make_graph([Call(program, (out.handle, whole.handle), (), launch)])
        for begin, changes in ((0, 0), (4, 1), (1, 2), (2, 2), (0, 3), (4, 3)):
            graph.set_handle(0, 1, whole.view(size, dtypes.float32, 4 * begin).handle)
            graph.run()
            np.testing.assert_array_equal(out.numpy(), np.arange(begin, begin + size))
            assert stub.calls("cuGraphExecKernelNodeSetParams") == changes


def copy_by_four(size: int) -> Linear:
    """out = x, of four floats a work-item."""
    b = Builder("copy")
    out, x = b.param(size, dtypes.float32), b.param(size, dtypes.float32)
    item, lane = b.axis(size // 4, LOCAL), b.axis(4, VECTOR)
    start = b.add(item * 4)
    b.store(at(out, start, lane), b.load(at(x, start, lane)))
    return b.build()
