"""BEAM on devices with work-groups: searches end to end on stand-ins, and devices that fail."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from aster_ml import Context, Device, Tensor
from aster_ml.codegen.opts import Opt, parse_opts
from aster_ml.codegen.passes import schedule_kernel
from aster_ml.engine.search import beam as search
from aster_ml.engine.search import worker as search_worker
from aster_ml.engine.search.beam import Search, Worker, WorkerError
from tests.core.kernel_checks import kernel_of
from tests.shim import cuda_stub, devices, stub_device

pytestmark = [
    pytest.mark.cc,
    pytest.mark.skipif(cuda_stub.missing() is not None, reason=str(cuda_stub.missing())),
]
SHIM, STUB = devices.SHIMS[0], "CUDASTUB"
# One change away from the default schedule of `kernel()`.
OTHER = "UPCAST(r0,2) LOCAL(r0,8) UPCAST(r1,4) LOCAL(r1,8) STAGE(r2,8,local)"


@pytest.fixture(autouse=True)
def stand_in(tmp_path: Path) -> Iterator[Path]:
    """The CUDA runtime on the tests' driver; a disk cache of its own."""
    Device.register(STUB, stub_device)
    with Context(CACHEDIR=str(tmp_path)):
        search.REMEMBERED.clear()
        yield tmp_path


def kernel(n: int = 64):  # type: ignore[no-untyped-def]
    """The kernel of a small product."""
    return kernel_of(Tensor.empty(n, 16) @ Tensor.empty(16, n))


def few(monkeypatch: pytest.MonkeyPatch, *texts: str) -> list[tuple[Opt, ...]]:
    """A search tries these schedules and no others."""
    found = [parse_opts(text) for text in texts]
    monkeypatch.setattr(search, "starts", lambda ast, target: iter(found))
    monkeypatch.setattr(search, "neighbours", lambda *args: iter(()))
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    return found


@pytest.mark.parametrize("device", [SHIM, pytest.param(STUB, marks=pytest.mark.slow)])
def test_a_search_ends_with_a_record_that_is_used(
    device: str, monkeypatch: pytest.MonkeyPatch, stand_in: Path
) -> None:
    few(monkeypatch, OTHER)
    rng = np.random.default_rng(3)
    a = rng.integers(-4, 5, (64, 16)).astype(np.float32)
    with Context(BEAM=1, BEAM_SECONDS=60):
        x, y = Tensor(a, device=device), Tensor(a.T.copy(), device=device)
        np.testing.assert_array_equal((x @ y).numpy(), a @ a.T)
        [path] = (stand_in / "schedules").iterdir()
        text = path.read_text()
        record = search.read_record(text)
        assert record is not None
        assert record.beam == 1
        assert "among 1 that were tried" in text
        assert f"device={Device[device].target.device}" in text
        monkeypatch.setattr(Search, "run", lambda self, width: pytest.fail("searched again"))
        assert search.find_opts(kernel(), device, Device[device].target) == record.opts


def test_times_are_those_of_the_device(tmp_path: Path) -> None:
    """A launch only puts a kernel in a queue."""
    bench = search_worker.Bench(kernel(), STUB)
    compiled = bench.compiled(None)
    assert bench.is_right(bench.results(compiled))
    waits = cuda_stub.load().calls("cuEventElapsedTime")
    assert bench.seconds(compiled, 0.0) > 0
    assert cuda_stub.load().calls("cuEventElapsedTime") >= waits + 2


def test_who_compiles_has_no_buffers() -> None:
    bench = search_worker.Bench(kernel(), SHIM)
    bench.compiled(None)
    assert "buffers" not in vars(bench)


def test_a_candidate_that_spills_is_dropped() -> None:
    server = search_worker.Server()
    opening = {"do": "open", "ast": search.to_text(kernel()), "device": STUB, "runtime": ""}
    assert server.answer(opening) == {}
    assert server.answer({"do": "compile", "opts": OTHER}) == {}
    # As many as the default has are no reason.
    cuda_stub.load().set("local_nbytes", 40)
    assert server.answer({"do": "compile", "opts": "LOCAL(r0,8)"}) == {}
    assert server.bench is not None
    vars(server.bench.compiled(None).program)["spilled"] = 0
    answer = server.answer({"do": "compile", "opts": "LOCAL(r0,16)"})
    assert answer == {"error": "40 bytes of registers spill"}


@pytest.mark.slow
def test_a_device_that_is_lost_once_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sign = tmp_path / "lose"
    monkeypatch.setenv("CUDASTUB_LOSE", str(sign))
    with Worker(kernel(), STUB, tmp_path) as worker:
        assert worker.ask("time", None) > 0
        sign.touch()
        with pytest.raises(WorkerError, match="is lost") as caught:
            worker.ask("time", parse_opts(OTHER))
        assert caught.value.lost
        assert not sign.exists()
        assert worker.process is None
        assert worker.ask("time", parse_opts(OTHER)) > 0


@pytest.mark.slow
def test_a_device_that_is_lost_each_time_ends_the_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few(monkeypatch, OTHER)
    monkeypatch.setenv("CUDASTUB_LOSE", str(tmp_path))
    ast, target = kernel(), Device[STUB].target
    with (
        Context(BEAM=1),
        pytest.warns(UserWarning, match=r"BEAM: CUDASTUB failed 1 times \(.*lost"),
    ):
        assert search.find_opts(ast, STUB, target) is None
    assert not (tmp_path / "schedules").exists()


def test_losses_end_a_search_with_what_was_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ast, target = kernel(), Device[SHIM].target
    tried: list[object] = []

    def ask(self: Worker, what: str, opts: object, *args: object, **words: object) -> float:
        if what == "time" and opts is not None:
            tried.append(opts)
            if len(tried) in (2, 3, 4):
                raise WorkerError("the device is lost", lost=True)
        return 1e-3 if opts is None else 1e-4

    monkeypatch.setattr(Worker, "ask", ask)
    with Worker(ast, SHIM, tmp_path) as worker:
        given = Search(ast, SHIM, target, [worker], seconds=60.0)
        found = given.run(2)
    assert found is not None
    assert found.opts == tried[0] != tuple(schedule_kernel(ast, target).applied)
    assert given.losses == search.MAX_LOSSES
    assert given.tried == 4


def test_a_default_that_fails_at_the_end_gives_no_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ast, target = kernel(), Device[SHIM].target
    calls: list[object] = []

    def ask(self: Worker, what: str, opts: object, *args: object, **words: object) -> float:
        calls.append(opts)
        if opts is None and len(calls) > 1:
            raise WorkerError("no more")
        return 1e-3

    monkeypatch.setattr(Worker, "ask", ask)
    with Worker(ast, SHIM, tmp_path) as worker:
        given = Search(ast, SHIM, target, [worker], seconds=0.0)
        assert given.run(1) is None
    assert given.why == "no more"


def test_devices_on_which_schedules_are_tried() -> None:
    ast = kernel()
    with Context(BEAM=2):
        assert search.can_search(ast, Device[SHIM])
        assert search.can_search(ast, Device[STUB])
    assert search.runtime_of(SHIM) == "tests.shim.cuda_shim"
    assert search.runtime_of("CPU") == ""
