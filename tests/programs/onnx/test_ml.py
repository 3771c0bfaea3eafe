"""Models of scikit-learn as skl2onnx writes them, and operators of ai.onnx.ml on maps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

from aster_ml import Tensor
from aster_ml.errors import FormatError, ShapeError, UnsupportedError
from aster_ml.nn.onnx import OnnxRunner
from tests.programs.onnx.ml_models import ML, model_of, with_types


def estimators() -> dict[str, Callable[[], Any]]:
    """What is fitted, by name; None where scikit-learn is absent."""
    sklearn = pytest.importorskip("sklearn", reason="pip install scikit-learn")
    assert sklearn
    from sklearn import ensemble, linear_model, svm, tree

    return {
        "tree": lambda: tree.DecisionTreeClassifier(random_state=0),
        "forest": lambda: ensemble.RandomForestClassifier(8, random_state=0),
        "regression forest": lambda: ensemble.RandomForestRegressor(8, random_state=0),
        "boosting": lambda: ensemble.GradientBoostingClassifier(n_estimators=5, random_state=0),
        "machine": lambda: svm.SVC(),
        "regression machine": lambda: svm.SVR(kernel="poly"),
        "logistic": lambda: linear_model.LogisticRegression(),
        "outliers": lambda: ensemble.IsolationForest(n_estimators=5, random_state=0),
    }


NAMES = [
    "tree", "forest", "regression forest", "boosting", "machine", "regression machine", "logistic",
    "outliers",
]  # fmt: skip


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("name", NAMES)
def test_models_of_scikit_learn(name: str, classes: int) -> None:
    skl2onnx = pytest.importorskip("skl2onnx", reason="pip install --no-deps skl2onnx")
    ort = pytest.importorskip("onnxruntime", reason="pip install onnxruntime")
    rng = np.random.default_rng(0)
    x = rng.normal(size=(90, 5)).astype(np.float32)
    y = (x[:, 0] * x[:, 1] > 0).astype(int) + (x[:, 2] > 0.5) * (classes - 2)
    found = estimators()[name]().fit(x, y)
    options = {"zipmap": False} if hasattr(found, "classes_") else None
    versions = {"": 18, ML: 3}
    model = skl2onnx.to_onnx(found, x[:1], options=options, target_opset=versions)
    wanted = ort.InferenceSession(model.SerializeToString()).run(None, {"X": x})
    runner = OnnxRunner(model)
    for _ in range(3):
        given = list(runner({"X": x}).values())
    for mine, right in zip(given, wanted):
        np.testing.assert_allclose(mine.numpy(), right, 1e-5, 1e-5)


def map_model(node: Any, key: int, value: int) -> Any:
    """A model of one node whose input is a map."""
    given = helper.make_value_info(
        "x", helper.make_map_type_proto(key, helper.make_tensor_type_proto(value, []))
    )
    graph = helper.make_graph([node], "g", [given], [helper.make_empty_tensor_value_info("y")])
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid(ML, 3)]
    return with_types(helper.make_model(graph, opset_imports=opsets, ir_version=9))


def test_maps() -> None:
    text, whole, number = TensorProto.STRING, TensorProto.INT64, TensorProto.FLOAT
    node = helper.make_node("DictVectorizer", ["x"], ["y"], domain=ML,
                            string_vocabulary=["a", "c", "b", "z"])  # fmt: skip
    runner = OnnxRunner(map_model(node, text, number))
    assert runner({"x": {"a": 4.0, "c": 8.0}})["y"].tolist() == [[4, 8, 0, 0]]
    assert runner({"x": {"z": 1.5}})["y"].tolist() == [[0, 0, 0, 1.5]]
    node = helper.make_node("CastMap", ["x"], ["y"], domain=ML)
    runner = OnnxRunner(map_model(node, whole, number))
    assert runner({"x": {7: 1.0, 2: 3.0}})["y"].tolist() == [[3, 1]]
    node = helper.make_node("CastMap", ["x"], ["y"], domain=ML, map_form="SPARSE", max_map=4,
                            cast_to="TO_INT64")  # fmt: skip
    runner = OnnxRunner(map_model(node, whole, number))
    assert runner({"x": {3: 1.0, 1: 3.0}})["y"].tolist() == [[0, 3, 0, 1]]
    with pytest.raises(FormatError, match="within 0 to 3"):
        runner({"x": {9: 1.0}})


LEAF: dict[str, Any] = {
    "nodes_treeids": [0, 0, 0], "nodes_nodeids": [0, 1, 2], "nodes_featureids": [0, 0, 0],
    "nodes_values": [0.0, 0.0, 0.0], "nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF"],
    "nodes_truenodeids": [1, 0, 0], "nodes_falsenodeids": [2, 0, 0], "n_targets": 1,
    "target_treeids": [0, 0], "target_nodeids": [1, 2], "target_ids": [0, 0],
    "target_weights": [1.0, 2.0],
}  # fmt: skip


@pytest.mark.parametrize(
    "change, kind, text",
    [
        ({"nodes_truenodeids": [7, 0, 0]}, FormatError, "goes on to one that is absent"),
        ({"nodes_values": [0.0]}, FormatError, "nodes_values 1"),
        ({"nodes_modes": ["BRANCH_LEQ", "BRANCH_LT", "LEAF"]}, FormatError, "has no end"),
        ({"nodes_modes": ["NEAR", "LEAF", "LEAF"]}, UnsupportedError, "nodes_modes 'NEAR'"),
        ({"target_ids": [0, 5]}, FormatError, "for target 5"),
        ({"nodes_featureids": [3, 0, 0]}, FormatError, "column 3"),
        ({"post_transform": "SQUARE"}, UnsupportedError, "post_transform 'SQUARE'"),
    ],
)
def test_trees_that_are_none(change: dict[str, Any], kind: type[Exception], text: str) -> None:
    x = np.zeros((2, 1), np.float32)
    good = model_of("TreeEnsembleRegressor", LEAF, x, 1)
    assert OnnxRunner(good)({"x": x})["y0"].tolist() == [[1], [1]]
    runner = OnnxRunner(model_of("TreeEnsembleRegressor", {**LEAF, **change}, x, 1))
    with pytest.raises(kind, match=text):
        value = runner({"x": x})["y0"]
        assert isinstance(value, Tensor)


def test_rows_of_another_width_are_refused() -> None:
    attributes = {"n_supports": 2, "support_vectors": [1.0, 2.0, 3.0, 4.0], "rho": [0.5],
                  "coefficients": [1.0, 2.0], "kernel_type": "RBF",
                  "kernel_params": [0.1, 0.0, 0.0]}  # fmt: skip
    runner = OnnxRunner(model_of("SVMRegressor", attributes, np.zeros((1, 3), np.float32), 1))
    with pytest.raises((FormatError, ShapeError), match="rows of 2 features"):
        runner({"x": np.zeros((1, 3), np.float32)})
