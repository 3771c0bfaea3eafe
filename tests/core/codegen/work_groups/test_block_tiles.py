"""Block tiles of products: which one is chosen, what fills it, and what the programs give."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from aster_ml import Context, Tensor, dtypes
from aster_ml.codegen.kernel import Kernel
from aster_ml.codegen.passes import lower, schedule_kernel
from aster_ml.codegen.policy.gpu.block_tiles import TILES, price
from aster_ml.engine.realize import schedule_uops
from aster_ml.runtime.interpreter.run import Interpreter
from aster_ml.target import Target
from aster_ml.target.cuda import cuda_target
from aster_ml.target.tensor_cores import ROWS, cuda_tensor_cores
from aster_ml.uop.linear import Linear
from aster_ml.uop.ops import AxisType, Ops
from tests.core.codegen.work_groups.bank_counter import Count, count_turns, turns_of
from tests.core.kernel_checks import kernel_of
from tests.fuzz.random_kernels import GROUPS

CARD = replace(GROUPS, warp=32, units=132, tensor_cores=cuda_tensor_cores(80))


def program(n: int, k: int, m: int, dtype: str = "float32", target: Target = CARD) -> Linear:
    """The default program of a product."""
    a, b = Tensor.empty(n, k, dtype=dtype), Tensor.empty(k, m, dtype=dtype)
    return lower(kernel_of(a.matmul(b, dtype=dtypes.float32)), target)[0]


def cores_of(linear: Linear) -> set[str]:
    """The tensor cores that a program uses."""
    return {u.arg.core for u in linear.uops if u.op is Ops.MMA}


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize(
    ("n", "k", "m"), [(64, 64, 64), (67, 33, 41), (17, 19, 23), (33, 13, 35), (16, 16, 8)]
)
def test_products_give_what_numpy_gives(n: int, k: int, m: int, dtype: str) -> None:
    linear = program(n, k, m, dtype)
    rng = np.random.default_rng(n)
    a, b = ((rng.integers(-8, 9, s) / 4).astype(dtype) for s in ((n, k), (k, m)))
    out = np.full(n * m, np.nan, np.float32)
    Interpreter(linear).run([out, a.reshape(-1), b.reshape(-1)], ())
    wanted = a.astype(np.float64) @ b.astype(np.float64)
    np.testing.assert_array_equal(out.reshape(n, m), wanted.astype(np.float32))
    assert bool(cores_of(linear)) is (dtype == "float16" and k >= 16)


def test_tensor_cores_round_float32_where_that_is_asked_for() -> None:
    assert not cores_of(program(64, 64, 64))
    with Context(ALLOW_TF32=1):
        assert cores_of(program(64, 64, 64)) == {"cuda_m16n8k8_float32"}
    assert cores_of(program(64, 64, 64, "bfloat16")) == {"cuda_m16n8k16_bfloat16"}


def test_a_small_product_has_small_blocks() -> None:
    """Blocks enough for all processors, and of much work the most reuse."""
    few, many = [int(np.prod(program(n, 64, n).global_size)) for n in (256, 4096)]
    assert few >= 132 or few == (256 // 16) ** 2
    assert many == (4096 // 128) ** 2


def test_prices_know_waste_and_idle_processors() -> None:
    small, large = TILES[0], TILES[3]

    def of(tile, n: int, units: int) -> float:  # type: ignore[no-untyped-def]
        return price(tile, (1, 1), (n, n), 4, 1, units)

    assert of(large, 4096, 132) < of(small, 4096, 132)
    assert of(small, 128, 132) < of(large, 128, 132)
    assert of(small, 129, 0) < of(large, 129, 0)


def test_tiles_are_filled_16_bytes_at_a_time_where_they_can_be() -> None:
    def widths(linear: Linear) -> set[int]:
        loads = [u for u in linear.uops if u.op is Ops.LOAD and u.src[0].src[0].op is Ops.PARAM]
        lanes = [[r for r in u.ranges if r.arg.kind is AxisType.VECTOR] for u in loads]
        return {int(rs[0].src[0].arg) if rs else 1 for rs in lanes}

    assert widths(program(512, 512, 512)) == {4}
    assert widths(program(512, 512, 512, "float16")) == {8}
    # Rows of 509 begin anywhere; of the other operand whole rows are masked.
    assert widths(program(511, 509, 512)) == {1, 4}


def test_rows_of_local_memory_are_padded_where_there_are_banks() -> None:
    def room(target: Target) -> int:
        linear = program(512, 512, 512, target=replace(target, units=0))
        return sum(u.arg.size for u in linear.uops if u.op is Ops.DEFINE_LOCAL)

    # Rows of results are read one at a time.
    assert room(CARD) == 128 * (8 + 4) + 8 * 128
    assert room(GROUPS) == 2 * 32 * 8


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_cards_multiply_halves_on_tensor_cores(arch: str) -> None:
    linear = program(128, 64, 96, "float16", cuda_target(arch))
    assert cores_of(linear) == {"cuda_m16n8k16_float16"}


@pytest.mark.parametrize("turned", [(False, False), (False, True), (True, False)])
@pytest.mark.parametrize(("size", "tf32"), [(128, 0), (512, 0), (2048, 0), (2048, 1)])
def test_local_memory_has_no_conflicts(turned: tuple[bool, bool], size: int, tf32: int) -> None:
    """However operands lie: they are turned around by copies of single elements."""
    a, b = (x.T if t else x for t in turned for x in [Tensor.empty(size, size)])
    with Context(ALLOW_TF32=tf32):
        linear, _ = lower(kernel_of(a @ b), cuda_target("sm_80"))
    counts = count_turns(linear)
    assert counts
    assert [c.conflicts for c in counts.values()] == [0] * len(counts)
    if size == 2048 and not tf32:
        # Eight steps of a sum, eight results along both sides, two turns for each 16 bytes.
        loads = {key: c for key, c in counts.items() if key[0] is Ops.LOAD}
        assert loads == {(Ops.LOAD, 16): Count(accesses=32, turns=64)}


def test_turns_at_banks_are_counted() -> None:
    assert turns_of(list(range(0, 128, 4)), 4) == (1, 0)
    assert turns_of([0] * 32, 4) == (1, 0)
    assert turns_of(list(range(0, 256, 8)), 4) == (2, 1)
    assert turns_of(list(range(0, 4096, 128)), 4) == (32, 31)
    assert turns_of(list(range(0, 512, 16)), 16) == (4, 0)
    assert turns_of(list(range(0, 1024, 32)), 16) == (8, 4)
    # Neighbours that read the same are one.
    assert turns_of([i // 2 * 16 for i in range(32)], 16) == (2, 0)


def test_ranks_go_through_all_tiles_and_stages() -> None:
    """Of boxes, of warps with fewer and fewer stages, and of work-items."""
    half = kernel_of(
        Tensor.empty(512, 512, dtype="float16").matmul(
            Tensor.empty(512, 512, dtype="float16"), dtype=dtypes.float32
        )
    )
    card = cuda_target("sm_90a")
    cores = [schedule_kernel(half, card, rank=i).applied[0] for i in range(12)]
    numbers = [opt.arg for opt in cores]
    boxes = [n for n in numbers if ROWS[n].reads_shared]
    assert len(set(boxes)) == 3
    assert not any(ROWS[n].reads_shared for n in numbers[len(boxes) :])
    plain = kernel_of(Tensor.empty(512, 64) @ Tensor.empty(64, 512))
    tiles = {tuple(schedule_kernel(plain, card, rank=i).applied) for i in range(4)}
    assert len(tiles) == len(TILES)


def test_a_window_that_is_a_little_shorter_than_a_strip_has_a_tile() -> None:
    """The first convolution of ResNet-18: without one each result is a work-item's."""
    x, w = Tensor.empty(1, 3, 64, 64), Tensor.empty(64, 3, 7, 7)
    steps = schedule_uops([x.conv2d(w, stride=2, padding=3).uop])[0].steps
    [ast] = [s.ast for s in steps if s.ast is not None and Kernel(s.ast).reduces]
    opts = lower(ast, cuda_target("sm_90a"))[1]
    assert "STAGE local" in [opt.kind for opt in opts]


def test_short_axes_fill_a_warp_together() -> None:
    linear, _ = lower(kernel_of(Tensor.empty(64, 14, 14).permute(1, 0, 2) + 1), CARD)
    assert int(np.prod(linear.local_size)) >= 32
