"""State dicts and files: each mistake, and what is said of it."""

from __future__ import annotations

import tarfile

import pytest

from aster_ml import Tensor, nn
from aster_ml.errors import ArgumentError, DTypeError, FormatError, ShapeError
from aster_ml.nn.state import (
    MissingKeyError,
    TensorIO,
    ggml_data_to_tensor,
    gguf_load,
    load_state_dict,
    safe_load,
    safe_save,
    tar_extract,
    torch_load,
    zip_extract,
)
from tests.core.errors.mistakes import Mistake, check_mistake, file_of, ones

MISTAKES: list[Mistake] = [
    (
        lambda: load_state_dict(nn.Linear(3, 4), {}),
        MissingKeyError,
        "load_state_dict: the state dict lacks weight, bias; strict=False leaves such tensors as",
    ),
    (
        lambda: load_state_dict(nn.Linear(3, 4), {"weight": ones(3, 3), "bias": ones(4)}),
        ShapeError,
        "Shape mismatch in layer `weight`: Expected shape (4, 3), but found (3, 3) in state",
    ),
    (
        lambda: load_state_dict(nn.Linear(3, 4), {0: ones(4, 3), 1: ones(4)}),
        ArgumentError,
        "load_state_dict: the state dict has the key 0, an int; names are wanted",
    ),
    (
        lambda: load_state_dict(nn.Linear(3, 4), [1, 2]),
        ArgumentError,
        "load_state_dict: the state dict is a list; a dict of tensors by name is wanted",
    ),
    (
        lambda: load_state_dict(nn.Linear(3, 4), {"weight": 3, "bias": ones(4)}),
        DTypeError,
        "load_state_dict: weight: 3 is an int; a Tensor is wanted",
    ),
    (
        lambda: safe_load("/nonexistent/file"),
        FileNotFoundError,
        "no file '/nonexistent/file' (in '/nonexistent')",
    ),
    (
        lambda: safe_load(file_of(b"")),
        FormatError,
        "is empty: it is truncated, or was never written",
    ),
    (
        lambda: safe_load(file_of(b"abc")),
        FormatError,
        "safetensors: the file has 3 bytes, the header's length alone takes 8: it is truncated,",
    ),
    (
        lambda: safe_load(file_of(b"\xff" * 16)),
        FormatError,
        "safetensors: the header claims 18446744073709551615 bytes, 8 follow its length: the",
    ),
    (
        lambda: safe_load(file_of((5).to_bytes(8, "little") + b"{]  }")),
        FormatError,
        "safetensors: the header of 5 bytes is not JSON",
    ),
    (lambda: safe_load(3), ArgumentError, "3 is an int; the name of a file is wanted"),
    (
        lambda: safe_load(ones(3)),
        ArgumentError,
        "safetensors: the file's bytes are wanted as a uint8 tensor of one axis, this one is",
    ),
    (
        lambda: safe_save({"a": 3}, file_of(b"")),
        DTypeError,
        "safetensors: a: 3 is an int; a Tensor is wanted",
    ),
    (
        lambda: safe_save([ones(3)], file_of(b"")),
        ArgumentError,
        "safetensors: a list is given; a dict of tensors by name is wanted",
    ),
    (
        lambda: safe_save({"a": ones(3)}, "/nonexistent/x"),
        FileNotFoundError,
        "no folder '/nonexistent' to write to",
    ),
    (
        lambda: safe_save({3: ones(3)}, file_of(b"")),
        FormatError,
        "safetensors: the name 3 is an int, no text",
    ),
    (
        lambda: torch_load(file_of(b"")),
        FormatError,
        "is empty: it is truncated, or was never written",
    ),
    (
        lambda: torch_load(file_of(b"hello world, this is no archive")),
        FormatError,
        "torch checkpoint: its start is damaged or of an unknown kind",
    ),
    (
        lambda: torch_load("/nonexistent/file"),
        FileNotFoundError,
        "no file '/nonexistent/file' (in '/nonexistent')",
    ),
    (
        lambda: torch_load(file_of(b"PK\x03\x04" + b"\0" * 40)),
        FormatError,
        "zip: no zip archive, or its end is missing (in 44 bytes)",
    ),
    (
        lambda: gguf_load(Tensor(b"GGUX" + b"\0" * 60)),
        FormatError,
        "gguf: the file begins with b'GGUX', b'GGUF' is wanted",
    ),
    (
        lambda: gguf_load(Tensor(b"GGUF" + (9).to_bytes(4, "little") + b"\0" * 60)),
        FormatError,
        "gguf: version 9, 2 or 3 is wanted (a big-endian file shows a huge number)",
    ),
    (
        lambda: gguf_load(Tensor(b"GG")),
        FormatError,
        "gguf: the magic number takes 4 bytes at 0, there are 2: it is truncated, or its",
    ),
    (
        lambda: gguf_load(ones(3)),
        ArgumentError,
        "gguf: the file's bytes are wanted as a uint8 tensor of one axis, this one is",
    ),
    (
        lambda: ggml_data_to_tensor(Tensor(b"\0" * 512), 256, 1337),
        FormatError,
        "ggml: ggml type 1337 is not known here; known are 0 F32, 1 F16, 2 Q4_0, 3 Q4_1, 6 Q5_0,",
    ),
    (
        lambda: tar_extract(file_of(b"no tar")),
        tarfile.ReadError,
        "tar: a header is wanted at 0, there",
    ),
    (
        lambda: tar_extract("/nonexistent/file"),
        FileNotFoundError,
        "no file '/nonexistent/file' (in '/nonexistent')",
    ),
    (
        lambda: zip_extract(file_of(b"no zip")),
        FormatError,
        "zip: no zip archive, or its end is missing (in 6 bytes)",
    ),
    (
        lambda: TensorIO(ones(2, 2)),
        ArgumentError,
        "TensorIO: the file's bytes are wanted as a uint8 tensor of one axis, this one is",
    ),
    (
        lambda: TensorIO(ones(2)),
        ArgumentError,
        "TensorIO: the file's bytes are wanted as a uint8 tensor of one axis, this one is",
    ),
    (lambda: TensorIO(3), DTypeError, "TensorIO: 3 is an int; a Tensor is wanted"),
]


@pytest.mark.parametrize("mistake", MISTAKES, ids=[m[2][:50] for m in MISTAKES])
def test_mistake(mistake: Mistake) -> None:
    check_mistake(mistake)
