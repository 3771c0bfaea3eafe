"""Tensor cores of CUDA as functions: `mma.sync` of the registers that each thread of a warp has.

Receives a row of `target/tensor_cores`; returns the text of a function whose arguments are the
accumulators and the elements of both operands, in the order of their registers. Neighbours are put
together in words of 32 bits, which is what the instruction takes.
"""

from __future__ import annotations

from aster_ml.dtype import DType, to_dtype
from aster_ml.target.tensor_cores import TensorCore

# PTX's names, and the word of a thread's elements.
KINDS = {"float32": "tf32", "float16": "f16", "bfloat16": "bf16"}
# What each element is in a word.
CODES = {
    "float32": "(unsigned int)__float_as_int({})", "float16": "(unsigned int){}.code",
    "bfloat16": "(unsigned int){}.code",
}  # fmt: skip


def element_of(row: TensorCore) -> DType:
    """The dtype that a thread has its elements in."""
    return to_dtype(row.dtype)


def registers(row: TensorCore, operand: str) -> int:
    """How many elements of an operand a thread has."""
    return 1 << len(row.bits(operand)[1])


def parameters(row: TensorCore, word: str) -> str:
    """The parameters of the function."""
    sums = [f"float &c{i}" for i in range(registers(row, "c"))]
    parts = [f"{word} {x}{i}" for x in "ab" for i in range(registers(row, x))]
    return ", ".join([*sums, *parts])


def mma_text(row: TensorCore, word: str) -> str:
    """The function of a row, whose elements are of the type `word`."""
    itemsize = element_of(row).itemsize
    each = 4 // itemsize
    words: list[str] = []
    count: dict[str, int] = {}
    for x in "ab":
        count[x] = registers(row, x) // each
        for i in range(count[x]):
            codes = [CODES[row.dtype].format(f"{x}{i * each + j}") for j in range(each)]
            shifted = [c if j == 0 else f"{c} << {8 * itemsize * j}" for j, c in enumerate(codes)]
            words.append(f"{x.upper()}{i} = {' | '.join(shifted)}")
    sums = registers(row, "c")
    places = [f"%{i}" for i in range(sums + count["a"] + count["b"])]
    own, of_a, of_b = (
        "{" + ", ".join(x) + "}"
        for x in (places[:sums], places[sums : sums + count["a"]], places[sums + count["a"] :])
    )
    kind = KINDS[row.dtype]
    shape = row.name.split("_")[1]
    taken = [f"{x.upper()}{i}" for x in "ab" for i in range(count[x])]
    outputs = ", ".join([f'"+f"(c{i})' for i in range(sums)])
    inputs = ", ".join([f'"r"({x})' for x in taken])
    return f"""\
#ifndef ASTER_ON_CPU
static __device__ __forceinline__ void aster_mma_{row.name.removeprefix("cuda_")}(
    {parameters(row, word)}) {{
  unsigned int {("," + chr(10) + "      ").join(words)};
  asm("mma.sync.aligned.{shape}.row.col.f32.{kind}.{kind}.f32 {own}, {of_a}, {of_b}, {own};"
      : {outputs} : {inputs});
}}
#endif"""
