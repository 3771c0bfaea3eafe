"""GGUF files written here: read back by the gguf package and by `gguf_load`, to the bit."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import pytest

from aster_ml import Tensor, dtypes
from aster_ml.errors import ArgumentError, DTypeError, FormatError
from aster_ml.formats.gguf.values import MAX_DEPTH, Metadata
from aster_ml.nn.state import QuantTensor, ggml_quantize, gguf_load, gguf_save
from tests.fuzz import file_makers

WRITTEN = ["Q8_0", "Q4_0", "Q4_1", "Q4_K", "Q6_K", "F16", "BF16", "F32"]
EVERY_TYPE = {
    "u8": np.uint8(255),
    "i8": np.int8(-128),
    "u16": np.uint16(65535),
    "i16": np.int16(-2),
    "u32": np.uint32(2**32 - 1),
    "i32": np.int32(-3),
    "f32": np.float32(1.5),
    "flag": np.bool_(True),
    "text": "grüße",
    "u64": np.uint64(2**64 - 1),
    "i64": np.int64(-(2**63)),
    "f64": np.float64(0.1),
    "numbers": np.array([1, -2, 3], np.int8),
    "words": ["a", "", "ü"],
    "none": np.array([], np.float64),
    "square": np.array([[1, 2], [3, 4]], np.uint16),
    "nested": [[1, 2], ["a"], [[True]]],
}


def test_every_written_type_is_read_by_the_gguf_package(tmp_path: pathlib.Path) -> None:
    gguf = pytest.importorskip("gguf")
    tensors: dict[str, Any] = {
        f"{name} {shape}": ggml_quantize(Tensor.randn(*shape), name)
        for name in WRITTEN
        for shape in [(1, 256), (3, 512), (2, 3, 768), (5, 1, 1, 256)]
    }
    tensors |= {str(t): Tensor([[1, 2, 3]]).cast(t) for t in (dtypes.float16, dtypes.bfloat16)}
    tensors |= {f"{t} 0": Tensor(7).cast(t) for t in (dtypes.int8, dtypes.int64, dtypes.float64)}
    gguf_save(tensors, tmp_path / "x.gguf")
    _, found = gguf_load(tmp_path / "x.gguf", raw=True)
    reader = gguf.GGUFReader(tmp_path / "x.gguf")
    assert [t.name for t in reader.tensors] == list(tensors) == list(found)
    for t in reader.tensors:
        given = tensors[t.name]
        want = given.dequantize() if isinstance(given, QuantTensor) else given
        assert list(reversed(t.shape.tolist())) == list(given.shape)
        assert found[t.name].type == t.tensor_type.name
        numbers = found[t.name].dequantize()
        np.testing.assert_array_equal(numbers.float().numpy(), want.float().numpy())
        if t.tensor_type.name[0] != "I" and t.tensor_type.name != "F64":
            read = gguf.quants.dequantize(t.data, t.tensor_type).reshape(given.shape)
            np.testing.assert_array_equal(read, want.float().numpy())


def test_files_of_the_gguf_package_are_written_as_they_were(tmp_path: pathlib.Path) -> None:
    pytest.importorskip("gguf")
    path, again = tmp_path / "x.gguf", tmp_path / "y.gguf"
    for data in file_makers.samples("gguf"):
        path.write_bytes(data)
        metadata, tensors = gguf_load(path, raw=True)
        gguf_save(tensors, again, metadata)
        assert again.read_bytes() == data


def test_metadata_of_every_type(tmp_path: pathlib.Path) -> None:
    gguf = pytest.importorskip("gguf")
    path = tmp_path / "x.gguf"
    gguf_save({}, path, EVERY_TYPE)
    metadata, _ = gguf_load(path)
    for key, value in EVERY_TYPE.items():
        plain = value.tolist() if isinstance(value, (np.ndarray, np.generic)) else value
        assert metadata[key] == plain, key
    fields = gguf.GGUFReader(path).fields
    names = {"f32": "FLOAT32", "flag": "BOOL", "text": "STRING", "f64": "FLOAT64"}
    for key in ("u8", "i8", "u16", "i16", "u32", "i32", "u64", "i64"):
        names[key] = {"u": "UINT", "i": "INT"}[key[0]] + key[1:]
    for key, name in names.items():
        assert fields[key].types[0].name == name
        assert fields[key].contents() == metadata[key]
    assert metadata.types["nested"] == [["int32"], ["string"], [["bool"]]]
    assert metadata.types["square"] == [["uint16"]]
    gguf_save({}, tmp_path / "y.gguf", metadata)
    assert (tmp_path / "y.gguf").read_bytes() == path.read_bytes()


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (7, "uint32"),
        (-7, "int32"),
        (2**32, "uint64"),
        (-(2**40), "int64"),
        (0.1, "float32"),
        (1e300, "float64"),
        (True, "bool"),
        (b"\xff", "string"),
        ([1, 2**31 - 1], ["int32"]),
        ([1, 2**31], ["uint32"]),
        ([-1, 2**31], ["int64"]),
        ([1, 0.5], ["float32"]),
        ([np.uint8(1), 2], ["int32"]),
        ([np.uint8(1), np.uint8(2)], ["uint8"]),
        ([np.float64(0.1), 2], ["float64"]),
        ([True, False], ["bool"]),
        (["a", b"b"], ["string"]),
        ([[1], [2, 3]], [["int32"]]),
    ],
    ids=str,
)
def test_types_of_plain_values(tmp_path: pathlib.Path, value: Any, kind: Any) -> None:
    gguf_save({}, tmp_path / "x.gguf", {"k": value})
    metadata, _ = gguf_load(tmp_path / "x.gguf")
    assert metadata.types == {"k": kind}


def test_a_value_that_is_set_keeps_the_type_of_its_key(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "x.gguf"
    gguf_save({}, path, {"a": np.uint16(1), "b": np.float64(2), "c": np.array([1], np.int8)})
    metadata, _ = gguf_load(path)
    metadata["a"] = 5
    changed = metadata.copy() | {"b": 0.1, "new": "x"}
    changed["c"] = []
    gguf_save({}, path, changed)
    again, _ = gguf_load(path)
    assert again == {"a": 5, "b": 0.1, "c": [], "new": "x"}
    assert again.types == {"a": "uint16", "b": "float64", "c": ["int8"], "new": "string"}
    changed.types["b"] = "float32"
    gguf_save({}, path, changed)
    assert gguf_load(path)[0]["b"] == float(np.float32(0.1))


@pytest.mark.parametrize("alignment", [8, 32, 128, 4096])
def test_alignment(tmp_path: pathlib.Path, alignment: int) -> None:
    path = tmp_path / "x.gguf"
    tensors = {"a": Tensor([1.0]), "b": Tensor([2.0, 3.0]), "c": Tensor([4], dtype=dtypes.int8)}
    gguf_save(tensors, path, {"general.alignment": alignment})
    metadata, found = gguf_load(path)
    assert metadata == {"general.alignment": alignment}
    assert {name: t.tolist() for name, t in found.items()} == {"a": [1], "b": [2, 3], "c": [4]}
    assert path.stat().st_size % alignment == 0


def save_parts(folder: pathlib.Path, **changes: Any) -> list[pathlib.Path]:
    """Three files of one model; `changes` are values of the second."""
    paths = [folder / f"m-{i + 1:05}-of-00003.gguf" for i in range(3)]
    for i, path in enumerate(paths):
        keys: dict[str, Any] = {"split.no": np.uint16(i), "split.count": np.uint16(3)}
        keys["split.tensors.count"] = np.int32(3)
        if i == 0:
            keys["general.name"] = "whole"
        if i == 1:
            keys |= changes
        gguf_save({f"t{i}": Tensor([float(i)])}, path, keys)
    return paths


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_model_in_several_files(tmp_path: pathlib.Path, number: int) -> None:
    path = save_parts(tmp_path)[number]
    for raw in (False, True):
        metadata, tensors = gguf_load(path, raw=raw)
        assert metadata["general.name"] == "whole"
        assert list(tensors) == ["t0", "t1", "t2"]
        plain = [t.dequantize() if isinstance(t, QuantTensor) else t for t in tensors.values()]
        assert [t.tolist() for t in plain] == [[0], [1], [2]]


def test_parts_that_the_gguf_package_wrote(tmp_path: pathlib.Path) -> None:
    gguf = pytest.importorskip("gguf")
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama", split_max_tensors=2)
    for i in range(5):
        writer.add_tensor(f"t{i}", np.full(3, i, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    metadata, tensors = gguf_load(tmp_path / "m-00001-of-00003.gguf")
    assert metadata["general.architecture"] == "llama"
    assert {name: t.tolist() for name, t in tensors.items()} == {f"t{i}": [i] * 3 for i in range(5)}


def test_parts_that_do_not_belong_together(tmp_path: pathlib.Path) -> None:
    first, second, _ = save_parts(tmp_path)
    data = first.read_bytes()
    with pytest.raises(FormatError, match="the file is one of 3; parts are read by the name"):
        gguf_load(Tensor(data))
    (tmp_path / "other.gguf").write_bytes(data)
    with pytest.raises(FormatError, match=r"other.gguf: gguf: the file is one of 3"):
        gguf_load(tmp_path / "other.gguf")
    save_parts(tmp_path, **{"split.no": np.uint16(2)})
    with pytest.raises(FormatError, match=r"m-00002-of-00003.gguf: .*it says that it is part 2 of"):
        gguf_load(first)
    own = {"split.no": np.uint16(1), "split.count": np.uint16(3)}
    gguf_save({"t0": Tensor([1.0])}, second, own)
    with pytest.raises(FormatError, match=r"m-00002.*tensor 't0' is in a part before it too"):
        gguf_load(first)
    gguf_save({}, second, own)
    with pytest.raises(FormatError, match=r"split.tensors.count is 3, the 3 parts have 2"):
        gguf_load(first)
    second.unlink()
    with pytest.raises(FileNotFoundError, match=r"m-00002-of-00003\.gguf"):
        gguf_load(first)


def deep(levels: int) -> Any:
    """A list in a list in a list ..."""
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("tensors", "metadata", "error", "message"),
    [
        ([], None, ArgumentError, "list is given; a dict by name is wanted"),
        ({}, [], ArgumentError, "metadata is .*list; a dict by key is wanted"),
        ({1: Tensor([1.0])}, None, FormatError, "the name 1 is"),
        ({"x" * 64: Tensor([1.0])}, None, FormatError, "the name has 64 bytes, at most 63 do"),
        ({"x": Tensor.ones(2, 0)}, None, FormatError, r"shape \[2, 0\]; 0 to 4 axes with elements"),
        ({"x": Tensor.ones(1, 1, 1, 1, 1)}, None, FormatError, r"shape \[1, 1, 1, 1, 1\]; 0 to 4"),
        ({"x": Tensor([True])}, None, FormatError, "tensor 'x': the dtype is .*bool, the format"),
        ({"x": [1.0]}, None, DTypeError, "tensor 'x'"),
        ({}, {1: 2}, ArgumentError, "the key 1 is"),
        ({}, {"k": None}, ArgumentError, "'k': None is .*; numbers, truth values, texts"),
        ({}, {"k": []}, ArgumentError, "'k': an empty list does not tell its type"),
        ({}, {"k": [1, "a"]}, ArgumentError, "'k': the elements of a list are of one type"),
        ({}, {"k": [True, 1]}, ArgumentError, "'k': True is"),
        ({}, {"k": 2**64}, ArgumentError, "'k': .* fits no type of 64 bits"),
        ({}, {"k": "\ud800"}, ArgumentError, "'k': .* cannot be UTF-8"),
        ({}, {"k": deep(MAX_DEPTH + 1)}, ArgumentError, "'k': lists in lists, more than 8 deep"),
        ({}, {"general.alignment": 12}, ArgumentError, "general.alignment is 12; a power of two"),
        ({}, Metadata({"k": 256}, {"k": "uint8"}), ArgumentError, "'k': 256 does not fit uint8"),
        ({}, Metadata({"k": 0.5}, {"k": "int8"}), ArgumentError, "'k': 0.5 does not fit int8"),
        ({}, Metadata({"k": "a"}, {"k": "bool"}), ArgumentError, "'k': .* as bool; True or False"),
        ({}, Metadata({"k": 1}, {"k": "string"}), ArgumentError, "'k': 1 is an int; a text is"),
        ({}, Metadata({"k": 1}, {"k": ["int8"]}), ArgumentError, "'k': 1 is an int; a list is"),
        ({}, Metadata({"k": 1}, {"k": "int7"}), ArgumentError, "'k': the type 'int7'; known are"),
        (
            {},
            Metadata({"k": [1, 2]}, {"k": ["int8", "int16"]}),
            ArgumentError,
            "'k': 2 elements of types",
        ),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_is_not_written(
    tmp_path: pathlib.Path, tensors: Any, metadata: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        gguf_save(tensors, tmp_path / "x.gguf", metadata)
    assert list(tmp_path.iterdir()) == []
