"""Renders Metal Shading Language: one kernel, run by threadgroups. Apple's compiler has never seen
it here.

Receives a `Linear`; returns one `kernel` of its name. GLOBAL ranges are the numbers of threadgroups
and LOCAL ranges those of threads in them, in the order in which they stand in the list. Arguments
are the buffers by slot, each at `[[buffer(slot)]]`, and after them a 64-bit integer for each
variable. There is no float64.

Functions of ours begin with `aster_`; their texts are in `functions.metal`.

Source of the pragma: Metal Shading Language Specification 3.2, "Compiler Options Controlling the
Math": also where math is safe, a product and a sum of one expression may be rounded once.
"""

from __future__ import annotations

from aster_ml.dtype import DType, dtypes, round_float
from aster_ml.errors import InternalError
from aster_ml.helpers import prod
from aster_ml.renderer.base import Renderer
from aster_ml.renderer.cell import Address
from aster_ml.renderer.gpu_cpp import INTEGER_WORDS, NARROW, GpuCppWriter
from aster_ml.renderer.texts import read_texts
from aster_ml.uop.linear import Linear
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import AxisType, Ops

TYPES = {
    **INTEGER_WORDS, dtypes.bool: "bool", dtypes.int64: "long", dtypes.uint64: "ulong",
    dtypes.float16: "half", dtypes.bfloat16: "bfloat", dtypes.float32: "float",
}  # fmt: skip
FUNCTIONS = read_texts(
    "gpu.hpp", "metal/functions.metal", words="FN = static inline, PRIVATE = thread"
)
HEAD = """\
#include <metal_stdlib>
using namespace metal;
#pragma METAL fp contract(off)
#ifndef threadgroup_memory
#define threadgroup_memory threadgroup
#endif
"""


class MetalRenderer(Renderer):
    """Metal Shading Language."""

    def render(self, linear: Linear) -> str:
        """The source of one kernel."""
        return MetalWriter(self.target, linear).run()


class MetalWriter(GpuCppWriter):
    """Writes the MSL of one kernel."""

    texts, needs = FUNCTIONS
    words = TYPES
    long_suffix = "L"

    def finish(self) -> str:
        """Helpers, the kernel."""
        items = prod(self.local_sizes)
        helpers = [*self.helpers.values()]
        places = [
            "uint3 block [[threadgroup_position_in_grid]]",
            "uint3 item [[thread_position_in_threadgroup]]",
        ]
        head = (
            f"[[max_total_threads_per_threadgroup({items})]]\n"
            f"kernel void {self.linear.name}({', '.join([*self.arguments, *places])}) {{"
        )
        return "\n".join(
            [HEAD, *helpers, *([""] if helpers else []), head, *self.head, *self.scratch]
            + [*self.lines, "}", ""]
        )

    def float_literal(self, value: float, dtype: DType) -> str:
        """A float; a narrow one is cast from a float."""
        if dtype in NARROW:
            exact = super().float_literal(round_float(value, dtype), dtypes.float32)
            return f"({self.type_of(dtype, 1)}){exact}"
        return super().float_literal(value, dtype)

    def buffer_argument(self, p: UOp, slot: int) -> str:
        """`device const float *buf1 [[buffer(1)]]`."""
        const = "const " if self.is_const(p) else ""
        return f"device {const}{self.memory_type(p.dtype)} *buf{slot} [[buffer({slot})]]"

    def variable_argument(self, name: str, number: int) -> str:
        """A 64-bit integer behind the buffers."""
        return f"constant long &wide_{name} [[buffer({len(self.linear.params) + number})]]"

    def number_of(self, kind: AxisType, dim: int) -> str:
        """`block.x`."""
        return f"{'block' if kind is AxisType.GLOBAL else 'item'}.{'xyz'[dim]}"

    def barrier(self) -> None:
        """Waits until the threadgroup has written what it shares."""
        self.write("threadgroup_barrier(mem_flags::mem_threadgroup);")

    def scratch_line(self, name: str, dtype: DType, size: int, private: bool) -> str:
        """An array of the threadgroup, or of a thread."""
        where = "" if private else "threadgroup_memory "
        return f"  {where}{self.memory_type(dtype)} {name}[{size}];"

    def pointer_words(self, place: UOp) -> str:
        """The address space."""
        if place.op is Ops.PARAM:
            return "device "
        return "" if place.arg.private else "threadgroup "

    def mover(self, word: str, at: Address, dtype: DType, n: int) -> str:
        """`aster_load_device_float4` where there is a packed vector of such neighbours."""
        element = self.memory_type(dtype).replace("unsigned int", "uint")
        space, width = self.pointer_words(at.place).strip(), 2 if n % 4 else 4
        packed = f"aster_{word}_{space}_{element}{width}"
        if packed not in self.texts or n % 2 or dtype is not at.place.dtype:
            return super().mover(word, at, dtype, n)
        return packed

    def built_in(self, name: str, dtype: DType) -> str:
        """`precise::exp2`; what is rounded to nearest anyway has only one form."""
        return name if name in ("fma", "trunc") else f"precise::{name}"

    def each(self, name: str, dtype: DType, n: int, args: list[str], kinds: list[DType]) -> str:
        """A call for each element; functions of a namespace have a name of ours for that."""
        if n > 1 and "::" in name:
            letters = "abc"[: len(args)]
            params = ", ".join([f"{self.type_of(d, 1)} {x}" for d, x in zip(kinds, letters)])
            plain = name.replace("::", "_")
            name = self.scalar_helper(plain, dtype, params, f"return {name}({', '.join(letters)});")
        return super().each(name, dtype, n, args, kinds)

    def add_product(self, core: str, sums: list[str], a: list[str], b: list[str]) -> None:
        """`aster_mma_m8n8k8_float16(...)`: the accumulators, and the parts of both operands."""
        if not core.startswith("metal_"):
            raise InternalError(f"renderer: Metal has no function for the tensor core {core}")
        name = self.bring(core.replace("metal_", "aster_mma_"))
        self.write(f"{name}({', '.join([*sums, *a, *b])});")

    def exchange(self, value: str, dtype: DType, n: int, distance: int) -> str:
        """Shuffles: reads a value of the thread whose number in the simdgroup differs so."""
        return f"{self.bring('aster_exchange')}({value}, {distance})"
