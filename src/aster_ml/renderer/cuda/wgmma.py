"""Writes functions for tensor cores of Hopper: `wgmma` of operands that lie in shared memory.

Receives a row of `target/tensor_cores` and how its operands lie; returns texts of CUDA C++. An
operand is rows of 128 bytes, the pieces of 16 bytes of a row in an order that its number within
eight of them says (an XOR, as TMA writes it), and begins at a multiple of 1,024 bytes. What is
neighbours along a row is the place along the sum ("k"), or m or n, which only numbers of 16 bits
can be ("m", "n"). The function of a row takes accumulators and two descriptors: words of 64 bits
that say where an operand begins and how far apart its parts are. Operand A may also be the words
that each thread has of it ("r").

Source: PTX ISA 8.7, "Asynchronous Warpgroup Level Matrix Instructions".
"""

from __future__ import annotations

from aster_ml.renderer.cuda.mma import registers, words_of
from aster_ml.target.tensor_cores import TensorCore

KINDS = {
    "float32": "tf32", "float16": "f16", "bfloat16": "bf16", "fp8e4m3": "e4m3", "fp8e5m2": "e5m2",
}  # fmt: skip
# What can lie with its rows or columns as neighbours.
TURNED = ("float16", "bfloat16")
FN = "static __device__ __forceinline__"


def function_name(row: TensorCore, majors: str) -> str:
    """`aster_wgmma_m64n128k16_float16_kn`: by row, and what neighbours of A and of B are."""
    return f"{row.name.replace('cuda_', 'aster_', 1)}_{majors}"


def wgmma_text(row: TensorCore, majors: str) -> str:
    """The function of a row."""
    sums, words = registers(row, "c"), words_of(row, "a") if majors[0] == "r" else []
    shape, kind = row.name.split("_")[2], KINDS[row.dtype]
    params = ", ".join([f"float &c{i}" for i in range(sums)])
    own = ", ".join([f"%{i}" for i in range(sums)])
    outputs = ", ".join([f'"+f"(c{i})' for i in range(sums)])
    turned = "".join([f", {int(x != 'k')}" for x in majors if row.dtype in TURNED and x != "r"])
    given = ", ".join([f"%{sums + i}" for i in range(len(words))])
    a, b = (f"{{{given}}}", f"%{sums + len(words)}") if words else (f"%{sums}", f"%{sums + 1}")
    inputs = ", ".join([f'"r"({w})' for w in words] or ['"l"(a)'])
    first = ", ".join([f"unsigned int {w}" for w in words] or ["unsigned long long a"])
    return f"""\
#ifndef ASTER_ON_CPU
{FN} void {function_name(row, majors)}({params},
    {first}, unsigned long long b) {{
  asm volatile("{{.reg .pred p; setp.ne.b32 p, 1, 0; "
      "wgmma.mma_async.sync.aligned.{shape}.f32.{kind}.{kind} {{{own}}}, "
      "{a}, {b}, p, 1, 1{turned};}}"
      : {outputs} : {inputs}, "l"(b));
}}
#endif"""
