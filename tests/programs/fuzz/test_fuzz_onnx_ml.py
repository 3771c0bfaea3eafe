"""Random nodes of ai.onnx.ml give onnxruntime's outputs: trees, machines, encoders, scalers.

What onnxruntime refuses is no case. Rows hold NaN where an operator says what becomes of it.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from onnx import helper

from aster_ml import Tensor
from aster_ml.nn.onnx import OnnxRunner
from tests.fuzz.budget import check_all, draws
from tests.programs.onnx.ml_models import model_of

ort = pytest.importorskip("onnxruntime", reason="pip install onnxruntime")
POSTS = ["NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT"]
MODES = ["BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ"]
Drawn = tuple[str, dict[str, Any], Any, int]


def floats(rng: Any, *shape: int) -> list[float]:
    """Numbers of a normal distribution as float32 has them."""
    return np.asarray(rng.normal(size=shape), np.float32).reshape(-1).tolist()  # type: ignore[no-any-return]


def table(draw: random.Random, rng: Any, features: int, nan: float = 0.0) -> Any:
    """Rows of features, quarters, so that comparisons meet equal numbers."""
    rows = draw.choice([1, 2, 3, 7, 16])
    x = np.round(rng.normal(size=(rows, features)) * 4) / 4
    return np.where(rng.random(x.shape) < nan, np.nan, x).astype(np.float32)


def labels(draw: random.Random, count: int, ints: str = "classlabels_ints") -> dict[str, Any]:
    """Names of classes: text or numbers."""
    if draw.random() < 0.3:
        return {"classlabels_strings": [f"c{i}" for i in range(count)]}
    return {ints: [3 * i + draw.randrange(2) for i in range(count)]}


def tree(draw: random.Random, number: int, features: int) -> list[dict[str, Any]]:
    """A random tree of the older operators, its nodes as rows."""
    nodes: list[dict[str, Any]] = []
    modes = [draw.choice(MODES)] if draw.random() < 0.5 else MODES

    def grow(depth: int) -> int:
        at = len(nodes)
        is_leaf = depth == 0 or draw.random() < 0.2
        node = {
            "treeids": number, "nodeids": at, "featureids": draw.randrange(features),
            "values": draw.randrange(-6, 7) / 4, "modes": "LEAF" if is_leaf else draw.choice(modes),
            "truenodeids": 0, "falsenodeids": 0, "missing_value_tracks_true": draw.randrange(2),
        }  # fmt: skip
        nodes.append(node)
        if not is_leaf:
            node["truenodeids"], node["falsenodeids"] = grow(depth - 1), grow(depth - 1)
        return at

    grow(draw.choice([0, 1, 2, 4, 6]))
    return nodes


def old_trees(draw: random.Random, rng: Any) -> Drawn:
    """TreeEnsembleClassifier or TreeEnsembleRegressor."""
    features, is_class = draw.choice([1, 2, 5]), draw.random() < 0.5
    trees = [tree(draw, i, features) for i in range(draw.choice([1, 2, 5]))]
    nodes = [node for one in trees for node in one]
    attributes: dict[str, Any] = {f"nodes_{key}": [n[key] for n in nodes] for key in nodes[0]}
    targets = draw.choice([1, 2, 3, 5]) if not is_class else draw.choice([2, 2, 3, 5])
    one = draw.randrange(targets) if draw.random() < 0.5 and targets == 2 else None
    # Of two classes that both have votes onnxruntime picks the second one wherever its score is
    # above 0, and mixes their base values; ONNX says that the greater one is picked. It leaves out
    # the base values of targets without a vote, too.
    targets = 3 if is_class and targets == 2 and one is None else targets
    leaf, sign, has_base = "class" if is_class else "target", draw.random() < 0.5, False
    if one is None and draw.random() < 0.3:
        has_base = True
    votes = []
    for node in nodes:
        if node["modes"] == "LEAF":
            few = not has_base and not is_class and draw.random() < 0.5
            ids = [one] if one is not None else draw.sample(range(targets), 1 if few else targets)
            votes += [(node["treeids"], node["nodeids"], i) for i in ids]
    weights = floats(rng, len(votes))
    attributes |= {
        f"{leaf}_treeids": [v[0] for v in votes], f"{leaf}_nodeids": [v[1] for v in votes],
        f"{leaf}_ids": [v[2] for v in votes],
        f"{leaf}_weights": [abs(w) / len(trees) for w in weights] if sign else weights,
    }  # fmt: skip
    attributes["post_transform"] = draw.choice(POSTS[:4])
    if is_class:
        attributes |= labels(draw, targets, "classlabels_int64s")
    else:
        attributes["n_targets"] = targets
        attributes["aggregate_function"] = draw.choice(["SUM", "AVERAGE", "MIN", "MAX"])
    if has_base:
        attributes["base_values"] = floats(rng, targets)
    name = "TreeEnsembleClassifier" if is_class else "TreeEnsembleRegressor"
    return name, attributes, table(draw, rng, features, draw.choice([0, 0.2])), 2 if is_class else 1


def new_trees(draw: random.Random, rng: Any) -> Drawn:
    """TreeEnsemble."""
    features, targets = draw.choice([1, 2, 5]), draw.choice([1, 2, 3])
    kind = draw.choice([np.float32, np.float64])
    rows: list[list[Any]] = []
    leaves: list[tuple[int, float]] = []
    members: list[float] = []

    def leaf() -> int:
        leaves.append((draw.randrange(targets), draw.randrange(-9, 9) / 8))
        return len(leaves) - 1

    def grow(depth: int) -> int:
        at = len(rows)
        rows.append([draw.randrange(features), draw.randrange(-6, 7) / 4, draw.randrange(7),
                     draw.randrange(2)])  # fmt: skip
        if rows[at][2] == 6:
            chosen = [draw.randrange(-6, 7) / 4 for _ in range(draw.choice([1, 2, 4]))]
            members.extend([*chosen, np.nan])
        ends: list[int] = []
        for _ in range(2):
            is_leaf = depth == 0 or draw.random() < 0.2
            ends += [leaf() if is_leaf else grow(depth - 1), int(is_leaf)]
        rows[at] += ends
        return at

    roots = [grow(draw.choice([0, 1, 3])) for _ in range(draw.choice([1, 2, 4]))]
    columns = [[row[i] for row in rows] for i in range(8)]

    def array(values: Any, dtype: Any) -> Any:
        return helper.make_tensor("t", helper.np_dtype_to_tensor_dtype(np.dtype(dtype)),
                                  [len(values)], np.asarray(values, dtype))  # fmt: skip

    attributes = {
        "nodes_featureids": columns[0], "nodes_splits": array(columns[1], kind),
        "nodes_modes": array(columns[2], np.uint8), "nodes_missing_value_tracks_true": columns[3],
        "nodes_truenodeids": columns[4], "nodes_trueleafs": columns[5],
        "nodes_falsenodeids": columns[6], "nodes_falseleafs": columns[7],
        "leaf_targetids": [t for t, _ in leaves],
        "leaf_weights": array([w for _, w in leaves], kind),
        "tree_roots": roots, "n_targets": targets, "aggregate_function": draw.randrange(4),
        # onnxruntime has 1 and 2 of ONNX's numbers of post_transform the other way round.
        "post_transform": draw.choice([0, 0, 0, 3]),
    }  # fmt: skip
    if members:
        attributes["membership_values"] = array(members, kind)
    x = table(draw, rng, features, draw.choice([0, 0.2])).astype(kind)
    return "TreeEnsemble", attributes, x, 1


KERNELS = ["LINEAR", "POLY", "RBF", "SIGMOID"]


def machine(draw: random.Random, rng: Any) -> Drawn:
    """SVMClassifier or SVMRegressor."""
    features, kind = draw.choice([1, 2, 5]), draw.choice(KERNELS)
    attributes: dict[str, Any] = {
        "kernel_type": kind, "kernel_params": [draw.choice([0.1, 0.5]), draw.choice([0.0, 0.5]),
                                               float(draw.choice([1, 2, 3]))],
    }  # fmt: skip
    x = table(draw, rng, features)
    if draw.random() < 0.5:
        supports = draw.choice([0, 1, 3, 8])
        attributes |= {"n_supports": supports, "rho": floats(rng, 1),
                       "coefficients": floats(rng, supports or features)}  # fmt: skip
        if supports:
            attributes["support_vectors"] = floats(rng, supports * features)
        attributes["one_class"] = draw.choice([0, 0, 1])
        return "SVMRegressor", attributes, x, 1
    classes = draw.choice([2, 2, 3, 5])
    pairs, counts = classes * (classes - 1) // 2, [draw.randrange(1, 4) for _ in range(classes)]
    attributes |= {
        "vectors_per_class": counts, "support_vectors": floats(rng, sum(counts) * features),
        "coefficients": floats(rng, (classes - 1) * sum(counts)), "rho": floats(rng, pairs),
        "post_transform": draw.choice(POSTS[:3]), **labels(draw, classes),
    }  # fmt: skip
    if draw.random() < 0.4:
        attributes |= {"prob_a": [-1 - abs(v) for v in floats(rng, pairs)],
                       "prob_b": floats(rng, pairs)}  # fmt: skip
    return "SVMClassifier", attributes, x, 2


def linear(draw: random.Random, rng: Any) -> Drawn:
    """LinearClassifier or LinearRegressor."""
    features, count = draw.choice([1, 2, 5]), draw.choice([1, 2, 3, 5])
    x, kind = table(draw, rng, features), draw.choice(POSTS[:4])
    attributes: dict[str, Any] = {
        "coefficients": floats(rng, count * features), "intercepts": floats(rng, count),
        "post_transform": kind,
    }  # fmt: skip
    if draw.random() < 0.5:
        return "LinearRegressor", {**attributes, "targets": count}, x, 1
    return "LinearClassifier", {**attributes, **labels(draw, max(count, 2))}, x, 2


def tables(draw: random.Random, rng: Any) -> Drawn:
    """Operators on columns."""
    features = draw.choice([1, 2, 5])
    x = table(draw, rng, features)
    match draw.randrange(5):
        case 0:
            size = draw.choice([1, features])
            return "Scaler", {"offset": floats(rng, size), "scale": floats(rng, size)}, x, 1
        case 1:
            return "Normalizer", {"norm": draw.choice(["MAX", "L1", "L2"])}, x, 1
        case 2:
            return "Binarizer", {"threshold": draw.choice([0.0, 0.25, -1.0])}, x, 1
        case 3:
            old = draw.choice([0.25, float("nan")])
            values = floats(rng, draw.choice([1, features]))
            attributes = {"imputed_value_floats": values, "replaced_value_float": old}
            return "Imputer", attributes, table(draw, rng, features, 0.3), 1
        case _:
            whole = (x * 4).astype(np.int64)
            return "OneHotEncoder", {"cats_int64s": [0, 1, -1, 5]}, whole, 1


def encoder(draw: random.Random, rng: Any) -> Drawn:
    """LabelEncoder and CategoryMapper."""
    words, whole = ["a", "b", "c"], [3, -1, 7]
    shape = (draw.choice([1, 4, 9]),)
    text = np.asarray(draw.choices([*words, "z"], k=shape[0]), object)
    numbers = np.asarray(draw.choices([*whole, 2], k=shape[0]), np.int64)
    match draw.randrange(4):
        case 0:
            return "CategoryMapper", {"cats_strings": words, "cats_int64s": whole,
                                      "default_int64": -5}, text, 1  # fmt: skip
        case 1:
            return "CategoryMapper", {"cats_strings": words, "cats_int64s": whole,
                                      "default_string": "?"}, numbers, 1  # fmt: skip
        case 2:
            return "LabelEncoder", {"keys_int64s": whole, "values_strings": words}, numbers, 1
        case _:
            return "LabelEncoder", {"keys_strings": words, "values_floats": floats(rng, 3)}, text, 1


MAKERS: list[Callable[[random.Random, Any], Drawn]] = [
    old_trees, new_trees, machine, linear, tables, encoder,
]  # fmt: skip


def check(seed: int) -> str | None:
    """What is wrong with Aster's outputs for one node."""
    draw, rng = random.Random(seed), np.random.default_rng(seed)
    name, attributes, x, outputs = draw.choice(MAKERS)(draw, rng)
    model = model_of(name, attributes, x, outputs)
    options = ort.SessionOptions()
    options.log_severity_level = 4
    try:
        session = ort.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        wanted = session.run(None, {"x": x})
    except Exception as error:
        if type(error).__module__.startswith("onnxruntime"):
            return None
        raise
    runner = OnnxRunner(model)
    for _ in range(draw.choice([1, 1, 3])):
        found = runner({"x": x})
    for value, right in zip(found.values(), wanted):
        mine = value.numpy() if isinstance(value, Tensor) else np.asarray(value)
        right = np.asarray(right)
        if mine.shape != right.shape:
            return f"{name}: {mine.shape}, wanted {right.shape}"
        if right.dtype.kind in "OU":
            same = bool((mine == right).all())
        else:
            scale = 2e-5 * max(1.0, float(np.nan_to_num(np.abs(right), posinf=0).max(initial=0)))
            same = np.allclose(mine, right, 2e-5, scale, equal_nan=True)
        if not same:
            shown = {k: v for k, v in attributes.items() if k in SHOWN}
            return f"{name} {shown}: {mine.reshape(-1)[:6]}, wanted {right.reshape(-1)[:6]}"
    return None


SHOWN = {"post_transform", "kernel_type", "norm", "aggregate_function", "rho", "prob_a"}


def test_nodes_are_those_of_onnxruntime(record_property: Any) -> None:
    check_all("nodes of ai.onnx.ml", draws(60, 10_000), check, record_property)
