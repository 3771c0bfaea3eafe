"""Kernels written by hand in LLVM IR and C, and interpreters to run them in."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from pathlib import Path

from aster_ml.runtime.cpu import llvm_jit
from aster_ml.runtime.cpu.program import CpuProgram

LOOP = """
define void @{name}(ptr %slots, i64 %lo, i64 %hi) {{
entry:
  {loads}
  %some = icmp slt i64 %lo, %hi
  br i1 %some, label %loop, label %done
loop:
  %i = phi i64 [ %lo, %entry ], [ %next, %loop ]
  {body}
  %next = add nuw nsw i64 %i, 1
  %more = icmp slt i64 %next, %hi
  br i1 %more, label %loop, label %done
done:
  ret void
}}
"""


def slot_loads(*kinds: str) -> str:
    """Loads slot 0 into %s0 as the first type, slot 1 into %s1 as the second, and so on."""
    lines = []
    for index, kind in enumerate(kinds):
        lines.append(f"%p{index} = getelementptr i64, ptr %slots, i64 {index}")
        lines.append(f"%s{index} = load {kind}, ptr %p{index}")
    return "\n  ".join(lines)


# y[i] += a * x[i], a whole number that comes as a variable.
AXPY = LOOP.format(
    name="axpy",
    loads=slot_loads("ptr", "ptr", "i64") + "\n  %a = sitofp i64 %s2 to float",
    body="""%px = getelementptr float, ptr %s0, i64 %i
  %py = getelementptr float, ptr %s1, i64 %i
  %x = load float, ptr %px, align 4
  %y = load float, ptr %py, align 4
  %ax = fmul contract float %a, %x
  %sum = fadd contract float %ax, %y
  store float %sum, ptr %py, align 4""",
)

# partial[i] = sum of x[i*m] ... x[(i+1)*m - 1], in integers.
ROW_SUM = """
define void @row_sum(ptr %slots, i64 %lo, i64 %hi) {
entry:
  LOADS
  %some = icmp slt i64 %lo, %hi
  br i1 %some, label %rows, label %done
rows:
  %row = phi i64 [ %lo, %entry ], [ %row.next, %row.end ]
  %start = mul i64 %row, %s2
  br label %loop
loop:
  %j = phi i64 [ 0, %rows ], [ %j.next, %loop ]
  %acc = phi i64 [ 0, %rows ], [ %sum, %loop ]
  %at = add i64 %start, %j
  %px = getelementptr i64, ptr %s0, i64 %at
  %x = load i64, ptr %px
  %sum = add i64 %acc, %x
  %j.next = add i64 %j, 1
  %more = icmp slt i64 %j.next, %s2
  br i1 %more, label %loop, label %row.end
row.end:
  %py = getelementptr i64, ptr %s1, i64 %row
  store i64 %sum, ptr %py
  %row.next = add i64 %row, 1
  %more.rows = icmp slt i64 %row.next, %hi
  br i1 %more.rows, label %rows, label %done
done:
  ret void
}
""".replace("LOADS", slot_loads("ptr", "ptr", "i64"))

# counts[i] += 1, atomically, so that a part that ran twice shows as well as one that did not run.
COUNT = LOOP.format(
    name="count",
    loads=slot_loads("ptr"),
    body="""%p = getelementptr i64, ptr %s0, i64 %i
  %old = atomicrmw add ptr %p, i64 1 seq_cst""",
)

# out[i] = in[(i + shift) mod n] + 1: each element comes from another thread's part.
SHIFT = LOOP.format(
    name="shift",
    loads=slot_loads("ptr", "ptr", "i64", "i64"),
    body="""%far = add i64 %i, %s3
  %from = urem i64 %far, %s2
  %px = getelementptr i64, ptr %s0, i64 %from
  %x = load i64, ptr %px
  %y = add i64 %x, 1
  %py = getelementptr i64, ptr %s1, i64 %i
  store i64 %y, ptr %py""",
)

SHIFT_C = """
#include <stdint.h>
void shift(void** slots, int64_t lo, int64_t hi) {
  int64_t* in = slots[0]; int64_t* out = slots[1];
  int64_t n = (int64_t)slots[2], shift = (int64_t)slots[3];
  for (int64_t i = lo; i < hi; i++) out[i] = in[(i + shift) % n] + 1;
}
"""

SOURCES = {"axpy": AXPY, "row_sum": ROW_SUM, "count": COUNT, "shift": SHIFT}


@functools.cache
def kernel(name: str) -> CpuProgram:
    """One of the kernels above, compiled and loaded."""
    return CpuProgram(name, llvm_jit.load_object(llvm_jit.compile_ir(SOURCES[name]), name))


def python_environment(**more: str) -> dict[str, str]:
    """The environment for another interpreter that has to find this package and these tests."""
    root = Path(__file__).parents[2]
    path = os.pathsep.join([str(root / "src"), str(root)])
    return {**os.environ, "PYTHONPATH": path, **more}


def run_python(code: str, *arguments: str, timeout_s: float = 60, **environment: str) -> str:
    """What a program prints; it has to end in time, without an error and without complaint."""
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True, text=True, timeout=timeout_s, check=False,
        env=python_environment(**environment),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout
