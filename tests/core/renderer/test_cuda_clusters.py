"""Clusters of blocks on Hopper: products whose blocks copy for one another, as CUDA C++ on the CPU.

Edges, numbers of tiles that are no whole clusters, persistent blocks; each wait, arrival or meeting
left out once; what NVRTC makes of it.
"""

from __future__ import annotations

import functools
import re
from typing import Any

import numpy as np
import pytest

from aster_ml import Tensor, dtypes
from aster_ml.codegen.opts import parse_opts
from aster_ml.codegen.passes import lower
from aster_ml.errors import DeviceError, KernelOptError
from aster_ml.renderer.cuda.renderer import CudaRenderer
from aster_ml.runtime.cuda import compiler as cuda_compiler
from aster_ml.target.cuda import cuda_target, dynamic_nbytes
from aster_ml.target.tensor_cores import ROWS
from aster_ml.target.tensor_maps import tensor_maps
from aster_ml.uop.linear import Linear
from aster_ml.uop.spec.linear import verify_linear
from tests.core.kernel_checks import kernel_of
from tests.shim import on_cpu

CARD = cuda_target("sm_90a")
NUMBERS = {row.name.removeprefix("cuda_wgmma_"): i for i, row in enumerate(ROWS)}
runs = pytest.mark.skipif(on_cpu.find_compiler() is None, reason="no C++ compiler on PATH: g++")
needs_nvrtc = pytest.mark.skipif(
    cuda_compiler.missing() is not None, reason="NVRTC: pip install 'aster-ml[cuda]'"
)
AHEAD = f"TC(r2,{NUMBERS['m64n64k16_float16']}) STAGE(r2,4,local) PIPELINE(r2,2,producer) "


def slow(*given: Any) -> Any:
    """A case of the slow tests."""
    return pytest.param(*given, marks=pytest.mark.slow)


class Product:
    """A product [n, k] @ [k, m] of float16 and one number more, and what NumPy makes of it."""

    def __init__(self, n: int, k: int, m: int, turned: str = "") -> None:
        rng = np.random.default_rng(n + k + m)
        a = rng.integers(-4, 5, (k, n) if "a" in turned else (n, k)).astype(np.float16)
        b = rng.integers(-4, 5, (m, k) if "b" in turned else (k, m)).astype(np.float16)
        more = rng.integers(-4, 5, (n, 1)).astype(np.float32)
        left, right = Tensor.empty(*a.shape, dtype="half"), Tensor.empty(*b.shape, dtype="half")
        x, y = left.T if "a" in turned else left, right.T if "b" in turned else right
        self.ast = kernel_of(x.matmul(y, dtype=dtypes.float32) + Tensor.empty(n, 1))
        # Edges are tiles of 64, of which a mask says where they end.
        self.edges = "".join(
            [f"SPLIT(r{i},{-(-s // 64) * 64},mask) " for i, s in enumerate((n, m, k)) if s % 64]
        )
        self.out = np.full((n, m), np.nan, np.float32)
        self.arrays = [self.out.reshape(-1), *[v.reshape(-1) for v in (a, b, more)]]
        p, q = (v.astype(np.float32) for v in (a, b))
        self.wanted = (p.T if "a" in turned else p) @ (q.T if "b" in turned else q) + more

    def lower(self, opts: str) -> Linear:
        """The program by these Opts."""
        linear, _ = lower(self.ast, CARD, parse_opts(self.edges + opts))
        verify_linear(linear)
        return linear

    def is_right(self, linear: Linear, source: str) -> bool:
        """Whether a source gives what NumPy gives. Raises: DeviceError."""
        self.out[:] = np.nan
        program = on_cpu.load(on_cpu.compile_kernel(source), linear.name)
        addresses = tuple([x.ctypes.data for x in self.arrays])
        grid = tuple([int(n) for n in linear.global_size])
        shared, maps = dynamic_nbytes(source), tensor_maps(source)
        program(addresses, (), grid, linear.local_size, shared, maps)
        return np.array_equal(self.out, self.wanted)


@pytest.mark.cc
@runs
@pytest.mark.parametrize(
    ("sizes", "turned", "opts", "blocks"),
    [
        # Tiles: 4 x 2; 5 x 1; 1 x 3, as many as blocks; 1 of one that has 4.
        ((256, 128, 128), "", "BLOCKS(r0,2,cluster)", (2, 2, 2)),
        ((300, 136, 64), "b", "BLOCKS(r0,4,cluster)", (4, 2)),
        slow((64, 128, 136), "", "BLOCKS(r1,2,cluster)", (2, 2)),
        slow((200, 200, 80), "ab", "BLOCKS(r1,4,cluster)", (4, 1, 4)),
        # 5 x 3, one cluster after the other.
        ((320, 200, 136), "a", "BLOCKS(r0,2,cluster) BLOCKS(0,4,loop)", (2, 2)),
        slow(
            (312, 136, 192), "b", "BLOCKS(r1,2,cluster) BLOCKS(r0,2,order) BLOCKS(0,2,loop)", (2, 1)
        ),
        slow(
            (320, 128, 136), "", "BLOCKS(r0,2,order) BLOCKS(r0,4,cluster) BLOCKS(0,8,loop)", (4, 2)
        ),
    ],
)
def test_results_are_those_of_numpy(
    sizes: tuple[int, int, int], turned: str, opts: str, blocks: tuple[int, ...]
) -> None:
    product = Product(*sizes, turned)
    linear = product.lower(AHEAD + opts)
    assert linear.global_size == blocks
    source = CudaRenderer(CARD).render(linear)
    assert f"__cluster_dims__({blocks[0]}, 1, 1)" in source
    assert product.is_right(linear, source)


@pytest.mark.cc
@runs
@pytest.mark.parametrize("how", [slow(""), "BLOCKS(0,6,loop)"])
def test_groups_that_multiply_release_to_all(how: str) -> None:
    product = Product(640, 136, 128)
    two = AHEAD.replace("STAGE", "LOCAL(r0,2) STAGE")
    linear = product.lower(f"{two}BLOCKS(r0,2,cluster) {how}")
    source = CudaRenderer(CARD).render(linear)
    assert "aster_barrier_init(&empty[i], 16);" in source
    assert product.is_right(linear, source)


# What is changed of a source, and what shows it.
MEETS = r"aster_cluster_meets\(\);"
MISTAKES = {
    "barriers are made": (MEETS, "__syncthreads();", 1, "a barrier that was not made"),
    "nobody ends before the others": (
        rf"{MEETS}\n}}", "}", 1, "a barrier of a block that has ended",
    ),
    "the wait for boxes": (
        r"aster_barrier_wait\(&full.*", "", 1, "wrong|nobody waits for|nobody can go on",
    ),
    "the wait for a stage": (
        r"aster_barrier_wait\(&empty.*", "", 1,
        "wrong|more bytes than|changed before|nobody can go on",
    ),
    "a release": (r"if \(threadIdx.x % 32 < 2.*?\);", "", 2, "nobody can go on"),
    "a release to the other": (r"% 32 < 2 &&", "% 32 == 0 &&", 2, "nobody can go on|ended"),
    "a release to itself alone": (
        r"aster_cluster_arrive\((.*), threadIdx.x % 32\)",
        r"aster_cluster_arrive(\1, (int)blockIdx.x)", 2, "more have come|more bytes than|wrong",
    ),
    "arrivals of the other": (
        r"&empty\[i\], 8", "&empty[i], 4", 1, "more have come|more bytes than|wrong|changed",
    ),
    "bytes of the other": (r", 16384\)", ", 12288)", 1, "more bytes than a barrier waits for"),
    "its own bytes": (r", 16384\)", ", 20480)", 1, "nobody can go on"),
    "the box of the other": (r"share_box<3>", "share_box<1>", 1, "nobody can go on|more bytes"),
    "boxes for others than there are": (
        r"share_box<3>", "share_box<7>", 1, "a block that is not of the cluster",
    ),
}  # fmt: skip


# Those that each part of the way has: meetings, a wait, an arrival, bytes.
OFTEN = {
    "barriers are made", "nobody ends before the others", "the wait for a stage", "a release",
    "bytes of the other",
}  # fmt: skip


@functools.cache
def small() -> tuple[Product, Linear, str]:
    """Four tiles of five strips in two stages, for one cluster of two blocks."""
    product = Product(256, 320, 64)
    linear = product.lower(AHEAD + "BLOCKS(r0,2,cluster) BLOCKS(0,2,loop)")
    return product, linear, CudaRenderer(CARD).render(linear)


@pytest.mark.cc
@runs
@pytest.mark.parametrize("mistake", [m if m in OFTEN else slow(m) for m in MISTAKES])
def test_mistakes_show(mistake: str) -> None:
    pattern, by, count, said = MISTAKES[mistake]
    product, linear, source = small()
    head, kernel = source[: (at := source.index('extern "C"'))], source[at:]
    # The line breaks of a statement are no part of it.
    kernel = re.sub(r"(?<![;{}1])\n\s+", " ", kernel)
    changed, found = re.subn(pattern, by, kernel, count=count)
    assert found == count
    try:
        right = product.is_right(linear, head + changed)
        text = "all is well" if right else "wrong results"
    except DeviceError as error:
        text = str(error)
    assert re.search(said, text), text


def test_what_is_no_cluster_is_refused() -> None:
    product = Product(256, 128, 128)
    copies = AHEAD.replace("producer", "copies")
    for opts, said in (
        (copies + "BLOCKS(r0,2,cluster)", "a producer warp is wanted"),
        (AHEAD + "BLOCKS(r0,3,cluster)", "a cluster has 2 or 4 blocks, not 3"),
        (AHEAD + "BLOCKS(r0,2,cluster) BLOCKS(0,5,loop)", "5 blocks are no whole clusters of 2"),
        (AHEAD + "BLOCKS(0,2,loop) BLOCKS(r0,4,cluster)", "2 blocks are no whole clusters of 4"),
    ):
        with pytest.raises(KernelOptError, match=said):
            product.lower(opts)
    batch = kernel_of(
        Tensor.empty(2, 128, 128, dtype="half").matmul(Tensor.empty(2, 128, 128, dtype="half"))
    )
    opts = AHEAD.replace("r2", "r3") + "BLOCKS(r0,2,cluster)"
    with pytest.raises(KernelOptError, match="an axis of rows or of columns"):
        lower(batch, CARD, parse_opts(opts))


@pytest.mark.cc
@runs
def test_a_launch_is_whole_clusters() -> None:
    product, linear, source = small()
    program = on_cpu.load(on_cpu.compile_kernel(source), linear.name)
    addresses = tuple([x.ctypes.data for x in product.arrays])
    shared, maps = dynamic_nbytes(source), tensor_maps(source)
    with pytest.raises(DeviceError, match="clusters of 2 blocks of 256 threads, of 3 in a row"):
        program(addresses, (), (3, 1, 1), linear.local_size, shared, maps)


LARGE = (
    f"TC(r2,{NUMBERS['m64n256k16_bfloat16']}) LOCAL(r0,2) STAGE(r2,4,local) "
    "PIPELINE(r2,4,producer) "
)


@needs_nvrtc
@pytest.mark.parametrize(
    ("axis", "blocks", "turned"), [("r0", 2, False), slow("r0", 4, True), slow("r1", 2, True)]
)
def test_they_compile_for_hopper(axis: str, blocks: int, turned: bool) -> None:
    from tools.gpu_compile import compile_kernel

    left, right = (Tensor.empty(8192, 8192, dtype=dtypes.bfloat16) for _ in range(2))
    product: Any = left.matmul(right.T if turned else right, dtype=dtypes.float32)
    ast = kernel_of(product.cast(dtypes.bfloat16))
    opts = f"{LARGE}BLOCKS({axis},{blocks},cluster) BLOCKS({axis},4,order) BLOCKS(0,132,loop)"
    linear, _ = lower(ast, CARD, parse_opts(opts))
    assert linear.global_size == (blocks, 132 // blocks)
    source = CudaRenderer(CARD).render(linear)
    report = compile_kernel(source, "sm_90a")
    assert (report.error, report.spilled, report.warned) == ("", 0, "")
    if cuda_compiler.disassembler() is not None:
        sass = cuda_compiler.disassemble(cuda_compiler.compile_cubin(source, "sm_90a"))
        for word in (r"UTMALDG\.2D\.MULTICAST", r"UTMALDG\.2D ", "UCGABAR_ARV", "HGMMA"):
            assert re.search(word, sass), word
        # Nothing but the barrier crosses to the other block: there is no fence in the loops.
        assert len(re.findall("MEMBAR.ALL.GPU", sass)) <= 2
