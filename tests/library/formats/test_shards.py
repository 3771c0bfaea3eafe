"""Models in several safetensors files: folders and indices."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import pytest

from aster_ml import Tensor
from aster_ml.errors import FileKindError, FileMissingError, FormatError
from aster_ml.nn.state import safe_load, safe_save

INDEX = "model.safetensors.index.json"
FILES = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")


def folder_of(path: pathlib.Path, weight_map: Any = None) -> pathlib.Path:
    """A model of three tensors in two files; an index where a map is given."""
    safe_save({"a": Tensor([1.0, 2.0]), "b": Tensor([3])}, path / FILES[0])
    safe_save({"c": Tensor([[4.0]])}, path / FILES[1])
    if weight_map is not None:
        (path / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return path


GOOD = {"a": FILES[0], "b": FILES[0], "c": FILES[1]}
VALUES = {"a": [1, 2], "b": [3], "c": [[4]]}


def test_an_index_and_a_folder(tmp_path: pathlib.Path) -> None:
    folder = folder_of(tmp_path, GOOD)
    for way in (folder, str(folder), folder / INDEX, str(folder / INDEX)):
        assert {name: t.tolist() for name, t in safe_load(way).items()} == VALUES
    (folder / INDEX).unlink()
    assert {name: t.tolist() for name, t in safe_load(folder).items()} == VALUES


def test_an_index_says_which_tensors_are_wanted(tmp_path: pathlib.Path) -> None:
    folder = folder_of(tmp_path, {"b": FILES[0], "c": FILES[1]})
    assert list(safe_load(folder)) == ["b", "c"]


@pytest.mark.parametrize(
    ("weight_map", "message"),
    [
        ({**GOOD, "d": FILES[1]}, r"00002-of-00002.* lacks 'd', which the index says it has"),
        ({**GOOD, "d": "../secret.safetensors"}, r"'d' is said to be in '../secret.safetensors'"),
        ({**GOOD, "d": "/etc/passwd"}, r"the name of a file in the same folder is wanted"),
        ({**GOOD, "d": "a\\b"}, r"the name of a file in the same folder is wanted"),
        ({**GOOD, "d": ""}, r"the name of a file in the same folder is wanted"),
        ({**GOOD, "d": 7}, r"'d' is said to be in 7"),
        ({**GOOD, "d": "a" * 300}, r"'d' is said to be in 'aaa"),
        ({**GOOD, "d": "\ud800"}, r"the name of a file in the same folder is wanted"),
        ([], r"weight_map is missing, a map from tensors to files is wanted"),
    ],
)
def test_an_index_that_lies(tmp_path: pathlib.Path, weight_map: Any, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        safe_load(folder_of(tmp_path, weight_map))


def test_files_that_are_missing(tmp_path: pathlib.Path) -> None:
    with pytest.raises(FileKindError, match="is a folder without a safetensors file"):
        safe_load(tmp_path)
    with pytest.raises(FileMissingError, match=r"index.json' is missing"):
        safe_load(tmp_path / INDEX)
    folder = folder_of(tmp_path, {**GOOD, "d": "other.safetensors"})
    with pytest.raises(FileMissingError, match=r"names other.safetensors, which are not beside"):
        safe_load(folder)


def test_damaged_indices_and_names_twice(tmp_path: pathlib.Path) -> None:
    folder = folder_of(tmp_path)
    for raw in (b"", b"{", b"\xff", b"[" * 100_000, b"[]", b'{"weight_map": 3}'):
        (folder / INDEX).write_bytes(raw)
        with pytest.raises(FormatError, match="safetensors index"):
            safe_load(folder)
    (folder / INDEX).unlink()
    safe_save({"a": Tensor([1.0])}, folder / "other.safetensors")
    with pytest.raises(FormatError, match="has 'a', which another file of the folder has"):
        safe_load(folder)
