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


@pytest.mark.parametrize("kind", ["bool", "int8", "uint16", "int32", "uint64", "float32"])
def test_reductions_of_every_kind(kind: str) -> None:
    onnxruntime = pytest.importorskip("onnxruntime", reason="pip install onnxruntime")
    x = np.random.default_rng(0).integers(0, 3, (3, 4)).astype(kind)
    function = {
        name: lambda x, name=name: getattr(x, name)(1)
        for name in ("any", "all", "max", "min", "sum", "prod", "argmax")
    }

    def compute(x: Tensor) -> dict[str, Tensor]:
        return {name: one(x) for name, one in function.items()}

    model = to_onnx(compute, Tensor(x))
    found = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})
    ours = OnnxRunner(model)({"x": x})
    for value, (name, wanted) in zip(found, compute(Tensor(x)).items()):
        assert value.dtype == wanted.numpy().dtype, name
        assert value.tolist() == wanted.tolist() == ours[name].tolist(), name


@pytest.mark.parametrize("kind", ["int8", "uint8", "int32", "uint32", "int64"])
def test_bits_that_move(kind: str) -> None:
    onnxruntime = pytest.importorskip("onnxruntime", reason="pip install onnxruntime")
    info = np.iinfo(kind)
    x = np.array([info.min, info.max, 0, 1, 5, info.max // 3], kind)
    by = np.array([0, 1, 3, 8 * x.itemsize - 1, 2, 8 * x.itemsize], kind)

    def compute(x: Tensor, by: Tensor) -> list[Tensor]:
        return [x << by, x >> by]

    model = to_onnx(compute, [Tensor(x), Tensor(by)])
    found = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x, "by": by})
    for value, wanted in zip(found, compute(Tensor(x), Tensor(by))):
        assert value.tolist() == wanted.tolist()


def written(x: Tensor) -> Tensor:
    """Values written to parts of memory, one after the other."""
    c = x.clone()
    c[1:] = 0.0
    c[:, ::-2] += x[:, :2]
    c[0] = c[2] * 2
    return c


def test_writes_to_memory() -> None:
    onnxruntime = pytest.importorskip("onnxruntime", reason="pip install onnxruntime")
    x = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
    model = to_onnx(written, Tensor(x))
    found = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})[0]
    np.testing.assert_allclose(found, written(Tensor(x)).numpy(), 1e-6)
    np.testing.assert_allclose(OnnxRunner(model)({"x": x})["output0"].numpy(), found, 1e-6)
    with pytest.raises(UnsupportedError, match="memory that no value was written to"):
        to_onnx(lambda x: x + Tensor.empty(3), Tensor.ones(3))
    with pytest.raises(UnsupportedError, match="fp8e4m3 is no element type of opset 18"):
        to_onnx(lambda x: x.cast("fp8e4m3").float(), Tensor.ones(3))
