"""Renders CUDA C++: one kernel, run by blocks of threads. NVRTC compiles it, and no header is
needed.

Receives a `Linear`; returns one `extern "C" __global__` function of the kernel's name. GLOBAL
ranges are block numbers and LOCAL ranges thread numbers, in the order in which they stand in the
list. Arguments are the buffers by slot, a pointer to the first element each, which may lie at any
element; then the variables, each a 64-bit integer; then the address of a table of just these in the
device's memory, from which they are read where it is not 0: a recording exchanges them there. More
than 48 KB of shared memory are taken from `aster_shared`, of which a launch asks for as many bytes
as `target.cuda.dynamic_nbytes` reads from the source.

Functions of ours begin with `aster_`; their texts are in files of CUDA C++ beside this one. Behind
`#define ASTER_ALIGNED 1` a kernel believes that all its buffers begin at multiples of 16 bytes,
which saves a look at each; the runtime says so where it is so.
"""

from __future__ import annotations

from aster_ml.dtype import DType, dtypes
from aster_ml.errors import InternalError
from aster_ml.helpers import prod
from aster_ml.renderer.base import Renderer
from aster_ml.renderer.cell import Address
from aster_ml.renderer.cuda.mma import in_word, mma_text
from aster_ml.renderer.cuda.tma import GROUP_NBYTES, BoxWriter
from aster_ml.renderer.cuda.wgmma import FN
from aster_ml.renderer.gpu_cpp import INTEGER_WORDS, NARROW, takes
from aster_ml.renderer.texts import read_texts
from aster_ml.target.copies import GROUPS
from aster_ml.target.cuda import DYNAMIC, STATIC_NBYTES
from aster_ml.target.tensor_cores import TENSOR_CORES
from aster_ml.uop.linear import Linear
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import AxisType, Ops
from aster_ml.uop.ranges import size_of

TYPES = {
    **INTEGER_WORDS, dtypes.bool: "bool", dtypes.int64: "long long",
    dtypes.uint64: "unsigned long long", dtypes.float16: "aster_half",
    dtypes.bfloat16: "aster_bfloat", dtypes.float32: "float", dtypes.float64: "double",
}  # fmt: skip
FUNCTIONS = read_texts(
    "gpu.hpp",
    "cuda/functions.cuh",
    "cuda/copies.cuh",
    "cuda/wgmma.cuh",
    words=f"FN = {FN}, PRIVATE  = ",
)
TABLE = "const unsigned long long *table"
# Of a multiprocessor.
REGISTERS = 65536
# Shared arrays begin at multiples of so many bytes.
SHARED_ALIGNMENT = 128


class CudaRenderer(Renderer):
    """CUDA C++."""

    def render(self, linear: Linear) -> str:
        """The source of one kernel."""
        return CudaWriter(self.target, linear).run()


class CudaWriter(BoxWriter):
    """Writes the CUDA C++ of one kernel."""

    texts, needs = FUNCTIONS
    words = TYPES
    function_words = FN
    falling_power = "aster_power"

    def prologue(self) -> None:
        """Names the arguments, and sees whether shared memory is asked for by the launch."""
        super().prologue()
        over = any([u.op is Ops.DEFINE_LOCAL and u.arg.over for u in self.linear.uops])
        large = takes(self.linear) > STATIC_NBYTES or self.stages or over
        self.starts: dict[str, int] = {}
        self.dynamic: int | None = self.laid_out() if large else None

    def finish(self) -> str:
        """Helpers, the kernel."""
        items = prod(self.local_sizes) + self.more
        notes = [] if self.dynamic is None else [f"{DYNAMIC}{self.dynamic} bytes"]
        notes += self.notes()
        made = self.make_barriers()
        helpers = [*notes, *self.helpers.values()]
        arguments = [*self.arguments, TABLE, *self.tensor_arguments()]
        head = (
            f'extern "C" __global__ void {self.cluster_words()}'
            f"__launch_bounds__({items}, {self.blocks_at_once(items)})\n"
            f"{self.linear.name}({', '.join(arguments)}) {{"
        )
        return "\n".join(
            [*helpers, *([""] if helpers else []), head, *self.from_table(), *self.head]
            + [*self.scratch, *made, *self.lines, *self.end_of_cluster(), "}", ""]
        )

    def blocks_at_once(self, items: int) -> int:
        """Blocks for which a multiprocessor has to have registers: two of a large tile of sums.

        why: with some registers more there would be one, that waits at each of its barriers
        """
        uops = self.linear.uops
        regs = [u for u in uops if u.op is Ops.DEFINE_REG]
        sums = sum([prod([size_of(r) for r in u.src[1:]]) for u in regs])
        registers = REGISTERS // (2 * items)
        tiled = any([u.op is Ops.BARRIER for u in uops]) and not any(
            [u.op is Ops.MMA for u in uops]
        )
        return 2 if tiled and registers // 4 < sums <= registers // 2 else 1

    def from_table(self) -> list[str]:
        """Arguments are read from the table where there is one.

        why: a compiler that sees them assigned still takes each buffer for memory of its own
        """
        lines = ["  if (table) {"]
        for i, p in enumerate(self.linear.params):
            const = "const " if self.is_const(p) else ""
            lines.append(f"    buf{i} = ({const}{self.memory_type(p.dtype)} *)table[{i}];")
        for i, v in enumerate(self.linear.variables, len(self.linear.params)):
            lines.append(f"    wide_{self.names[v]} = (long long)table[{i}];")
        return [*lines, "  }"] if len(lines) > 1 else []

    def buffer_argument(self, p: UOp, slot: int) -> str:
        """`const float *__restrict__ buf1`; what is written overlaps with no other buffer."""
        const = "const " if self.is_const(p) else ""
        return f"{const}{self.memory_type(p.dtype)} *__restrict__ buf{slot}"

    def variable_argument(self, name: str, number: int) -> str:
        """A 64-bit integer."""
        return f"long long wide_{name}"

    def number_of(self, kind: AxisType, dim: int) -> str:
        """`blockIdx.x`."""
        return f"{'blockIdx' if kind is AxisType.GLOBAL else 'threadIdx'}.{'xyz'[dim]}"

    def barrier(self) -> None:
        """Waits until the threads of this role have written what the block shares."""
        if self.more and self.is_other:
            self.write(f"{self.bring('aster_sync')}<{self.first}>();")
            return
        self.write("__syncthreads();")

    @property
    def copies_later(self) -> bool:
        """By cp.async, where the card has it."""
        return self.target.copies.ends == GROUPS

    def copy_later(self, to: Address, source: Address, nbytes: int, gate: str | None) -> None:
        """`aster_copy<16>(local0 + t5, buf1 + t3, there);`"""
        dtype = to.place.dtype
        n = nbytes // dtype.itemsize
        aligned = min(self.alignment(at, dtype, n) for at in (to, source))
        places = f"{self.place(to, dtype)}, {self.place(source, dtype)}"
        name = self.bring("aster_copy")
        self.write(f"{name}<{nbytes}, {aligned}>({places}, {gate or 'true'});")

    def commit(self, stage: list[str]) -> None:
        """`aster_commit();`"""
        if stage:
            self.begin_boxes(*stage)
            return
        self.write(f"{self.bring('aster_commit')}();")

    def wait(self, left: int, stage: list[str]) -> None:
        """`aster_wait<2>();`"""
        if stage:
            self.wait_for_boxes(*stage)
            return
        self.write(f"{self.bring('aster_wait')}<{left}>();")

    def exchange(self, value: str, dtype: DType, n: int, distance: int) -> str:
        """Shuffles: reads a value of the thread whose number in the warp differs in these bits."""
        return f"{self.bring('aster_exchange')}({value}, {distance})"

    def add_product(self, core: str, sums: list[str], a: list[str], b: list[str]) -> None:
        """`aster_mma_m16n8k16_float16(...)`: the accumulators, and the words of both operands."""
        if not core.startswith("cuda_"):
            raise InternalError(f"renderer: CUDA C++ has no function for the tensor core {core}")
        name = core.replace("cuda_", "aster_mma_")
        self.helper(name, mma_text(TENSOR_CORES[core]))
        self.write(f"{name}({', '.join([*sums, *a, *b])});")

    def words_of(self, core: str, elements: list[str]) -> list[str]:
        """`aster_word(v3, v4)`."""
        each, name = in_word(TENSOR_CORES[core]), self.bring("aster_word")
        together = [elements[i : i + each] for i in range(0, len(elements), each)]
        return [f"{name}({', '.join(some)})" for some in together]

    def filled(self, parts: list[str], dtype: DType) -> str:
        """Narrow floats by words of two, which are one instruction where both are rounded."""
        if dtype not in NARROW or len(parts) % 2:
            return super().filled(parts, dtype)
        name = self.bring("aster_word")
        words = [f"{name}({a}, {b})" for a, b in zip(parts[::2], parts[1::2], strict=True)]
        return f"unsigned int w[] = {{{', '.join(words)}}}; memcpy(&v, w, sizeof(v));"

    def load_matrices(self, words: list[str], at: Address, transposed: bool) -> None:
        """`aster_ldmatrix(w0, w1, w2, w3, local0 + t5);`"""
        self.write(f"unsigned int {', '.join(words)};")
        name = self.bring("aster_ldmatrix_trans" if transposed else "aster_ldmatrix")
        self.write(f"{name}({', '.join([*words, self.place(at, at.place.dtype)])});")

    def store_matrices(self, words: list[list[str]], at: Address, transposed: bool) -> None:
        """`aster_stmatrix(local2 + t5, aster_word(v3, v4), ...);`"""
        name = self.bring("aster_stmatrix_trans" if transposed else "aster_stmatrix")
        word = self.bring("aster_word")
        parts = [f"{word}({', '.join(elements)})" for elements in words]
        self.write(f"{name}({', '.join([self.place(at, at.place.dtype), *parts])});")

    def special_float(self, value: float, dtype: DType) -> str:
        """Infinity or NaN, by their bits: there are no names for them without a header."""
        double = dtype is dtypes.float64
        sign = 0x8000 if value < 0 else 0
        high = (0x7FF8 if value != value else 0x7FF0) if double else 0x7F80 | (value != value) << 6
        if double:
            return f"__longlong_as_double(0x{(high | sign) << 48:016x}ll)"
        return f"__int_as_float(0x{(high | sign) << 16:08x})"

    def scratch_line(self, name: str, dtype: DType, size: int, private: bool) -> str:
        """An array of the block, of which each begins where all loads are whole, or of a thread."""
        kind = self.memory_type(dtype)
        if private:
            return f"  {kind} {name}[{size}];"
        if self.dynamic is None:
            return f"  __shared__ __align__(16) {kind} {name}[{size}];"
        self.bring("aster_shared")
        return f"  {kind} *{name} = ({kind} *)(aster_shared + {self.starts[name]});"

    def laid_out(self) -> int:
        """Says where each shared array begins; how many bytes all of them take.

        Those that lie over others begin where these do, which follow one another.
        """
        aligned = GROUP_NBYTES if self.stages else SHARED_ALIGNMENT
        arrays = [u for u in self.linear.uops if u.op is Ops.DEFINE_LOCAL and not u.arg.private]
        under = [i for u in arrays for i in u.arg.over]
        order = {i: n for n, i in enumerate(under)}
        arrays.sort(key=lambda u: (bool(u.arg.over), order.get(u.arg.id, len(order))))
        end = 0
        for u in arrays:
            start = self.starts[f"local{u.arg.over[0]}"] if u.arg.over else end
            self.starts[f"local{u.arg.id}"] = start
            nbytes = u.arg.size * u.dtype.itemsize
            end = max(end, start + -(-nbytes // aligned) * aligned)
        return end

    def built_in(self, name: str, dtype: DType) -> str:
        """`exp2f`."""
        if name == self.falling_power:
            return self.bring(name)
        return name + ("f" if dtype is dtypes.float32 else "")
