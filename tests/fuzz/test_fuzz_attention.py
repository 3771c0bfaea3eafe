"""Attention on tensor cores: random heads, masks and dtypes beside float64.

The CUDA C++ runs on the CPU (`tests/shim`), where copies come as late as they may and threads run
in changing order, so a wait or a barrier too few shows.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.fuzz.budget import check_all, draws
from tests.shim import devices, on_cpu
from tests.unit.codegen.gpu.test_attention import BOUNDS, error_of

pytestmark = [
    pytest.mark.cc,
    pytest.mark.skipif(on_cpu.find_compiler() is None, reason="no C++ compiler on PATH: g++"),
]
KINDS = ("", "causal", "bool", "float")
SIZES = (16, 17, 31, 32, 33, 47, 64, 65, 79, 96, 127, 129)


def check(seed: int) -> str | None:
    """What is wrong with one random attention on a device of the shim."""
    rng = np.random.default_rng(seed)
    n, m = (int(rng.choice(SIZES)) for _ in range(2))
    if rng.random() < 0.2:
        m = int(rng.integers(1, 16))
    d, e = (16 * int(rng.integers(1, 9)) for _ in range(2))
    if rng.random() < 0.15:
        # Heads that no tensor core takes are several kernels.
        d, e = (int(rng.integers(1, 129)) for _ in range(2))
    kind, dtype = str(rng.choice(KINDS)), list(BOUNDS)[int(rng.integers(2))]
    heads, device = int(rng.integers(1, 4)), str(rng.choice(devices.SHIMS))
    error = error_of(heads, n, m, d, e, kind, device, dtype)
    if error <= BOUNDS[dtype]:
        return None
    return f"{device} {dtype} {heads} {n} {m} {d} {e} {kind}: off by {error}"


def test_random_attention(record_property: Callable[[str, str], None]) -> None:
    check_all("attention", draws(2, 200), check, record_property)
