"""Models in several safetensors files: a folder, or an index that says which file has which tensor.

Receives paths; returns for each file the names of tensors that are wanted of it. What is in a file
is read in `formats.safetensors`. An index is JSON, `{"weight_map": {name: file}}`, and its files
lie in its own folder.
"""

from __future__ import annotations

import json
import os
import pathlib
from typing import Any

from aster_ml.errors import FileKindError, FileMissingError, FormatError
from aster_ml.formats.fileio import show_value

INDEX_SUFFIX = ".index.json"
INDEX = "model.safetensors.index.json"
MAX_INDEX_NBYTES = 100_000_000
WHERE = "safetensors index"
# Longer names no file system has.
MAX_NAME_NBYTES = 255


def is_of_several_files(fn: Any) -> bool:
    """Whether it names a folder or an index."""
    if not isinstance(fn, (str, pathlib.Path)):
        return False
    # `os.path` takes names that no file can have as absent; `pathlib` raises for some.
    return str(fn).endswith(INDEX_SUFFIX) or os.path.isdir(fn)


def files_of(fn: str | pathlib.Path) -> list[tuple[pathlib.Path, list[str] | None]]:
    """The files of a model, each with the names that are wanted of it; None for all of its names.

    In a folder that is the one index that lies there, else all files in order of their names.

    Raises: FileMissingError, FileKindError for a folder without such files, FormatError.
    """
    path = pathlib.Path(fn)
    if not path.is_dir():
        return read_index(path)
    index = path / INDEX
    found = sorted(path.glob("*" + INDEX_SUFFIX))
    if index.is_file() or len(found) == 1:
        return read_index(index if index.is_file() else found[0])
    if found:
        names = ", ".join([p.name for p in found])
        raise FormatError(f"{str(path)!r} has several indices: {names}; give one of them", WHERE)
    files = sorted(path.glob("*.safetensors"))
    if not files:
        raise FileKindError(f"{str(path)!r} is a folder without a safetensors file")
    return [(file, None) for file in files]


def read_index(path: pathlib.Path) -> list[tuple[pathlib.Path, list[str] | None]]:
    """The files that an index names, each with the names of its tensors."""
    try:
        if path.stat().st_size > MAX_INDEX_NBYTES:
            raise FormatError(f"it is larger than {MAX_INDEX_NBYTES} bytes", WHERE)
        index = json.loads(path.read_bytes().decode("utf-8"))
    except FileNotFoundError:
        raise FileMissingError(f"file {str(path)!r} is missing") from None
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError, ValueError) as error:
        raise FormatError(f"it is not JSON ({error})", WHERE) from error
    names = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(names, dict):
        raise FormatError("weight_map is missing, a map from tensors to files is wanted", WHERE)
    files: dict[str, list[str]] = {}
    for name, file in names.items():
        if not is_plain_name(file):
            raise FormatError(
                f"tensor {show_value(name)} is said to be in {show_value(file)}; the name of a "
                "file in the same folder is wanted",
                WHERE,
            )
        files.setdefault(file, []).append(name)
    lacking = [file for file in files if not os.path.isfile(path.parent / file)]
    if lacking:
        raise FileMissingError(
            f"{str(path)!r} names {', '.join(lacking[:10])}, which are not beside it"
        )
    return [(path.parent / file, wanted) for file, wanted in files.items()]


def is_plain_name(file: Any) -> bool:
    """Whether a value is the name of a file and no way to another folder."""
    if not isinstance(file, str) or file in ("", ".", "..") or "\0" in file:
        return False
    try:
        if len(os.fsencode(file)) > MAX_NAME_NBYTES:
            return False
    except UnicodeEncodeError:
        return False
    return pathlib.PurePosixPath(file).name == pathlib.PureWindowsPath(file).name == file
