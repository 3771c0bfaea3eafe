"""Reductions of the work-items of a block: in warps by shuffles, across them by local memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from aster_ml import Tensor
from aster_ml.codegen.opts import parse_opts
from aster_ml.codegen.passes import lower
from aster_ml.runtime.interpreter.run import Interpreter
from aster_ml.target.cuda import cuda_target
from aster_ml.uop.linear import Linear
from aster_ml.uop.ops import Ops
from aster_ml.uop.print.text import linear_from_text, linear_to_text
from tests.core.kernel_checks import kernel_of, memory
from tests.fuzz.random_kernels import GROUPS

WARPS = replace(GROUPS, warp=32, features=frozenset({"shuffle"}))


def run(t: Tensor, x: np.ndarray, wanted: np.ndarray, opts: str | None = None) -> Linear:
    """The program for a device with warps of 32, which gives what is wanted."""
    ast = kernel_of(t)
    linear, _ = lower(ast, WARPS, None if opts is None else parse_opts(opts))
    assert linear_from_text(linear_to_text(linear)) == linear
    out = np.full(wanted.size, np.nan, np.float32)
    Interpreter(linear).run([out, x.reshape(-1).copy()], ())
    np.testing.assert_allclose(out.reshape(wanted.shape), wanted, rtol=1e-4, atol=1e-4)
    return linear


def counts(linear: Linear) -> Counter[Ops]:
    """How many shuffles and barriers a program has, and how much local memory."""
    found: Counter[Ops] = Counter()
    for u in linear.uops:
        if u.op in (Ops.SHUFFLE, Ops.BARRIER):
            found[u.op] += 1
        elif u.op is Ops.DEFINE_LOCAL:
            found[u.op] += u.arg.size
    return found


@pytest.mark.parametrize(
    ("opts", "shuffles", "barriers", "room"),
    [
        ("GROUP(r1,32)", 5, 0, 0),
        ("GROUP(r1,64)", 5, 1, 2),
        ("GROUP(r1,256)", 5, 1, 8),
        ("GROUP(r1,8) LOCAL(r0,8)", 3, 0, 0),
        ("GROUP(r1,128) LOCAL(r0,2)", 5, 1, 8),
        ("GROUP(r1,16)", 0, 2, 20),
    ],
)
@pytest.mark.parametrize("kind", ["sum", "max"])
def test_a_warp_needs_no_memory(
    opts: str, shuffles: int, barriers: int, room: int, kind: str
) -> None:
    x = np.random.default_rng(1).standard_normal((8, 512)).astype(np.float32)
    found = counts(run(getattr(memory(8, 512), kind)(1), x, getattr(x, kind)(1), opts))
    assert (found[Ops.SHUFFLE], found[Ops.BARRIER]) == (shuffles, barriers)
    assert found[Ops.DEFINE_LOCAL] == room


def test_work_items_that_are_no_neighbours_exchange_too() -> None:
    """Items lie along columns, and those of a sum are 8 apart."""
    x = np.random.default_rng(2).standard_normal((64, 8)).astype(np.float32)
    linear = run(memory(64, 8).sum(0), x, x.sum(0), "GROUP(r1,16) LOCAL(r0,8)")
    assert sorted(u.arg for u in linear.uops if u.op is Ops.SHUFFLE) == [8, 16]


@pytest.mark.parametrize(
    ("shape", "opts", "shuffles"),
    [
        # Neighbours lie in different warps.
        ((48, 64), "GROUP(r1,4) LOCAL(r0,64)", []),
        ((48, 64), "GROUP(r1,2) LOCAL(r0,32)", []),
        # A team of no power of two, and one of neighbours whose distance is none.
        ((96, 16), "GROUP(r1,6) LOCAL(r0,16)", [16]),
        ((96, 2), "GROUP(r1,96)", [1, 2, 4, 8, 16]),
        ((33, 32), "GROUP(r1,3) LOCAL(r0,32)", []),
        ((48, 64), "GROUP(r1,3) LOCAL(r0,64)", []),
        ((64, 3), "GROUP(r1,32) LOCAL(r0,3)", []),
        ((60, 32), "GROUP(r1,12) LOCAL(r0,8)", [8, 16]),
    ],
)
def test_teams_of_any_size_at_any_distance(
    shape: tuple[int, int], opts: str, shuffles: list[int]
) -> None:
    x = np.random.default_rng(4).standard_normal(shape).astype(np.float32)
    linear = run(memory(*shape).sum(0), x, x.sum(0), opts)
    assert sorted(u.arg for u in linear.uops if u.op is Ops.SHUFFLE) == shuffles


def test_sum_over_three_axes_of_many_elements_for_cards() -> None:
    """What a training step of a network has: work-items along one axis, then along another."""
    ast = kernel_of(memory(32, 128, 28, 28).sum((0, 2, 3)))
    linear, opts = lower(ast, cuda_target("sm_80"))
    assert lower(ast, cuda_target("sm_80"), opts)[0] == linear


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


@pytest.mark.parametrize("shape", [(3, 64), (2, 1000), (5, 131), (64, 67)])
@pytest.mark.parametrize(
    ("work", "wanted"),
    [
        (lambda x: x.softmax(1), softmax),
        (lambda x: x.sum(1), lambda x: x.sum(1)),
        (lambda x: x.sum(0), lambda x: x.sum(0)),
        (lambda x: x.max(1), lambda x: x.max(1)),
        (
            lambda x: x.layernorm(),
            lambda x: (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-5),
        ),
    ],
)
def test_default_schedules_with_warps(
    shape: tuple[int, int],
    work: Callable[[Tensor], Tensor],
    wanted: Callable[[np.ndarray], np.ndarray],
) -> None:
    x = np.random.default_rng(3).standard_normal(shape).astype(np.float32)
    linear = run(work(memory(*shape)), x, wanted(x))
    assert linear.local_size[0] <= WARPS.max_group


@pytest.mark.parametrize("opts", ["GROUP(r2,16) GROUP(r1,16)", "GROUP(r2,64) GROUP(r1,64)", None])
def test_what_a_later_reduction_reads_all_work_items_have(opts: str | None) -> None:
    """The variance of columns: each work-item that adds up squares wants the mean."""
    x = np.random.default_rng(3).standard_normal((64, 8)).astype(np.float32)
    linear = run(memory(64, 8).var(0), x, x.var(0, ddof=1), opts)
    assert counts(linear)[Ops.SHUFFLE] + counts(linear)[Ops.BARRIER] > 0
