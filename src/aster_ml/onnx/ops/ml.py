"""Computes operators of the domain ai.onnx.ml: classical models on tables of numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from aster_ml import Tensor, dtypes
from aster_ml.errors import DTypeError, FormatError, ShapeError, UnsupportedError
from aster_ml.onnx.ops.registry import ML, Array, Value, on_host, op
from aster_ml.onnx.ops.text import texts, word

Floats = list[float]
Ints = list[int]
# A map that is placed by its keys has no more of them.
MOST_OF_MAP = 1 << 24


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


POSTS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")
# Winitzki's approximation of the inverse error function has this constant; onnxruntime and ONNX's
# reference have it too, so that its 0.2% are a part of what PROBIT means.
WINITZKI = 0.147


def probit(values: Tensor) -> Tensor:
    """The place up to which a standard normal distribution has this share, approximately."""
    x = values * 2 - 1
    log = ((1 - x) * (1 + x)).log()
    half = 2 / (np.pi * WINITZKI) + 0.5 * log
    size = ((half.square() - log / WINITZKI).sqrt() - half).sqrt()
    return (x < 0).where(-size, size) * 2**0.5


def softmax_zero(values: Tensor) -> Tensor:
    """Softmax of what is not 0; zeros stay."""
    power = (values - values.max(-1, keepdim=True)).exp()
    power = (values.abs() > 1e-7).where(power, 0)
    return power / power.sum(-1, keepdim=True)


def post(values: Tensor, kind: str) -> Tensor:
    """Scores as post_transform says; those of one column as onnxruntime has it, which is PROBIT."""
    makers: dict[str, Any] = {
        "NONE": lambda: values, "SOFTMAX": lambda: values.softmax(-1),
        "LOGISTIC": values.sigmoid, "SOFTMAX_ZERO": lambda: softmax_zero(values),
        "PROBIT": lambda: probit(values),
    }  # fmt: skip
    if kind not in makers:
        raise UnsupportedError(f"post_transform {kind!r}; there are {', '.join(POSTS)}")
    is_one = values.shape[-1] == 1 and kind != "PROBIT"
    return values if is_one else makers[kind]()


def two_columns(one: Tensor, kind: str, is_share: bool) -> Tensor:
    """Scores of both classes, from those of the second [rows, 1]: a share, or a distance from 0."""
    if kind == "PROBIT":
        return probit(one)
    both = (-one).cat(one, dim=1)
    if kind == "LOGISTIC":
        return both.sigmoid()
    return (1 - one).cat(one, dim=1) if is_share else both


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
    if rows == 1 and len(labels) == 2:
        best = (scores > 0).cast(dtypes.int32).reshape((-1,))
        return picked(best, labels, call), two_columns(scores, post_transform, True)
    return picked(scores.argmax(-1), labels, call), post(scores, post_transform)


def picked(best: Tensor, labels: Array, call: Any) -> Value:
    """The label of each row, by its number."""
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


@on_host("CategoryMapper", domain=ML)
def category_mapper(
    x: Array,
    *,
    cats_int64s: Ints | None = None,
    cats_strings: list[str] | None = None,
    default_int64: int = -1,
    default_string: str = "_Unused",
) -> Array:
    """Numbers for text, and text for numbers."""
    names, numbers = [word(name) for name in cats_strings or []], cats_int64s or []
    if len(names) != len(numbers):
        raise FormatError(f"{len(names)} cats_strings and {len(numbers)} cats_int64s")
    flat = x.reshape(-1)
    if x.dtype == np.object_:
        by_name = dict(zip(names, numbers))
        found = [by_name.get(word(item), default_int64) for item in flat]
        return np.asarray(found, np.int64).reshape(x.shape)
    if x.dtype.kind not in "iu":
        raise DTypeError(f"CategoryMapper wants text or integers, given {x.dtype}")
    by_number = dict(zip(numbers, names))
    return texts([by_number.get(int(item), word(default_string)) for item in flat], x.shape)


def mapping(value: Value) -> dict[Any, Any]:
    """A map, whose text is str."""
    if not isinstance(value, dict):
        raise DTypeError(f"a map is wanted, given {type(value).__name__}")
    return {word(k) if isinstance(k, bytes) else k: v for k, v in value.items()}


@op("DictVectorizer", domain=ML, raw=True)
def dict_vectorizer(
    x: Value,
    *,
    int64_vocabulary: Ints | None = None,
    string_vocabulary: list[str] | None = None,
) -> Array:
    """The values of a map in the order of a list of keys, 0 for those that are absent."""
    known: list[Any] = [word(key) for key in string_vocabulary or []]
    known += int64_vocabulary or []
    given = mapping(x)
    is_text = any(isinstance(value, (str, bytes)) for value in given.values())
    row = [given.get(key, "" if is_text else 0) for key in known]
    if is_text:
        return texts([word(value) for value in row], (1, len(row)))
    whole = all(isinstance(value, (int, np.integer)) for value in given.values())
    return np.asarray([row], np.int64 if whole else np.float32)


@op("CastMap", domain=ML, raw=True)
def cast_map(
    x: Value, *, cast_to: str = "TO_FLOAT", map_form: str = "DENSE", max_map: int = 1
) -> Array:
    """The values of a map in the order of their keys; SPARSE places them by their keys."""
    given = mapping(x)
    row: list[Any] = [given[key] for key in sorted(given)]
    if map_form == "SPARSE":
        if not 0 < max_map <= MOST_OF_MAP or any(not 0 <= key < max_map for key in given):
            raise ShapeError(f"keys of a map that are not within 0 to {max_map - 1}")
        row = [given.get(at, 0) for at in range(max_map)]
    elif map_form != "DENSE":
        raise UnsupportedError(f"map_form {map_form!r}; there are DENSE and SPARSE")
    if cast_to == "TO_STRING":
        return texts([word(value) for value in row], (1, len(row)))
    if cast_to not in ("TO_FLOAT", "TO_INT64"):
        raise UnsupportedError(f"cast_to {cast_to!r}; there are TO_FLOAT, TO_INT64, TO_STRING")
    kind = np.float32 if cast_to == "TO_FLOAT" else np.int64
    return np.asarray([[float(value) for value in row]], np.float64).astype(kind)
