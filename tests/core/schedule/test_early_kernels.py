"""Kernels that are handed on while the rest of a body is planned."""

from __future__ import annotations

import gc
import threading
import weakref

import numpy as np
import pytest

from aster_ml import Context, GlobalCounters, Tensor, nn
from aster_ml.device import Device
from aster_ml.engine.caches import CACHES
from aster_ml.engine.compile import Compilation, EarlyKernels, key_of
from aster_ml.engine.realize import prepare
from aster_ml.errors import InternalError
from aster_ml.schedule import early_kernels, plan
from aster_ml.schedule.steps import FinalKernel, Schedule
from aster_ml.uop.node import UOp
from tests.core.pass_helpers import put_in_place


def normal(*shape: int, seed: int = 0) -> Tensor:
    """Normal numbers in memory."""
    return Tensor(np.random.RandomState(seed).randn(*shape).astype(np.float32)).realize()


def rows(count: int) -> Tensor:
    """Normed and projected rows, a layer after the other, all alike."""
    x = normal(256, 192)
    weights = [normal(192, 192, seed=i) for i in range(count)]
    for w in weights:
        x = (x - x.mean(1, keepdim=True)).layernorm() @ w * 0.1 + x.gelu()
    return x


def images() -> list[Tensor]:
    """A training step of a small convolutional network: its loss and the new parameters."""
    x, y = normal(16, 3, 32, 32), Tensor(np.arange(16) % 10).realize()
    net = [nn.Conv2d(3, 32, 3), nn.BatchNorm(32), nn.Conv2d(32, 64, 3), nn.Conv2d(64, 64, 5)]
    head = nn.Linear(64, 10)
    Tensor.realize(*nn.state.get_parameters([net, head]))
    optimiser = nn.optim.Adam(nn.state.get_parameters([net, head]))
    with Tensor.train():
        for layer in net:
            x = layer(x).relu()
        loss = head(x.mean((2, 3))).sparse_categorical_crossentropy(y)
        optimiser.zero_grad()
        loss.backward()
        return [loss, *optimiser.schedule_step()]


def planned(tensors: list[Tensor], found: list[UOp] | None = None) -> Schedule:
    """The schedule, planned anew; what is handed on meanwhile goes to `found`."""
    CACHES.forget_schedules()
    take = None if found is None else lambda kernel: found.append(kernel.ast)
    prepared = prepare([t.uop for t in tensors], take)
    assert prepared is not None
    return prepared[2]


def kernels(schedule: Schedule) -> list[UOp]:
    """The graphs of its kernels."""
    return [step.ast for step in schedule.steps if step.ast is not None]


@pytest.mark.parametrize("case", ["rows", "images"])
def test_what_is_handed_on_is_in_the_schedule_and_changes_nothing(case: str) -> None:
    tensors = [rows(12)] if case == "rows" else images()
    found: list[UOp] = []
    schedule = planned(tensors, found)
    assert len(found) == len(set(found)) >= (1 if case == "rows" else 3)
    assert set(found) <= set(kernels(schedule))
    plain = planned(tensors)
    assert kernels(plain) == kernels(schedule)
    assert [s.slots for s in plain.steps] == [s.slots for s in schedule.steps]
    assert plain.slots == schedule.slots


def test_layers_that_are_alike_are_not_looked_at_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[object] = []
    real = early_kernels.Ahead.kernel_of
    monkeypatch.setattr(
        early_kernels.Ahead, "kernel_of", lambda self, c: tried.append(c) or real(self, c)
    )
    found: list[UOp] = []
    planned([rows(30)], found)
    few = len(tried)
    planned([rows(60)], found)
    assert len(tried) - few == few <= len(found) + early_kernels.MOST_IN_VAIN


def test_nothing_of_planning_lives_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python's search for circles rests: what held each other would stay."""
    made: list[weakref.ref[object]] = []
    real = plan.StagePlanner.__init__

    def note(self: plan.StagePlanner, *args: object) -> None:
        made.append(weakref.ref(self))
        real(self, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(plan.StagePlanner, "__init__", note)
    compilations: list[weakref.ref[object]] = []
    take = EarlyKernels.take

    def noted(self: EarlyKernels, kernel: FinalKernel) -> None:
        take(self, kernel)
        if self.compilation is not None:
            compilations.append(weakref.ref(self.compilation))

    monkeypatch.setattr(EarlyKernels, "take", noted)
    value = rows(12)
    with Context(CACHE=0, THREADS=2):
        CACHES.kernels.clear()
        CACHES.forget_schedules()
        gc.collect()
        gc.disable()
        try:
            value.realize()
            assert [r() for r in made] == [None]
            assert compilations
            assert [r() for r in compilations] == [None] * len(compilations)
        finally:
            gc.enable()


def test_small_bodies_and_small_kernels_wait() -> None:
    found: list[UOp] = []
    planned([rows(2)], found)
    x = normal(16, 16)
    for _ in range(60):
        x = (x - x.mean(1, keepdim=True)) @ x
    planned([x], found)
    assert not found


def test_what_effects_come_between_waits() -> None:
    x, found = normal(256, 192), list[UOp]()
    memory = normal(192, 192)
    value = rows(12)
    memory.assign(memory * 2 + value[:192])
    schedule = planned([(x @ memory).relu()], found)
    assert set(found) <= set(kernels(schedule))


@pytest.mark.parametrize("threads", [1, 3])
def test_results_are_those_of_numpy(threads: int) -> None:
    with Context(CACHE=0, THREADS=threads):
        CACHES.kernels.clear()
        CACHES.forget_schedules()
        before = GlobalCounters.compiled_kernels
        value = rows(10)
        wanted = len({*kernels(planned([value]))})
        CACHES.forget_schedules()
        found = value.numpy()
        assert GlobalCounters.compiled_kernels - before >= wanted
    x = np.random.RandomState(0).randn(256, 192).astype(np.float32)
    weights = [np.random.RandomState(i).randn(192, 192).astype(np.float32) for i in range(10)]
    with Context(CACHE=0, DEBUG=0):
        again = Tensor(x).realize()
        for w in weights:
            y = (again - again.mean(1, keepdim=True)).layernorm().realize()
            again = ((y @ Tensor(w)).realize() * 0.1 + again.gelu()).realize()
    np.testing.assert_allclose(found, again.numpy(), rtol=2e-4, atol=2e-4)


def test_each_kernel_is_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[UOp] = []
    real = Compilation.begin

    def note(self: Compilation, key: object, ast: UOp, *rest: object) -> None:
        begun.append(ast)
        real(self, key, ast, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(Compilation, "begin", note)
    with Context(CACHE=0, THREADS=2):
        CACHES.kernels.clear()
        CACHES.forget_schedules()
        value = rows(12)
        asts = set(kernels(planned([value])))
        CACHES.kernels.clear()
        CACHES.forget_schedules()
        begun.clear()
        before = GlobalCounters.compiled_kernels
        value.realize()
    assert len(begun) > len(asts) == len(set(begun))
    assert GlobalCounters.compiled_kernels - before == len(asts)


def test_an_error_of_planning_ends_the_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise InternalError("refused")

    value = rows(12)
    value_again = rows(12)
    with Context(CACHE=0, THREADS=2):
        CACHES.kernels.clear()
        CACHES.forget_schedules()
        before = threading.active_count()
        put_in_place(monkeypatch, "schedule.plan.merge_drafts", refuse)
        with pytest.raises(InternalError, match="refused"):
            value.realize()
        assert threading.active_count() == before
        assert gc.isenabled()
        monkeypatch.undo()
        assert np.isfinite(value_again.numpy()).all()


def test_what_nobody_wants_is_dropped_while_it_waits() -> None:
    asts = list(dict.fromkeys(kernels(planned([rows(1)]))))
    backend = Device["CPU"]
    with Context(CACHE=0):
        compilation = Compilation(0)
        keys = [key_of(ast, backend) for ast in asts]
        for key, ast in zip(keys, asts, strict=True):
            compilation.begin(key, ast, backend, None)
        found = compilation.finish(keys[1:])
        compilation.close()
    assert list(found) == keys[1:]


@pytest.mark.parametrize("setting", [{"THREADS": 1}, {"BEAM": 2}, {"DEBUG": 2}])
def test_where_nothing_is_compiled_early(
    setting: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    ast = kernels(planned([rows(1)]))[0]
    with Context(THREADS=2, CACHE=0):
        CACHES.kernels.clear()
        begun = EarlyKernels()
        with Context(**setting):
            begun.take(FinalKernel(ast, "CPU"))
        assert begun.compilation is None
        begun.take(FinalKernel(ast, "CPU"))
        assert begun.compilation is not None
        begun.close()
        begun.close()
