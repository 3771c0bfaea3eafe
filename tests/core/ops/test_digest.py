"""Keccak digests against hashlib, and the tree of digests of large tensors."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from aster_ml import Tensor, TinyJit
from aster_ml.engine.counters import TOTALS
from aster_ml.errors import ArgumentError, ShapeError
from aster_ml.ops import digest

RATE = 136


def message(count: int) -> bytes:
    """Random bytes."""
    return np.random.default_rng(count).bytes(count)


def wanted(name: str, data: bytes) -> bytes:
    """The digest by hashlib; of the functions with any length, as many bytes as Aster gives."""
    if name.startswith("shake"):
        return hashlib.new(name, data).digest({"shake_128": 16, "shake_256": 32}[name])  # type: ignore[call-arg]
    return hashlib.new(name, data).digest()


@pytest.mark.parametrize(
    ("name", "count"),
    [
        *[("sha3_256", count) for count in (0, 3, 71)],
        *[(name, 71) for name in ("sha3_224", "sha3_384", "sha3_512", "shake_128", "shake_256")],
    ],
)
def test_messages_of_one_block(name: str, count: int) -> None:
    data = message(count)
    assert bytes(Tensor(data).keccak(name).data()) == wanted(name, data)


@pytest.mark.parametrize("count", [RATE - 1, RATE, RATE + 1, 3 * RATE + 5])
def test_blocks(count: int) -> None:
    data = message(count)
    assert bytes(Tensor(data).keccak().data()) == wanted("sha3_256", data)
    assert bytes(Tensor(data).keccak((RATE, 0x06)).data()) == wanted("sha3_256", data)


def test_a_message_in_each_row() -> None:
    rows = np.frombuffer(message(24), dtype=np.uint8).reshape(2, 3, 4)
    got = Tensor(rows).keccak().numpy()
    assert got.shape == (2, 3, 32)
    for i, j in np.ndindex(2, 3):
        assert got[i, j].tobytes() == wanted("sha3_256", rows[i, j].tobytes())


def test_long_messages_in_rows_on_two_devices_and_jitted() -> None:
    rows = [np.frombuffer(message(400 + i), dtype=np.uint8)[:400] for i in range(4)]
    digests = [wanted("sha3_256", row.tobytes()) for row in rows]
    data = Tensor(np.stack(rows))
    assert [bytes(d) for d in data.keccak().tolist()] == digests
    assert [bytes(d) for d in data.shard(("CPU", "CPU:1"), 0).keccak().tolist()] == digests
    jitted = TinyJit(lambda x: x.keccak().realize())
    for row, wants in zip(rows, digests, strict=True):
        assert bytes(jitted(Tensor(row.copy()).realize()).data()) == wants


def test_blocks_are_not_planned_one_by_one() -> None:
    counts = []
    for blocks in (10, 40):
        data = Tensor(message(blocks * RATE))
        before = TOTALS.schedule_hits + TOTALS.schedule_misses
        assert bytes(data.keccak().data()) == wanted("sha3_256", message(blocks * RATE))
        counts.append(TOTALS.schedule_hits + TOTALS.schedule_misses - before)
    assert counts[0] == counts[1] < 10


def test_other_dtypes_by_their_bytes() -> None:
    x = np.array([1.5, -2.0], dtype=np.float32)
    assert bytes(Tensor(x).keccak().data()) == wanted("sha3_256", x.tobytes())
    grad = Tensor(x, requires_grad=True).keccak()
    assert bytes(grad.data()) == wanted("sha3_256", x.tobytes())


def test_hash_is_a_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    piece, chunk = 200, 400

    def tree(data: bytes) -> bytes:
        digests = b""
        for start in range(0, max(len(data), 1), chunk):
            part = data[start : start + chunk].ljust(chunk, b"\0")
            pieces = [part[i : i + piece] for i in range(0, chunk, piece)]
            inner = b"".join([hashlib.shake_128(p).digest(16) for p in pieces])
            digests += hashlib.shake_128(inner).digest(16)
        return digests if len(digests) == 16 else tree(digests)

    assert (Tensor.CHUNK_SIZE, digest.PIECE_NBYTES) == (1 << 20, 4096)
    monkeypatch.setattr(Tensor, "CHUNK_SIZE", chunk)
    monkeypatch.setattr(digest, "PIECE_NBYTES", piece)
    for data in (b"abc", message(400), message(1000)):
        assert bytes(Tensor(data).hash().data()) == tree(data)
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert bytes(Tensor(x).hash().data()) == tree(x.tobytes())
    assert bytes(Tensor(x).T.hash().data()) == tree(x.T.tobytes())


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: Tensor(b"a").keccak("md5"), ArgumentError, "'md5'; one of sha3_224, sha3_256"),
        (lambda: Tensor(b"a").keccak((200, 6)), ArgumentError, "200 bytes; a multiple of 8 below"),
        (lambda: Tensor(1).keccak(), ShapeError, r"keccak: \[\]; a last axis with the message"),
    ],
)
def test_misuse(call, error: type, text: str) -> None:
    with pytest.raises(error, match=text):
        call()
