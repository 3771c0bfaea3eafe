"""Random calls of `aster_ml.array_api`, against array-api-strict, which NumPy computes.

Values, dtypes and shapes are compared, at signed zeros, infinities and NaN as well.
"""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import aster_ml.array_api as xp
from aster_ml import Tensor
from aster_ml.complex import ComplexTensor
from tests.fuzz.array_api_calls import drawn
from tests.fuzz.budget import check_all, draws

strict = pytest.importorskip("array_api_strict", reason="array-api-strict is absent")

# Parts of complex results at infinities whose signs C leaves open, or that NumPy has otherwise.
LOOSE = frozenset(
    "acos acosh asin asinh atan atanh cos cosh exp expm1 log log10 log1p log2 sin sinh sqrt tan "
    "tanh reciprocal square sign pow divide".split()
)


# Results that many elements go into.
SPREAD = frozenset(
    "operator linalg fft matmul tensordot vecdot sum prod cumulative_sum cumulative_prod "
    "mean".split()
)


def converted(value: Any, make: Callable[[Any], Any]) -> Any:
    """Arguments with arrays of one package."""
    if isinstance(value, list):
        return [converted(v, make) for v in value]
    return make(np.array(value)) if isinstance(value, np.ndarray | np.generic) else value


def written(x: Any, key: Any, value: Any) -> Any:
    """The array with other elements at some places."""
    x[key] = value
    return x


def found(namespace: Any, name: str) -> Any:
    """A function of a namespace, of Python, or of this module."""
    if name in ("getitem", "written"):
        return operator.getitem if name == "getitem" else written
    if name.startswith("operator."):
        return getattr(operator, name.partition(".")[2])
    for part in name.split("."):
        namespace = getattr(namespace, part)
    return namespace


def difference(got: Any, want: Any, name: str) -> str | None:
    """What is wrong with a result; None if nothing is."""
    if isinstance(want, (tuple, list)):
        if len(got) != len(want):
            return f"{len(got)} results, wanted {len(want)}"
        pairs = [difference(g, w, name) for g, w in zip(got, want)]
        return next((p for p in pairs if p is not None), None)
    wanted = np.asarray(want._array)
    if not isinstance(got, Tensor | ComplexTensor):
        return f"a {type(got).__name__}"
    mine = got.numpy()
    if mine.shape != wanted.shape:
        return f"shape {mine.shape}, wanted {wanted.shape}"
    kinds = (str(mine.dtype), str(wanted.dtype))
    # The default int and float have fewer bits here.
    same_kind = mine.dtype.kind == wanted.dtype.kind
    if kinds[0] != kinds[1] and not (same_kind and kinds[1] in ("int64", "uint64", "float64")):
        return f"dtype {kinds[0]}, wanted {kinds[1]}"
    if wanted.dtype.kind not in "fc":
        bits = np.array_equal(mine, wanted.astype(mine.dtype))
        return None if bits else f"{mine.tolist()}, wanted {wanted.tolist()}"
    return inexact(mine, wanted, name)


def inexact(mine: Any, wanted: Any, name: str) -> str | None:
    """The same for floats: close, and equal in what is infinite and NaN."""
    eps = float(np.finfo(mine.dtype).eps)
    whole = np.isfinite(wanted) & np.isfinite(mine)
    scale = np.abs(wanted)[whole]
    far = np.abs(mine[whole] - wanted[whole])
    big = scale.max(initial=1.0)
    # A matrix is judged by its greatest element, what is by element by its own.
    spread = name.partition(".")[0] in SPREAD
    slack = (8192 if spread else 256) * eps * (big if spread else np.maximum(scale, 1e-30))
    small = name in ("sin", "cos", "tan", "pow", "logaddexp", "remainder", "std", "var", "diff")
    if (far > slack + (256 * eps if small else 0)).any():
        return f"{mine.tolist()}, wanted {wanted.tolist()}"
    loose = wanted.dtype.kind == "c" and name in LOOSE
    pairs = [(mine, wanted)] if wanted.dtype.kind == "f" else [
        (mine.real, wanted.real), (mine.imag, wanted.imag)
    ]  # fmt: skip
    for g, w in pairs:
        if loose:
            continue
        odd = ~np.isfinite(w) | ~np.isfinite(g)
        if not np.array_equal(g[odd], w[odd].astype(g.dtype), equal_nan=True):
            return f"{mine.tolist()}, wanted {wanted.tolist()}"
    return None


def check(seed: int) -> str | None:
    """One call."""
    name, args, keywords = drawn(seed)
    call = f"{name}({args}, {keywords})"
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = {k: converted(v, strict.asarray) for k, v in keywords.items()}
        want = found(strict, name)(*converted(args, strict.asarray), **theirs)

    def on_device(a: Any) -> Any:
        # Small kernels are interpreted in a tenth of the time that compiling takes.
        return xp.asarray(a, device="PYTHON" if seed % 6 else "CPU")

    ours = {k: converted(v, on_device) for k, v in keywords.items()}
    got = found(xp, name)(*converted(args, on_device), **ours)
    wrong = difference(got, want, name)
    return None if wrong is None else f"{call[:400]}: {wrong[:300]}"


def test_calls_are_the_standards(record_property: Callable[[str, str], None]) -> None:
    check_all("array API", draws(60, 5000), check, record_property)
