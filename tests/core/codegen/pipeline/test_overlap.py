"""Exp of a tile beside the product of the tile before: chosen with the Opts, for narrow heads."""

from __future__ import annotations

import pytest

from aster_ml import Context, Tensor
from aster_ml.codegen.kernel import Kernel
from aster_ml.codegen.opts import parse_opts
from aster_ml.codegen.passes import lower, schedule_kernel
from aster_ml.codegen.plans import CopiesAhead, CopyPipeline, OverlappedExp, ProducerWarp
from aster_ml.target.cuda import cuda_target
from aster_ml.target.tensor_cores import ROWS
from aster_ml.uop.linear import NUMBERS_OF_ITEMS, Linear
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import Ops
from aster_ml.uop.spec.linear import verify_linear
from tests.core.kernel_checks import kernel_of
from tests.shim import devices

CARD = cuda_target("sm_90a")


def attention(width: int) -> UOp:
    """Two heads of 128 queries and 512 keys."""
    shapes, card = ((2, 128, width), (2, 512, width), (2, 512, width)), devices.SHIMS[0]
    q, k, v = [Tensor.empty(*shape, dtype="float16", device=card) for shape in shapes]
    return kernel_of(q.scaled_dot_product_attention(k, v))


def scheduled(ast: UOp, how: str) -> Kernel:
    """The kernel on the tensor core of the default schedule, with so many stages and this way."""
    with Context(BOXES=2):
        chain = next(o for o in schedule_kernel(ast, CARD).applied if o.kind == "TC chain")
        return schedule_kernel(ast, CARD, parse_opts(f"{chain!r} PIPELINE({chain.axis},2,{how})"))


def lowered(kernel: Kernel, ast: UOp) -> Linear:
    """The program of the Opts that a kernel was given."""
    with Context(BOXES=2):
        linear, _ = lower(ast, CARD, tuple(kernel.applied))
    verify_linear(linear)
    return linear


def products_in_loops(linear: Linear, name: str) -> list[tuple[bool, str]]:
    """Asynchronous products in order: whether a loop over strips is around, and which kind."""
    depth, found = 0, []
    for u in linear.uops:
        loop = u.src[0] if u.op is Ops.END else u
        if loop.op is Ops.RANGE and loop.arg.kind not in NUMBERS_OF_ITEMS and loop.src[0].arg != 1:
            depth += 1 if u is loop else -1
        if u.op is Ops.ACCUMULATE and u.src[1].op is Ops.MMA and u.src[1].arg.core.startswith(name):
            found.append((depth > 0, u.src[1].arg.majors))
    return found


@pytest.mark.parametrize(
    ("width", "how", "kind"),
    [
        (64, "producer", OverlappedExp),
        (32, "producer", OverlappedExp),
        (128, "producer", ProducerWarp),
        (64, "copies", CopiesAhead),
    ],
)
def test_opts_say_by_themselves_how_a_loop_runs(
    width: int, how: str, kind: type[CopyPipeline]
) -> None:
    kernel = scheduled(attention(width), how)
    plan = kernel.plan(CopyPipeline)
    assert type(plan) is kind
    assert plan is not None
    assert plan.count == 2


def test_the_second_product_of_a_turn_is_that_of_the_turn_before() -> None:
    ast, of = attention(64), ROWS[25].name.split("_m")[0]
    linear = lowered(scheduled(ast, "producer"), ast)
    # Scores of the first tile; scores and results in turns; results of the last tile.
    wanted = [(False, "kk"), (True, "kk"), (True, "rn"), (False, "rn")]
    assert products_in_loops(linear, of) == wanted
    wide = attention(128)
    plain = lowered(scheduled(wide, "producer"), wide)
    assert products_in_loops(plain, of) == [(True, "kk"), (True, "rn")]
