"""Finds the merges of a vocabulary of pieces: each piece is made of two others.

Receives the pieces in the order in which they are made, and the numbers of all tokens; returns
pairs of texts for byte-pair encoding. They are kept in the cache of compiled kernels, as numbers of
tokens; what is kept of another form, or for other pieces, counts as missing.

why: to look up every cut of hundreds of thousands of pieces takes seconds of a start
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

import numpy as np

from aster_ml.runtime import object_cache

Merges = list[tuple[str, str]]
# What a kept list says of its form.
FORM = "merges of pieces, pairs of int32, 1"


def merges_of(pieces: Sequence[str], number: Mapping[str, int]) -> Merges:
    """The pairs of tokens that make each piece, piece by piece, by the numbers of both tokens."""
    key = key_of(pieces, number)
    data = object_cache.get(key)
    found = None if data is None else read_merges(data, number)
    if found is None:
        found = find_merges(pieces, number)
        pairs = [(number[left], number[right]) for left, right in found]
        object_cache.put(key, np.array(pairs, np.int32).tobytes())
    return found


def find_merges(pieces: Sequence[str], number: Mapping[str, int]) -> Merges:
    """All cuts of all pieces are looked up."""
    merges: Merges = []
    for text in pieces:
        cuts = [(text[:at], text[at:]) for at in range(1, len(text))]
        found = [cut for cut in cuts if cut[0] in number and cut[1] in number]
        merges += sorted(found, key=lambda cut: (number[cut[0]], number[cut[1]]))
    return merges


def key_of(pieces: Sequence[str], number: Mapping[str, int]) -> str:
    """What names a list of merges: the pieces in their order, and all tokens with their numbers."""
    digest = hashlib.blake2b(FORM.encode(), digest_size=20)
    for texts in (pieces, number):
        lengths = np.fromiter(map(len, texts), np.int64, len(texts))
        digest.update(lengths.tobytes())
        digest.update("".join(texts).encode("utf-8", "surrogatepass"))
    digest.update(np.fromiter(number.values(), np.int64, len(number)).tobytes())
    return f"{digest.hexdigest()}-merges"


def read_merges(data: bytes, number: Mapping[str, int]) -> Merges | None:
    """Kept merges as texts; None where they are damaged."""
    if len(data) % 8:
        return None
    names = {i: text for text, i in number.items()}
    left, right = np.frombuffer(data, np.int32).reshape(-1, 2).T.tolist()
    try:
        return [(names[a], names[b]) for a, b in zip(left, right, strict=True)]
    except KeyError:
        return None
