"""Results of warps that leave through local memory in pieces of 16 bytes."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from aster_ml import Tensor, dtypes
from aster_ml.codegen.opts import Opt, OptOps
from aster_ml.codegen.passes import lower
from aster_ml.config import Context
from aster_ml.errors import KernelOptError
from aster_ml.renderer.cuda.renderer import CudaRenderer
from aster_ml.runtime.interpreter.run import Interpreter
from aster_ml.target import Target
from aster_ml.target.cuda import cuda_target
from aster_ml.uop.linear import Linear
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import Ops
from aster_ml.uop.print.text import linear_from_text, linear_to_text
from aster_ml.uop.spec.linear import verify_linear
from tests.core.kernel_checks import kernel_of
from tests.shim import on_cpu

KINDS = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16, "float32": np.float32}
# Of two processors, so that tiles are large.
OLD, NEW = (replace(cuda_target(arch), units=2) for arch in ("sm_80", "sm_90a"))
needs_cc = pytest.mark.skipif(on_cpu.find_compiler() is None, reason="no C++ compiler: g++")


def draw(*shape: int) -> np.ndarray[Any, Any]:
    """Small integers, of which products and sums are exact."""
    return np.random.default_rng(sum(shape)).integers(-2, 3, shape).astype(np.float16)


def product(n: int, k: int, m: int, result: str, across: bool = False) -> UOp:
    """A product of halves with results of a dtype, rows of which may be columns in memory."""
    x, y = Tensor.empty(n, k, dtype="half"), Tensor.empty(k, m, dtype="half")
    z = x.matmul(y, dtype=dtypes.float32).cast(result)
    return kernel_of(z.T.contiguous() if across else z)


def program(ast: UOp, card: Target, over: int = 1) -> Linear:
    """The default program, with results that leave through local memory."""
    with Context(BOXES=0):
        opts = [opt for opt in lower(ast, card)[1] if opt.kind != "STAGE out"]
        linear, _ = lower(ast, card, (*opts, Opt(OptOps.STAGE, arg=over, how="out")))
    verify_linear(linear)
    assert linear_from_text(linear_to_text(linear)) == linear
    return linear


@pytest.mark.cc
@needs_cc
@pytest.mark.parametrize(
    ("card", "result", "across", "over"),
    [
        (OLD, "float16", False, 1), (OLD, "float32", True, 0), (OLD, "bfloat16", True, 1),
        (NEW, "float16", False, 0), (NEW, "bfloat16", True, 1), (NEW, "float32", False, 1),
    ],
)  # fmt: skip
def test_results_are_those_of_numpy(card: Target, result: str, across: bool, over: int) -> None:
    n, k, m = 232, 72, 136
    linear = program(product(n, k, m, result, across), card, over)
    assert any(u.op is Ops.STMATRIX for u in linear.uops) == (card is NEW and result != "float32")
    a, b = draw(n, k), draw(k, m)
    memory = np.full(n * m + 32, 77, KINDS[result])
    source = CudaRenderer(card).render(linear)
    on_cpu.run(source, linear, [memory, a.reshape(-1), b.reshape(-1)])
    wanted = a.astype(np.float32) @ b.astype(np.float32)
    wanted = wanted.T if across else wanted
    np.testing.assert_array_equal(memory[: n * m].astype(np.float32), wanted.reshape(-1))
    assert (memory[n * m :] == 77).all()
    # All that leaves are whole pieces.
    stores = re.findall(r"aster_store_any<(\d+)>\(buf0", source)
    assert stores
    assert set(stores) == {"16"}


def test_the_interpreter_runs_it_and_shows_a_barrier_that_is_left_out() -> None:
    linear = program(product(64, 64, 64, "float32"), OLD)
    a, b = draw(64, 64), draw(64, 64)
    wanted = a.astype(np.float32) @ b.astype(np.float32)
    barriers = [i for i, u in enumerate(linear.uops) if u.op is Ops.BARRIER]
    # Of those behind the loop the first has all be done with operands, the second with results.
    for left_out in (None, barriers[-2], barriers[-1]):
        uops = [u for i, u in enumerate(linear.uops) if i != left_out]
        out = np.full((64, 64), 77, np.float32)
        run = Interpreter(replace(linear, uops=tuple(uops))).run
        run([out.reshape(-1), a.reshape(-1), b.reshape(-1)])
        assert np.array_equal(out, wanted) == (left_out is None)


@pytest.mark.parametrize(("result", "leaves"), [("float16", True), ("float32", False)])
@pytest.mark.parametrize("across", [False, True])
def test_halves_of_sectors_leave_so_by_default(result: str, leaves: bool, across: bool) -> None:
    for card in (OLD, NEW):
        with Context(BOXES=0):
            opts = lower(product(1024, 1024, 1024, result, across), card)[1]
        assert (Opt(OptOps.STAGE, arg=1, how="out") in opts) == leaves


def test_what_cannot_leave_so_is_stored_from_registers() -> None:
    """Strides of no 16 bytes, and a tensor that the kernel reads too."""
    for ast in (product(256, 256, 250, "float16"),):
        with Context(BOXES=0):
            opts = lower(ast, OLD)[1]
        assert any(opt.op is OptOps.TC for opt in opts)
        assert all(opt.kind != "STAGE out" for opt in opts)
        with pytest.raises(KernelOptError, match="multiples of 16 bytes"):
            program(ast, OLD)
