"""Disk cache of compiled kernels: a binary of several, with what is known of each.

Receives and gives fields of `engine.compile.Compiled`; what a key has to name, callers know.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from aster_ml.backend import Backend, Grid, Launch, Program, ThreadParts
from aster_ml.runtime import object_cache

SIZE_BYTES = 4


def put(entries: Sequence[tuple[str, Mapping[str, Any]]], binary: bytes) -> None:
    """Keeps kernels, by key, whose functions are in a binary."""
    if not entries:
        return
    known = {
        key: {
            "name": fields["name"],
            "vars": fields["var_names"],
            "launch": fields["launch"],
            "grid": isinstance(fields["launch"], Grid),
            "written": sorted(fields["written"]),
        }
        for key, fields in entries
    }
    header = json.dumps(known).encode()
    data = len(header).to_bytes(SIZE_BYTES, "little") + header + binary
    first, *others = known
    object_cache.put(first, data, *others)


class DiskCache:
    """Kernels from the disk: with one of them come all that it was compiled with."""

    def __init__(self) -> None:
        self.found: dict[tuple[str, Backend], dict[str, Any]] = {}

    def get(self, key: str, backend: Backend) -> dict[str, Any] | None:
        """The fields of a kernel, its program too; None when there is none of our form."""
        if (key, backend) not in self.found:
            entry = object_cache.get(key)
            if entry is not None:
                try:
                    self.open(entry, backend)
                except (ValueError, LookupError, TypeError, AttributeError, RuntimeError, OSError):
                    # What is in the cache is only a shortcut: anything odd is compiled again.
                    return None
        return self.found.get((key, backend))

    def open(self, entry: bytes, backend: Backend) -> None:
        """Loads what an entry holds. Raises: any of the errors of what is not of our form."""
        start = SIZE_BYTES + int.from_bytes(entry[:SIZE_BYTES], "little")
        known = json.loads(entry[SIZE_BYTES:start])
        for header in known.values():
            check(header)
        names = [str(header["name"]) for header in known.values()]
        programs: list[Program] = backend.load_all([(names, entry[start:])])
        for (key, header), program in zip(known.items(), programs, strict=True):
            self.found[key, backend] = {
                "name": str(header["name"]),
                "program": program,
                "var_names": tuple(header["vars"]),
                "launch": launch_from(header),
                "written": frozenset(header["written"]),
            }


def check(header: Any) -> None:
    """Raises ValueError where what is said of a kernel cannot be."""
    written, names = header["written"], header["vars"]
    if not (
        isinstance(header["name"], str)
        and launch_from(header) is not None
        and all([is_count(i) for i in written])
        and isinstance(names, list)
        and all([isinstance(name, str) for name in names])
    ):
        raise ValueError(f"no kernel is like this: {header}")


def launch_from(header: Any) -> Launch | None:
    """The launch of a kernel; None where it cannot be one."""
    first, second = header["launch"]
    if header["grid"]:
        sizes = (*first, *second)
        return Grid(tuple(first), tuple(second)) if all([is_count(i) for i in sizes]) else None
    right = is_count(first) and is_count(second) and second >= 1
    return ThreadParts(first, second) if right else None


def is_count(value: Any) -> bool:
    """Whether a value is a whole number that is not negative, and no truth value."""
    return value.__class__ is int and value >= 0
