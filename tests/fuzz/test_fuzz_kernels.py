"""Every kernel has a default schedule and a program, for every Target, and computes what it should.

Kernels are those of `random_kernels`. They are compiled to text for processors that are not here;
here they run with settings that choose other schedules, on caches as they are and on tiny ones, so
that what is chosen for large kernels is chosen for small ones, against plain loops and the
interpreter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from aster_ml import Context, Tensor
from aster_ml.codegen.passes import lower
from aster_ml.engine.caches import CACHES
from aster_ml.engine.compile import render
from aster_ml.engine.realize import schedule_uops
from aster_ml.runtime.cpu import device as cpu
from aster_ml.runtime.cpu import llvm_jit
from aster_ml.target import Target
from aster_ml.uop.graph import toposort
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import RunArg
from aster_ml.uop.spec.verify import verify
from tests.fuzz.budget import check_all, draws
from tests.fuzz.random_kernels import SMALL, TARGETS, Drawing, Program

# Terms of the reference that rounding in another order may be off by.
RTOL, ATOL = {"float16": 2e-2, "bfloat16": 0.1}, {"float16": 2e-2, "bfloat16": 0.3}
# Programs with more elements are not given to the interpreter.
MOST_INTERPRETED = 400
# Dtypes that devices may lack, and nothing stands in for: kernels with them are refused.
WIDE = frozenset({"float64", "int64", "uint64"})


def kernels(t: Tensor) -> list[UOp]:
    """The kernels of a tensor, those of runs too."""
    steps = schedule_uops([t.contiguous().uop])[0].steps
    asts = [step.ast for step in steps if step.ast is not None]
    return [k for ast in asts for k in (ast.src if isinstance(ast.arg, RunArg) else (ast,))]


def compiles(ast: UOp, target: Target) -> str | None:
    """What is wrong with the program of a kernel for a target; None where nothing is.

    The Opts of the default schedule give the same program again.
    """
    with Context(SPEC=2):
        linear, opts = lower(ast, target)
    verify(linear, "linear")
    source = render(linear, target)
    if lower(ast, target, opts)[0] != linear:
        return f"another program by its own Opts {opts}"
    if target.language == "llvm":
        llvm_jit.binding().parse_assembly(source).verify()
    return None


def faults_of(program: Program) -> str | None:
    """What is wrong for any target; None where nothing is."""
    for ast in kernels(program.on_nothing()):
        for name, target in TARGETS.items():
            if any([u.dtype.name in WIDE - target.native_dtypes for u in toposort(ast)]):
                continue
            try:
                wrong = compiles(ast, target)
            except Exception as error:
                wrong = f"{type(error).__name__}: {error}"
            if wrong is not None:
                return f"{name}: {wrong}: {program.text}"
    return None


def test_kernels_of_any_size_compile_for_every_target(
    record_property: Callable[[str, str], None],
) -> None:
    def check(seed: int) -> str | None:
        return faults_of(Drawing(seed).program())

    check_all(
        f"kernels compiled for {len(TARGETS)} Targets", draws(6, 3000), check, record_property
    )


def test_kernels_beyond_the_caches_compile_for_every_target(
    record_property: Callable[[str, str], None],
) -> None:
    def check(seed: int) -> str | None:
        return faults_of(Drawing(seed, large=True).program())

    check_all(
        f"large kernels compiled for {len(TARGETS)} Targets", draws(4, 2000), check, record_property
    )


@contextmanager
def tiny_caches() -> Iterator[None]:
    """The CPU as if its caches were tiny; schedules are not kept from before, nor for later."""

    def caches() -> tuple[int, int, int]:
        return SMALL

    before = cpu.cache_bytes
    cpu.cache_bytes = caches  # type: ignore[assignment]
    cpu.cpu_target.cache_clear()
    CACHES.forget_schedules()
    try:
        yield
    finally:
        cpu.cache_bytes = before
        cpu.cpu_target.cache_clear()
        CACHES.forget_schedules()


SETTINGS: tuple[dict[str, Any], ...] = (
    {},
    {"ISA": "avx2"},
    {"ISA": "avx2", "THREADS": 1},
    {"THREADS": 3},
    {"SPEC": 2},
    {"DETERMINISTIC": 1},
)


def differences(seed: int) -> str | None:
    """What a program computes otherwise than in plain loops, or than the interpreter does."""
    program = Drawing(seed).program()
    with Context(NOOPT=1):
        wanted: Any = program.on_memory(seed).numpy()
    settings = SETTINGS[seed % len(SETTINGS)]
    found: dict[str, Any] = {}
    with Context(**settings):
        found[str(settings)] = program.on_memory(seed).numpy()
        with tiny_caches():
            found[f"tiny caches {settings}"] = program.on_memory(seed).numpy()
    if sum([int(np.prod(a.shape)) for a in program.arguments]) <= MOST_INTERPRETED:
        found["PYTHON"] = program.on_memory(seed, "PYTHON").numpy()
    for name, values in found.items():
        wrong = difference(values, wanted, program)
        if wrong is not None:
            return f"{name}: {wrong}: {program.text}"
    return None


def difference(values: Any, wanted: Any, program: Program) -> str | None:
    """How two results differ by more than rounding; None where they do not."""
    if values.shape != wanted.shape or values.dtype != wanted.dtype:
        return f"{values.shape} {values.dtype} and not {wanted.shape} {wanted.dtype}"
    if values.dtype.kind not in "fV" and "float" not in str(values.dtype):
        return None if np.array_equal(values, wanted) else "other numbers"
    names = [a.dtype for a in program.arguments]
    rtol = max([RTOL.get(n, 2e-4) for n in names])
    atol = max([ATOL.get(n, 2e-5) for n in names])
    a, b = values.astype(np.float64), wanted.astype(np.float64)
    scale = np.abs(b[np.isfinite(b)]).max(initial=1.0)
    if np.allclose(a, b, rtol=rtol, atol=atol * scale, equal_nan=True):
        return None
    off = np.nanmax(np.abs(a - b), initial=0.0)
    return f"off by {off:.3g} of numbers up to {scale:.3g}"


def test_kernels_compute_what_plain_loops_do(
    record_property: Callable[[str, str], None],
) -> None:
    check_all("kernels run in three ways", draws(16, 3000), differences, record_property)
