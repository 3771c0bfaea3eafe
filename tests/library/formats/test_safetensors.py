"""safetensors beside the `safetensors` package, in both directions; laziness; atomic writing."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from aster_ml import Tensor, dtypes, nn
from aster_ml.errors import FormatError
from aster_ml.nn.state import (
    get_state_dict,
    load_state_dict,
    safe_load,
    safe_load_metadata,
    safe_save,
)

# dtype, NumPy's type, the format's name.
DTYPES: list[tuple[Any, Any, str]] = [
    (dtypes.bool, np.bool_, "BOOL"),
    (dtypes.int8, np.int8, "I8"),
    (dtypes.uint8, np.uint8, "U8"),
    (dtypes.int16, np.int16, "I16"),
    (dtypes.uint16, np.uint16, "U16"),
    (dtypes.int32, np.int32, "I32"),
    (dtypes.uint32, np.uint32, "U32"),
    (dtypes.int64, np.int64, "I64"),
    (dtypes.uint64, np.uint64, "U64"),
    (dtypes.float16, np.float16, "F16"),
    (dtypes.bfloat16, ml_dtypes.bfloat16, "BF16"),
    (dtypes.float32, np.float32, "F32"),
    (dtypes.float64, np.float64, "F64"),
    (dtypes.fp8e4m3, ml_dtypes.float8_e4m3fn, "F8_E4M3"),
    (dtypes.fp8e5m2, ml_dtypes.float8_e5m2, "F8_E5M2"),
]
VALUES = np.array([[0, 1, 2], [3, 1, 0]])


def raw_file(path: pathlib.Path, entries: dict[str, Any], data: bytes, pad: int = 0) -> None:
    """A safetensors file with any header."""
    header = json.dumps(entries).encode() + b" " * pad
    path.write_bytes(len(header).to_bytes(8, "little") + header + data)


@pytest.mark.parametrize(("dtype", "numpy_type", "name"), DTYPES, ids=[d[2] for d in DTYPES])
def test_round_trip_of_every_dtype(
    tmp_path: pathlib.Path, dtype: Any, numpy_type: Any, name: str
) -> None:
    path = tmp_path / "one.safetensors"
    array = VALUES.astype(numpy_type)
    safe_save({"x": Tensor(array)}, path)
    back = safe_load(path)["x"]
    assert back.dtype == dtype
    seen = array.astype(np.float32) if dtype.fmt is None else array
    np.testing.assert_array_equal(back.numpy(), seen)
    assert safe_load_metadata(path)[2]["x"]["dtype"] == name


def test_written_files_are_read_by_the_package(tmp_path: pathlib.Path) -> None:
    package = pytest.importorskip("safetensors.numpy")
    arrays = {
        "odd": np.arange(3, dtype=np.uint8),
        "matrix": np.random.randn(4, 5).astype(np.float32),
        "half": np.random.randn(7).astype(np.float16),
        "long": np.array([[2**62, -1]], dtype=np.int64),
        "number": np.array(3.5, dtype=np.float64),
        "nothing": np.zeros((0, 3), np.float32),
    }
    path = tmp_path / "ours.safetensors"
    safe_save({name: Tensor(a) for name, a in arrays.items()}, path, {"epoch": 3})
    back = package.load_file(path)
    assert back.keys() == arrays.keys()
    for name, array in arrays.items():
        assert back[name].dtype == array.dtype
        np.testing.assert_array_equal(back[name], array)
    with pytest.importorskip("safetensors").safe_open(path, "np") as file:
        assert file.metadata() == {"epoch": "3"}


def test_files_of_the_package_are_read(tmp_path: pathlib.Path) -> None:
    package = pytest.importorskip("safetensors.numpy")
    arrays = {
        "b": np.array([True, False, True]),
        "a": np.random.randn(2, 3, 4).astype(np.float32),
        "c": np.array(7, dtype=np.int16),
        "empty": np.zeros((2, 0), np.float64),
    }
    path = tmp_path / "theirs.safetensors"
    package.save_file(arrays, path, metadata={"a": "b"})
    back = safe_load(path)
    assert back.keys() == arrays.keys()
    for name, array in arrays.items():
        assert back[name].shape == array.shape
        np.testing.assert_array_equal(back[name].to("CPU").numpy(), array)
    assert safe_load_metadata(path)[2]["__metadata__"] == {"a": "b"}


def test_bfloat16_of_the_package_is_read(tmp_path: pathlib.Path) -> None:
    torch = pytest.importorskip("torch")
    package = pytest.importorskip("safetensors.torch")
    path = tmp_path / "bf16.safetensors"
    package.save_file({"x": torch.tensor([1.5, -2.0, 3e38], dtype=torch.bfloat16)}, path)
    back = safe_load(path)["x"]
    assert back.dtype == dtypes.bfloat16
    np.testing.assert_array_equal(
        back.to("CPU").float().numpy(), np.array([1.5, -2.0, 3e38], "bfloat16")
    )


def test_tensors_are_views_of_the_file(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "lazy.safetensors"
    safe_save({"x": Tensor([1.0, 2.0, 3.0, 4.0]), "y": Tensor([5, 6])}, path)
    state = safe_load(path)
    assert all(str(t.device).startswith("DISK") for t in state.values())
    # Bytes changed after loading and before use show: nothing was read.
    start = safe_load_metadata(path)[1]
    offset = safe_load_metadata(path)[2]["x"]["data_offsets"][0]
    with path.open("r+b") as file:
        file.seek(start + offset)
        file.write(np.float32(9.0).tobytes())
    assert state["x"].to("CPU").tolist() == [9.0, 2.0, 3.0, 4.0]
    assert (state["x"].to("CPU")[1:3] * 2).tolist() == [4.0, 6.0]


def test_order_and_names_stay(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "order.safetensors"
    names = ["z", "a", 'üñ/quote"', "m.0.weight"]
    safe_save({name: Tensor([i], dtype=dtypes.uint8) for i, name in enumerate(names)}, path)
    back = safe_load(path)
    assert list(back) == names
    assert [t.item() for t in back.values()] == [0, 1, 2, 3]


def test_every_tensor_starts_at_a_multiple_of_its_element(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "aligned.safetensors"
    tensors = {"u": Tensor([1], dtype=dtypes.uint8), "d": Tensor([1.0], dtype=dtypes.float64)}
    safe_save(tensors, path, {"pad": "x" * 3})
    _, start, header = safe_load_metadata(path)
    assert start % 8 == 0
    assert header["d"]["data_offsets"] == [0, 8]
    assert header["u"]["data_offsets"] == [8, 9]


@pytest.mark.parametrize("pad", range(4))
def test_data_may_start_anywhere(tmp_path: pathlib.Path, pad: int) -> None:
    path = tmp_path / "unaligned.safetensors"
    array = np.array([1.5, -2.5], np.float32)
    entry = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
    raw_file(path, {"x": entry}, array.tobytes(), pad)
    np.testing.assert_array_equal(safe_load(path)["x"].to("CPU").numpy(), array)
    np.testing.assert_array_equal((safe_load(path)["x"].to("CPU") + 1).numpy(), array + 1)


def test_bytes_in_memory_are_a_file_too(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "memory.safetensors"
    safe_save({"x": Tensor([1, 2, 3])}, path)
    back = safe_load(Tensor(path.read_bytes()))
    assert back["x"].tolist() == [1, 2, 3]
    assert back["x"].device == Tensor([1]).device


def test_views_and_unrealized_values_are_written_as_seen(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "views.safetensors"
    base = np.arange(12, dtype=np.float32).reshape(3, 4)
    t = Tensor(base)
    safe_save({"t": t.transpose(), "s": t[1:, ::2] * 2, "e": t[:1].expand(2, 4)}, path)
    back = safe_load(path)
    np.testing.assert_array_equal(back["t"].numpy(), base.T)
    np.testing.assert_array_equal(back["s"].numpy(), base[1:, ::2] * 2)
    np.testing.assert_array_equal(back["e"].numpy(), base[[0, 0]])


def test_a_model_round_trip(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "model.safetensors"
    model, fresh = [nn.Conv2d(1, 2, 3), nn.BatchNorm(2)], [nn.Conv2d(1, 2, 3), nn.BatchNorm(2)]
    safe_save(get_state_dict(model), path)
    load_state_dict(fresh, safe_load(path), verbose=False)
    for name, t in get_state_dict(fresh).items():
        assert not str(t.device).startswith("DISK")
        np.testing.assert_array_equal(t.numpy(), get_state_dict(model)[name].numpy())


def test_a_file_can_be_rewritten_from_its_own_tensors(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "again.safetensors"
    safe_save({"x": Tensor([1.0, 2.0])}, path)
    state = safe_load(path)
    safe_save({"y": state["x"].to("CPU") + 1, "x": state["x"]}, path)
    back = safe_load(path)
    assert back["x"].tolist() == [1.0, 2.0]
    assert back["y"].tolist() == [2.0, 3.0]


def test_a_failed_write_leaves_the_old_file(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "kept.safetensors"
    safe_save({"x": Tensor([1.0])}, path)

    def no_disk(*_: Any) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr("aster_ml.formats.fileio.os.fsync", no_disk)
    with pytest.raises(OSError, match="No space left"):
        safe_save({"x": Tensor([2.0])}, path)
    assert safe_load(path)["x"].tolist() == [1.0]
    assert [p.name for p in tmp_path.iterdir()] == ["kept.safetensors"]


def test_what_the_format_cannot_hold_is_refused(tmp_path: pathlib.Path) -> None:
    with pytest.raises(FormatError, match="no tensor can have the name '__metadata__'"):
        safe_save({"__metadata__": Tensor([1.0])}, tmp_path / "x.safetensors")
    assert not list(tmp_path.iterdir())


def test_saving_writes_through_a_link_and_keeps_permissions(tmp_path: pathlib.Path) -> None:
    (tmp_path / "real").mkdir()
    path, link = tmp_path / "real" / "x.safetensors", tmp_path / "link"
    path.write_bytes(b"older")
    path.chmod(0o640)
    link.symlink_to("real/x.safetensors")
    safe_save({"x": Tensor([1, 2])}, link)
    assert link.is_symlink()
    assert not path.is_symlink()
    assert path.stat().st_mode & 0o777 == 0o640
    assert safe_load(path)["x"].tolist() == [1, 2]
    dangling = tmp_path / "dangling"
    dangling.symlink_to("real/new")
    safe_save({"x": Tensor([3])}, dangling)
    assert safe_load(tmp_path / "real" / "new")["x"].tolist() == [3]
    assert sorted(p.name for p in (tmp_path / "real").iterdir()) == ["new", "x.safetensors"]


def test_saving_over_what_is_no_file_is_refused(tmp_path: pathlib.Path) -> None:
    with pytest.raises(FormatError, match="it is a folder, a file to write is wanted"):
        safe_save({"x": Tensor([1])}, tmp_path)
    with pytest.raises(FormatError, match="it is a device"):
        safe_save({"x": Tensor([1])}, "/dev/null")


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"dtype": "C128"}, "dtype 'C128' is none of the format's; there are BOOL"),
        ({"dtype": "f32"}, "dtype 'f32' is none"),
        ({"dtype": "F4", "shape": [3]}, "takes 12 bits, no whole number of bytes"),
        ({"note": "\ud800"}, "is not JSON"),
    ],
)
def test_what_the_package_refuses_is_refused(entry: dict[str, Any], message: str) -> None:
    whole = {"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8], **entry}}
    header = json.dumps(whole).encode()
    data = len(header).to_bytes(8, "little") + header + bytes(8)
    with pytest.raises(FormatError, match=message):
        safe_load(Tensor(data))
    owner = pytest.importorskip("safetensors", reason="the package safetensors is absent")
    with pytest.raises(owner.SafetensorError):
        owner.deserialize(data)
