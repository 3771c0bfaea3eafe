"""Registers the library and programs of this package as plug-ins, by name and not by import."""

from __future__ import annotations

from aster_ml.plugins import plug_in

# Settings of tinygrad that a program's environment may have; `compat.settings` says what they mean.
SETTINGS = """
    ALL2ALL ALLOW_DEVICE_USAGE AMD_CC AMD_LLVM AMX CACHELEVEL CCACHE CHECK_OOB
    CORRECT_DIVMOD_FOLDING CPU_CC CPU_COUNT CPU_LLVM CPU_LVP CUDA_CC CUDA_PTX DEBUG_RANGEIFY
    DEVECTORIZE DISABLE_FAST_IDIV EMULATE EMULATED_DTYPES FUSE_OPTIM IGNORE_OOB IMAGE LRU
    MAX_BUFFER_SIZE NOLOCALS NO_MEMORY_PLANNER NULL_IR3 NULL_NAK NV_CC NV_NAK NV_PTX PCONTIG
    PROFILE QCOM_CC QCOM_IR3 QUANTIZE REWRITE_STACK_LIMIT RING SCACHE SPLIT_REDUCEOP TC TC_OPT
    TC_SELECT TRACK_MATCH_STATS TRANSCENDENTAL TUPLE_ORDER USE_ATOMICS USE_TC VALIDATE_WITH_CPU
"""

plug_in(
    "aster_ml.compat.names",
    "find_name",
    "find_attribute",
    "find_module",
    "declare_settings",
    "translate",
    "simplify_lanes",
    settings=SETTINGS.split(),
    awaits={"einops._backends": "aster_ml.compat.einops"},
)
plug_in("aster_ml.complex", "complex")
plug_in("aster_ml.array_api", "array_api")
