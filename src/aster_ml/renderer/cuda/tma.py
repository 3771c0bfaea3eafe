"""CUDA C++ of kernels whose products read boxes of tensors from shared memory (Hopper).

Receives the ops of `uop/linear` that such a kernel has: TMA_LOAD, COMMIT and WAIT of a stage,
ACCUMULATE of an MMA with operands in local memory, MMA_WAIT. The first thread begins copies; each
stage has a barrier that counts their bytes. Texts of functions are in `cuda/wgmma`.

Blocks of a cluster copy boxes for one another: the barrier of a stage counts the bytes of all of
them, and who releases a stage says so to all. They meet before anything is copied, when all
barriers are made, and at their end, until which the others tell their barriers something.
"""

from __future__ import annotations

from typing import Any

from aster_ml.helpers import prod
from aster_ml.renderer.cell import Address, Cell
from aster_ml.renderer.cuda.wgmma import function_name, wgmma_text
from aster_ml.renderer.gpu_cpp import GpuCppWriter
from aster_ml.target.tensor_cores import TENSOR_CORES
from aster_ml.target.tensor_maps import ROW_NBYTES, TensorMap
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import Ops

# Eight rows of an operand, which is where those that follow begin.
GROUP_NBYTES = 8 * ROW_NBYTES
WARP = 32


class BoxWriter(GpuCppWriter):
    """Writes boxes, barriers and products of one kernel."""

    def prologue(self) -> None:
        """Sees how many stages there are."""
        super().prologue()
        self.words_named = 0
        stages = [u.arg for u in self.linear.uops if u.op is Ops.COMMIT and u.arg is not None]
        self.stages: int = stages[0] if stages else 0
        # How many blocks a cluster has.
        self.cluster = max(
            [u.arg.blocks for u in self.linear.uops if u.op is Ops.TMA_LOAD], default=1
        )
        self.tensors: dict[TensorMap, str] = {}
        # Copies that the next commit begins, and their bytes.
        self.copies: list[str] = []
        self.nbytes = 0
        # By group of products that nobody has waited for, their accumulators.
        self.under_way: list[dict[str, None]] = []
        # The thread that begins copies, and how many there are beside those that multiply.
        self.first = "0"
        self.more = 0
        # Whether what is written is done by those that multiply alone.
        self.is_other = False

    def notes(self) -> list[str]:
        """The tensors; and that numbers are made narrow one by one.

        why: ptxas makes one instruction of two, and no product goes on beside another then
        """
        alone = ["#ifndef ASTER_ON_CPU", "#define ASTER_ONE_BY_ONE 1", "#endif"]
        return [tensor.line() for tensor in self.tensors] + (alone if self.stages else [])

    def tensor_arguments(self) -> list[str]:
        """The tensors, behind all other arguments."""
        return [f"const __grid_constant__ aster_tensor {name}" for name in self.tensors.values()]

    def make_barriers(self) -> list[str]:
        """A barrier for each stage."""
        if not self.stages:
            return []
        made = {"full": 1}
        if self.more:
            made["empty"] = int(prod(self.local_sizes)) // WARP * self.cluster
        return [
            *[f"  __shared__ unsigned long long {name}[{self.stages}];" for name in made],
            "  if (threadIdx.x == 0) {",
            *[
                f"    for (int i = 0; i < {self.stages}; i++) aster_barrier_init(&{name}[i], {n});"
                for name, n in made.items()
            ],
            "    aster_barriers_made();",
            "  }",
            "  __syncthreads();"
            if not self.joined
            else f"  {self.bring('aster_cluster')}_meets();",
        ]

    def name_word(self) -> str:
        """`w3`."""
        self.words_named += 1
        return f"w{self.words_named - 1}"

    @property
    def joined(self) -> bool:
        """Whether blocks copy for one another."""
        return self.cluster > 1

    def cluster_words(self) -> str:
        """Writes the attribute of a kernel with clusters: `__cluster_dims__(2, 1, 1) `."""
        return f"__cluster_dims__({self.cluster}, 1, 1) " if self.joined else ""

    def end_of_cluster(self) -> list[str]:
        """No block ends while another one tells its barriers something."""
        return ["  aster_cluster_meets();"] if self.joined else []

    def open_loop(self, c: Cell) -> None:
        """A loop over strips stays one: accumulators that are copied make products wait."""
        if self.stages:
            self.write("#pragma unroll 1")
        super().open_loop(c)

    def copy_box(self, box: UOp, to: Address, places: list[str]) -> None:
        """`aster_copy_box(local0 + t5, &tensor0, &full[t3], t4 + (int)tensor0.before, t6);`"""
        dtype, blocks = box.src[1].dtype, box.arg.blocks
        tensor, name = self.tensor_of(box)
        call = self.bring("aster_copy_box" if blocks == 1 else "aster_share_box")
        call += "" if blocks == 1 else f"<{(1 << blocks) - 1}>"
        first = f"(int){name}.before + {places[0]}"
        where = ", ".join([first, *places[1:]])
        self.copies.append(f"{call}({self.place(to, dtype)}, &{name}, &full[STAGE], {where});")
        self.nbytes += int(prod(tensor.box)) * dtype.itemsize * blocks

    def tensor_of(self, box: UOp) -> tuple[TensorMap, str]:
        """The tensor of a box, and its name."""
        param = box.src[1]
        form = box.arg[: len(TensorMap._fields) - 2]
        tensor = TensorMap(self.linear.params.index(param), param.dtype.name, *form)
        return tensor, self.tensors.setdefault(tensor, f"tensor{len(self.tensors)}")

    def store_box(self, box: UOp, source: Address, places: list[str]) -> None:
        """`if (threadIdx.x == 0) aster_store_box(&tensor2, local2, t4, t6);`"""
        tensor, name = self.tensor_of(box)
        count = len(tensor.box)
        gate = "".join([f" && {gate}" for gate in places[count:]])
        where = ", ".join([f"(int){name}.before + {places[0]}", *places[1:count]])
        call = self.bring("aster_store_box")
        place = self.place(source, source.place.dtype)
        self.write(f"if (threadIdx.x == 0{gate}) {call}(&{name}, {place}, {where});")

    def fence(self) -> None:
        """`aster_fence();`"""
        self.write(f"{self.bring('aster_fence')}();")

    def drain(self) -> None:
        """`if (threadIdx.x == 0) aster_drain();`: the thread that has begun to store."""
        self.write(f"if (threadIdx.x == 0) {self.bring('aster_drain')}();")

    def begin_boxes(self, stage: str, gate: str | None = None) -> None:
        """Says how many bytes are on their way, and begins their copies."""
        condition = f"threadIdx.x == {self.first}" + ("" if gate is None else f" && {gate}")
        self.write(f"if ({condition}) {{")
        self.write(f"  aster_barrier_expect(&full[{stage}], {self.nbytes});")
        for line in self.copies:
            self.write(f"  {line.replace('STAGE', stage)}")
        self.write("}")
        self.copies, self.nbytes = [], 0

    def take_role(self, more: int, registers: int) -> None:
        """One thread behind the others begins all copies, and those beside it do nothing."""
        if more:
            self.more, self.first = more, str(prod(self.local_sizes))
            self.write(f"if (threadIdx.x >= {self.first}) {{")
            self.indent += 1
            self.have_registers("fewer", registers)
            self.write(f"if (threadIdx.x > {self.first}) return;")
            return
        self.is_other = True
        self.write("return;")
        self.indent -= 1
        self.write("}")
        self.have_registers("more", registers)

    def have_registers(self, word: str, count: int) -> None:
        """`aster_fewer_registers<40>();`"""
        if count:
            self.write(f"{self.bring(f'aster_{word}_registers')}<{count}>();")

    def acquire(self, stage: str, turn: str) -> None:
        """`aster_barrier_wait(&empty[t3], (t4 & 1) ^ 1);`: the first time nobody waits."""
        self.write(f"aster_barrier_wait(&empty[{stage}], ({turn} & 1) ^ 1);")

    def release(self, stage: str, gate: str) -> None:
        """`if (threadIdx.x % 32 == 0 && is5) aster_barrier_arrive(&empty[t6]);`

        To each block of a cluster one thread says so.
        """
        if self.joined:
            lane = f"threadIdx.x % {WARP}"
            self.write(
                f"if ({lane} < {self.cluster} && {gate}) "
                f"aster_cluster_arrive(&empty[{stage}], {lane});"
            )
            return
        self.write(
            f"if (threadIdx.x % {WARP} == 0 && {gate}) aster_barrier_arrive(&empty[{stage}]);"
        )

    def wait_for_boxes(self, stage: str, turn: str) -> None:
        """`aster_barrier_wait(&full[t3], t4 & 1);`"""
        self.write(f"aster_barrier_wait(&full[{stage}], {turn} & 1);")

    def add_shared_products(
        self, core: str, majors: str, products: list[tuple[list[str], Any, Address]]
    ) -> None:
        """`aster_wgmma_m64n256k16_float16_kn(...)`, each with two descriptors, or words and one."""
        row = TENSOR_CORES[core]
        self.bring("aster_descriptor")
        name = function_name(row, majors)
        self.helper(name, wgmma_text(row, majors))
        given = [self.operand(a, majors[0]) for _, a, _ in products]
        self.write("aster_wgmma_begin();")
        for (sums, _, b), a in zip(products, given, strict=True):
            self.write(f"{name}({', '.join([*sums, *a, self.descriptor(b, majors[1])])});")
        self.write("aster_wgmma_commit();")
        self.under_way.append({c: None for sums, _, _ in products for c in sums})

    def operand(self, a: Any, major: str) -> list[str]:
        """The descriptor of operand A, or its words: written before products begin."""
        if major != "r":
            return [self.descriptor(a, major)]
        names = [self.name_word() for _ in a]
        words = ", ".join([f"{name} = {word}" for name, word in zip(names, a, strict=True)])
        self.write(f"unsigned int {words};")
        return names

    def descriptor(self, at: Address, major: str) -> str:
        """`aster_descriptor(local0 + t5, 16, 1024)`.

        The next 128 bytes of rows along m or n lie behind all places along k, of which there are as
        many as numbers of 16 bits in a row.
        """
        dtype = at.place.dtype
        leading = 16 if major == "k" else ROW_NBYTES * (ROW_NBYTES // dtype.itemsize)
        return f"aster_descriptor({self.place(at, dtype)}, {leading}, {GROUP_NBYTES})"

    def settle(self, left: int) -> None:
        """`aster_wgmma_wait<1>();`, and what keeps accumulators from being read before."""
        self.write(f"aster_wgmma_wait<{left}>();")
        done = self.under_way[: len(self.under_way) - left]
        self.under_way = self.under_way[len(done) :]
        sums = dict.fromkeys([c for group in done for c in group])
        if sums:
            self.write(f"{self.bring('aster_settled')}({', '.join(sums)});")
