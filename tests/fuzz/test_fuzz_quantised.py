"""Blocks of any bytes, and files of any metadata: decoded and read back as the gguf package does.

A case draws a type, rows of some blocks (none, one, odd counts), rows picked of them, and numbers
to quantise; or a tree of metadata values, which is written, read, and written again.
"""

from __future__ import annotations

import pathlib
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from aster_ml import Tensor
from aster_ml.formats.ggml.blocks import NAMED
from aster_ml.formats.gguf.values import NUMBERS
from aster_ml.nn.state import QuantTensor, ggml_quantize, gguf_load, gguf_save
from tests.fuzz.budget import check_all, draws

QUANTISED = [row.name for row in NAMED.values() if row.elements > 1]


def judge_blocks(seed: int) -> str | None:
    """What is wrong with how blocks of one type are decoded, or their rows."""
    from gguf import GGMLQuantizationType, quants

    rng, bits = random.Random(seed), np.random.default_rng(seed)
    name = QUANTISED[seed % len(QUANTISED)]
    rows = [rng.choice([0, 1, 1, 2, 3, 5]) for _ in range(rng.randrange(3))]
    shape = (*rows, rng.choice([1, 1, 2, 3, 7]), NAMED[name].nbytes)
    data = bits.integers(0, 256, shape).astype(np.uint8)
    t = QuantTensor(name, Tensor(data))
    flat = np.zeros(0, np.float32)
    if 0 not in shape:
        with np.errstate(all="ignore"):
            flat = quants.dequantize(data.reshape(-1, shape[-1]), GGMLQuantizationType[name])
    want = flat.reshape(t.shape)
    if rows and rows[0] and rng.random() < 0.5:
        index = [rng.randrange(rows[0]) for _ in range(rng.choice([1, 3]))]
        t, want = t[index], want[index]
    got = t.dequantize().numpy()
    same = (got.view(np.uint32) == want.view(np.uint32)) | (np.isnan(got) & np.isnan(want))
    if got.shape != want.shape or not same.all():
        return f"{name} {list(shape)}: {int((~same).sum())} of {same.size} numbers differ"
    return None


def judge_quantising(seed: int) -> str | None:
    """What is wrong with the bytes of quantised numbers."""
    from gguf import GGMLQuantizationType, quants

    bits = np.random.default_rng(seed)
    name = ["Q8_0", "Q4_0", "Q4_1"][seed % 3]
    shape = (int(bits.integers(1, 6)), 32 * int(bits.integers(1, 6)))
    x = bits.standard_normal(shape) * 10.0 ** bits.integers(-3, 4, (shape[0], 1))
    if seed % 2:
        # Ties. Of zeros of both signs either is the least, so there is one of them only.
        x = np.round(x * 2) / 2 + 0.0
    x = x.astype(np.float32)
    want = quants.quantize(x, GGMLQuantizationType[name]).reshape(-1)
    got = ggml_quantize(Tensor(x), name).blocks.numpy().reshape(-1)
    if not np.array_equal(got, want):
        return f"{name} {list(shape)}: {int((got != want).sum())} of {want.size} bytes differ"
    return None


def random_value(rng: random.Random, depth: int = 0) -> Any:
    """A value of any type."""
    way = rng.randrange(6 if depth < 3 else 4)
    if way <= 1:
        name = rng.choice(list(NUMBERS))
        count = rng.choice([0, 1, 2, 300])
        array = np.frombuffer(rng.randbytes(8 * (count + 1)), np.uint8)
        if name == "bool":
            return np.array(array[:count] & 1, bool)
        found = np.nan_to_num(array.view(name)[: count + 1])
        return found[:count] if way else found[0]
    if way == 2:
        return rng.choice(["", "grüße", "x" * 300, b"bytes", True, 0, -5, 2**40, 1.5])
    if way == 3:
        return [rng.choice(["a", "ü", ""]) for _ in range(rng.randrange(1, 9))]
    return [[random_value(rng, 9)] for _ in range(rng.randrange(1, 4))]


def plain(value: Any) -> Any:
    """As it is read."""
    if isinstance(value, (np.ndarray, np.generic)):
        return value.tolist()
    if isinstance(value, list):
        return [plain(item) for item in value]
    return value.decode() if isinstance(value, bytes) else value


def judge_metadata(folder: pathlib.Path, seed: int) -> str | None:
    """What is wrong with metadata that are written and read."""
    rng = random.Random(seed)
    given = {f"key.{i}": random_value(rng) for i in range(rng.randrange(8))}
    gguf_save({}, folder / "a.gguf", given)
    metadata, _ = gguf_load(folder / "a.gguf")
    for key, value in given.items():
        if metadata[key] != plain(value):
            return f"{value!r:.200} is read as {metadata[key]!r:.200}"
    gguf_save({}, folder / "b.gguf", metadata)
    if (folder / "a.gguf").read_bytes() != (folder / "b.gguf").read_bytes():
        return f"another file the second time: {metadata.types}"
    return None


def test_blocks_of_any_bytes(record_property: Callable[[str, str], None]) -> None:
    pytest.importorskip("gguf")
    check_all("blocks of any bytes", draws(46, 6900), judge_blocks, record_property)


def test_quantised_numbers(record_property: Callable[[str, str], None]) -> None:
    pytest.importorskip("gguf")
    check_all("quantised numbers", draws(30, 3000), judge_quantising, record_property)


def test_metadata_of_any_kind(
    tmp_path: pathlib.Path, record_property: Callable[[str, str], None]
) -> None:
    check_all(
        "metadata of any kind",
        draws(200, 20000),
        lambda seed: judge_metadata(tmp_path, seed),
        record_property,
    )
