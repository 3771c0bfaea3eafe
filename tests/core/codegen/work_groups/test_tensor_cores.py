"""Products on tensor cores: layouts, the Opt, and programs that the interpreter runs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from aster_ml import Tensor, dtypes
from aster_ml.codegen.opts import parse_opts
from aster_ml.codegen.passes import lower, schedule_kernel
from aster_ml.dtype import to_dtype
from aster_ml.errors import KernelOptError
from aster_ml.runtime.interpreter.run import Interpreter
from aster_ml.target.tensor_cores import ROWS, TENSOR_CORES, TensorCore, cuda_tensor_cores
from aster_ml.uop.linear import Linear
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import Ops
from aster_ml.uop.print.text import linear_from_text, linear_to_text
from tests.core.kernel_checks import kernel_of
from tests.fuzz.random_kernels import GROUPS

CORES = replace(
    GROUPS, warp=32, features=frozenset({"shuffle"}),
    tensor_cores=frozenset([row.name for row in ROWS if not row.reads_shared]),
)  # fmt: skip
HALF = list(TENSOR_CORES).index("cuda_m16n8k16_float16")


def product(n: int, k: int, m: int, dtype: Any = dtypes.float16) -> UOp:
    """The kernel of a product of [n, k] by [k, m] with a result of float32."""
    a, b = Tensor.empty(n, k, dtype=dtype), Tensor.empty(k, m, dtype=dtype)
    return kernel_of(a.matmul(b, dtype=dtypes.float32))


def check(linear: Linear, n: int, k: int, m: int, dtype: Any = np.float16) -> None:
    """That a program gives what NumPy gives."""
    rng = np.random.default_rng(n + k + m)
    a, b = (rng.integers(-8, 9, s).astype(dtype) / dtype(4) for s in ((n, k), (k, m)))
    out = np.full(n * m, np.nan, np.float32)
    Interpreter(linear).run([out, a.reshape(-1), b.reshape(-1)], ())
    wanted = a.astype(np.float64) @ b.astype(np.float64)
    np.testing.assert_array_equal(out.reshape(n, m), wanted.astype(np.float32))


@pytest.mark.parametrize("core", ROWS, ids=lambda core: core.name)
def test_a_layout_has_each_element_once(core: TensorCore) -> None:
    for operand, axes in (("a", "mk"), ("b", "kn"), ("c", "mn")):
        items, registers = core.bits(operand)
        places = {
            tuple(core.place(operand, i, r)[axis] for axis in axes)
            for i in range(1 << len(items))
            for r in range(1 << len(registers))
        }
        assert places == {
            (x, y) for x in range(core.size(axes[0])) for y in range(core.size(axes[1]))
        }
        # A group of four warps has its results, and some rows their operand A, in registers.
        of_group = 7 if operand == "c" or (operand == "a" and not core.reads_shared) else 0
        assert len(items) == (of_group if core.in_group else 5)


def test_layouts_are_those_of_the_manual() -> None:
    """PTX ISA, m16n8k16 with .f16: registers of work-item 13, groupID 3, threadID_in_group 1."""
    core = TENSOR_CORES["cuda_m16n8k16_float16"]
    a = [core.place("a", 13, r) for r in range(8)]
    assert [(p["m"], p["k"]) for p in a] == [
        (3, 2), (3, 3), (11, 2), (11, 3), (3, 10), (3, 11), (11, 10), (11, 11),
    ]  # fmt: skip
    b = [core.place("b", 13, r) for r in range(4)]
    assert [(p["k"], p["n"]) for p in b] == [(2, 3), (3, 3), (10, 3), (11, 3)]
    c = [core.place("c", 13, r) for r in range(4)]
    assert [(p["m"], p["n"]) for p in c] == [(3, 2), (3, 3), (11, 2), (11, 3)]


@pytest.mark.parametrize(
    "number",
    [i for i, core in enumerate(ROWS) if core.name in CORES.tensor_cores
     and core.dtype in ("float16", "float32") and not core.in_group],
)  # fmt: skip
def test_one_product_of_each_core(number: int) -> None:
    core = ROWS[number]
    n, k, m = 2 * core.size("m"), 2 * core.size("k"), core.size("n")
    ast = product(n, k, m, to_dtype(core.dtype))
    linear, _ = lower(ast, CORES, parse_opts(f"TC(r2,{number})"))
    assert linear_from_text(linear_to_text(linear)) == linear
    assert linear.local_size[0] == 32
    assert [u.arg.core for u in linear.uops if u.op is Ops.MMA] == [core.name]
    check(linear, n, k, m, np.dtype(core.dtype).type)


@pytest.mark.parametrize(
    ("opts", "items"),
    [
        ("UPCAST(r0,2) UPCAST(r1,2)", 32),
        ("UPCAST(r0,2) LOCAL(r1,2) UNROLL(r2,2)", 64),
        ("LOCAL(r0,2) LOCAL(r1,4)", 256),
        ("UPCAST(r1,4) LOCAL(r0,2) STAGE(r2,2,local)", 64),
        ("UPCAST(r0,2) UPCAST(r1,2) LOCAL(r0,2) LOCAL(r1,2) STAGE(r2,1,local)", 128),
    ],
)
def test_other_opts_go_with_it(opts: str, items: int) -> None:
    linear, _ = lower(product(64, 64, 32), CORES, parse_opts(f"TC(r2,{HALF}) {opts}"))
    assert int(np.prod(linear.local_size)) == items
    check(linear, 64, 64, 32)


@pytest.mark.parametrize(("n", "k", "m"), [(13, 7, 5), (17, 33, 19), (31, 16, 8), (2, 3, 2)])
def test_edges_are_masked(n: int, k: int, m: int) -> None:
    edges = [("r0", n, 16), ("r1", m, 8), ("r2", k, 16)]
    masks = [f"SPLIT({r},{of},mask)" for r, size, of in edges if size % of]
    linear, _ = lower(product(n, k, m), CORES, parse_opts(" ".join([*masks, f"TC(r2,{HALF})"])))
    assert any(u.op is Ops.MMA for u in linear.uops)
    check(linear, n, k, m)


def test_a_strip_may_be_all_of_the_sum() -> None:
    opts = f"TC(r2,{HALF}) UPCAST(r0,2) LOCAL(r1,2) STAGE(r2,2,local)"
    linear, _ = lower(product(32, 32, 16), CORES, parse_opts(opts))
    assert any(u.op is Ops.MMA for u in linear.uops)
    check(linear, 32, 32, 16)


def test_what_cannot_be_is_refused() -> None:
    for text, said in (
        ("TC(r2,99)", "no TC on this device but 0 cuda_m16n8k8_float32"),
        ("TC(r2,5)", "cuda_m16n8k32_fp8e4m3 multiplies two fp8e4m3 operands"),
        (f"UPCAST(r0,32) TC(r2,{HALF})", "multiples of 16 x 8 x 16 are wanted, not . of 2"),
    ):
        with pytest.raises(KernelOptError, match=said):
            schedule_kernel(product(64, 64, 32), CORES, parse_opts(text))
    with pytest.raises(KernelOptError, match="no TC on this device but none"):
        schedule_kernel(product(64, 64, 32), GROUPS, parse_opts("TC(r2,0)"))


def test_cards_have_what_their_architecture_has() -> None:
    assert cuda_tensor_cores(75) == {"cuda_m16n8k8_float16"}
    assert "cuda_m16n8k16_bfloat16" in cuda_tensor_cores(80)
    assert "cuda_m16n8k32_fp8e4m3" in cuda_tensor_cores(89) - cuda_tensor_cores(86)
