"""Computes operators on text, as NumPy arrays of objects on the host."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from aster_ml.errors import ShapeError, UnsupportedError
from aster_ml.onnx.ops.registry import Array, on_host


def word(value: Any) -> str:
    """An element of text as str."""
    return value.decode() if isinstance(value, bytes) else str(value)


def texts(values: list[Any], shape: tuple[int, ...]) -> Array:
    """An array of text."""
    result = np.empty(len(values), np.object_)
    result[:] = values
    return result.reshape(shape)


@on_host("StringConcat")
def string_concat(x: Array, y: Array) -> Array:
    """One text behind the other; shapes broadcast."""
    a, b = np.broadcast_arrays(x, y)
    return texts([word(p) + word(q) for p, q in zip(a.reshape(-1), b.reshape(-1))], a.shape)


@on_host("StringSplit")
def string_split(
    x: Array, *, delimiter: str | None = None, maxsplit: int | None = None
) -> tuple[Array, Array]:
    """The parts of each text, filled with empty ones, and how many there are."""
    most = -1 if maxsplit is None else maxsplit
    rows = [word(item).split(delimiter or None, most) for item in x.reshape(-1)]
    width = max([len(row) for row in rows], default=0)
    filled = [part for row in rows for part in [*row, *[""] * (width - len(row))]]
    counts = np.asarray([len(row) for row in rows], np.int64).reshape(x.shape)
    return texts(filled, (*x.shape, width)), counts


@on_host("RegexFullMatch")
def regex_full_match(x: Array, *, pattern: str | None = None) -> Array:
    """Tests whether each text matches a pattern wholly."""
    try:
        wanted = re.compile(pattern or "")
    except re.error as error:
        raise UnsupportedError(f"pattern {pattern!r}: {error}") from error
    found = [wanted.fullmatch(word(item)) is not None for item in x.reshape(-1)]
    return np.asarray(found, np.bool_).reshape(x.shape)


@on_host("StringNormalizer")
def string_normalizer(
    x: Array,
    *,
    case_change_action: str = "NONE",
    is_case_sensitive: int = 0,
    locale: str | None = None,
    stopwords: list[str] | None = None,
) -> Array:
    """Texts in one case, without some words; one empty text where none is left."""
    if x.ndim not in (1, 2) or (x.ndim == 2 and x.shape[0] != 1):
        raise ShapeError(f"texts of the shape {list(x.shape)}; [n] or [1, n] is wanted")
    stop = set(stopwords or []) if is_case_sensitive else {s.lower() for s in stopwords or []}
    kept = [word(item) for item in x.reshape(-1)]
    kept = [item for item in kept if (item if is_case_sensitive else item.lower()) not in stop]
    if case_change_action == "LOWER":
        kept = [item.lower() for item in kept]
    elif case_change_action == "UPPER":
        kept = [item.upper() for item in kept]
    kept = kept or [""]
    return texts(kept, (len(kept),) if x.ndim == 1 else (1, len(kept)))


@on_host("TfIdfVectorizer")
def tf_idf_vectorizer(
    x: Array,
    *,
    max_gram_length: int,
    max_skip_count: int,
    min_gram_length: int,
    mode: str,
    ngram_counts: list[int],
    ngram_indexes: list[int],
    pool_int64s: list[int] | None = None,
    pool_strings: list[str] | None = None,
    weights: list[float] | None = None,
) -> Array:
    """Counts each of a list of runs of words (with gaps), weighted."""
    pool: list[Any] = list(pool_strings or pool_int64s or [])
    grams: dict[tuple[Any, ...], int] = {}
    ends = [*ngram_counts[1:], len(pool)]
    for length, (start, end) in enumerate(zip(ngram_counts, ends), 1):
        for at in range(start, end, length):
            grams[tuple(pool[at : at + length])] = len(grams)
    rows = x.reshape(1, -1) if x.ndim < 2 else x
    size = max(ngram_indexes) + 1
    result = np.zeros((len(rows), size), np.float32)
    for number, row in enumerate(rows):
        items = [word(v) if pool_strings else int(v) for v in row]
        for length in range(min_gram_length, max_gram_length + 1):
            # The words of a run of one have no gaps between them.
            for skip in range(1, (1 if length == 1 else max_skip_count + 1) + 1):
                for start in range(len(items) - (length - 1) * skip):
                    gram = tuple(items[start : start + length * skip : skip][:length])
                    if gram in grams:
                        result[number, ngram_indexes[grams[gram]]] += 1
    factors = np.ones(size, np.float32)
    for place, weight in zip(ngram_indexes, weights or []):
        factors[place] = weight
    if mode == "IDF":
        result = (result > 0) * factors
    elif mode == "TFIDF":
        result = result * factors
    result = result.astype(np.float32)
    return result[0] if x.ndim < 2 else result
