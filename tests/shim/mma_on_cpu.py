"""Tensor cores on the CPU: a function for each row of `target/tensor_cores`, made of its layouts.

All threads of a warp leave their elements, wait for one another, and add up their own results.
"""

from __future__ import annotations

import re

from aster_ml.renderer.cuda.mma import element_of, in_word, parameters, registers, words_of
from aster_ml.renderer.cuda.wgmma import KINDS, TURNED, function_name
from aster_ml.target.tensor_cores import TENSOR_CORES, TensorCore

# A function of the renderer whose body is inline PTX.
BLOCK = re.compile(
    r"#ifndef ASTER_ON_CPU\nstatic __device__ __forceinline__ void aster_(w?g?mma_\w+)\(.*?#endif",
    re.DOTALL,
)


# Warp groups of the largest block.
MOST_GROUPS = 8
# An element from the lowest bits of a word. TF32 has 10 bits of fraction.
WIDEN = {
    "float32": "__int_as_float((int)({} & ~0x1fffu))",
    "float16": "aster_half_widen((unsigned short)({}))",
    "bfloat16": "__int_as_float((int)(({}) << 16))",
    "fp8e4m3": "aster_fp8e4m3_widen((unsigned char)({}))",
    "fp8e5m2": "aster_fp8e5m2_widen((unsigned char)({}))",
}


def given(row: TensorCore, operand: str) -> str:
    """The elements that a thread has, out of its words."""
    each, bits = in_word(row), 8 * element_of(row).itemsize
    found = []
    for i in range(registers(row, operand)):
        shift = i % each * bits
        word = f"{operand}{i // each}"
        found.append(WIDEN[row.dtype].format(f"{word} >> {shift}" if shift else word))
    return ", ".join(found)


def table(row: TensorCore, operand: str, axis: str) -> str:
    """The place along an axis of each element of each thread."""
    rows = [
        "{"
        + ", ".join(str(row.place(operand, t, r)[axis]) for r in range(registers(row, operand)))
        + "}"
        for t in range(row.warp)
    ]
    return "{" + ", ".join(rows) + "}"


def function(row: TensorCore) -> str:
    """The C++ of a row."""
    name = f"aster_mma_{row.name.removeprefix('cuda_')}"
    m, n, k = (row.size(x) for x in "mnk")
    counts = {x: registers(row, x) for x in "abc"}
    tables = [
        f"static const unsigned char {x}{axis}[{row.warp}][{counts[x]}] = {table(row, x, axis)};"
        for x, axes in (("a", "mk"), ("b", "kn"), ("c", "mn"))
        for axis in axes
    ]
    fills = "\n".join(
        f"  for (int i = 0; i < {counts[x]}; i++) {y} = g{x}[i];"
        for x, y in (("a", "A[turn][am[t][i]][ak[t][i]]"), ("b", "B[turn][bk[t][i]][bn[t][i]]"))
    )
    return f"""
static void {name}({parameters(row)}) {{
  {" ".join(tables)}
  static float A[2][{m}][{k}], B[2][{k}][{n}];
  int t = ASTER_LANE, turn = aster_cpu::fibers[aster_cpu::current].turn;
  float ga[] = {{{given(row, "a")}}}, gb[] = {{{given(row, "b")}}};
{fills}
  aster_cpu::fibers[aster_cpu::current].turn = !turn;
  __syncwarp();
  float *c[] = {{{", ".join(f"&c{i}" for i in range(counts["c"]))}}};
  for (int i = 0; i < {counts["c"]}; i++) {{
    double sum = *c[i];
    for (int j = 0; j < {k}; j++) {{
      sum += (double)A[turn][cm[t][i]][j] * B[turn][j][cn[t][i]];
    }}
    *c[i] = (float)sum;
  }}
}}
"""


def group_function(row: TensorCore, majors: str) -> str:
    """The C++ of a row whose operands lie in shared memory (see `hopper_on_cpu.h`).

    Where threads have operand A, those of a warp leave its rows for one another.
    """
    places = range(registers(row, "c"))
    params = ", ".join([f"float &c{i}" for i in places])
    turned = [int(x != "k") for x in majors]
    n, k, kind = row.size("n"), row.size("k"), list(KINDS).index(row.dtype)
    assert set(majors) <= {"k", "r"} or row.dtype in TURNED, f"{row.name}: operands as {majors}"
    words = words_of(row, "a") if majors[0] == "r" else []
    first = ", ".join([f"unsigned int {w}" for w in words] or ["unsigned long long a"])
    sizes = f"{n}, {k}, {kind}, {32 // k}"
    call = f"aster_cpu::multiply(c, {sizes}, {turned[0]}, {turned[1]}, a, b);"
    if words:
        count = registers(row, "a")
        call = f"""static const unsigned char am[{row.warp}][{count}] = {table(row, "a", "m")};
  static const unsigned char ak[{row.warp}][{count}] = {table(row, "a", "k")};
  static float A[2][{row.warp * MOST_GROUPS // 2}][{k}];
  int t = aster_cpu::current % {row.warp}, turn = aster_cpu::fibers[aster_cpu::current].turn;
  int group = aster_cpu::current / {row.warp} * {row.size("m")};
  float ga[] = {{{given(row, "a")}}};
  for (int i = 0; i < {count}; i++) A[turn][group + am[t][i]][ak[t][i]] = ga[i];
  aster_cpu::fibers[aster_cpu::current].turn = !turn;
  __syncwarp();
  aster_cpu::multiply_own(c, {sizes}, {turned[1]}, A[turn] + group, b);"""
    return f"""
static void {function_name(row, majors)}({params}, {first}, unsigned long long b) {{
  float *c[] = {{{", ".join([f"&c{i}" for i in places])}}};
  {call}
  __syncwarp();
}}
"""


def with_tensor_cores(source: str) -> str:
    """A source whose tensor cores are functions that a CPU runs."""

    def replaced(match: re.Match[str]) -> str:
        if match[1].startswith("wgmma_"):
            name, _, majors = match[1].rpartition("_")
            return group_function(TENSOR_CORES[f"cuda_{name}"], majors)
        return function(TENSOR_CORES[f"cuda_{match[1].removeprefix('mma_')}"])

    return BLOCK.sub(replaced, source)
