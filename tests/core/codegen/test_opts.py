"""Opts as data; what programs of typical kernels have and lack; applied Opts keep the value."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from aster_ml import Context, Tensor
from aster_ml.codegen.apply import apply, make_thread
from aster_ml.codegen.kernel import Kernel
from aster_ml.codegen.opts import Opt, OptOps, parse_opts
from aster_ml.codegen.passes import lower, schedule_kernel
from aster_ml.codegen.plans import Threads
from aster_ml.codegen.policy.cpu.costs import MAX_TILE_SIDE
from aster_ml.codegen.policy.cpu.tails import SHORT_AXIS, uneven_sides
from aster_ml.device import Device
from aster_ml.engine import storage
from aster_ml.engine.compile import compile_kernel, render
from aster_ml.engine.realize import schedule_uops
from aster_ml.errors import ArgumentError, KernelOptError
from aster_ml.target import Target
from aster_ml.uop.graph import toposort
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import AxisType, LoadArg, Ops
from aster_ml.uop.ranges import size_of
from tests.core.kernel_checks import kernel_of, memory

CPU = Target(
    "CPU",
    "llvm",
    vector_bits=256,
    vector_registers=16,
    threads=2,
    cache_bytes=(32 << 10, 1 << 20, 16 << 20),
)
AVX512 = replace(CPU, vector_bits=512, vector_registers=32, masks=True, broadcasts=True)
GPU = Target(
    "OPENCL",
    "opencl",
    kind="gpu",
    has_local=True,
    has_barrier=True,
    max_group=256,
    local_bytes=32 << 10,
    index_bits=32,
)


def ops_of(t: Tensor, target: Target = CPU) -> list[Ops]:
    return [u.op for u in lower(kernel_of(t), target)[0].uops]


def test_opts_print_and_parse() -> None:
    opts = (
        Opt(OptOps.VECTOR, 1, 8),
        Opt(OptOps.SWAP, "r0", "r2"),
        Opt(OptOps.SPLIT, "r2", 9, "loop"),
    )
    assert parse_opts(" ".join(map(repr, opts))) == opts
    with pytest.raises(ArgumentError, match=r"'VECTOR\(1\)' is no Opt.*VECTOR\(r1,8\)"):
        parse_opts("VECTOR(1)")
    with pytest.raises(ArgumentError, match="a number is wanted in place of r1"):
        parse_opts("VECTOR(r0,r1)")


def test_names_of_axes_stay_while_others_change() -> None:
    ast = kernel_of(memory(12, 32) @ memory(32, 24))
    texts = "UPCAST(r0,12) VECTOR(r1,8) UNROLL(r2,4)", "UPCAST(0,12) VECTOR(0,8) UNROLL(0,4)"
    named, counted = (schedule_kernel(ast, CPU, parse_opts(text)) for text in texts)
    assert named.value == counted.value
    with pytest.raises(KernelOptError, match=r"no axis r0, but r1 of 3, r2 of 8"):
        schedule_kernel(ast, CPU, parse_opts(f"{texts[0]} UPCAST(r0,2)"))


@pytest.mark.parametrize("width", [61, 97, 121, 160])
def test_strided_windows_of_any_width_are_right(width: int) -> None:
    rng = np.random.default_rng(width)
    x = rng.standard_normal((1, 4, 7, width)).astype(np.float32)
    w = rng.standard_normal((4, 1, 3, 3)).astype(np.float32)
    views = np.lib.stride_tricks.sliding_window_view(x, (3, 3), (2, 3))[:, :, ::3, ::3]
    wanted = np.einsum("bchwij,cij->bchw", views, w[:, 0])
    found = Tensor(x).conv2d(Tensor(w), groups=4, stride=3).numpy()
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shape", [(67, 5, 3), (129, 29, 4), (130, 7, 2), (65, 33, 5)])
def test_products_with_rows_that_start_early_are_right(shape: tuple[int, int, int]) -> None:
    m, k, n = shape
    rng = np.random.default_rng(m)
    a, b = (rng.standard_normal(s).astype(np.float32) for s in ((m, k), (n, k)))
    found = (Tensor(a) @ Tensor(b).transpose()).numpy()
    np.testing.assert_allclose(found, a @ b.T, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("count", [2, 3, 5, 12, 13, 25])
def test_a_few_results_of_a_large_matrix_are_right(count: int) -> None:
    rng = np.random.default_rng(count)
    a, b = (rng.standard_normal(s).astype(np.float32) for s in ((count, 2900), (2900, 1555)))
    found = (Tensor(a) @ Tensor(b)).numpy()
    np.testing.assert_allclose(found, a.astype(np.float64) @ b, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("shape", [(23, 60, 71), (7, 129, 40), (1, 300, 33), (50, 64, 3)])
def test_products_with_a_turned_operand_are_transposed_into_panels(
    shape: tuple[int, int, int],
) -> None:
    m, k, n = shape
    rng = np.random.default_rng(m)
    a, b = rng.standard_normal((m, k)), rng.standard_normal((n, k))
    a, b = a.astype(np.float32), b.astype(np.float32)
    np.testing.assert_allclose((Tensor(a) @ Tensor(b).T).numpy(), a @ b.T, rtol=2e-4, atol=2e-4)
    np.testing.assert_allclose((Tensor(b) @ Tensor(a).T).numpy(), b @ a.T, rtol=2e-4, atol=2e-4)


def test_a_far_strided_operand_is_packed_once_a_panel() -> None:
    ops = ops_of(memory(512, 512) @ memory(512, 512))
    assert ops.count(Ops.DEFINE_LOCAL) == 1
    assert Ops.DEFINE_LOCAL not in ops_of(memory(64, 64) @ memory(64, 64))


def test_work_groups_stage_a_product_and_share_a_reduction() -> None:
    product = ops_of(memory(64, 64) @ memory(64, 64), GPU)
    assert product.count(Ops.DEFINE_LOCAL) == 2
    assert product.count(Ops.BARRIER) == 2
    total = ops_of(memory(8, 2048).sum(1), GPU)
    # Parts are added in two rounds.
    assert total.count(Ops.DEFINE_LOCAL) == 2
    assert total.count(Ops.BARRIER) == 2


def test_additions_in_place_run_side_by_side_only_where_places_differ() -> None:
    table = memory(10, 64).requires_grad_()
    index = Tensor([1, 2, 1, 1, 0]).realize()
    schedule, _ = schedule_uops([table[index].sum().gradient(table)[0].contiguous().uop])
    adding = [s.ast for s in schedule.steps if s.ast is not None][1]
    kernel = schedule_kernel(adding, CPU)
    rows = [r for r in kernel.outputs if r.src[0].arg == 5]
    assert len(rows) == 1
    assert not kernel.may_reorder(rows[0])


@pytest.mark.parametrize(
    "shape", [(300, 513, 260), (512, 640, 512), (257, 1024, 96), (67, 129, 61), (409, 31, 23)]
)
def test_packed_products_are_right(shape: tuple[int, int, int]) -> None:
    n, k, m = shape
    a, b = memory(n, k), memory(k, m)
    want = a.numpy().astype(np.float64) @ b.numpy()
    np.testing.assert_allclose((a @ b).numpy(), want, atol=2e-4)
    a, b = memory(k, n), memory(m, k)
    want = a.numpy().T.astype(np.float64) @ b.numpy().T
    np.testing.assert_allclose((a.T @ b.T).numpy(), want, atol=2e-4)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "VECTOR(1,4)",
        "UPCAST(0,2) VECTOR(1,8)",
        "VECTOR(2,16) UPCAST(0,3)",
        "UNROLL(0,4)",
        "UPCAST(2,4) UPCAST(0,6)",
        "THREAD(0,0) VECTOR(1,8)",
        "SPLIT(0,8,mask) UPCAST(0,8) VECTOR(1,8)",
        "SWAP(0,1) VECTOR(0,8)",
        "SPLIT(2,36,mask) VECTOR(2,4)",
        "SPLIT(1,32,mask) VECTOR(1,16) UNROLL(0,8)",
        "KBLOCK(0,8,output)",
        "KBLOCK(0,16,output) VECTOR(2,8) UPCAST(1,4)",
        "VECTOR(1,8) UPCAST(0,3) KBLOCK(0,4,output)",
        "SPLIT(1,32,mask) VECTOR(1,16) KBLOCK(0,8,output) THREAD(1,0)",
        "THREAD(0,2) VECTOR(2,8)",
        "THREAD(0,5) VECTOR(2,8)",
        "UPCAST(1,7,shift) UPCAST(0,5,shift) THREAD(1,3)",
        "THREAD(1,3) KBLOCK(0,2,output)",
        "UPCAST(1,7,shift) UPCAST(0,5,shift) KBLOCK(0,8,output)",
        "KBLOCK(0,8,output) UPCAST(2,7,shift) UPCAST(1,5,shift)",
        "KBLOCK(0,10,output) VECTOR(2,16) UPCAST(1,5,shift)",
        "KBLOCK(0,8,output) SPLIT(1,5,loop) UPCAST(3,7,shift)",
        "VECTOR(1,8) UPCAST(1,2,shift) UPCAST(0,5,shift) KBLOCK(0,9,output) PREFETCH(2,2) "
        "THREAD(2,2)",
        "VECTOR(1,8) UPCAST(0,5,shift) KBLOCK(0,8,output) THREAD(1,2)",
        "UPCAST(0,5,shift) VECTOR(2,8)",
        "SPLIT(0,20,peel) UNROLL(0,4)",
        "SPLIT(0,31,peel) VECTOR(1,8)",
        "UPCAST(1,7,shift) UPCAST(0,5,shift)",
        "UPCAST(1,24,shift) UPCAST(0,11,shift) THREAD(0,0)",
        "VECTOR(1,16) UPCAST(0,5,shift)",
        "VECTOR(0,8) THREAD(1,0)",
        "VECTOR(1,8) KBLOCK(0,8,row)",
        "KBLOCK(0,5,row) VECTOR(1,16) THREAD(1,0)",
        "KBLOCK(0,3,row) UPCAST(1,7,shift) UPCAST(0,5,shift)",
        "KBLOCK(0,32,row) SPLIT(1,5,loop) THREAD(0,2)",
        "KBLOCK(0,5,output) VECTOR(2,5) UPCAST(2,2,shift)",
    ],
)
def test_any_schedule_gives_the_same_product(text: str) -> None:
    a, b = memory(12, 32), memory(32, 24)
    ast = kernel_of(a @ b)
    compiled = compile_kernel(ast, Device["CPU"], parse_opts(text))
    # What lies in the output beforehand is not to be seen.
    out = Tensor.full((12, 24), float("nan")).contiguous().realize()
    tensors: list[Any] = [out, a, b]
    handles = tuple([t.uop.base for t in tensors])
    from_storage = tuple([buffer(u) for u in handles])
    compiled.program(from_storage, (), compiled.launch)
    np.testing.assert_allclose(out.numpy(), a.numpy() @ b.numpy(), atol=1e-5)


def test_lanes_that_are_far_apart_are_gathered_once_into_a_panel() -> None:
    image, weight = memory(4, 8, 21, 21), memory(32, 8, 5, 5)
    assert ops_of(image.conv2d(weight)).count(Ops.DEFINE_LOCAL) == 1


@pytest.mark.parametrize("target", [CPU, AVX512], ids=["avx2", "avx512"])
@pytest.mark.parametrize("depth", [1024, 2048, 2053, 3001, 4096, 6000, 8192, 10007, 2 * 5003])
@pytest.mark.parametrize("rows, columns", [(128, 1024), (74, 101), (300, 300)])
def test_lanes_far_apart_have_a_panel_however_long_the_reduction_is(
    depth: int, rows: int, columns: int, target: Target
) -> None:
    """Without one they are gathered for each tile: 74 x 2059 @ 2059 x 101 had 0.17 of the speed of
    the best peer, since nothing divides 2059 well and strips had to be alike.
    """
    product = Tensor.empty(rows, depth) @ Tensor.empty(columns, depth).T
    # Or they lie along the reduction, where they are neighbours.
    folds = schedule_kernel(kernel_of(product), target).reduces
    along = [r for u in folds for r in u.src[1:] if r.arg.kind is AxisType.VECTOR]
    assert along or Ops.DEFINE_LOCAL in ops_of(product, target)


@pytest.mark.parametrize("device", ["CPU", "PYTHON"])
@pytest.mark.parametrize("length", [16, 17, 64, 100, 112])
@pytest.mark.parametrize("depth", [113, 128, 131])
def test_panels_of_strips_that_do_not_divide_a_reduction(
    device: str, length: int, depth: int
) -> None:
    """The last strip fills less of the panel, in blocks of steps and what is over from these."""
    a, b = memory(19, depth), memory(11, depth)
    opts = parse_opts(
        f"SPLIT(0,24,mask) VECTOR(0,8) UPCAST(0,3) UPCAST(0,4,shift) KBLOCK(0,{length},output) "
        "STAGE(0,1,panel)"
    )
    with Context(DEV=device):
        x, y = Tensor(a.numpy()).realize(), Tensor(b.numpy()).realize()
        ast = kernel_of(x @ y.T)
        assert Ops.DEFINE_LOCAL in [u.op for u in lower(ast, CPU, opts)[0].uops]
        # The interpreter reads memory.
        given = opts if device == "CPU" else opts[:-1]
        compiled = compile_kernel(ast, Device[device], given)
        out = Tensor.full((19, 11), float("nan")).contiguous().realize()
        handles = tuple([buffer(t.uop.base) for t in (out, x, y)])
        compiled.program(handles, (), compiled.launch)
        found = out.numpy()
    np.testing.assert_allclose(found, a.numpy() @ b.numpy().T, atol=1e-4)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    ("image", "weight", "options"),
    [
        ((2, 16, 13, 15), (24, 16, 3, 3), {}),
        ((3, 12, 17, 11), (20, 12, 5, 5), {"stride": 2}),
        ((2, 40, 9, 9), (32, 10, 3, 3), {"groups": 4, "padding": 1}),
        ((2, 8, 21, 18), (16, 8, 4, 4), {"dilation": 2}),
        ((1, 520, 8, 9), (48, 520, 5, 5), {}),
        ((64, 16, 14, 14), (16, 16, 3, 3), {"padding": 1}),
    ],
)
def test_convolutions_of_any_size_are_right(
    image: tuple[int, ...], weight: tuple[int, ...], options: dict[str, int], threads: int
) -> None:
    x, w = memory(*image), memory(*weight)
    bias = memory(weight[0])
    with Context(THREADS=threads):
        got = x.conv2d(w, bias, **options).relu().numpy()
    want = np.maximum(convolve(x.numpy(), w.numpy(), **options) + bias.numpy()[:, None, None], 0)
    # float32 sums of n products of numbers around one: their rounding grows as the root of n.
    np.testing.assert_allclose(got, want, atol=4e-7 * np.prod(weight[1:]) + 1e-5)


def convolve(
    x: Any, w: Any, stride: int = 1, padding: int = 0, dilation: int = 1, groups: int = 1
) -> Any:
    """A convolution in float64, window by window."""
    x = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (padding,) * 2, (padding,) * 2))
    out_channels, per_group, high, wide = w.shape
    spans = [(n - 1) * dilation + 1 for n in (high, wide)]
    view = np.lib.stride_tricks.sliding_window_view(x, spans, axis=(2, 3))
    view = view[:, :, ::stride, ::stride, ::dilation, ::dilation]
    parts = [
        np.einsum("bcyxij,ocij->boyx", view[:, g * per_group : (g + 1) * per_group], part)
        for g, part in enumerate(np.split(w.astype(np.float64), groups))
    ]
    assert sum(p.shape[1] for p in parts) == out_channels
    return np.concatenate(parts, axis=1)


def buffer(u: UOp) -> Any:
    """The device's handle on a BUFFER."""
    return storage.buffer_of(u).ensure_allocated().handle


@pytest.mark.parametrize(
    "text",
    [
        "VECTOR(1,8) UPCAST(0,4) UPCAST(1,3) THREAD(0,0)",
        "UPCAST(0,5,shift) VECTOR(1,16)",
        "SPLIT(0,20,peel)",
    ],
)
def test_a_kernel_knows_the_order_of_its_graph_after_each_opt(text: str) -> None:
    kernel = Kernel(kernel_of(memory(12, 32) @ memory(32, 24)))
    for opt in parse_opts(text):
        apply(kernel, opt)
        before: set[UOp] = set()
        for u in kernel.facts.order:
            assert before.issuperset(u.src)
            before.add(u)
        # Numbers that nothing reads any more do no harm.
        more = before.symmetric_difference(toposort(kernel.sink))
        assert u is kernel.sink
        assert all([x in before and x.op is Ops.CONST for x in more])


def test_an_opt_that_does_not_fit_is_refused() -> None:
    ast = kernel_of(memory(12, 32) @ memory(32, 24))
    with pytest.raises(KernelOptError, match="5 does not divide"):
        schedule_kernel(ast, CPU, parse_opts("UPCAST(0,5)"))
    with pytest.raises(KernelOptError, match="no axis 7, but r0 of 12, r1 of 24, r2 of 32"):
        schedule_kernel(ast, CPU, parse_opts("VECTOR(7,4)"))
    with pytest.raises(KernelOptError, match="no axis 1 of reductions, but r2 of 32"):
        schedule_kernel(ast, CPU, parse_opts("UNROLL(1,4)"))
    with pytest.raises(KernelOptError, match="no TC on this device"):
        schedule_kernel(ast, CPU, parse_opts("TC(0,0)"))
    with pytest.raises(KernelOptError, match="no work-groups"):
        schedule_kernel(ast, CPU, parse_opts("LOCAL(0,4)"))


@pytest.mark.parametrize(
    "text",
    [
        "VECTOR(1,16)",
        "VECTOR(1,8) UPCAST(1,2)",
        "VECTOR(1,8) UPCAST(1,2) UPCAST(1,2)",
        "VECTOR(1,16) UPCAST(1,2) UPCAST(0,7)",
        "VECTOR(1,8) UPCAST(1,4) THREAD(0,0)",
        "VECTOR(1,8) THREAD(1,0)",
        "SWAP(0,1) VECTOR(0,16) UPCAST(1,3,shift)",
        "VECTOR(0,2) UPCAST(0,3) THREAD(1,0)",
        "VECTOR(1,8) UPCAST(1,3,shift)",
    ],
)
def test_simd_lanes_that_do_not_divide_an_axis_start_early(text: str) -> None:
    a, b = memory(7, 37), memory(37)
    compiled = compile_kernel(kernel_of(a * b + a), Device["CPU"], parse_opts(text))
    out = Tensor.full((7, 37), float("nan")).contiguous().realize()
    handles = tuple([buffer(t.uop.base) for t in (out, a, b)])
    compiled.program(handles, (), compiled.launch)
    np.testing.assert_allclose(out.numpy(), a.numpy() * b.numpy() + a.numpy(), rtol=1e-6)


def test_a_step_has_no_more_lanes_than_a_row() -> None:
    with pytest.raises(KernelOptError, match="5 times 8 lanes"):
        schedule_kernel(kernel_of(memory(9, 37) + memory(37)), CPU,
                        parse_opts("VECTOR(1,8) UPCAST(1,5)"))  # fmt: skip


def test_uneven_memory_is_updated_in_place_once() -> None:
    x = memory(1003)
    want = x.numpy() * 2 + 1
    x.assign(x * 2 + 1).realize()
    np.testing.assert_allclose(x.numpy(), want, rtol=1e-6)


def test_axes_merge_where_loaded_values_are_compared() -> None:
    x, y = memory(6, 5, 22, 87), memory(6, 5, 22, 87)
    kernel = schedule_kernel(kernel_of((x < y).where(x, y * 2)), CPU, ())
    assert [r.src[0].arg for r in kernel.outputs] == [6 * 5 * 22 * 87]


def test_what_is_written_in_place_is_not_written_twice() -> None:
    x = memory(67, 64)
    y = memory(67, 64).assign(memory(67, 64) + x @ memory(64, 64))
    want = y.numpy()
    z = memory(67, 64)
    z.assign(z + x @ memory(64, 64))
    np.testing.assert_allclose(z.numpy(), want, rtol=1e-6)
    adding = x @ memory(64, 64) + z
    kernel = schedule_kernel(kernel_of(adding), CPU, parse_opts("KBLOCK(0,8,output)"))
    with pytest.raises(KernelOptError, match="reads no output"):
        apply(kernel, Opt(OptOps.UPCAST, 0, 5, how="shift"))
    # Rows of strips may, for they are stored the first time alone.
    apply(kernel, Opt(OptOps.UPCAST, 1, 5, how="shift"))
    assert kernel.stores[0].src[2:]
    early = schedule_kernel(kernel_of(adding), CPU, parse_opts("SPLIT(0,5,loop)"))
    with pytest.raises(KernelOptError, match="KBLOCK"):
        apply(early, Opt(OptOps.KBLOCK, 0, 8, how="output"))


def test_a_few_rows_read_a_large_matrix_where_it_lies_and_ask_ahead() -> None:
    product = Tensor.empty(50, 4096) @ Tensor.empty(4096, 4096)
    linear = lower(kernel_of(product), AVX512)[0].uops
    assert Ops.DEFINE_LOCAL not in [u.op for u in linear]
    assert [u for u in linear if u.op is Ops.LOAD and u.arg is not None]


def test_a_panel_asks_for_the_rows_that_it_is_filled_with() -> None:
    product = Tensor.empty(2000, 4096) @ Tensor.empty(4096, 4096)
    linear = lower(kernel_of(product), AVX512)[0].uops
    assert Ops.DEFINE_LOCAL in [u.op for u in linear]
    asking = [u for u in linear if u.op is Ops.LOAD and u.arg is not None]
    # The other operand is broadcast.
    asked = [u.arg for u in asking if u.src[0].src[0].arg.slot == 2]
    assert asked == [LoadArg(8 * 4096)]


@pytest.mark.parametrize(("length", "fills"), [(1000, 1), (1024, 1), (1001, 2)])
def test_a_panel_is_transposed_in_blocks_that_leave_little_over(length: int, fills: int) -> None:
    product = memory(40, length) @ memory(96, length).T
    linear = lower(kernel_of(product), AVX512)[0].uops
    stores = [
        u.src[1] for u in linear if u.op is Ops.STORE and u.src[0].src[0].op is Ops.DEFINE_LOCAL
    ]
    assert len(stores) == fills
    lanes = sorted([size_of(r) for r in stores[0].ranges if r.arg.kind.is_lane])
    assert lanes == [4, 16]


def test_a_reduction_runs_outside_of_the_loops_that_it_does_not_depend_on() -> None:
    x = memory(300, 480)
    with Context(THREADS=CPU.threads):
        kernel = schedule_kernel(kernel_of((x - x.max(0)).exp()), CPU)
    column, row = [r for r in kernel.outputs if not r.arg.kind.is_lane]
    assert [column in u.ranges for u in kernel.reduces] == [True]
    assert all(row not in u.ranges for u in kernel.reduces)


@pytest.mark.parametrize("length", [97, 129, 255, 1000, 1063])
def test_reductions_of_any_length_are_right(length: int) -> None:
    x = memory(9, length)
    want = x.numpy().astype(np.float64)
    np.testing.assert_allclose(x.sum(1).numpy(), want.sum(1), atol=1e-4)
    np.testing.assert_array_equal(x.max(1).numpy(), want.max(1).astype(np.float32))
    np.testing.assert_allclose(x.var(1).numpy(), want.var(1, ddof=1), rtol=1e-5)
    powers = np.exp(want - want.max(1, keepdims=True))
    np.testing.assert_allclose(x.softmax(1).numpy(), powers / powers.sum(1, keepdims=True), 1e-5)
    powers = np.exp(want - want.max(0))
    np.testing.assert_allclose(x.softmax(0).numpy(), powers / powers.sum(0), 1e-5)


def test_noopt_leaves_plain_loops() -> None:
    with Context(NOOPT=1):
        assert schedule_kernel(kernel_of(memory(8, 8) + 1), CPU).applied == []


def test_what_is_repeated_is_right() -> None:
    x = memory(16, 32)
    np.testing.assert_array_equal((x.repeat_interleave(2, 1)).numpy(), np.repeat(x.numpy(), 2, 1))


@pytest.mark.parametrize("repeats", [2, 3, 4, 8])
@pytest.mark.parametrize("columns", [5, 16, 40])
def test_interleaved_stores_are_right(columns: int, repeats: int) -> None:
    x, y = memory(7, columns), memory(7, columns, repeats)
    want = np.repeat(x.numpy(), repeats, 1) * y.numpy().reshape(7, -1)
    got = x.repeat_interleave(repeats, 1) * y.reshape(7, columns * repeats)
    np.testing.assert_array_equal(got.numpy(), want)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int8", "int64", "bool"])
@pytest.mark.parametrize("shape", [(64, 48), (33, 64), (16, 24), (100, 36)])
def test_transposed_copies_are_right(shape: tuple[int, int], dtype: str) -> None:
    drawn = np.random.default_rng(0).integers(-100, 100, (3, *shape))
    x = Tensor(drawn.astype(dtype)).realize()
    for order in [(0, 2, 1), (2, 0, 1), (1, 2, 0)]:
        want = drawn.astype(dtype).transpose(order)
        np.testing.assert_array_equal(x.permute(order).contiguous().numpy(), want)


def test_a_transposed_copy_loads_neighbours_side_by_side() -> None:
    source = render(lower(kernel_of(memory(64, 48).permute(1, 0)), CPU)[0], CPU)
    assert "load <4 x float>" in source
    assert "load float" not in source
    # Every shuffle of two values stays inside of blocks of four elements.
    mixed = "<i32 0, i32 8, i32 1, i32 9, i32 4, i32 12, i32 5, i32 13>"
    assert mixed in source


def test_a_tile_that_is_added_to_what_lies_across_is_right() -> None:
    x, w, y = memory(2, 16, 14, 14), memory(64, 16, 3, 3), memory(2, 64, 12, 12)
    want = convolve(x.numpy(), w.numpy()) + y.numpy()
    np.testing.assert_allclose((x.conv2d(w) + y).numpy(), want, atol=1e-4)


@pytest.mark.parametrize("settings", [{"CLANG": 0}, {"CLANG": 1}])
def test_elements_that_alternate_are_loaded_once(settings: dict[str, Any]) -> None:
    a, b = memory(5, 32, 2), memory(5, 1, 2)
    source = render(lower(kernel_of(a * b), CPU)[0], CPU)
    # Two SIMD values a step, for both of the elements that alternate.
    assert source.count("load <8 x float>") == 2
    with Context(**settings):
        np.testing.assert_array_equal((a * b).numpy(), a.numpy() * b.numpy())


def test_steps_that_do_not_divide_are_right() -> None:
    # 1001 SIMD values, four at a time: some of the last are stored twice.
    x = memory(8008)
    np.testing.assert_array_equal((x + x).numpy(), x.numpy() * 2)


def test_rows_that_are_scattered_into_may_be_reordered() -> None:
    x = memory(256, 1000)
    places = (x.abs() * 100).cast("int32").contiguous().realize()

    def adding(axis: int) -> Any:
        steps = schedule_uops([x.scatter_reduce(axis, places, x, "sum").uop])[0].steps
        return [step.ast for step in steps if step.ast is not None][1]

    for axis in (0, 1):
        kernel = Kernel(adding(axis))
        assert [kernel.may_reorder(r) for r in kernel.outputs] == [axis == 1, axis == 0]


def test_one_axis_is_shared_out_over_threads_and_becomes_thread_when_lowered() -> None:
    ast = kernel_of(memory(256, 64) + 1)
    kernel = schedule_kernel(ast, CPU, (Opt(OptOps.THREAD, 0),))
    assert [r.arg.kind for r in kernel.outputs] == [AxisType.LOOP]
    assert kernel.plan_of(Threads, kernel.outputs[0]) is not None
    assert not kernel.axes
    with pytest.raises(KernelOptError, match="shared out"):
        make_thread(kernel, kernel.outputs[0], 0)
    linear, _ = lower(ast, CPU, (Opt(OptOps.THREAD, 0),))
    assert linear.thread is not None
    assert linear.thread.arg.kind is AxisType.THREAD
    assert linear.thread in linear.uops


@pytest.mark.parametrize("size", range(1, SHORT_AXIS + 1))
def test_some_side_of_a_tile_leaves_as_little_over_as_there_can_be(size: int) -> None:
    sides = [n for n in range(1, MAX_TILE_SIDE + 1) if size % n == 0] + uneven_sides(size)
    assert all(2 <= n <= size and size % n for n in uneven_sides(size))
    for tiles in range(-(-size // MAX_TILE_SIDE), size + 1):
        # As many tiles, or fewer, with no more done than the least there is for so many.
        assert any(
            -(-size // n) <= tiles and -(-size // n) * n <= -(-size // tiles) * tiles for n in sides
        )


@pytest.mark.parametrize("width", [17, 19, 23, 29, 37, 41])
def test_tiles_of_widths_that_nothing_divides(width: int) -> None:
    rng = np.random.default_rng(width)
    x = rng.integers(-3, 4, (1, 8, 3, 3 * width)).astype(np.float32)
    w = rng.integers(-3, 4, (70, 8, 3, 3)).astype(np.float32)
    y = Tensor(x).conv2d(Tensor(w), stride=3)
    np.testing.assert_array_equal(
        y.numpy()[0, :, 0], np.einsum("chwk,ochk->ow", x[0].reshape(8, 3, width, 3), w)
    )


def test_lanes_that_are_gathered_under_masks_are_not_taken_where_others_lie_side_by_side() -> None:
    # Rows and columns of results are as many, and only columns are neighbours in memory. Neither
    # is a whole number of SIMD values: each element of a panel would be loaded under a mask.
    convolution = memory(8, 221, 47, 47).conv2d(memory(66, 221, 2, 2))
    kernel = schedule_kernel(kernel_of(convolution), AVX512)
    lanes = next(r for r in kernel.outputs if r.arg.kind is AxisType.VECTOR)
    [image] = [a for a in kernel.facts.accesses if not a.is_store and lanes in a.strides]
    assert image.stride(lanes) == 1


@pytest.mark.parametrize("name", ["product", "turned", "windows", "strided", "depthwise"])
def test_nothing_is_stored_under_masks_without_registers_for_them(name: str) -> None:
    """A masked store takes AVX2 as long as tens of others: these took 1.1 to 3.9 times as long."""
    x = Tensor.empty(1, 16, 68, 68)
    found = {
        "product": lambda: Tensor.empty(636, 5) @ Tensor.empty(5, 94),
        "turned": lambda: Tensor.empty(636, 5) @ Tensor.empty(94, 5).T,
        "windows": lambda: Tensor.empty(2, 16, 35, 35).conv2d(Tensor.empty(100, 16, 3, 3)),
        "strided": lambda: Tensor.empty(1, 1, 82, 82).conv2d(Tensor.empty(118, 1, 2, 2), stride=3),
        "depthwise": lambda: x.conv2d(Tensor.empty(16, 1, 5, 5), groups=16, dilation=2),
    }[name]()
    linear, _ = lower(kernel_of(found), CPU)
    assert not [u for u in linear.uops if u.op is Ops.STORE and len(u.src) > 2]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("KBLOCK(0,8,row) UNROLL(0,4)", "KBLOCK row: a loop over a row"),
        ("SWAP(0,0)", r"SWAP\(0,0\): changes nothing"),
        ("SPLIT(0,12,mask)", r"SPLIT\(0,12,mask\): changes nothing"),
        ("VECTOR(1,8) NONTEMPORAL(0,0) NONTEMPORAL(0,0)", r"NONTEMPORAL\(0,0\): changes nothing"),
        ("NONTEMPORAL(0,0)", "SIMD lanes that are neighbours"),
    ],
)
def test_an_opt_that_would_change_nothing_is_refused(text: str, said: str) -> None:
    ast = kernel_of(memory(12, 32) @ memory(32, 24))
    with pytest.raises(KernelOptError, match=said):
        lower(ast, CPU, parse_opts(text))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("VECTOR(r1,8) STAGE(0,1,panel)", "no load from slot 1 can go through a panel, but from 2"),
        ("STAGE(0,0,panel)", "but from none"),
        ("STAGE(r2,r7,row)", "no axis r7 of outputs, but r0 of 12, r1 of 24"),
        ("STAGE(r2,r1,row)", "a reduction and an axis of outputs, both as long"),
        ("STAGE(0,0,tile)", "STAGE tile: one store of a register tile with SIMD lanes"),
        ("VECTOR(r1,8) UPCAST(r0,4) STAGE(0,8,tile)", "8 of 8 SIMD lanes"),
        ("VECTOR(r1,8) UPCAST(r0,4) STAGE(0,0,results)", "0 of 8 SIMD lanes"),
        ("VECTOR(r1,8) SPLIT(r2,0,last)", "SPLIT last: loops of reductions are wanted"),
    ],
)
def test_staging_that_cannot_be_done_says_what_can(text: str, said: str) -> None:
    ast = kernel_of(memory(12, 32) @ memory(32, 24))
    with pytest.raises(KernelOptError, match=said):
        lower(ast, CPU, parse_opts(text))


def test_lowering_packs_what_opts_name_and_nothing_else() -> None:
    ast = kernel_of(memory(512, 512) @ memory(512, 512))
    scratch = []
    for text in ("VECTOR(r1,8) UPCAST(r0,4)", "VECTOR(r1,8) UPCAST(r0,4) STAGE(0,2,panel)"):
        linear, applied = lower(ast, CPU, parse_opts(text))
        assert applied == parse_opts(text)
        scratch.append(len([u for u in linear.uops if u.op is Ops.DEFINE_LOCAL]))
    assert scratch == [0, 1]
