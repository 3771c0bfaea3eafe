"""Offers the names of tinygrad's `helpers`: settings, timing, downloads, tools.

`aster_ml.helpers` passes these names on (`compat/names.py`). Aster's own modules never import from
here: each name is either passed on from its home or written for scripts.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import getpass
import importlib
import itertools
import os
import pathlib
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Any, TypeVar

import numpy as np

from aster_ml.compat import settings
from aster_ml.compat.disk_cache import (
    database,
    db_connection,
    diskcache,
    diskcache_clear,
    diskcache_get,
    diskcache_put,
)
from aster_ml.compat.pointers import (
    charptr,
    data64,
    data64_le,
    flat_mv,
    from_mv,
    getbits,
    hi32,
    i2u,
    init_c_struct_t,
    init_c_var,
    lo32,
    mv_address,
    pad_bytes,
    to_char_p_p,
    to_mv,
)
from aster_ml.compat.progress import tqdm, trange
from aster_ml.compat.text import (
    ansilen,
    ansistrip,
    colorize_float,
    lines,
    printable,
    strip_parens,
    to_function_name,
    word_wrap,
)
from aster_ml.compat.timing import (
    ProfileEvent,
    ProfilePointEvent,
    ProfileRangeEvent,
    Profiling,
    Timing,
    TracingKey,
    cpu_events,
    cpu_profile,
    get_stacktrace,
    perf_counter_us,
    profile_marker,
)
from aster_ml.config import (
    BEAM,
    CAPTURING,
    DEBUG,
    FOREIGN,
    IGNORE_BEAM_CACHE,
    JIT,
    JIT_BATCH_SIZE,
    NOOPT,
    SETTINGS,
    SPEC,
    TRACEMETA,
    WINO,
    Context,
    Setting,
    getenv,
)
from aster_ml.downloads import downloads_folder, fetch
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
from aster_ml.trace import Metadata

__all__ = [
    "ARCH_X86", "BEAM", "CACHEDB", "CAPTURING", "CI", "DEBUG", "IGNORE_BEAM_CACHE", "JIT",
    "JIT_BATCH_SIZE", "NOOPT", "OSX", "SPEC", "TRACEMETA", "WIN", "WINO", "Context", "ContextVar",
    "GlobalCounters", "Metadata", "ProfileEvent", "ProfilePointEvent", "ProfileRangeEvent",
    "Profiling", "Timing", "TracingKey", "_ensure_downloads_dir", "all_int", "all_same", "ansilen",
    "ansistrip", "argfix", "argsort", "cache_dir", "canonicalize_strides", "cdiv", "ceildiv",
    "charptr", "cmod", "colored", "colorize_float", "count", "cpu_events", "cpu_objdump",
    "cpu_profile", "data64", "data64_le", "db_connection", "dedup", "disable_gc", "diskcache",
    "diskcache_clear", "diskcache_get", "diskcache_put", "fetch", "flat_mv", "flatten", "from_mv",
    "fromimport", "fully_flatten", "get_child", "get_contraction", "get_single_element",
    "get_stacktrace", "getbits", "getenv", "hi32", "i2u", "init_c_struct_t", "init_c_var",
    "is_numpy_ndarray", "lines", "lo32", "make_tuple", "merge_dicts", "mv_address", "next_power2",
    "pad_bytes", "panic", "partition", "perf_counter_us", "pluralize", "polyN", "printable",
    "prod", "profile_marker", "round_down", "round_up", "select_first_inited", "stderr_log",
    "strides_for_shape", "strip_parens", "suppress_finalizing", "system", "temp", "time_to_str",
    "to_char_p_p", "to_function_name", "to_mv", "tqdm", "trange", "unwrap", "unwrap_class_type",
    "wait_cond", "word_wrap",
    *settings.WITHOUT_EFFECT, *settings.MEANS,
]  # fmt: skip

T = TypeVar("T")

OSX = sys.platform == "darwin"
WIN = sys.platform == "win32"
CI = bool(os.environ.get("CI"))
ARCH_X86 = platform.machine() in ("x86_64", "AMD64", "i386")
CACHEDB = str(database() or "")
cache_dir = str(pathlib.Path(CACHEDB).parent) if CACHEDB else ""


def __getattr__(name: str) -> Setting:
    """A setting that is tinygrad's alone. Raises: AttributeError for any other name."""
    if name in FOREIGN:
        return FOREIGN[name]
    raise AttributeError(f"module {__name__} has no {name}", name=name)


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
    # What a program declares itself is its own from now on, and means what it says there.
    FOREIGN.pop(key, None)
    return Setting(key, default_value, "Declared by a program.")


def temp(x: str, append_user: bool = False) -> str:
    """A path in the folder for temporary files; with `append_user`, one a user."""
    return str(
        pathlib.Path(tempfile.gettempdir()) / (f"{x}.{getpass.getuser()}" if append_user else x)
    )


def unwrap(x: T | None) -> T:
    """`x`, which is known not to be None. Raises: ArgumentError when it is."""
    if x is None:
        raise ArgumentError("unwrap: the value is None")
    return x


def unwrap_class_type(cls_t: Any) -> Any:
    """The class that a `functools.partial` calls; a class as it is."""
    return cls_t.func if isinstance(cls_t, functools.partial) else cls_t


def get_single_element(x: Sequence[T]) -> T:
    """The one element. Raises: ArgumentError when there is another number of them."""
    if len(x) != 1:
        raise ArgumentError(f"one element is wanted, given {len(x)}")
    return x[0]


def get_child(obj: Any, key: str) -> Any:
    """Follows a path such as `layers.0.weight`: numbers index, names are keys or attributes.

    Raises: KeyError, IndexError or AttributeError at the first part that is not there.
    """
    for part in key.split("."):
        if part.isdecimal():
            obj = obj[int(part)]
        elif isinstance(obj, dict):
            obj = obj[part]
        else:
            obj = getattr(obj, part)
    return obj


def canonicalize_strides(shape: Sequence[T], strides: Sequence[T]) -> tuple[Any, ...]:
    """Strides with 0 for each axis of one element."""
    return tuple([0 if size == 1 else stride for size, stride in zip(shape, strides)])


def get_contraction(old_shape: Sequence[Any], new_shape: Sequence[Any]) -> list[list[int]] | None:
    """Which axes of the old shape make up each of the new one; None where some would be split."""
    new_ends = list(itertools.accumulate(new_shape, lambda a, b: a * b))
    old_ends = list(itertools.accumulate(old_shape, lambda a, b: a * b))
    try:
        cuts = [old_ends.index(end) + 1 if end != 1 else 0 for end in new_ends]
    except ValueError:
        return None
    starts = [0, *cuts[:-1]]
    ends = [*cuts[:-1], len(old_shape)]
    return [list(range(start, end)) for start, end in zip(starts, ends)]


def is_numpy_ndarray(x: Any) -> bool:
    """Whether it is a NumPy array."""
    return isinstance(x, np.ndarray)


def fromimport(mod: str, frm: str) -> Any:
    """`from mod import frm` as an expression."""
    return getattr(importlib.import_module(mod), frm)


def select_first_inited(
    candidates: Sequence[Any], err_msg: str, cache: dict[Any, Any] | None = None
) -> Any:
    """The result of the first candidate that does not raise; of a sequence, of each in it.

    Raises: ExceptionGroup of all errors under `err_msg` where each of them does.
    """
    errors: list[Exception] = []
    for candidate in candidates:
        if cache is not None and candidate in cache:
            return cache[candidate]
        try:
            if isinstance(candidate, Sequence):
                made: Any = tuple([make() if make is not None else None for make in candidate])
            else:
                made = candidate()
        except Exception as error:
            errors.append(error)
            continue
        if cache is not None:
            cache[candidate] = made
        return made
    raise ExceptionGroup(err_msg, errors or [ArgumentError("there are no candidates")])


def system(cmd: str, **kwargs: Any) -> str:
    """The output of a command; its words are split at spaces.

    Raises: RuntimeError with the output where it fails.
    """
    done = subprocess.run(
        cmd.split(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **kwargs
    )
    if done.returncode:
        raise RuntimeError(f"{cmd}: exit status {done.returncode}: {done.stdout.strip()}")
    return str(done.stdout).strip()


def stderr_log(msg: str) -> None:
    """Writes to the error output at once."""
    print(msg, end="", file=sys.stderr, flush=True)


def panic(e: Exception | None = None) -> Any:
    """Raises `e`, or RuntimeError, where only an expression may stand."""
    raise RuntimeError("PANIC!") if e is None else e


def wait_cond(
    cb: Callable[..., Any], *args: Any, value: Any = True, timeout_ms: int = 10000, msg: str = ""
) -> bool:
    """Calls `cb` until it returns `value`. Raises: TimeoutError where it does not in time."""
    end = time.monotonic() + timeout_ms / 1000
    while True:
        found = cb(*args)
        if found == value:
            return True
        if time.monotonic() >= end:
            raise TimeoutError(f"{msg} within {timeout_ms} ms: {found!r}, {value!r} is wanted")


def suppress_finalizing(func: Callable[..., Any]) -> Callable[..., Any]:
    """A function whose errors do not count while the interpreter ends."""

    @functools.wraps(func)
    def quiet(*args: Any, **kwargs: Any) -> Any:
        try:
            return func(*args, **kwargs)
        except (RuntimeError, AttributeError, TypeError, ImportError):
            if not sys.is_finalizing():
                raise
            return None

    return quiet


class count(Iterator[int]):
    """Numbers from `start` on, as `itertools.count` gives them, in an object that pickles."""

    def __init__(self, start: int = 0, step: int = 1) -> None:
        self.n = start
        self.step = step

    def __next__(self) -> int:
        self.n += self.step
        return self.n - self.step


class disable_gc(contextlib.ContextDecorator):
    """Python's cyclic collector rests during a `with` block, where it did not before."""

    def __enter__(self) -> None:
        self.was_on = gc.isenabled()
        if self.was_on:
            gc.disable()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.was_on:
            gc.enable()


def cpu_objdump(lib: bytes, objdump_tool: str = "objdump") -> None:
    """Prints the instructions of an object file, as the tool lists them."""
    if shutil.which(objdump_tool) is None:
        raise RuntimeError(f"there is no {objdump_tool} on PATH")
    with tempfile.NamedTemporaryFile() as file:
        pathlib.Path(file.name).write_bytes(lib)
        print(system(f"{objdump_tool} -d {file.name}"))


def _ensure_downloads_dir() -> pathlib.Path:
    """The folder of what `fetch` keeps, made where there is none."""
    folder = downloads_folder()
    folder.mkdir(parents=True, exist_ok=True)
    return folder
