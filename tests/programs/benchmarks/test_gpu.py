"""The benchmark of graphics processors: its rows compute, and it says so where there is none."""

from __future__ import annotations

import sys
import time

import numpy as np
import pytest

from aster_ml import Device, Tensor, dtypes
from benchmarks import gpu, gpu_networks, pocl
from benchmarks.gpu_rows import ROWS, Row, square
from tests.shim import cuda_stub

STUBBED = ("a * b + a", "product 8192, float16, mma.sync", "attention 128 wide")
needs_stub = pytest.mark.skipif(cuda_stub.missing() is not None, reason=str(cuda_stub.missing()))


def test_without_a_gpu_it_says_so(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Device, "get_available_devices", lambda: ["CPU", "PYTHON"])
    assert gpu.main([]) == 0
    assert capsys.readouterr().out.startswith("no GPU here: ")


def test_the_table_of_small_sizes(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    forward = [row for row in gpu_networks.ROWS if row.network == "GPT2" and not row.training]
    monkeypatch.setattr(gpu, "NETWORKS", forward)
    assert gpu.main(["--device", "CPU", "--small", "--turns", "1", "--here"]) == 0
    head, *lines = capsys.readouterr().out.splitlines()
    assert head.startswith("CPU, ")
    assert len(lines) == 2 + len(ROWS) + 1 + len(forward)
    assert [line.count("|") for line in lines] == [9] * len(lines)
    # Each has a figure: none failed.
    assert all(float(line.split("|")[3]) >= 0 for line in lines[2:])


@pytest.mark.cc
@needs_stub
def test_the_best_device_is_taken_and_measured(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the driver of the tests: events, copies within the device, replays of graphs."""
    monkeypatch.setattr(gpu, "NETWORKS", ())
    monkeypatch.setattr(gpu, "ROWS", [row for row in ROWS if row.name in STUBBED])
    with cuda_stub.in_place() as stub:
        assert gpu.main(["--small", "--turns", "1", "--here"]) == 0
        assert stub.calls("cuGraphLaunch") > 0
    head, *rest = capsys.readouterr().out.splitlines()
    assert head.startswith("CUDA, sm_90a, 4 processors; a copy ")
    assert len(rest) == 2 + len(STUBBED) + 1
    assert all(float(line.split("|")[3]) > 0 for line in rest[2:])


@pytest.mark.cc
@pytest.mark.slow
@needs_stub
def test_the_whole_table_on_the_driver_of_the_tests(capsys: pytest.CaptureFixture[str]) -> None:
    with cuda_stub.in_place():
        assert gpu.main(["--small", "--turns", "1", "--here", "--seconds", "3000"]) == 0
    lines = capsys.readouterr().out.splitlines()[3:]
    assert len(lines) == len(ROWS) + 1 + len(gpu_networks.ROWS)
    assert all(float(line.split("|")[3]) > 0 for line in lines), "\n".join(lines)


@pytest.mark.parametrize("row", ROWS, ids=[row.name for row in ROWS])
def test_rows_compute_what_their_peers_do(row: Row) -> None:
    pytest.importorskip("torch", reason="torch is absent")
    import torch

    assert row.peer is not None
    inputs = gpu.inputs_of(row, row.small)
    got = row.run(*[Tensor(x) for x in inputs]).numpy()
    want = row.peer(*[torch.from_numpy(x) for x in inputs]).numpy()
    np.testing.assert_allclose(got, want, rtol=2e-3, atol=2e-3)
    gpu.check(row, want, inputs)


@pytest.mark.parametrize("what", ["another number", "no number", "nothing written"])
def test_wrong_results_have_no_time(what: str) -> None:
    def run(a: Tensor, b: Tensor) -> Tensor:
        return a @ b + {"another number": 1.0, "no number": float("nan")}.get(what, 0.0)

    row = next(row for row in ROWS if row.name.startswith("product 4096, float32"))
    wrong = row._replace(run=run, make=square)
    if what == "nothing written":
        result = (Tensor(np.ones((8, 8), np.float32)) + 1).realize()
        gpu.poison(result)
        assert np.isnan(result.numpy()).all()
        return
    with pytest.raises(gpu.WrongError, match="results are wrong"):
        gpu.measured(wrong, "CPU", 16, 1)


def child(script: str) -> gpu.Child:
    """A process of these words for each row."""
    loop = f"import sys, time, os\nfor line in sys.stdin:\n name = line.strip()\n {script}\n"
    return gpu.Child([sys.executable, "-c", loop + " sys.stdout.flush()"])


def test_rows_go_on_where_one_ends_its_process_or_hangs() -> None:
    script = (
        "time.sleep(60) if name == 'hangs' else os._exit(3) if name == 'ends' else "
        'print(\'noise\\n{"unit": "%s"}\' % name)'
    )
    asked = child(script)
    try:
        assert asked.ask("a", 30.0) == {"unit": "a"}
        assert asked.ask("ends", 30.0) == {"why": "its process ended (status 3)"}
        assert asked.ask("b", 30.0) == {"unit": "b"}
        start = time.monotonic()
        assert asked.ask("hangs", 0.5) == {"why": "it took more than 0 s"}
        assert time.monotonic() - start < 30
        assert asked.ask("c", 30.0) == {"unit": "c"}
    finally:
        asked.stop()


def test_what_is_left_when_time_is_up_is_named() -> None:
    found = dict(gpu.answers(["a", "b"], lambda name, limit: {"unit": name}, 0.0))
    assert found["b"] == {"why": "not run: the 0 s are over (--seconds)"}
    line = gpu.line_of("b", found["b"])
    assert line == "| b | not run: the 0 s are over (--seconds) | - | - | - | - | - | - |"


def test_a_process_of_rows_answers_with_why_a_row_fails(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = gpu.Bench("CPU", True, 1)

    def answer(name: str) -> gpu.Answer:
        raise ValueError(f"no {name} | here")

    monkeypatch.setattr(bench, "answer", answer)
    monkeypatch.setattr(sys, "stdin", ["row\n"])
    gpu.serve(bench)
    assert capsys.readouterr().out == '{"why": "ValueError: no row / here"}\n'


def test_rows_of_another_processor_say_so() -> None:
    row = next(row for row in ROWS if row.needs)
    answer = gpu.Bench("CPU", False, 1).kernel(row)
    assert answer["why"].startswith("there is no wgmma on ")


def test_shares_are_of_the_data_sheet(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = {row.name: row for row in ROWS}
    bench = gpu.Bench("CPU", True, 1)
    bench.copy = 3e12
    monkeypatch.setitem(gpu.PEAKS, Device["CPU"].target.arch, (67.0, 495.0, 989.0, 1979.0))
    named = {
        "softmax": 3e12, "product 4096, float32": 67e12, "product 8192, TF32, wgmma": 495e12,
        "product 8192, bfloat16, wgmma": 989e12, "product 8192, fp8, wgmma": 1979e12,
    }  # fmt: skip
    assert {name: bench.ceiling(rows[name]) for name in named} == named


@pytest.mark.parametrize(
    "row",
    [
        pytest.param(row, marks=pytest.mark.slow if row.network == "ResNet18" else ())
        for row in gpu_networks.ROWS
    ],
    ids=[row.name for row in gpu_networks.ROWS],
)
def test_networks_compute_what_their_peers_do(row: gpu_networks.NetworkRow) -> None:
    pytest.importorskip("torch", reason="torch is absent")
    ours = gpu_networks.aster_call(row, "CPU", True, dtypes.float32)
    theirs = gpu_networks.torch_call(row, "cpu", True, dtypes.float32)
    # Norms over two images of one pixel are chaotic once parameters have changed.
    steps = 2 if row.training and row.network == "GPT2" else 1
    for _ in range(steps):
        got, want = ours().numpy(), theirs().numpy()
        np.testing.assert_allclose(got, want, rtol=2e-2, atol=2e-2)


def test_rows_of_work_groups_are_measured() -> None:
    rows = [pocl.Row("sum", ((8, 16),), lambda a: a.sum(-1), 1), *[pocl.product(4, 4, 4)] * 2]
    lines = pocl.table("CPU", rows, 1)
    assert [line.count("|") for line in lines] == [4] * (2 + len(rows) + 1)
    assert lines[-1].endswith("times | 2 times |")
