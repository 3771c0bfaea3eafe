"""Digests of bytes, computed where the tensor is: the Keccak family, and a tree of them.

Receives tensors whose last axis is a message of bytes; returns tensors of bytes.

A state is 25 words, word `x + 5 * y` at column x and row y. Every round is stored, so that all
rounds are the same few kernels. Messages of more than one block are computed at once, by one
schedule that runs as often as there are blocks.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from aster_ml.dtype import dtypes
from aster_ml.engine.realize import realize_uops
from aster_ml.errors import ArgumentError, ShapeError
from aster_ml.helpers import ceildiv, prod
from aster_ml.ops import Self
from aster_ml.uop.infer import show_shape

# Name -> bytes that a block takes in, and the bits that stand behind the message.
CONFIGS = {
    "sha3_224": (144, 0x06),
    "sha3_256": (136, 0x06),
    "sha3_384": (104, 0x06),
    "sha3_512": (72, 0x06),
    "shake_128": (168, 0x1F),
    "shake_256": (136, 0x1F),
}
STATE_NBYTES, WORDS, ROUNDS = 200, 25, 24
PIECE_NBYTES, DIGEST_NBYTES = 4096, 16
CHUNK_SIZE = 1 << 20


def rotations() -> tuple[list[int], list[int]]:
    """For each word after the second and third step of a round: which word it was, and by how many
    bits that one is rotated.
    """
    amount = [0] * WORDS
    x, y = 1, 0
    for t in range(WORDS - 1):
        amount[x + 5 * y] = (t + 1) * (t + 2) // 2 % 64
        x, y = y, (2 * x + 3 * y) % 5
    source = [0] * WORDS
    for x in range(5):
        for y in range(5):
            source[y + 5 * ((2 * x + 3 * y) % 5)] = x + 5 * y
    return source, [amount[s] for s in source]


def round_constants() -> list[int]:
    """Constants that change the first word in each round, from a shift register of 8 bits."""
    constants, register = [], 1
    for _ in range(ROUNDS):
        word = 0
        for j in range(7):
            word |= (register & 1) << ((1 << j) - 1)
            register = (register << 1) ^ (0x171 if register & 0x80 else 0)
        constants.append(word)
    return constants


def keccak(self: Self, cfg: str | tuple[int, int] = "sha3_256") -> Self:
    """The Keccak digest of the bytes along the last axis.

    `cfg` is a name (sha3_224, sha3_256, sha3_384, sha3_512, shake_128, shake_256), or how many
    bytes a block takes in and the bits that stand behind the message. The digest has half of
    the other bytes of a state: 28, 32, 48, 64, 16 and 32.

    Shapes: self int [*b, n] -> [*b, 32].
    Dtype: uint8; of another dtype the bytes of its elements are taken.
    Source: FIPS 202.
    """
    if isinstance(cfg, str) and cfg not in CONFIGS:
        raise ArgumentError(f"keccak: {cfg!r}; one of {', '.join(CONFIGS)} would do")
    rate, suffix = CONFIGS[cfg] if isinstance(cfg, str) else cfg
    if not 0 < rate < STATE_NBYTES or rate % 8:
        raise ArgumentError(f"keccak: blocks of {rate} bytes; a multiple of 8 below 200 would do")
    *lead, length = bytes_of(self, "keccak").shape
    data: Any = bytes_of(self, "keccak").reshape((-1, length) if length else (prod(lead), 0))
    rows, count = data.shape[0], length // rate + 1
    ending = np.zeros(count * rate - length, dtype=np.uint8)
    ending[0] ^= suffix
    ending[-1] ^= 0x80
    make: Any = self.__class__
    behind = make(ending, self.device).reshape((1, -1)).expand((rows, ending.size))
    padded = data.cat(behind, dim=1).reshape((rows, count, rate))
    blocks = padded.pad(((0, 0), (0, 0), (0, STATE_NBYTES - rate))).bitcast(dtypes.uint64)
    state = permuted_state(self, blocks.contiguous(), count)
    digest = state.bitcast(dtypes.uint8).shrink((None, (0, (STATE_NBYTES - rate) // 2)))
    return digest.reshape((*lead, digest.shape[1]))  # type: ignore[no-any-return]


def bytes_of(self: Self, what: str) -> Self:
    """The elements as bytes along the last axis."""
    if not self.shape or not all(isinstance(size, int) for size in self.shape):
        raise ShapeError(
            f"{what}: {show_shape(self.shape)}; a last axis with the message, and sizes that "
            "are ints, are wanted"
        )
    if self.dtype is dtypes.bool:
        return self.cast(dtypes.uint8)
    return self.detach().bitcast(dtypes.uint8)


def permuted_state(self: Self, blocks: Any, count: int) -> Any:
    """The state after all blocks have been taken in, one after the other."""
    make: Any = self.__class__
    source, amount = rotations()
    order = make(np.array(source, dtype=np.int32), self.device)
    left = make(np.array(amount, dtype=np.uint64), self.device)
    right = make(np.array([-a % 64 for a in amount], dtype=np.uint64), self.device)
    changes = [
        make(np.array([c] + [0] * (WORDS - 1), dtype=np.uint64), self.device)
        for c in round_constants()
    ]
    before, behind, second = [
        make(np.arange(step, step + 5, dtype=np.int32) % 5, self.device) for step in (4, 1, 2)
    ]

    def permuted(state: Any) -> Any:
        for change in changes:
            square = state.reshape((-1, 5, 5))
            parity = square[:, 0]
            for row in range(1, 5):
                parity = parity ^ square[:, row]
            turned = parity[:, behind]
            mixed = parity[:, before] ^ (turned << 1) ^ (turned >> 63)
            state = (square ^ mixed.unsqueeze(1)).reshape((-1, WORDS))[:, order]
            square = ((state << left) | (state >> right)).reshape((-1, 5, 5))
            square = square ^ (~square[:, :, behind] & square[:, :, second])
            state = (square.reshape((-1, WORDS)) ^ change).contiguous()
        return state

    first = permuted(blocks[:, 0].contiguous())
    if count == 1:
        return first
    # The other blocks one after the other: the same schedule, which finds its block in memory.
    state = make.empty(*first.shape, dtype=first.dtype, device=self.device).assign(first)
    number = make.empty(1, dtype=dtypes.int32, device=self.device).assign(1)
    state.realize(number, blocks)
    block = blocks[:, number].reshape((-1, WORDS))
    state.assign(permuted((state ^ block).contiguous()))
    number.assign(number + 1)
    realize_uops([state.uop, number.uop], count - 1)
    return state.realize()


def hash(self: Self) -> Self:
    """16 bytes that depend on every byte of self, whatever its shape.

    Each `CHUNK_SIZE` bytes, zeros put behind, are cut into pieces of 4096, whose shake_128 is
    hashed with shake_128; of several chunks the digests are hashed in the same way.

    Dtype: uint8.
    """
    data: Any = bytes_of(self.contiguous().reshape((-1,)), "hash")
    while True:
        chunks = max(ceildiv(data.shape[0], self.CHUNK_SIZE), 1)
        data = data.pad(((0, chunks * self.CHUNK_SIZE - data.shape[0]),))
        pieces = data.reshape((chunks * self.CHUNK_SIZE // PIECE_NBYTES, PIECE_NBYTES))
        digests = pieces.keccak("shake_128").reshape((chunks, -1))
        data = digests.keccak("shake_128").reshape((chunks * DIGEST_NBYTES,))
        if chunks == 1:
            return data  # type: ignore[no-any-return]
