"""Functions for Hopper: a kernel written by hand is run on the CPU, and compiled for sm_90a.

The kernel multiplies tiles of 128 rows by two groups of 128 threads, with boxes of both operands in
several places of shared memory. That the stand-in of the tests shows what is wrong is tested, too:
each mistake is made once.
"""

from __future__ import annotations

import re
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from aster_ml.dtype import to_dtype
from aster_ml.errors import DeviceError
from aster_ml.renderer.cuda.mma import registers
from aster_ml.renderer.cuda.renderer import FUNCTIONS
from aster_ml.renderer.cuda.wgmma import TURNED, function_name, wgmma_text
from aster_ml.runtime.cuda import compiler as cuda_compiler
from aster_ml.target.tensor_cores import TENSOR_CORES, TensorCore
from aster_ml.target.tensor_maps import TensorMap, tensor_maps
from tests.shim import on_cpu

pytestmark = [
    pytest.mark.cc,
    pytest.mark.skipif(on_cpu.find_compiler() is None, reason="no C++ compiler on PATH: g++"),
]
needs_nvrtc = pytest.mark.skipif(
    cuda_compiler.missing() is not None, reason="NVRTC: pip install 'aster-ml[cuda]'"
)
GROUP_CORES = [row for row in TENSOR_CORES.values() if row.reads_shared]
NUMPY = {
    "float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16,
    "fp8e4m3": ml_dtypes.float8_e4m3fn, "fp8e5m2": ml_dtypes.float8_e5m2,
}  # fmt: skip
ROWS = 128


def texts_of(*names: str) -> str:
    """Texts that stand before a kernel."""
    wanted = list(names)
    for name in wanted:
        wanted += [x for x in FUNCTIONS.needs[name] if x not in wanted]
    return "\n".join([FUNCTIONS.texts[name] for name in reversed(wanted)])


class Operand:
    """One side of a tile: `side` rows or columns and 128 bytes of the sum."""

    def __init__(self, letter: str, side: int, major: str, itemsize: int) -> None:
        self.letter, self.side, self.major, self.itemsize = letter, side, major, itemsize
        self.row = 128 // itemsize  # elements of a row of 128 bytes

    def box(self) -> tuple[int, int]:
        """Of a copy; neighbours first."""
        return (self.row, self.side if self.major == "k" else self.row)

    def nbytes(self) -> int:
        """Of a tile."""
        return self.side * 128

    def copies(self, slot: str, first: str, k: str) -> str:
        """The copies of a tile from `first` along the side, and `k` along the sum."""
        boxes = []
        for i in range(1 if self.major == "k" else self.side // self.row):
            at = (k, first) if self.major == "k" else (f"{first} + {i * self.row}", k)
            to = f"{self.letter} + {slot} * {self.nbytes()} + {i * self.row * 128}"
            boxes.append(
                f"aster_copy_box({to}, &tensor_{self.letter}, &full[{slot}], {at[0]} + "
                f"(int)tensor_{self.letter}.before, {at[1]});"
            )
        return " ".join(boxes)

    def descriptor(self, slot: str, first: str, step: int, core_k: int) -> str:
        """Of rows from `first` on, and step number `step` of the strip."""
        start = f"{self.letter} + {slot} * {self.nbytes()}"
        if self.major == "k":
            return f"aster_descriptor({start} + ({first}) * 128 + {step * 32}, 16, 1024)"
        across = f"({first}) / {self.row} * {self.row * 128} + {step * core_k * 128}"
        return f"aster_descriptor({start} + {across}, {self.row * 128}, 1024)"


def kernel(core: TensorCore, majors: str, m: int, n: int, k: int, depth: int, **change: str) -> str:
    """A product of [m, k] and [k, n], as float32; `change` replaces lines by name."""
    side, itemsize = core.size("n"), to_dtype(core.dtype).itemsize
    a = Operand("a", ROWS, majors[0], itemsize)
    b = Operand("b", side, majors[1], itemsize)
    strip, sums = 128 // itemsize, registers(core, "c")
    shapes = {"a": (m, k) if a.major == "k" else (k, m), "b": (n, k) if b.major == "k" else (k, n)}
    maps = []
    for slot, x in ((1, a), (2, b)):
        rows, row = shapes[x.letter]
        maps.append(TensorMap(slot, core.dtype, 0, (row, rows), (1, row), x.box()))
    accumulators = ", ".join([f"c[{i}]" for i in range(sums)])
    lines = {
        "expect": f"aster_barrier_expect(&full[i % {depth}], {a.nbytes() + b.nbytes()});",
        "wait": f"aster_barrier_wait(&full[i % {depth}], i / {depth} & 1);",
        "begin": "aster_wgmma_begin();",
        "commit": "aster_wgmma_commit();",
        "left": "aster_wgmma_wait<1>();",
        "done": "aster_wgmma_wait<0>();",
        "all": "__syncthreads();",
    } | change
    products = "\n".join([
        f"    {function_name(core, majors)}({accumulators},\n"
        f"      {a.descriptor(f'(i % {depth})', 'group * 64', j, core.size('k'))},\n"
        f"      {b.descriptor(f'(i % {depth})', '0', j, core.size('k'))});"
        for j in range(strip // core.size("k"))
    ])  # fmt: skip
    places = "\n".join([
        f"  if (row + {i >> 1 & 1} * 8 < {m} && col + {(i & 1) + (i >> 2) * 8} < {n}) "
        f"out[(row + {i >> 1 & 1} * 8) * {n} + col + {(i & 1) + (i >> 2) * 8}] = c[{i}];"
        for i in range(sums)
    ])  # fmt: skip
    return f"""\
{chr(10).join([x.line() for x in maps])}
// Dynamic shared memory: {depth * (a.nbytes() + b.nbytes())} bytes
{texts_of("aster_copy_box", "aster_descriptor", "aster_shared")}
{wgmma_text(core, majors)}
extern "C" __global__ void __launch_bounds__(256, 1)
product(float *out, const void *buf1, const void *buf2, const unsigned long long *table,
    const __grid_constant__ aster_tensor tensor_a, const __grid_constant__ aster_tensor tensor_b) {{
  __shared__ unsigned long long full[{depth}];
  unsigned char *a = aster_shared, *b = aster_shared + {depth * a.nbytes()};
  int group = threadIdx.x / 128, t = threadIdx.x % 128;
  int first_m = blockIdx.x * {ROWS}, first_n = blockIdx.y * {side};
  if (threadIdx.x == 0) {{
    for (int i = 0; i < {depth}; i++) aster_barrier_init(&full[i], 1);
    aster_barriers_made();
  }}
  __syncthreads();
  if (threadIdx.x == 0) {{
    for (int i = 0; i < {depth - 1} && i * {strip} < {k}; i++) {{
      {lines["expect"]}
      {a.copies("i", "first_m", f"i * {strip}")}
      {b.copies("i", "first_n", f"i * {strip}")}
    }}
  }}
  float c[{sums}];
#pragma unroll
  for (int i = 0; i < {sums}; i++) c[i] = 0;
  for (int i = 0; i * {strip} < {k}; i++) {{
    {lines["wait"]}
    {lines["begin"]}
{products}
    {lines["commit"]}
    {lines["left"]}
    {lines["all"]}
    if (threadIdx.x == 0 && (i + {depth - 1}) * {strip} < {k}) {{
      int next = i + {depth - 1};
      {lines["expect"].replace("i %", "next %")}
      {a.copies(f"(next % {depth})", "first_m", f"next * {strip}")}
      {b.copies(f"(next % {depth})", "first_n", f"next * {strip}")}
    }}
  }}
  {lines["done"]}
  int row = first_m + group * 64 + t / 32 * 16 + t % 32 / 4, col = first_n + t % 4 * 2;
{places}
}}
"""


def arrays(core: TensorCore, majors: str, m: int, n: int, k: int) -> list[np.ndarray[Any, Any]]:
    """Result and operands, as they lie."""
    rng = np.random.default_rng(m + n + k)
    kind = NUMPY[core.dtype]
    a = rng.integers(-4, 5, (m, k)).astype(kind)
    b = rng.integers(-4, 5, (k, n)).astype(kind)
    lying = [np.ascontiguousarray(a if majors[0] == "k" else a.T)]
    lying.append(np.ascontiguousarray(b.T if majors[1] == "k" else b))
    wanted = a.astype(np.float32) @ b.astype(np.float32)
    return [wanted, np.full((m, n), np.nan, np.float32), *lying]


def run(source: str, core: TensorCore, found: list[np.ndarray[Any, Any]]) -> None:
    """Runs the kernel on the CPU."""
    m, n = found[1].shape
    grid = (-(-m // ROWS), -(-n // core.size("n")), 1)
    program = on_cpu.load(on_cpu.compile_kernel(source), "product")
    addresses = tuple([x.ctypes.data for x in found[1:]])
    shared = int(re.search(r"memory: (\d+)", source)[1])  # type: ignore[index]
    program(addresses, (), grid, (256, 1, 1), shared, tensor_maps(source))


CASES = [
    (row.name, majors)
    for row in GROUP_CORES
    for majors in (("kk", "kn", "mk", "mn") if row.dtype in TURNED else ("kk",))
    if row.size("n") == 64
]


@pytest.mark.parametrize(("name", "majors"), [*CASES, ("cuda_wgmma_m64n256k16_bfloat16", "kn")])
def test_a_product_is_that_of_numpy(name: str, majors: str) -> None:
    core = TENSOR_CORES[name]
    step = 128 // to_dtype(core.dtype).itemsize
    # Edges: rows, columns and places along the sum that are no multiples of a tile's.
    m, n, k = 136, core.size("n") + 16, 2 * step + 16
    found = arrays(core, majors, m, n, k)
    run(kernel(core, majors, m, n, k, 2), core, found)
    np.testing.assert_array_equal(found[1], found[0])


SMALL = "cuda_wgmma_m64n64k16_float16"
MISTAKES = {
    "a wait for boxes": ({"wait": ""}, "a box that nobody waits for"),
    "bytes that nobody expects": (
        {"expect": "aster_barrier_arrive(&full[i % 3]);"}, "wrong|a box that nobody waits for",
    ),
    "an arrival": ({"expect": ""}, "nobody can go on: .* waits for a barrier in shared memory"),
    "the other parity": (
        {"wait": "aster_barrier_wait(&full[i % 3], 1);"}, "wrong|changed|a box that nobody",
    ),
    "a fence": ({"begin": ""}, "a product without wgmma.fence before it"),
    "the last wait": ({"done": ""}, "a product that nobody waits for"),
    "a wait before the next boxes": ({"left": ""}, "operands of a product that changed"),
    "a barrier before the next boxes": (
        {"all": ""}, "wrong|operands of a product that changed|nobody can go on",
    ),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_show(mistake: str) -> None:
    change, said = MISTAKES[mistake]
    core = TENSOR_CORES[SMALL]
    found = arrays(core, "kn", 128, 64, 320)
    try:
        run(kernel(core, "kn", 128, 64, 320, 3, **change), core, found)
    except DeviceError as error:
        text = str(error)
    else:
        text = "wrong results" if not np.array_equal(found[0], found[1]) else "all is well"
    assert re.search(said, text), text


@needs_nvrtc
@pytest.mark.parametrize("name", [row.name for row in GROUP_CORES if row.size("n") == 256])
def test_it_compiles_for_hopper(name: str) -> None:
    from tools.gpu_compile import compile_kernel

    core = TENSOR_CORES[name]
    majors = "kn" if core.dtype in TURNED else "kk"
    source = kernel(core, majors, 4096, 4096, 4096, 4)
    report = compile_kernel(source, "sm_90a")
    assert not report.error
    assert report.spilled == 0
    assert not report.warned
    cubin = cuda_compiler.compile_cubin(source, "sm_90a")
    assert cubin
    if cuda_compiler.disassembler() is None:
        return
    sass = cuda_compiler.disassemble(cubin)
    wanted = r"[HQ]GMMA\.64x256x"
    assert len(re.findall(wanted, sass)) == 4
    assert "UTMALDG.2D" in sass


@needs_nvrtc
def test_products_that_wait_for_one_another_are_reported() -> None:
    from tools.gpu_compile import compile_kernel

    core = TENSOR_CORES["cuda_wgmma_m64n256k16_float16"]
    change = {"left": f"for (int j = 0; j < {registers(core, 'c')}; j++) c[j] += 1;"}
    report = compile_kernel(kernel(core, "kn", 4096, 4096, 4096, 4, **change), "sm_90a")
    assert re.search("C75(10|17)", report.warned)
