"""Which kernels are worth less of LLVM's work, and that these compute the same."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from aster_ml.dtype import DType, dtypes
from aster_ml.renderer.llvm import LLVMRenderer
from aster_ml.runtime import llvm_jit
from tests.unit.linear_builder import (
    CPU,
    LOOP,
    REDUCE,
    UPCAST,
    VECTOR,
    Builder,
    at,
    run_llvm,
)
from tests.unit.linear_programs import f32, i32

X86 = replace(CPU, arch="x86_64")


def rows(turns: int, count: int, dtype: DType = dtypes.float32) -> Builder:
    """In each turn, so many times eight neighbours are squared and one added."""
    b = Builder("rows")
    out, x = (b.param(turns * count * 8) for _ in range(2))
    r = b.axis(turns, LOOP)
    j, v = b.axis(count, UPCAST), b.axis(8, VECTOR)
    base = b.add(r * i32(8 * count))
    value = b.load(at(x, base, j * 8 + v))
    if dtype is not dtypes.float32:
        value = b.add(b.add(value.cast(dtype)).cast(dtypes.float32))
    b.store(at(out, base, j * 8 + v), b.add(b.add(value * value) + f32(1)))
    b.end(r)
    return b


def sums() -> Builder:
    """Sixteen sums of eight lanes each."""
    b = Builder("sums")
    out, x = b.param(16), b.param(16 * 8 * 4)
    j, v = b.axis(16, UPCAST), b.axis(8, VECTOR)
    total = b.reg(f32(0), j)
    r = b.axis(4, REDUCE)
    base = b.add(r * i32(128))
    b.accumulate(total, b.reduce(b.load(at(x, base, j * 8 + v)), v))
    b.end(r)
    b.store(at(out, 0, j), total)
    return b


def source_of(b: Builder, arch: str = "x86_64") -> str:
    return LLVMRenderer(replace(CPU, arch=arch)).render(b.build())


def test_whole_registers_in_few_turns_are_compiled_at_level_0() -> None:
    source = source_of(rows(5, 16))
    assert source.splitlines()[0].endswith("nounwind noinline optnone {")
    assert llvm_jit.level_of(source) == llvm_jit.QUICK_LEVEL


@pytest.mark.parametrize(
    "b",
    [
        pytest.param(rows(5, 2), id="short turns"),
        pytest.param(rows(100_000, 16), id="many turns"),
        pytest.param(rows(5, 16, dtypes.int8), id="narrow lanes"),
        pytest.param(sums(), id="accumulators"),
    ],
)
def test_other_kernels_get_all_of_it(b: Builder) -> None:
    source = source_of(b)
    assert "optnone" not in source
    assert llvm_jit.level_of(source) == llvm_jit.CODEGEN_LEVEL


def test_other_processors_get_all_of_it() -> None:
    assert "optnone" not in source_of(rows(5, 16), "aarch64")


def test_a_kernel_beside_a_function_that_needs_more_is_compiled_with_it() -> None:
    source = source_of(rows(5, 16))
    driver = "define void @driver() nounwind {\n  ret void\n}\n"
    assert llvm_jit.level_of(source + driver) == llvm_jit.CODEGEN_LEVEL


def test_both_levels_compute_the_same() -> None:
    x = np.random.default_rng(1).standard_normal(5 * 16 * 8).astype(np.float32)
    found = []
    for target in (CPU, X86):
        out = np.zeros_like(x)
        run_llvm(rows(5, 16).build(), [out, x], target=target)
        found.append(out)
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_allclose(found[0], x * x + 1, rtol=1e-6)
