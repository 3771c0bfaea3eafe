"""Tables of passes: every row is documented, timed, held to its stage, and recorded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from aster_ml import Context, Tensor
from aster_ml.codegen import passes
from aster_ml.codegen.kernel import Kernel
from aster_ml.codegen.passes import lower, schedule_kernel
from aster_ml.engine.caches import CACHES
from aster_ml.errors import InternalError
from aster_ml.schedule import plan
from aster_ml.target import Target
from aster_ml.uop.node import UOp
from aster_ml.uop.passes import PASS_TOTALS, Pass, recorded
from tests.core.kernel_checks import kernel_of, memory
from tests.core.pass_helpers import put_in_place

CPU = Target("CPU", "llvm", vector_bits=256, vector_registers=16)
# Rows of a softmax stay in its first cache.
FIRST_CACHE = replace(CPU, cache_bytes=(32 << 10, 1 << 20, 16 << 20), vector_bits=512, masks=True)
TABLES = (
    plan.BODY_PASSES, plan.DRAFT_PASSES, passes.BEFORE_OPTS, passes.AFTER_OPTS, passes.ON_LINEAR,
)  # fmt: skip
ROWS = [*[step for table in TABLES for step in table], plan.MATERIALIZE, passes.LINEARIZE]


def ast() -> UOp:
    """The kernel of a product."""
    return kernel_of((memory(16, 24) @ memory(24, 40)).relu())


@pytest.mark.parametrize("step", ROWS, ids=lambda step: step.name)
def test_a_row_says_what_it_does_when_and_why(step: Pass) -> None:
    assert step.does
    assert step.why
    if step.applies is not None:
        assert step.applies.__doc__


def test_names_are_unique() -> None:
    names = [step.name for step in ROWS]
    assert len(set(names)) == len(names)


def test_passes_that_run_are_recorded_in_order_with_what_they_made() -> None:
    with recorded() as outer, recorded() as steps:
        linear, _ = lower(ast(), CPU)
    assert outer == steps
    assert steps[-2].made is linear
    order = [step.name for step in (*passes.BEFORE_OPTS, *passes.AFTER_OPTS)]
    found = [step.name for step in steps if step.name in order]
    assert found == sorted(found, key=order.index)
    assert {"merge axes", "limit trip counts", "decompose"} <= set(found)
    assert all(step.time_s >= 0 for step in steps)
    lower(ast(), CPU)
    assert len(outer) == len(steps)


def test_passes_of_a_schedule_are_recorded() -> None:
    CACHES.forget_schedules()
    with recorded() as steps:
        Tensor.ones(3, 5).contiguous().sum(0).realize()
    assert {"fold numbers", "materialize", "kernelize", "horizontal fusion"} <= {
        step.name for step in steps
    }


def test_passes_are_counted_and_timed() -> None:
    lower(ast(), CPU)
    before = PASS_TOTALS["merge axes"].calls
    time_s = PASS_TOTALS["merge axes"].time_s
    lower(ast(), CPU)
    assert PASS_TOTALS["merge axes"].calls == before + 1
    assert PASS_TOTALS["merge axes"].time_s > time_s


def test_a_pass_is_held_to_its_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    def spoil(kernel: Kernel, target: Target) -> None:
        kernel.sink = kernel.sink.src[0]

    kernel = ast()
    put_in_place(monkeypatch, "codegen.passes.prepare_divisors", spoil)
    with Context(SPEC=2), pytest.raises(InternalError, match="after pass 'share divisions': "):
        lower(kernel, CPU)


def test_passes_tell_their_times_when_asked(capsys: pytest.CaptureFixture[str]) -> None:
    with Context(DEBUG=7):
        lower(ast(), CPU)
    assert "pass merge axes" in capsys.readouterr().err


def test_plain_kernels_have_the_passes_that_are_needed_and_no_other() -> None:
    with recorded() as steps:
        lower(ast(), CPU, plain=True)
    needed = {step.name for step in ROWS if step.needed}
    assert {step.name for step in steps} <= needed


@pytest.mark.parametrize(
    "value",
    [
        lambda: memory(8, 256).softmax(),
        lambda: memory(33, 165) @ memory(165, 4),
        lambda: memory(8, 700).log_softmax(),
        lambda: (memory(96, 96) @ memory(96, 96).T).gelu(),
    ],
)
def test_all_opts_are_chosen_before_the_first_pass_that_carries_them_out(
    value: Callable[[], Tensor],
) -> None:
    kernel = kernel_of(value())
    with recorded() as steps:
        chosen = tuple(schedule_kernel(kernel, FIRST_CACHE).applied)
    assert {step.name for step in steps} <= {step.name for step in passes.BEFORE_OPTS}
    linear, opts = lower(kernel, FIRST_CACHE)
    assert opts == chosen
    assert lower(kernel, FIRST_CACHE, chosen) == (linear, chosen)
