"""WGSL: hand-built programs compute what NumPy computes, and the text is as WebGPU wants it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from aster_ml.backend import Grid
from aster_ml.device import Buffer, Device, missing
from aster_ml.dtype import DType, dtypes
from aster_ml.errors import InternalError
from aster_ml.renderer.wgsl import WgslRenderer
from aster_ml.runtime.webgpu_program import LaunchFacts
from aster_ml.target import PLAIN_DTYPES, Target
from aster_ml.uop.linear import Linear
from aster_ml.uop.node import UOp
from tests.unit.linear_builder import GLOBAL, LOCAL, VECTOR, Builder, at
from tests.unit.linear_programs import CASES, check_outputs

ABSENT = missing("WEBGPU")
PLAIN = Target(
    "WEBGPU", "wgsl", kind="gpu", has_local=True, has_barrier=True,
    native_dtypes=PLAIN_DTYPES - {"float64"},
)  # fmt: skip


def computable() -> list[str]:
    """Cases without threads, SIMD lanes and float64."""
    found = []
    for name, make in CASES.items():
        linear = make().linear
        lanes = {r.arg.kind for u in linear.uops for r in u.ranges}
        dts = {u.dtype for u in linear.uops}
        indices = [u for u in linear.uops if u.dtype is dtypes.int64]
        if linear.thread is None and VECTOR not in lanes and dtypes.float64 not in dts:
            found += [name] if not indices else []
    return found


@pytest.mark.webgpu
@pytest.mark.skipif(ABSENT is not None, reason=f"WebGPU: {ABSENT}")
@pytest.mark.parametrize("name", computable())
def test_wgsl_computes(name: str) -> None:
    case = CASES[name]()
    backend = Device["WEBGPU"]
    source = WgslRenderer(backend.target).render(case.linear)
    program = backend.load(case.linear.name, backend.compile(source))
    buffers = []
    for param, data in zip(case.linear.params, case.buffers, strict=True):
        buffers.append(Buffer("WEBGPU", data.size, param.dtype).copyin(data.copy()))
    sizes = tuple(int(n) for n in case.linear.global_size)
    launch = Grid(sizes, case.linear.local_size)
    program(tuple(b.handle for b in buffers), case.variables, launch)
    check_outputs([b.numpy() for b in buffers], case)


@pytest.mark.parametrize("name", ["group_sum", "group_transpose", "symbolic_size"])
def test_golden_wgsl(name: str, golden: Callable[[str, str], None]) -> None:
    source = WgslRenderer(PLAIN).render(CASES[name]().linear)
    golden(f"sources/{name}.wgsl", source)
    assert "fn main(" in source


def written(value: Callable[[UOp], UOp], source: DType) -> str:
    """The source of out[block] = value(in[block])."""
    return WgslRenderer(PLAIN).render(program(value, source))


def program(value: Callable[[UOp], UOp], source: DType) -> Linear:
    """out[block] = value(in[block])."""
    b = Builder("one")
    given = b.param(64, source)
    result = value(UOp.const(source, 0)).dtype
    out = b.param(64, result)
    block = b.axis(4, GLOBAL)
    b.store(at(out, block), b.add(value(b.load(at(given, block)))))
    return b.build()


def test_the_first_line_says_what_a_launch_has_to_know() -> None:
    facts = LaunchFacts.parse(written(lambda x: x.cast(dtypes.uint8), dtypes.int64))
    assert facts == LaunchFacts(((8, 0), (1, 1)), ())
    with pytest.raises(InternalError, match="begins with 'fn main'"):
        LaunchFacts.parse("fn main")


def test_arguments_count_elements_and_cut_variables_in_words() -> None:
    facts = LaunchFacts(((4, 0), (1, 1)), (1, 2))
    words = np.frombuffer(facts.arguments((8, 3), (-1, 1 << 33)), np.uint32)
    assert words.tolist() == [0, 2, 3, 0xFFFFFFFF, 0, 2, 0, 0]
    assert facts.argument_nbytes == words.nbytes
    with pytest.raises(RuntimeError, match="begins at byte 6 of elements of 4 bytes; a copy"):
        facts.arguments((6, 0), (0, 0))


def test_nan_is_told_by_bits_and_infinity_made_at_run_time() -> None:
    source = written(lambda x: x.ne(x), dtypes.float32)
    assert "is_nan(" in source
    assert "!=" not in source.partition("fn main")[2].replace("!= 0u", "")
    source = written(lambda x: (x < float("inf")).where(x, x.const_like(1.0)), dtypes.float32)
    assert "bitcast<f32>(x | args.zero)" in source
    assert "2139095040u" in source


def test_narrow_elements_are_stored_by_atomics_and_words_are_not() -> None:
    narrow = written(lambda x: x.cast(dtypes.int8), dtypes.float32)
    assert "var<storage, read_write> buf1: array<atomic<u32>>;" in narrow
    assert "atomicAnd(&buf1" in narrow
    assert "atomicOr(&buf1" in narrow
    assert "atomic" not in written(lambda x: x + 1, dtypes.int32)


def test_what_wgsl_has_not() -> None:
    with pytest.raises(InternalError, match="WGSL has no float64"):
        written(lambda x: x + 1, dtypes.float64)
    b = Builder("simd")
    out = b.param(4)
    lane = b.axis(4, VECTOR)
    b.store(at(out, UOp.const(dtypes.int32, 0), lane), UOp.const(dtypes.float32, 1.0))
    with pytest.raises(InternalError, match="on a target without SIMD"):
        WgslRenderer(PLAIN).render(b.build())
    b = Builder("deep")
    out = b.param(64)
    axes = [b.axis(2, LOCAL) for _ in range(4)]
    b.store(at(out, b.add(axes[0] + axes[3])), UOp.const(dtypes.float32, 1.0))
    with pytest.raises(InternalError, match="fourth dimension"):
        WgslRenderer(PLAIN).render(b.build())
