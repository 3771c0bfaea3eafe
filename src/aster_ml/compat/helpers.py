"""What programs written for tinygrad import from `helpers`: settings, timing, downloads, tools.

`from aster_ml.compat.helpers import getenv, Timing, fetch` is the import to change to. Aster's own
modules never import from here: each name is either passed on from its home or written for scripts.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import pathlib
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Any, TypeVar

from tqdm import tqdm, trange

from aster_ml.config import DEBUG, JIT, SETTINGS, Context, Setting, getenv
from aster_ml.downloads import fetch
from aster_ml.engine.counters import GlobalCounters
from aster_ml.errors import ArgumentError
from aster_ml.helpers import (
    all_int,
    all_same,
    argfix,
    argsort,
    cdiv,
    ceildiv,
    cmod,
    colored,
    dedup,
    flatten,
    fully_flatten,
    make_tuple,
    merge_dicts,
    next_power2,
    partition,
    pluralize,
    polyN,
    prod,
    round_down,
    round_up,
    strides_for_shape,
    time_to_str,
)

__all__ = [
    "CI", "DEBUG", "JIT", "OSX", "WIN", "Context", "ContextVar", "GlobalCounters", "Timing",
    "all_int", "all_same", "ansilen", "ansistrip", "argfix", "argsort", "cdiv", "ceildiv", "cmod",
    "colored", "dedup", "fetch", "flatten", "from_mv", "fully_flatten", "get_single_element",
    "getenv", "make_tuple", "merge_dicts", "mv_address", "next_power2", "partition", "pluralize",
    "polyN", "prod", "round_down", "round_up", "strides_for_shape", "temp", "time_to_str",
    "to_mv", "tqdm", "trange", "unwrap",
]  # fmt: skip

T = TypeVar("T")

OSX = sys.platform == "darwin"
WIN = sys.platform == "win32"
CI = bool(os.environ.get("CI"))


def ContextVar(key: str, default_value: int | str) -> Setting:
    """A setting of a program's own, read from the environment and scoped by `Context`.

    Raises: ArgumentError for a name that is taken, and for a default that is no number or text.
    """
    if key in SETTINGS:
        raise ArgumentError(f"ContextVar: there is a setting {key} already; choose another name")
    if not isinstance(default_value, (int, float, str)):
        raise ArgumentError(
            f"ContextVar {key}: the default {default_value!r} is no number and no text"
        )
    return Setting(key, default_value, "Declared by a program.")


class Timing(contextlib.ContextDecorator):
    """Prints how long a `with` block took: `with Timing("load: "): ...`; `et` has nanoseconds."""

    def __init__(
        self, prefix: str = "", on_exit: Callable[[int], str] | None = None, enabled: bool = True
    ) -> None:
        self.prefix = prefix
        self.on_exit = on_exit
        self.enabled = enabled

    def __enter__(self) -> Timing:
        self.start = time.perf_counter_ns()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.et = time.perf_counter_ns() - self.start
        if self.enabled:
            tail = self.on_exit(self.et) if self.on_exit else ""
            print(f"{self.prefix}{self.et * 1e-6:6.2f} ms{tail}")


def temp(name: str, append_user: bool = False) -> str:
    """A path in the folder for temporary files; with `append_user`, one a user."""
    if append_user:
        name += f".{os.environ.get('USER', os.environ.get('USERNAME', 'unknown'))}"
    return str(pathlib.Path(tempfile.gettempdir()) / name)


def unwrap(value: T | None) -> T:
    """`value`, which is known not to be None. Raises: ArgumentError when it is."""
    if value is None:
        raise ArgumentError("unwrap: the value is None")
    return value


def get_single_element(values: Sequence[T]) -> T:
    """The one element. Raises: ArgumentError when there is another number of them."""
    if len(values) != 1:
        raise ArgumentError(f"one element is wanted, given {len(values)}")
    return values[0]


def from_mv(mv: memoryview, to_type: Any = ctypes.c_char) -> Any:
    """A ctypes pointer to the memory of a writable memoryview."""
    array = (to_type * (mv.nbytes // ctypes.sizeof(to_type))).from_buffer(mv)
    return ctypes.cast(ctypes.addressof(array), ctypes.POINTER(to_type * len(array))).contents


def to_mv(address: int, nbytes: int) -> memoryview:
    """The memory at an address, which has to outlive the view."""
    return memoryview((ctypes.c_uint8 * nbytes).from_address(address)).cast("B")


def mv_address(mv: memoryview) -> int:
    """Where the memory of a writable memoryview is."""
    return ctypes.addressof(ctypes.c_char.from_buffer(mv))


def ansistrip(text: str) -> str:
    """Text without the codes that colour it."""
    parts: Iterable[str] = text.split("\x1b[")
    first, *rest = parts
    return first + "".join(part.split("m", 1)[-1] for part in rest)


def ansilen(text: str) -> int:
    """How many places text takes on a terminal."""
    return len(ansistrip(text))
