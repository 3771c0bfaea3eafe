"""Functions written as ONNX: the checker takes them, and both runtimes compute what Tensors do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aster_ml import Tensor, nn
from aster_ml.errors import ArgumentError, UnsupportedError
from aster_ml.nn.onnx import OnnxRunner, to_onnx

WEIGHT = np.random.default_rng(0).normal(size=(8, 5)).astype(np.float32)
KERNEL = np.random.default_rng(1).normal(size=(4, 2, 3, 3)).astype(np.float32)


def rows(x: Tensor) -> Tensor:
    """A layer and a softmax."""
    return (x @ Tensor(WEIGHT)).softmax(-1)


def image(x: Tensor) -> Tensor:
    """A convolution and a pooling."""
    return x.conv2d(Tensor(KERNEL), padding=1).relu().max_pool2d().flatten(1)


def attention(x: Tensor) -> Tensor:
    """Attention of a tensor to itself."""
    return x.scaled_dot_product_attention(x, x, is_causal=True)


def moved(x: Tensor) -> Tensor:
    """Movement, places, integers."""
    part = x[:, ::-1].pad(((1, 0), (0, 2)), value=2.0).cat(x.sort(-1)[0].pad(((1, 0), (0, 2))))
    return part.cumsum(1) + (Tensor.arange(part.shape[1]) // 2 % 3) * x.argmax(-1).sum()


def functions(x: Tensor) -> dict[str, Tensor]:
    """Functions element by element, two outputs."""
    return {"a": x.gelu() + x.floor() * x.exp().log(), "b": (x > 0).where(x.sqrt(), x.erf())}


CASES: list[tuple[Callable[..., Any], tuple[int, ...]]] = [
    (rows, (3, 8)), (image, (2, 2, 6, 8)), (attention, (2, 3, 5, 4)), (moved, (3, 5)),
    (functions, (4, 7)), (nn.LayerNorm(6), (2, 6)), (nn.GroupNorm(2, 4), (2, 4, 3)),
    (rows, (1, 8)), (functions, (1,)), (functions, ()),
]  # fmt: skip


def arrays(found: Any) -> list[Any]:
    """The outputs of a function as arrays."""
    values = list(found.values()) if isinstance(found, dict) else [found]
    return [value.numpy() for value in values]


@pytest.mark.parametrize("number", range(len(CASES)))
def test_both_runtimes_compute_what_tensors_do(number: int) -> None:
    onnxruntime = pytest.importorskip("onnxruntime", reason="pip install onnxruntime")
    function, shape = CASES[number]
    x = np.asarray(np.random.default_rng(number).normal(size=shape), np.float32)
    wanted = arrays(function(Tensor(x)))
    model = to_onnx(function, {"x": Tensor(x)})
    ours = OnnxRunner(model)({"x": x})
    session = onnxruntime.InferenceSession(model.SerializeToString())
    theirs = session.run(None, {"x": x})
    assert len(ours) == len(theirs) == len(wanted)
    for mine, other, right in zip(arrays(ours), theirs, wanted):
        np.testing.assert_allclose(mine, right, 2e-5, 2e-5)
        np.testing.assert_allclose(other, right, 2e-5, 2e-5)


def test_names_file_and_weights(tmp_path: Path) -> None:
    layer = nn.Linear(4, 3)
    model = to_onnx(lambda hello: layer(hello), Tensor.ones(2, 4), tmp_path / "a.onnx")
    assert [value.name for value in model.graph.input] == ["hello"]
    runner = OnnxRunner(tmp_path / "a.onnx")
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    found = runner({"hello": x})["output0"].numpy()
    np.testing.assert_allclose(found, layer(Tensor(x)).numpy(), 1e-5, 1e-5)


def test_what_has_no_place_in_a_file_is_named() -> None:
    with pytest.raises(ArgumentError, match="no result depends on x"):
        to_onnx(lambda x: Tensor(x.numpy()), Tensor.ones(2))
    with pytest.raises(UnsupportedError, match="random numbers"):
        to_onnx(lambda x: x + Tensor.rand(2), Tensor.ones(2))
    with pytest.raises(ArgumentError, match="a Tensor is wanted"):
        to_onnx(lambda x: x.numpy(), Tensor.ones(2))
