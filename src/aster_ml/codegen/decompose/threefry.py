"""Lowers THREEFRY to 32-bit additions, exclusive ors and rotations.

Receives the uint64 counter and key and returns the uint64 result. All arithmetic between unpacking
and packing is 32 bits wide, so that a SIMD register holds as many lanes as of float32; `low_word`
and `high_word` look through an existing packing.
"""

from __future__ import annotations

from aster_ml.dtype import dtypes
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import Ops

# Rotations of the second word, a row for each group of four rounds, alternating.
# Source: Salmon et al. (SC11), Threefry-2x32.
ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
# Groups of four rounds in 20. Source: Salmon et al. (SC11), Threefry-2x32-20.
GROUPS = 5
# Exclusive or of it and both words of the key is the third key word (Skein's constant).
# Source: Salmon et al. (SC11).
PARITY = 0x1BD11BDA
# All bits of a word. Source: Salmon et al. (SC11), words of 32 bits.
WORD = 0xFFFFFFFF


def threefry(counter: UOp, key: UOp) -> UOp:
    """Threefry-2x32 with 20 rounds: the random uint64 of a uint64 counter under a uint64 key.

    The low word of each is the first.
    Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC11).
    """
    first, second = threefry_words(
        low_word(counter), high_word(counter), low_word(key), high_word(key)
    )
    return (second.cast(dtypes.uint64) << 32) | first.cast(dtypes.uint64)


def threefry_words(x0: UOp, x1: UOp, k0: UOp, k1: UOp) -> tuple[UOp, UOp]:
    """Threefry-2x32 with 20 rounds on uint32 words."""
    keys = (k0, k1, k0 ^ k1 ^ PARITY)
    x0, x1 = x0 + k0, x1 + k1
    for group in range(GROUPS):
        for r in ROTATIONS[group % 2]:
            x0 = x0 + x1
            x1 = ((x1 << r) | (x1 >> (32 - r))) ^ x0
        x0 = x0 + keys[(group + 1) % 3]
        x1 = x1 + (keys[(group + 2) % 3] + (group + 1))
    return x0, x1


def packed_words(u: UOp) -> tuple[UOp, UOp] | None:
    """The low and high uint32 from which a uint64 is packed; None for any other node."""
    if u.op not in (Ops.OR, Ops.ADD):
        return None
    for high, low in (u.src, u.src[::-1]):
        if high.op not in (Ops.SHL, Ops.MUL) or high.src[1].op is not Ops.CONST:
            continue
        if high.src[1].arg != (32 if high.op is Ops.SHL else 1 << 32):
            continue
        if is_widened(low) and is_widened(high.src[0]):
            return low.src[0], high.src[0].src[0]
    return None


def is_widened(u: UOp) -> bool:
    """Whether a node is a uint32 cast to uint64."""
    return u.op is Ops.CAST and u.src[0].dtype is dtypes.uint32


def low_word(u: UOp) -> UOp:
    """The lower 32 bits of a uint64, as a uint32."""
    if u.op is Ops.CONST:
        return UOp.const(dtypes.uint32, u.arg & WORD)
    while u.op is Ops.AND and u.src[1].op is Ops.CONST and u.src[1].arg == WORD:
        u = u.src[0]
    if is_widened(u):
        return u.src[0]
    if u.op is Ops.SHR and u.src[1].op is Ops.CONST and u.src[1].arg == 32:
        return high_word(u.src[0])
    words = packed_words(u)
    return u.cast(dtypes.uint32) if words is None else words[0]


def high_word(u: UOp) -> UOp:
    """The upper 32 bits of a uint64, as a uint32."""
    if u.op is Ops.CONST:
        return UOp.const(dtypes.uint32, u.arg >> 32)
    if is_widened(u):
        return UOp.const(dtypes.uint32, 0)
    words = packed_words(u)
    return (u >> 32).cast(dtypes.uint32) if words is None else words[1]
