"""Models whose axes are no fixed numbers: one recording for all sizes, right numbers for each."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from aster_ml import Tensor
from aster_ml.engine.counters import TOTALS
from aster_ml.nn.onnx import OnnxRunner

DRAW = np.random.default_rng(0)
WEIGHT = DRAW.normal(size=(8, 8)).astype(np.float32)
# Sizes of images; steps of a power of two, as those of models for text in pictures.
SIZES = [(16, 32), (32, 16), (48, 32), (48, 48), (32, 48), (16, 16)]
PLACES = DRAW.normal(size=(64, 8)).astype(np.float32)


def node(kind: str, given: str, made: str, **attributes: Any) -> Any:
    """A node whose names stand in two texts."""
    return helper.make_node(kind, given.split(), made.split(), **attributes)


def model_of(nodes: list[Any], axes: list[Any], constants: dict[str, Any], out: Any) -> OnnxRunner:
    """A model with the input x and the output y."""
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, axes)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, out)],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )  # fmt: skip
    return OnnxRunner(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)]))


def encoder() -> OnnxRunner:
    """Embedded places, attention of two heads by shapes that are read, a mean over the sequence."""
    nodes = [
        node("Shape", "x", "shape"), node("Gather", "shape zero", "b", axis=0),
        node("Gather", "shape one", "s", axis=0), node("Unsqueeze", "s first", "s1"),
        node("Unsqueeze", "b first", "b1"), node("Slice", "table first s1 first", "rows"),
        node("Add", "x rows", "e"), node("MatMul", "e w", "q"),
        node("Concat", "b1 s1 heads", "split", axis=0), node("Reshape", "q split", "q4"),
        node("Transpose", "q4", "qt", perm=[0, 2, 1, 3]),
        node("Transpose", "q4", "kt", perm=[0, 2, 3, 1]), node("MatMul", "qt kt", "a"),
        node("Softmax", "a", "p", axis=-1), node("MatMul", "p qt", "o"),
        node("Transpose", "o", "ot", perm=[0, 2, 1, 3]),
        node("Concat", "b1 rest width", "join", axis=0), node("Reshape", "ot join", "y"),
    ]  # fmt: skip
    constants = {
        "zero": np.int64(0), "one": np.int64(1), "first": np.asarray([0]), "table": PLACES,
        "w": WEIGHT, "heads": np.asarray([2, 4]), "rest": np.asarray([-1]),
        "width": np.asarray([8]),
    }  # fmt: skip
    return model_of(nodes, ["batch", "sequence", 8], constants, ["batch", "sequence", 8])


def wanted(x: Any) -> Any:
    """What the encoder computes, by NumPy."""
    b, s, _ = x.shape
    q = ((x + PLACES[:s]) @ WEIGHT).reshape(b, s, 2, 4).transpose(0, 2, 1, 3)
    a = q @ q.transpose(0, 1, 3, 2)
    p = np.exp(a - a.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    return (p @ q).transpose(0, 2, 1, 3).reshape(b, s, 8)


def check(runner: OnnxRunner, batch: int, length: int) -> None:
    """The encoder's numbers for one size, as an array and as a tensor."""
    x = DRAW.normal(size=(batch, length, 8)).astype(np.float32)
    for given in (x, Tensor(x)):
        found = runner({"x": given})["y"]
        assert found.shape == x.shape
        np.testing.assert_allclose(found.numpy(), wanted(x), 1e-3, 1e-4)


def test_other_sizes_compile_nothing() -> None:
    runner = encoder()
    for batch, length in [(2, 9), (2, 10), (3, 11), (4, 13), (2, 15)]:
        check(runner, batch, length)
    assert runner.why_not_dynamic == ""
    assert (len(runner.recorded), len(runner.dynamic)) == (2, 1)
    before = TOTALS.compiled_kernels
    for batch, length in [(3, 12), (4, 16), (2, 11), (3, 14), (2, 8), (4, 15)]:
        check(runner, batch, length)
    assert TOTALS.compiled_kernels == before
    assert (len(runner.recorded), len(runner.dynamic)) == (2, 1)


def test_ranges_grow_and_one_element_is_a_case_of_its_own() -> None:
    runner = encoder()
    sizes = [(2, 3), (2, 5), (3, 7), (3, 40), (5, 6), (1, 7), (1, 9), (5, 33), (2, 64), (2, 2)]
    for batch, length in sizes:
        check(runner, batch, length)
    ranges = [made.ranges for made in runner.dynamic.values() if len(made.ranges) == 2]
    assert len(ranges) == 1
    assert ranges[0]["sequence"].low <= 2
    assert ranges[0]["sequence"].high == 64
    assert runner.why_not_dynamic == ""


def test_results_are_the_callers_own() -> None:
    runner, kept = encoder(), []
    for number in range(10):
        x = DRAW.normal(size=(2, 8 + number % 4, 8)).astype(np.float32)
        kept.append((runner({"x": x})["y"], x))
    for found, x in kept:
        np.testing.assert_allclose(found.numpy(), wanted(x), 1e-3, 1e-4)


def test_what_needs_the_numbers_of_sizes_is_recorded_size_by_size() -> None:
    weights = DRAW.normal(size=(1, 12, 8)).astype(np.float32), np.zeros((1, 12, 3), np.float32)
    constants = {"w": weights[0], "r": weights[1]}
    nodes = [node("LSTM", "x w r", "a", hidden_size=3), node("Squeeze", "a", "y")]
    runner = model_of(nodes, ["steps", 2, 8], constants, None)
    for steps in (2, 3, 4, 5, 4, 6):
        x = DRAW.normal(size=(steps, 2, 8)).astype(np.float32)
        gates = x @ weights[0][0].T
        i, o, f, c = np.split(gates, 4, -1)
        i, o, f = (1 / (1 + np.exp(-g)) for g in (i, o, f))
        cell, rows = np.zeros((2, 3)), []
        for step in range(steps):
            cell = f[step] * cell + i[step] * np.tanh(c[step])
            rows.append(o[step] * np.tanh(cell))
        np.testing.assert_allclose(runner({"x": x})["y"].numpy(), np.stack(rows), 1e-4, 1e-5)
    assert runner.why_not_dynamic
    assert not runner.dynamic


def test_axes_of_one_name_that_differ_are_recorded_apart() -> None:
    nodes = [node("ReduceSum", "x", "y", keepdims=0)]
    runner = model_of(nodes, ["n", "n"], {}, [])
    for rows, columns in [(2, 3), (3, 4), (4, 5), (5, 5), (6, 6)]:
        x = DRAW.normal(size=(rows, columns)).astype(np.float32)
        np.testing.assert_allclose(runner({"x": x})["y"].numpy(), x.sum(), 1e-4, 1e-5)


POOLS = {
    "strides": node("MaxPool", "x", "y", kernel_shape=[2, 2], strides=[2, 2]),
    "ceil": node(
        "MaxPool", "x", "y", kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4, ceil_mode=1
    ),
    "uneven": node("AveragePool", "x", "y", kernel_shape=[3, 2], strides=[3, 2]),
    "padded": node("AveragePool", "x", "y", kernel_shape=[3, 3], pads=[1] * 4),
}  # fmt: skip


@pytest.mark.parametrize("name", POOLS)
def test_pools_of_variable_sizes_are_one_recording(name: str) -> None:
    runner = model_of([POOLS[name]], ["n", 2, "h", "w"], {}, None)
    fixed = [model_of([POOLS[name]], [2, 2, h, w], {}, None) for h, w in SIZES]
    for (h, w), alone in zip(SIZES, fixed, strict=True):
        x = DRAW.normal(size=(2, 2, h, w)).astype(np.float32)
        np.testing.assert_allclose(
            runner({"x": x})["y"].numpy(), alone({"x": x})["y"].numpy(), 1e-5, 1e-6
        )
    assert runner.why_not_dynamic == ""
    assert len(runner.dynamic) == 1


def test_images_are_brought_to_sizes_that_are_read() -> None:
    nodes = [
        node("MaxPool", "x", "a", kernel_shape=[2, 2], strides=[2, 2]), node("Shape", "x", "all"),
        helper.make_node(
            "Resize", ["a", "", "", "all"], ["y"], mode="nearest", nearest_mode="floor",
            coordinate_transformation_mode="asymmetric",
        ),
    ]  # fmt: skip
    runner = model_of(nodes, ["n", 2, "h", "w"], {}, None)
    for h, w in SIZES:
        x = DRAW.normal(size=(2, 2, h, w)).astype(np.float32)
        low = x.reshape(2, 2, h // 2, 2, w // 2, 2).max((3, 5))
        np.testing.assert_array_equal(runner({"x": x})["y"].numpy(), low.repeat(2, 2).repeat(2, 3))
    assert runner.why_not_dynamic == ""
    assert len(runner.dynamic) == 1
