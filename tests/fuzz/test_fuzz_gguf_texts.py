"""Lists of texts in GGUF files, read many at once, against the texts that were written.

Texts have what makes reading at once hard: none of them, zeros, bytes that are no UTF-8, characters
cut in two, and lengths of a byte and more; chunks end anywhere in them.
"""

from __future__ import annotations

import random
import struct
from typing import Any

import numpy as np
import pytest

from aster_ml import Tensor
from aster_ml.formats import fileio
from aster_ml.formats.gguf.reader import texts_of
from aster_ml.nn.state import gguf_load
from tests.fuzz.budget import check_all, draws

LETTERS = [
    b"a",
    b"b",
    "é".encode(),
    "日".encode(),
    "😀".encode(),
    b"\0",
    b"\0" * 8,
    b"\xff",
    b"\xe6",
]
LENGTHS = [0, 1, 2, 3, 7, 8, 9, 17, 127, 255, 256, 257, 300]


def drawn(rng: random.Random) -> list[bytes]:
    """Some texts of a few kinds of letters."""
    letters = rng.sample(LETTERS, rng.randint(1, 4)) if rng.random() < 0.7 else LETTERS[:5]
    lengths = rng.sample(LENGTHS, rng.randint(1, 4)) if rng.random() < 0.7 else [1, 2, 3, 7]
    count = rng.choice([0, 1, 2, 3, 31, 64, 200])
    return [
        b"".join(rng.choices(letters, k=length))[:length]
        for length in rng.choices(lengths, k=count)
    ]


def test_texts_are_read_as_they_were_written(
    monkeypatch: pytest.MonkeyPatch, record_property: Any
) -> None:
    def check(seed: int) -> str | None:
        rng = random.Random(seed)
        texts = drawn(rng)
        monkeypatch.setattr(fileio, "CHUNK_NBYTES", rng.choice([1, 9, 64, 257, 1 << 18]))
        raw = b"".join([struct.pack("<Q", len(text)) + text for text in texts])
        head = struct.pack("<4sIQQQ", b"GGUF", 3, 0, 2, 1) + b"k"
        body = struct.pack("<IIQ", 9, 8, len(texts)) + raw
        tail = struct.pack("<Q", 1) + b"n" + struct.pack("<II", 4, 7)
        whole = np.frombuffer(head + body + tail, np.uint8)
        metadata, _ = gguf_load(Tensor(whole), raw=True)
        want = [text.decode("utf-8", "replace") for text in texts]
        if metadata["k"] != want or metadata["n"] != 7:
            return f"{texts} came back as {metadata}"
        return None

    check_all("lists of texts of GGUF files", draws(300, 20000), check, record_property)


def test_a_chunk_is_read_up_to_its_last_whole_text() -> None:
    raw = b"".join([struct.pack("<Q", n) + b"x" * n for n in (3, 0, 5, 300, 2)])
    for end in range(len(raw) + 1):
        for most in (1, 3, 9):
            found, stop = texts_of(b"??" + raw[:end], 2, most)
            lengths = [len(text) for text in found]
            assert lengths == [3, 0, 5, 300, 2][: len(lengths)]
            assert stop == 2 + sum(lengths) + 8 * len(lengths)
            left = [3, 0, 5, 300, 2][len(lengths) :]
            assert len(lengths) == most or not left or stop - 2 + 8 + left[0] > end
