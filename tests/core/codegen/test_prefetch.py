"""Hints about memory: when they are given, what they look like, and that they change no value."""

from __future__ import annotations

import math
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
from aster_ml.errors import KernelOptError
from aster_ml.target import LINE_NBYTES, Target
from aster_ml.uop.ops import AxisType, LoadArg, Ops, StoreArg
from aster_ml.uop.print.text import linear_from_text, linear_to_text
from aster_ml.uop.ranges import iterations, size_of
from aster_ml.uop.spec.verify import verify
from tests.core.kernel_checks import SMALL_CACHES as CPU
from tests.core.kernel_checks import kernel_of, memory


def asks_of(t: Tensor, target: Target, slot: int = 1) -> list[tuple[int, int]]:
    """For each load of an operand that asks: how many lie side by side, how much further."""
    loads = [u for u in lower(kernel_of(t), target)[0].uops if u.op is Ops.LOAD]
    mine = [
        u for u in loads if u.src[0].src[0].op is Ops.PARAM and u.src[0].src[0].arg.slot == slot
    ]
    lanes = {u: math.prod([size_of(r) for r in u.ranges if r.arg.kind.is_lane]) for u in mine}
    return [(lanes[u], u.arg.ahead) for u in mine if u.arg is not None]


def test_rows_that_are_read_once_are_not_asked_for() -> None:
    with pytest.raises(KernelOptError, match="rows that are read twice"):
        schedule_kernel(kernel_of(memory(64, 512) + 1), CPU, parse_opts("PREFETCH(0,1)"))


@pytest.mark.parametrize("bits", [512, 256, 128])
@pytest.mark.parametrize("rows", [60, 64, 67])
def test_a_tile_of_rows_asks_for_the_next_ones_a_line_at_a_time(rows: int, bits: int) -> None:
    target = replace(CPU, vector_bits=bits, masks=bits == 512)
    product = memory(rows, 512) @ memory(512, 2)
    linear = lower(kernel_of(product), target)[0]
    # One hint of each row at a step, and a line of it at a step.
    tile = render(linear, target).count("call void @llvm.prefetch")
    asked = [u.arg for u in linear.uops if u.op is Ops.LOAD and u.arg is not None]
    assert set(asked) == {LoadArg(tile * 512)}
    kernel = schedule_kernel(kernel_of(product), target)
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
    asks = asks_of(found, CPU, 2 if name == "vector" else 1)
    # What is a whole number of rows further, all by as many.
    [ahead] = {far for _, far in asks}
    assert ahead > 0
    assert ahead % 512 == 0


@pytest.mark.parametrize("registers", [16, 32])
@pytest.mark.parametrize("name", ["product", "odd", "uneven rows", "turned"])
def test_a_product_asks_for_the_next_rows_that_it_broadcasts(name: str, registers: int) -> None:
    target = replace(CPU, vector_registers=registers, broadcasts=registers == 32)
    n, k = {"uneven rows": (251, 300), "odd": (240, 301)}.get(name, (240, 300))
    y = memory(64, k).T if name == "turned" else memory(k, 64)
    product = memory(n, k) @ y
    [(tile, ahead)] = asks_of(product, target)
    assert ahead == tile * k


@pytest.mark.parametrize("registers", [16, 32])
@pytest.mark.parametrize("columns", [600, 776, 777])
def test_a_product_asks_for_the_next_columns_that_it_broadcasts(
    columns: int, registers: int
) -> None:
    """Those after the next: they may begin in one line and end in another."""
    target = replace(CPU, vector_registers=registers, broadcasts=registers == 32)
    product = memory(200, columns).T @ memory(200, 64)
    [(tile, ahead)] = asks_of(product, target)
    assert ahead == 2 * tile


def test_strips_of_a_product_ask_for_theirs() -> None:
    target = replace(CPU, cache_bytes=(32 << 10, 256 << 10, 1 << 20))
    product = memory(96, 1536) @ memory(1536, 256)
    [(tile, ahead)] = asks_of(product, target)
    assert ahead == tile * 1536


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
        (
            "softmax",
            "STAGE(1,1,row) VECTOR(1,16) VECTOR(2,16) VECTOR(3,16) PREFETCH(0,2) NONTEMPORAL(0,0)",
        ),
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
        compiled.program((target, source), (), compiled.launch)
    wanted = made[name].numpy().reshape(-1)
    np.testing.assert_allclose(room[: 80 * 128], wanted, rtol=1e-6, atol=1e-6)
    assert (room[80 * 128 :] == 7).all()
