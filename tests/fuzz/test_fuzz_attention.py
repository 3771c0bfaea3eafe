"""Attention on tensor cores: random heads, masks and dtypes beside float64.

The CUDA C++ runs on the CPU (`tests/shim`), where copies come as late as they may and threads run
in changing order, so a wait or a barrier too few shows.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.core.kernel_library.attention.test_boxes import error_of_boxes
from tests.core.kernel_library.attention.test_gradient import (
    drawn,
    gradients,
    gradients_of,
    mask_of,
)
from tests.core.kernel_library.attention.test_kernel import BOUNDS, error_of
from tests.fuzz.budget import check_all, draws
from tests.shim import devices, on_cpu

pytestmark = [
    pytest.mark.cc,
    pytest.mark.skipif(on_cpu.find_compiler() is None, reason="no C++ compiler on PATH: g++"),
]
KINDS = ("", "causal", "bool", "float")
SIZES = (16, 17, 31, 32, 33, 47, 64, 65, 79, 96, 127, 129)
# Boxes bring two tiles of keys or more.
KEYS = (65, 79, 96, 127, 128, 129, 200, 256, 257, 300, 390)
STAGES = ("", "2,copies", "2,producer")


def check(seed: int) -> str | None:
    """What is wrong with one random attention on a device of the shim."""
    rng = np.random.default_rng(seed)
    n, m = (int(rng.choice(SIZES)) for _ in range(2))
    if rng.random() < 0.2:
        m = int(rng.integers(1, 16))
    d, e = (16 * int(rng.integers(1, 9)) for _ in range(2))
    if rng.random() < 0.3:
        d, e = (int(rng.integers(1, 257)) for _ in range(2))
    kind, dtype = str(rng.choice(KINDS)), list(BOUNDS)[int(rng.integers(2))]
    heads, device = int(rng.integers(1, 4)), str(rng.choice(devices.SHIMS))
    error = error_of(heads, n, m, d, e, kind, device, dtype)
    if error <= BOUNDS[dtype]:
        return None
    return f"{device} {dtype} {heads} {n} {m} {d} {e} {kind}: off by {error}"


def gradients_are_wrong(seed: int) -> str | None:
    """What is wrong with the gradients of one random attention."""
    rng = np.random.default_rng(seed)
    n, m = (int(rng.choice(SIZES)) for _ in range(2))
    d, e = (16 * int(rng.integers(1, 9)) for _ in range(2))
    if rng.random() < 0.5:
        d, e = (int(rng.integers(1, 257)) for _ in range(2))
    kind, dtype = str(rng.choice(KINDS)), list(BOUNDS)[int(rng.integers(2))]
    heads, device = int(rng.integers(1, 3)), str(rng.choice(devices.SHIMS))
    arrays = drawn(seed, dtype, (heads, n, d), (heads, m, d), (heads, m, e), (heads, n, e))
    mask = mask_of(kind, n, m)
    right = gradients_of(arrays, mask, kind == "causal")
    mine = gradients(arrays, mask, kind == "causal", device, dtype)
    # Errors of sums of many rounded products, beside the size of what they are errors of.
    off = [
        np.abs(a - b).max() / max(np.sqrt((b**2).mean()), 1e-3)
        for a, b in zip(mine, right, strict=True)
    ]
    if max(off) <= 8 * BOUNDS[dtype]:
        return None
    return f"{device} {dtype} {heads} {n} {m} {d} {e} {kind}: off by {off}"


def boxes_are_wrong(seed: int) -> str | None:
    """What is wrong with one random attention for Hopper, whose operands boxes bring."""
    rng = np.random.default_rng(seed)
    n, m = int(rng.choice(SIZES)), int(rng.choice(KEYS))
    d, e = (16 * int(rng.integers(1, 9)) for _ in range(2))
    kind, dtype = str(rng.choice(KINDS)), list(BOUNDS)[int(rng.integers(2))]
    heads, stages = int(rng.integers(1, 3)), str(rng.choice(STAGES))
    error = error_of_boxes(heads, n, m, d, e, kind, dtype, stages)
    if error <= BOUNDS[dtype]:
        return None
    return f"boxes {dtype} {heads} {n} {m} {d} {e} {kind} {stages}: off by {error}"


def test_random_attention_by_boxes(record_property: Callable[[str, str], None]) -> None:
    check_all("attention", draws(1, 100), boxes_are_wrong, record_property)


def test_random_gradients(record_property: Callable[[str, str], None]) -> None:
    check_all("gradients", draws(1, 100), gradients_are_wrong, record_property)


def test_random_attention(record_property: Callable[[str, str], None]) -> None:
    check_all("attention", draws(2, 200), check, record_property)
