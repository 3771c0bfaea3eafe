"""Compiled kernels on disk: what is known of each, and the binaries that they share.

Receives and gives fields of `engine.compile.Compiled`; what a key has to name, callers know.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from aster_ml.backend import Backend, Program
from aster_ml.runtime import object_cache


def put(
    entries: Sequence[tuple[str, Mapping[str, Any]]], names: Sequence[str], binary: bytes
) -> None:
    """Keeps kernels, by key, whose functions are among those of a binary."""
    if not entries:
        return
    code = hashlib.blake2b(binary, digest_size=20).hexdigest()
    # First what the others name: who finds one of them finds it too.
    object_cache.put(code, with_header(list(names), binary))
    for key, fields in entries:
        header = {
            "name": fields["name"],
            "vars": fields["var_names"],
            "n": fields["n"],
            "parts": fields["parts"],
            "written": sorted(fields["written"]),
            "code": code,
        }
        object_cache.put(key, json.dumps(header).encode())


def with_header(header: object, binary: bytes) -> bytes:
    """A value in JSON before a binary."""
    text = json.dumps(header).encode()
    return len(text).to_bytes(4, "little") + text + binary


class Shelf:
    """Kernels from the disk; each binary is read and loaded once, with all of its functions."""

    def __init__(self) -> None:
        self.loaded: dict[tuple[str, Backend], dict[str, Program]] = {}

    def get(self, key: str, backend: Backend) -> dict[str, Any] | None:
        """The fields of a kernel, its program too; None when there is none of our form."""
        entry = object_cache.get(key)
        if entry is None:
            return None
        try:
            header = json.loads(entry)
            program = self.programs(str(header["code"]), backend)[header["name"]]
            return {
                "name": header["name"],
                "program": program,
                "var_names": tuple(header["vars"]),
                "n": header["n"],
                "parts": header["parts"],
                "written": frozenset(header["written"]),
            }
        except (ValueError, KeyError, TypeError, RuntimeError):
            # What is in the cache is only a shortcut: anything odd is compiled again.
            return None

    def programs(self, code: str, backend: Backend) -> dict[str, Program]:
        """The functions of a binary by name; none when it is not there."""
        found = self.loaded.get((code, backend))
        if found is None:
            entry = object_cache.get(code)
            found = {}
            if entry is not None:
                size = int.from_bytes(entry[:4], "little")
                names = tuple(json.loads(entry[4 : 4 + size]))
                loaded = backend.load_all([(names, entry[4 + size :])])
                found = dict(zip(names, loaded, strict=True))
            self.loaded[code, backend] = found
        return found
