"""Random programs give what NumPy gives, fused or not, on every way through the compiler."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

from aster_ml import Context, Tensor, TinyJit
from aster_ml.engine.caches import CACHES
from aster_ml.engine.memory import check_plan
from tests.core.random_programs import Program, draw_program


def check_program(seed: int, program: Program, got: list[Tensor], want: list[np.ndarray]) -> None:
    Tensor.realize(*got)
    for i, (t, array) in enumerate(zip(got, want, strict=True)):
        assert t.shape == array.shape, f"seed {seed}, result {i}"
        np.testing.assert_allclose(t.numpy(), array, rtol=1e-6, err_msg=f"seed {seed}, result {i}")


def check_seeds(
    seeds: range, device: str | None = None, steps: int = 12, assigns: bool = False
) -> None:
    for seed in seeds:
        program = draw_program(seed, steps, assigns)
        arrays = program.draw_inputs(seed)
        tensors = [Tensor(a.copy(), device=device).realize() for a in arrays]
        got = program.run_tensors(*tensors)
        want = program.run_arrays(*arrays)
        check_program(seed, program, got, want)
        check_program(seed, program, tensors, arrays)


def test_random_graphs() -> None:
    check_seeds(range(150))


def test_random_graphs_with_updates_in_place() -> None:
    check_seeds(range(1000, 1120), assigns=True)


def test_long_random_graphs() -> None:
    check_seeds(range(2000, 2020), steps=60, assigns=True)


@pytest.mark.parametrize(
    "settings",
    [
        {"NOOPT": 1},
        {"FUSE": 0},
        {"SPLIT_REDUCE": 0},
        {"THREADS": 1},
        {"MAX_KERNEL_NODES": 3},
        {"SPEC": 2, "CACHE": 0},
    ],
    ids=str,
)
def test_random_graphs_under_settings(settings: dict[str, int]) -> None:
    with Context(**settings):
        check_seeds(range(3000, 3025), assigns=True)


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler on PATH")
@pytest.mark.cc
def test_random_graphs_as_c() -> None:
    with Context(CLANG=1):
        check_seeds(range(4000, 4010), assigns=True)


def test_random_graphs_on_the_interpreter() -> None:
    check_seeds(range(5000, 5020), device="PYTHON", steps=8, assigns=True)


def test_random_graphs_replayed() -> None:
    for seed in range(6000, 6040):
        program = draw_program(seed, assigns=seed % 2 == 1)
        if not any(i >= len(program.inputs) for i in program.results):
            continue
        jitted = TinyJit(program.run_tensors)
        for call in range(4):
            arrays = program.draw_inputs(seed + call)
            tensors = [Tensor(a.copy()).realize() for a in arrays]
            try:
                got = jitted(*tensors)
            except Exception as error:
                if "ran no kernel" in str(error):
                    break
                raise
            want = program.run_arrays(*arrays)
            check_program(seed, program, got, want)
            check_program(seed, program, tensors, arrays)


def test_memory_of_all_of_them_is_planned_without_overlap() -> None:
    CACHES.forget_schedules()
    check_seeds(range(7000, 7030), steps=40, assigns=True)
    plans = [b for s in CACHES.schedules.entries.values() for b in s.bound.values()]
    with_temporaries = 0
    for bound in plans:
        check_plan(bound.schedule, bound.memory)
        with_temporaries += bool(bound.memory.place)
    assert with_temporaries >= 5
