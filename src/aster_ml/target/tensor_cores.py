"""Tensor cores: which product of small matrices a warp multiplies at once, and who has which part.

A row is data: the operands of `D = A @ B + C`, with A [m, k], B [k, n] and C [m, n], lie in the
registers of the work-items of a warp. A layout has a word for each bit of a work-item's number in
the warp and, behind `|`, for each bit of the number of its register: `m0` is the lowest bit of the
row, `k2` the third bit of the place along the sum. So of `k1 k2 m0 m1 m2 | k0 m3 k3` work-item 5
(bits 0 and 2) has row 1, and in its registers 0 and 1 the places 2 and 3.

Operands without bits of work-items lie in local memory, where the instruction reads them itself;
128 work-items, four warps, run it together. Of B that is so of each such row, of A of most.

Source of the rows: PTX ISA 8.7, "Matrix Fragments for mma.m16n8k8/16/32" and "Asynchronous
Warpgroup Level Matrix Instructions"; Metal: Apple's order of `thread_elements()` of a simdgroup
matrix.
"""

from __future__ import annotations

import functools
from typing import NamedTuple


class WarpGroup(NamedTuple):
    """Work-items that change how many registers each of them has together.

    Of the `registers` of a multiprocessor a launch gives each work-item as many as the others;
    afterwards a work-item has at most `most`, in multiples of `step`.
    """

    items: int
    registers: int
    most: int
    step: int


# Source: PTX ISA 8.7, "setmaxnreg".
WARP_GROUP = WarpGroup(128, 65536, 240, 8)


class TensorCore(NamedTuple):
    """One instruction. `dtype` is that of A and B, `result` that of C and D, by name.

    `rounds` says that operands of A and B lose bits first, as float32 does that becomes TF32, or
    that sums do.
    """

    name: str
    dtype: str
    result: str
    a: str
    b: str
    c: str
    rounds: bool = False

    def bits(self, operand: str) -> tuple[list[str], list[str]]:
        """The words of a layout: of the number of a work-item, and of its register."""
        items, registers = getattr(self, operand).split("|")
        return items.split(), registers.split()

    @property
    def reads_shared(self) -> bool:
        """Whether both operands lie in local memory."""
        return not self.bits("a")[0]

    @property
    def in_group(self) -> bool:
        """Whether a group of warps multiplies by an operand B that lies in local memory."""
        return not self.bits("b")[0]

    @property
    def warp(self) -> int:
        """Number of work-items that run it together."""
        return 1 << len(self.bits("c")[0])

    @property
    def chains(self) -> bool:
        """Whether a result, two of them along n where k is longer, lies as operand A is wanted.

        Then each work-item makes its part of A of a next product from its own parts of this one.
        """
        (a_items, a_registers), (items, registers) = self.bits("a"), self.bits("c")
        as_k = [[f"k{w[1:]}" if w[0] == "n" else w for w in words] for words in (items, registers)]
        more = [w for w in a_registers if w not in as_k[1]]
        return a_items == as_k[0] and all([w[0] == "k" for w in more])

    def size(self, axis: str) -> int:
        """The size along `m`, `n` or `k`."""
        items, registers = self.bits("b" if axis == "n" else "a")
        return 1 << len([word for word in (*items, *registers) if word[0] == axis])

    def place(self, operand: str, item: int, register: int) -> dict[str, int]:
        """The element, by axis, that a work-item of the warp has in a register."""
        found: dict[str, int] = {}
        for words, number in zip(self.bits(operand), (item, register), strict=True):
            for i, word in enumerate(words):
                found[word[0]] = found.get(word[0], 0) | (number >> i & 1) << int(word[1:])
        return found


# C and D of all shapes with n = 8 of CUDA; A and B by how many elements of k are neighbours in a
# register: 1 of tf32, 2 of 16 bits, 4 of 8 bits.
CUDA_C = "n1 n2 m0 m1 m2 | n0 m3"
CUDA = {
    "m16n8k8_float32": ("k0 k1 m0 m1 m2 | m3 k2", "k0 k1 n0 n1 n2 | k2"),
    "m16n8k8_float16": ("k1 k2 m0 m1 m2 | k0 m3", "k1 k2 n0 n1 n2 | k0"),
    "m16n8k8_bfloat16": ("k1 k2 m0 m1 m2 | k0 m3", "k1 k2 n0 n1 n2 | k0"),
    "m16n8k16_float16": ("k1 k2 m0 m1 m2 | k0 m3 k3", "k1 k2 n0 n1 n2 | k0 k3"),
    "m16n8k16_bfloat16": ("k1 k2 m0 m1 m2 | k0 m3 k3", "k1 k2 n0 n1 n2 | k0 k3"),
    "m16n8k32_fp8e4m3": ("k2 k3 m0 m1 m2 | k0 k1 m3 k4", "k2 k3 n0 n1 n2 | k0 k1 k4"),
    "m16n8k32_fp8e5m2": ("k2 k3 m0 m1 m2 | k0 k1 m3 k4", "k2 k3 n0 n1 n2 | k0 k1 k4"),
}
# Four warps have 16 rows each; of the columns a work-item has two in each eight.
GROUP_C = "n1 n2 m0 m1 m2 m4 m5 | n0 m3"
GROUP_ROWS = 6
# Operand A of numbers of 16 bits, where work-items have it.
GROUP_A = "k1 k2 m0 m1 m2 m4 m5 | k0 m3 k3"
# By dtype how many bits the place along the sum has: 32 bytes are taken at a time.
GROUP_STEPS = {"float32": 3, "float16": 4, "bfloat16": 4, "fp8e4m3": 5, "fp8e5m2": 5}
# Bits of a column.
GROUP_COLUMNS = (6, 7, 8)
METAL = ("k1 m0 m1 k2 m2 | k0", "n1 k0 k1 n2 k2 | n0", "n1 m0 m1 n2 m2 | n0")
METAL_DTYPES = ("float32", "float16", "bfloat16")


def bits_of(axis: str, count: int) -> list[str]:
    """The words of the bits of an axis."""
    return [f"{axis}{i}" for i in range(count)]


def group_row(dtype: str, columns: int, own: bool = False) -> TensorCore:
    """The row of `wgmma` with so many bits of columns; of operand A work-items have their `own`."""
    m, k = bits_of("m", GROUP_ROWS), bits_of("k", GROUP_STEPS[dtype])
    n = bits_of("n", columns)
    c = " ".join([GROUP_C, *n[3:]])
    name = f"cuda_wgmma_m64n{1 << columns}k{1 << len(k)}_{dtype}" + ("_own" if own else "")
    a, b = ("| " + " ".join(words) for words in ([*m, *k], [*k, *n]))
    a = GROUP_A if own else a
    # Of fp8, Hopper keeps about 13 bits behind the point of a sum (DeepSeek-V3 Technical Report,
    # section 3.3.2), where other products of it have sums of float32.
    rounds = dtype == "float32" or dtype.startswith("fp8")
    return TensorCore(name, dtype, "float32", a, b, c, rounds)


ROWS = (
    *[
        TensorCore(f"cuda_{name}", dtype, "float32", a, b, CUDA_C, dtype == "float32")
        for name, (a, b) in CUDA.items()
        for dtype in [name.split("_")[1]]
    ],
    *[TensorCore(f"metal_m8n8k8_{dtype}", dtype, "float32", *METAL) for dtype in METAL_DTYPES],
    *[group_row(dtype, columns) for dtype in GROUP_STEPS for columns in GROUP_COLUMNS],
    *[
        group_row(dtype, columns, own=True)
        for dtype in ("float16", "bfloat16")
        for columns in GROUP_COLUMNS
    ],
)
TENSOR_CORES = {row.name: row for row in ROWS}


@functools.cache
def cuda_tensor_cores(compute: int) -> frozenset[str]:
    """Those of a card of this compute capability, 75, 80, 89 and on, by name."""
    since = {"m16n8k8_float16": 75, "m16n8k32_fp8e4m3": 89, "m16n8k32_fp8e5m2": 89}
    return frozenset([f"cuda_{name}" for name in CUDA if since.get(name, 80) <= compute])


# Those of sm_90a alone.
GROUP_CORES = frozenset([row.name for row in ROWS if row.in_group])


@functools.cache
def metal_tensor_cores() -> frozenset[str]:
    """Those of processors of the family "apple7" and later, from M1 and A14 on, by name."""
    return frozenset([row.name for row in ROWS if row.name.startswith("metal_")])


def chained_dtypes(names: frozenset[str]) -> frozenset[str]:
    """The dtypes of 16 bits of these tensor cores whose results are operands as they lie."""
    rows = [TENSOR_CORES[name] for name in names]
    return frozenset([row.dtype for row in rows if row.chains and row.dtype != row.result])
