"""Tensors that are files: written by copies, assignments and by index; read, cast and computed."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aster_ml import Tensor, TinyJit, dtypes
from aster_ml.allocator import MEMORY
from aster_ml.errors import (
    DeviceError,
    DiskError,
    FileKindError,
    FileMissingError,
    ShapeError,
)
from aster_ml.nn.state import safe_load, safe_save
from aster_ml.runtime.disk import forget_pages


def on_disk(path: Path, *shape: int, dtype: Any = dtypes.int32, fill: int | None = 0) -> Tensor:
    """A tensor whose memory is a file, with content unless `fill` is None."""
    tensor = Tensor.empty(*shape, dtype=dtype, device=f"disk:{path}")
    return tensor if fill is None else tensor.assign(Tensor.full(shape, fill, dtype=dtype))


def assert_file(path: Path, want: Any) -> None:
    """Asserts every byte of a file."""
    assert path.read_bytes() == np.asarray(want).tobytes()


# copies to a file


def test_a_copy_to_a_file_writes_it_when_it_is_realized(tmp_path: Path) -> None:
    path = tmp_path / "a"
    copy = (Tensor([1.0, 2.0, 3.0]) * 2).to(f"disk:{path}")
    assert not path.exists()
    copy.realize()
    assert copy.device == f"DISK:{path}"
    assert_file(path, np.array([2, 4, 6], np.float32))
    assert copy.tolist() == [2.0, 4.0, 6.0]


@pytest.mark.parametrize("name", ["bool", "int8", "uint16", "float16", "float64"])
def test_of_each_width(tmp_path: Path, name: str) -> None:
    value = Tensor([[0, 1, 1], [1, 0, 1]], dtype=name)
    copy = value.to(f"disk:{tmp_path / 'a'}").realize()
    assert copy.shape == (2, 3)
    assert_file(tmp_path / "a", value.numpy())
    np.testing.assert_array_equal(copy.numpy(), value.numpy())


def test_numbers_take_room_in_a_file(tmp_path: Path) -> None:
    (Tensor.ones(4) * 2).to(f"disk:{tmp_path / 'a'}").realize()
    assert_file(tmp_path / "a", np.full(4, 2, np.float32))


def test_views_are_laid_out(tmp_path: Path) -> None:
    value = np.arange(12, dtype=np.int32).reshape(3, 4)
    Tensor(value).permute(1, 0)[::2].to(f"disk:{tmp_path / 'a'}").realize()
    assert_file(tmp_path / "a", np.ascontiguousarray(value.T[::2]))


def test_of_several_devices(tmp_path: Path) -> None:
    parts = Tensor([1, 2, 3, 4]).shard(("CPU:0", "CPU:1"), 0)
    parts.to(f"disk:{tmp_path / 'a'}").realize()
    assert_file(tmp_path / "a", np.arange(1, 5, dtype=np.int32))


def test_from_file_to_file(tmp_path: Path) -> None:
    first = on_disk(tmp_path / "a", 6).assign(Tensor.arange(6))
    first.to(f"disk:{tmp_path / 'b'}").realize()
    first[1:3].to(f"disk:{tmp_path / 'c'}").realize()
    first.reshape(2, 3).permute(1, 0).to(f"disk:{tmp_path / 'd'}").realize()
    assert_file(tmp_path / "b", np.arange(6, dtype=np.int32))
    assert_file(tmp_path / "c", np.array([1, 2], np.int32))
    assert_file(tmp_path / "d", np.array([0, 3, 1, 4, 2, 5], np.int32))


def test_a_longer_file_keeps_its_end(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x" * 12)
    Tensor([1, 2]).to(f"disk:{tmp_path / 'a'}").realize()
    assert (tmp_path / "a").read_bytes() == np.array([1, 2], np.int32).tobytes() + b"xxxx"


def test_a_jitted_function_writes_files_each_time(tmp_path: Path) -> None:
    @TinyJit
    def save(x: Tensor) -> Tensor:
        return (x + 1).to(f"disk:{tmp_path / 'a'}").realize()

    for i in range(5):
        save(Tensor([i, 2 * i]).realize())
        assert_file(tmp_path / "a", np.array([i + 1, 2 * i + 1], np.int32))


# writes to a file that is a tensor


def test_a_written_part_makes_the_whole_file(tmp_path: Path) -> None:
    t = on_disk(tmp_path / "a", 10, dtype=dtypes.uint8, fill=None)
    t[2:5] = Tensor([1, 2, 3], dtype=dtypes.uint8)
    assert (tmp_path / "a").read_bytes() == bytes([0, 0, 1, 2, 3, 0, 0, 0, 0, 0])


INDICES: list[Any] = [
    1,
    slice(1, 3),
    (2, slice(1, 3)),
    (slice(None), 1),
    slice(None, None, 2),
    slice(None, None, -1),
    (slice(1, None), slice(0, 4, 3)),
    -1,
]


@pytest.mark.parametrize("index", INDICES, ids=[str(i) for i in INDICES])
def test_any_index_can_be_written(tmp_path: Path, index: Any) -> None:
    want = np.zeros((3, 4), np.int32)
    value = np.arange(1, want[index].size + 1, dtype=np.int32).reshape(want[index].shape)
    want[index] = value
    t = on_disk(tmp_path / "a", 3, 4)
    t[index] = Tensor(value)
    assert_file(tmp_path / "a", want)
    t[index] = 7
    want[index] = 7
    assert_file(tmp_path / "a", want)


def test_places_that_tensors_name(tmp_path: Path) -> None:
    t = on_disk(tmp_path / "a", 6)
    t[Tensor([4, 1])] = Tensor([10, 20])
    t[Tensor([True, False, False, False, False, True])] = 5
    assert_file(tmp_path / "a", np.array([5, 20, 0, 0, 10, 5], np.int32))


def test_in_place_arithmetic(tmp_path: Path) -> None:
    t = on_disk(tmp_path / "a", 3, fill=3)
    t += 2
    t[1:] *= 2
    assert_file(tmp_path / "a", np.array([5, 10, 10], np.int32))


def test_parts_under_another_dtype(tmp_path: Path) -> None:
    t = on_disk(tmp_path / "a", 16, dtype=dtypes.uint8, fill=None)
    t[:8].bitcast(dtypes.int64).assign([77])
    t[8:].bitcast(dtypes.float32).assign(Tensor([1.5, 2.5]))
    want = np.array([77], np.int64).tobytes() + np.array([1.5, 2.5], np.float32).tobytes()
    assert (tmp_path / "a").read_bytes() == want


def test_what_was_read_before_is_read_again_after_a_write(tmp_path: Path) -> None:
    t = on_disk(tmp_path / "a", 3, fill=1)
    first = t.to("CPU")
    held = first + 0
    first.realize()
    t.assign(Tensor([7, 8, 9]))
    assert t.to("CPU").tolist() == [7, 8, 9]
    assert first.tolist() == [1, 1, 1]
    assert held.shape == (3,)


# reading


def test_values_made_of_files_are_made_where_they_are_read(tmp_path: Path) -> None:
    t = on_disk(tmp_path / "a", 2, 3).assign(Tensor([[1, 2, 3], [4, 5, 6]]))
    assert (t * 2 + t.permute(1, 0).reshape(2, 3)).tolist() == [[3, 8, 8], [13, 13, 18]]
    assert t.cast(dtypes.float32).to("CPU").tolist() == [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]
    assert t.sum().item() == 21


def test_bfloat16_weights_are_cast_on_the_way(tmp_path: Path) -> None:
    weights = Tensor([1.5, -2.25, 3e38], dtype=dtypes.bfloat16)
    safe_save({"w": weights, "v": Tensor([1, 2])}, str(tmp_path / "m.safetensors"))
    found = safe_load(str(tmp_path / "m.safetensors"))["w"]
    want = weights.float().tolist()
    assert found.dtype is dtypes.bfloat16
    assert found.cast(dtypes.float32).tolist() == want
    assert found.cast(dtypes.float32).to("CPU").realize().tolist() == want
    assert found.to("CPU").float().tolist() == want
    assert found[1:].half().to(None).tolist() == [-2.25, float("inf")]


# mistakes


def test_a_folder_that_is_missing(tmp_path: Path) -> None:
    path = tmp_path / "none" / "a"
    with pytest.raises(
        DeviceError, match=r"none/a: the file cannot be written: No such file.*folder that"
    ):
        Tensor([1.0]).to(f"disk:{path}").realize()
    with pytest.raises(DeviceError, match="none/a: the file cannot be written"):
        on_disk(path, 3)
    with pytest.raises(DeviceError, match="cannot be written: Is a directory"):
        Tensor([1.0]).to(f"disk:{tmp_path}").realize()


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is read-only to the superuser")
def test_a_file_that_is_read_only(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(bytes(8))
    (tmp_path / "a").chmod(0o444)
    with pytest.raises(DeviceError, match="cannot be written: Permission denied"):
        on_disk(tmp_path / "a", 2)


def test_values_that_do_not_fit(tmp_path: Path) -> None:
    t = on_disk(tmp_path / "a", 4)
    with pytest.raises(ShapeError, match="3 and 4"):
        t.assign(Tensor([1, 2, 3]))
    with pytest.raises(ShapeError, match="3"):
        t[:2] = Tensor([1, 2, 3])
    assert_file(tmp_path / "a", np.zeros(4, np.int32))


def test_a_file_that_is_new(tmp_path: Path) -> None:
    t = Tensor.empty(2, 3, dtype=dtypes.int32, device=f"disk:{tmp_path / 'a'}")
    assert t.to("CPU").tolist() == [[0, 0, 0], [0, 0, 0]]
    assert_file(tmp_path / "a", np.zeros(6, np.int32))
    t[1] = 7
    assert t.tolist() == [[0, 0, 0], [7, 7, 7]]


def test_a_file_that_is_gone_before_it_is_read(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abcd")
    t = Tensor(tmp_path / "a")
    (tmp_path / "a").unlink()
    with pytest.raises(DeviceError, match="a: the file does not exist"):
        t.tolist()
    assert not (tmp_path / "a").exists()


def test_a_file_that_is_too_short(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abcd")
    t = Tensor.empty(10, dtype=dtypes.uint8, device=f"disk:{tmp_path / 'a'}")
    with pytest.raises(DeviceError, match="has 4 bytes, but byte 9"):
        t.tolist()


def test_nothing_is_computed_into_a_file(tmp_path: Path) -> None:
    t = on_disk(tmp_path / "a", 3)
    with pytest.raises(DeviceError, match="computes nothing: move the tensor first"):
        (t + 1).realize()


# files as memory


def test_a_mapped_file_is_read_where_it_lies(tmp_path: Path) -> None:
    path = tmp_path / "x"
    want = np.arange(5000, dtype=np.float32)
    want.tofile(path)
    before = MEMORY.in_use("CPU")
    x = Tensor.from_file(path, dtype="float32")
    assert x.shape == (5000,)
    assert x.device == "CPU"
    assert MEMORY.in_use("CPU") == before
    found = x.reshape(50, 100).T[3:] * 2
    np.testing.assert_array_equal(found.numpy(), want.reshape(50, 100).T[3:] * 2)
    # Wherever a value begins, on its alignment or not.
    raw = path.read_bytes()
    for start in range(5):
        part = Tensor.from_file(str(path))[start : start + 4000].bitcast("float32")
        seen = np.frombuffer(raw[start : start + 4000], np.float32)
        np.testing.assert_array_equal(part.contiguous().numpy(), seen)
    function = TinyJit(lambda a: (a + 1).realize())
    for _ in range(4):
        assert function(Tensor.from_file(path, dtype="float32"))[:3].tolist() == [1, 2, 3]


def test_a_mapped_file_is_never_written_to(tmp_path: Path) -> None:
    path = tmp_path / "x"
    np.arange(64, dtype=np.int32).tofile(path)
    raw = path.read_bytes()
    x, y, z = (Tensor.from_file(path, dtype="int32") for _ in range(3))
    x.assign(x * 2).realize()
    y[3:5] = 7
    assert x[:3].tolist() == [0, 2, 4]
    assert y[:6].tolist() == [0, 1, 2, 7, 7, 5]
    step = TinyJit(lambda: z.assign(z + 1).realize())
    for _ in range(4):
        step()
    assert z[:3].tolist() == [4, 5, 6]
    array = Tensor.from_file(path, dtype="int32").numpy()
    array[:] = 9
    assert path.read_bytes() == raw
    assert Tensor.from_file(path, dtype="int32").tolist() == list(range(64))


def test_a_mapped_file_stays_open(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(bytes(range(64)))
    x = Tensor.from_file(path)
    if os.name == "posix":
        path.unlink()
    assert x[8:].sum().item() == sum(range(8, 64))


def resident(path: Path) -> int:
    """Bytes of a mapped file that count as this process's memory."""
    text = Path("/proc/self/smaps").read_text(encoding="utf-8", errors="replace")
    part = text.partition(str(path))[2]
    found = re.search(r"Rss:\s+(\d+) kB", part)
    assert found is not None
    return int(found[1]) << 10


@pytest.mark.skipif(sys.platform != "linux", reason="/proc says how much is resident, on Linux")
def test_pages_of_a_mapped_file_are_given_back(tmp_path: Path) -> None:
    path = tmp_path / "x"
    numbers = np.arange(1 << 20, dtype=np.int32)
    numbers.tofile(path)
    x = Tensor.from_file(path, dtype="int32")
    own = Tensor(numbers).realize()
    assert x.sum(dtype="int64").item() == numbers.sum(dtype=np.int64)
    assert resident(path) >= numbers.nbytes
    # A part of it: the system maps pages around those that are read.
    forget_pages(x._memory().as_memoryview()[5000:5001])
    assert resident(path) == 0
    assert x.tolist() == numbers.tolist()
    # What is no part of a map, and nothing at all.
    forget_pages(own._memory().as_memoryview())
    forget_pages(memoryview(b""))
    assert own.tolist() == numbers.tolist()


@pytest.mark.parametrize(
    ("make", "error", "said"),
    [
        (lambda p: p / "none", FileMissingError, "no file"),
        (lambda p: p, FileKindError, "a folder"),
        (lambda p: p / "empty", DiskError, "nothing to map"),
        (lambda p: p / "odd", ShapeError, "no whole number"),
    ],
)
def test_what_cannot_be_mapped(tmp_path: Path, make: Any, error: Any, said: str) -> None:
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "odd").write_bytes(b"abc")
    with pytest.raises(error, match=said):
        Tensor.from_file(make(tmp_path), dtype="int32")
