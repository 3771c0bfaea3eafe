"""Random products, most of them on tensor cores: tiles, stages and copies ahead, against NumPy.

A seed gives sizes (1, primes, powers of two and 0), the dtype of operands, which of them are
turned around, and either the default schedule or Opts of a random tile; those of float32 half the
time without tensor cores. The CUDA C++ runs on the
CPU (`tests/shim`), where copies come as late as they may and threads run in changing order. Numbers
are small multiples of 1/4, so that sums are exact in any order.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest

from aster_ml import Context, Tensor, dtypes
from aster_ml.codegen.opts import Opt, OptOps, parse_opts
from aster_ml.codegen.passes import lower
from aster_ml.dtype import to_dtype, to_numpy_dtype
from aster_ml.errors import KernelOptError
from aster_ml.renderer.cuda.renderer import CudaRenderer
from aster_ml.target import Target
from aster_ml.target.cuda import cuda_target
from aster_ml.target.tensor_cores import ROWS
from aster_ml.uop.linear import Linear
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import Ops
from aster_ml.uop.spec.linear import verify_linear
from tests.core.kernel_checks import kernel_of
from tests.fuzz.budget import check_all, draws
from tests.shim import on_cpu

SIZES = (0, 1, 2, 3, 7, 8, 13, 16, 17, 31, 32, 40, 48, 64, 65, 96, 100, 127, 128, 136, 192, 257)
CORES = [i for i, row in enumerate(ROWS) if row.name.startswith("cuda_m")]
CARDS = ("sm_75", "sm_80", "sm_89", "sm_90a")


def tile(rng: random.Random, number: int, sizes: dict[str, int]) -> str:
    """Opts of a random tile."""
    core = ROWS[number]
    lanes = {axis: rng.choice((1, 1, 2, 4)) for axis in "mn"}
    items = {axis: rng.choice((1, 1, 2, 4)) for axis in "mn"}
    strip = rng.choice((1, 2, 2, 4))
    whole = {axis: core.size(axis) * lanes[axis] * items[axis] for axis in "mn"}
    whole["k"] = core.size("k") * strip
    axes = {"m": "r0", "n": "r1", "k": "r2"}
    opts = [f"SPLIT({axes[x]},{n},mask)" for x, n in whole.items() if sizes[x] % n]
    opts.append(f"TC(r2,{number})")
    for axis in "mn":
        split = rng.random() < 0.5
        pairs = (2, lanes[axis] // 2) if lanes[axis] % 2 == 0 and split else (lanes[axis],)
        opts += [f"UPCAST({axes[axis]},{n})" for n in pairs if n > 1]
        opts += [f"LOCAL({axes[axis]},{items[axis]})"] if items[axis] > 1 else []
    opts.append(f"STAGE(r2,{strip},local)")
    strips = -(-sizes["k"] // whole["k"])
    if strips > 1:
        opts.append(f"PIPELINE(r2,{rng.randint(2, min(5, strips))},copies)")
    return " ".join(opts)


def plain_tile(rng: random.Random, sizes: dict[str, int]) -> str:
    """Opts of a random tile without tensor cores."""
    opts, axes, strip = [], {"m": "r0", "n": "r1", "k": "r2"}, rng.choice((4, 8, 8, 16))
    for axis in "mn":
        parts = [(rng.choice(("UPCAST", "LOCAL")), rng.choice((2, 2, 4, 8))) for _ in range(4)]
        whole = 1
        for _, n in parts:
            whole *= n
        opts += [f"SPLIT({axes[axis]},{whole},mask)"] if sizes[axis] % whole else []
        opts += [f"{op}({axes[axis]},{n})" for op, n in parts]
    opts += [f"SPLIT(r2,{strip},mask)"] if sizes["k"] % strip else []
    opts.append(f"STAGE(r2,{strip},local)")
    strips = -(-sizes["k"] // strip)
    if strips > 1:
        opts.append(f"PIPELINE(r2,{rng.randint(2, min(5, strips))},copies)")
    return " ".join(opts)


def lowered(
    rng: random.Random, ast: UOp, card: Target, sizes: dict[str, int], dtype: str, plain: bool
) -> Linear:
    """The program, by the default schedule or by a tile that fits."""
    there = [i for i in CORES if ROWS[i].dtype == dtype and ROWS[i].name in card.tensor_cores]
    if rng.random() < 0.7 and (there or plain) and min(sizes.values()) > 1:
        for _ in range(8):
            text = plain_tile(rng, sizes) if plain else tile(rng, rng.choice(there), sizes)
            opts: tuple[Opt, ...] = parse_opts(text)
            out = Opt(OptOps.STAGE, arg=rng.randint(0, 1), how="out")
            leaves = not plain and rng.random() < 0.5
            try:
                return lower(ast, card, (*opts, out) if leaves else opts)[0]
            except KernelOptError:
                # More memory or threads than a block has, two stages where there are registers, or
                # results of no whole pieces.
                continue
    return lower(ast, card)[0]


def product(seed: int) -> str | None:
    """Draws a product and runs it; what is wrong with it."""
    rng = random.Random(seed)
    sizes = {axis: rng.choice(SIZES) for axis in "mnk"}
    card = cuda_target(rng.choice(CARDS))
    dtype = rng.choice(("float16", "float16", "bfloat16", "float32", "fp8e4m3", "fp8e5m2"))
    if card.arch == "sm_75" and dtype == "bfloat16":
        dtype = "float16"
    turned = [rng.random() < 0.5 for _ in range(2)]
    shapes = [(sizes["m"], sizes["k"]), (sizes["k"], sizes["n"])]
    in_memory = [s[::-1] if t else s for s, t in zip(shapes, turned, strict=True)]
    x, y = (Tensor.empty(*s, dtype=dtype) for s in in_memory)
    left, right = x.T if turned[0] else x, y.T if turned[1] else y
    given = np.random.default_rng(seed)
    kind = to_numpy_dtype(to_dtype(dtype))
    arrays = [(given.integers(-8, 9, s) / 4).astype(np.float32).astype(kind) for s in in_memory]
    result, across = rng.choice(("float32", "float16", "bfloat16")), rng.random() < 0.3
    result = "float16" if card.arch == "sm_75" and result == "bfloat16" else result
    stored = to_numpy_dtype(to_dtype(result))
    out = np.full(max(sizes["m"] * sizes["n"], 1), np.nan, stored)
    if 0 in sizes.values():
        # No kernel, or one that fills.
        a, b = (Tensor.zeros(*s, dtype=dtype) for s in shapes)
        found = a.matmul(b, dtype=dtypes.float32).numpy()
        return None if not found.any() and found.shape == (sizes["m"], sizes["n"]) else "not zero"
    plain = dtype == "float32" and rng.random() < 0.5
    with Context(ALLOW_TF32=int(not plain)):
        try:
            whole = left.matmul(right, dtype=dtypes.float32).cast(result)
            ast = kernel_of(whole.T.contiguous() if across else whole)
        except ValueError:
            # A long sum of few results is two kernels, neither of which is a product.
            return None
        linear = lowered(rng, ast, card, sizes, dtype, plain)
    verify_linear(linear)
    source = CudaRenderer(card).render(linear)
    flat = [np.ascontiguousarray(a).reshape(-1) for a in arrays]
    buffers = [a.view(np.uint8) if a.dtype.itemsize == 1 else a for a in flat]
    on_cpu.run(source, linear, [out, *buffers])
    p, q = (a.astype(np.float64) for a in arrays)
    wanted = (p.T if turned[0] else p) @ (q.T if turned[1] else q)
    wanted = (wanted.T if across else wanted).astype(np.float32).astype(stored)
    STORED.append(len([u for u in linear.uops if u.op is Ops.DEFINE_LOCAL]) > 2)
    if np.array_equal(out.reshape(wanted.shape), wanted):
        return None
    return f"{linear.name} on {card.arch}: {dtype} {sizes} turned {turned}, {result} {across}"


# Whether results went through local memory, beside both operands.
STORED: list[bool] = []


@pytest.mark.cc
@pytest.mark.skipif(on_cpu.find_compiler() is None, reason="no C++ compiler on PATH: g++")
def test_products(record_property: Callable[[str, str], None]) -> None:
    seeds = draws(6, 400)
    STORED.clear()
    check_all("products on tensor cores", seeds, product, record_property)
    assert any(STORED) or len(seeds) < 50
