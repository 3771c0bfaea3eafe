"""Local memory that is filled ahead: what programs give, and what shows where a wait is missing."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from aster_ml import Tensor, dtypes
from aster_ml.codegen.opts import parse_opts
from aster_ml.codegen.passes import lower
from aster_ml.errors import KernelOptError
from aster_ml.renderer.cuda.renderer import CudaRenderer
from aster_ml.runtime.interpreter.run import Interpreter
from aster_ml.target import Target
from aster_ml.target.copies import AT_ONCE, copies_of
from aster_ml.target.cuda import cuda_target
from aster_ml.uop.linear import Linear
from aster_ml.uop.ops import Ops
from aster_ml.uop.print.text import linear_from_text, linear_to_text
from aster_ml.uop.spec.linear import verify_linear
from tests.core.kernel_checks import kernel_of
from tests.shim import on_cpu

CARD = cuda_target("sm_80")
PLAIN = replace(CARD, features=frozenset({"shuffle"}))
TILE = "UPCAST(r0,2) LOCAL(r0,4) UPCAST(r1,2) LOCAL(r1,8) STAGE(r2,8,local)"
CORE = "TC(r2,3) UPCAST(r0,2) LOCAL(r0,2) UPCAST(r1,2) LOCAL(r1,2) STAGE(r2,2,local)"
needs_compiler = pytest.mark.skipif(
    on_cpu.find_compiler() is None, reason="no C++ compiler on PATH: g++"
)


def program(opts: str, target: Target = CARD, dtype: str = "float32", k: int = 48) -> Linear:
    """A product of [64, k] by [k, 32]."""
    a, b = Tensor.empty(64, k, dtype=dtype), Tensor.empty(k, 32, dtype=dtype)
    linear, _ = lower(kernel_of(a.matmul(b, dtype=dtypes.float32)), target, parse_opts(opts))
    verify_linear(linear)
    assert linear_from_text(linear_to_text(linear)) == linear
    return linear


def operands(dtype: str, k: int = 48) -> tuple[list[np.ndarray], np.ndarray]:
    """A result to fill, both operands; and what the result has to be."""
    rng = np.random.default_rng(k)
    a, b = ((rng.integers(-8, 9, s) / 4).astype(dtype) for s in ((64, k), (k, 32)))
    wanted = (a.astype(np.float64) @ b.astype(np.float64)).astype(np.float32)
    return [np.full(64 * 32, np.nan, np.float32), a.reshape(-1), b.reshape(-1)], wanted


def interpreted(linear: Linear, dtype: str = "float32", k: int = 48) -> bool:
    """Whether the interpreter gives what NumPy gives."""
    arrays, wanted = operands(dtype, k)
    Interpreter(linear).run(arrays, ())
    return np.array_equal(arrays[0].reshape(64, 32), wanted)


def on_shim(source: str, linear: Linear, dtype: str = "float32", k: int = 48) -> bool:
    """Whether the CPU, which runs what a card would, gives what NumPy gives."""
    arrays, wanted = operands(dtype, k)
    on_cpu.run(source, linear, arrays)
    return np.array_equal(arrays[0].reshape(64, 32), wanted)


@pytest.mark.parametrize("stages", [2, 3, 4, 6])
def test_programs_give_what_numpy_gives(stages: int) -> None:
    linear = program(f"{TILE} PIPELINE(r2,{stages},copies)")
    assert [u.arg for u in linear.uops if u.op is Ops.WAIT] == [stages - 2, 0]
    assert sum(1 for u in linear.uops if u.op is Ops.COMMIT) == stages
    # One barrier an iteration, where there were two.
    assert sum(1 for u in linear.uops if u.op is Ops.BARRIER) == 1
    assert interpreted(linear)


def test_tensor_cores_read_stages() -> None:
    linear = program(f"{CORE} PIPELINE(r2,2,copies)", dtype="float16", k=64)
    assert interpreted(linear, "float16", 64)


def test_edges_are_zeros() -> None:
    linear = program(f"SPLIT(r2,8,mask) {TILE} PIPELINE(r2,3,copies)", k=45)
    assert interpreted(linear, k=45)


def test_what_is_not_waited_for_is_not_there() -> None:
    linear = program(f"{TILE} PIPELINE(r2,3,copies)")
    hasty = replace(linear, uops=tuple([u for u in linear.uops if u.op is not Ops.WAIT]))
    assert not interpreted(hasty)
    lazy = [u.replace(arg=u.arg + 1) if u.op is Ops.WAIT else u for u in linear.uops]
    assert not interpreted(replace(linear, uops=tuple(lazy)))


def test_without_copies_of_their_own_loads_wait_in_registers() -> None:
    linear = program(f"{TILE} PIPELINE(r2,2,copies)", PLAIN)
    found = [u.op for u in linear.uops]
    assert {Ops.COMMIT, Ops.WAIT}.isdisjoint(found)
    # Loaded before the barrier, stored behind what reads the other stage.
    start = next(i for i, u in enumerate(linear.uops) if u.op is Ops.RANGE and u.arg.id == 2)
    iteration = [op for op in found[start:] if op in (Ops.BARRIER, Ops.ACCUMULATE, Ops.STORE)]
    assert iteration[:3] == [Ops.BARRIER, Ops.ACCUMULATE, Ops.STORE]
    assert interpreted(linear)
    with pytest.raises(KernelOptError, match="wants 2 stages where what is loaded waits in"):
        program(f"{TILE} PIPELINE(r2,3,copies)", PLAIN)


def test_what_cannot_be_is_refused() -> None:
    for opts, said in (
        ("UPCAST(r0,4) PIPELINE(r2,2,copies)", "whose loads STAGE local takes"),
        (f"{TILE} PIPELINE(r2,1,copies)", "2 stages are the fewest"),
        (f"{TILE} PIPELINE(r2,7,copies)", "7 stages are more than the 6 strips"),
    ):
        with pytest.raises(KernelOptError, match=said):
            program(opts)
    small = replace(CARD, local_bytes=2048)
    with pytest.raises(KernelOptError, match=r"of 3 stages wants .* fewer stages would do"):
        program(f"{TILE} PIPELINE(r2,3,copies)", small)


def test_a_target_says_how_it_copies() -> None:
    assert copies_of(frozenset({"cp_async", "shuffle"})).feature == "cp_async"
    assert CARD.copies.nbytes == (4, 8, 16)
    assert PLAIN.copies is AT_ONCE
    assert (CARD.copies.go_on, AT_ONCE.go_on) == (True, False)


@pytest.mark.cc
@needs_compiler
def test_a_missing_wait_or_barrier_shows_on_the_cpu() -> None:
    linear = program(f"{TILE} PIPELINE(r2,3,copies)")
    source = CudaRenderer(CARD).render(linear)
    assert on_shim(source, linear)
    for wrong in (
        source.replace("aster_wait<1>();", ""),
        source.replace("aster_wait<1>();", "aster_wait<2>();"),
        source.replace("    __syncthreads();\n", ""),
    ):
        assert wrong != source
        assert not on_shim(wrong, linear)


@pytest.mark.cc
@needs_compiler
@pytest.mark.parametrize("target", [CARD, PLAIN], ids=["cp.async", "registers"])
def test_tensor_cores_on_the_cpu(target: Target) -> None:
    linear = program(f"{CORE} PIPELINE(r2,2,copies)", target, "float16", 96)
    source = CudaRenderer(target).render(linear)
    assert ("aster_copy<16, 16>(local0" in source) is (target is CARD)
    assert on_shim(source, linear, "float16", 96)


@needs_compiler
@pytest.mark.parametrize("taps", [2, 5])
def test_loops_inside_of_the_strips_fill_for_themselves(taps: int) -> None:
    """A convolution's sum goes along channels, and at each of them along the taps of a window."""
    x, w = Tensor.empty(1, 32, 63 + taps), Tensor.empty(64, 32, taps)
    ast = kernel_of(x.conv2d(w))
    linear, opts = lower(ast, CARD)
    verify_linear(linear)
    rng = np.random.default_rng(taps)
    a, b = ((rng.integers(-8, 9, t.shape) / 8).astype(np.float32) for t in (x, w))
    found = np.full(64 * 64, np.nan, np.float32)
    arrays = [found, a.reshape(-1), b.reshape(-1)]
    on_cpu.run(CudaRenderer(CARD).render(linear), linear, arrays)
    windows = np.stack([a[0, :, i : i + 64] for i in range(taps)], -1)
    np.testing.assert_array_equal(found.reshape(64, 64), np.einsum("ctk,ock->ot", windows, b))
    if taps == 5:
        assert "STAGE" in str(opts)
        assert "PIPELINE" not in str(opts)
        with pytest.raises(KernelOptError, match="another loop of its sum inside"):
            lower(ast, CARD, (*opts, *parse_opts("PIPELINE(r2,2,copies)")))
