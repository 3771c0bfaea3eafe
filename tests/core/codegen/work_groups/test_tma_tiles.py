"""Products whose operands boxes bring to local memory: Opts, edges, and CUDA C++ run on the CPU."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from aster_ml import Tensor, dtypes
from aster_ml.codegen.opts import parse_opts
from aster_ml.codegen.passes import lower
from aster_ml.codegen.plans import BlockOrder
from aster_ml.codegen.work_groups.tile_order import delinearize_tile
from aster_ml.config import Context
from aster_ml.errors import KernelOptError
from aster_ml.renderer.cuda.renderer import CudaRenderer
from aster_ml.runtime.cuda import compiler as cuda_compiler
from aster_ml.target import UNTRIED
from aster_ml.target.cuda import cuda_target
from aster_ml.target.tensor_cores import ROWS
from aster_ml.target.tensor_maps import tensor_maps
from aster_ml.uop.graph import substitute
from aster_ml.uop.linear import Linear
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import AxisType, Ops
from aster_ml.uop.print.text import linear_from_text, linear_to_text
from aster_ml.uop.spec.linear import verify_linear
from tests.core.kernel_checks import kernel_of
from tests.shim import on_cpu

CARD = cuda_target("sm_90a")
NUMBERS = {row.name.removeprefix("cuda_wgmma_"): i for i, row in enumerate(ROWS)}
NUMPY = {
    dtypes.float16: np.float16, dtypes.bfloat16: ml_dtypes.bfloat16, dtypes.float32: np.float32,
    dtypes.fp8e4m3: ml_dtypes.float8_e4m3fn, dtypes.fp8e5m2: ml_dtypes.float8_e5m2,
}  # fmt: skip
runs = [
    pytest.mark.cc,
    pytest.mark.skipif(on_cpu.find_compiler() is None, reason="no C++ compiler on PATH: g++"),
]


def run(ast: UOp, arrays: list[np.ndarray[Any, Any]], opts: str | None = None) -> Linear:
    """The program of a kernel for Hopper, once it has run on the CPU."""
    linear, _ = lower(ast, CARD, None if opts is None else parse_opts(opts))
    verify_linear(linear)
    assert linear_from_text(linear_to_text(linear)) == linear
    assert any(u.op is Ops.TMA_LOAD for u in linear.uops)
    on_cpu.run(CudaRenderer(CARD).render(linear), linear, [a.reshape(-1) for a in arrays])
    return linear


def random(dtype: Any, *shape: int) -> np.ndarray[Any, Any]:
    """Small integers, of which products and sums are exact."""
    rng = np.random.default_rng(sum(shape))
    return rng.integers(-4, 5, shape).astype(NUMPY[dtype])


def test_barriers_take_room_beside_the_stages() -> None:
    x = Tensor.empty(128, 256, dtype=dtypes.float16)
    product = kernel_of(x.matmul(Tensor.empty(256, 64, dtype=dtypes.float16), dtype=dtypes.float32))
    number = NUMBERS["m64n64k16_float16"]
    opts = parse_opts(f"TC(r2,{number}) LOCAL(r0,2) STAGE(r2,4,local) PIPELINE(r2,2,copies)")
    stages = 2 * (128 + 64) * 128
    small = replace(CARD, local_bytes=stages + 1023)
    with pytest.raises(
        KernelOptError, match="wants 50,176 bytes of local memory, and a block has 50,175"
    ):
        lower(product, small, opts)
    linear, _ = lower(product, replace(CARD, local_bytes=stages + 1024), opts)
    assert linear.local_size == (256,)


@pytest.mark.cc
@pytest.mark.skipif(on_cpu.find_compiler() is None, reason="no C++ compiler on PATH: g++")
@pytest.mark.parametrize("turned", ["", "a", "b", "ab"])
def test_any_neighbours_of_numbers_of_16_bits(turned: str) -> None:
    n, k, m = 128, 128, 64
    left = Tensor.empty(*((k, n) if "a" in turned else (n, k)), dtype=dtypes.float16)
    right = Tensor.empty(*((m, k) if "b" in turned else (k, m)), dtype=dtypes.float16)
    x, y = left.T if "a" in turned else left, right.T if "b" in turned else right
    a, b = random(dtypes.float16, *left.shape), random(dtypes.float16, *right.shape)
    out = np.full((n, m), np.nan, np.float32)
    number = NUMBERS["m64n64k16_float16"]
    opts = f"TC(r2,{number}) LOCAL(r0,2) STAGE(r2,4,local) PIPELINE(r2,2,copies)"
    run(kernel_of(x.matmul(y, dtype=dtypes.float32)), [out, a, b], opts)
    p, q = a.T if "a" in turned else a, b.T if "b" in turned else b
    np.testing.assert_array_equal(out, p.astype(np.float32) @ q.astype(np.float32))


@pytest.mark.cc
@pytest.mark.skipif(on_cpu.find_compiler() is None, reason="no C++ compiler on PATH: g++")
@pytest.mark.parametrize(
    ("n", "k", "m", "dtype"),
    [
        (64, 128, 64, dtypes.bfloat16), (136, 200, 72, dtypes.float16),
        (200, 136, 264, dtypes.bfloat16), (65, 320, 80, dtypes.float16),
    ],
)  # fmt: skip
def test_the_default_schedule_has_edges(n: int, k: int, m: int, dtype: Any) -> None:
    left, right = Tensor.empty(n, k, dtype=dtype), Tensor.empty(k, m, dtype=dtype)
    a, b = random(dtype, n, k), random(dtype, k, m)
    out = np.full((n, m), np.nan, np.float32)
    run(kernel_of(left.matmul(right, dtype=dtypes.float32)), [out, a, b])
    np.testing.assert_array_equal(out, a.astype(np.float32) @ b.astype(np.float32))


@pytest.mark.cc
@pytest.mark.skipif(on_cpu.find_compiler() is None, reason="no C++ compiler on PATH: g++")
def test_products_of_a_batch_and_what_follows_them() -> None:
    a, b = random(dtypes.float16, 2, 72, 136), random(dtypes.float16, 2, 136, 64)
    left, right = Tensor.empty(*a.shape, dtype=dtypes.float16), Tensor.empty(*b.shape, dtype="half")
    out = np.full((2, 72, 64), np.nan, np.float16)
    ast = kernel_of((left.matmul(right, dtype=dtypes.float32) * 0.5).relu().half())
    linear = run(ast, [out, a, b])
    assert {len(u.arg.sizes) for u in linear.uops if u.op is Ops.TMA_LOAD} == {3}
    wanted = np.maximum(a.astype(np.float32) @ b.astype(np.float32) * 0.5, 0)
    np.testing.assert_array_equal(out, wanted.astype(np.float16))


@pytest.mark.cc
@pytest.mark.skipif(on_cpu.find_compiler() is None, reason="no C++ compiler on PATH: g++")
def test_numbers_of_32_bits_have_k_as_neighbours() -> None:
    a, b = random(dtypes.float32, 64, 96), random(dtypes.float32, 64, 96)
    left, right = Tensor.empty(64, 96), Tensor.empty(64, 96)
    out = np.full((64, 64), np.nan, np.float32)
    with Context(ALLOW_TF32=1):
        linear = run(kernel_of(left @ right.T), [out, a, b])
        other, _ = lower(kernel_of(left @ Tensor.empty(96, 64)), CARD)
    assert {u.arg.majors for u in linear.uops if u.op is Ops.MMA} == {"kk"}
    assert not any(u.op is Ops.TMA_LOAD for u in other.uops)
    np.testing.assert_array_equal(out, a @ b.T)


@pytest.mark.cc
@pytest.mark.skipif(on_cpu.find_compiler() is None, reason="no C++ compiler on PATH: g++")
@pytest.mark.parametrize("dtype", [dtypes.fp8e4m3, dtypes.fp8e5m2])
@pytest.mark.parametrize("boxes", [1, 2])
def test_numbers_of_8_bits_have_k_as_neighbours(dtype: Any, boxes: int) -> None:
    n, k, m = 136, 272, 72
    a, b = random(dtype, n, k), random(dtype, m, k)
    left, right = Tensor.empty(n, k, dtype=dtype), Tensor.empty(m, k, dtype=dtype)
    out = np.full((n, m), np.nan, np.float32)
    ast = kernel_of(left.matmul(right.T, dtype=dtypes.float32))
    with Context(ALLOW_TF32=1, BOXES=boxes):
        linear = run(ast, [out, a, b])
    np.testing.assert_array_equal(out, a.astype(np.float32) @ b.astype(np.float32).T)
    assert {u.arg.majors for u in linear.uops if u.op is Ops.MMA} == {"kk"}
    # Sums lose bits, which only who allows it gets.
    assert not any(u.op is Ops.TMA_LOAD for u in lower(ast, CARD)[0].uops)


def test_neighbouring_results_are_stored_together() -> None:
    left, right = (Tensor.empty(8192, 8192, dtype=dtypes.bfloat16) for _ in range(2))
    for result, word in ((dtypes.bfloat16, "x2"), (dtypes.float32, "x2")):
        ast = kernel_of(left.matmul(right, dtype=dtypes.float32).cast(result))
        opts = [opt for opt in lower(ast, CARD)[1] if opt.kind != "STAGE out"]
        source = CudaRenderer(CARD).render(lower(ast, CARD, tuple(opts))[0])
        stores = re.findall(r"aster_store_any<(\d+)>\(buf0.*(make_\w+)\(", source)
        assert {(int(n), name[-2:]) for n, name in stores} == {(2 * result.itemsize, word)}
        assert len(stores) == 64
        assert "buf0[" not in source


@pytest.mark.cc
@pytest.mark.skipif(on_cpu.find_compiler() is None, reason="no C++ compiler on PATH: g++")
def test_tensors_may_begin_at_any_element() -> None:
    memory = random(dtypes.float16, 64 * 136 + 3)
    b = random(dtypes.float16, 136, 64)
    left, right = Tensor.empty(64, 136, dtype="half"), Tensor.empty(136, 64, dtype="half")
    ast = kernel_of(left.matmul(right, dtype=dtypes.float32))
    for start in range(4):
        a = memory[start : start + 64 * 136]
        out = np.full((64, 64), np.nan, np.float32)
        if start == 0:
            run(ast, [out, a, b])
        else:
            linear, _ = lower(ast, CARD)
            on_cpu.run(
                CudaRenderer(CARD).render(linear), linear, [out.reshape(-1), a, b.reshape(-1)]
            )
        wanted = a.reshape(64, 136).astype(np.float32) @ b.astype(np.float32)
        np.testing.assert_array_equal(out, wanted)


def test_large_products_have_tiles_of_128_x_256_x_64_in_four_stages() -> None:
    left, right = (Tensor.empty(8192, 8192, dtype=dtypes.bfloat16) for _ in range(2))
    ast = kernel_of(left.matmul(right, dtype=dtypes.float32).cast(dtypes.bfloat16))
    linear, opts = lower(ast, CARD)
    number = NUMBERS["m64n256k16_bfloat16"]
    assert " ".join(map(repr, opts)) == (
        f"TC(r2,{number}) LOCAL(r0,2) STAGE(r2,4,local) PIPELINE(r2,4,copies) STAGE(0,1,out)"
    )
    source = CudaRenderer(CARD).render(linear)
    assert [x.box for x in tensor_maps(source)] == [(64, 128), (64, 64), (64, 128)]
    assert "// Dynamic shared memory: 196608 bytes" in source


@pytest.mark.cc
@pytest.mark.skipif(on_cpu.find_compiler() is None, reason="no C++ compiler on PATH: g++")
@pytest.mark.parametrize(("groups", "stages"), [(1, 2), (2, 3)])
def test_a_warp_of_its_own_copies(groups: int, stages: int) -> None:
    n, k, m = 120, 456, 64
    a, b = random(dtypes.float16, n, k), random(dtypes.float16, k, m)
    left, right = Tensor.empty(n, k, dtype="half"), Tensor.empty(k, m, dtype="half")
    out = np.full((n, m), np.nan, np.float32)
    items = f"LOCAL(r0,{groups}) " if groups > 1 else ""
    opts = (
        f"SPLIT(r0,{64 * groups},mask) SPLIT(r2,64,mask) TC(r2,{NUMBERS['m64n64k16_float16']}) "
        f"{items}STAGE(r2,4,local) PIPELINE(r2,{stages},producer)"
    )
    linear = run(kernel_of(left.matmul(right, dtype=dtypes.float32)), [out, a, b], opts)
    assert linear.local_size[0] == 128 * groups + 128
    np.testing.assert_array_equal(out, a.astype(np.float32) @ b.astype(np.float32))


TILES = "SPLIT(r0,384,mask) SPLIT(r1,256,mask) SPLIT(r2,320,mask) TC(r2,{}) LOCAL(r0,2) "
AHEAD = "STAGE(r2,4,local) PIPELINE(r2,{},producer) "


@pytest.mark.cc
@pytest.mark.skipif(on_cpu.find_compiler() is None, reason="no C++ compiler on PATH: g++")
@pytest.mark.parametrize(
    ("stages", "blocks", "launched"),
    [
        (3, "BLOCKS(r0,2,order) BLOCKS(0,5,loop)", 5), (2, "BLOCKS(0,1,loop)", 1),
        (3, "BLOCKS(r1,3,order) BLOCKS(0,12,loop)", 12), (2, "BLOCKS(r1,2,order)", 12),
    ],
)  # fmt: skip
def test_blocks_go_from_tile_to_tile(stages: int, blocks: str, launched: int) -> None:
    """12 tiles, whose strips go on through the stages from one tile to the next."""
    n, k, m = 300, 264, 200
    a, b = random(dtypes.float16, n, k), random(dtypes.float16, k, m)
    left, right = Tensor.empty(n, k, dtype="half"), Tensor.empty(k, m, dtype="half")
    out = np.full((n, m), np.nan, np.float32)
    opts = TILES.format(NUMBERS["m64n64k16_float16"]) + AHEAD.format(stages) + blocks
    linear = run(kernel_of(left.matmul(right, dtype=dtypes.float32)), [out, a, b], opts)
    assert linear.global_size == (launched,)
    np.testing.assert_array_equal(out, a.astype(np.float32) @ b.astype(np.float32))


@pytest.mark.parametrize(("tiles", "rows"), [((5, 3), 2), ((6, 4), 3), ((2, 7, 4), 4)])
def test_each_tile_has_one_number(tiles: tuple[int, ...], rows: int) -> None:
    axes = [UOp.range(n, i, AxisType.LOOP) for i, n in enumerate(tiles)]
    count = int(np.prod(tiles))
    block = UOp.range(count, 9, AxisType.GLOBAL)
    found = delinearize_tile(BlockOrder(axis=len(tiles) - 2, count=rows), block, axes)
    places = [
        tuple([substitute(found[r], {block: UOp.index_const(i)}).ssimplify() for r in axes])
        for i in range(count)
    ]
    assert sorted(places) == sorted(itertools.product(*[range(n) for n in tiles]))
    # The first ones are rows of one column.
    assert [p[-2] for p in places[:rows]] == list(range(rows))
    assert {p[-1] for p in places[:rows]} == {0}


def test_only_producers_go_from_tile_to_tile() -> None:
    left, right = Tensor.empty(256, 128, dtype="half"), Tensor.empty(128, 64, dtype="half")
    ast = kernel_of(left.matmul(right, dtype=dtypes.float32))
    opts = f"TC(r2,{NUMBERS['m64n64k16_float16']}) STAGE(r2,4,local) PIPELINE(r2,2,copies) "
    with pytest.raises(KernelOptError, match="a producer warp is wanted"):
        lower(ast, CARD, parse_opts(opts + "BLOCKS(0,2,loop)"))


def test_a_setting_gives_each_processor_one_block() -> None:
    left, right = (Tensor.empty(8192, 8192, dtype=dtypes.bfloat16) for _ in range(2))
    with Context(BOXES=2):
        linear, _ = lower(kernel_of(left.matmul(right, dtype=dtypes.float32)), CARD)
    assert (linear.global_size, linear.local_size[0]) == ((2, 66), 384)
    roles = [u.arg.registers for u in linear.uops if u.op is Ops.WARP_ROLE]
    assert roles == [40, 232]


def test_only_boxes_have_a_producer() -> None:
    left, right = Tensor.empty(64, 64, dtype="half"), Tensor.empty(64, 64, dtype="half")
    ast = kernel_of(left.matmul(right, dtype=dtypes.float32))
    opts = "LOCAL(r0,8) LOCAL(r1,8) STAGE(r2,8,local) PIPELINE(r2,2,producer)"
    with pytest.raises(KernelOptError, match="PIPELINE producer wants boxes of tensors"):
        lower(ast, CARD, parse_opts(opts))


@pytest.mark.parametrize(
    ("opts", "said"),
    [
        ("TC(r2,{})", "STAGE local and PIPELINE copies say so"),
        ("TC(r2,{}) STAGE(r2,2,local) PIPELINE(r2,2,copies)", "a strip of k is 128 bytes, not 64"),
    ],
)
def test_what_cannot_be_is_refused(opts: str, said: str) -> None:
    left, right = (Tensor.empty(128, 128, dtype=dtypes.float16) for _ in range(2))
    ast = kernel_of(left.matmul(right, dtype=dtypes.float32))
    with pytest.raises(KernelOptError, match=said):
        lower(ast, CARD, parse_opts(opts.format(NUMBERS["m64n64k16_float16"])))


def test_other_kernels_go_without_boxes() -> None:
    """Strides of no 16 bytes, one strip: warps multiply them."""
    small, odd = Tensor.empty(128, 64, dtype="half"), Tensor.empty(128, 129, dtype="half")
    for x, y in ((small, small.T), (odd, odd.T)):
        linear, _ = lower(kernel_of(x.matmul(y, dtype=dtypes.float32)), CARD)
        assert not any(u.op is Ops.TMA_LOAD for u in linear.uops)


def test_a_setting_keeps_products_from_boxes() -> None:
    whole = Tensor.empty(128, 128, dtype="half")
    ast = kernel_of(whole.matmul(whole.T, dtype=dtypes.float32))
    found = []
    for boxes in (1, 0):
        with Context(BOXES=boxes):
            found.append(any(u.op is Ops.TMA_LOAD for u in lower(ast, CARD)[0].uops))
    assert found == [True, False]


@pytest.mark.parametrize("boxes, wanted", [(-1, False), (0, False), (1, True), (2, True)])
def test_a_card_without_a_self_test_has_boxes_where_they_are_asked_for(
    boxes: int, wanted: bool
) -> None:
    untried = replace(CARD, features=CARD.features | {UNTRIED})
    whole = Tensor.empty(128, 128, dtype="half")
    ast = kernel_of(whole.matmul(whole.T, dtype=dtypes.float32))
    with Context(BOXES=boxes):
        assert any(u.op is Ops.TMA_LOAD for u in lower(ast, untried)[0].uops) is wanted
        assert any(u.op is Ops.TMA_LOAD for u in lower(ast, CARD)[0].uops) is (boxes != 0)


@pytest.mark.skipif(
    cuda_compiler.missing() is not None, reason="NVRTC: pip install 'aster-ml[cuda]'"
)
@pytest.mark.parametrize("boxes", [1, 2])
def test_products_of_fp8_compile_for_hopper(boxes: int) -> None:
    from tools.gpu_compile import compile_kernel

    left, right = (Tensor.empty(4096, 4096, dtype=dtypes.fp8e4m3) for _ in range(2))
    ast = kernel_of(left.matmul(right.T, dtype=dtypes.float32).cast(dtypes.bfloat16))
    with Context(ALLOW_TF32=1, BOXES=boxes):
        source = CudaRenderer(CARD).render(lower(ast, CARD)[0])
    report = compile_kernel(source, "sm_90a")
    assert (report.error, report.spilled, report.warned) == ("", 0, "")
    if cuda_compiler.disassembler() is not None:
        sass = cuda_compiler.disassemble(cuda_compiler.compile_cubin(source, "sm_90a"))
        assert re.search(r"QGMMA\.64x\d+x32\.F32\.E4M3", sass)


@pytest.mark.skipif(
    cuda_compiler.missing() is not None, reason="NVRTC: pip install 'aster-ml[cuda]'"
)
@pytest.mark.parametrize(
    ("n", "k", "m", "turned", "how"),
    [
        (8192, 8192, 8192, False, ""), (1000, 520, 1000, True, ""),
        (8192, 8192, 8192, False, "producer"), (8192, 4096, 8192, True, "loop"),
    ],
)  # fmt: skip
def test_they_compile_for_hopper(n: int, k: int, m: int, turned: bool, how: str) -> None:
    from tools.gpu_compile import compile_kernel

    left = Tensor.empty(n, k, dtype=dtypes.bfloat16)
    right = (
        Tensor.empty(m, k, dtype=dtypes.bfloat16).T
        if turned
        else Tensor.empty(k, m, dtype="bfloat16")
    )
    ast = kernel_of(left.matmul(right, dtype=dtypes.float32).cast(dtypes.bfloat16))
    linear, opts = lower(ast, CARD)
    if how == "loop":
        with Context(BOXES=2):
            linear, _ = lower(ast, CARD)
    elif how:
        # A producer fills the memory of operands on, so results leave from registers.
        left_over = [repr(opt) for opt in opts if opt.kind != "STAGE out"]
        text = " ".join(left_over).replace("copies", how)
        linear, _ = lower(ast, CARD, parse_opts(text))
    source = CudaRenderer(CARD).render(linear)
    report = compile_kernel(source, "sm_90a")
    assert (report.error, report.spilled, report.warned) == ("", 0, "")
    if cuda_compiler.disassembler() is not None:
        sass = cuda_compiler.disassemble(cuda_compiler.compile_cubin(source, "sm_90a"))
        assert re.search(r"HGMMA\.64x\d+x16\.F32\.BF16", sass)
        assert "UTMALDG.2D" in sass
        assert ("USETMAXREG" in sass) is bool(how)
