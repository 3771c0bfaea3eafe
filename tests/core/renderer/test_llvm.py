"""LLVM IR: every hand-built program computes what NumPy computes, and is printed so that code
generation alone makes good machine code of it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from aster_ml import Tensor
from aster_ml.dtype import DType, dtypes
from aster_ml.errors import InternalError
from aster_ml.renderer.llvm.renderer import LLVMRenderer
from aster_ml.runtime.cpu import llvm_jit
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import Ops
from aster_ml.uop.spec.verify import verify
from tests.core.linear_builder import (
    CPU,
    GLOBAL,
    LOOP,
    REDUCE,
    UPCAST,
    VECTOR,
    Builder,
    at,
    run_llvm,
)
from tests.core.linear_programs import CASES, check_outputs, f32, i32

CPU_CASES = [name for name, make in CASES.items() if not make().groups]
# A processor that reaches elements which lie apart with one instruction.
WIDE = replace(
    CPU, arch="x86_64", vector_bits=512, vector_registers=32, masks=True, broadcasts=True
)
GOLDEN = [
    "elementwise",
    "sum_with_accumulators",
    "masked_tail",
    "scalar_gates",
    "gather",
    "nested_reduces",
    "symbolic_size",
    "threads",
]


def render(b: Builder) -> str:
    """The IR of what a builder has collected."""
    return LLVMRenderer(CPU).render(b.build())


def assembly(source: str) -> str:
    """The x86 code of IR; skips on other machines."""
    host = llvm_jit.host()
    if host.machine != "x86_64" or not host.has("avx2") or not host.has("fma"):
        pytest.skip("reads the assembly of an x86 processor with FMA")
    return llvm_jit.assemble(source)


@pytest.mark.parametrize("name", CASES)
def test_programs_keep_the_rules_of_the_stage(name: str) -> None:
    linear = CASES[name]().linear
    verify(linear, "linear")
    assert linear.uops


@pytest.mark.parametrize("name", CPU_CASES)
def test_llvm_computes(name: str) -> None:
    case = CASES[name]()
    buffers = [x.copy() for x in case.buffers]
    for lo, hi in case.parts:
        run_llvm(case.linear, buffers, case.variables, lo, hi)
    check_outputs(buffers, case)


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_ir(name: str, golden: Callable[[str, str], None]) -> None:
    source = LLVMRenderer(CPU).render(CASES[name]().linear)
    golden(f"sources/{name}.ll", source)
    assert source.startswith(f"define void @{name}(ptr %args, i64 %lo, i64 %hi)")


def test_accumulators_are_phis_and_products_are_fused() -> None:
    source = LLVMRenderer(CPU).render(CASES["matmul_tile"]().linear)
    assert "alloca" not in source
    assert len(re.findall(r"= phi <8 x float>", source)) == 12
    assert len(re.findall(r"= call <8 x float> @llvm.fmuladd", source)) == 48
    assert "= fmul" not in source


def test_a_register_tile_stays_in_registers() -> None:
    code = assembly(LLVMRenderer(CPU).render(CASES["matmul_tile"]().linear))
    assert code.count("vfmadd") == 48
    assert "(%rsp)" not in code
    # Each SIMD row of the right operand is loaded once, by itself or inside of an instruction.
    assert len(re.findall(r"vmovups\s+\S*\(\S+\), %ymm", code)) <= 8


def test_elements_are_loaded_just_before_they_are_used() -> None:
    lines = LLVMRenderer(CPU).render(CASES["matmul_tile"]().linear).splitlines()
    first = next(i for i, line in enumerate(lines) if "fmuladd" in line)
    loads = [line for line in lines[:first] if " load float" in line or " load <8" in line]
    assert len(loads) == 2


def test_addresses_are_one_pointer_and_constant_offsets() -> None:
    source = LLVMRenderer(CPU).render(CASES["elementwise"]().linear)
    assert source.count("zext") == 3
    assert source.count("i64 8\n") >= 3


def test_gates_need_no_branch() -> None:
    source = LLVMRenderer(CPU).render(CASES["scalar_gates"]().linear)
    branches = [line for line in source.splitlines() if line.strip().startswith("br ")]
    assert len(branches) == 2
    assert "select i1" in source


def test_gates_that_are_known_leave_nothing_behind() -> None:
    source = LLVMRenderer(CPU).render(CASES["gates_known_for_some_lanes"]().linear)
    # The first of six elements is outside whatever n is; the others depend on n.
    assert source.count(" load float") == 5
    assert source.count("store float 0x0000000000000000") == 1


def test_a_load_behind_a_gate_touches_no_memory() -> None:
    b = Builder("gated")
    out, x = b.param(9), b.param(1)
    never = b.add(b.load(at(x, 0)) < f32(0))
    far = b.load(at(x, b.add(b.load(at(x, 0)).cast(dtypes.int32) + i32(1 << 30))), never)
    v = b.axis(8, VECTOR)
    wide = b.load(at(x, 1 << 30, v), never)
    b.store(at(out, 0), far)
    b.store(at(out, 1, v), wide)
    b.store(at(out, b.add(b.load(at(x, 0)).cast(dtypes.int32) + i32(1 << 30))), f32(3), never)
    found = np.ones(9, np.float32)
    run_llvm(b.build(), [found, np.full(1, 5, np.float32)])
    np.testing.assert_array_equal(found, np.zeros(9))


def test_a_loop_of_one_is_no_loop() -> None:
    b = Builder("once")
    out = b.param(4)
    r = b.axis(1, LOOP)
    b.store(at(out, b.add(r * i32(4) + i32(3))), f32(1))
    b.end(r)
    source = render(b)
    assert "phi" not in source
    found = np.zeros(4, np.float32)
    run_llvm(b.build(), [found])
    np.testing.assert_array_equal(found, [0, 0, 0, 1])


def test_scalars_are_spread_where_they_are_computed() -> None:
    b = Builder("spread")
    out, x = b.param(64), b.param(1)
    scale = b.load(at(x, 0))
    r, v = b.axis(8, LOOP), b.axis(8, VECTOR)
    b.store(at(out, b.add(r * i32(8)), v), b.add(scale * v.cast(dtypes.float32)))
    b.end(r)
    source = render(b)
    assert source.index("shufflevector") < source.index("loop")
    assert source.count("shufflevector") == 1


def two_simd_lanes(b: Builder) -> None:
    """One value that would need two SIMD lanes."""
    x = b.param(16)
    v, w = b.axis(4, VECTOR), b.axis(4, VECTOR)
    b.load(at(x, 0, v * i32(4) + w))


def group_number(b: Builder) -> None:
    """A range of blocks, which a CPU has not."""
    b.axis(4, GLOBAL)


def bfloat16_sum(b: Builder) -> None:
    """Arithmetic of bfloat16 that nobody decomposed."""
    out, x = (b.param(1, dtypes.bfloat16) for _ in range(2))
    b.store(at(out, 0), b.add(b.load(at(x, 0)).cast(dtypes.float32)).cast(dtypes.bfloat16))


def random_bits(b: Builder) -> None:
    """THREEFRY, which every renderer wants decomposed."""
    b.add(UOp.const(dtypes.uint64, 1).alu(Ops.THREEFRY, UOp.const(dtypes.uint64, 2)))
    x = b.load(at(b.param(1, dtypes.uint64), 0))
    b.add(x.alu(Ops.THREEFRY, x))


def lane_in_a_product(b: Builder) -> None:
    """An offset that is no sum of lanes times constants."""
    x, r = b.param(64), b.axis(4, UPCAST)
    b.load(at(x, 0, r * r))


def loops_that_cross(b: Builder) -> None:
    """The outer loop ends first."""
    outer, inner = b.axis(4, LOOP), b.axis(4, LOOP)
    b.end(outer, inner)


def lost_lanes(b: Builder) -> None:
    """A value with lanes is folded into an accumulator without them."""
    x, j = b.param(4), b.axis(4, UPCAST)
    b.accumulate(b.reg(f32(0)), b.load(at(x, 0, j)))


def not_listed(b: Builder) -> None:
    """A value that stands nowhere."""
    x = b.param(4)
    b.uops.append(at(x, 0).store(at(x, 1).load()))


def wrong_place(b: Builder) -> None:
    """A node of another stage."""
    b.uops.append(UOp.param(0, 4, dtypes.float32).alu(Ops.NEG)._rop(Ops.ADD, (0,)))


@pytest.mark.parametrize("broken, message", [
    (two_simd_lanes, "two SIMD lanes"),
    (group_number, "on a target without work-groups"),
    (bfloat16_sum, "the cast of dtypes.bfloat16 to dtypes.float32 is not decomposed"),
    (random_bits, "Ops.THREEFRY is not decomposed"),
    (lane_in_a_product, "a sum of lanes times constants"),
    (loops_that_cross, "not the innermost loop"),
    (lost_lanes, "read without its lanes"),
    (not_listed, "used before it stands in the list"),
    (wrong_place, "before it stands in the list"),
])  # fmt: skip
def test_broken_programs_are_refused(broken: Callable[[Builder], None], message: str) -> None:
    b = Builder("broken")
    broken(b)
    with pytest.raises(InternalError, match=message):
        render(b)


def test_many_instances_cost_few_python_calls() -> None:
    import sys

    linear = CASES["matmul_tile"]().linear
    calls = 0

    def count(frame: object, event: str, arg: object) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(count)
    try:
        LLVMRenderer(CPU).render(linear)
    finally:
        sys.setprofile(None)
    # 48 products, 32 loads, 12 stores: about eight calls for each line that is written.
    assert calls < 3000, calls


def test_loops_carry_only_what_they_change() -> None:
    b = Builder("two_sums")
    out, x = b.param(2), b.param(8)
    one, two = b.reg(f32(0)), b.reg(f32(1))
    r = b.axis(8, REDUCE)
    b.accumulate(one, b.load(at(x, r)))
    b.end(r)
    s = b.axis(4, REDUCE)
    b.accumulate(two, b.load(at(x, s)))
    b.end(s)
    b.store(at(out, 0), one)
    b.store(at(out, 1), two)
    assert len(re.findall(r"phi float", render(b))) == 2
    data = np.arange(8, dtype=np.float32)
    found = np.zeros(2, np.float32)
    run_llvm(b.build(), [found, data])
    np.testing.assert_array_equal(found, [28, 7])


def test_lanes_of_zero_by_zero_that_are_not_wanted() -> None:
    # What is outside of both loads is 0 / 0, and the select has to win over it.
    x = Tensor(np.arange(12, dtype=np.float32).reshape(1, 1, 2, 6))
    y = x.avg_pool2d((2, 3), padding=(0, 1), count_include_pad=False)
    gradient = (y * Tensor(np.ones((1, 1, 1, 2), dtype=np.float32))).sum().gradient(x)[0]
    Tensor.realize(y, gradient)
    row = [0.25, 0.25, 1 / 6, 1 / 6, 1 / 6, 0.0]
    np.testing.assert_allclose(gradient.numpy(), [[[row, row]]], rtol=1e-6)


def test_what_is_left_of_a_run_begins_early() -> None:
    # Six neighbours for each of 8 lanes that lie 6 apart: blocks 0 to 3 and 2 to 5, no lane alone.
    b = Builder("six_neighbours")
    out, x = b.param(48), b.param(48)
    j, i = b.axis(6, UPCAST), b.axis(8, VECTOR)
    b.store(at(out, 0, j * 8 + i), b.load(at(x, 0, i * 6 + j)))
    source = render(b)
    assert source.count("load <4 x float>") == 16
    assert "load float" not in source
    data = np.arange(48, dtype=np.float32)
    found = np.zeros(48, np.float32)
    run_llvm(b.build(), [found, data])
    np.testing.assert_array_equal(found, data.reshape(8, 6).T.reshape(-1))


def lanes_apart(gates: str, dtype: DType, n: int) -> tuple[Builder, int]:
    """Two loops that move `n` lanes which lie 9 apart to where they lie 5 apart; the size."""
    b = Builder(f"apart_{gates}_{dtype.name}")
    size = 2 * 9 * n
    out, x, word = b.param(size, dtype), b.param(size, dtype), b.param(1)
    r = b.axis(2, LOOP)
    v = b.axis(n, VECTOR)
    gate: tuple[UOp, ...] = ()
    if gates == "one":
        gate = (b.add(b.load(at(word, 0)) < f32(1)),)
    elif gates == "each":
        gate = (b.add(v + b.add(r * i32(2)) < i32(n // 2)),)
    base = b.add(r * i32(9 * n))
    b.store(at(out, base, v * 5), b.load(at(x, base, v * 9), *gate), *gate)
    b.end(r)
    return b, size


@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.int64], ids=str)
@pytest.mark.parametrize("gates", ["none", "one", "each"])
def test_lanes_that_lie_apart_move_at_once(gates: str, dtype: DType) -> None:
    n = 64 // dtype.itemsize
    b, size = lanes_apart(gates, dtype, n)
    source = LLVMRenderer(WIDE).render(b.build())
    assert source.count("@llvm.masked.scatter") == 2
    # Single loads are quicker, but for what each gate costs.
    assert source.count("@llvm.masked.gather") == (0 if gates == "none" else 2)
    assert "masked" not in LLVMRenderer(CPU).render(b.build())
    data = np.arange(size).astype(dtype.name)
    for target in (WIDE, CPU):
        for word in (0, 2):
            found = np.full(size, -1, dtype.name)
            run_llvm(b.build(), [found, data, np.full(1, word, np.float32)], target=target)
            wanted = np.full(size, -1, dtype.name)
            for r in range(2):
                for i in range(n):
                    if (gates == "one" and word == 2) or (gates == "each" and i + 2 * r >= n // 2):
                        continue
                    wanted[9 * r * n + 5 * i] = data[9 * r * n + 9 * i]
            np.testing.assert_array_equal(found, wanted)


def test_what_lies_apart_behind_a_gate_is_not_touched() -> None:
    b = Builder("far_apart")
    out, x = b.param(16), b.param(1)
    never = b.add(b.load(at(x, 0)) < f32(0))
    v = b.axis(16, VECTOR)
    b.store(at(out, 0, v), b.load(at(x, 1 << 30, v * 9), never))
    b.store(at(x, 1 << 30, v * 9), b.load(at(out, 0, v)), never)
    found = np.ones(16, np.float32)
    run_llvm(b.build(), [found, np.full(1, 5, np.float32)], target=WIDE)
    np.testing.assert_array_equal(found, np.zeros(16))


@pytest.mark.parametrize(("count", "hidden"), [(2, 0), (3, 1)])
def test_the_sum_of_an_address_with_many_uses_is_hidden(count: int, hidden: int) -> None:
    b = Builder("three_of_four")
    out, x = b.param(8), b.param(32)
    r = b.axis(8, LOOP)
    base = b.add(r * i32(4))
    loads = [b.load(at(x, base, UOp.const(dtypes.int32, i))) for i in range(count)]
    total = loads[0]
    for load in loads[1:]:
        total = b.add(total + load)
    b.store(at(out, r), total)
    b.end(r)
    source = render(b)
    assert source.count("call ptr @llvm.launder") == hidden
    data = np.arange(32, dtype=np.float32)
    found = np.zeros(8, np.float32)
    run_llvm(b.build(), [found, data])
    np.testing.assert_array_equal(found, data.reshape(8, 4)[:, :count].sum(axis=1))


@pytest.mark.parametrize(("inner", "told"), [(15, False), (16, True)])
def test_kernels_with_a_long_sum_say_how_long_loops_are(inner: int, told: bool) -> None:
    b = Builder("long_sum")
    out, x = b.param(8), b.param(8 * 8 * inner)
    r = b.axis(8, LOOP)
    row = b.add(r * i32(8 * inner))
    reg = b.reg(f32(0))
    k = b.axis(8, REDUCE)
    part = b.add(row + k * i32(inner))
    j = b.axis(inner, REDUCE)
    b.accumulate(reg, b.load(at(x, b.add(part + j))))
    b.end(j)
    b.end(k)
    b.store(at(out, r), reg)
    b.end(r)
    source = render(b)
    assert source.count(", !prof !8\n") == (2 if told else 0)
    assert source.count('!8 = !{!"branch_weights", i32 7, i32 1}\n') == told
    data = np.arange(8 * 8 * inner, dtype=np.float32)
    found = np.zeros(8, np.float32)
    run_llvm(b.build(), [found, data])
    np.testing.assert_array_equal(found, data.reshape(8, -1).sum(axis=1))


@pytest.mark.parametrize(
    ("count", "stores"), [(6, 16), (7, 16), (11, 16), (12, 16), (14, 16), (15, 16)]
)
def test_what_is_left_of_stored_neighbours_begins_early(count: int, stores: int) -> None:
    # Two runs for each of 8 lanes, where powers of two side by side would be two or three.
    b = Builder("stored_neighbours")
    out, x = b.param(8 * 16), b.param(8 * count)
    j, i = b.axis(count, UPCAST), b.axis(8, VECTOR)
    b.store(at(out, 0, i * 16 + j), b.load(at(x, 0, j * 8 + i)))
    assert len(re.findall(r"store <\d", render(b))) == stores
    assert "store float" not in render(b)
    data = np.arange(8 * count, dtype=np.float32)
    found = np.full((8, 16), -1, np.float32)
    run_llvm(b.build(), [found, data])
    np.testing.assert_array_equal(found[:, :count], data.reshape(count, 8).T)
    assert (found[:, count:] == -1).all()


@pytest.mark.parametrize(("count", "blocks"), [(3, 0), (4, 1), (9, 3)])
def test_neighbours_of_several_loads_are_loaded_together(count: int, blocks: int) -> None:
    b = Builder("neighbours_of_loads")
    out, x = b.param(16 * 2), b.param(16 * 9 * 2)
    r, i = b.axis(2, LOOP), b.axis(16, VECTOR)
    base = b.add(r * i32(144))
    order = [n * 2 % count if count % 2 else n for n in range(count)]
    loads = [b.load(at(x, base, i * 9 + i32(n))) for n in order]
    total = loads[0]
    for load in loads[1:]:
        total = b.add(total + load)
    b.store(at(out, b.add(r * i32(16)), i), total)
    b.end(r)
    source = render(b)
    # A block of 4 for each of 16 lanes.
    assert len(re.findall(r"load <4 x float>", source)) == 16 * blocks
    assert ("load float" in source) == (not blocks)
    data = np.arange(2 * 16 * 9, dtype=np.float32) ** 2 % 101
    found = np.zeros((2, 16), np.float32)
    run_llvm(b.build(), [found, data])
    np.testing.assert_array_equal(found, data.reshape(2, 16, 9)[..., :count].sum(axis=-1))


def test_neighbours_of_loads_from_what_is_stored_stay_where_they_are() -> None:
    b = Builder("neighbours_of_a_buffer_that_changes")
    x = b.param(16 * 9)
    i = b.axis(16, VECTOR)
    for n in range(4):
        before = b.load(at(x, 0, i * 9 + i32(n)))
        b.store(at(x, 0, i * 9 + i32(n + 1)), b.add(before + f32(1)))
    assert "load <4 x float>" not in render(b)
    found = np.arange(16 * 9, dtype=np.float32)
    wanted = found.reshape(16, 9).copy()
    wanted[:, 1:5] = wanted[:, :1] + np.arange(1, 5)
    run_llvm(b.build(), [found])
    np.testing.assert_array_equal(found.reshape(16, 9), wanted)


@pytest.mark.parametrize("step", [3, 4])
def test_bytes_of_truth_a_few_apart_are_loaded_whole(step: int) -> None:
    b = Builder("truth_apart")
    out, x = b.param(32), b.param(32 * step, dtypes.bool)
    i = b.axis(32, VECTOR)
    truth = b.load(at(x, 0, i * step))
    b.store(at(out, 0, i), b.add(truth.cast(dtypes.float32)))
    source = render(b)
    assert "load i8" not in source
    assert "load <32 x i8>" in source
    data = np.random.default_rng(step).integers(0, 2, 32 * step).astype(bool)
    found = np.full(32, -1, np.float32)
    run_llvm(b.build(), [found, data])
    np.testing.assert_array_equal(found, data[::step].astype(np.float32))
