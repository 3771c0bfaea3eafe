"""Short stacks of computed values: one kernel, each value computed once, nothing chosen in it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from aster_ml import Context, Tensor
from aster_ml.codegen.passes import lower
from aster_ml.target import Target
from aster_ml.uop.ops import Ops

CPU = Target("CPU", "llvm", vector_bits=256, vector_registers=16)
VALUES = np.random.default_rng(0).standard_normal((6, 40)).astype(np.float32)


def programs(t: Tensor) -> list[Any]:
    """The kernels of a tensor, which run as well."""
    items = t.schedule()
    for item in items:
        item.run()
    return [item.ast for item in items if item.ast.op is Ops.SINK]


def mixed(x: Tensor) -> list[Tensor]:
    """Sums that have terms in common, each worth more than a store."""
    a, b = (x[0] + x[1]).exp(), (x[2] - x[3]).sin()
    return [a + b, a - b, a * 2 + x[4], b * 3 - x[5]]


def numpy_mixed(x: Any) -> list[Any]:
    """The same in NumPy."""
    a, b = np.exp(x[0] + x[1]), np.sin(x[2] - x[3])
    return [a + b, a - b, a * 2 + x[4], b * 3 - x[5]]


STACKS: list[tuple[Callable[[list[Tensor]], Tensor], Callable[[list[Any]], Any]]] = [
    (lambda v: v[0].stack(*v[1:]), np.stack),
    (lambda v: v[0].stack(*v[1:], dim=1), lambda v: np.stack(v, 1)),
    (lambda v: v[0].stack(*v[1:], dim=1).reshape(-1), lambda v: np.stack(v, 1).reshape(-1)),
    (lambda v: v[0].stack(*v[1:]).flip(0) + 1, lambda v: np.stack(v)[::-1] + 1),
    (lambda v: v[0].stack(*v[1:])[1:3].relu(), lambda v: np.maximum(np.stack(v)[1:3], 0)),
    (
        lambda v: v[0].stack(v[1]).stack(v[2].stack(v[3])),
        lambda v: np.stack([np.stack(v[:2]), np.stack(v[2:])]),
    ),
]


@pytest.mark.parametrize("number", range(len(STACKS)))
def test_one_kernel_that_chooses_nothing(number: int) -> None:
    make, want = STACKS[number]
    t = make(mixed(Tensor(VALUES).realize()))
    kernels = programs(t)
    assert len(kernels) == 1
    np.testing.assert_allclose(t.numpy(), want(numpy_mixed(VALUES)), rtol=1e-5, atol=1e-6)
    linear = lower(kernels[0], CPU)[0]
    exponentials = [u for u in linear.uops if u.op is Ops.BITCAST and u.ranges and u.src[0].ranges]
    lanes = [r for u in exponentials for r in u.ranges if r.arg.kind.name == "UPCAST"]
    assert not lanes, "computed again for each place of the stack"


@pytest.mark.parametrize("number", range(len(STACKS)))
@pytest.mark.parametrize("settings", [{"NOOPT": 1}, {"FUSE": 0}, {"FUSE": 2}, {"SPEC": 2}], ids=str)
def test_the_same_under_other_settings(number: int, settings: dict[str, int]) -> None:
    make, want = STACKS[number]
    with Context(**settings):
        have = make(mixed(Tensor(VALUES).realize())).numpy()
    np.testing.assert_allclose(have, want(numpy_mixed(VALUES)), rtol=1e-5, atol=1e-6)


def test_reductions_of_a_stack_are_right() -> None:
    x = Tensor(VALUES).realize()
    stack = x.sum(1).stack(x.max(1), (x * x).sum(1))
    want = np.stack([VALUES.sum(1), VALUES.max(1), (VALUES * VALUES).sum(1)])
    np.testing.assert_allclose(stack.numpy(), want, rtol=1e-5)
    rows = mixed(x)
    np.testing.assert_allclose(
        rows[0].stack(*rows[1:]).softmax(0).sum(1).numpy(),
        softmax(np.stack(numpy_mixed(VALUES))).sum(1),
        rtol=1e-5,
    )


def softmax(x: Any) -> Any:
    """Over the first axis."""
    e = np.exp(x - x.max(0))
    return e / e.sum(0)


def test_a_stack_within_padding_is_zero_outside() -> None:
    a, b = Tensor(VALUES[0]).realize(), Tensor(VALUES[1]).realize()
    t = (a * 2).stack(b + 1).pad(((1, 2), (3, 1))) + 1
    want = np.pad(np.stack([VALUES[0] * 2, VALUES[1] + 1]), ((1, 2), (3, 1))) + 1
    np.testing.assert_allclose(t.numpy(), want, rtol=1e-6)


def test_memory_that_is_viewed_in_many_ways_is_not_copied() -> None:
    x = Tensor(VALUES.reshape(-1)).realize()
    view = x.reshape(2, 3, 40)
    total = sum([view[i, j, k : 35 + k] for i in range(2) for j in range(3) for k in range(3)])
    kernels = programs(total)
    assert len(kernels) == 1
    parts = VALUES.reshape(2, 3, 40)
    want = sum([parts[i, j, k : 35 + k] for i in range(2) for j in range(3) for k in range(3)])
    np.testing.assert_allclose(total.numpy(), want, rtol=1e-4, atol=1e-5)


def test_what_a_stack_holds_and_computes_with_is_loaded_once() -> None:
    x = Tensor(VALUES).realize()
    t = (x[0] - x[2]).stack(x[0] + x[1], x[0])
    [kernel] = programs(t)
    assert [u.op for u in lower(kernel, CPU)[0].uops].count(Ops.LOAD) == 3
    want = np.stack([VALUES[0] - VALUES[2], VALUES[0] + VALUES[1], VALUES[0]])
    np.testing.assert_allclose(t.numpy(), want, rtol=1e-6)


def test_a_stack_of_what_lies_far_apart_is_one_kernel() -> None:
    x = Tensor(np.tile(VALUES, 64).reshape(6, 160, 16).transpose(1, 2, 0).copy()).realize()
    rows = [x[:, :, i] * 2 for i in range(4)]
    t = rows[0].stack(*rows[1:], dim=0) + 1
    assert len(programs(t)) == 1
    assert_stacked(t, x)


def assert_stacked(t: Tensor, x: Tensor) -> None:
    """Twice each of four numbers, and one."""
    np.testing.assert_allclose(t.numpy(), x.numpy().transpose(2, 0, 1)[:4] * 2 + 1, rtol=1e-6)
