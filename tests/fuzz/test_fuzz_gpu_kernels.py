"""Random programs on each device with work-groups, against plain loops on the CPU.

Programs are those of `random_kernels`. CUDA C++ and Metal's language run on fibers (`tests/shim`),
WGSL on whatever Vulkan there is, OpenCL C on PoCL. `FUZZ=large` draws 1,000 for each device.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from aster_ml import Context, Device
from aster_ml.device import missing
from aster_ml.uop.graph import toposort
from tests.fuzz.budget import check_all, draws
from tests.fuzz.random_kernels import Drawing
from tests.fuzz.test_fuzz_kernels import WIDE, difference, kernels
from tests.shim import devices

OTHERS = {"WEBGPU": pytest.mark.webgpu, "OPENCL": pytest.mark.opencl}
DEVICES = [pytest.param(name, marks=pytest.mark.cc) for name in devices.SHIMS]
DEVICES += [pytest.param(name, marks=mark) for name, mark in OTHERS.items()]


def has_all(program: Any, device: str) -> bool:
    """Whether a device has what a program's kernels are of; others are refused, as tests say."""
    lacking = WIDE - Device[device].target.native_dtypes
    return not lacking or not any(
        [u.dtype.name in lacking for ast in kernels(program.on_nothing()) for u in toposort(ast)]
    )


@pytest.mark.parametrize("device", DEVICES)
def test_devices_compute_what_plain_loops_do(
    device: str, record_property: Callable[[str, str], None]
) -> None:
    absent = missing(device)
    if absent is not None:
        pytest.skip(f"{device}: {absent}")

    def check(seed: int) -> str | None:
        program = Drawing(seed).program()
        if not has_all(program, device):
            return None
        with Context(NOOPT=1):
            wanted: Any = program.on_memory(seed).numpy()
        wrong = difference(program.on_memory(seed, device).numpy(), wanted, program)
        return None if wrong is None else f"{device}: {wrong}: {program.text}"

    check_all(f"programs on {device}", draws(2, 1000), check, record_property)
