"""OpenCL C: every hand-built program computes what NumPy computes, on whatever device there is."""

from __future__ import annotations

import pytest

from aster_ml.device import Buffer, Device, missing
from aster_ml.renderer.opencl import OpenCLRenderer
from tests.unit.linear_programs import CASES, check_outputs

pytestmark = [
    pytest.mark.opencl,
    pytest.mark.skipif(missing("OPENCL") is not None, reason=f"OpenCL: {missing('OPENCL')}"),
]
GPU_CASES = [name for name, make in CASES.items() if make().linear.thread is None]


@pytest.mark.parametrize("name", GPU_CASES)
def test_opencl_computes(name: str) -> None:
    case = CASES[name]()
    backend = Device["OPENCL"]
    source = OpenCLRenderer(backend.target).render(case.linear)
    program = backend.load(case.linear.name, backend.compile(source))
    buffers = []
    for param, data in zip(case.linear.params, case.buffers, strict=True):
        buffers.append(Buffer("OPENCL", data.size, param.dtype).copyin(data.copy()))
    sizes = tuple(int(n) for n in case.linear.global_size)
    program(tuple(b.handle for b in buffers), case.variables, sizes, case.linear.local_size)
    check_outputs([b.numpy() for b in buffers], case)
