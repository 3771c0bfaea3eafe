"""Quantised values by type and blocks: what `gguf_load(..., raw=True)` gives."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import pytest

from aster_ml import Tensor, dtypes
from aster_ml.errors import ArgumentError
from aster_ml.formats.ggml.blocks import FORMATS, NAMED
from aster_ml.nn.state import QuantTensor, get_state_dict, gguf_load
from tests.library.formats.test_gguf import gguf_file

QUANTISED = [row.name for row in FORMATS.values() if row.elements > 1]


def random_bytes(name: str, *rows: int) -> np.ndarray:
    """Blocks of any bytes."""
    return np.random.randint(0, 256, (*rows, NAMED[name].nbytes)).astype(np.uint8)


def same_bits(got: np.ndarray, want: np.ndarray) -> bool:
    """Whether all numbers have the same bits; any NaN is any other."""
    assert got.dtype == want.dtype == np.float32
    equal = (got.view(np.uint32) == want.view(np.uint32)) | (np.isnan(got) & np.isnan(want))
    return got.shape == want.shape and bool(equal.all())


@pytest.mark.parametrize("name", QUANTISED)
def test_every_type_decodes_to_the_bits_of_the_gguf_package(name: str) -> None:
    quants = pytest.importorskip("gguf.quants")
    constants = pytest.importorskip("gguf.constants")
    kind = constants.GGMLQuantizationType[name]
    assert kind == NAMED[name].kind
    assert constants.GGML_QUANT_SIZES[kind] == (NAMED[name].elements, NAMED[name].nbytes)
    data = random_bytes(name, 7, 3)
    with np.errstate(all="ignore"):
        want = quants.dequantize(data.reshape(7, -1), kind)
    assert same_bits(QuantTensor(name, Tensor(data)).dequantize().numpy(), want)


def test_every_scale_byte_of_mxfp4_and_nvfp4() -> None:
    quants = pytest.importorskip("gguf.quants")
    kinds = pytest.importorskip("gguf.constants").GGMLQuantizationType
    for name, scales in (("MXFP4", 1), ("NVFP4", 4)):
        data = random_bytes(name, 256)
        data[:, :scales] = np.arange(256)[:, None]
        data[:, scales:] = np.resize(np.arange(0, 256, 17), 16 * (2 if scales == 4 else 1))
        with np.errstate(all="ignore"):
            want = quants.dequantize(data, kinds[name]).reshape(256, -1)
        got = QuantTensor(name, Tensor(data).reshape(256, 1, -1)).dequantize().numpy()
        assert same_bits(got, want)


def test_raw_values_of_a_file(tmp_path: pathlib.Path) -> None:
    q8, iq4 = random_bytes("Q8_0", 3, 2), random_bytes("IQ4_NL", 5, 1)
    plain = np.arange(6, dtype=np.float16).reshape(2, 3)
    raw = gguf_file(
        [],
        [
            ("a", (3, 64), NAMED["Q8_0"].kind, q8.tobytes()),
            ("b", (5, 1, 32), NAMED["IQ4_NL"].kind, iq4.tobytes()),
            ("c", (2, 3), NAMED["F16"].kind, plain.tobytes()),
            ("d", (), NAMED["F32"].kind, np.float32(2.5).tobytes()),
        ],
    )
    (tmp_path / "x.gguf").write_bytes(raw)
    for source in (str(tmp_path / "x.gguf"), Tensor(raw)):
        _, found = gguf_load(source, raw=True)
        _, values = gguf_load(source)
        types = {name: (t.type, t.shape, t.nbytes()) for name, t in found.items()}
        assert types == {
            "a": ("Q8_0", (3, 64), 204),
            "b": ("IQ4_NL", (5, 1, 32), 90),
            "c": ("F16", (2, 3), 12),
            "d": ("F32", (), 4),
        }
        np.testing.assert_array_equal(found["a"].blocks.numpy(), q8)
        for name, t in found.items():
            assert t.dequantize().dtype == values[name].dtype
            np.testing.assert_array_equal(t.dequantize().numpy(), values[name].numpy())
    np.testing.assert_array_equal(found["c"].dequantize().numpy(), plain)
    assert found["d"].dequantize().item() == 2.5


@pytest.mark.parametrize(
    "index",
    [2, slice(1, 6, 2), [3, 3, 0], (slice(None), 1), (4, slice(0, 2)), slice(2, 2)],
    ids=str,
)
@pytest.mark.parametrize("name", ["Q8_0", "Q6_K", "IQ4_XS", "F32"])
def test_rows_are_picked_packed(name: str, index: Any) -> None:
    found = QuantTensor(name, Tensor(random_bytes(name, 7, 3, 2)))
    with np.errstate(all="ignore"):
        want = found.dequantize().numpy()[index]
    rows = found[index]
    assert rows.type == name
    assert rows.shape == want.shape
    np.testing.assert_array_equal(rows.dequantize().numpy(), want)


def test_rows_by_a_tensor_of_a_file(tmp_path: pathlib.Path) -> None:
    data = random_bytes("Q4_0", 9, 2)
    data[..., 1] = 60
    (tmp_path / "x.gguf").write_bytes(gguf_file([], [("e", (9, 64), 2, data.tobytes())]))
    _, found = gguf_load(tmp_path / "x.gguf", raw=True)
    table = found["e"].to(None)
    tokens = Tensor([[4, 0], [8, 4]])
    want = table.dequantize().numpy()[tokens.numpy()]
    np.testing.assert_array_equal(table[tokens].dequantize().numpy(), want)


def test_blocks_are_state_of_a_model() -> None:
    class Model:
        def __init__(self) -> None:
            self.weight = QuantTensor("Q8_0", Tensor(random_bytes("Q8_0", 2, 1)))

    assert list(get_state_dict(Model())) == ["weight.blocks"]


def test_reading_and_moving() -> None:
    found = QuantTensor("Q4_1", Tensor(random_bytes("Q4_1", 2, 3)))
    assert repr(found) == f"<QuantTensor Q4_1 [2, 96] on {found.device}>"
    assert found.realize() is found
    assert found.to("CPU:1").device == "CPU:1"
    np.testing.assert_array_equal(found.to("CPU:1").blocks.numpy(), found.blocks.numpy())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: QuantTensor("Q9_9", Tensor([0])), "'Q9_9' is no type known here; known are F32"),
        (
            lambda: QuantTensor("Q8_0", Tensor.zeros(2, 34)),
            r"blocks are dtypes.float32 \[2, 34\]; those of Q8_0 are wanted as uint8 "
            r"\[\*rows, blocks, 34\], 32 elements a block",
        ),
        (
            lambda: QuantTensor("Q8_0", Tensor.zeros(2, 33, dtype=dtypes.uint8)),
            r"blocks are dtypes.uint8 \[2, 33\]",
        ),
        (
            lambda: QuantTensor("Q8_0", Tensor.zeros(34, dtype=dtypes.uint8)),
            r"blocks are dtypes.uint8 \[34\]",
        ),
        (
            lambda: QuantTensor("Q8_0", Tensor.zeros(2, 2, 34, dtype=dtypes.uint8))[:, 0],
            r"QuantTensor \[2, 64\]: the index reaches the last axis, where Q8_0 has blocks of 32",
        ),
        (
            lambda: QuantTensor("Q8_0", Tensor.zeros(2, 2, 34, dtype=dtypes.uint8))[..., 0],
            r"QuantTensor \[2, 64\]: the index reaches the last axis, where Q8_0 has blocks of 32",
        ),
        (
            lambda: QuantTensor("Q8_0", Tensor.zeros(2, 34, dtype=dtypes.uint8))[0],
            r"QuantTensor \[64\]: the index reaches the last axis, where Q8_0 has blocks of 32",
        ),
    ],
)
def test_mistakes(make: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        make()
