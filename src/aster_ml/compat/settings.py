"""Settings of tinygrad that Aster has under another name, or has not.

A program may give them to `Context`, in the environment, and read their values. A row says what
one comes to here (`MEANS`), or why nothing follows from it (`WITHOUT_EFFECT`): then there is one
warning when it is set. Settings that both have under one name are declared in `config.py` alone.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from aster_ml.config import FOREIGN, SETTINGS, Setting, settings_of, warn_without_effect

# name: (default, values of our settings that one value comes to, what that is in words)
MEANS: dict[str, tuple[int, Callable[[Any], dict[str, Any]], str]] = {
    "CPU_COUNT": (0, lambda n: {"THREADS": int(n)}, "THREADS."),
    "SPLIT_REDUCEOP": (1, lambda on: {"SPLIT_REDUCE": int(on)}, "SPLIT_REDUCE."),
    "CCACHE": (1, lambda on: {"CACHE": int(bool(on))}, "CACHE."),
    "CACHELEVEL": (2, lambda level: {"CACHE": int(level > 0)}, "CACHE=0 where it is 0."),
    "PCONTIG": (0, lambda level: {"FUSE": 2 if level > 1 else 1}, "FUSE=2 where it is 2 or more."),
}

OWN_WAY = "the compiler decides by cost"
ONE_BACKEND = "each device has one compiler; CLANG=1 has C compiled"
NO_SUCH_DEVICE = "Aster has no such device"
IN_BOUNDS = (
    "SPEC=1 checks that accesses stay inside of their buffers, CHECK_INDEX=1 values of indices"
)
NO_TENSOR_CORES = "products go to tensor cores where the device has them"
# name: (default, why nothing follows)
WITHOUT_EFFECT: dict[str, tuple[int | str, str]] = {
    "ALL2ALL": (0, "tensors on several devices are summed in one way"),
    "ALLOW_DEVICE_USAGE": (1, "devices may always be used"),
    "AMD_CC": ("", NO_SUCH_DEVICE),
    "AMD_LLVM": (0, NO_SUCH_DEVICE),
    "AMX": (0, NO_TENSOR_CORES),
    "CHECK_OOB": (0, IN_BOUNDS),
    "CORRECT_DIVMOD_FOLDING": (0, "division is always folded correctly"),
    "CPU_CC": ("", ONE_BACKEND),
    "CPU_LLVM": (0, ONE_BACKEND),
    "CPU_LVP": (0, ONE_BACKEND),
    "CUDA_CC": ("", ONE_BACKEND),
    "CUDA_PTX": (0, ONE_BACKEND),
    "DEBUG_RANGEIFY": (0, "DEBUG=3 shows the schedule"),
    "DEVECTORIZE": (1, "lanes are axes until the source is written"),
    "DISABLE_FAST_IDIV": (0, OWN_WAY),
    "EMULATE": ("", "no device is emulated"),
    "EMULATED_DTYPES": ("", "dtypes that the processor lacks are emulated without being asked"),
    "FUSE_OPTIM": (0, "updates of parameters of one shape are one kernel anyway"),
    "IGNORE_OOB": (1, IN_BOUNDS),
    "IMAGE": (0, "no device has images"),
    "LRU": (1, "freed memory is always pooled"),
    "MAX_BUFFER_SIZE": (0, "the size of a buffer has no limit of its own"),
    "NOLOCALS": (0, OWN_WAY),
    "NO_MEMORY_PLANNER": (0, "temporaries always share an arena"),
    "NULL_IR3": (0, ONE_BACKEND),
    "NULL_NAK": (0, ONE_BACKEND),
    "NV_CC": ("", ONE_BACKEND),
    "NV_NAK": (0, ONE_BACKEND),
    "NV_PTX": (0, ONE_BACKEND),
    "PROFILE": (0, "GlobalCounters, DEBUG=2 and helpers.Profiling time things"),
    "QCOM_CC": ("", NO_SUCH_DEVICE),
    "QCOM_IR3": (0, NO_SUCH_DEVICE),
    "QUANTIZE": (0, "quantized graphs are compiled like others"),
    "REWRITE_STACK_LIMIT": (250000, "rewriting stops by itself"),
    "RING": (1, "tensors on several devices are summed in one way"),
    "SCACHE": (1, "schedules are always kept"),
    "TC": (1, NO_TENSOR_CORES),
    "TC_OPT": (0, NO_TENSOR_CORES),
    "TC_SELECT": (-1, NO_TENSOR_CORES),
    "TRACK_MATCH_STATS": (0, "DEBUG=5 shows each stage"),
    "TRANSCENDENTAL": (1, "exp, log and sin are always computed by the kernel itself"),
    "TUPLE_ORDER": (1, "operands are ordered in one way"),
    "USE_ATOMICS": (0, "no kernel needs atomic operations"),
    "USE_TC": (1, NO_TENSOR_CORES),
    "VALIDATE_WITH_CPU": (0, "DEV=PYTHON computes the same by another way"),
}


def declare() -> None:
    """Declares all of them, and follows those that the environment has."""
    for name, (default, means, text) in MEANS.items():
        foreign(name, default, text).means = means
    for name, (value, reason) in WITHOUT_EFFECT.items():
        foreign(name, value, reason)
    given = {name: FOREIGN[name] for name in FOREIGN if os.environ.get(name)}
    for name, setting in given.items():
        for own, value in settings_of({name: setting.value}).items():
            if own is not setting and own.name not in os.environ:
                own.set_for_all(value)
    changed = [s for s in given.values() if s.value != s.default]
    warn_without_effect(changed, stacklevel=2)


def foreign(name: str, default: int | str, doc: str) -> Setting:
    """A setting that is not among our own."""
    setting = Setting(name, default, doc)
    del SETTINGS[name]
    FOREIGN[name] = setting
    return setting


declare()
