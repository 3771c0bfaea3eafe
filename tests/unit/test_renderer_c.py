"""C: every hand-built program computes what NumPy computes, without a warning of the compiler."""

from __future__ import annotations

import pytest

from aster_ml.runtime import clang
from tests.unit.linear_builder import run_c
from tests.unit.linear_programs import CASES, check_outputs

pytestmark = [
    pytest.mark.cc,
    pytest.mark.skipif(clang.find_compiler() is None, reason="no C compiler on PATH"),
]
CPU_CASES = [name for name, make in CASES.items() if not make().groups]


@pytest.mark.parametrize("name", CPU_CASES)
def test_c_computes(name: str) -> None:
    case = CASES[name]()
    buffers = [x.copy() for x in case.buffers]
    for lo, hi in case.parts:
        run_c(case.linear, buffers, case.variables, lo, hi)
    check_outputs(buffers, case)
