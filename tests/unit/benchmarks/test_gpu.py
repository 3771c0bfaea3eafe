"""The benchmark of graphics processors: its rows compute, and it says so where there is none."""

from __future__ import annotations

import numpy as np
import pytest

from aster_ml import Device, Tensor, dtypes
from benchmarks import gpu, gpu_networks, pocl
from tests.shim import cuda_stub

STUBBED = ("a * b + a", "product 8192, float16", "attention, float16")


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
    assert gpu.main(["--device", "CPU", "--small", "--turns", "1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(gpu.ROWS) + len(forward) + 4
    assert [line.count("|") for line in lines[1:]] == [7] * (len(lines) - 1)


@pytest.mark.cc
@pytest.mark.skipif(cuda_stub.missing() is not None, reason=str(cuda_stub.missing()))
def test_the_best_device_is_taken_and_measured(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the driver of the tests: events, copies within the device, replays of graphs."""
    monkeypatch.setattr(gpu, "NETWORKS", ())
    monkeypatch.setattr(gpu, "ROWS", [row for row in gpu.ROWS if row.name in STUBBED])
    with cuda_stub.in_place() as stub:
        assert gpu.main(["--small", "--turns", "1"]) == 0
        assert stub.calls("cuGraphLaunch") > 0
    head, *rest = capsys.readouterr().out.splitlines()
    assert head.startswith("CUDA, sm_90a; a copy ")
    assert len(rest) == 2 + len(STUBBED) + 1


@pytest.mark.parametrize("row", gpu.ROWS, ids=[row.name for row in gpu.ROWS])
def test_rows_compute_what_their_peers_do(row: gpu.Row) -> None:
    torch = pytest.importorskip("torch", reason="torch is absent")
    assert row.peer is not None
    inputs = gpu.inputs_of(row, row.small)
    got = row.run(*[Tensor(x) for x in inputs]).numpy()
    want = row.peer(*[torch.from_numpy(x) for x in inputs]).numpy()
    np.testing.assert_allclose(got, want, rtol=2e-3, atol=2e-3)


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
