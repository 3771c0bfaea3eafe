"""The interpreter on boxes, stages and products from local memory: what is right, and what a wait
that is missing does to numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from aster_ml import Tensor, dtypes
from aster_ml.codegen.opts import parse_opts
from aster_ml.codegen.passes import lower
from aster_ml.config import Context
from aster_ml.dtype import to_numpy_dtype
from aster_ml.errors import InternalError
from aster_ml.runtime.interpreter.run import Interpreter
from aster_ml.target.cuda import cuda_target
from aster_ml.target.tensor_cores import ROWS
from aster_ml.uop.linear import Linear
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import Ops
from tests.core.kernel_checks import kernel_of

CARD = cuda_target("sm_90a")
NUMBERS = {row.name.removeprefix("cuda_wgmma_"): i for i, row in enumerate(ROWS)}


def opts_of(name: str, stages: int = 2, way: str = "copies") -> str:
    """The Opts of two groups of 64 rows each."""
    number = NUMBERS[name]
    return f"TC(r2,{number}) LOCAL(r0,2) STAGE(r2,4,local) PIPELINE(r2,{stages},{way})"


def numbers(seed: int, shape: tuple[int, ...], dtype: Any) -> np.ndarray[Any, Any]:
    """Small integers, of which products and sums are exact."""
    rng = np.random.default_rng(seed)
    return rng.integers(-4, 5, shape).astype(np.float32).astype(to_numpy_dtype(dtype))


def product(
    opts: str,
    dtype: Any = dtypes.float16,
    turned: str = "",
    sizes: tuple[int, ...] = (128, 256, 64),
) -> tuple[Linear, list[Any], Any]:
    """A program for Hopper, its arguments, and what the first one has to be."""
    n, k, m = sizes
    shapes = ((k, n) if "a" in turned else (n, k)), ((m, k) if "b" in turned else (k, m))
    arrays = [numbers(i, shape, dtype) for i, shape in enumerate(shapes)]
    x, y = (Tensor.empty(*shape, dtype=dtype) for shape in shapes)
    x, y = x.T if "a" in turned else x, y.T if "b" in turned else y
    with Context(ALLOW_TF32=1):
        ast = kernel_of(x.matmul(y, dtype=dtypes.float32))
        linear, _ = lower(ast, CARD, parse_opts(opts))
    assert any(u.op is Ops.TMA_LOAD for u in linear.uops)
    a, b = (v.astype(np.float32) for v in arrays)
    wanted = (a.T if "a" in turned else a) @ (b.T if "b" in turned else b)
    out = np.full(n * m, np.nan, np.float32)
    return linear, [out, *[v.reshape(-1) for v in arrays]], wanted


def is_right(linear: Linear, arrays: list[Any], wanted: Any) -> bool:
    """Whether the program gives what NumPy gives."""
    Interpreter(linear).run(arrays)
    return np.array_equal(arrays[0].reshape(wanted.shape), wanted)


@pytest.mark.parametrize("turned", ["", "a", "b", "ab"])
def test_operands_lie_either_way(turned: str) -> None:
    assert is_right(*product(opts_of("m64n64k16_float16"), turned=turned))


@pytest.mark.parametrize(
    ("stages", "way"), [(3, "copies"), (4, "copies"), (2, "producer"), (3, "producer")]
)
def test_stages_are_filled_in_turn(stages: int, way: str) -> None:
    linear, arrays, wanted = product(opts_of("m64n64k16_bfloat16", stages, way), dtypes.bfloat16)
    assert any(u.op is Ops.WARP_ROLE for u in linear.uops) is (way == "producer")
    assert is_right(linear, arrays, wanted)


def test_numbers_of_32_bits() -> None:
    assert is_right(*product(opts_of("m64n64k8_float32"), dtypes.float32, "b", (128, 64, 64)))


CLUSTER = "TC(r2,{}) STAGE(r2,4,local) PIPELINE(r2,2,producer) BLOCKS({},2,cluster)"


@pytest.mark.parametrize("rows", [128, pytest.param(192, marks=pytest.mark.slow)])
def test_blocks_of_a_cluster_copy_for_one_another(rows: int) -> None:
    """Also where the last cluster has one tile."""
    opts = CLUSTER.format(NUMBERS["m64n64k16_float16"], "r0")
    linear, arrays, wanted = product(opts, sizes=(rows, 192, 64))
    assert linear.global_size == (2, (rows + 127) // 128)
    assert {u.arg.blocks for u in linear.uops if u.op is Ops.TMA_LOAD} == {1, 2}
    assert is_right(linear, arrays, wanted)


@pytest.mark.parametrize(
    ("op", "said"), [(Ops.ACQUIRE, "filled again"), (Ops.RELEASE, "wait forever")]
)
def test_a_cluster_that_does_not_wait_is_an_error(op: Ops, said: str) -> None:
    opts = CLUSTER.format(NUMBERS["m64n64k16_float16"], "r0")
    linear, arrays, wanted = product(opts, sizes=(128, 256, 64))
    with pytest.raises(InternalError, match=said):
        is_right(without(linear, lambda u: u.op is op), arrays, wanted)


@pytest.mark.slow
def test_a_part_that_nobody_copies_shows() -> None:
    """A box that is told to come to its own block alone."""
    opts = CLUSTER.format(NUMBERS["m64n64k16_float16"], "r0")
    linear, arrays, wanted = product(opts, sizes=(128, 128, 64))
    left = next(u for u in linear.uops if u.op is Ops.TMA_LOAD and u.arg.blocks == 1)
    shared = next(u for u in linear.uops if u.op is Ops.TMA_LOAD and u.arg.blocks == 2)
    alone = UOp(shared.op, shared.dtype, shared.src, shared.arg._replace(blocks=1))
    both = UOp(left.op, left.dtype, left.src, left.arg._replace(blocks=2))
    for old, new in ((shared, alone), (left, both)):
        uops = tuple([new if u is old else u for u in linear.uops])
        assert not is_right(replace(linear, uops=uops), arrays, wanted)


def test_what_is_outside_of_a_tensor_is_zero() -> None:
    n, k, m = 200, 136, 72
    a, b = numbers(0, (n, k), dtypes.float16), numbers(1, (k, m), dtypes.float16)
    left, right = Tensor.empty(n, k, dtype="half"), Tensor.empty(k, m, dtype="half")
    linear, _ = lower(kernel_of(left.matmul(right, dtype=dtypes.float32)), CARD)
    assert any(u.op is Ops.TMA_LOAD for u in linear.uops)
    out = np.full(n * m, np.nan, np.float32)
    wanted = a.astype(np.float32) @ b.astype(np.float32)
    assert is_right(linear, [out, a.reshape(-1), b.reshape(-1)], wanted)


def without(linear: Linear, dropped: Callable[[UOp], bool]) -> Linear:
    """The program without some nodes that only say when."""
    return replace(linear, uops=tuple([u for u in linear.uops if not dropped(u)]))


# What is left out, and the words of the error that shows it; other numbers do where there are none.
MISSING: dict[str, tuple[str, Callable[[UOp], bool], str]] = {
    "the wait for a stage": ("copies", lambda u: u.op is Ops.WAIT, "no WAIT waits for"),
    "the last settling": (
        "copies", lambda u: u.op is Ops.MMA_WAIT and u.arg == 0, "no MMA_WAIT waits for",
    ),
    "settling before a stage is filled again": (
        "copies", lambda u: u.op is Ops.MMA_WAIT and u.arg == 1, "",
    ),
    "acquiring a stage": ("producer", lambda u: u.op is Ops.ACQUIRE, "filled again"),
    "releasing a stage": ("producer", lambda u: u.op is Ops.RELEASE, "wait forever"),
    "the begin of copies": ("copies", lambda u: u.op is Ops.COMMIT, "wait forever"),
}  # fmt: skip


def left_out(name: str) -> tuple[Linear, list[Any], Any]:
    """The case of a program that lacks something."""
    way, dropped, _ = MISSING[name]
    linear, arrays, wanted = product(opts_of("m64n64k16_float16", 2, way), sizes=(128, 512, 64))
    short = without(linear, dropped)
    assert len(short.uops) < len(linear.uops)
    return short, arrays, wanted


@pytest.mark.parametrize("name", [n for n, case in MISSING.items() if case[2]])
def test_what_is_missing_is_an_error(name: str) -> None:
    with pytest.raises(InternalError, match=MISSING[name][2]):
        is_right(*left_out(name))


@pytest.mark.parametrize("name", [n for n, case in MISSING.items() if not case[2]])
def test_what_is_missing_gives_other_numbers(name: str) -> None:
    assert not is_right(*left_out(name))


def test_an_accumulator_is_nan_until_its_product_settles() -> None:
    linear, arrays, _ = product(opts_of("m64n64k16_float16"))
    settled = next(u for u in linear.uops if u.op is Ops.MMA_WAIT and u.arg == 0)
    stores = [u for u in linear.uops if u.op is Ops.STORE]
    uops = [u for u in linear.uops if u is not settled]
    uops.insert(uops.index(stores[-1]) + 1, settled)
    Interpreter(replace(linear, uops=tuple(uops))).run(arrays)
    assert np.isnan(arrays[0]).any()


def test_a_box_that_begins_between_rows_is_refused() -> None:
    linear, arrays, wanted = product(opts_of("m64n64k16_float16"))
    box = next(u for u in linear.uops if u.op is Ops.TMA_LOAD)
    at = box.src[0]
    other = UOp(at.op, at.dtype, (at.src[0], at.src[1], UOp.const(at.src[2].dtype, 64)), at.arg)
    moved = UOp(box.op, box.dtype, (other, *box.src[1:]), box.arg)
    uops = tuple([moved if u is box else u for u in linear.uops])
    with pytest.raises(InternalError, match="begins between the rows"):
        is_right(replace(linear, uops=uops), arrays, wanted)
