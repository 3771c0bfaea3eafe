"""Computes linear algebra of square matrices: systems, inverses, determinants, eigenvalues, powers.

Receives stacks of matrices [*b, n, n] and returns tensors. Columns are worked off one after the
other, each in a few kernels over the whole matrix. Gradients of most are those of the result and
not of the way to it (`matrix_gradient`); inverses and solutions X0 are refined once, as in
X0 + X0 @ (I - A @ X0). A matrix without an inverse gives infinities or NaN, since nothing is
computed yet that an error could be told from.
"""

from __future__ import annotations

import math
from typing import Any

from aster_ml.dtype import DType, dtypes, least_upper_dtype
from aster_ml.errors import ShapeError
from aster_ml.ops import Self
from aster_ml.ops.linalg import matrix_sizes, wide_floats, with_rule
from aster_ml.ops.movement import broadcast_shapes
from aster_ml.uop.infer import show_shape


def square_matrix(self: Self, what: str) -> Any:
    """Self as floats of at least 32 bits. Raises: ShapeError unless rows equal columns."""
    m, n = matrix_sizes(self, what)
    if m != n:
        raise ShapeError(f"{what}: {show_shape(self.shape)}; a square matrix is wanted")
    return wide_floats(self)


def _eye_like(self: Self) -> Any:
    """The identity matrix of our size, dtype and device."""
    places = self.arange(self.shape[-1], device=self.device)
    return places.unsqueeze(-1).eq(places).cast(self.dtype)


def det(self: Self) -> Any:
    """The determinant.

    Shapes: self [*b, n, n] -> [*b].
    Raises: ShapeError unless rows equal columns.
    """
    upper, sign = eliminated(square_matrix(self, "det"))
    return upper.diagonal(dim1=-2, dim2=-1).prod(-1) * sign


def slogdet(self: Self) -> tuple[Any, Any]:
    """The sign of the determinant and the logarithm of its size, which does not overflow.

    Shapes: self [*b, n, n] -> [*b], [*b].
    Raises: ShapeError unless rows equal columns.
    """
    upper, sign = eliminated(square_matrix(self, "slogdet"))
    pivots = upper.diagonal(dim1=-2, dim2=-1)
    return (pivots.sign().prod(-1) * sign).detach(), pivots.abs().log().sum(-1)


def inv(self: Self) -> Any:
    """The inverse.

    Shapes: self [*b, n, n] -> [*b, n, n].
    Raises: ShapeError unless rows equal columns.
    """
    a = square_matrix(self, "inv")
    fixed = a.detach()
    found = inverse_of(fixed)
    refined = found + found.dot(a._eye_like() - fixed.dot(found))
    return with_rule("inverse", found.isfinite().where(refined, found), a)


def solve(self: Self, other: Any) -> Any:
    """X with self @ X = other, for a matrix or, where it has one axis, a vector.

    Shapes: self [*b, n, n], other [*b, n, k] -> [*b, n, k]; b broadcasts.
    Dtype: what both promote to, and at least float32.
    Raises: ShapeError unless rows equal columns.
    """
    a, b = square_matrix(self, "solve"), wide_floats(other)
    dtype = least_upper_dtype(a.dtype, b.dtype)
    a, b = a.cast(dtype), b.cast(dtype)
    if other.ndim == 1:
        return a.solve(b.unsqueeze(-1)).squeeze(-1)
    lead = broadcast_shapes("solve", a.shape[:-2], b.shape[:-2])
    inverse = a.inv()
    found = inverse.detach()
    first = found.dot(b.detach())
    refined = first + found.dot(b.detach() - a.detach().dot(first))
    value = first.isfinite().where(refined, first)
    nodes = [x.expand((*lead, *x.shape[-2:])) for x in (a, b, inverse)]
    return with_rule("solution", value, *nodes)


def cholesky(self: Self, upper: bool = False) -> Any:
    """Lower triangular L with L @ L^T = self, or its transpose where `upper`.

    Of a symmetric matrix; NaN where it is not positive definite.

    Shapes: self [*b, n, n] -> [*b, n, n].
    Raises: ShapeError unless rows equal columns.
    """
    a = square_matrix(self, "cholesky")
    n = a.shape[-1]
    rest = (a + a.mT) * 0.5
    rows = self.arange(n, device=self.device)
    columns = []
    for k in range(n):
        column = rest.shrink([*[None] * (a.ndim - 1), (k, k + 1)]).squeeze(-1)
        pivot = column.shrink([*[None] * (a.ndim - 2), (k, k + 1)])
        column = (rows >= k).where(column / pivot.sqrt(), 0)
        columns.append(column)
        if k + 1 < n:
            rest = (rest - column.unsqueeze(-1) * column.unsqueeze(-2)).contiguous()
    lower = columns[0].stack(*columns[1:], dim=-1) if columns else a
    return lower.mT if upper else lower


def eigh(self: Self) -> tuple[Any, Any]:
    """Eigenvalues of a symmetric matrix, rising, and eigenvectors as columns.

    Shifted by more than its greatest eigenvalue the matrix is positive, and its singular
    vectors are its eigenvectors.

    Shapes: self [*b, n, n] -> [*b, n], [*b, n, n].
    Raises: ShapeError unless rows equal columns.
    """
    a = square_matrix(self, "eigh")
    a = (a + a.mT) * 0.5
    if a.shape[-1] == 0:
        return a.sum(-1), a
    fixed = a.detach().contiguous()
    shift = fixed.abs().sum(-1, keepdim=True).max(-2, keepdim=True)
    _, _, vt = (fixed + shift * a._eye_like()).svd()
    found = vt.flip(-2).mT.contiguous().detach()
    values = (found * fixed.dot(found)).sum(-2, keepdim=True)
    vectors = with_rule("eigenvectors", found, a)
    return with_rule("eigenvalues", values, a, vectors).squeeze(-2), vectors


def eigvalsh(self: Self) -> Any:
    """Eigenvalues of a symmetric matrix, rising.

    Shapes: self [*b, n, n] -> [*b, n].
    Raises: ShapeError unless rows equal columns.
    """
    return self.eigh()[0]


def matrix_power(self: Self, n: int) -> Any:
    """The product of `n` times self; of its inverse where `n` is negative.

    Shapes: self [*b, m, m], n=3 -> [*b, m, m].
    Raises: ShapeError unless rows equal columns.
    """
    matrix_sizes(self, "matrix_power")
    base: Any = self.inv() if n < 0 else self
    result: Any = None
    for bit in bin(abs(n))[:1:-1]:
        if bit == "1":
            result = base if result is None else result.dot(base)
        base = base.dot(base)
    return self._eye_like().expand(self.shape) if result is None else result


def matrix_rank(self: Self, rtol: Any = None) -> Any:
    """Counts the singular values that exceed `rtol` times the greatest.

    Without `rtol`, max(m, n) times the epsilon of the dtype of self: 2**-10 of float16.

    Shapes: self [*b, m, n] -> [*b].
    Dtype: the default int.
    """
    values = wide_floats(self).svd(False)[1]
    least = values.max(-1, keepdim=True) * tolerance(self, rtol)
    return (values > least).sum(-1)


def pinv(self: Self, rtol: Any = None) -> Any:
    """The inverse of Moore and Penrose; singular values up to `rtol` of the greatest are 0.

    Without `rtol`, max(m, n) times the epsilon of the dtype of self: 2**-10 of float16.

    Shapes: self [*b, m, n] -> [*b, n, m].
    Dtype: that of self for floats of at least 32 bits, else float32 or the default float.
    """
    a: Any = wide_floats(self)
    fixed = a.detach().contiguous()
    u, s, vt = fixed.svd(False)
    kept = s > s.max(-1, keepdim=True) * tolerance(self, rtol)
    inverse = kept.where(kept.where(s, 1).reciprocal(), 0)
    p = (vt.mT * inverse.unsqueeze(-2)).dot(u.mT).contiguous()
    return with_rule("pseudo-inverse", p, a)


def cross(self: Self, other: Any, axis: int = -1) -> Any:
    """The vector at right angles to two of three elements each.

    Shapes: self [*b, 3], other [*b, 3] -> [*b, 3]; b broadcasts.
    Raises: ShapeError unless the axis has size 3.
    """
    x: Any
    x, y = self._broadcasted(other)
    axis = x._resolve_axis(axis, "cross")
    if x.shape[axis] != 3:
        raise ShapeError(f"cross: axis {axis} of {show_shape(x.shape)}; size 3 is wanted")
    return x.roll(-1, axis) * y.roll(-2, axis) - x.roll(-2, axis) * y.roll(-1, axis)


def tolerance(x: Any, rtol: Any) -> Any:
    """The relative size below which a singular value of `x` is none.

    Numbers of fewer bits hide it sooner, so the epsilon is that of the dtype that was given.
    """
    if rtol is None:
        return max(x.shape[-2:]) * epsilon(x._floating().dtype)
    return rtol.unsqueeze(-1) if hasattr(rtol, "unsqueeze") else rtol


def epsilon(dtype: DType) -> float:
    """Distance from 1 to the next number above."""
    return float(2.0 ** -dtypes.finfo(dtype)[1])


def pivot_rows(work: Any, k: int) -> tuple[Any, Any, Any]:
    """Which row, of those from k on, has the largest element of column k.

    Returns that row and the row k, and where the pivot is, as ones and zeros over rows.
    """
    lead = [None] * (work.ndim - 2)
    n = work.shape[-2]
    rows = work.arange(n, device=work.device)
    column = work.detach().shrink([*lead, None, (k, k + 1)]).squeeze(-1)
    size = (rows >= k).where(column.isnan().where(math.inf, column.abs()), -1.0)
    place = rows.eq(size.argmax(-1, keepdim=True))
    chosen = place.unsqueeze(-1).where(work, 0).sum(-2, keepdim=True)
    return chosen, work.shrink([*lead, (k, k + 1), None]), place


def swapped(work: Any, k: int) -> tuple[Any, Any, Any]:
    """`work` with its pivot row in row k, that row, and -1 where two were exchanged, else 1."""
    chosen, own, place = pivot_rows(work, k)
    rows = work.arange(work.shape[-2], device=work.device)
    here = rows.eq(k)
    work = place.unsqueeze(-1).where(own, work)
    work = here.unsqueeze(-1).where(chosen, work)
    turned = (place & here).any(-1)
    return work, chosen, turned.where(work.ufix(1.0), -1.0)


def eliminated(a: Any) -> tuple[Any, Any]:
    """An upper triangular matrix with the determinant of `a`, up to a sign, and the sign.

    The pivot of each step is the largest element that is left, so that zeros come last: what
    divides by a pivot is multiplied by it in the determinant, and its gradient is that of cofactors
    whatever the rank.
    """
    n = a.shape[-1]
    work = a
    sign = a._full_of(a.shape[:-2], 1)
    lead = [None] * (a.ndim - 2)
    places = a.arange(n, device=a.device)
    for k in range(n - 1):
        for axis, place in largest_left(work.abs(), k):
            work, turned = exchanged(work, k, place, axis)
            sign = sign * turned
        pivot = work.shrink([*lead, (k, k + 1), (k, k + 1)])
        row = work.shrink([*lead, (k, k + 1), None])
        column = work.shrink([*lead, None, (k, k + 1)])
        factor = (places.unsqueeze(-1) > k).where(column / pivot.eq(0).where(1, pivot), 0)
        work = (work - factor * row).contiguous()
        sign = sign.contiguous()
    return work, sign


def largest_left(size: Any, k: int) -> list[tuple[int, Any]]:
    """For both axes, where the largest of the sizes is that k steps have left.

    Each is one-hot bools, of shape [*b, n], for a size of [*b, n, n].
    """
    n = size.shape[-1]
    places = size.arange(n, device=size.device)
    size = size.detach()
    left = (places.unsqueeze(-1) >= k) & (places >= k)
    ranked = left.where(size.isnan().where(math.inf, size), -1.0)
    at = ranked.flatten(-2).argmax(-1, keepdim=True)
    return [(-2, places.eq(at // n)), (-1, places.eq(at % n))]


def exchanged(work: Any, k: int, place: Any, axis: int) -> tuple[Any, Any]:
    """`work` with row (axis -2) or column k and the one at `place` exchanged, and their sign.

    Shapes: work [*b, n, n], place bool [*b, n] -> [*b, n, n], [*b].
    """
    here = work.arange(work.shape[-1], device=work.device).eq(k)
    # Places along the axis, and -1 where an exchange is one.
    there, own = (x.unsqueeze(-1 if axis == -2 else -2) for x in (place, here))
    chosen = there.where(work, 0).sum(axis, keepdim=True)
    former = own.where(work, 0).sum(axis, keepdim=True)
    work = own.where(chosen, there.where(former, work))
    return work, (place & here).any(-1).where(work.ufix(1.0), -1.0)


def inverse_of(a: Any) -> Any:
    """The inverse by Gauss and Jordan, with the largest pivot of each column."""
    n = a.shape[-1]
    if n == 0:
        return a
    eye = a._eye_like().expand(a.shape)
    work = a.cat(eye, dim=-1).contiguous()
    lead = [None] * (a.ndim - 2)
    for k in range(n):
        work, chosen, _ = swapped(work, k)
        chosen = chosen / chosen.shrink([*lead, None, (k, k + 1)])
        rows = work.arange(n, device=work.device).unsqueeze(-1)
        column = work.shrink([*lead, None, (k, k + 1)])
        work = rows.eq(k).where(chosen, work - column * chosen).contiguous()
    return work.shrink([*lead, None, (n, 2 * n)])
