"""Defines the extension `linalg`: products, decompositions, systems, norms.

Receives stacks of matrices and vectors, real or complex; returns arrays, or tuples of them by name.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from aster_ml.array_api.arrange import (
    accumulated,
    matmul,
    matrix_transpose,
    tensordot,
    vecdot,
)
from aster_ml.array_api.array import as_array, as_pair
from aster_ml.complex import ComplexTensor

__all__ = [
    "cholesky", "cross", "det", "diagonal", "eigh", "eigvalsh", "inv", "matmul", "matrix_norm",
    "matrix_power", "matrix_rank", "matrix_transpose", "outer", "pinv", "qr", "slogdet", "solve",
    "svd", "svdvals", "tensordot", "trace", "vecdot", "vector_norm",
]  # fmt: skip


class EighResult(NamedTuple):
    """Result of `eigh`."""

    eigenvalues: Any
    eigenvectors: Any


class QRResult(NamedTuple):
    """Result of `qr`."""

    Q: Any
    R: Any


class SlogdetResult(NamedTuple):
    """Result of `slogdet`."""

    sign: Any
    logabsdet: Any


class SVDResult(NamedTuple):
    """Result of `svd`."""

    U: Any
    S: Any
    Vh: Any


def cholesky(x: Any, /, *, upper: bool = False) -> Any:
    """The triangular factor of a positive matrix."""
    return as_array(x).cholesky(upper)


def cross(x1: Any, x2: Any, /, *, axis: int = -1) -> Any:
    """The vector at right angles to two."""
    one, two = as_pair(x1, x2)
    return one.cross(two, axis)


def det(x: Any, /) -> Any:
    """The determinant."""
    return as_array(x).det()


def diagonal(x: Any, /, *, offset: int = 0) -> Any:
    """The diagonals of matrices."""
    return as_array(x).diagonal(offset, -2, -1)


def eigh(x: Any, /) -> EighResult:
    """Eigenvalues, rising, and eigenvectors of symmetric matrices."""
    return EighResult(*as_array(x).eigh())


def eigvalsh(x: Any, /) -> Any:
    """Eigenvalues of symmetric matrices, rising."""
    return as_array(x).eigvalsh()


def inv(x: Any, /) -> Any:
    """The inverse."""
    return as_array(x).inv()


def matrix_power(x: Any, n: int, /) -> Any:
    """The product of so many times a matrix."""
    return as_array(x).matrix_power(n)


def matrix_rank(x: Any, /, *, rtol: Any = None) -> Any:
    """Counts the singular values that are not 0."""
    return as_array(x).matrix_rank(rtol)


def pinv(x: Any, /, *, rtol: Any = None) -> Any:
    """The inverse of Moore and Penrose."""
    return as_array(x).pinv(rtol)


def outer(x1: Any, x2: Any, /) -> Any:
    """All products of elements of two vectors."""
    one, two = as_pair(x1, x2)
    return one.unsqueeze(-1) * two.unsqueeze(0)


def qr(x: Any, /, *, mode: str = "reduced") -> QRResult:
    """An orthogonal and an upper triangular factor."""
    x = as_array(x)
    q, r = x.qr()
    if mode == "complete":
        return QRResult(q, r)
    k = min(x.shape[-2:])
    return QRResult(q[..., :k], r[..., :k, :])


def slogdet(x: Any, /) -> SlogdetResult:
    """The sign of the determinant and the logarithm of its size."""
    return SlogdetResult(*as_array(x).slogdet())


def solve(x1: Any, x2: Any, /) -> Any:
    """What, multiplied by `x1`, is `x2`."""
    one, two = as_pair(x1, x2)
    return one.solve(two)


def svd(x: Any, /, *, full_matrices: bool = True) -> SVDResult:
    """Two orthogonal matrices and the singular values between them."""
    return SVDResult(*as_array(x).svd(full_matrices))


def svdvals(x: Any, /) -> Any:
    """Singular values, falling."""
    x = as_array(x)
    return x.svdvals() if isinstance(x, ComplexTensor) else x.svd(False)[1]


def trace(x: Any, /, *, offset: int = 0, dtype: Any = None) -> Any:
    """The sum of a diagonal."""
    x = accumulated(diagonal(x, offset=offset), dtype)
    return x.sum(-1).cast(x.dtype)


def vector_norm(x: Any, /, *, axis: Any = None, keepdims: bool = False, ord: float = 2) -> Any:
    """The norm of vectors along axes, of any order."""
    x = as_array(x)
    size = x.abs()
    if ord == math.inf:
        return size.max(axis, keepdims)
    if ord == -math.inf:
        return size.min(axis, keepdims)
    if ord == 0:
        return size.ne(0).cast(size.dtype).sum(axis, keepdims)
    if ord == 1:
        return size.sum(axis, keepdims)
    if ord == 2:
        return (size * size).sum(axis, keepdims).sqrt()
    return (size**ord).sum(axis, keepdims) ** (1 / ord)


def matrix_norm(x: Any, /, *, keepdims: bool = False, ord: Any = "fro") -> Any:
    """The norm of matrices."""
    x = as_array(x)
    if ord in ("fro", None):
        return vector_norm(x, axis=(-2, -1), keepdims=keepdims)
    if ord in (1, -1, math.inf, -math.inf):
        axis = -2 if abs(ord) == 1 else -1
        sums = x.abs().sum(axis, True)
        found = sums.max((-2, -1), True) if ord > 0 else sums.min((-2, -1), True)
    else:
        values = svdvals(x)
        found = {"nuc": values.sum, 2: values.max, -2: values.min}[ord](-1)
        found = found.unsqueeze(-1).unsqueeze(-1)
    return found if keepdims else found.squeeze(-1).squeeze(-1)
