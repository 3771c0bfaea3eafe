"""Writes functions for tensor cores of CUDA: `mma.sync` of the registers that each thread of a warp
has.

Receives a row of `target/tensor_cores`; returns the text of a function whose arguments are the
accumulators and the words of both operands, of 32 bits each: neighbours in the order of registers,
which is what the instruction takes.
"""

from __future__ import annotations

from aster_ml.dtype import DType, to_dtype
from aster_ml.target.tensor_cores import TensorCore

# PTX's names.
KINDS = {
    "float32": "tf32", "float16": "f16", "bfloat16": "bf16", "fp8e4m3": "e4m3", "fp8e5m2": "e5m2",
}  # fmt: skip


def element_of(row: TensorCore) -> DType:
    """The dtype that a thread has its elements in."""
    return to_dtype(row.dtype)


def registers(row: TensorCore, operand: str) -> int:
    """Number of elements of an operand that a thread has."""
    return 1 << len(row.bits(operand)[1])


def in_word(row: TensorCore) -> int:
    """Number of elements of an operand that a word has."""
    return 4 // element_of(row).itemsize


def words_of(row: TensorCore, operand: str) -> list[str]:
    """The names of the words of an operand."""
    return [f"{operand}{i}" for i in range(registers(row, operand) // in_word(row))]


def parameters(row: TensorCore) -> str:
    """The parameters of the function."""
    sums = [f"float &c{i}" for i in range(registers(row, "c"))]
    parts = [f"unsigned int {name}" for x in "ab" for name in words_of(row, x)]
    return ", ".join([*sums, *parts])


def mma_text(row: TensorCore) -> str:
    """The function of a row."""
    sums, a, b = registers(row, "c"), words_of(row, "a"), words_of(row, "b")
    places = [f"%{i}" for i in range(sums + len(a) + len(b))]
    own, of_a, of_b = (
        "{" + ", ".join(x) + "}"
        for x in (places[:sums], places[sums : sums + len(a)], places[sums + len(a) :])
    )
    kind = KINDS[row.dtype]
    shape = row.name.split("_")[1]
    outputs = ", ".join([f'"+f"(c{i})' for i in range(sums)])
    inputs = ", ".join([f'"r"({x})' for x in (*a, *b)])
    return f"""\
#ifndef ASTER_ON_CPU
static __device__ __forceinline__ void aster_mma_{row.name.removeprefix("cuda_")}(
    {parameters(row)}) {{
  asm("mma.sync.aligned.{shape}.row.col.f32.{kind}.{kind}.f32 {own}, {of_a}, {of_b}, {own};"
      : {outputs} : {inputs});
}}
#endif"""
