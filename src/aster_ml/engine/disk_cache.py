"""Disk cache of compiled kernels: a binary of several, with what is known of each.

Receives and gives fields of `engine.compile.Compiled`; what a key has to name, callers know.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from aster_ml.backend import Backend, Grid, Launch, Program, ThreadParts
from aster_ml.dtype import dtypes
from aster_ml.errors import AsterError
from aster_ml.late import late
from aster_ml.runtime import object_cache
from aster_ml.uop.graph import toposort
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import ELEMENTWISE, Ops

if TYPE_CHECKING:
    from aster_ml.uop.print import text
else:
    text = late("uop.print.text")

SIZE_BYTES = 4
# As much as a native call takes.
MOST_ELEMENTS = 1 << 63
# What sizes that depend on variables are made of.
SIZE_OPS = ELEMENTWISE | {Ops.CONST, Ops.DEFINE_VAR}


def put(entries: Sequence[tuple[str, Mapping[str, Any]]], binary: bytes) -> None:
    """Keeps kernels, by key, whose functions are in a binary."""
    if not entries:
        return
    known = {
        key: {
            "name": fields["name"],
            "vars": fields["var_names"],
            "launch": launch_to_json(fields["launch"]),
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
                except (
                    AsterError, ValueError, LookupError, TypeError, AttributeError, RuntimeError,
                    OSError, ArithmeticError, MemoryError,
                ):  # fmt: skip
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


def launch_to_json(launch: Launch) -> list[Any]:
    """A launch as JSON has it; sizes that depend on variables are texts of their expressions."""
    if isinstance(launch, Grid):
        return [[size_to_json(size) for size in launch.blocks], launch.items]
    return [size_to_json(launch.n), launch.parts]


def size_to_json(size: Any) -> Any:
    """A number, or the text of an expression."""
    return text.to_text(size) if isinstance(size, UOp) else size


def launch_from(header: Any) -> Launch | None:
    """The launch of a kernel; None where it cannot be one."""
    first, second = header["launch"]
    names = header["vars"]
    if header["grid"]:
        blocks = tuple([size_from(size, names) for size in first])
        right = None not in blocks and all([is_count(i) for i in second])
        return Grid(blocks, tuple(second)) if right else None
    n = size_from(first, names)
    right = n is not None and is_count(second) and second >= 1
    return ThreadParts(n, second) if right else None


def size_from(size: Any, names: list[str]) -> Any:
    """A number, or an expression of variables that the kernel has; None where it is neither.

    Raises: AsterError for a text that is no node.
    """
    if not isinstance(size, str):
        return size if is_count(size) else None
    found = text.parse(size)
    nodes = toposort(found)
    used = {u.arg.name for u in nodes if u.op is Ops.DEFINE_VAR}
    known = found.dtype in dtypes.ints and all([u.op in SIZE_OPS for u in nodes])
    return found if known and used <= set(names) else None


def is_count(value: Any) -> bool:
    """Whether a value is a whole number that sizes may be, and no truth value."""
    return value.__class__ is int and 0 <= value < MOST_ELEMENTS
