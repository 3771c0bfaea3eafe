"""LLVM IR: every hand-built program computes what NumPy computes, and reads as it should."""

from __future__ import annotations

import pytest

from tests.unit.linear_builder import run_llvm
from tests.unit.linear_programs import CASES, check_outputs

CPU_CASES = [name for name, make in CASES.items() if not make().groups]


@pytest.mark.parametrize("name", CPU_CASES)
def test_llvm_computes(name: str) -> None:
    case = CASES[name]()
    buffers = [x.copy() for x in case.buffers]
    for lo, hi in case.parts:
        run_llvm(case.linear, buffers, case.variables, lo, hi)
    check_outputs(buffers, case)
