"""Where the compiler fails inside: right results in a plainer way, one warning, a text to replay.

Faults are put into passes of each stage; STRICT=0 lets the engine go on.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aster_ml import Context, Tensor, TinyJit, cli
from aster_ml.codegen.opts import Opt, OptOps
from aster_ml.device import Device
from aster_ml.engine import compile as compiling
from aster_ml.engine import fallback
from aster_ml.engine.caches import CACHES
from aster_ml.engine.fallback import FallbackWarning, may_fall_back, read_failure
from aster_ml.engine.memory import check_plan, plan_apart, plan_memory
from aster_ml.engine.realize import schedule_uops
from aster_ml.engine.reproduce import reproduce
from aster_ml.errors import (
    CompileError,
    FormatError,
    InternalError,
    KernelOptError,
    OutOfMemoryError,
    ShapeError,
)
from aster_ml.runtime.cpu import llvm_jit
from aster_ml.schedule.kernels import tile_parts
from aster_ml.target.costs import ASSUMED
from tests.core.kernel_checks import kernel_of, memory
from tests.core.pass_helpers import put_in_place

FAULTS = (
    InternalError("broken"),
    KernelOptError("an Opt that cannot be"),
    RecursionError("maximum depth"),
    StopIteration(),
    IndexError("out of range"),
    AssertionError("not so"),
    ZeroDivisionError("division by zero"),
    CompileError("refused"),
)


@pytest.fixture(autouse=True)
def nothing_known(tmp_path: Path) -> Iterator[None]:
    """No schedule and no kernel is known from before, or to others afterwards."""

    def forget() -> None:
        CACHES.forget_schedules()
        CACHES.kernels.clear()
        fallback.REPORTED.clear()

    forget()
    with Context(STRICT=0, CACHE=0, CACHEDIR=str(tmp_path)):
        yield
    forget()


def broken(monkeypatch: pytest.MonkeyPatch, place: str, error: BaseException) -> list[int]:
    """A function of a module raises; the list grows with each call."""
    calls: list[int] = []

    def fails(*args: Any, **kwargs: Any) -> Any:
        calls.append(len(calls))
        raise error

    put_in_place(monkeypatch, place, fails)
    return calls


def broken_method(
    monkeypatch: pytest.MonkeyPatch, owner: str, name: str, error: Exception
) -> list[int]:
    """A function of a module, or a method of a class, raises; the list grows with each call."""
    calls: list[int] = []

    def fails(*args: Any, **kwargs: Any) -> Any:
        calls.append(len(calls))
        raise error

    monkeypatch.setattr(f"{owner}.{name}", fails)
    return calls


def attention() -> tuple[Tensor, Any]:
    """A program of several kernels, and what it should give."""
    q, k = memory(24, 40), memory(40, 24)
    scores = (q.numpy() @ k.numpy()).astype(np.float64)
    terms = np.exp(scores - scores.max(1, keepdims=True))
    return (q @ k).softmax(1) @ q + 1, terms / terms.sum(1, keepdims=True) @ q.numpy() + 1


def told_once(caught: list[warnings.WarningMessage], stages: set[str]) -> list[Path]:
    """The texts of the failures that were warned of, each of one of these stages, and once."""
    assert caught
    assert all(issubclass(w.category, FallbackWarning) for w in caught)
    assert all(w.filename == __file__ for w in caught)
    found = [re.search(r"report (\S+\.txt)", str(w.message)) for w in caught]
    paths = [Path(match[1]) for match in found if match is not None]
    assert len(set(paths)) == len(caught)
    assert {path.name.partition("-")[0] for path in paths} == stages
    return paths


def run(make: Callable[[], tuple[Tensor, Any]]) -> list[warnings.WarningMessage]:
    """Runs a program, twice, and returns the warnings; its values have to be right."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            t, wanted = make()
            np.testing.assert_allclose(t.numpy(), wanted, rtol=1e-4, atol=1e-5)
    return caught


KERNEL_STAGE = (
    "codegen.policy.cpu.policy.choose_opts",
    "codegen.passes.merge_axes",
    "codegen.passes.mark_differences",
    "codegen.policy.cpu.policy.choose_row",
    "codegen.passes.limit_reductions",
    "codegen.passes.fold_together",
    "codegen.passes.prepare_divisors",
)
PLAN_STAGE = (
    "schedule.plan.fold_numbers",
    "schedule.plan.gather_before_storing",
    "schedule.plan.crop_before_reducing",
    "schedule.plan.split_products",
    "schedule.plan.merge_drafts",
    "schedule.plan.join_runs",
)


@pytest.mark.parametrize("place", [*KERNEL_STAGE, *PLAN_STAGE])
def test_a_fault_of_each_pass_costs_no_result(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = broken(monkeypatch, place, IndexError("a fault put in"))
    caught = run(attention)
    assert calls
    stage = "plan" if place in PLAN_STAGE else "kernel"
    for path in told_once(caught, {stage}):
        text = path.read_text()
        assert read_failure(text).stage == stage
        assert "IndexError: a fault put in" in text
        with pytest.raises(IndexError, match="a fault put in"):
            reproduce(path)
        monkeypatch.undo()
        assert "does not fail any more" in reproduce(path)
        broken(monkeypatch, place, IndexError("a fault put in"))
    # What was made in a plainer way is known: nothing is tried again.
    before = len(calls)
    assert run(attention) == []
    assert len(calls) == before


@pytest.mark.parametrize("fault", FAULTS, ids=lambda e: type(e).__name__)
@pytest.mark.parametrize("place", [KERNEL_STAGE[0], "schedule.plan.merge_drafts"])
def test_every_error_of_asters_own_is_met(
    place: str, fault: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = broken(monkeypatch, place, fault)
    told_once(run(attention), {"plan" if "plan" in place else "kernel"})
    assert calls


@pytest.mark.parametrize("place", [KERNEL_STAGE[0], "schedule.plan.join_runs"])
def test_strict_raises_the_error_as_it_is(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fault = IndexError("a fault put in")
    broken(monkeypatch, place, fault)
    with Context(STRICT=1), pytest.raises(IndexError) as caught:
        attention()[0].numpy()
    assert caught.value is fault


def test_users_errors_and_the_machines_are_no_faults() -> None:
    own = [may_fall_back(e) for e in FAULTS if isinstance(e, Exception)]
    assert all(own)
    for error in (ShapeError("s"), OutOfMemoryError("m"), MemoryError(), OSError(28, "full")):
        assert not may_fall_back(error)
    with Context(STRICT=1):
        assert not may_fall_back(InternalError("broken"))


def test_opts_of_a_user_that_cannot_be_are_the_users() -> None:
    with pytest.raises(KernelOptError, match="the kernel has"):
        compiling.compile_kernel(
            kernel_of(memory(8, 8) + 1), Device["CPU"], (Opt(OptOps.UPCAST, 9, 4),)
        )


def test_what_no_way_can_do_raises_the_first_error(monkeypatch: pytest.MonkeyPatch) -> None:
    fault = InternalError("at the end of every way")
    broken(monkeypatch, "codegen.passes.linearize", fault)
    with pytest.raises(InternalError) as caught:
        attention()[0].numpy()
    assert caught.value is fault


def refusing(monkeypatch: pytest.MonkeyPatch, refuses: Callable[[str], bool]) -> list[str]:
    """LLVM refuses some sources; the list has them."""
    compile_ir, refused = llvm_jit.compile_ir, []

    def compiled(source: str) -> bytes:
        if refuses(source):
            refused.append(source)
            raise CompileError("LLVM has no words for this")
        return compile_ir(source)

    monkeypatch.setattr(llvm_jit, "compile_ir", compiled)
    return refused


@pytest.mark.parametrize("threads", [1, 3])
def test_what_the_compiler_of_a_backend_refuses_is_written_plainly(
    threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # SIMD values are what a default schedule has, and no plain loop.
    refused = refusing(
        monkeypatch, lambda source: re.search(r"load <\d+ x float>", source) is not None
    )
    with Context(THREADS=threads, CLANG=0):
        caught = run(attention)
    assert refused
    for path in told_once(caught, {"compile"}):
        with Context(THREADS=threads), pytest.raises(CompileError, match="no words"):
            reproduce(path)


@pytest.mark.parametrize("threads", [1, 3])
def test_kernels_that_cannot_be_compiled_together_are_compiled_alone(
    threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = refusing(monkeypatch, lambda source: source.count("define ") > 1)

    def many() -> tuple[Tensor, Any]:
        x = memory(40, 40)
        parts = [(x * i).sum(i % 2) + i for i in range(1, 9)]
        a = x.numpy()
        total, wanted = parts[0].contiguous(), (a * 1).sum(1) + 1
        for i, part in enumerate(parts[1:], 2):
            total, wanted = total + part.contiguous(), wanted + (a * i).sum(i % 2) + i
        return total, wanted

    with Context(THREADS=threads, CLANG=0, FUSE=0):
        caught = run(many)
    if refused:
        told_once(caught, {"compile"})
    else:
        assert caught == []


def test_a_run_that_cannot_be_rendered_is_planned_as_kernels(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tile_parts, "ASSUMED", replace(ASSUMED, part_nbytes=1 << 9))
    monkeypatch.setattr(tile_parts, "MIN_ROWS", 4)
    calls = broken(monkeypatch, "renderer.runs.render_run", InternalError("no run"))

    def through_a_run() -> tuple[Tensor, Any]:
        q, k, v = memory(2, 2, 96, 16), memory(2, 2, 96, 16), memory(2, 2, 96, 16)
        a = q.numpy().astype(np.float64)
        scores = a @ a.swapaxes(-1, -2) / 4
        terms = np.exp(scores - scores.max(-1, keepdims=True))
        return q.scaled_dot_product_attention(k, v), terms / terms.sum(-1, keepdims=True) @ a

    with Context(DEPTH_FIRST=2):
        caught = run(through_a_run)
    assert calls
    for path in told_once(caught, {"run"}):
        with pytest.raises(InternalError, match="no run"):
            reproduce(path)
        monkeypatch.undo()
        assert "is compiled" in reproduce(path)


@pytest.mark.parametrize("place", [KERNEL_STAGE[0], "schedule.plan.merge_drafts"])
def test_a_jitted_function_goes_on_too(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = broken(monkeypatch, place, StopIteration())
    w = memory(20, 20)

    @TinyJit
    def step(x: Tensor) -> Tensor:
        return (x @ w).softmax(1).realize()

    rng = np.random.default_rng(3)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        counts = []
        for _ in range(5):
            x = rng.standard_normal((20, 20)).astype(np.float32)
            terms = np.exp(x @ w.numpy())
            wanted = terms / terms.sum(1, keepdims=True)
            np.testing.assert_allclose(step(Tensor(x)).numpy(), wanted, rtol=1e-3, atol=1e-5)
            counts.append(len(calls))
    assert calls
    assert counts[2:] == [counts[2]] * 3
    told_once(caught, {"plan" if "plan" in place else "kernel"})


def test_a_search_that_fails_leaves_the_default_schedule(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls = broken(monkeypatch, "engine.search.beam.starts", RecursionError("too deep"))
    with Context(BEAM=1, BEAM_SECONDS=1):
        (path,) = told_once(
            run(lambda: (memory(64, 48).exp(), np.exp(memory(64, 48).numpy()))), {"search"}
        )
    assert calls
    with Context(BEAM=1), pytest.raises(RecursionError, match="too deep"):
        reproduce(path)


def test_a_text_has_what_it_takes_and_few_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fallback, "MOST_TEXTS", 3)
    ast, target = kernel_of(memory(5, 7).sum(1)), Device["CPU"].target
    with Context(FUSE=0):
        text = fallback.failure_text("kernel", ast, target, IndexError("x"))
    failure = read_failure(text)
    assert failure.root is ast
    assert failure.target == target
    assert failure.settings["FUSE"] == 0
    paths = [fallback.write(f"kernel-{i}.txt", text) for i in range(6)]
    kept = sorted(path.name for path in (tmp_path / "failures").iterdir())
    assert len(kept) == 3
    assert paths[-1] is not None
    assert paths[-1].name in kept
    with pytest.raises(FormatError, match="no text of a failure"):
        read_failure("%0 = CONST index 3")


def test_a_folder_that_cannot_be_written_costs_the_text_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "file"
    file.write_text("no folder")
    monkeypatch.setattr(fallback.tempfile, "gettempdir", lambda: str(file))
    broken(monkeypatch, KERNEL_STAGE[0], IndexError("a fault put in"))
    with Context(CACHEDIR=str(file)), pytest.warns(FallbackWarning, match="Please report this"):
        np.testing.assert_array_equal((memory(3, 4) * 2).numpy(), memory(3, 4).numpy() * 2)


def test_without_a_folder_of_temporary_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_there() -> str:
        raise FileNotFoundError("No usable temporary directory found")

    (tmp_path / "file").write_text("no folder")
    monkeypatch.setattr(fallback.tempfile, "gettempdir", none_there)
    with Context(CACHEDIR=str(tmp_path / "file")):
        assert fallback.write("kernel-0.txt", fallback.HEAD) is None


def test_the_command_does_a_failure_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    broken(monkeypatch, KERNEL_STAGE[0], IndexError("a fault put in"))
    (path,) = told_once(run(lambda: (memory(9, 9) + 1, memory(9, 9).numpy() + 1)), {"kernel"})
    assert cli.main(["reproduce", str(path)]) == 1
    assert "IndexError: a fault put in" in capsys.readouterr().err
    monkeypatch.undo()
    assert cli.main(["reproduce", str(path)]) == 0
    assert "does not fail any more" in capsys.readouterr().out


# recordings


def step_with_state() -> tuple[Callable[[Tensor], Tensor], Tensor]:
    """A function of two kernels that also counts up what it has seen."""
    total = Tensor([0.0, 0.0, 0.0]).contiguous().realize()

    def step(x: Tensor) -> Tensor:
        total.assign(total + x)
        return (x.sum() * total).realize()

    return step, total


@pytest.mark.parametrize(
    ("place", "stage"),
    [
        ("aster_ml.runtime.cpu.device.CpuBackend.make_graph", "graph"),
        ("aster_ml.engine.launch.plan_memory", "memory"),
        ("aster_ml.jit.replay.Recorder.note_step", "recording"),
        ("aster_ml.jit.recording.Recording.take_result", "recording"),
        ("aster_ml.jit.replay.Replay.arrange", "recording"),
        ("aster_ml.jit.replay.Replay.set_input", "recording"),
        ("aster_ml.jit.results.ResultPlace.take", "recording"),
    ],
)
@pytest.mark.parametrize("error", [InternalError("broken"), IndexError("out of range")])
def test_a_recording_goes_on_without_what_fails(
    place: str, stage: str, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, _, name = place.rpartition(".")
    calls = broken_method(monkeypatch, module, name, error)
    step, total = step_with_state()
    jitted, seen = TinyJit(step), np.zeros(3, np.float32)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for i in range(6):
            x = np.arange(3, dtype=np.float32) + i
            seen += x
            got = jitted(Tensor(x).realize())
            np.testing.assert_array_equal(got.numpy(), x.sum() * seen)
            np.testing.assert_array_equal(total.numpy(), seen)
    assert calls
    told = [str(w.message) for w in said if issubclass(w.category, FallbackWarning)]
    assert told
    assert all(f"inside ({stage}: {type(error).__name__}" in text for text in told)
    assert len(told) == len(set(told))


@pytest.mark.parametrize(
    "place",
    ["aster_ml.runtime.cpu.device.CpuBackend.make_graph", "aster_ml.engine.launch.plan_memory"],
)
def test_strict_raises_what_fails_in_a_recording(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, _, name = place.rpartition(".")
    broken_method(monkeypatch, module, name, InternalError("broken"))
    jitted = TinyJit(step_with_state()[0])
    with Context(STRICT=1), pytest.raises(InternalError, match="broken"):
        for i in range(4):
            jitted(memory(3) + i)


def test_temporaries_apart_do_not_overlap(monkeypatch: pytest.MonkeyPatch) -> None:
    x = memory(24, 40)
    product = (x.T.contiguous() @ x).exp().sum(0).contiguous()
    schedule = schedule_uops([product.uop])[0]
    plan = plan_apart(schedule)
    assert set(plan.place) == set(plan_memory(schedule).place)
    check_plan(schedule, plan)
