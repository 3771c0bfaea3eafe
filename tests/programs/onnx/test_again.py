"""Calls like the last one: the same numbers with little Python, and nothing taken for like it."""

from __future__ import annotations

import sys
import threading
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

from aster_ml import Tensor
from aster_ml.errors import ArgumentError, ShapeError
from aster_ml.nn.onnx import OnnxRunner

FLOAT, INT = TensorProto.FLOAT, TensorProto.INT64
WEIGHT = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
# One of tens of thousands of runs a second would otherwise be Python for its most part.
MOST_CALLS = 40


def runner_of() -> OnnxRunner:
    """y = relu(x @ w) * scale, and x as it came."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]), helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Mul", ["b", "scale"], ["y"]), helper.make_node("Identity", ["x"], ["z"]),
    ]  # fmt: skip
    graph = helper.make_graph(
        nodes, "g",
        [helper.make_tensor_value_info("x", FLOAT, ["n", 4]),
         helper.make_tensor_value_info("scale", FLOAT, [])],
        [helper.make_tensor_value_info("y", FLOAT, ["n", 3]),
         helper.make_tensor_value_info("z", FLOAT, ["n", 4])],
        [helper.make_tensor("w", FLOAT, [4, 3], WEIGHT.reshape(-1))],
    )  # fmt: skip
    return OnnxRunner(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)]))


def plain_runner() -> OnnxRunner:
    """y = relu(x @ w) of two rows."""
    nodes = [helper.make_node("MatMul", ["x", "w"], ["a"]), helper.make_node("Relu", ["a"], ["y"])]
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", FLOAT, [2, 4])],
        [helper.make_tensor_value_info("y", FLOAT, [2, 3])],
        [helper.make_tensor("w", FLOAT, [4, 3], WEIGHT.reshape(-1))],
    )  # fmt: skip
    return OnnxRunner(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)]))


def drawn(seed: int, rows: int = 2) -> Any:
    """Rows of numbers."""
    return np.random.default_rng(seed).normal(size=(rows, 4)).astype(np.float32)


def wanted(x: Any) -> Any:
    """What the plain model gives."""
    return np.maximum(x @ WEIGHT, 0)


def test_results_stay_what_they_were() -> None:
    runner, kept = plain_runner(), []
    for seed in range(12):
        x = drawn(seed)
        kept.append((runner({"x": x})["y"], x.copy()))
        x[:] = 7  # what was given is the caller's again
    assert runner.again is not None
    for found, x in kept:
        np.testing.assert_allclose(found.numpy(), wanted(x), 1e-5, 1e-6)


def test_arrays_of_any_layout_and_tensors() -> None:
    runner = plain_runner()
    for seed in range(16):
        x = drawn(seed)
        given: Any = [x, np.asfortranarray(x), drawn(seed, 4)[::2], Tensor(x)][seed % 4]
        right = given.numpy() if isinstance(given, Tensor) else given
        found = runner({"x": given})["y"]
        np.testing.assert_allclose(found.numpy(), wanted(right), 1e-5, 1e-6)


def test_what_is_not_like_the_last_call_is_refused_as_ever() -> None:
    runner = plain_runner()
    for seed in range(5):
        runner({"x": drawn(seed)})
    assert runner.again is not None
    with pytest.raises(TypeError, match="float32 is wanted"):
        runner({"x": drawn(0).astype(np.float64)})
    with pytest.raises(ShapeError, match="input 'x' has the shape"):
        runner({"x": drawn(0, 3)})
    with pytest.raises(ArgumentError, match="the model wants"):
        runner({"x": drawn(0), "more": drawn(0)})
    np.testing.assert_allclose(runner({"x": drawn(9)})["y"].numpy(), wanted(drawn(9)), 1e-5, 1e-6)


def test_an_output_that_is_an_input_keeps_its_numbers() -> None:
    runner, kept = runner_of(), []
    for seed in range(10):
        x = drawn(seed, 2 + seed % 2)
        found = runner({"x": x, "scale": float(seed)})
        kept.append((found, x.copy(), seed))
        x[:] = 7
    for found, x, scale in kept:
        np.testing.assert_allclose(found["y"].numpy(), wanted(x) * scale, 1e-5, 1e-6)
        np.testing.assert_array_equal(found["z"].numpy(), x)


def test_threads_do_not_mix_their_numbers() -> None:
    runner, wrong = plain_runner(), []
    for seed in range(5):
        runner({"x": drawn(seed)})

    def work(start: int) -> None:
        for seed in range(start, start + 60):
            x = drawn(seed)
            found = runner({"x": x})["y"].numpy()
            if not np.allclose(found, wanted(x), 1e-5, 1e-6):
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(1000 * i,)) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_run_takes_few_python_calls() -> None:
    runner = plain_runner()
    inputs = {"x": drawn(0)}
    for _ in range(12):
        runner(inputs)
    calls = 0

    def count(frame: Any, event: str, value: Any) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        runner(inputs)
    finally:
        sys.setprofile(None)
    assert calls <= MOST_CALLS
