"""Differences to the maximum of their own row: where they are found, and that values stay right."""

from __future__ import annotations

import numpy as np
import pytest

from aster_ml import Tensor
from aster_ml.codegen.passes import schedule_kernel
from aster_ml.config import Context
from aster_ml.engine.realize import schedule_uops
from aster_ml.target import Target
from aster_ml.uop.ops import Ops, PowerArg

CPU = Target(
    "CPU",
    "llvm",
    arch="x86_64-any",
    vector_bits=512,
    vector_registers=32,
    masks=True,
    broadcasts=True,
)


def memory(*shape: int) -> Tensor:
    return Tensor(np.random.default_rng(0).standard_normal(shape).astype(np.float32)).realize()


def marked(t: Tensor, target: Target = CPU) -> list[bool]:
    """Of each EXP2 of the kernels of `t`, whether its exponent is promised to fall."""
    schedule, _ = schedule_uops([t.contiguous().uop])
    found = []
    for step in schedule.steps:
        if step.ast is not None:
            nodes = schedule_kernel(step.ast, target).facts.order
            found += [u.arg == PowerArg(True) for u in nodes if u.op is Ops.EXP2]
    return found


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_the_terms_of_a_softmax_are_below_their_maximum(axis: int) -> None:
    found = marked(memory(7, 30, 11).softmax(axis))
    assert found
    assert all(found)


def test_terms_over_several_axes_are_too() -> None:
    x = memory(6, 9, 5)
    assert marked((x - x.max((0, 2), keepdim=True)).exp().sum((0, 2))) == [True]


@pytest.mark.parametrize(("scale", "below"), [(0.125, True), (3.0, True), (-0.125, False)])
def test_scaled_differences_are_below_0_by_the_sign_of_the_scale(scale: float, below: bool) -> None:
    x = memory(6, 40)
    terms = ((x - x.max(1, keepdim=True)) * scale).exp()
    assert marked(terms) == [below]
    a = x.numpy()
    # What is rounded before the power is so in both.
    exponents = (a - a.max(1, keepdims=True)) * np.float32(scale)
    np.testing.assert_allclose(terms.numpy(), np.exp(exponents.astype(np.float64)), rtol=3e-7)


def test_a_logarithm_of_sums_takes_no_infinite_maximum_off() -> None:
    assert marked(memory(6, 9).logsumexp(1)) == [False]
    x = np.float32([[np.inf, 1.0, 200.0], [-np.inf, -np.inf, -np.inf], [3.0, -np.inf, 1.0]])
    wanted = np.float32([np.inf, -np.inf, 3.126928])
    np.testing.assert_allclose(Tensor(x).logsumexp(1).numpy(), wanted, rtol=1e-6)


def test_what_is_not_of_the_row_is_left_alone() -> None:
    x, y = memory(8, 12), memory(8, 12)
    assert marked((x - y.max(1, keepdim=True)).exp()) == [False]
    assert marked((x - x.sum(1, keepdim=True)).exp()) == [False]
    # A maximum of what lies around an element, and not of its own row.
    assert marked((x - x.flip(0).max(1, keepdim=True)).exp()) == [False]


def test_a_target_with_powers_of_its_own_has_its_arguments_as_they_are() -> None:
    native = Target(
        "CPU",
        "llvm",
        arch="x86_64-any",
        vector_bits=512,
        masks=True,
        native_ops=CPU.native_ops | {"EXP2"},
    )
    assert not any(marked(memory(7, 30).softmax(1), native))


@pytest.mark.parametrize("columns", [5, 16, 100, 4096])
def test_softmax_of_far_and_special_values(columns: int) -> None:
    rng = np.random.default_rng(columns)
    x = (rng.standard_normal((6, columns)) * 40).astype(np.float32)
    x[1, 2], x[2, 3], x[3, 1] = np.nan, np.inf, -np.inf
    x[4] = -3.0
    with np.errstate(invalid="ignore"):
        e = np.exp((x - x.max(1, keepdims=True)).astype(np.float64))
        wanted = e / e.sum(1, keepdims=True)
    for noopt in (0, 1):
        with Context(NOOPT=noopt):
            np.testing.assert_allclose(Tensor(x).softmax(1).numpy(), wanted, rtol=3e-6, atol=1e-38)
