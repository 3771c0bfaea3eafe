"""CUDA: what cards of each architecture can do, and what a kernel's source says of its launch.

Receives the name of an architecture ("sm_80"), returns a Target; so kernels can be compiled for a
card that is not there. A runtime replaces what it finds out by what it asks of its card.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from aster_ml.errors import ArgumentError
from aster_ml.target.target import GPU, INTEGERS, PLAIN_OPS, Target
from aster_ml.target.tensor_cores import GROUP_CORES, cuda_tensor_cores

# Functions that CUDA's library has, of an error that its Programming Guide bounds (2 ULP, but for
# POW, of which it is 4).
BUILT_IN_OPS = PLAIN_OPS | {"EXP2", "LOG2", "SIN", "TANH", "POW"}
DTYPES = INTEGERS | {"float16", "bfloat16", "float32", "float64"}
# Blocks of a launch (CUDA C++ Programming Guide, "Technical Specifications").
MAX_BLOCKS = (2**31 - 1, 65535, 65535)
# A block has so many bytes of shared memory without asking; of more a launch has to ask for all.
STATIC_NBYTES = 48 << 10
DYNAMIC = "// Dynamic shared memory: "


class Card(NamedTuple):
    """Properties of all cards of an architecture, and of one its number of multiprocessors.

    `local` are bytes of shared memory of a block, `cache` those of the second level.
    """

    units: int
    local: int
    cache: int
    features: tuple[str, ...]


# CUDA C++ Programming Guide, "Technical Specifications per Compute Capability"; units and cache are
# those of T4, A100, A10, Orin, L40, H100, B200 and RTX 5090.
TURING = ("shuffle", "ldmatrix")
AMPERE = (*TURING, "cp_async")
# Products of fp8 are instructions; other cards make some of float16 of them.
ADA = (*AMPERE, "mma_fp8")
HOPPER = (*AMPERE, "tma", "stmatrix")
CARDS = {
    "sm_75": Card(40, 64 << 10, 4 << 20, TURING),
    "sm_80": Card(108, 163 << 10, 40 << 20, AMPERE),
    "sm_86": Card(72, 99 << 10, 6 << 20, AMPERE),
    "sm_87": Card(16, 163 << 10, 4 << 20, AMPERE),
    "sm_89": Card(142, 99 << 10, 96 << 20, ADA),
    "sm_90a": Card(132, 227 << 10, 50 << 20, (*HOPPER, "wgmma")),
    "sm_100a": Card(148, 227 << 10, 126 << 20, HOPPER),
    "sm_120a": Card(170, 99 << 10, 96 << 20, (*HOPPER, "mma_fp8")),
}


def cuda_target(arch: str, device: str = "CUDA") -> Target:
    """The Target of cards of an architecture.

    Raises: ArgumentError for one that is not known.
    """
    card = CARDS.get(arch)
    if card is None:
        raise ArgumentError(f"cuda: no architecture {arch!r}; there are {', '.join(CARDS)}")
    return Target(
        device, "cuda", arch=arch, kind=GPU, vector_bits=128, vector_registers=64,
        cache_bytes=(128 << 10, card.cache, card.cache),
        has_local=True, has_barrier=True, max_group=1024, local_bytes=card.local,
        max_grid=MAX_BLOCKS, warp=32, units=card.units, features=frozenset(card.features),
        tensor_cores=tensor_cores_of(arch),
        native_dtypes=DTYPES, native_ops=BUILT_IN_OPS, fused=True,
    )  # fmt: skip


def tensor_cores_of(arch: str) -> frozenset[str]:
    """Those of an architecture, also those whose operands lie in local memory."""
    names = cuda_tensor_cores(int(re.sub(r"\D", "", arch)))
    if "wgmma" in CARDS[arch].features:
        names |= GROUP_CORES
    return names


def dynamic_nbytes(source: str) -> int:
    """Bytes of shared memory that launches of a kernel have to ask for."""
    found = re.search(f"^{DYNAMIC}([0-9]+)", source, re.MULTILINE)
    return int(found[1]) if found else 0
