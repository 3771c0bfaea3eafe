"""The benchmark of graphics processors: its rows compute, and it says so where there is none."""

from __future__ import annotations

import numpy as np
import pytest

from aster_ml import Device, Tensor
from benchmarks import gpu


def test_without_a_gpu_it_says_so(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Device, "get_available_devices", lambda: ["CPU", "PYTHON"])
    assert gpu.main([]) == 0
    assert capsys.readouterr().out.startswith("no GPU here: ")


def test_the_table_of_small_sizes(capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu.main(["--device", "CPU", "--small", "--turns", "1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(gpu.ROWS) + 4
    assert [line.count("|") for line in lines[1:]] == [7] * (len(lines) - 1)


@pytest.mark.parametrize("row", gpu.ROWS, ids=[row.name for row in gpu.ROWS])
def test_rows_compute_what_their_peers_do(row: gpu.Row) -> None:
    torch = pytest.importorskip("torch", reason="torch is absent")
    assert row.peer is not None
    inputs = gpu.inputs_of(row, row.small)
    got = row.run(*[Tensor(x) for x in inputs]).numpy()
    want = row.peer(*[torch.from_numpy(x) for x in inputs]).numpy()
    np.testing.assert_allclose(got, want, rtol=2e-3, atol=2e-3)
