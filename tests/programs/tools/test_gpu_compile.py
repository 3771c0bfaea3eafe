"""Kernels for cards that are not there: each architecture has sources of its own."""

from __future__ import annotations

from aster_ml import Tensor
from tools.gpu_compile import sources_of


def test_each_architecture_has_its_sources() -> None:
    def run() -> None:
        x = Tensor.ones(64, 64).contiguous().realize()
        (x @ x + 3).realize()

    found = [sources_of(run, arch) for arch in ("sm_80", "sm_90a")]
    assert [len(sources) for sources in found] == [1, 1]
    assert all(["__global__" in source for sources in found for source in sources])
