"""Operators of the domain ai.onnx.ml: classical models on tables of numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from aster_ml import Tensor, dtypes
from aster_ml.errors import UnsupportedError
from aster_ml.nn.onnx_ops.registry import ML, Array, Value, on_host, op
from aster_ml.nn.onnx_ops.text import texts, word

Floats = list[float]
Ints = list[int]


@op("ArrayFeatureExtractor", domain=ML)
def array_feature_extractor(x: Tensor, y: Tensor) -> Tensor:
    """Columns of the last axis."""
    rows = x if x.ndim > 1 else x.reshape((1, -1))
    return rows[..., y.reshape((-1,))]


@op("Binarizer", domain=ML)
def binarizer(x: Tensor, *, threshold: float = 0.0) -> Tensor:
    """1 above a threshold, else 0."""
    return (x > threshold).cast(x.dtype)


@op("Scaler", domain=ML)
def scaler(x: Tensor, *, offset: Floats | None = None, scale: Floats | None = None) -> Tensor:
    """Less an offset, times a scale, for each column."""
    y = x.cast(dtypes.float32)
    y = y - Tensor(offset or [0.0], device=x.device)
    return y * Tensor(scale or [1.0], device=x.device)


@op("Normalizer", domain=ML)
def normalizer(x: Tensor, *, norm: str = "MAX") -> Tensor:
    """Rows over their greatest element or their length."""
    y = x.cast(dtypes.float32)
    if norm == "MAX":
        size = y.max(-1, keepdim=True)
    else:
        size = (
            y.abs().sum(-1, keepdim=True)
            if norm == "L1"
            else y.square().sum(-1, keepdim=True).sqrt()
        )
    return y / size.eq(0).where(1, size)


@op("Imputer", domain=ML)
def imputer(
    x: Tensor,
    *,
    imputed_value_floats: Floats | None = None,
    imputed_value_int64s: Ints | None = None,
    replaced_value_float: float = 0.0,
    replaced_value_int64: int = 0,
) -> Tensor:
    """One value of each column exchanged for another; NaN may be that value."""
    if dtypes.is_float(x.dtype):
        old = replaced_value_float
        at = x.isnan() if np.isnan(old) else x.eq(old)
        return at.where(Tensor(imputed_value_floats, device=x.device).cast(x.dtype), x)
    return x.eq(replaced_value_int64).where(
        Tensor(imputed_value_int64s, device=x.device).cast(x.dtype), x
    )


@op("FeatureVectorizer", domain=ML)
def feature_vectorizer(*xs: Tensor, inputdimensions: Ints | None = None) -> Tensor:
    """Columns of several tables side by side."""
    rows = [x.reshape((-1, 1)) if x.ndim == 1 else x for x in xs]
    rows = [x.cast(dtypes.float32) for x in rows]
    return rows[0].cat(*rows[1:], dim=1) if len(rows) > 1 else rows[0]


def labels_of(ints: Ints | None, strings: list[str] | None) -> Array:
    """The names of classes: text or numbers."""
    if strings:
        return texts([word(s) for s in strings], (len(strings),))
    return np.asarray(ints or [0, 1], np.int64)


def post(values: Tensor, kind: str) -> Tensor:
    """Scores as post_transform says."""
    if kind == "SOFTMAX":
        return values.softmax(-1)
    if kind == "LOGISTIC":
        return values.sigmoid()
    if kind == "SOFTMAX_ZERO":
        return values.eq(0).where(0, values.softmax(-1))
    if kind != "NONE":
        raise UnsupportedError(f"post_transform {kind}")
    return values


@op("LinearRegressor", domain=ML)
def linear_regressor(
    x: Tensor,
    *,
    coefficients: Floats,
    intercepts: Floats | None = None,
    post_transform: str = "NONE",
    targets: int = 1,
) -> Tensor:
    """A product with coefficients and a sum."""
    weight = Tensor(np.asarray(coefficients, np.float32).reshape(targets, -1), device=x.device)
    y = x.cast(dtypes.float32).matmul(weight.transpose(0, 1))
    y = y if intercepts is None else y + Tensor(intercepts, device=x.device)
    return post(y, post_transform)


@op("LinearClassifier", domain=ML)
def linear_classifier(
    x: Tensor,
    *,
    classlabels_ints: Ints | None = None,
    classlabels_strings: list[str] | None = None,
    coefficients: Floats,
    intercepts: Floats | None = None,
    multi_class: int = 0,
    post_transform: str = "NONE",
    call: Any,
) -> Value:
    """The class with the greatest score, and the scores."""
    labels = labels_of(classlabels_ints, classlabels_strings)
    rows = len(intercepts) if intercepts else len(labels)
    weight = Tensor(np.asarray(coefficients, np.float32).reshape(rows, -1), device=x.device)
    scores = x.cast(dtypes.float32).matmul(weight.transpose(0, 1))
    scores = scores if intercepts is None else scores + Tensor(intercepts, device=x.device)
    if rows == 1:
        scores = (-scores).cat(scores, dim=1)
    return chosen(scores, labels, call), post(scores, post_transform)


def chosen(scores: Tensor, labels: Array, call: Any) -> Value:
    """The label of the greatest score of each row."""
    best = scores.argmax(-1)
    if labels.dtype == np.object_:
        return labels[call.read(best)]
    return call.tensor(labels)[best]


def encoded_values(*choices: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
    """The values that are there, the default of their kind, and the kind."""
    given = [choice for choice in choices if choice[0] is not None]
    if not given:
        raise UnsupportedError("no values")
    values, default, kind = given[0]
    if kind is None:
        kind = values.dtype
        absent = "_Unused" if kind == np.object_ else np.zeros((), kind)
        default = absent if default is None else default.reshape(-1)[0]
    return values, default, kind


@on_host("LabelEncoder", domain=ML)
def label_encoder(
    x: Array,
    *,
    default_float: float = -0.0,
    default_int64: int = -1,
    default_string: str = "_Unused",
    default_tensor: Array | None = None,
    keys_floats: Floats | None = None,
    keys_int64s: Ints | None = None,
    keys_strings: list[str] | None = None,
    keys_tensor: Array | None = None,
    values_floats: Floats | None = None,
    values_int64s: Ints | None = None,
    values_strings: list[str] | None = None,
    values_tensor: Array | None = None,
    classes_strings: list[str] | None = None,
) -> Array:
    """A value for each key; others get the default."""
    keys: Any = next(
        k for k in (keys_floats, keys_int64s, keys_strings, keys_tensor, [None]) if k is not None
    )
    values, default, kind = encoded_values(
        (values_floats, default_float, np.float32),
        (values_int64s, default_int64, np.int64),
        (values_strings, default_string, np.object_),
        (values_tensor, default_tensor, None),
    )
    plain = [word(k) if isinstance(k, (bytes, str)) else k for k in np.asarray(keys).reshape(-1)]
    table = dict(zip(plain, np.asarray(values, kind).reshape(-1)))
    nan = next((v for k, v in table.items() if isinstance(k, float) and np.isnan(k)), None)
    found = []
    for item in x.reshape(-1):
        key = word(item) if isinstance(item, (bytes, str)) else item
        if isinstance(key, np.floating) and np.isnan(key) and nan is not None:
            found.append(nan)
        else:
            found.append(table.get(key, default))
    if np.dtype(kind) == np.object_:
        return texts([word(v) for v in found], x.shape)
    return np.asarray(found, kind).reshape(x.shape)


@op("OneHotEncoder", domain=ML, raw=True)
def one_hot_encoder(
    x: Value,
    *,
    cats_int64s: Ints | None = None,
    cats_strings: list[str] | None = None,
    zeros: int = 1,
    call: Any,
) -> Value:
    """A column for each category."""
    if cats_strings:
        values = np.vectorize(word, otypes=[np.object_])(x)
        return (values[..., None] == labels_of(None, cats_strings)).astype(np.float32)
    cats = Tensor(np.asarray(cats_int64s, np.int64), device=call.device)
    return call.tensor(x).cast(dtypes.int64).unsqueeze(-1).eq(cats).cast(dtypes.float32)


@op("ZipMap", domain=ML, raw=True)
def zip_map(
    x: Value,
    *,
    classlabels_int64s: Ints | None = None,
    classlabels_strings: list[str] | None = None,
    call: Any,
) -> Value:
    """A dict of label -> score for each row."""
    names: list[Any] = list(classlabels_strings or classlabels_int64s or [])
    return [dict(zip(names, row.tolist())) for row in call.read(x)]


@op("TreeEnsemble", domain=ML, host="x")
def tree_ensemble(
    x: Array,
    *,
    aggregate_function: int = 1,
    leaf_targetids: Ints,
    leaf_weights: Array,
    membership_values: Array | None = None,
    n_targets: int = 1,
    nodes_falseleafs: Ints,
    nodes_falsenodeids: Ints,
    nodes_featureids: Ints,
    nodes_hitrates: Array | None = None,
    nodes_missing_value_tracks_true: Ints | None = None,
    nodes_modes: Array,
    nodes_splits: Array,
    nodes_trueleafs: Ints,
    nodes_truenodeids: Ints,
    post_transform: int = 0,
    tree_roots: Ints,
) -> Array:
    """Sums (or means, or extremes) of the leaves that each row comes to in each tree."""
    if post_transform:
        raise UnsupportedError(f"post_transform {post_transform}")
    members = iter(() if membership_values is None else membership_values.tolist())
    sets: dict[int, list[float]] = {}
    modes = nodes_modes.reshape(-1).tolist()
    for at, mode in enumerate(modes):
        if mode == 6:
            sets[at] = []
            for value in members:
                if value != value:
                    break
                sets[at].append(value)
    compare: list[Any] = [
        np.less_equal, np.less, np.greater_equal, np.greater, np.equal, np.not_equal,
    ]  # fmt: skip
    results: list[list[list[float]]] = [[[] for _ in range(n_targets)] for _ in x]
    for row, kept in zip(x, results):
        for root in tree_roots:
            at, is_leaf = root, False
            for _ in range(len(modes) + 1):
                value = row[nodes_featureids[at]]
                if np.isnan(value):
                    hit = bool(
                        nodes_missing_value_tracks_true and nodes_missing_value_tracks_true[at]
                    )
                elif at in sets:
                    hit = float(value) in sets[at]
                else:
                    hit = bool(compare[modes[at]](value, nodes_splits[at]))
                is_leaf = bool((nodes_trueleafs if hit else nodes_falseleafs)[at])
                at = (nodes_truenodeids if hit else nodes_falsenodeids)[at]
                if is_leaf:
                    break
            if not is_leaf:
                raise UnsupportedError("a tree without an end")
            kept[leaf_targetids[at]].append(float(leaf_weights[at]))
    fold: Any = [lambda v: sum(v) / len(tree_roots), sum, min, max][aggregate_function]
    values = [[fold(v) if v else 0.0 for v in row] for row in results]
    return np.asarray(values, x.dtype).reshape(len(x), n_targets)
