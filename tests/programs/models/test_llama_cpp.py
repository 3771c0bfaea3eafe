"""llama.cpp itself, of the package xllamacpp: it reads what is written here, and quantises beside.

The package's library is called through `ctypes`, as its Python part has no such functions.
"""

from __future__ import annotations

import ctypes
import importlib.util
import pathlib
from typing import Any

import numpy as np
import pytest

from aster_ml import Tensor
from aster_ml.nn.state import QuantTensor, ggml_quantize, gguf_save
from tests.library.formats.test_ggml_quantise import REFERENCE, odd_values, values
from tests.library.formats.test_gguf_save import EVERY_TYPE, WRITTEN

pytestmark = pytest.mark.slow
# Scalars of `EVERY_TYPE` and the results of llama.cpp's functions for them.
NUMBERS = {
    "u8": ctypes.c_uint8, "i8": ctypes.c_int8, "u16": ctypes.c_uint16, "i16": ctypes.c_int16,
    "u32": ctypes.c_uint32, "i32": ctypes.c_int32, "f32": ctypes.c_float, "u64": ctypes.c_uint64,
    "i64": ctypes.c_int64, "f64": ctypes.c_double,
}  # fmt: skip


class InitParams(ctypes.Structure):
    """How a file is opened."""

    _fields_ = [("no_alloc", ctypes.c_bool), ("context", ctypes.c_void_p)]


@pytest.fixture(scope="module")
def llama() -> ctypes.CDLL:
    """llama.cpp's library."""
    found = importlib.util.find_spec("xllamacpp")
    if found is None or found.origin is None:
        pytest.skip("the package xllamacpp is absent")
    library = ctypes.CDLL(str(next(pathlib.Path(found.origin).parent.glob("*.so"))))
    pointer, name, number = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int64
    for function, result, arguments in [
        ("gguf_init_from_file", pointer, [name, InitParams]),
        ("gguf_free", None, [pointer]),
        ("gguf_get_n_kv", number, [pointer]),
        ("gguf_get_n_tensors", number, [pointer]),
        ("gguf_find_key", number, [pointer, name]),
        ("gguf_get_val_str", name, [pointer, number]),
        ("gguf_get_val_bool", ctypes.c_bool, [pointer, number]),
        *[(f"gguf_get_val_{key}", kind, [pointer, number]) for key, kind in NUMBERS.items()],
        ("gguf_get_tensor_name", name, [pointer, number]),
        ("gguf_get_tensor_type", ctypes.c_int, [pointer, number]),
        ("gguf_get_tensor_offset", ctypes.c_size_t, [pointer, number]),
        ("gguf_get_tensor_size", ctypes.c_size_t, [pointer, number]),
        ("gguf_get_data_offset", ctypes.c_size_t, [pointer]),
        (
            "ggml_quantize_chunk",
            ctypes.c_size_t,
            [ctypes.c_int, pointer, pointer, number, number, number, pointer],
        ),
    ]:
        getattr(library, function).restype = result
        getattr(library, function).argtypes = arguments
    return library


def test_llama_cpp_reads_metadata_and_tensors(llama: ctypes.CDLL, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "x.gguf"
    tensors: dict[str, Any] = {n: ggml_quantize(Tensor.randn(3, 512), n) for n in WRITTEN}
    # It reads no arrays of arrays.
    metadata = {k: v for k, v in EVERY_TYPE.items() if k not in ("square", "nested")}
    gguf_save(tensors, path, metadata)
    file = llama.gguf_init_from_file(bytes(path), InitParams(True, None))
    assert file
    try:
        assert llama.gguf_get_n_kv(file) == len(metadata)
        for key in NUMBERS:
            read = getattr(llama, f"gguf_get_val_{key}")(
                file, llama.gguf_find_key(file, key.encode())
            )
            assert read == metadata[key].item(), key
        assert llama.gguf_get_val_bool(file, llama.gguf_find_key(file, b"flag"))
        assert llama.gguf_get_val_str(file, llama.gguf_find_key(file, b"text")).decode() == "grüße"
        assert llama.gguf_get_n_tensors(file) == len(tensors)
        data = path.read_bytes()[llama.gguf_get_data_offset(file) :]
        for i, (name, t) in enumerate(tensors.items()):
            assert llama.gguf_get_tensor_name(file, i).decode() == name
            assert llama.gguf_get_tensor_type(file, i) == t.format.kind
            begin, size = llama.gguf_get_tensor_offset(file, i), llama.gguf_get_tensor_size(file, i)
            assert data[begin : begin + size] == t.blocks.numpy().tobytes()
    finally:
        llama.gguf_free(file)


def quantised_by(llama: ctypes.CDLL, x: np.ndarray, mine: QuantTensor) -> QuantTensor:
    """The same values as llama.cpp quantises them."""
    blocks = np.zeros(mine.blocks.shape, np.uint8)
    kind, rows = mine.format.kind, x.size // x.shape[-1]
    to = ctypes.c_void_p(blocks.ctypes.data)
    source = ctypes.c_void_p(x.ctypes.data)
    size = llama.ggml_quantize_chunk(kind, source, to, 0, rows, x.shape[-1], None)
    assert size == blocks.size
    return QuantTensor(mine.type, Tensor(blocks))


@pytest.mark.parametrize("name", ["Q8_0", "Q4_0", "Q4_1"])
def test_the_same_bytes_as_llama_cpp(llama: ctypes.CDLL, name: str) -> None:
    for x in (odd_values(), values("normal", 64, 512), values("uniform", 3, 32)):
        mine = ggml_quantize(Tensor(x), name)
        want = quantised_by(llama, x, mine).blocks.numpy()
        np.testing.assert_array_equal(mine.blocks.numpy(), want)


@pytest.mark.parametrize(("name", "kind"), REFERENCE)
def test_no_larger_an_error_than_llama_cpp(llama: ctypes.CDLL, name: str, kind: str) -> None:
    x = values(kind, 64, 512)
    mine = ggml_quantize(Tensor(x), name)
    errors = [
        float(np.sqrt(np.mean((t.dequantize().numpy().astype(np.float64) - x) ** 2)))
        for t in (mine, quantised_by(llama, x, mine))
    ]
    assert errors[0] <= errors[1]
    # The bound that holds where llama.cpp is not installed is its own error.
    assert abs(errors[1] / x.std() / REFERENCE[name, kind] - 1) < 0.01
