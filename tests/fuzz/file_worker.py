"""Reads files in a process of its own and says what came of it, one line of JSON a file.

`python -m tests.fuzz.file_worker aster` reads with Aster, `... owner` with the packages that own
the formats. Receives lines `[kind, path, how]`; answers `["loaded", values]` or
`["error", class, text]` and, for Aster, the memory the reading took beyond what there was. A change
of the process is an error. `how` is "warm" where modules may still be imported, "memory" for a
tensor in memory, and a number of bytes that the file is cut to once it is open.
Values are texts by place: dtype, shape and a digest of the bytes; other leaves by `repr`.
"""

from __future__ import annotations

import hashlib
import json
import os
import resource
import struct
import sys
import tarfile
import warnings
import zipfile
from collections.abc import Callable
from typing import Any

import numpy as np

SHOWN_NBYTES = 1 << 22
SPARE_NBYTES = 6 << 30


def describe(dtype: str, shape: Any, data: bytes) -> str:
    """A tensor as text; every byte of a truth value but 0 is the same."""
    if dtype == "bool":
        data = bytes([byte != 0 for byte in data])
    return f"{dtype} {list(shape)} {hashlib.sha1(data).hexdigest()}"


def flatten(value: Any, leaf: Callable[[Any], str | None]) -> dict[str, str]:
    """The leaves of nested containers by place; what is shared is shown where it first comes."""
    found: dict[str, str] = {}
    pending, seen = [("", value)], set()
    while pending:
        place, item = pending.pop()
        text = leaf(item)
        if text is None and isinstance(item, (dict, list, tuple)):
            if id(item) in seen:
                found[place] = "seen"
                continue
            seen.add(id(item))
            pairs = item.items() if isinstance(item, dict) else enumerate(item)
            found[place] = f"{'dict' if isinstance(item, dict) else type(item).__name__}"
            pending += [(f"{place}/{leaf(key) or repr(key)}", part) for key, part in pairs]
        else:
            found[place] = repr(item) if text is None else text
    return found


# Aster


Reader = Callable[[Any, Callable[[], None]], dict[str, str]]


def aster_readers() -> dict[str, Reader]:
    """Readers by kind; what they are given second is called between opening and reading."""
    import pathlib

    from aster_ml import Tensor
    from aster_ml.formats.pickles import Placeholder
    from aster_ml.formats.safetensors import UnknownTensor
    from aster_ml.helpers import prod
    from aster_ml.nn import datasets
    from aster_ml.nn.state import gguf_load, safe_load, tar_extract, torch_load, zip_extract
    from aster_ml.uop.print.text import linear_from_text

    def leaf(item: Any) -> str | None:
        if isinstance(item, Placeholder):
            return "placeholder"
        if isinstance(item, UnknownTensor):
            item.numpy()
        if not isinstance(item, Tensor):
            return None
        name = item.dtype.name
        if prod(item.shape) * item.dtype.itemsize > SHOWN_NBYTES:
            return f"{name} {list(item.shape)} large"
        data = b"" if 0 in item.shape else bytes(item._memory().as_memoryview(copy=True))
        return describe(name, item.shape, data)

    def gguf(path: Any, opened: Callable[[], None]) -> dict[str, str]:
        metadata, tensors = gguf_load(path)
        opened()
        found = flatten(metadata, leaf)
        for name, t in tensors.items():
            array = t.numpy() if prod(t.shape) * 8 < SHOWN_NBYTES else np.zeros(0)
            found[f"tensor {name}"] = f"{list(t.shape)} {round_floats(array)}"
        return found

    def text(path: Any, _: Callable[[], None]) -> dict[str, str]:
        with open(path, encoding="utf-8", errors="replace") as file:
            linear_from_text(file.read())
        return {}

    def idx(path: Any, _: Callable[[], None]) -> dict[str, str]:
        array = datasets.parse_idx(datasets.unzip(pathlib.Path(path)), path)
        return {"": describe("uint8", array.shape, array.tobytes())}

    def plain(read: Callable[[Any], Any]) -> Reader:
        def read_all(path: Any, opened: Callable[[], None]) -> dict[str, str]:
            found = read(path)
            opened()
            return flatten(found, leaf)

        return read_all

    return {
        "safetensors": plain(safe_load),
        "torch": plain(torch_load),
        "zip": plain(zip_extract),
        "tar": plain(tar_extract),
        "gguf": gguf,
        "idx": idx,
        "text": text,
    }


def round_floats(array: Any) -> str:
    """Numbers to six digits, so that the order of rounding does not matter."""
    if array.dtype.kind != "f":
        return hashlib.sha1(array.tobytes()).hexdigest()
    flat = array.astype(np.float64).reshape(-1)
    return ",".join([f"{v:.4g}" for v in flat[:2000]])


def process_state() -> list[str]:
    """What reading a file must leave as it is."""
    from aster_ml import dtypes
    from aster_ml.formats import archives, checkpoints, fileio, pickles

    umask = os.umask(0o22)
    os.umask(umask)
    rows = [os.getcwd(), str(umask), str(sorted(os.environ.items())), str(sys.getrecursionlimit())]
    rows += [
        str(sorted(sys.modules)),
        str(sys.get_int_max_str_digits()),
        str(len(warnings.filters)),
    ]
    for name, value in sorted(vars(dtypes).items()):
        if not name.startswith("__"):
            slots = [getattr(value, s, None) for s in getattr(type(value), "__slots__", ())]
            rows.append(f"{name} {slots!r} {getattr(value, '__dict__', None)!r}")
    for module in (archives, checkpoints, fileio, pickles):
        for name, value in sorted(vars(module).items()):
            if callable(value):
                rows.append(f"{name} {sorted(getattr(value, '__dict__', {}))}")
    return rows


def memory(field: str) -> int:
    """A figure of this process, in bytes."""
    with open("/proc/self/status", encoding="ascii") as file:
        line = next(row for row in file if row.startswith(field))
    return int(line.split()[1]) << 10


def read_with_aster(reader: Reader, kind: str, path: str, how: Any) -> list[Any]:
    """The answer for one file."""
    from aster_ml import Tensor
    from aster_ml.errors import FormatError

    with open("/proc/self/clear_refs", "w", encoding="ascii") as file:
        file.write("5")
    start = memory("VmRSS")
    source: Any = path
    if how == "memory" and kind not in ("idx", "text"):
        with open(path, "rb") as file:
            source = Tensor(np.frombuffer(file.read(), np.uint8))
    named = source is path and kind != "text"
    try:
        cut = how if isinstance(how, int) else None
        opened = (lambda: os.truncate(path, cut)) if cut is not None else lambda: None
        answer: list[Any] = ["loaded", reader(source, opened)]
    except FormatError as error:
        answer = ["error", "FormatError", str(error)]
        if not error.reason or (named and path not in str(error)):
            answer = ["error", "FormatError without path or reason", str(error)]
    except BaseException as error:
        answer = ["error", type(error).__name__, str(error)[:300]]
    return [*answer, memory("VmHWM") - start]


# the packages that own the formats


def owner_readers() -> dict[str, Callable[[str], dict[str, str]]]:
    """Readers by kind."""
    import gzip

    import gguf
    import safetensors
    import torch

    short = {
        "F32": "float32", "F64": "float64", "F16": "float16", "BF16": "bfloat16", "I64": "int64",
        "I32": "int32", "I16": "int16", "I8": "int8", "U8": "uint8", "BOOL": "bool",
        "U16": "uint16", "U32": "uint32", "U64": "uint64",
        "F8_E4M3": "fp8e4m3", "F8_E5M2": "fp8e5m2",
    }  # fmt: skip

    def read_safetensors(path: str) -> dict[str, str]:
        with open(path, "rb") as file:
            found = safetensors.deserialize(file.read())
        rows = {
            f"/{name!r}": describe(short[t["dtype"]], t["shape"], bytes(t["data"]))
            for name, t in found
        }
        return {"": "dict", **rows}

    def leaf(item: Any) -> str | None:
        if callable(item) or isinstance(item, (torch.serialization.StorageType, torch.dtype)):
            return "placeholder"
        if isinstance(item, torch.storage.TypedStorage):
            item = torch.tensor([], dtype=item.dtype).set_(item)
        if not isinstance(item, torch.Tensor):
            return None
        name = str(item.dtype).removeprefix("torch.")
        if item.numel() * item.element_size() > SHOWN_NBYTES:
            return f"{name} {list(item.shape)} large"
        flat = item.detach().contiguous().reshape(-1)
        data = flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""
        return describe(name, item.shape, data)

    def read_gguf(path: str) -> dict[str, str]:
        reader = gguf.GGUFReader(path)
        metadata = {
            name: field.contents()
            for name, field in reader.fields.items()
            if not name.startswith("GGUF.")
        }
        found = flatten(metadata, lambda item: None)
        for t in reader.tensors:
            array = gguf.quants.dequantize(t.data, t.tensor_type)
            shape = [int(n) for n in reversed(t.shape)]
            found[f"tensor {t.name}"] = f"{shape} {round_floats(array.reshape(shape))}"
        return found

    def read_idx(path: str) -> dict[str, str]:
        with open(path, "rb") as file:
            data = gzip.decompress(file.read())
        count = data[3]
        shape = struct.unpack(f">{count}I", data[4 : 4 + 4 * count])
        array = np.frombuffer(data, np.uint8, offset=4 + 4 * count).reshape(shape)
        return {"": describe("uint8", array.shape, array.tobytes())}

    def bytes_of(found: dict[str, bytes]) -> dict[str, str]:
        rows = {f"/{k!r}": describe("uint8", [len(v)], v) for k, v in found.items()}
        return {"": "dict", **rows}

    def read_zip(path: str) -> dict[str, str]:
        with zipfile.ZipFile(path) as archive:
            return bytes_of(
                {i.filename: archive.read(i) for i in archive.infolist() if not i.is_dir()}
            )

    def read_tar(path: str) -> dict[str, str]:
        with tarfile.open(path) as archive:
            files = {m.name: archive.extractfile(m) for m in archive if m.isreg()}
            return bytes_of({name: file.read() for name, file in files.items() if file})

    return {
        "safetensors": read_safetensors,
        "torch": lambda path: flatten(torch.load(path, weights_only=True), leaf),
        "zip": read_zip,
        "tar": read_tar,
        "gguf": read_gguf,
        "idx": read_idx,
    }


def main() -> None:
    """Answers until its input ends."""
    warnings.simplefilter("ignore")
    used = memory("VmSize")
    resource.setrlimit(resource.RLIMIT_AS, (used + SPARE_NBYTES, used + SPARE_NBYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    mine = sys.argv[1] == "aster"
    aster = aster_readers() if mine else {}
    owner = {} if mine else owner_readers()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    before: list[str] = []
    for line in sys.stdin:
        kind, path, how = json.loads(line)
        if mine:
            answer = read_with_aster(aster[kind], kind, path, how)
            after = process_state()
            if how != "warm" and before and after != before:
                changed = [a[:200] for a, b in zip(after, before) if a != b]
                answer = ["error", "process changed", str(changed)[:500], answer[-1]]
            before = after
        else:
            try:
                answer = ["loaded", owner[kind](path)]
            except BaseException as error:
                answer = ["error", type(error).__name__, str(error)[:3000]]
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
