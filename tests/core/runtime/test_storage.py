"""DISK, NPY and NULL: devices that hold data, or nothing at all."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from aster_ml.backend import ThreadParts
from aster_ml.device import Buffer, Device
from aster_ml.dtype import DType, dtypes
from aster_ml.errors import DeviceError, DiskError
from tests.core.runtime_kernels import run_python


def disk(path: Path, size: int, dtype: DType = dtypes.uint8) -> Buffer:
    """A buffer that is the start of a file."""
    return Buffer(f"DISK:{path}", size, dtype)


# DISK


def test_parts_of_a_file_are_read(tmp_path: Path) -> None:
    path = tmp_path / "values.bin"
    np.arange(100, dtype=np.int32).tofile(path)
    buffer = disk(path, 100, dtypes.int32).ensure_allocated()
    assert buffer.numpy().tolist() == list(range(100))
    part = buffer.view(10, dtypes.int32, 200)
    assert part.numpy().tolist() == list(range(50, 60))
    inner = part.view(3, dtypes.int32, 4)
    assert inner.copyout(bytearray(12)) == np.arange(51, 54, dtype=np.int32).tobytes()


def test_what_was_read_outlives_the_buffer_and_the_name(tmp_path: Path) -> None:
    path = tmp_path / "values.bin"
    path.write_bytes(bytes(range(64)))
    array = disk(path, 64).ensure_allocated().numpy()
    if os.name == "posix":
        path.unlink()
    assert array.tolist() == list(range(64))


def test_less_than_the_file_may_be_read(tmp_path: Path) -> None:
    path = tmp_path / "values.bin"
    path.write_bytes(bytes(range(64)))
    assert disk(path, 10).ensure_allocated().numpy().tolist() == list(range(10))
    assert path.stat().st_size == 64


def test_reading_makes_a_file_that_was_never_there(tmp_path: Path) -> None:
    path = tmp_path / "new.bin"
    buffer = disk(path, 6, dtypes.int16).ensure_allocated()
    assert not path.exists()
    assert buffer.view(2, dtypes.int16, 8).numpy().tolist() == [0, 0]
    assert path.read_bytes() == bytes(12)
    buffer.copyin(np.arange(6, dtype=np.int16))
    assert buffer.numpy().tolist() == [0, 1, 2, 3, 4, 5]


def test_writing_makes_the_file(tmp_path: Path) -> None:
    path = tmp_path / "new.bin"
    buffer = disk(path, 6, dtypes.int16).ensure_allocated()
    assert not path.exists()
    buffer.view(2, dtypes.int16, 8).copyin(np.array([7, 8], np.int16))
    assert path.stat().st_size == 12
    buffer.view(2, dtypes.int16, 0).copyin(np.array([1, 2], np.int16))
    assert buffer.numpy().tolist() == [1, 2, 0, 0, 7, 8]
    Device[buffer.device].synchronize()
    assert np.fromfile(path, np.int16).tolist() == [1, 2, 0, 0, 7, 8]


def test_writing_lengthens_and_keeps_what_is_there(tmp_path: Path) -> None:
    path = tmp_path / "grows.bin"
    path.write_bytes(b"keep")
    buffer = disk(path, 8).ensure_allocated()
    with pytest.raises(DeviceError, match="has 4 bytes, but byte 7 of it is wanted; it is trunc"):
        buffer.numpy()
    buffer.view(4, dtypes.uint8, 4).copyin(b"more")
    assert bytes(buffer.as_memoryview()) == b"keepmore"
    assert path.read_bytes() == b"keepmore"
    longer = disk(path, 4).ensure_allocated()
    longer.copyin(b"KEEP")
    assert path.read_bytes() == b"KEEPmore"


def test_a_file_that_grows_elsewhere_is_read_to_its_new_end(tmp_path: Path) -> None:
    path = tmp_path / "log.bin"
    path.write_bytes(b"abcd")
    buffer = disk(path, 8).ensure_allocated()
    assert bytes(buffer.view(4, dtypes.uint8).as_memoryview()) == b"abcd"
    with open(path, "ab") as file:
        file.write(b"efgh")
    assert bytes(buffer.as_memoryview()) == b"abcdefgh"


def test_missing_files_and_folders(tmp_path: Path) -> None:
    path = tmp_path / "gone.bin"
    path.write_bytes(b"abcd")
    gone = disk(path, 4).ensure_allocated()
    path.unlink()
    with pytest.raises(DeviceError, match=r"gone\.bin: the file does not exist; a path that does"):
        gone.as_memoryview()
    assert not path.exists()
    with pytest.raises(DeviceError, match="cannot be written: No such file"):
        disk(tmp_path / "nowhere" / "file", 4).copyin(b"1234")
    with pytest.raises(DeviceError, match="it is a folder, a file is wanted"):
        disk(tmp_path, 4).ensure_allocated().as_memoryview()
    (tmp_path / "empty").touch()
    with pytest.raises(DeviceError, match="has 0 bytes, but byte 3"):
        disk(tmp_path / "empty", 4).ensure_allocated().copyout(bytearray(4))


@pytest.mark.skipif(sys.platform != "linux", reason="limits on file sizes are set the Linux way")
def test_a_full_disk_is_an_error_and_no_crash(tmp_path: Path) -> None:
    code = f"""
import resource
from aster_ml.device import Buffer
from aster_ml.dtype import DType, dtypes
from aster_ml.errors import OutOfMemoryError
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, 1 << 16))
buffer = Buffer("DISK:{tmp_path}/big", 1 << 20, dtypes.uint8)
try:
    buffer.copyin(bytes(1 << 20))
except OutOfMemoryError as error:
    print(error)
"""
    assert "no room on the disk for 1048576 bytes" in run_python(code)


def test_files_are_written_by_copies_not_through_views(tmp_path: Path) -> None:
    path = tmp_path / "values.bin"
    path.write_bytes(bytes(8))
    buffer = disk(path, 8).ensure_allocated()
    buffer.as_memoryview()[0] = 7
    assert path.read_bytes() == bytes(8)
    buffer.copyin(bytes(range(8)))
    assert path.read_bytes() == bytes(range(8))
    assert bytes(buffer.as_memoryview()) == bytes(range(8))


def test_a_file_that_is_cut_short_after_it_was_opened(tmp_path: Path) -> None:
    path = tmp_path / "values.bin"
    path.write_bytes(bytes(range(256)) * 64)
    buffer = disk(path, 1 << 14).ensure_allocated()
    assert bytes(buffer.as_memoryview()[:256]) == bytes(range(256))
    os.truncate(path, 4096)
    assert bytes(buffer.view(256, dtypes.uint8, 0).as_memoryview()) == bytes(range(256))
    for read in (
        lambda: buffer.as_memoryview(),
        lambda: buffer.numpy(),
        lambda: Buffer("CPU", 1 << 14, dtypes.uint8).copy_from(buffer),
    ):
        with pytest.raises(
            DiskError, match=r"values\.bin: the file has 4096 bytes, but byte 16383"
        ):
            read()


def test_a_file_that_is_cut_short_again_and_again_while_it_is_read(tmp_path: Path) -> None:
    path, content = tmp_path / "values.bin", bytes(range(256)) * 4096
    path.write_bytes(content)
    buffer = disk(path, len(content)).ensure_allocated()
    done = threading.Event()

    def change() -> None:
        while not done.is_set():
            os.truncate(path, 4096)
            path.write_bytes(content)

    thread = threading.Thread(target=change)
    thread.start()
    refused = 0
    try:
        for _ in range(200):
            try:
                assert buffer.as_memoryview() == content
            except DiskError:
                refused += 1
    finally:
        done.set()
        thread.join()
    assert refused


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="pipes with names are of POSIX")
def test_only_plain_files_are_memory(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name, what in ((tmp_path / "pipe", "a pipe"), ("/dev/zero", "a device")):
        with pytest.raises(DiskError, match=f"it is {what}, a file is wanted"):
            disk(Path(name), 8).ensure_allocated().numpy()
        with pytest.raises(DiskError, match=f"it is {what}, a file is wanted"):
            disk(Path(name), 8).copyin(bytes(8))


@pytest.mark.parametrize("name", ["DISK:file", "NPY"])
def test_storage_runs_nothing(name: str) -> None:
    backend = Device[name]
    assert not backend.target.native_ops
    for action in (lambda: backend.compile("x"), lambda: backend.load("x", b"")):
        with pytest.raises(DeviceError, match="holds data and runs nothing; copy to a device"):
            action()


def test_files_do_not_pile_up_in_the_registry(tmp_path: Path) -> None:
    before = len(Device.opened)
    for index in range(20):
        disk(tmp_path / str(index), 1).copyin(b"x")
    assert len(Device.opened) == before


# NPY


def test_npy_is_the_array() -> None:
    array = np.arange(4, dtype=np.float64)
    buffer = Buffer("NPY", 4, dtypes.float64, opaque=array)
    assert buffer.numpy().ctypes.data == array.ctypes.data
    fresh = Buffer("NPY", 4, dtypes.float64).copy_from(buffer)
    array[:] = 0
    assert fresh.numpy().tolist() == [0, 1, 2, 3]


def test_npy_keeps_no_pool() -> None:
    allocator = Device["NPY"].allocator
    Buffer("NPY", 1 << 16, dtypes.float64).allocate()
    assert allocator.free_cache() == 0


# NULL


def test_null_compiles_and_does_nothing() -> None:
    backend = Device["NULL"]
    program = backend.load("kernel", backend.compile("some text"))
    assert program.name == "kernel"
    buffer = Buffer("NULL", 4, dtypes.float32).copyin(bytes(16))
    view = buffer.view(2, dtypes.float32, 8)
    before = backend.queue.signal()
    program((buffer.handle, view.handle), (3,), ThreadParts(4))
    assert backend.queue.signal().seconds_since(before) >= 0
    assert backend.target.threads == 8


def test_null_has_nothing_to_read() -> None:
    buffer = Buffer("NULL", 4, dtypes.float32).copyin(bytes(16))
    for read in (buffer.numpy, buffer.as_memoryview, lambda: buffer.copyout(bytearray(16))):
        with pytest.raises(DeviceError, match=r"NULL keeps no data: .* DEV=CPU computes one"):
            read()
    with pytest.raises(DeviceError, match="NULL keeps no data"):
        Buffer("CPU", 4, dtypes.float32).copy_from(buffer)
