"""OpenCL C: every hand-built program computes what NumPy computes, on whatever device there is."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from aster_ml.backend import Grid
from aster_ml.device import Buffer, Device, missing
from aster_ml.dtype import dtypes
from aster_ml.errors import InternalError
from aster_ml.renderer.opencl import OpenCLRenderer
from aster_ml.target import Target
from tests.core.linear_builder import GLOBAL, LOCAL, VECTOR, Builder, at
from tests.core.linear_programs import CASES, check_outputs

ABSENT = missing("OPENCL")
PLAIN = Target("OPENCL", "opencl", kind="gpu", vector_bits=128, has_local=True, has_barrier=True)
GPU_CASES = [name for name, make in CASES.items() if make().linear.thread is None]


@pytest.mark.opencl
@pytest.mark.skipif(ABSENT is not None, reason=f"OpenCL: {ABSENT}")
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
    launch = Grid(sizes, case.linear.local_size)
    program(tuple(b.handle for b in buffers), case.variables, launch)
    check_outputs([b.numpy() for b in buffers], case)


@pytest.mark.parametrize(
    "name",
    [
        "elementwise",
        "sum_with_accumulators",
        "masked_tail",
        "group_sum",
        "group_transpose",
        "symbolic_size",
    ],
)
def test_golden_opencl(name: str, golden: Callable[[str, str], None]) -> None:
    source = OpenCLRenderer(PLAIN).render(CASES[name]().linear)
    golden(f"sources/{name}.cl", source)
    assert f"__kernel void {name}(" in source


def test_sizes_of_groups_are_required() -> None:
    source = OpenCLRenderer(PLAIN).render(CASES["group_transpose"]().linear)
    assert "reqd_work_group_size(4, 4, 1)" in source
    assert "get_group_id(1)" in source
    assert "get_local_id(1)" in source
    assert "__local float" in source


def test_a_fourth_dimension_is_refused() -> None:
    b = Builder("four")
    for _ in range(4):
        b.axis(2, GLOBAL)
    with pytest.raises(InternalError, match="fourth dimension"):
        OpenCLRenderer(PLAIN).render(b.build())


def test_widths_that_opencl_lacks_are_refused() -> None:
    b = Builder("wide")
    out, x = b.param(32), b.param(32)
    v = b.axis(32, VECTOR)
    b.store(at(out, 0, v), b.load(at(x, 0, v)))
    with pytest.raises(InternalError, match="no SIMD type of 32 elements"):
        OpenCLRenderer(PLAIN).render(b.build())


def test_halves_are_bits_where_the_device_has_none() -> None:
    b = Builder("halves")
    out, x = b.param(4), b.param(4, dtypes.float16)
    item = b.axis(4, LOCAL)
    b.store(at(out, item), b.add(b.load(at(x, item)).cast(dtypes.float32)))
    assert "vload_half(" in OpenCLRenderer(PLAIN).render(b.build())
    native = Target(
        "OPENCL", "opencl", has_local=True, native_dtypes=PLAIN.native_dtypes | {"float16"}
    )
    source = OpenCLRenderer(native).render(b.build())
    assert "cl_khr_fp16" in source
    assert "vload_half" not in source
