"""Products for Hopper, drawn: sizes, dtypes, how operands lie, batches, starts, what follows.

Each runs as CUDA C++ on the CPU and is compared with NumPy. All numbers are small integers, so that
sums are exact whatever their order. `FUZZ=large` draws 300.
"""

from __future__ import annotations

import random
from collections.abc import Callable
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

CARD = cuda_target("sm_90a")
Program = tuple[Linear, tuple[Opt, ...]]
DTYPES = ((dtypes.float16, np.float16), (dtypes.bfloat16, ml_dtypes.bfloat16))
# What follows a product, of tensors and of arrays.
AFTER: tuple[Callable[[Any], Any], ...] = (lambda x: x, lambda x: x * 0.5, lambda x: x + 1)
SIZES = (64, 65, 72, 96, 127, 128, 130, 136, 192, 200, 264)
DEPTHS = (128, 136, 160, 192, 200, 256, 264)


def check(seed: int) -> str | None:
    """One product; what is wrong with it."""
    rng = random.Random(seed)
    n, m, k = rng.choice(SIZES), rng.choice(SIZES), rng.choice(DEPTHS)
    batch = rng.choice(((), (), (2,)))
    dtype, kind = rng.choice(DTYPES)
    turned = [rng.random() < 0.5 for _ in range(2)]
    start = [rng.choice((0, 0, 1, 3)) for _ in range(2)]
    after = rng.choice(AFTER)
    # Results of 16 bits leave by boxes, others where they are asked to; some lie turned around.
    result, stored = rng.choice((*DTYPES, (dtypes.float32, np.float32)))
    across = rng.random() < 0.3
    arrays, operands, views = [], [], []
    for i, (rows, columns) in enumerate(((n, k), (k, m))):
        shape = (*batch, *((columns, rows) if turned[i] else (rows, columns)))
        draw = np.random.default_rng(seed + i)
        memory = draw.integers(-4, 5, int(np.prod(shape)) + start[i]).astype(kind)
        arrays.append(memory[start[i] :])
        tensor, array = Tensor.empty(*shape, dtype=dtype), arrays[i].reshape(shape)
        operands.append(tensor.transpose(-2, -1) if turned[i] else tensor)
        views.append(array.swapaxes(-2, -1) if turned[i] else array)
    whole = after(operands[0].matmul(operands[1], dtype=dtypes.float32)).cast(result)
    ast = kernel_of(whole.transpose(-2, -1).contiguous() if across else whole)
    # Most of them in few blocks, which go from tile to tile, half of these in clusters.
    few = rng.choice((0, 1, 2, 4, 5, 8))
    card = replace(CARD, units=few or CARD.units)
    with Context(BOXES=2 if few else 1):
        linear, opts = lower(ast, card)
        # Axes of results that lie turned around have other names.
        clusters = in_clusters(rng, opts, (n, m), len(batch)) if few and not across else ()
        if clusters:
            linear, opts = lower(ast, card, clusters)
        if any(u.op is Ops.TMA_LOAD for u in linear.uops) and all(o.how != "out" for o in opts):
            linear, opts = leaving(ast, card, (linear, opts), few)
    verify_linear(linear)
    out = np.full((*batch, *((m, n) if across else (n, m))), np.nan, stored)
    on_cpu.run(CudaRenderer(CARD).render(linear), linear, [out.reshape(-1), *arrays])
    wanted = after(views[0].astype(np.float32) @ views[1].astype(np.float32)).astype(stored)
    wanted = wanted.swapaxes(-2, -1) if across else wanted
    CLUSTERS.extend([o.arg for o in opts if o.kind == "BLOCKS cluster"])
    BOXES.append(any(u.op is Ops.TMA_LOAD for u in linear.uops))
    STORED.append(any(u.op is Ops.TMA_STORE for u in linear.uops))
    if np.array_equal(out, wanted):
        return None
    turns = f"turned {turned} and {across}, from {start}"
    return f"{batch} {n} x {k} x {m} of {dtype} as {result}, {turns}: {opts}"


def leaving(ast: UOp, card: Target, found: Program, few: int) -> Program:
    """The same program, whose results leave by boxes where they can."""
    try:
        return lower(ast, card, (*found[1], Opt(OptOps.STAGE, arg=int(not few), how="out")))
    except KernelOptError:
        return found


def in_clusters(
    rng: random.Random, opts: tuple[Opt, ...], sizes: tuple[int, int], first: int
) -> tuple[Opt, ...]:
    """The same with clusters along an axis that has tiles, of which there may be less; or none."""
    cores = [o.arg for o in opts if o.op is OptOps.TC]
    if not cores or not ROWS[cores[0]].reads_shared:
        return ()
    axes = (f"r{first}", f"r{first + 1}")
    sides = [ROWS[cores[0]].size(word) for word in "mn"]
    for opt in opts:
        if opt.op in (OptOps.LOCAL, OptOps.UPCAST):
            sides[axes.index(str(opt.axis))] *= opt.arg
    tiles = [x for x, n, side in zip(axes, sizes, sides, strict=True) if n > side]
    blocks = rng.choice((0, 2, 2, 4))
    if not blocks or not tiles:
        return ()
    kept = tuple([o for o in opts if o.kind not in ("BLOCKS cluster", "BLOCKS loop")])
    found = (*kept, Opt(OptOps.BLOCKS, rng.choice(tiles), blocks, how="cluster"))
    loop = Opt(OptOps.BLOCKS, 0, blocks * rng.choice((1, 2, 3)), how="loop")
    return rng.choice((found, (*found, loop)))


BOXES: list[bool] = []
CLUSTERS: list[int] = []
STORED: list[bool] = []


@pytest.mark.cc
@pytest.mark.skipif(on_cpu.find_compiler() is None, reason="no C++ compiler on PATH: g++")
def test_products_of_boxes(record_property: Callable[[str, str], None]) -> None:
    seeds = draws(3, 300)
    BOXES.clear()
    CLUSTERS.clear()
    STORED.clear()
    check_all("products of boxes", seeds, check, record_property)
    # Others are multiplied by warps: odd sizes are strides of no 16 bytes.
    assert any(BOXES) or len(seeds) < 3
    assert set(CLUSTERS) == {2, 4} or len(seeds) < 30
    assert any(STORED) or len(seeds) < 6
