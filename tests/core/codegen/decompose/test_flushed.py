"""Comparisons with subnormal numbers, run as on devices that take these for 0."""

from __future__ import annotations

import platform
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from aster_ml import Device, Tensor, dtypes
from aster_ml.codegen.decompose.ops import decompose
from aster_ml.codegen.passes import lower
from aster_ml.dtype import DType
from aster_ml.renderer.cuda.renderer import CudaRenderer
from aster_ml.renderer.metal.renderer import MetalRenderer
from aster_ml.runtime.cuda.compiler import OPTIONS
from aster_ml.target import Target
from aster_ml.target.cuda import cuda_target
from aster_ml.target.metal import metal_target
from aster_ml.uop.evaluate import evaluate
from aster_ml.uop.graph import toposort
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import Ops
from tests.core.kernel_checks import kernel_of
from tests.shim import on_cpu

METAL = metal_target()
LEAST = {dtypes.float32: 2.0**-149, dtypes.bfloat16: 2.0**-133}


def value_of(u: UOp, x: float) -> Any:
    """A graph of constants and one variable, which is x."""
    found: dict[UOp, Any] = {}
    for v in toposort(u):
        if v.op is Ops.CONST:
            found[v] = v.arg
        elif v.op is Ops.DEFINE_VAR:
            found[v] = x
        else:
            args = tuple([found[s] for s in v.src])
            found[v] = evaluate(v.op, v.dtype, args, tuple([s.dtype for s in v.src]))
    return found[u]


@pytest.mark.parametrize("dtype", LEAST, ids=lambda d: d.name)
def test_comparisons_have_no_such_numbers_and_the_same_results(dtype: DType) -> None:
    x = UOp(Ops.DEFINE_VAR, dtype, (), ("x", -2, 2))
    numbers = [-1.0, -(2.0**-126), -0.0, 0.0, 2.0**-126, 1.0, float("nan"), float("inf")]
    for c in (LEAST[dtype], -LEAST[dtype], 2.0**-127, 0.5):
        number = UOp.const(dtype, c)
        pairs = [(x, number), (number, x)]
        for u in [a.alu(op, b) for a, b in pairs for op in (Ops.CMPLT, Ops.CMPEQ, Ops.CMPNE)]:
            settled = decompose(u, METAL)
            kept = [v.arg for v in toposort(settled) if v.op is Ops.CONST and v.dtype is dtype]
            assert all(k in (0.0, 0.5) for k in kept)
            for value in numbers:
                assert value_of(settled, value) == value_of(u, value), (u, value)


def relu_slope(target: Target, flush: bool) -> list[float]:
    """Slopes of relu at some places, by a processor that may flush."""
    x = Tensor.empty(6, dtype=dtypes.float32, device="CPU")
    x.requires_grad_()
    y = x.relu()
    ast = kernel_of(y.sum().gradient(x)[0])
    linear, _ = lower(ast, target)
    renderer = MetalRenderer if target.language == "metal" else CudaRenderer
    source = (on_cpu.FLUSH if flush else "") + renderer(target).render(linear)
    given = np.array([-1, -0.0, 0, 1, np.inf, 2.0**-126], np.float32)
    out = np.full(6, np.nan, np.float32)
    on_cpu.run(source, linear, [out, given])
    return out.tolist()


@pytest.mark.cc
@pytest.mark.skipif(on_cpu.find_compiler() is None, reason="no C++ compiler on PATH: g++")
@pytest.mark.skipif(platform.machine() != "x86_64", reason="the shim flushes on x86-64 alone")
def test_relu_has_no_slope_at_zero() -> None:
    right = [0.0, 0.0, 0.0, 1.0, 1.0, 1.0]
    assert relu_slope(METAL, flush=True) == right
    assert relu_slope(METAL, flush=False) == right
    assert relu_slope(cuda_target("sm_80"), flush=False) == right
    # A processor that flushes, taken for one that does not: what this is about.
    assert relu_slope(replace(METAL, flushes=frozenset()), flush=True)[2] == 1.0


def test_who_flushes() -> None:
    assert METAL.flushes == {"float32", "bfloat16"}
    # NVRTC keeps subnormal numbers unless it is told otherwise.
    assert not cuda_target("sm_90a").flushes
    assert not [o for o in OPTIONS if "ftz" in o or "fast" in o]
    assert not Device["CPU"].target.flushes
