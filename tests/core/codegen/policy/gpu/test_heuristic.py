"""Schedules of devices with work-groups: what they compute, and how often."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from aster_ml import Context, Tensor
from aster_ml.codegen.passes import lower
from aster_ml.device import missing
from aster_ml.helpers import prod
from aster_ml.runtime.interpreter.run import Interpreter
from aster_ml.uop.linear import Linear
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import AxisType, Ops
from aster_ml.uop.ranges import size_of
from tests.core.kernel_checks import kernel_of, memory
from tests.fuzz.random_kernels import GROUPS


def softmax(x: Any) -> Any:
    e = np.exp(x - x.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


ROWS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Any], Any]]] = {
    "softmax": (lambda x: x.softmax(1), softmax),
    "softmax of columns": (lambda x: x.softmax(0), lambda x: softmax(x.T).T),
    "log_softmax": (lambda x: x.log_softmax(1), lambda x: np.log(softmax(x))),
    "layernorm": (
        lambda x: x.layernorm(),
        lambda x: (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-5),
    ),
    "row sums": (lambda x: x.sum(1), lambda x: x.sum(1)),
    "column sums": (lambda x: x.sum(0), lambda x: x.sum(0)),
    "largest of rows": (lambda x: x.max(1), lambda x: x.max(1)),
    "share of rows": (lambda x: x / x.sum(1, keepdim=True), lambda x: x / x.sum(1, keepdims=True)),
    "elementwise": (lambda x: x * 2 + 1, lambda x: x * 2 + 1),
}


def steps(linear: Linear) -> int:
    """How many loads all work-items do together."""
    turns = prod(linear.global_size) * prod(linear.local_size)
    total = 0
    for u in linear.uops:
        if u.op is Ops.RANGE and u.arg.kind in (AxisType.LOOP, AxisType.REDUCE):
            turns *= size_of(u)
        elif u.op is Ops.END:
            turns //= size_of(u.src[0])
        elif u.op is Ops.LOAD and u.src[0].src[0].op is Ops.PARAM:
            lanes = [r for r in u.ranges if r.arg.kind.is_lane]
            total += turns * prod([r.src[0].arg for r in lanes])
    return int(total)


@functools.cache
def program(name: str, shape: tuple[int, int]) -> tuple[UOp, Linear]:
    """The kernel of one of ROWS on this shape, for a device with work-groups."""
    ast = kernel_of(ROWS[name][0](memory(*shape)))
    return ast, lower(ast, GROUPS)[0]


@pytest.mark.parametrize("name", ["softmax", "log_softmax", "layernorm", "share of rows"])
@pytest.mark.parametrize("shape", [(64, 64), (256, 1024), (128, 1000), (64, 509), (1, 4096)])
def test_a_row_is_not_reduced_for_each_of_its_elements(name: str, shape: tuple[int, int]) -> None:
    """The reductions and the results read a row once each."""
    assert steps(program(name, shape)[1]) <= 3.5 * prod(shape)


@pytest.mark.parametrize("name", [name for name in ROWS if name != "softmax of columns"])
@pytest.mark.parametrize("shape", [(2, 3), (16, 64), (17, 67), (20, 70)])
def test_programs_give_what_numpy_gives(name: str, shape: tuple[int, int]) -> None:
    """Run by the interpreter, work-items and barriers and all."""
    _, linear = program(name, shape)
    x = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    wanted = ROWS[name][1](x.astype(np.float64))
    out = np.full(wanted.size, np.nan, np.float32)
    Interpreter(linear).run([out, x.reshape(-1).copy()], ())
    np.testing.assert_allclose(out.reshape(wanted.shape), wanted, rtol=2e-4, atol=1e-5)


@pytest.mark.parametrize(("n", "k", "m"), [(40, 9, 33), (33, 8, 35)])
def test_a_tile_need_not_divide(n: int, k: int, m: int) -> None:
    ast = kernel_of(memory(n, k) @ memory(k, m))
    linear, _ = lower(ast, GROUPS)
    # Elements are read once for a whole tile, and serve at least two results of a work-item.
    assert steps(linear) < n * k * m // 2
    rng = np.random.default_rng(2)
    a, b = rng.standard_normal((n, k)), rng.standard_normal((k, m))
    out = np.full(n * m, np.nan, np.float32)
    Interpreter(linear).run([out, *[x.astype(np.float32).reshape(-1) for x in (a, b)]], ())
    np.testing.assert_allclose(out.reshape(n, m), a @ b, rtol=1e-4, atol=1e-4)


def test_indices_have_32_bits_where_that_is_enough() -> None:
    def widths(t: Tensor) -> set[str]:
        linear, _ = lower(kernel_of(t), replace(GROUPS, index_bits=64))
        return {u.dtype.name for u in linear.uops if u.op is Ops.RANGE}

    assert widths(Tensor.empty(1 << 20) * 2) == {"int32"}
    assert widths(Tensor.empty(1 << 31) * 2) == {"int64"}


ABSENT = missing("OPENCL")


@pytest.mark.opencl
@pytest.mark.skipif(ABSENT is not None, reason=f"OpenCL: {ABSENT}")
@pytest.mark.parametrize("name", ["softmax", "softmax of columns", "layernorm", "row sums"])
@pytest.mark.parametrize("shape", [(1, 1), (17, 67), (64, 128)])
def test_devices_give_what_numpy_gives(name: str, shape: tuple[int, int]) -> None:
    x = np.random.default_rng(3).standard_normal(shape).astype(np.float32)
    with Context(DEV="OPENCL"):
        found = ROWS[name][0](Tensor(x)).numpy()
    wanted = ROWS[name][1](x.astype(np.float64))
    np.testing.assert_allclose(found, wanted, rtol=5e-4, atol=1e-4)
