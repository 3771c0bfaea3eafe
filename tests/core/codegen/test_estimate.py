"""The estimate of a kernel's cycles: what each resource is busy with, and who is told of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from aster_ml import Tensor, dtypes
from aster_ml.codegen.decompose.slots import LONG, counted, slots_of, takes_long
from aster_ml.codegen.estimate import Estimate, estimate, of_work
from aster_ml.codegen.opts import Opt, OptOps
from aster_ml.codegen.passes import lower, schedule_kernel
from aster_ml.target import PLAIN_OPS, Target
from aster_ml.target.costs import ZEN4
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import ELEMENTWISE, Ops
from tests.core.golden.kernels import TARGETS
from tests.core.kernel_checks import kernel_of

TARGET = Target("CPU", "llvm", arch="example", vector_bits=256, vector_registers=16, threads=2)
LANES = Opt(OptOps.VECTOR, 1, 8)


def empty(*shape: int) -> Tensor:
    return Tensor.empty(*shape, device="CPU")


def test_a_product_takes_one_instruction_a_step_of_each_result() -> None:
    kernel = schedule_kernel(kernel_of(empty(48, 40) @ empty(40, 64)), TARGET, (LANES,))
    e = estimate(kernel, TARGET)
    steps = 48 * 40 * 64 // 8
    # Two begin in a cycle; each step loads a value of a row and eight of a column.
    assert e.arithmetic == steps / 2
    assert e.loads == 2 * steps / ZEN4.loads
    assert e.stores == 48 * 64 / 8 / ZEN4.stores
    assert e.busy == e.loads
    assert e.bound == "loads"
    assert e.cycles == e.busy + ZEN4.launch


def test_a_register_tile_loads_less() -> None:
    ast = kernel_of(empty(48, 40) @ empty(40, 64))
    plain = estimate(schedule_kernel(ast, TARGET, (LANES,)), TARGET)
    tiled = estimate(schedule_kernel(ast, TARGET, (LANES, Opt(OptOps.UPCAST, 0, 4))), TARGET)
    assert tiled.arithmetic == plain.arithmetic
    # What a column has serves four rows.
    assert tiled.loads == plain.loads * 5 / 8
    assert tiled.bound == "loads"


@pytest.mark.parametrize("n, level", [(1 << 10, None), (1 << 16, 0), (1 << 19, 1), (1 << 22, 2)])
def test_each_level_of_memory_hands_over_what_the_one_before_does_not_hold(
    n: int, level: int | None
) -> None:
    e = estimate(schedule_kernel(kernel_of(empty(n) + 1), TARGET), TARGET)
    rates = (*ZEN4.cache_bytes[1:], ZEN4.memory_bytes)
    wanted = [
        8 * n / rate if level is not None and i <= level else 0.0 for i, rate in enumerate(rates)
    ]
    assert list(e.moved) == wanted


def test_threads_share_all_but_memory() -> None:
    e = Estimate(8.0, 4.0, 2.0, 6.0, (16.0, 20.0, 30.0), 5.0)
    assert e.shared(1) == e
    assert e.shared(2) == Estimate(4.0, 2.0, 1.0, 3.0, (8.0, 10.0, 30.0), 5.0)
    assert (e.busy, e.bound, e.cycles) == (30.0, "memory", 35.0)
    assert str(e).endswith("bound by memory")
    assert Estimate().cycles == 0


def test_work_at_best_is_bound_by_arithmetic_or_by_memory() -> None:
    # Eight lanes, two instructions a cycle, each a multiplication and an addition.
    assert of_work(32_000, 1000, TARGET).arithmetic == 1000
    assert of_work(32_000, 1000, TARGET).bound == "arithmetic"
    far = of_work(32, 80_000_000, TARGET)
    assert (far.busy, far.bound) == (10_000_000, "memory")


@pytest.mark.parametrize("name", ["avx2", "avx512", "neon"])
@pytest.mark.parametrize("op", sorted(LONG - {Ops.THREEFRY, Ops.POW}, key=lambda op: op.name))
def test_ops_take_what_they_become(name: str, op: Ops) -> None:
    target = TARGETS[name]
    x = Tensor.empty(16, device="CPU")
    value = {Ops.EXP2: x.exp2, Ops.LOG2: x.log2, Ops.SIN: x.sin, Ops.TANH: x.tanh}[op]()
    ast = kernel_of(value)
    nodes = [u for u in lower(ast, target)[0].uops if u.op in ELEMENTWISE]
    [node] = [u for u in ast.toposort() if u.op is op]
    float_nodes = [u for u in nodes if u.dtype not in (dtypes.int64, dtypes.index)]
    # Addresses are int64; all else is what the op has become.
    assert slots_of(node, target) == len(float_nodes)
    assert slots_of(node, target) > 10
    assert slots_of(node, replace(target, native_ops=PLAIN_OPS | {op.name})) == 1


def test_powers_by_small_numbers_are_products() -> None:
    target, f = TARGETS["avx2"], dtypes.float32
    assert counted(Ops.POW, f, None, (f, UOp.const(f, 3.0)), target) == 2
    assert counted(Ops.POW, f, None, (f, f), target) > 100
    x = UOp.const(f, 2.0)
    assert not takes_long(x, target)
    assert slots_of(x, target) == 1
