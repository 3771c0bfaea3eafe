"""Names of devices, buffers and their lifetimes, the pool, and the accounts of memory."""

from __future__ import annotations

import gc
import importlib
import mmap
import sys
import threading
from typing import Any

import numpy as np
import pytest

import aster_ml.device as device_module
from aster_ml.allocator import MEMORY, MemoryCounter, PooledAllocator, format_bytes, size_class
from aster_ml.config import DEV, Context
from aster_ml.device import Buffer, Device, load_runtime
from aster_ml.dtype import dtypes
from aster_ml.errors import ArgumentError, DeviceError, InternalError, OutOfMemoryError


class FakeAllocator(PooledAllocator):
    """Memory that is numbers; `room` is how many bytes there are."""

    def __init__(self, limit_bytes: int = 1 << 20, room: int = 1 << 40) -> None:
        super().__init__("FAKE", limit_bytes)
        self.room = room
        self.made: list[int] = []
        self.freed: list[int] = []

    def alloc_block(self, nbytes: int) -> int:
        if nbytes > self.room:
            raise MemoryError("the fake is full")
        self.room -= nbytes
        self.made.append(nbytes)
        return len(self.made)

    def free_block(self, handle: int, nbytes: int) -> None:
        self.room += nbytes
        self.freed.append(handle)

    def copyin(self, handle: Any, source: memoryview) -> None:
        raise NotImplementedError

    def copyout(self, target: memoryview, handle: Any) -> None:
        raise NotImplementedError

    def offset(self, handle: Any, byte_offset: int, nbytes: int) -> Any:
        raise NotImplementedError


@pytest.fixture
def used() -> Any:
    """How many bytes the CPU uses more than at the start of the test."""
    gc.collect()
    before = MEMORY.in_use("CPU")
    return lambda: MEMORY.in_use("CPU") - before


# names


@pytest.mark.parametrize(
    "name, wanted",
    [
        ("cpu", "CPU"), ("cpu:0", "CPU"), ("CPU:1", "CPU:1"), ("Cpu:007", "CPU:7"),
        ("disk:/Tmp/File:1", "DISK:/Tmp/File:1"), ("npy", "NPY"),
    ],
)  # fmt: skip
def test_canonical_names(name: str, wanted: str) -> None:
    assert Device.canonicalize(name) == wanted
    assert Device.canonicalize(wanted) == wanted


def test_unknown_device_names_those_there_are() -> None:
    with pytest.raises(
        DeviceError, match="device 'ABACUS' is unknown; there are CPU, CUDA, METAL, OPENCL, WEB"
    ):
        Device.canonicalize("ABACUS")
    with pytest.raises(DeviceError, match="device 'gpu:1' is unknown"):
        Device["gpu:1"]


@pytest.mark.parametrize("name", ["CPU:x", "CPU:", "CPU:-1", "CPU:1:2", "CPU:²"])
def test_bad_numbers(name: str) -> None:
    with pytest.raises(DeviceError, match="is no number; CPU or CPU:1 would do"):
        Device.canonicalize(name)


def test_disk_wants_a_path() -> None:
    with pytest.raises(DeviceError, match="names no file; DISK:path/to/file does"):
        Device.canonicalize("DISK")


def test_default_follows_the_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    # Threads of later tests begin with it.
    monkeypatch.setattr(DEV, "initial", DEV.initial)
    with Context(DEV=""):
        assert Device.DEFAULT == "CPU"
        assert Device.canonicalize(None) == "CPU"
        with Context(DEV="null:1"):
            assert Device.DEFAULT == "NULL:1"
            assert Device[None].name == "NULL:1"
            assert Device.default is Device["NULL:1"]
            Device.DEFAULT = "npy"
            assert DEV.value == "NPY"
        assert Device.DEFAULT == "CPU"
        with Context(DEV="toaster"), pytest.raises(DeviceError, match="'toaster' is unknown"):
            _ = Device.DEFAULT


def test_a_device_opens_once_and_numbers_are_devices_of_their_own() -> None:
    assert Device["CPU"] is Device["cpu:0"]
    assert Device["CPU:1"] is Device["cpu:1"]
    assert Device["CPU"] is not Device["CPU:1"]
    assert Device["CPU"].allocator is not Device["CPU:1"].allocator


def test_absent_device_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    null = importlib.import_module("aster_ml.runtime.null")
    monkeypatch.setattr(null, "missing", lambda: "the void is not installed; pip install void")
    with pytest.raises(
        DeviceError,
        match=r"device NULL does not work here: the void is not installed; pip install void\. "
        r"Working: CPU",
    ):
        Device["NULL:5"]
    assert "NULL" not in Device.get_available_devices()
    row = next(row for row in Device.describe() if row.name == "NULL")
    assert not row.works
    assert "pip install void" in row.note


def test_describe_has_a_row_for_each_kind() -> None:
    rows = {row.name: row for row in Device.describe()}
    assert list(rows)[0] == "CPU"
    assert rows["CPU"].works
    assert rows["CPU"].note == load_runtime("CPU").DOC  # type: ignore[union-attr]
    assert all(row.note for row in rows.values())
    available = Device.get_available_devices()
    assert "CPU" in available
    assert "DISK" not in available


# buffers


def test_size_dtype_and_bytes() -> None:
    buffer = Buffer("cpu:0", 3, dtypes.int16)
    assert (buffer.device, buffer.size, buffer.dtype, buffer.nbytes) == ("CPU", 3, dtypes.int16, 6)
    assert buffer.base is buffer
    assert "3 x int16, not allocated" in repr(buffer)


def test_memory_comes_on_demand_and_goes_with_the_buffer(used: Any) -> None:
    buffer = Buffer("CPU", 1000, dtypes.float32)
    assert not buffer.is_allocated()
    assert used() == 0
    assert buffer.ensure_allocated() is buffer
    assert buffer.ensure_allocated().is_allocated()
    assert used() == 4000
    assert buffer.handle.address % 64 == 0
    del buffer
    assert used() == 0


def test_a_buffer_comes_and_goes_in_few_calls() -> None:
    Buffer("CPU", 1000, dtypes.float32).allocate()
    count = 0

    def profile(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(profile)
    Buffer("CPU", 1000, dtypes.float32).allocate()
    sys.setprofile(None)
    assert count <= 34


def test_explicit_allocate_and_deallocate(used: Any) -> None:
    buffer = Buffer("CPU", 8, dtypes.int64).allocate()
    with pytest.raises(InternalError, match="allocated twice"):
        buffer.allocate()
    buffer.deallocate()
    assert not buffer.is_allocated()
    assert used() == 0
    with pytest.raises(InternalError, match="no memory of its own"):
        buffer.deallocate()
    with pytest.raises(InternalError, match="used before it was allocated"):
        _ = buffer.handle
    assert buffer.allocate().is_allocated()


def test_bytes_go_in_and_come_out() -> None:
    buffer = Buffer("CPU", 4, dtypes.float32)
    assert buffer.copyin(np.arange(4, dtype=np.float32)) is buffer
    assert buffer.numpy().tolist() == [0, 1, 2, 3]
    target = bytearray(16)
    assert buffer.copyout(target) is target
    assert np.frombuffer(target, np.float32).tolist() == [0, 1, 2, 3]
    buffer.copyin(np.arange(8, 12, dtype=np.float32).reshape(2, 2).data)
    assert buffer.numpy().tolist() == [8, 9, 10, 11]


@pytest.mark.parametrize("dtype", [d for d in dtypes.all if d is not dtypes.index])
def test_numpy_has_the_dtype(dtype: Any) -> None:
    values = np.arange(4).astype(Buffer("CPU", 0, dtype).numpy().dtype)
    assert np.array_equal(Buffer("CPU", 4, dtype).copyin(values).numpy(), values)


def test_wrong_sizes_and_layouts_are_refused() -> None:
    buffer = Buffer("CPU", 4, dtypes.int32)
    with pytest.raises(ArgumentError, match="given 12 bytes, 16 are wanted"):
        buffer.copyin(bytes(12))
    buffer.ensure_allocated()
    with pytest.raises(ArgumentError, match="given 20 bytes, 16 are wanted"):
        buffer.copyout(bytearray(20))
    with pytest.raises(ArgumentError, match="read-only; a bytearray would do"):
        buffer.copyout(bytes(16))
    with pytest.raises(ArgumentError, match="strided"):
        buffer.copyin(np.arange(8, dtype=np.int32)[::2])
    with pytest.raises(ArgumentError, match="size -1 is negative"):
        Buffer("CPU", -1, dtypes.int32)


def test_unallocated_buffers_are_not_read() -> None:
    with pytest.raises(InternalError, match="before it was allocated"):
        Buffer("CPU", 4, dtypes.int32).copyout(bytearray(16))
    with pytest.raises(InternalError, match="before it was allocated"):
        Buffer("CPU", 4, dtypes.int32).as_memoryview()


def test_empty_buffers_work() -> None:
    empty = Buffer("CPU", 0, dtypes.float32).copyin(np.empty((0, 3), np.float32))
    assert empty.is_allocated()
    assert empty.numpy().shape == (0,)
    assert bytes(empty.as_memoryview()) == b""
    assert empty.copyout(bytearray()) == b""
    assert Buffer("CPU:1", 0, dtypes.float32).copy_from(empty).numpy().size == 0


def test_views_share_memory(used: Any) -> None:
    base = Buffer("CPU", 8, dtypes.int32)
    view = base.view(4, dtypes.int16, 8)
    inner = view.view(2, dtypes.int8, 2)
    assert inner.base is base
    assert inner.offset == 10
    assert not inner.is_allocated()
    base.copyin(np.arange(8, dtype=np.int32))
    assert view.is_allocated()
    assert view.numpy().tolist() == [2, 0, 3, 0]
    assert inner.numpy().tolist() == [0, 0]
    view.copyin(np.array([9, 9, 9, 9], np.int16))
    assert base.numpy()[2] == 9 * 65537
    assert used() == 32
    del base, view
    assert used() == 32
    del inner
    assert used() == 0


def test_a_view_allocates_its_base() -> None:
    base = Buffer("CPU", 8, dtypes.int32)
    view = base.view(2, dtypes.int32, 4)
    view.ensure_allocated()
    assert base.is_allocated()
    first = view.handle.address
    assert first == base.handle.address + 4
    keep = Buffer("CPU", 8, dtypes.int32)
    base.deallocate()
    with pytest.raises(InternalError, match="before it was allocated"):
        _ = view.handle
    keep.allocate()  # takes the block that the base had
    base.allocate()
    assert view.handle.address == base.handle.address + 4 != first


@pytest.mark.parametrize("size, offset", [(3, 8), (4, 4), (1, -4)])
def test_views_stay_inside(size: int, offset: int) -> None:
    with pytest.raises(ArgumentError, match="not inside a buffer of 16 bytes"):
        Buffer("CPU", 4, dtypes.int32).view(size, dtypes.int32, offset)


def test_copies_between_devices(tmp_path: Any) -> None:
    values = np.arange(10, dtype=np.int32)
    source = Buffer("NPY", 10, dtypes.int32, opaque=values)
    first = Buffer("CPU", 10, dtypes.int32).copy_from(source)
    second = Buffer("CPU:1", 10, dtypes.int32).copy_from(first)
    file = Buffer(f"DISK:{tmp_path / 'file'}", 10, dtypes.int32).copy_from(second)
    last = Buffer("CPU", 10, dtypes.int32).copy_from(file)
    assert last.numpy().tolist() == values.tolist()
    assert second.handle.address != first.handle.address
    with pytest.raises(ArgumentError, match="given 40 bytes, 36 are wanted"):
        Buffer("CPU", 9, dtypes.int32).copy_from(source)


# memory of others


def test_numpy_memory_is_used_in_place(used: Any) -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    buffer = Buffer("CPU", 6, dtypes.float32, opaque=array)
    assert buffer.handle.address == array.ctypes.data
    assert used() == 0
    array[1, 2] = 50
    assert buffer.numpy()[5] == 50
    buffer.copyin(np.zeros(6, np.float32))
    assert not array.any()


@pytest.mark.parametrize("owner", [bytes(range(16)), bytearray(range(16)), mmap.mmap(-1, 16)])
def test_other_owners_are_used_in_place(owner: Any) -> None:
    buffer = Buffer("CPU", 4, dtypes.uint32, opaque=owner)
    assert bytes(buffer.as_memoryview()) == bytes(owner)
    assert buffer.is_readonly() == isinstance(owner, bytes)


def test_the_owner_is_kept_alive() -> None:
    owner = bytearray(b"abcdefgh")
    buffer = Buffer("CPU", 8, dtypes.uint8, opaque=owner)
    with pytest.raises(BufferError):
        owner.extend(bytes(1000))
    del owner
    gc.collect()
    assert bytes(buffer.as_memoryview()) == b"abcdefgh"


def test_readonly_memory_is_not_written() -> None:
    owner = b"0123456789abcdef"
    buffer = Buffer("CPU", 4, dtypes.int32, opaque=owner)
    with pytest.raises(DeviceError, match="read-only"):
        buffer.copyin(bytes(16))
    assert buffer.as_memoryview().readonly
    assert not buffer.numpy().flags.writeable
    assert owner == b"0123456789abcdef"


def test_memory_that_cannot_be_used_in_place() -> None:
    with pytest.raises(DeviceError, match="ascontiguousarray"):
        Buffer("CPU", 4, dtypes.int32, opaque=np.arange(8, dtype=np.int32)[::2])
    with pytest.raises(ArgumentError, match="memory of 32 bytes is given, 64 are wanted"):
        Buffer("CPU", 16, dtypes.int32, opaque=np.arange(8, dtype=np.int32))
    allocator = Device["CPU"].allocator
    odd = np.frombuffer(bytearray(17), dtype=np.uint8)[1:].view(np.int32)
    assert allocator.can_wrap(np.zeros(4, np.int32), 4)
    assert not allocator.can_wrap(odd, 4)
    assert allocator.can_wrap(odd)
    assert not allocator.can_wrap([1, 2, 3])


# memory seen from outside


def test_memoryview_is_the_memory_and_keeps_it(used: Any) -> None:
    buffer = Buffer("CPU", 100, dtypes.int32).copyin(np.arange(100, dtype=np.int32))
    assert not buffer.is_exported()
    view = buffer.as_memoryview()
    assert (view.format, view.nbytes, view.readonly) == ("B", 400, False)
    array = buffer.numpy()
    assert buffer.is_exported()
    array[0] = 77
    assert view[0] == 77
    part = array[10:20]
    del buffer, view, array
    gc.collect()
    assert used() == 400
    # Were the block in the pool, the next buffer would take it and overwrite what `part` sees.
    Buffer("CPU", 100, dtypes.int32).copyin(np.zeros(100, np.int32))
    assert part.tolist() == list(range(10, 20))
    del part
    gc.collect()
    assert used() == 0


def test_exports_of_views_count_for_the_base() -> None:
    base = Buffer("CPU", 8, dtypes.int32).ensure_allocated()
    array = base.view(2, dtypes.int32, 8).numpy()
    assert base.is_exported()
    del array
    assert not base.is_exported()


def test_deallocation_leaves_exports_their_memory(used: Any) -> None:
    buffer = Buffer("CPU", 16, dtypes.int32).copyin(np.arange(16, dtype=np.int32))
    array = buffer.numpy()
    buffer.deallocate()
    assert not buffer.is_allocated()
    assert not buffer.is_exported()
    assert used() == 64
    Buffer("CPU", 16, dtypes.int32).copyin(np.zeros(16, np.int32))
    assert array.tolist() == list(range(16))
    assert buffer.allocate().handle.address != array.ctypes.data
    del array
    assert used() == 64
    del buffer
    assert used() == 0


def test_a_copy_is_a_copy() -> None:
    buffer = Buffer("CPU", 4, dtypes.int32).copyin(np.arange(4, dtype=np.int32))
    copied = buffer.numpy(copy=True)
    assert not buffer.is_exported()
    buffer.copyin(np.zeros(4, np.int32))
    assert copied.tolist() == [0, 1, 2, 3]
    assert copied.flags.writeable


# the pool


@pytest.mark.parametrize("nbytes", [0, 1, 63, 64, 65, 1000, 4096, 4097, 10**6, 2**30, 2**30 + 1])
def test_size_class(nbytes: int) -> None:
    size = size_class(nbytes)
    assert size >= max(nbytes, 1)
    assert size % 64 == 0
    assert size <= max(64, nbytes * 17 // 16 + 64)
    assert size_class(size) == size


def test_blocks_are_reused_by_size_class() -> None:
    pool = FakeAllocator()
    first = pool.alloc(1000)
    pool.free(first, 1000)
    pool.try_drain()
    assert pool.pool_bytes == size_class(1000)
    assert pool.alloc(1001) == first
    assert pool.pool_bytes == 0
    assert pool.alloc(1000) != first
    assert pool.alloc(5000) != first


def test_the_youngest_block_is_reused_and_the_oldest_freed() -> None:
    pool = FakeAllocator(limit_bytes=3 * 1024)
    blocks = [pool.alloc(1024) for _ in range(5)]
    for block in blocks:
        pool.free(block, 1024)
    pool.try_drain()
    assert pool.freed == blocks[:2]
    assert pool.alloc(1024) == blocks[4]
    assert pool.free_cache() == 2 * 1024
    assert pool.freed == [blocks[0], blocks[1], blocks[2], blocks[3]]
    assert pool.pool_bytes == 0


def test_freed_blocks_are_not_left_lying() -> None:
    pool = FakeAllocator(limit_bytes=0)
    for _ in range(1000):
        pool.free(pool.alloc(64), 64)
    assert len(pool.made) - len(pool.freed) < 100
    large = pool.alloc(1 << 20)
    pool.free(large, 1 << 20)
    assert large in pool.freed


def test_out_of_memory_empties_the_pool_and_tries_again() -> None:
    pool = FakeAllocator(room=4096)
    pool.free(pool.alloc(3000), 3000)
    assert pool.freed == []
    pool.alloc(4000)
    assert len(pool.freed) == 1


def test_out_of_memory_lets_go_of_circles() -> None:
    pool = FakeAllocator(room=4096)

    class Owner:
        def __init__(self) -> None:
            self.block = pool.alloc(4096)
            self.me = self

        def __del__(self) -> None:
            pool.free(self.block, 4096)

    Owner()
    assert pool.alloc(4096) == 2


def test_out_of_memory_says_how_much_of_what() -> None:
    pool = FakeAllocator(room=4096)
    MEMORY.add("FAKE", 2048)
    with pytest.raises(
        OutOfMemoryError,
        match=r"FAKE has no room for 1\.0 MB: 2 KB in use by live buffers, 0 B kept for reuse "
        r"\(the fake is full\); smaller batches",
    ):
        pool.alloc((1 << 20) + 1)
    MEMORY.add("FAKE", -2048)


def test_the_cpu_runs_out_of_memory_politely() -> None:
    with pytest.raises(MemoryError, match=r"CPU has no room for 8192\.0 TB"):
        Buffer("CPU", 1 << 50, dtypes.float64).allocate()
    assert Buffer("CPU", 10, dtypes.float64).allocate().is_allocated()


def test_a_finaliser_in_the_middle_of_an_allocation() -> None:
    pool = FakeAllocator()
    other = pool.alloc(64)
    with pool.lock:  # as while `alloc` does its books
        pool.free(other, 64)
        pool.try_drain()
        assert pool.pool_bytes == 0
    assert pool.alloc(64) == other


def test_the_pool_from_many_threads() -> None:
    pool = FakeAllocator(limit_bytes=64 * 50)
    errors: list[str] = []
    live: set[int] = set()

    def churn() -> None:
        for _ in range(500):
            block = pool.alloc(64)
            if block in live:
                errors.append(f"block {block} handed out twice")
            live.add(block)
            live.discard(block)
            pool.free(block, 64)

    threads = [threading.Thread(target=churn) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    pool.free_cache()
    assert len(pool.made) == len(pool.freed)


# accounts


def test_memory_counter() -> None:
    counter = MemoryCounter()
    counter.add("A", 100)
    counter.add("B", 10)
    counter.add("A", -60)
    assert (counter.in_use("A"), counter.in_use("B"), counter.in_use()) == (40, 10, 50)
    assert (counter.peak("A"), counter.peak()) == (100, 110)
    counter.reset_peak()
    assert (counter.peak("A"), counter.peak("B"), counter.peak()) == (40, 10, 50)
    with counter.lock:  # as in the middle of another change
        counter.add("A", 1)
        counter.try_drain()
    assert counter.in_use("A") == 41


def test_each_device_has_its_account() -> None:
    before = MEMORY.in_use("CPU:3")
    buffer = Buffer("CPU:3", 25, dtypes.float64).allocate()
    assert MEMORY.in_use("CPU:3") == before + 200
    del buffer
    assert MEMORY.in_use("CPU:3") == before


@pytest.mark.parametrize(
    "nbytes, text", [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KB"), (1 << 30, "1 GB")]
)
def test_format_bytes(nbytes: int, text: str) -> None:
    assert format_bytes(nbytes) == text


# the automatic choice


def fresh_automatic() -> str:
    Device.__dict__.pop("automatic", None)
    return Device.automatic


def test_without_a_sign_nobody_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_module, "SIGNS", {"CUDA": ("/nothing",), "METAL": ("/nothing",)})
    monkeypatch.setattr(device_module, "missing", lambda kind: 1 / 0)
    try:
        assert fresh_automatic() == "CPU"
    finally:
        Device.__dict__.pop("automatic")


def test_the_best_that_answers_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_module, "SIGNS", {"CUDA": (__file__,), "METAL": (__file__,)})
    lacking: dict[str, str | None] = {"CUDA": None, "METAL": None}
    monkeypatch.setattr(device_module, "missing", lambda kind: lacking[kind])
    try:
        with Context(DEV=""):
            assert fresh_automatic() == Device.DEFAULT == "CUDA"
            lacking["CUDA"] = "no driver"
            assert fresh_automatic() == Device.DEFAULT == "METAL"
            lacking["METAL"] = "this is no Mac"
            assert fresh_automatic() == Device.DEFAULT == "CPU"
        with Context(DEV="NULL"):
            assert Device.DEFAULT == "NULL"
    finally:
        Device.__dict__.pop("automatic")
