"""C: every hand-built program computes what NumPy computes, without a warning of the compiler."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

import pytest

from aster_ml.dtype import dtypes
from aster_ml.renderer.c import CRenderer
from aster_ml.runtime.cpu import clang
from tests.core.linear_builder import C_TARGET, Builder, at, run_c
from tests.core.linear_programs import CASES, check_outputs

COMPILER = clang.find_compiler()
needs_compiler = pytest.mark.skipif(COMPILER is None, reason="no C compiler on PATH")
CPU_CASES = [name for name, make in CASES.items() if not make().groups]


@pytest.mark.cc
@needs_compiler
@pytest.mark.parametrize("name", CPU_CASES)
def test_c_computes(name: str) -> None:
    case = CASES[name]()
    buffers = [x.copy() for x in case.buffers]
    for lo, hi in case.parts:
        run_c(case.linear, buffers, case.variables, lo, hi)
    check_outputs(buffers, case)


@pytest.mark.cc
@needs_compiler
@pytest.mark.parametrize("name", CPU_CASES)
def test_no_warnings(name: str) -> None:
    source = CRenderer(C_TARGET).render(CASES[name]().linear)
    # SIMD arguments wider than what the compiler is told of are passed in memory, and it says so.
    command = [
        str(COMPILER),
        "-std=c11",
        "-Wall",
        "-Wextra",
        "-Wno-unused-parameter",
        "-Wno-psabi",
        "-Wno-unused-function",
        "-Wno-parentheses",
        "-Werror",
        "-march=native",
        "-fsyntax-only",
        "-x",
        "c",
        "-",
    ]
    done = subprocess.run(command, input=source, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stderr}\n{source}"


@pytest.mark.parametrize(
    "name",
    [
        "elementwise",
        "sum_with_accumulators",
        "masked_tail",
        "scalar_gates",
        "gather",
        "nested_reduces",
        "symbolic_size",
    ],
)
def test_golden_c(name: str, golden: Callable[[str, str], None]) -> None:
    source = CRenderer(C_TARGET).render(CASES[name]().linear)
    golden(f"sources/{name}.c", source)
    assert max(len(line) for line in source.splitlines()) <= 100


def test_variables_may_have_any_name() -> None:
    b = Builder("names")
    out = b.param(3, dtypes.int32)
    for i, name in enumerate(("int", "start pos", "start_pos")):
        b.store(at(out, i), b.variable(name, 0, 9))
    source = CRenderer(C_TARGET).render(b.build())
    assert [line.split()[1] for line in source.splitlines() if "int32_t var" in line] == [
        "var_int",
        "var_start_pos",
        "var_start_pos_",
    ]
