"""Damaged and lying safetensors files: each says which tensor, what was found, what was wanted."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import pytest

from aster_ml import Tensor, dtypes
from aster_ml.errors import ArgumentError, FormatError
from aster_ml.nn.state import safe_load, safe_load_metadata, safe_save


def with_header(path: pathlib.Path, header: Any, data: bytes = b"", length: int = -1) -> str:
    """A file with this header (JSON, or bytes as they are) and data; returns its name."""
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    size = len(raw) if length < 0 else length
    path.write_bytes(size.to_bytes(8, "little") + raw + data)
    return str(path)


def entry(dtype: Any = "F32", shape: Any = (2,), offsets: Any = (0, 8)) -> dict[str, Any]:
    """A header entry."""
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def test_truncated_data(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "f.safetensors"
    safe_save({"w": Tensor([1.0, 2.0, 3.0])}, path)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(
        FormatError,
        match=r"tensor 'w': data_offsets \[0, 12\] reach past the data of 11 bytes.*truncated",
    ):
        safe_load(path)


@pytest.mark.parametrize("nbytes", [1, 7])
def test_too_short_for_a_header_length(tmp_path: pathlib.Path, nbytes: int) -> None:
    path = tmp_path / "f.safetensors"
    path.write_bytes(b"\0" * nbytes)
    with pytest.raises(FormatError, match=f"has {nbytes} bytes, the header's length alone takes 8"):
        safe_load(path)


def test_empty_file(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "f.safetensors"
    path.write_bytes(b"")
    with pytest.raises(FormatError, match=r"f.safetensors' is empty"):
        safe_load(path)


def test_absent_file_and_folder(tmp_path: pathlib.Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no file 'nowhere\.safetensors'"):
        safe_load("nowhere.safetensors")
    with pytest.raises(IsADirectoryError, match="is a folder"):
        safe_load(tmp_path)


def test_header_longer_than_the_file(tmp_path: pathlib.Path) -> None:
    name = with_header(tmp_path / "f", {"x": entry()}, b"\0" * 8, length=10_000)
    with pytest.raises(FormatError, match=r"header claims 10000 bytes, \d+ follow its length"):
        safe_load(name)


def test_header_length_of_all_ones(tmp_path: pathlib.Path) -> None:
    name = with_header(tmp_path / "f", b"{}", length=2**64 - 1)
    with pytest.raises(FormatError, match="header claims 18446744073709551615 bytes"):
        safe_load(name)


@pytest.mark.parametrize("header", [b"not json", b"{", b'{"x": \xff\xfe}', b"[" * 100_000, b""])
def test_header_that_is_not_json(tmp_path: pathlib.Path, header: bytes) -> None:
    name = with_header(tmp_path / "f", header)
    with pytest.raises(FormatError, match=f"header of {len(header)} bytes is not JSON"):
        safe_load(name)


def test_header_that_is_no_object(tmp_path: pathlib.Path) -> None:
    with pytest.raises(FormatError, match="JSON list, an object is wanted"):
        safe_load(with_header(tmp_path / "f", [1, 2]))


def test_header_with_a_name_twice(tmp_path: pathlib.Path) -> None:
    raw = b'{"x": {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]}, "x": 1}'
    with pytest.raises(FormatError, match="header has the key 'x' twice"):
        safe_load(with_header(tmp_path / "f", raw))


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (7, r"its entry is 7, an object is wanted"),
        ({"dtype": "F32", "shape": [2]}, r"data_offsets is missing, its entry has dtype, shape"),
        (entry(dtype=["F32"]), r"dtype \['F32'\], a name is wanted"),
        (entry(dtype="C64"), r"span 8 bytes, shape \[2\] of C64 takes 16"),
        (entry(shape=[-2]), r"shape \[-2\], a list of sizes of at least 0"),
        (entry(shape=[2.0]), r"shape \[2.0\], a list of sizes"),
        (entry(shape=[True]), r"shape \[True\], a list of sizes"),
        (entry(shape=2), r"shape 2, a list of sizes"),
        (entry(offsets=[0]), r"data_offsets \[0\], \[begin, end\] is wanted"),
        (entry(offsets=[0, "8"]), r"data_offsets \[0, '8'\], \[begin, end\] is wanted"),
        (entry(offsets=[-8, 0]), r"data_offsets \[-8, 0\], \[begin, end\] is wanted"),
        (entry(offsets=[8, 0]), r"data_offsets \[8, 0\], begin comes after end"),
        (entry(offsets=[12, 20]), r"\[12, 20\] reach past the data of 16 bytes"),
        (entry(offsets=[0, 2**70]), r"reach past the data of 16 bytes"),
        (entry(shape=[3]), r"span 8 bytes, shape \[3\] of F32 takes 12"),
        (entry(dtype="F64"), r"span 8 bytes, shape \[2\] of F64 takes 16"),
        (
            entry(shape=[2**40, 2**40]),
            r"shape \[1099511627776, 1099511627776\] is larger than any memory",
        ),
    ],
)
def test_lying_entries_name_the_tensor(tmp_path: pathlib.Path, bad: Any, message: str) -> None:
    header = {"good": entry(), "bad.weight": bad}
    with pytest.raises(FormatError, match=rf"tensor 'bad.weight': .*{message}"):
        safe_load(with_header(tmp_path / "f", header, b"\0" * 16))


def test_a_dtype_that_is_none_of_the_format_is_refused(tmp_path: pathlib.Path) -> None:
    header = {"bad": entry(dtype="F31", shape=[8]), "good": entry(offsets=[8, 16])}
    with pytest.raises(FormatError, match=r"tensor 'bad': dtype 'F31' is none of the format's"):
        safe_load(with_header(tmp_path / "f", header, b"\0" * 16))


def test_a_dtype_that_aster_lacks_is_told_when_it_is_used(tmp_path: pathlib.Path) -> None:
    kind = "F8_E8M0"
    header = {"bad": entry(dtype=kind, shape=[8]), "good": entry(offsets=[8, 16])}
    tensors = safe_load(with_header(tmp_path / "f", header, b"\0" * 16))
    assert tensors["good"].tolist() == [0, 0]
    assert repr(tensors["bad"]) == f"<UnknownTensor {kind} [8]>"
    for use in (lambda t: t.numpy(), lambda t: t.shape, lambda t: t.to("CPU")):
        with pytest.raises(FormatError, match=rf"tensor 'bad': it has the unknown dtype '{kind}'"):
            use(tensors["bad"])


def test_overlapping_tensors_are_both_named(tmp_path: pathlib.Path) -> None:
    header = {"b": entry(offsets=[4, 12]), "a": entry(offsets=[0, 8])}
    with pytest.raises(
        FormatError, match=r"tensor 'b' at \[4, 12\] overlaps tensor 'a', which ends at 8"
    ):
        safe_load(with_header(tmp_path / "f", header, b"\0" * 16))


def test_equal_spans_overlap(tmp_path: pathlib.Path) -> None:
    header = {"a": entry(), "b": entry()}
    with pytest.raises(FormatError, match=r"tensor 'b' at .* overlaps tensor 'a'"):
        safe_load(with_header(tmp_path / "f", header, b"\0" * 8))


def test_metadata_that_is_no_map_of_strings(tmp_path: pathlib.Path) -> None:
    with pytest.raises(FormatError, match="a map from strings to strings is wanted"):
        safe_load(with_header(tmp_path / "f", {"__metadata__": {"a": 1}}))


def test_errors_are_value_errors(tmp_path: pathlib.Path) -> None:
    with pytest.raises(ValueError, match="not JSON"):
        safe_load_metadata(with_header(tmp_path / "f", b"?"))


def test_a_tensor_that_is_no_file(tmp_path: pathlib.Path) -> None:
    with pytest.raises(ArgumentError, match=r"uint8 tensor of one axis, this one is .*int.* \[2\]"):
        safe_load(Tensor([1, 2], dtype=dtypes.int32))


def test_a_good_header_loads_after_all(tmp_path: pathlib.Path) -> None:
    name = with_header(tmp_path / "f", {"a": entry()}, b"\0" * 8)
    assert safe_load(name)["a"].to("CPU").tolist() == [0.0, 0.0]
