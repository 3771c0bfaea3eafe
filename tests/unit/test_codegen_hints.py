"""Hints about memory: when they are given, what they look like, and that they change no value."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from aster_ml import Context, Tensor
from aster_ml.codegen.opts import parse_opts
from aster_ml.codegen.passes import lower, schedule_kernel
from aster_ml.device import Device
from aster_ml.engine import storage
from aster_ml.engine.compile import compile_kernel, render
from aster_ml.engine.realize import schedule_uops
from aster_ml.errors import KernelOptError
from aster_ml.target import LINE_NBYTES, Target
from aster_ml.uop.ops import AxisType, LoadArg, Ops, StoreArg
from aster_ml.uop.print.text import linear_from_text, linear_to_text
from aster_ml.uop.ranges import iterations
from aster_ml.uop.spec.verify import verify
from tests.unit.kernel_checks import SMALL_CACHES as CPU
from tests.unit.kernel_checks import kernel_of, memory, opts_of


def test_large_results_go_past_the_caches_and_small_ones_do_not() -> None:
    assert "NONTEMPORAL" in opts_of(memory(128, 128) + 1)
    assert "NONTEMPORAL" not in opts_of(memory(64, 64) + 1)
    # They would fit, but not with what is read for them; and small ones are read again soon.
    assert "NONTEMPORAL" in opts_of(memory(64, 64) + memory(64, 64))
    assert "NONTEMPORAL" not in opts_of(memory(128, 16, 64).sum(1))
    assert "NONTEMPORAL" not in opts_of(memory(128, 128) + 1, replace(CPU, cache_bytes=(0, 0, 0)))


def test_what_is_read_and_written_in_place_stays_in_the_caches() -> None:
    x = memory(128, 128)
    schedule, _ = schedule_uops([x.assign(x + 1).uop])
    (ast,) = [s.ast for s in schedule.steps if s.ast is not None]
    assert "NONTEMPORAL" not in [o.kind for o in schedule_kernel(ast, CPU).applied]


def test_rows_that_are_no_whole_lines_stay_in_the_caches() -> None:
    assert "NONTEMPORAL" in opts_of(memory(128, 160).T)
    assert "NONTEMPORAL" not in opts_of(memory(129, 160).T)


def test_a_product_stores_as_ever() -> None:
    assert "NONTEMPORAL" not in opts_of(memory(128, 128) @ memory(128, 128))


def test_a_transpose_past_the_caches_reads_longer_runs() -> None:
    found = opts_of(memory(128, 256).T)
    assert "SPLIT loop" in found
    assert "SWAP" in found


@pytest.mark.parametrize("name", ["softmax", "layernorm"])
def test_rows_that_are_read_again_are_asked_for(name: str) -> None:
    found = getattr(memory(64, 512), name)()
    assert "PREFETCH" in opts_of(found)
    # Short rows follow one another soon enough, and few of them are in the cache.
    assert "PREFETCH" not in opts_of(getattr(memory(512, 64), name)())
    assert "PREFETCH" not in opts_of(found, replace(CPU, cache_bytes=(1 << 10, 64 << 10, 1 << 20)))


def test_a_sum_of_rows_asks_for_nothing() -> None:
    assert "PREFETCH" not in opts_of(memory(64, 512).sum(1))
    with pytest.raises(KernelOptError, match="rows that are read twice"):
        schedule_kernel(kernel_of(memory(64, 512) + 1), CPU, parse_opts("PREFETCH(0,1)"))


@pytest.mark.parametrize("bits", [512, 256, 128])
@pytest.mark.parametrize("rows", [60, 64, 67])
def test_a_tile_of_rows_asks_for_the_next_ones_a_line_at_a_time(rows: int, bits: int) -> None:
    target = replace(CPU, vector_bits=bits, masks=bits == 512)
    product = memory(rows, 512) @ memory(512, 2)
    kernel = schedule_kernel(kernel_of(product), target)
    tile = next(
        o.arg for o in kernel.applied if o.kind in ("UPCAST", "UPCAST shift") and o.axis == 0
    )
    assert "PREFETCH" in [o.kind for o in kernel.applied]
    linear = lower(kernel_of(product), target)[0]
    asked = [u.arg for u in linear.uops if u.op is Ops.LOAD and u.arg is not None]
    assert set(asked) == {LoadArg(tile * 512)}
    # One hint of each row at a step, and a line of it at a step.
    assert render(linear, target).count("call void @llvm.prefetch") == tile
    loops = [r for r in kernel.axes if r.arg.kind is AxisType.REDUCE]
    assert iterations(loops) == 512 * 4 // LINE_NBYTES


@pytest.mark.parametrize("name", ["sum", "max", "vector"])
def test_a_reduction_over_rows_asks_for_the_next_ones(name: str) -> None:
    x = memory(64, 512)
    found = {
        "sum": lambda: x.sum(0),
        "max": lambda: x.max(0),
        "vector": lambda: memory(64) @ x,
    }[name]()
    kernel = schedule_kernel(kernel_of(found), CPU)
    rows = next(o.arg for o in kernel.applied if o.kind == "KBLOCK row")
    asked = [u.arg for u in lower(kernel_of(found), CPU)[0].uops if u.op is Ops.LOAD and u.arg]
    assert set(asked) == {LoadArg(rows * 512)}
    cached = replace(CPU, cache_bytes=(1 << 10, 64 << 10, 1 << 20))
    assert "PREFETCH" not in opts_of(memory(64, 512).sum(0), cached)


def test_a_tile_of_rows_asks_only_where_it_waits_for_memory() -> None:
    product = memory(64, 512) @ memory(512)
    assert "PREFETCH" in opts_of(product)
    cached = replace(CPU, cache_bytes=(1 << 10, 64 << 10, 1 << 20))
    assert "PREFETCH" not in opts_of(product, cached)
    # The next rows would throw out these.
    assert "PREFETCH" not in opts_of(memory(64, 4096) @ memory(4096))
    # What follows in a row comes by itself.
    assert "PREFETCH" not in opts_of((memory(64, 512) * memory(64, 512)).sum(1))


def asked_of(t: Tensor, target: Target, slot: int = 1) -> set[int]:
    """How much further the loads of an operand ask."""
    loads = [u for u in lower(kernel_of(t), target)[0].uops if u.op is Ops.LOAD]
    mine = [
        u for u in loads if u.src[0].src[0].op is Ops.PARAM and u.src[0].src[0].arg.slot == slot
    ]
    return {u.arg.ahead for u in mine if u.arg is not None}


def tile_of(t: Tensor, target: Target) -> int:
    """Rows of the register tile of a product."""
    applied = schedule_kernel(kernel_of(t), target).applied
    return next(o.arg for o in applied if o.kind in ("UPCAST", "UPCAST shift") and o.axis == 0)


@pytest.mark.parametrize("registers", [16, 32])
@pytest.mark.parametrize("name", ["product", "odd", "uneven rows", "turned"])
def test_a_product_asks_for_the_next_rows_that_it_broadcasts(name: str, registers: int) -> None:
    target = replace(CPU, vector_registers=registers, broadcasts=registers == 32)
    n, k = {"uneven rows": (251, 300), "odd": (240, 301)}.get(name, (240, 300))
    y = memory(64, k).T if name == "turned" else memory(k, 64)
    product = memory(n, k) @ y
    assert asked_of(product, target) == {tile_of(product, target) * k}


@pytest.mark.parametrize("registers", [16, 32])
@pytest.mark.parametrize("columns", [600, 776, 777])
def test_a_product_asks_for_the_next_columns_that_it_broadcasts(
    columns: int, registers: int
) -> None:
    """Those after the next: they may begin in one line and end in another."""
    target = replace(CPU, vector_registers=registers, broadcasts=registers == 32)
    product = memory(200, columns).T @ memory(200, 64)
    assert asked_of(product, target) == {2 * tile_of(product, target)}


def test_strips_of_a_product_ask_for_theirs() -> None:
    target = replace(CPU, cache_bytes=(32 << 10, 256 << 10, 1 << 20))
    product = memory(96, 1536) @ memory(1536, 256)
    assert "KBLOCK output" in opts_of(product, target)
    assert asked_of(product, target) == {tile_of(product, target) * 1536}


def test_a_product_does_not_ask_for_what_is_near() -> None:
    x, w = memory(240, 300), memory(300, 64)
    assert "PREFETCH" in opts_of(x @ w)
    near = replace(CPU, cache_bytes=(1 << 10, 512 << 10, 1 << 20))
    assert "PREFETCH" not in opts_of(x @ w, near)
    # Where each broadcast is a load of its own, also not what the last cache is sure to hold.
    last = replace(CPU, cache_bytes=(1 << 10, 64 << 10, 2 << 20))
    assert "PREFETCH" in opts_of(x @ w, last)
    assert "PREFETCH" not in opts_of(x @ w, replace(last, vector_registers=16, broadcasts=False))
    # Rows that would not fit, short ones, and neighbours of an image, which are no rows.
    assert "PREFETCH" not in opts_of(memory(30, 4000) @ memory(4000, 64))
    assert "PREFETCH" not in opts_of(memory(2400, 60) @ memory(60, 64))
    image = memory(1, 64, 40, 40).conv2d(memory(16, 64, 5, 5))
    assert "PREFETCH" not in opts_of(image)


def test_a_tile_without_room_for_more_loads_does_not_ask() -> None:
    """Twelve rows by one SIMD value: 25 loads for 12 results took 1.6 times as long as 13."""
    avx2 = replace(CPU, vector_bits=256, vector_registers=16, masks=False, broadcasts=False)
    product = memory(240, 300) @ memory(300, 8)
    assert tile_of(product, avx2) >= 8
    assert "PREFETCH" not in opts_of(product, avx2)
    assert "PREFETCH" in opts_of(memory(240, 300) @ memory(300, 64), avx2)


def test_columns_that_throw_one_another_out_of_a_cache_come_in_strips() -> None:
    """1536 x 768 turned by 1536 x 768 took 1.3 times as long without AVX-512."""
    avx2 = Target(
        "CPU", "llvm", arch="x86_64-any", vector_bits=256, vector_registers=16,
        cache_bytes=(32 << 10, 1 << 20, 32 << 20),
    )  # fmt: skip

    def strips(n: int, k: int, target: Target) -> bool:
        product = Tensor.empty(k, n).T @ Tensor.empty(k, 768)
        return "KBLOCK output" in opts_of(product, target)

    assert strips(768, 1536, avx2)
    assert strips(1024, 1024, avx2)
    # These have all places; so few fit; these fit as a whole.
    assert not strips(780, 1536, avx2)
    assert not strips(768, 384, avx2)
    assert not strips(256, 1000, avx2)
    assert not strips(
        768, 1536, replace(avx2, vector_bits=512, vector_registers=32, masks=True, broadcasts=True)
    )


def test_the_pass_that_computes_most_asks() -> None:
    linear, _ = lower(kernel_of(memory(64, 512).softmax()), CPU)
    asking = [u for u in linear.uops if u.op is Ops.LOAD and u.arg is not None]
    # Rows of 2 KB: four of them are the 8 KB that memory has time for, and 2 KB beyond.
    assert asking
    assert {u.arg for u in asking} == {LoadArg(4 * 512 + 512)}
    first = next(u for u in linear.uops if u.op is Ops.LOAD)
    assert first.arg is None


def test_hints_print_parse_and_keep_the_rules() -> None:
    linear, _ = lower(kernel_of(memory(64, 512).softmax()), CPU)
    verify(linear, "linear")
    text = linear_to_text(linear)
    assert "ahead=2560" in text
    assert "streams=True" in text
    assert linear_from_text(text) == linear
    assert any(u.arg == StoreArg(True) for u in linear.uops if u.op is Ops.STORE)


def test_llvm_writes_both_and_closes_with_a_fence() -> None:
    source = render(lower(kernel_of(memory(64, 512).softmax()), CPU)[0], CPU)
    # Into the second cache: the first one holds little beside the row that is worked on.
    hints = set(re.findall(r"@llvm\.prefetch\.p0\(ptr %\w+, (.*)\)", source))
    assert hints == {"i32 0, i32 2, i32 1"}
    assert re.search(r"store <16 x float> %\w+, ptr %\w+, align 64, !nontemporal !0", source)
    assert source.index("call void @llvm.x86.sse.sfence()") > source.rindex("store <16")
    # Other processors have the hint, and no such fence.
    arm = replace(CPU, arch="aarch64-any", vector_bits=128, masks=False)
    other = render(lower(kernel_of(memory(128, 128) + 1), arm)[0], arm)
    assert "!nontemporal" in other
    assert "sfence" not in other


def test_c_writes_both() -> None:
    target = replace(CPU, language="c")
    source = render(lower(kernel_of(memory(64, 512).softmax()), target)[0], target)
    assert set(re.findall(r"__builtin_prefetch\(.*, (\d, \d)\);", source)) == {"0, 2"}
    assert "__builtin_nontemporal_store(" in source
    assert "__builtin_ia32_sfence();" in source


def test_rows_in_scratch_begin_in_the_middle_of_a_page() -> None:
    # Loads that agree in the last 12 bits with a store before them wait for it.
    rows = kernel_of(memory(64, 512).softmax())
    source = render(lower(rows, CPU)[0], CPU)
    assert re.search(r"%local0\.pages = alloca \[\d+ x float\], align 4096", source)
    assert "%local0 = getelementptr float, ptr %local0.pages, i64 512" in source
    target = replace(CPU, language="c")
    source = render(lower(rows, target)[0], target)
    assert re.search(r"float local0_pages\[\d+\] __attribute__\(\(aligned\(4096\)\)\)", source)
    assert "*local0 = local0_pages + 512;" in source


def test_little_scratch_lies_anywhere() -> None:
    short = lower(kernel_of(memory(512, 64).softmax()), CPU)[0]
    assert "%local0 = alloca [64 x float], align 64" in render(short, CPU)
    target = replace(CPU, language="c")
    assert "float local0[64] __attribute__((aligned(64)));" in render(short, target)


HALVES = replace(CPU, move_bits=256)


def lanes_of(t: Tensor, target: Target) -> int:
    """The SIMD lanes of the kernel of `t`."""
    return next(o.arg for o in schedule_kernel(kernel_of(t), target).applied if o.kind == "VECTOR")


@pytest.mark.parametrize("name", ["add", "relu", "sum", "max", "row sums", "dot", "long"])
def test_what_waits_for_memory_has_the_lanes_that_one_load_moves(name: str) -> None:
    x, y = memory(64, 512), memory(64, 512)
    found = {
        "add": lambda: x + y,
        "relu": lambda: x.relu(),
        "sum": lambda: x.sum(),
        "max": lambda: x.max(),
        "row sums": lambda: x.sum(1),
        "dot": lambda: (x * y).sum(),
        "long": lambda: memory(64, 4096) @ memory(4096),
    }[name]()
    assert lanes_of(found, HALVES) == 8
    assert lanes_of(found, CPU) == 16


@pytest.mark.parametrize(
    "name", ["small", "exp", "columns", "product", "softmax", "transpose", "rows asked for"]
)
def test_what_computes_more_has_whole_registers(name: str) -> None:
    x = memory(64, 512)
    found = {
        "small": lambda: memory(16, 64) + 1,
        "exp": lambda: x.exp(),
        "columns": lambda: x.sum(0),
        "product": lambda: x @ memory(64, 512).T,
        "softmax": lambda: x.softmax(),
        "transpose": lambda: x.T,
        "rows asked for": lambda: x @ memory(512),
    }[name]()
    assert lanes_of(found, HALVES) == 16


@pytest.mark.parametrize("settings", [{"CLANG": 0}, {"CLANG": 1}])
@pytest.mark.parametrize("offset", [0, 1, 4, 16])
@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("add", "VECTOR(0,16) UPCAST(0,4) NONTEMPORAL(0,0)"),
        ("transpose", "VECTOR(1,16) UPCAST(0,16) SPLIT(0,2,loop) SWAP(1,2) NONTEMPORAL(0,0)"),
        ("transpose", "VECTOR(1,16) UPCAST(0,8) SPLIT(0,3,loop) SWAP(1,2) NONTEMPORAL(0,0)"),
        (
            "transpose",
            "VECTOR(1,16) UPCAST(0,4) SPLIT(1,2,loop) SPLIT(0,24,loop) SWAP(0,2) SWAP(1,2) "
            "PREFETCH(1,1) NONTEMPORAL(0,0)",
        ),
        ("softmax", "VECTOR(1,16) VECTOR(2,16) VECTOR(3,16) PREFETCH(0,2) NONTEMPORAL(0,0)"),
        ("standard", "VECTOR(1,16) VECTOR(2,16) VECTOR(3,16) PREFETCH(0,1) NONTEMPORAL(0,0)"),
    ],
)
def test_memory_may_begin_anywhere(
    name: str, text: str, offset: int, settings: dict[str, Any]
) -> None:
    """Only whole aligned values go past the caches; what begins elsewhere is stored as ever."""
    x = memory(80, 128)
    made = {"add": x + 1, "transpose": x.T, "softmax": x.softmax(), "standard": x.layernorm()}
    ast = kernel_of(made[name])
    room = np.full(80 * 128 + 64, 7, np.float32)
    base = -(room.ctypes.data // 4) % 16 + offset
    room = room[base:]
    with Context(**settings):
        device = Device["CPU"]
        compiled = compile_kernel(ast, device, parse_opts(text))
        target = device.allocator.wrap(room[: 80 * 128], 80 * 128 * 4)
        source = storage.buffer_of(x.uop.base).ensure_allocated().handle
        assert isinstance(compiled.n, int)
        compiled.program((target, source), (), (compiled.n,), (compiled.parts,))
    wanted = made[name].numpy().reshape(-1)
    np.testing.assert_allclose(room[: 80 * 128], wanted, rtol=1e-6, atol=1e-6)
    assert (room[80 * 128 :] == 7).all()
