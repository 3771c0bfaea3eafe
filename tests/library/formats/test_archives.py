"""Tar and zip archives and PyTorch checkpoints as tensors; byte tensors as files."""

from __future__ import annotations

import collections
import io
import pathlib
import pickle
import tarfile
import zipfile
from typing import Any

import numpy as np
import pytest

from aster_ml import Tensor, dtypes
from aster_ml.errors import ArgumentError, FormatError
from aster_ml.nn.state import TensorIO, accept_filename, tar_extract, torch_load, zip_extract

FILES = {"a.bin": bytes(range(256)), "folder/b.txt": b"hello", "empty": b""}


def make_tar(path: pathlib.Path, mode: str = "w") -> None:
    """A tar archive with FILES and a folder."""
    with tarfile.open(path, mode) as tar:
        folder = tarfile.TarInfo("folder")
        folder.type = tarfile.DIRTYPE
        tar.addfile(folder)
        for name, data in FILES.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))


def make_zip(path: pathlib.Path, compression: int) -> None:
    """A zip archive with FILES and a folder."""
    with zipfile.ZipFile(path, "w", compression) as archive:
        archive.mkdir("folder")
        for name, data in FILES.items():
            archive.writestr(name, data)


def contents(members: dict[str, Tensor]) -> dict[str, bytes]:
    """The members' bytes."""
    return {name: t.numpy().tobytes() for name, t in members.items()}


@pytest.mark.parametrize("mode", ["w", "w:gz"])
def test_tar_members(tmp_path: pathlib.Path, mode: str) -> None:
    path = tmp_path / "x.tar"
    make_tar(path, mode)
    members = tar_extract(path)
    assert contents(members) == FILES
    lazy = str(members["a.bin"].device).startswith("DISK")
    assert lazy is (mode == "w"), "what is stored plainly is a view of the file"


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_zip_members(tmp_path: pathlib.Path, compression: int) -> None:
    path = tmp_path / "x.zip"
    make_zip(path, compression)
    members = zip_extract(path)
    assert contents(members) == FILES
    lazy = str(members["a.bin"].device).startswith("DISK")
    assert lazy is (compression == zipfile.ZIP_STORED)


class Stream(io.RawIOBase):
    """A file that can only be written on and on: sizes then stand behind the bytes."""

    def __init__(self) -> None:
        self.data = b""

    def writable(self) -> bool:
        """Always."""
        return True

    def write(self, data: Any) -> int:
        """Appends."""
        self.data += bytes(data)
        return len(data)


def test_zip_with_sizes_behind_the_bytes_and_wide_ones(tmp_path: pathlib.Path) -> None:
    stream, seekable = Stream(), io.BytesIO()
    for file in (stream, seekable):
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr("stored", b"x" * 100)
            archive.writestr("packed", b"y" * 100, zipfile.ZIP_DEFLATED)
            with archive.open("wide", "w", force_zip64=True) as member:
                member.write(b"12345")
    for data in (stream.data, seekable.getvalue()):
        (tmp_path / "x.zip").write_bytes(data)
        want = {"stored": b"x" * 100, "packed": b"y" * 100, "wide": b"12345"}
        assert contents(zip_extract(tmp_path / "x.zip")) == want


def test_zip_with_a_directory_of_64_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zipfile, "ZIP_FILECOUNT_LIMIT", 1)
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name in ("a", "b", "c"):
            archive.writestr(name, name.encode())
    assert b"PK\x06\x06" in file.getvalue()
    assert contents(zip_extract(Tensor(file.getvalue()))) == {"a": b"a", "b": b"b", "c": b"c"}


def test_many_small_members_that_are_packed() -> None:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for i in range(300):
            archive.writestr(f"{i}", f"{i}" * 20)
    got = contents(zip_extract(Tensor(file.getvalue())))
    assert got == {f"{i}": f"{i}".encode() * 20 for i in range(300)}


def test_archives_in_memory(tmp_path: pathlib.Path) -> None:
    make_tar(tmp_path / "x.tar")
    make_zip(tmp_path / "x.zip", zipfile.ZIP_STORED)
    assert contents(tar_extract(Tensor((tmp_path / "x.tar").read_bytes()))) == FILES
    assert contents(zip_extract(Tensor((tmp_path / "x.zip").read_bytes()))) == FILES


@pytest.mark.parametrize("read", [tar_extract, zip_extract])
def test_what_is_no_archive_is_refused(tmp_path: pathlib.Path, read: Any) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"not an archive" * 100)
    with pytest.raises(FormatError, match=r"no (zip|tar) archive") as caught:
        read(path)
    assert caught.value.path == str(path)
    assert caught.value.place
    assert str(caught.value) == f"{path}: {caught.value.place}: {caught.value.reason}"


def test_truncated_zip_is_refused(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "x.zip"
    make_zip(path, zipfile.ZIP_STORED)
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(FormatError, match="zip"):
        zip_extract(path)


def test_tensor_io_reads_and_seeks() -> None:
    file = TensorIO(Tensor(b"0123456789"))
    assert file.readable()
    assert file.seekable()
    assert file.read(3) == b"012"
    assert file.tell() == 3
    assert file.seek(-2, io.SEEK_END) == 8
    assert file.read() == b"89"
    assert file.read(5) == b""
    assert file.seek(4) == 4
    assert file.seek(1, io.SEEK_CUR) == 5
    buffer = bytearray(3)
    assert file.readinto(buffer) == 3
    assert buffer == b"567"
    assert io.BufferedReader(TensorIO(Tensor(b"a\nb\n"))).readlines() == [b"a\n", b"b\n"]


def test_tensor_io_only_reads() -> None:
    file = TensorIO(Tensor(b"abc"))
    with pytest.raises(io.UnsupportedOperation, match="only reads"):
        file.write(b"x")
    with pytest.raises(io.UnsupportedOperation, match="only reads"):
        file.writelines([b"x"])
    with pytest.raises(ArgumentError, match="whence=7"):
        file.seek(0, 7)
    with pytest.raises(ArgumentError, match="a uint8 tensor of one axis"):
        TensorIO(Tensor([[1, 2]], dtype=dtypes.uint8))


def test_readers_take_names_paths_and_tensors(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"abc")

    @accept_filename
    def count(t: Tensor) -> int:
        """Counts."""
        return int(t.shape[0])

    assert count(path) == count(str(path)) == count(Tensor(b"abc")) == 3
    assert count.__doc__ == "Counts."


# What a checkpoint's tensor is made from -> the same in NumPy.
def checkpoint(torch: Any) -> dict[str, Any]:
    """Tensors of many kinds: views, permuted, shared, expanded, empty, parameters."""
    base = torch.arange(24, dtype=torch.float32)
    return {
        "plain": base.reshape(2, 3, 4),
        "permuted": base.reshape(2, 3, 4).permute(2, 0, 1),
        "part": base[5:11].reshape(2, 3),
        "transposed part": base[4:12].reshape(2, 4).t(),
        "expanded": base[3:5].reshape(2, 1).expand(2, 3),
        "number": torch.tensor(3, dtype=torch.int64),
        "empty": torch.zeros(0, 3),
        "parameter": torch.nn.Parameter(torch.ones(2)),
        "bool": torch.tensor([True, False]),
        "half": torch.tensor([1.5, -2.0], dtype=torch.float16),
        "double": torch.tensor([[1e300]], dtype=torch.float64),
        "bytes": torch.tensor([1, 255], dtype=torch.uint8),
        "ones": torch.ones(1, 1, 2, 1),
    }


@pytest.mark.torch
@pytest.mark.parametrize("as_zip", [True, False])
def test_checkpoints_of_torch(tmp_path: pathlib.Path, as_zip: bool) -> None:
    torch = pytest.importorskip("torch")
    path = tmp_path / "x.pt"
    want = checkpoint(torch)
    torch.save(want, path, _use_new_zipfile_serialization=as_zip)
    got = torch_load(path)
    assert got.keys() == want.keys()
    for name, t in want.items():
        assert got[name].shape == tuple(t.shape), name
        np.testing.assert_array_equal(got[name].numpy(), t.detach().numpy(), err_msg=name)


@pytest.mark.torch
@pytest.mark.parametrize("as_zip", [True, False])
def test_structure_of_a_checkpoint_stays(tmp_path: pathlib.Path, as_zip: bool) -> None:
    torch = pytest.importorskip("torch")
    path = tmp_path / "x.pt"
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    model(torch.ones(4, 2)).square().sum().backward()
    optimizer.step()
    torch.save(
        {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3},
        path,
        _use_new_zipfile_serialization=as_zip,
    )
    got: Any = torch_load(path)
    assert got["epoch"] == 3
    assert got["optimizer"]["param_groups"][0]["lr"] == 0.5
    assert list(got["model"]) == list(model.state_dict())
    np.testing.assert_array_equal(
        got["optimizer"]["state"][0]["momentum_buffer"].numpy(),
        optimizer.state_dict()["state"][0]["momentum_buffer"].numpy(),
    )
    assert got["model"]["1.num_batches_tracked"].item() == 1


@pytest.mark.torch
def test_bfloat16_checkpoint(tmp_path: pathlib.Path) -> None:
    torch = pytest.importorskip("torch")
    path = tmp_path / "x.pt"
    torch.save({"x": torch.tensor([1.5, -3.0], dtype=torch.bfloat16)}, path)
    got = torch_load(path)["x"]
    assert got.dtype == dtypes.bfloat16
    assert got.to("CPU").float().tolist() == [1.5, -3.0]


@pytest.mark.torch
@pytest.mark.parametrize("as_zip", [True, False])
def test_dtypes_without_storages_of_their_own(tmp_path: pathlib.Path, as_zip: bool) -> None:
    torch = pytest.importorskip("torch")
    path = tmp_path / "x.pt"
    want = {
        "u16": torch.arange(6).to(torch.uint16).reshape(2, 3)[1:],
        "u32": torch.tensor([2**32 - 1], dtype=torch.uint32),
        "u64": torch.tensor([2**64 - 1, 0], dtype=torch.uint64),
        "empty": torch.zeros(0, 3, dtype=torch.uint16),
    }
    torch.save(want, path, _use_new_zipfile_serialization=as_zip)
    got = torch_load(path)
    for name, t in want.items():
        assert str(t.dtype) == f"torch.{got[name].dtype.name}"
        np.testing.assert_array_equal(got[name].numpy(), t.numpy(), err_msg=name)


@pytest.mark.torch
@pytest.mark.parametrize("as_zip", [True, False])
def test_a_storage_alone_is_its_elements(tmp_path: pathlib.Path, as_zip: bool) -> None:
    torch = pytest.importorskip("torch")
    path = tmp_path / "x.pt"
    value = torch.tensor([1.5, 2.5])
    torch.save({"s": value.untyped_storage(), "n": 3}, path, _use_new_zipfile_serialization=as_zip)
    got = torch_load(path)
    assert bytes(got["s"].data()) == value.numpy().tobytes()


@pytest.mark.torch
def test_checkpoint_with_gaps_between_elements(tmp_path: pathlib.Path) -> None:
    torch = pytest.importorskip("torch")
    path = tmp_path / "x.pt"
    torch.save({"x": torch.arange(10)[::2]}, path)
    assert torch_load(path)["x"].tolist() == [0, 2, 4, 6, 8]


class Evil:
    """Its pickle asks for a call."""

    def __reduce__(self) -> Any:
        return (pathlib.Path.touch, (pathlib.Path("owned"),))


def test_loading_runs_nothing(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "x.pt"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x/data.pkl", pickle.dumps({"e": Evil(), "n": [1, (2,)]}))
    got: Any = torch_load(path)
    assert not (tmp_path / "owned").exists()
    assert got["n"] == [1, (2,)]
    assert type(got["e"]).__name__ == "Placeholder"


def test_ordered_dicts_are_resolved(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "x.pt"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("data.pkl", pickle.dumps(collections.OrderedDict(b=1, a=2)))
    assert list(torch_load(path)) == ["b", "a"]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"neither of them", "its start is damaged or of an unknown kind"),
        (pickle.dumps(17), "neither a zip archive nor the older form"),
        (b"\x80", "damaged"),
    ],
)
def test_what_is_no_checkpoint_is_refused(
    tmp_path: pathlib.Path, data: bytes, message: str
) -> None:
    path = tmp_path / "x.pt"
    path.write_bytes(data)
    with pytest.raises(FormatError, match=message):
        torch_load(path)


@pytest.mark.torch
def test_truncated_checkpoint_is_refused(tmp_path: pathlib.Path) -> None:
    torch = pytest.importorskip("torch")
    path = tmp_path / "x.pt"
    torch.save({"x": torch.ones(100)}, path, _use_new_zipfile_serialization=False)
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(FormatError, match=r"storage '\d+' of 100 elements needs bytes"):
        torch_load(path)


def test_zip_without_a_pickle_is_no_checkpoint(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "x.zip"
    make_zip(path, zipfile.ZIP_STORED)
    with pytest.raises(FormatError, match=r"without data.pkl; it has a.bin, folder/b.txt"):
        torch_load(path)
