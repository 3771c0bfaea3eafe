"""Tensor cores of Hopper as functions: `wgmma` of operands that lie in shared memory.

Receives a row of `target/tensor_cores` and how its operands lie; returns texts of CUDA C++. An
operand is rows of 128 bytes, the pieces of 16 bytes of a row in an order that its number within
eight of them says (an XOR, as TMA writes it), and begins at a multiple of 1,024 bytes. What is
neighbours along a row is the place along the sum ("k"), or m or n, which only numbers of 16 bits
can be ("m", "n"). The function of a row takes accumulators and two descriptors: words of 64 bits
that say where an operand begins and how far apart its parts are. Operand A may also be the words
that each thread has of it ("r").

Source: PTX ISA 8.7, "Asynchronous Warpgroup Level Matrix Instructions", "Tensor copy", "mbarrier",
"setmaxnreg", "barrier.cluster", "mapa", "fence.proxy", "cp.async.bulk.wait_group".
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


def boxes(dims: int, shared: bool = False) -> str:
    """The function that copies a box of a tensor of so many dimensions, neighbours first.

    One that is `shared` comes to the same place of all blocks of a cluster that are bits of a
    number, and so do its bytes to the same barrier of each.
    """
    params = ", ".join([f"int x{i}" for i in range(dims)])
    kind, name = ("template <int BLOCKS> ", "share") if shared else ("", "copy")
    more = (".multicast::cluster", f", %{dims + 3}", ', "h"((short)BLOCKS)')
    words, last, blocks = more if shared else ("", "", "")
    places = ", ".join([f"%{i + 3}" for i in range(dims)])
    inputs = ", ".join([f'"r"(x{i})' for i in range(dims)])
    return f"""\
{kind}FN void aster_{name}_box(void *to, const aster_tensor *from, unsigned long long *barrier,
    {params}) {{
  asm volatile("cp.async.bulk.tensor.{dims}d.shared::cluster.global.tile.mbarrier::complete_tx"
      "::bytes{words} [%0], [%1, {{{places}}}], [%2]{last};"
      :: "r"(aster_shared_address(to)), "l"(from), "r"(aster_shared_address(barrier)),
      {inputs}{blocks} : "memory");
}}"""


def stores(dims: int) -> str:
    """The function that stores a box of a tensor, each of which is a group of copies."""
    params = ", ".join([f"int x{i}" for i in range(dims)])
    places = ", ".join([f"%{i + 2}" for i in range(dims)])
    inputs = ", ".join([f'"r"(x{i})' for i in range(dims)])
    return f"""\
FN void aster_store_box(const aster_tensor *to, const void *from, {params}) {{
  asm volatile("cp.async.bulk.tensor.{dims}d.global.shared::cta.tile.bulk_group "
      "[%0, {{{places}}}], [%1];"
      :: "l"(to), "r"(aster_shared_address(from)), {inputs} : "memory");
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}}"""


# What threads have written to shared memory is seen by copies of boxes behind a barrier; all boxes
# that this thread has begun to store have been read; a barrier of the first N threads.
FENCE = 'FN void aster_fence() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }'
DRAIN = 'FN void aster_drain() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }'
SYNC = """\
template <int N> FN void aster_sync() {
  asm volatile("bar.sync 1, %0;" :: "n"(N) : "memory");
}"""
BARRIERS = """\
// Barriers that count arrivals, and bytes that are on their way.
FN void aster_barrier_init(unsigned long long *barrier, int count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;"
      :: "r"(aster_shared_address(barrier)), "r"(count) : "memory");
}
FN void aster_barriers_made() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
FN void aster_barrier_expect(unsigned long long *barrier, int nbytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
      :: "r"(aster_shared_address(barrier)), "r"(nbytes) : "memory");
}
FN void aster_barrier_arrive(unsigned long long *barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];"
      :: "r"(aster_shared_address(barrier)) : "memory");
}
FN void aster_barrier_wait(unsigned long long *barrier, int parity) {
  unsigned int done;
  do {
    asm volatile("{.reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; "
        "selp.b32 %0, 1, 0, p;}"
        : "=r"(done) : "r"(aster_shared_address(barrier)), "r"(parity) : "memory");
  } while (!done);
}"""

CLUSTER = """\
// All threads of a cluster meet; what they have done before is done for all of it.
FN void aster_cluster_meets() {
  asm volatile("barrier.cluster.arrive.release; barrier.cluster.wait.acquire;" ::: "memory");
}
// Comes to the barrier that lies in the same place of a block of the cluster.
FN void aster_cluster_arrive(unsigned long long *barrier, int block) {
  asm volatile("{.reg .b32 there; mapa.shared::cluster.u32 there, %0, %1; "
      "mbarrier.arrive.shared::cluster.b64 _, [there];}"
      :: "r"(aster_shared_address(barrier)), "r"(block) : "memory");
}"""

DESCRIPTOR = """\
// Where an operand begins, and how many bytes lie between its parts along both axes.
FN unsigned long long aster_descriptor(const void *p, int leading, int stride) {
  return (unsigned long long)((aster_shared_address(p) & 0x3ffff) >> 4)
      | (unsigned long long)(leading >> 4) << 16 | (unsigned long long)(stride >> 4) << 32
      | 1ull << 62;
}
FN void aster_wgmma_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
FN void aster_wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int LEFT> FN void aster_wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(LEFT) : "memory");
}"""


def only_on_device(text: str) -> str:
    """A text that a CPU has functions of its own for."""
    return f"#ifndef ASTER_ON_CPU\n{text}\n#endif"


SETTLED = """\
// Nobody reads these before this point.
FN void aster_settled() {}
template <class... X> FN void aster_settled(float &c, X &...more) {
#ifndef ASTER_ON_CPU
  asm volatile("" : "+f"(c) :: "memory");
#endif
  aster_settled(more...);
}"""
ADDRESS = """\
FN unsigned int aster_shared_address(const void *p) {
  return (unsigned int)__cvta_generic_to_shared(p);
}"""
# What a launch is given of each tensor: how it lies, in the driver's form, and how many elements
# before its first one the form begins, as only multiples of 16 bytes can be said.
TENSOR = """\
struct __align__(64) aster_tensor {
  unsigned char form[128];
  long long before;
};"""


def registers_of_group(name: str, word: str) -> str:
    """The function by which all threads of a warp group have fewer or more registers."""
    return only_on_device(f"""\
template <int N> FN void {name}() {{
  asm volatile("setmaxnreg.{word}.sync.aligned.u32 %0;" :: "n"(N));
}}""")


# By name: the functions, and what each needs.
WGMMA_TEXTS = {
    "aster_tensor": TENSOR,
    "aster_settled": SETTLED,
    "aster_shared_address": only_on_device(ADDRESS),
    "aster_barriers": only_on_device(BARRIERS),
    "aster_descriptor": only_on_device(DESCRIPTOR),
    "aster_fewer_registers": registers_of_group("aster_fewer_registers", "dec"),
    "aster_more_registers": registers_of_group("aster_more_registers", "inc"),
    "aster_copy_box": only_on_device("\n".join([boxes(dims) for dims in range(2, 6)])),
    "aster_share_box": only_on_device("\n".join([boxes(dims, True) for dims in range(2, 6)])),
    "aster_cluster": only_on_device(CLUSTER),
    "aster_store_box": only_on_device("\n".join([stores(dims) for dims in range(2, 6)])),
    "aster_fence": only_on_device(FENCE),
    "aster_drain": only_on_device(DRAIN),
    "aster_sync": only_on_device(SYNC),
}
WGMMA_NEEDS = {
    "aster_barriers": ("aster_shared_address",),
    "aster_descriptor": ("aster_shared_address",),
    "aster_copy_box": ("aster_barriers", "aster_tensor"),
    "aster_share_box": ("aster_barriers", "aster_tensor"),
    "aster_cluster": ("aster_shared_address",),
    "aster_store_box": ("aster_shared_address", "aster_tensor"),
}
