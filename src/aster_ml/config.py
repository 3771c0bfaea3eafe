"""Declares settings: one object each, read from the environment, scoped by `Context`.

Values are thread-local: a thread starts with those of the environment, and `Context` changes them
for one thread. A setting declares which stages it affects. Cache keys of the compiler include the
values of all settings that affect their stage (`stage_key`), so a changed setting never gives a
stale hit.
"""

from __future__ import annotations

import contextlib
import functools
import operator
import os
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from aster_ml.errors import ArgumentError
from aster_ml.plugins import ask
from aster_ml.thread_state import STATE, mark

SETTINGS: dict[str, Setting] = {}
# Settings of other frameworks, declared by plug-ins.
FOREIGN: dict[str, Setting] = {}
# Names of settings that a warning was given for.
WARNED: set[str] = set()


class Setting(threading.local):
    """One named value with a default; the environment variable of the same name overrides it.

    `affects` names the cached stages whose result depends on it: "schedule", "codegen", or none.
    It compares with numbers and text as its value does, and is true when the value is. `value` is
    thread-local; `initial`, the value that a thread starts with, belongs to the process.
    """

    __slots__ = ("affects", "changed", "default", "doc", "initial", "marked", "means", "name")
    value: Any

    def __init__(
        self,
        name: str,
        default: int | str,
        doc: str,
        affects: tuple[str, ...] = (),
        marked: bool = False,
    ) -> None:
        # Called again by each thread that asks, for what is its own.
        if not hasattr(self, "initial"):
            self.name = name
            self.default = default
            self.doc = doc
            self.affects = affects
            # Whether a changed value invalidates the recordings of a jitted function.
            self.marked = marked
            # Called after the value has changed.
            self.changed: Callable[[], None] | None = None
            # Of a foreign setting: its value -> values of Aster's settings.
            self.means: Callable[[Any], dict[str, Any]] | None = None
            self.initial: Any = parse_value(os.environ.get(name), default, name)
            SETTINGS[name] = self
        super().__setattr__("value", self.initial)

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name == "value":
            STATE.stage_keys = {}
            if self.marked:
                mark(self.name, value)

    def set_for_all(self, value: Any) -> None:
        """Sets the value for this thread and for every thread that has not read it yet."""
        self.initial = value
        set_value(self, value)

    @property
    def key(self) -> str:
        """Its name."""
        return self.name

    def __bool__(self) -> bool:
        return bool(self.value)

    def __eq__(self, other: object) -> bool:
        return bool(self.value == other)

    def __ge__(self, other: int) -> bool:
        return bool(self.value >= other)

    def __gt__(self, other: int) -> bool:
        return bool(self.value > other)

    def __lt__(self, other: int) -> bool:
        return bool(self.value < other)

    def __le__(self, other: int) -> bool:
        return bool(self.value <= other)

    def __int__(self) -> int:
        return int(self.value)

    def __index__(self) -> int:
        return operator.index(self.value)

    __hash__ = object.__hash__

    def __reduce__(self) -> tuple[Any, ...]:
        return restore_setting, (self.name, self.default, self.doc, self.value)

    def __repr__(self) -> str:
        return f"{self.name}={self.value!r}"


def restore_setting(name: str, default: int | str, doc: str, value: Any) -> Setting:
    """Unpickles a setting, with the value it had, beside the one of this process."""
    known = SETTINGS.get(name)
    made = Setting(name, default, doc)
    if known is None:
        del SETTINGS[name]
    else:
        SETTINGS[name] = known
    made.value = value
    return made


@functools.cache
def getenv(key: str, default: Any = 0) -> Any:
    """The environment's value in the type of the default; read once."""
    return type(default)(os.environ.get(key, default))


def parse_value(text: str | None, default: int | str, name: str) -> int | str:
    """The environment's text as the type of the default."""
    if text is None:
        return default
    if isinstance(default, str):
        return text
    try:
        return int(text or 0)
    except ValueError:
        raise ValueError(
            f"setting {name} is a whole number, but the environment has {name}={text!r}"
        ) from None


@contextlib.contextmanager
def Context(**values: int | str) -> Iterator[None]:
    """Set settings for the time of a `with` block: `with Context(DEBUG=2, NOOPT=1): ...`.

    They are set for this thread alone. A setting that is another framework's is accepted, with one
    warning where it has no effect here.

    Raises: KeyError for a name that is no setting, with the names there are.
    """
    chosen = settings_of(values)
    warn_without_effect([s for s in chosen if s.name in values], stacklevel=4)
    before = {setting: setting.value for setting in chosen}
    try:
        for setting, value in chosen.items():
            set_value(setting, value)
        yield
    finally:
        for setting, value in before.items():
            set_value(setting, value)


def settings_of(values: Mapping[str, Any]) -> dict[Setting, Any]:
    """The settings with these names and their values; a foreign one is translated to Aster's.

    Raises: KeyError for a name that is no setting; ArgumentError for a value of another kind.
    """
    chosen: dict[Setting, Any] = {}
    for name, value in values.items():
        setting = SETTINGS[name] if name in SETTINGS else foreign(name)
        if setting is None:
            raise KeyError(f"no setting is named {name}; there are {', '.join(sorted(SETTINGS))}")
        kinds = str if isinstance(setting.default, str) else (int, float)
        if not isinstance(value, kinds):
            raise ArgumentError(
                f"setting {name} is {'text' if kinds is str else 'a number'}, given {value!r}"
            )
        chosen[setting] = value
        if setting.means is not None:
            chosen |= {SETTINGS[own]: changed for own, changed in setting.means(value).items()}
    return chosen


def foreign(name: str) -> Setting | None:
    """A setting of another framework, which a plug-in may have to declare first."""
    if name not in FOREIGN:
        ask("declare_settings")
    return FOREIGN.get(name)


def warn_without_effect(settings: Iterable[Setting], stacklevel: int) -> None:
    """Warns once for each foreign setting that has no effect, with the reason."""
    new = [
        s for s in settings if FOREIGN.get(s.name) is s and s.means is None and s.name not in WARNED
    ]
    if new:
        WARNED.update([s.name for s in new])
        reasons = "; ".join([f"{s.name} ({s.doc.rstrip('.')})" for s in new])
        warnings.warn(f"without effect in Aster: {reasons}", stacklevel=stacklevel)


def set_value(setting: Setting, value: Any) -> None:
    """Sets the value of a setting and calls its `changed` function."""
    setting.value = value
    if setting.changed is not None:
        setting.changed()


def stage_key(stage: str) -> tuple[Any, ...]:
    """The values of all settings that affect `stage`, for its cache key."""
    key = STATE.stage_keys.get(stage)
    if key is None:
        key = tuple([s.value for s in SETTINGS.values() if stage in s.affects])
        STATE.stage_keys[stage] = key
    return key


def values_here() -> dict[Setting, Any]:
    """The values of all settings in this thread, for a thread that works on its behalf."""
    return {s: s.value for s in SETTINGS.values()}


def adopt(values: dict[Setting, Any]) -> None:
    """Gives this thread the values of another."""
    for setting, value in values.items():
        setting.value = value


DEBUG = Setting(
    "DEBUG",
    0,
    "1 devices and totals, 2 kernels with times, 3 schedule and Opts, "
    "4 source, 5 IR, 6 linear program, 7 assembly.",
)
DEBUG_FILTER = Setting(
    "DEBUG_FILTER",
    "",
    "Comma-separated parts of Aster (schedule, codegen, "
    "engine, jit) whose DEBUG output is shown; empty shows all.",
)
DEV = Setting(
    "DEV",
    "",
    "Default device: CPU, CUDA, METAL, OPENCL, WEBGPU, PYTHON, NULL; empty means CUDA or METAL "
    "where one answers, else CPU. CPU=1, PYTHON=1, NULL=1, CL=1 and so on in the environment say "
    "the same.",
    marked=True,
)
DEFAULT_FLOAT = Setting(
    "DEFAULT_FLOAT",
    "FLOAT32",
    "Dtype of tensors made of Python floats: HALF, BFLOAT16, FLOAT32, DOUBLE or another float.",
)
JIT = Setting(
    "JIT", 1, "0 makes TinyJit call the function each time; 1 records and replays.", marked=True
)
TRACEMETA = Setting(
    "TRACEMETA",
    0,
    "1 notes on nodes and kernels which Tensor methods they come from; DEBUG=2 shows them.",
    ("schedule",),
)
JIT_BATCH_SIZE = Setting(
    "JIT_BATCH_SIZE", 0, "Most kernels of the first native graph of a recording; 0 is no limit."
)
CAPTURING = Setting("CAPTURING", 1, "0 lets TinyJit leave out what runs while it records.")
NOOPT = Setting("NOOPT", 0, "1 leaves every kernel as plain loops.", ("codegen",))
VIZ = Setting(
    "VIZ",
    "0",
    "1 records the run and writes it at exit as one HTML file to look at "
    "(docs/how-to/visualiser.md); a path names the file.",
)
CLANG = Setting(
    "CLANG", 0, "1 renders C and compiles it with cc instead of LLVM in the process.", ("codegen",)
)
ISA = Setting(
    "ISA",
    "",
    "Newest SIMD instructions that kernels of an x86 processor may use: avxvnni leaves out "
    "AVX-512, avx2 all that came after AVX2; empty means all that it has.",
    ("codegen",),
)
SPEC = Setting(
    "SPEC",
    0,
    "1 verifies every stage against its specification, and that accesses "
    "stay inside their buffers; 2 every pass of codegen too.",
    ("schedule", "codegen"),
)
STRICT = Setting(
    "STRICT",
    0,
    "1 raises errors of Aster's own as they are; 0 warns and takes a plainer way to right results.",
    ("schedule", "codegen"),
)
THREADS = Setting(
    "THREADS", 0, "Threads of the CPU device; 0 means one a core.", ("schedule", "codegen")
)
POOL_STRESS = Setting(
    "POOL_STRESS",
    0,
    "A number from which the CPU's threads draw delays and whose part they take next, to show "
    "that no result depends on it; 0 lets them work.",
)
DETERMINISTIC = Setting(
    "DETERMINISTIC",
    0,
    "1 gives results that are equal bit for bit with any number of THREADS; BEAM is not used then.",
    ("schedule", "codegen"),
)
# With DETERMINISTIC=1 schedules assume this many threads; any number can run the parts.
SAME_THREADS = 16
CHECK_INDEX = Setting(
    "CHECK_INDEX",
    0,
    "1 reads every tensor of indices or class numbers where it is used, and raises IndexRangeError "
    "for one that is outside of its axis, with its place; jitted functions run step by step then.",
    marked=True,
)
EXACT = Setting(
    "EXACT",
    0,
    "1 turns off rewrites after which a NaN, an infinity or the sign of a zero may be another one "
    "than IEEE 754 gives operation by operation, such as x * 0 -> 0 (docs/reference/floats.md).",
    ("schedule", "codegen"),
    marked=True,
)
ALLOW_TF32 = Setting(
    "ALLOW_TF32",
    0,
    "1 lets tensor cores round the float32 operands of products to 10 bits behind the point, and "
    "keep about 13 bits of sums of fp8 products (Hopper).",
    ("codegen",),
)
BOXES = Setting(
    "BOXES",
    -1,
    "1 lets tensor cores multiply boxes of tensors that they read from shared memory (Hopper), 0 "
    "does not, and -1 does on a device that has passed `aster doctor --self-test CUDA`; with 2 "
    "each processor has one block, whose producer copies ahead, for all its tiles, and two blocks "
    "copy for one another (a cluster).",
    ("codegen",),
)
BEAM = Setting(
    "BEAM",
    0,
    "Schedules that are kept while a faster one than the default is searched; 0 does not search.",
    ("codegen",),
)
BEAM_SECONDS = Setting("BEAM_SECONDS", 20, "Most seconds that a search takes for one kernel.")
IGNORE_BEAM_CACHE = Setting(
    "IGNORE_BEAM_CACHE", 0, "1 searches anew what a search has found before."
)
CACHEDIR = Setting("CACHEDIR", "", "Folder of the disk cache; empty means the platform's own.")
LOAD_LIMIT = Setting(
    "LOAD_LIMIT",
    32,
    "Memory that reading a file may take, in multiples of its size, beside 64 MB; 0 is no limit.",
)
LOOP_LIMIT = Setting(
    "LOOP_LIMIT",
    1 << 16,
    "Turns that the loops of a model from a file may make in one run, all together; 0 is no limit.",
)
CACHE = Setting("CACHE", 1, "0 neither reads nor writes the disk cache.")
SPLIT_REDUCE = Setting(
    "SPLIT_REDUCE",
    1,
    "1 splits a long reduction with few results in two kernels, so that all threads share it.",
    ("schedule",),
)
FUSE = Setting(
    "FUSE",
    1,
    "0 stores every reduction and every shared value; 1 lets the cost decide; 2 computes "
    "values inside of the kernels that read them wherever that is possible.",
    ("schedule",),
)
# Read while the graph is built, so that cache keys, which contain graphs, need not include it.
WINO = Setting(
    "WINO",
    -1,
    "Convolutions of 3x3 by Winograd's algorithm where that looks quicker: -1 in tiles of 2 x 2, "
    "which lose no accuracy, 1 in tiles of 4 x 4 too, 0 never.",
)
DEPTH_FIRST = Setting(
    "DEPTH_FIRST",
    1,
    "1 runs kernels that hand on large intermediates part by part, so that these stay in a cache "
    "and are never there as a whole; 0 does not; 2 wherever it can be done.",
    ("schedule",),
)
MAX_KERNEL_NODES = Setting(
    "MAX_KERNEL_NODES",
    400,
    "A fused value larger than this many nodes is stored, so that kernels stay small.",
    ("schedule",),
)
KEPT_BYTES = Setting(
    "KEPT_BYTES",
    80 << 20,
    "Bytes of schedules and kernels that are kept in memory for programs to come; past them what "
    "was not used for longest goes, and is made again when it is wanted.",
)
JIT_BYTES = Setting(
    "JIT_BYTES",
    256 << 20,
    "Bytes of intermediates that all recordings of a jitted function keep when it is recorded "
    "anew; past them those that were not replayed for longest give theirs back until they run "
    "again.",
)
GRAPH_LIMIT = Setting(
    "GRAPH_LIMIT", 200000, "Unrealized nodes of one tensor past which GRAPH_GUARD acts."
)
GRAPH_GUARD = Setting(
    "GRAPH_GUARD",
    1,
    "What happens past GRAPH_LIMIT: 0 nothing, 1 a warning "
    "that names the line, 2 the graph is realized.",
)


def debug_shown(part: str) -> bool:
    """Whether DEBUG output of this part of Aster (schedule, codegen, engine, jit) is wanted."""
    wanted = str(DEBUG_FILTER.value)
    return not wanted or part in wanted.split(",")
