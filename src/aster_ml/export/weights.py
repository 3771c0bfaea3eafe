"""Weights of an exported function as a safetensors file, which others can read too.

Layout (https://huggingface.co/docs/safetensors): 8 bytes with the length of the header,
little-endian; the header, JSON padded with spaces to a multiple of 8 bytes; the tensors' bytes in
the header's order, without gaps. Weights of a network have their names and shapes, others are flat
and have numbers. `__metadata__` names the function and has a
digest of all bytes, so the header of one export is that of no other.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

from aster_ml.export.plan import Blob
from aster_ml.formats.safetensors import NAME_OF


def header_of(name: str, blobs: Sequence[Blob]) -> bytes:
    """Length and header."""
    digest = hashlib.blake2b(digest_size=16)
    entries: dict[str, object] = {}
    at = 0
    for blob in blobs:
        digest.update(blob.data)
        entries[blob.name] = {
            "dtype": NAME_OF[blob.dtype],
            "shape": list(blob.shape or (len(blob.data) // blob.dtype.itemsize,)),
            "data_offsets": [at, at + len(blob.data)],
        }
        at += len(blob.data)
    about = {"function": name, "digest": digest.hexdigest()}
    text = json.dumps({"__metadata__": about, **entries}, separators=(",", ":"))
    text += " " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text.encode()


def file_of(name: str, blobs: Sequence[Blob]) -> bytes:
    """The whole file."""
    return b"".join([header_of(name, blobs), *[blob.data for blob in blobs]])


def fingerprint(header: bytes) -> int:
    """FNV-1a of 64 bits: what generated C knows a header by.

    Source: draft-eastlake-fnv.
    """
    value = 0xCBF29CE484222325
    for byte in header:
        value = (value ^ byte) * 0x100000001B3 % (1 << 64)
    return value


def digest_of(data: bytes) -> str:
    """The digest that the header of a file has."""
    length = int.from_bytes(data[:8], "little")
    found: str = json.loads(data[8 : 8 + length])["__metadata__"]["digest"]
    return found
