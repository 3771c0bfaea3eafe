"""Quotients by shared divisors: which become products, that values stay right, and by how much."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from aster_ml import Tensor
from aster_ml.codegen.passes import lower
from aster_ml.codegen.transforms import shared_division
from aster_ml.codegen.transforms.shared_division import FORMS, by_products
from aster_ml.config import Context
from aster_ml.device import Device
from aster_ml.dtype import DType, dtypes, to_numpy_dtype
from aster_ml.engine.realize import schedule_uops
from aster_ml.target import Target
from aster_ml.uop.ops import Ops
from tests.core.numpy_graphs import evaluate_arrays, leaf, ulp_error

Array = Any
FLOATS = (dtypes.float32, dtypes.float64)
CPU = Target(
    "CPU",
    "llvm",
    arch="x86_64-any",
    vector_bits=512,
    vector_registers=32,
    masks=True,
    broadcasts=True,
    threads=1,
    fused=True,
)
SPECIAL = [0.0, -0.0, math.inf, -math.inf, math.nan, 1.0, -1.0, 3.0, -7.0, 0.1]


def edges(dtype: DType) -> Array:
    """What is special, and the ends of a dtype."""
    info = np.finfo(to_numpy_dtype(dtype))
    least = info.smallest_subnormal
    ends = [info.max, info.tiny, least, 3 * least, 1 - info.epsneg, 1 + info.eps]
    far = [2.0 ** FORMS[dtype].far, 2.0 ** -FORMS[dtype].far]
    return np.array([*SPECIAL, *ends, *[-e for e in ends], *far]).astype(info.dtype)


def any_floats(dtype: DType, count: int, seed: int) -> Array:
    """Numbers of every size, after those of `edges`."""
    raw = np.random.default_rng(seed).integers(0, 1 << dtype.bits, count, dtype=np.uint64)
    found = raw.astype(f"u{dtype.itemsize}").view(to_numpy_dtype(dtype))
    found[: len(edges(dtype))] = edges(dtype)
    return found


def places(a: Array, b: Array) -> Array:
    """How many floats lie between two, those of different sign being far apart; 0 for two NaN."""
    kind = f"i{a.dtype.itemsize}"
    # Of one sign the difference is exact in whole numbers, whatever their size.
    gap = np.where(np.signbit(a) == np.signbit(b), a.view(kind) - b.view(kind), 1 << 30)
    nan = np.isnan(a).astype(int) + np.isnan(b)
    return np.where(nan == 2, 0, np.where(nan == 1, 1 << 30, np.abs(gap)))


def divided(x: Array, d: Array) -> Array:
    with np.errstate(all="ignore"):
        return x / d


def test_the_error_is_as_stated() -> None:
    rng = np.random.default_rng(3)
    x, d = leaf(0, dtypes.float32), leaf(1, dtypes.float32)
    a = rng.uniform(-1000, 1000, 2_000_000).astype(np.float32)
    b = (2.0 ** rng.uniform(-20, 20, 2_000_000)).astype(np.float32)
    found = evaluate_arrays(by_products(x, d), {x: a, d: b})
    assert np.max(ulp_error(found, a.astype(np.float64) / b)) < 0.5000002
    assert np.count_nonzero(found != a / b) <= 2


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: d.name)
def test_exact_quotients_stay_exact(dtype: DType) -> None:
    kind = to_numpy_dtype(dtype)
    x, d = leaf(0, dtype), leaf(1, dtype)
    q, b = np.meshgrid(np.arange(-60, 60), np.arange(1, 400))
    values = {x: (q * b).astype(kind), d: b.astype(kind)}
    np.testing.assert_array_equal(evaluate_arrays(by_products(x, d), values), q.astype(kind))


def operations(t: Tensor, target: Target = CPU) -> list[Ops]:
    """Those of the kernels of `t`."""
    schedule, _ = schedule_uops([t.contiguous().uop])
    asts = [step.ast for step in schedule.steps if step.ast is not None]
    return [u.op for ast in asts for u in lower(ast, target)[0].uops]


def memory(*shape: int) -> Tensor:
    return Tensor(np.random.default_rng(0).uniform(1, 2, shape).astype(np.float32)).realize()


def test_rows_that_share_divisors_divide_once_for_all() -> None:
    x, d = memory(523, 1560), memory(1, 1560)
    found = operations((x / d / d).sqrt())
    assert Ops.FDIV not in found
    # Rows stand side by side, as lanes; the reciprocal has those of one.
    assert found.count(Ops.RECIPROCAL) == 1


def test_a_divisor_of_whole_rows_is_prepared_outside_of_their_loop() -> None:
    x, d = memory(300, 1024), memory(300, 1)
    found = operations((x / d / d).sqrt())
    assert Ops.FDIV not in found
    scalar = operations((x / memory(1, 1) / d).sqrt())
    assert Ops.FDIV not in scalar


@pytest.mark.parametrize("case", ["alone", "much else", "a sum", "own divisors", "not fused"])
def test_other_divisions_stay(case: str) -> None:
    x, d = memory(300, 1024), memory(1, 1024)
    values = {
        "alone": x / d,
        "much else": (x / d / d).exp().tanh(),
        "a sum": (x / d / d).sum(),
        "own divisors": (x / memory(300, 1024) / memory(300, 1024)).sqrt(),
        "not fused": (x / d / d).sqrt(),
    }
    target = CPU if case != "not fused" else Target(
        "CPU", "llvm", arch="x86_64-any", vector_bits=512, vector_registers=32, masks=True,
        broadcasts=True,
    )  # fmt: skip
    assert Ops.FDIV in operations(values[case], target)


@pytest.mark.parametrize("shape", [(1, 1030), (90, 1), (1, 1)])
@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: d.name)
def test_quotients_of_all_numbers_are_those_of_a_division(
    dtype: DType, shape: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    if not Device["CPU"].target.fused:
        pytest.skip("this processor does not round MULACC once, so divisions stay")
    made = []

    def noted(*args: Any) -> Any:
        made.append(by_products(*args))
        return made[-1]

    monkeypatch.setattr(shared_division, "waits_for_divisions", lambda *args: True)
    monkeypatch.setattr(shared_division, "by_products", noted)
    a = any_floats(dtype, 90 * 1030, 1).reshape(90, 1030)
    b = any_floats(dtype, max(math.prod(shape), 40), 2)[-math.prod(shape) :].reshape(shape)
    if shape != (1, 1):
        b.flat[: len(edges(dtype))] = edges(dtype)
    a[:, 0] = edges(dtype)[np.arange(90) % len(edges(dtype))]
    with Context(CACHE=0):
        found = (Tensor(a) / Tensor(b)).numpy()
    assert made
    wanted = divided(a, b)
    gap = places(found, wanted)
    assert np.max(gap) <= 1
    # Where neither rounds among the smallest numbers they are one and the same.
    small = 2.0 ** -(FORMS[dtype].far + 4)
    usual = (np.abs(a) > small) & (np.abs(wanted) > small)
    assert np.count_nonzero(usual) > a.size // 5
    assert np.count_nonzero(gap[usual]) <= 1


def test_a_kernel_of_quotients_and_roots_is_that_of_numpy() -> None:
    rng = np.random.default_rng(8)
    a, b = rng.standard_normal((211, 333)), rng.uniform(0.5, 3, (1, 333))
    for kind in (np.float32, np.float64):
        x, d = a.astype(kind), b.astype(kind)
        found = np.abs(x) / d / d
        got = (Tensor(x).abs() / Tensor(d) / Tensor(d)).sqrt().numpy()
        np.testing.assert_allclose(got, np.sqrt(found), rtol=2 * np.finfo(kind).eps)
