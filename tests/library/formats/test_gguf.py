"""GGUF: blocks read by loops over the published layouts, and files written here by hand."""

from __future__ import annotations

import pathlib
import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from aster_ml import Tensor, dtypes
from aster_ml.allocator import MEMORY
from aster_ml.errors import ArgumentError, FormatError
from aster_ml.formats.ggml.blocks import FORMATS
from aster_ml.nn.state import ggml_data_to_tensor, gguf_load

F32, F16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0 = 0, 1, 2, 3, 6, 7, 8
Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, BF16, MXFP4 = 10, 11, 12, 13, 14, 30, 39
EMPTY_ARRAY = struct.pack("<IQ", 4, 0)
E2M1 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]


def half(b: bytes, at: int) -> float:
    """The float16 at a byte."""
    return float(np.frombuffer(b, np.float16, 1, at)[0])


def signed(value: int) -> int:
    """A byte in two's complement."""
    return value - 256 if value > 127 else value


def loop_q4_0(b: bytes) -> list[float]:
    """Element j and j + 16 share a byte."""
    low = [(q & 15) - 8 for q in b[2:18]]
    return [half(b, 0) * q for q in low + [(q >> 4) - 8 for q in b[2:18]]]


def loop_q4_1(b: bytes) -> list[float]:
    """As Q4_0, with a minimum."""
    qs = [q & 15 for q in b[4:20]] + [q >> 4 for q in b[4:20]]
    return [half(b, 0) * q + half(b, 2) for q in qs]


def loop_q5_0(b: bytes) -> list[float]:
    """The fifth bit of element j is bit j of a 32-bit number."""
    high = struct.unpack("<I", b[2:6])[0]
    low = [q & 15 for q in b[6:22]] + [q >> 4 for q in b[6:22]]
    return [half(b, 0) * ((q | (high >> j & 1) << 4) - 16) for j, q in enumerate(low)]


def loop_q5_1(b: bytes) -> list[float]:
    """As Q5_0, with a minimum."""
    high = struct.unpack("<I", b[4:8])[0]
    low = [q & 15 for q in b[8:24]] + [q >> 4 for q in b[8:24]]
    return [half(b, 0) * (q | (high >> j & 1) << 4) + half(b, 2) for j, q in enumerate(low)]


def loop_q8_0(b: bytes) -> list[float]:
    """A scale and signed bytes."""
    return [half(b, 0) * signed(q) for q in b[2:34]]


def scale_and_minimum(s: bytes, j: int) -> tuple[int, int]:
    """The j-th 6-bit pair of 12 bytes."""
    if j < 4:
        return s[j] & 63, s[j + 4] & 63
    return (s[j + 4] & 15) | (s[j - 4] >> 6) << 4, (s[j + 4] >> 4) | (s[j] >> 6) << 4


def loop_q4_k(b: bytes) -> list[float]:
    """Eight groups of 32; groups 2i and 2i + 1 are the nibbles of one run of 32 bytes."""
    result = []
    for group in range(8):
        scale, minimum = scale_and_minimum(b[4:16], group)
        for j in range(32):
            q = b[16 + group // 2 * 32 + j] >> 4 * (group % 2) & 15
            result.append(half(b, 0) * scale * q - half(b, 2) * minimum)
    return result


def loop_q5_k(b: bytes) -> list[float]:
    """As Q4_K; the fifth bit of element j of group g is bit g of byte j."""
    result = []
    for group in range(8):
        scale, minimum = scale_and_minimum(b[4:16], group)
        for j in range(32):
            q = b[48 + group // 2 * 32 + j] >> 4 * (group % 2) & 15
            q += 16 * (b[16 + j] >> group & 1)
            result.append(half(b, 0) * scale * q - half(b, 2) * minimum)
    return result


def loop_q2_k(b: bytes) -> list[float]:
    """Two halves of 128: four shifts over 32 bytes, a scale for every 16 elements."""
    result = []
    for i in range(256):
        part, shift, j = i // 128, i % 128 // 32, i % 32
        q = b[16 + part * 32 + j] >> 2 * shift & 3
        scale = b[i // 16]
        result.append(half(b, 80) * (scale & 15) * q - half(b, 82) * (scale >> 4))
    return result


def loop_q3_k(b: bytes) -> list[float]:
    """As Q2_K with a third bit, whose absence takes 4 off, and 6-bit scales less 32."""
    packed, result = b[96:108], []
    for i in range(256):
        part, shift, j, group = i // 128, i % 128 // 32, i % 32, i // 16
        q = b[32 + part * 32 + j] >> 2 * shift & 3
        q -= 0 if b[j] >> (part * 4 + shift) & 1 else 4
        low = packed[group] & 15 if group < 8 else packed[group - 8] >> 4
        high = packed[8 + group % 4] >> 2 * (group // 4) & 3
        result.append(half(b, 108) * ((low | high << 4) - 32) * q)
    return result


def loop_q6_k(b: bytes) -> list[float]:
    """Two halves of 128, each of four runs of 32."""
    result = []
    for i in range(256):
        part, run, j = i // 128, i % 128 // 32, i % 32
        low = b[part * 64 + run % 2 * 32 + j] >> 4 * (run // 2) & 15
        high = b[128 + part * 32 + j] >> 2 * run & 3
        result.append(half(b, 208) * signed(b[192 + i // 16]) * ((low | high << 4) - 32))
    return result


def loop_mxfp4(b: bytes) -> list[float]:
    """A power of two and E2M1 nibbles."""
    qs = [q & 15 for q in b[1:17]] + [q >> 4 for q in b[1:17]]
    return [(-1 if q & 8 else 1) * E2M1[q & 7] * 2.0 ** (b[0] - 127) for q in qs]


LOOPS: dict[int, Callable[[bytes], list[float]]] = {
    Q4_0: loop_q4_0,
    Q4_1: loop_q4_1,
    Q5_0: loop_q5_0,
    Q5_1: loop_q5_1,
    Q8_0: loop_q8_0,
    Q2_K: loop_q2_k,
    Q3_K: loop_q3_k,
    Q4_K: loop_q4_k,
    Q5_K: loop_q5_k,
    Q6_K: loop_q6_k,
    MXFP4: loop_mxfp4,
}
# Where a block has its float16 numbers: random bytes there could be infinite.
HALVES = {
    Q4_0: [0], Q4_1: [0, 2], Q5_0: [0], Q5_1: [0, 2], Q8_0: [0], Q2_K: [80, 82], Q3_K: [108],
    Q4_K: [0, 2], Q5_K: [0, 2], Q6_K: [208], MXFP4: [],
}  # fmt: skip


def random_blocks(kind: int, count: int) -> bytes:
    """Blocks of random bytes with sensible scales."""
    row = FORMATS[kind]
    blocks = np.random.randint(0, 256, (count, row.nbytes)).astype(np.uint8)
    for at in HALVES[kind]:
        scales = np.random.uniform(-2, 2, count).astype(np.float16)
        blocks[:, at : at + 2] = scales.view(np.uint8).reshape(count, 2)
    if kind == MXFP4:
        blocks[:, 0] = np.random.randint(120, 135, count)
    return blocks.tobytes()


def by_loops(kind: int, data: bytes) -> np.ndarray:
    """All elements, block after block."""
    nbytes = FORMATS[kind].nbytes
    blocks = [data[i : i + nbytes] for i in range(0, len(data), nbytes)]
    return np.array([value for block in blocks for value in LOOPS[kind](block)], np.float32)


@pytest.mark.parametrize("kind", LOOPS, ids=[FORMATS[kind].name for kind in LOOPS])
def test_blocks_are_read_as_published(kind: int) -> None:
    data = random_blocks(kind, 5)
    count = 5 * FORMATS[kind].elements
    got = ggml_data_to_tensor(Tensor(data), count, kind)
    assert got.dtype == dtypes.float32
    np.testing.assert_allclose(got.numpy(), by_loops(kind, data), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("exponent", [0, 1, 2, 127, 252])
def test_mxfp4_scales_to_the_ends_of_their_range(exponent: int) -> None:
    data = bytes([exponent]) + bytes(range(0x10, 0x20))
    got = ggml_data_to_tensor(Tensor(data), 32, MXFP4).numpy()
    want = np.array(loop_mxfp4(data)).astype(np.float32)
    # Hardware may flush what is below float32's normal range to zero.
    normal = np.abs(want) >= np.finfo(np.float32).tiny
    np.testing.assert_array_equal(got[normal], want[normal])


@pytest.mark.parametrize(
    ("kind", "numpy_type"), [(F32, np.float32), (F16, np.float16), (24, np.int8), (27, np.int64)]
)
def test_plain_kinds_keep_their_dtype(kind: int, numpy_type: Any) -> None:
    array = np.arange(-4, 8).astype(numpy_type)
    got = ggml_data_to_tensor(Tensor(array.tobytes()), 12, kind).numpy()
    assert got.dtype == array.dtype
    np.testing.assert_array_equal(got, array)


def test_only_the_first_elements_are_taken() -> None:
    data = random_blocks(Q8_0, 3)
    got = ggml_data_to_tensor(Tensor(data), 32, Q8_0)
    np.testing.assert_allclose(got.numpy(), by_loops(Q8_0, data)[:32], rtol=1e-6)


@pytest.mark.parametrize(
    ("count", "kind", "error", "message"),
    [
        (32, 4, FormatError, r"ggml type 4 is not known here; known are 0 F32, 1 F16"),
        (33, Q8_0, ArgumentError, "n=33 elements, Q8_0 comes in blocks of 32"),
        (64, Q8_0, ArgumentError, "64 elements of Q8_0 take 68 bytes, t has 34"),
    ],
)
def test_wrong_sizes_and_kinds_are_named(
    count: int, kind: int, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        ggml_data_to_tensor(Tensor(b"\0" * 34), count, kind)


def string(text: str) -> bytes:
    """A string as GGUF writes it."""
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def gguf_file(
    values: list[tuple[str, int, bytes]],
    tensors: list[tuple[str, tuple[int, ...], int, bytes]],
    alignment: int = 32,
    version: int = 3,
) -> bytes:
    """A GGUF file: metadata as (key, type, packed), tensors as (name, shape, kind, data)."""
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(values))
    head += b"".join(string(key) + struct.pack("<I", kind) + raw for key, kind, raw in values)
    data = b""
    for name, shape, kind, raw in tensors:
        data += b"\0" * (-len(data) % alignment)
        head += string(name) + struct.pack("<I", len(shape))
        head += struct.pack(f"<{len(shape)}Q", *reversed(shape)) + struct.pack(
            "<IQ", kind, len(data)
        )
        data += raw
    return head + b"\0" * (-len(head) % alignment) + data


def small_file() -> tuple[bytes, dict[str, np.ndarray]]:
    """A file with every kind of metadata and three tensors, and the tensors' values."""
    plain = np.arange(6, dtype=np.float32).reshape(2, 3)
    q8, q6 = random_blocks(Q8_0, 4), random_blocks(Q6_K, 2)
    values = [
        ("u8", 0, b"\xff"),
        ("i8", 1, b"\xff"),
        ("u16", 2, struct.pack("<H", 65535)),
        ("i16", 3, struct.pack("<h", -2)),
        ("u32", 4, struct.pack("<I", 2**32 - 1)),
        ("i32", 5, struct.pack("<i", -3)),
        ("f32", 6, struct.pack("<f", 1.5)),
        ("flag", 7, b"\1"),
        ("text", 8, string("grüße")),
        ("list", 9, struct.pack("<IQ3i", 5, 3, 1, -2, 3)),
        ("words", 9, struct.pack("<IQ", 8, 2) + string("a") + string("bc")),
        ("nested", 9, struct.pack("<IQ", 9, 1) + struct.pack("<IQ2B", 0, 2, 7, 8)),
        ("u64", 10, struct.pack("<Q", 2**63)),
        ("i64", 11, struct.pack("<q", -(2**40))),
        ("f64", 12, struct.pack("<d", 0.1)),
    ]
    tensors = [
        ("plain", (2, 3), F32, plain.tobytes()),
        ("q8", (4, 32), Q8_0, q8),
        ("q6", (2, 256), Q6_K, q6),
    ]
    want = {
        "plain": plain,
        "q8": by_loops(Q8_0, q8).reshape(4, 32),
        "q6": by_loops(Q6_K, q6).reshape(2, 256),
    }
    return gguf_file(values, tensors), want


@pytest.mark.parametrize("how", ["read", "mapped", "memory"])
def test_a_whole_file(tmp_path: pathlib.Path, how: str) -> None:
    raw, want = small_file()
    path = tmp_path / "x.gguf"
    path.write_bytes(raw)
    given = Tensor(raw) if how == "memory" else path
    metadata, tensors = gguf_load(given, mapped=how == "mapped")
    assert metadata == {
        "u8": 255,
        "i8": -1,
        "u16": 65535,
        "i16": -2,
        "u32": 2**32 - 1,
        "i32": -3,
        "f32": 1.5,
        "flag": True,
        "text": "grüße",
        "list": [1, -2, 3],
        "words": ["a", "bc"],
        "nested": [[7, 8]],
        "u64": 2**63,
        "i64": -(2**40),
        "f64": 0.1,
    }
    assert tensors.keys() == want.keys()
    for name, array in want.items():
        assert tensors[name].shape == array.shape
        got = tensors[name].to("CPU").numpy()
        np.testing.assert_allclose(got, array, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("alignment", [1, 2, 64])
def test_mapped_tensors_lie_where_they_lie(tmp_path: pathlib.Path, alignment: int) -> None:
    blocks = random_blocks(Q8_0, 3)
    raw = gguf_file(
        [("general.alignment", 4, struct.pack("<I", alignment)), ("k", 0, b"\7")],
        [
            ("bytes", (3,), 24, b"\1\2\3"),
            ("f32", (2,), F32, struct.pack("<2f", 1.5, -2)),
            ("q8", (3, 32), Q8_0, blocks),
        ],
        alignment=alignment,
    )
    path = tmp_path / "x.gguf"
    path.write_bytes(raw)
    before = MEMORY.in_use("CPU")
    _, tensors = gguf_load(path, raw=True, mapped=True)
    assert MEMORY.in_use("CPU") == before
    assert tensors["q8"].device == "CPU"
    # Each is memory of its own, as far as kernels know, and none of it can be written.
    memory = [t.blocks._memory() for t in tensors.values()]
    assert [b.nbytes for b in memory] == [3, 8, 102]
    assert all([b.base is b and b.is_readonly() for b in memory])
    assert tensors["bytes"].dequantize().tolist() == [1, 2, 3]
    assert tensors["f32"].dequantize().tolist() == [1.5, -2]
    want = by_loops(Q8_0, blocks).reshape(3, 32)
    np.testing.assert_allclose(tensors["q8"].dequantize().numpy(), want, rtol=1e-5)
    x = np.arange(32, dtype=np.float32)
    found = Tensor(x) @ tensors["q8"].dequantize().T
    np.testing.assert_allclose(found.numpy(), want @ x, rtol=1e-4)


def test_a_mapped_file_that_is_damaged_has_its_name(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(small_file()[0][:-1])
    with pytest.raises(FormatError, match="it is truncated") as found:
        gguf_load(path, mapped=True)
    assert found.value.path == str(path)
    with pytest.raises(ArgumentError, match="mapped is for a file"):
        gguf_load(Tensor(small_file()[0]), mapped=True)


def test_alignment_of_the_file_is_used() -> None:
    raw = gguf_file(
        [("general.alignment", 4, struct.pack("<I", 64))],
        [("a", (1,), F32, b"\0\0\x80\x3f"), ("b", (1,), F32, b"\0\0\0\x40")],
        alignment=64,
    )
    _, tensors = gguf_load(Tensor(raw))
    assert tensors["a"].tolist() == [1.0]
    assert tensors["b"].tolist() == [2.0]


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"GGML" + b"\0" * 40, r"begins with b'GGML', b'GGUF' is wanted"),
        (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), r"version 1, 2 or 3 is wanted"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), r"version 50331648.*big-endian"),
        (b"GGUF" + struct.pack("<IQ", 3, 0), r"count of metadata values takes 8 bytes at 16"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 2**60), r"key 0 of 1 takes 1152921504606846976"),
        (gguf_file([("k", 13, b"")], []), r"'k' has the unknown type 13"),
        (gguf_file([("k", 9, struct.pack("<IQ", 8, 2**50))], []), r"'k' claims 1125899906842624"),
        (gguf_file([("general.alignment", 4, b"\0" * 4)], []), r"general.alignment is 0"),
        (
            gguf_file(
                [("k", 9, struct.pack("<IQ", 9, 70_000) + struct.pack("<IQ", 4, 0) * 70_000)], []
            ),
            r"'k' has 70000 arrays in an array; a file has at most 65536",
        ),
        (gguf_file([], [("w", (5,), 99, b"")]), r"tensor 'w': ggml type 99 is not known here"),
        (gguf_file([], [("w", (5,), Q8_0, b"")]), r"'w': shape \[5\] has 5 elements, Q8_0"),
        (gguf_file([], [("w", (5,), F32, b"\0" * 19)]), r"tensor 'w': .* needs bytes \d+ to \d+"),
        (gguf_file([], [("w", (1,), F32, b"\0" * 4)] * 2), r"two tensors are named 'w'"),
        (gguf_file([], [("w", (1,) * 9, F32, b"\0" * 4)]), r"'w' claims 9 axes"),
    ],
)
def test_damaged_files_say_what_is_wrong(raw: bytes, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        gguf_load(Tensor(raw))
