"""Computes linear algebra of complex matrices.

Receives stacks of complex matrices [*b, m, n]; returns complex tensors, and real ones where a
result is real. What has one answer is asked of the real matrix [[re, -im], [im, re]], whose
products are those of the complex one; factors that are not unique are worked off by columns.
"""

from __future__ import annotations

from typing import Any, Self

from aster_ml.complex.functions import ComplexFunctions
from aster_ml.errors import ShapeError
from aster_ml.extend import (
    epsilon,
    exchanged,
    largest_left,
    matrix_sizes,
    root_of_sum,
    show_shape,
)


class ComplexLinalg(ComplexFunctions):
    """Matrices."""

    __slots__ = ()

    def square_size(self, what: str) -> int:
        """The number of rows. Raises: ShapeError unless there are as many columns."""
        m, n = matrix_sizes(self.real, what)
        if m != n:
            raise ShapeError(f"{what}: {show_shape(self.real.shape)}; a square matrix is wanted")
        return n

    def as_real_matrix(self) -> Any:
        """The real matrix of twice the size whose products are ours."""
        x, y = self.real, self.imag
        return x.cat(-y, dim=-1).cat(y.cat(x, dim=-1), dim=-2)

    def from_real_matrix(self, whole: Any, rows: int, columns: int) -> Self:
        """The complex matrix of a real one as `as_real_matrix` makes it."""
        return self.made(whole[..., :rows, :columns], whole[..., rows:, :columns])

    @property
    def mH(self) -> Any:
        """The last two axes exchanged, and the conjugate taken."""
        return self.made(self.real.transpose(-2, -1), -self.imag.transpose(-2, -1))

    def times(self, x: Any) -> Any:
        """The product with a complex matrix."""
        re = self.real.dot(x.real) - self.imag.dot(x.imag)
        return self.made(re, self.real.dot(x.imag) + self.imag.dot(x.real))

    def _eye_like(self) -> Any:
        """The identity matrix of our columns."""
        n = self.real.shape[-1]
        places = self.real.arange(n, device=self.real.device)
        one = places.unsqueeze(-1).eq(places).cast(self.real.dtype)
        one = one.expand((*self.real.shape[:-2], n, n))
        return self.made(one, one.zeros_like())

    # systems

    def inv(self) -> Self:
        """The inverse of square matrices."""
        n = self.square_size("inv")
        return self.from_real_matrix(self.as_real_matrix().inv(), n, n)

    def solve(self, other: Any) -> Self:
        """X with self @ X = other, for a complex matrix or, where it has one axis, a vector."""
        n = self.square_size("solve")
        axis = -1 if other.real.ndim == 1 else -2
        both = self.as_real_matrix().solve(other.real.cat(other.imag, dim=axis))
        if axis == -1:
            return self.made(both[..., :n], both[..., n:])
        return self.made(both[..., :n, :], both[..., n:, :])

    def pinv(self, rtol: Any = None) -> Self:
        """The inverse of Moore and Penrose; singular values up to `rtol` of the greatest are 0."""
        m, n = matrix_sizes(self.real, "pinv")
        rtol = max(m, n) * epsilon(self.real.dtype) if rtol is None else rtol
        return self.from_real_matrix(self.as_real_matrix().pinv(rtol), n, m)

    def matrix_rank(self, rtol: Any = None) -> Any:
        """Counts the singular values that exceed `rtol` times the greatest."""
        m, n = matrix_sizes(self.real, "matrix_rank")
        values = self.svdvals()
        if rtol is None:
            rtol = max(m, n) * epsilon(values.dtype)
        least = rtol.unsqueeze(-1) if hasattr(rtol, "unsqueeze") else rtol
        return (values > values.max(-1, keepdim=True) * least).sum(-1)

    def matrix_power(self, n: int) -> Any:
        """The product of `n` times self; of its inverse where `n` is negative."""
        self.square_size("matrix_power")
        base: Any = self.inv() if n < 0 else self
        result: Any = None
        for bit in bin(abs(n))[:1:-1]:
            if bit == "1":
                result = base if result is None else result.times(base)
            base = base.times(base)
        return self._eye_like() if result is None else result

    def det(self) -> Any:
        """The determinant."""
        pivots, sign = self.pivots("det")
        found = pivots.prod(-1)
        return self.made(found.real * sign, found.imag * sign)

    def slogdet(self) -> tuple[Any, Any]:
        """The determinant divided by its size, and the logarithm of that."""
        pivots, sign = self.pivots("slogdet")
        found = pivots.sign().prod(-1)
        return self.made(found.real * sign, found.imag * sign), pivots.abs().log().sum(-1)

    def pivots(self, what: str) -> tuple[Any, Any]:
        """Numbers whose product is the determinant, zeros last, and a sign."""
        n = self.square_size(what)
        work: Any = self
        rows = self.real.arange(n, device=self.real.device)
        sign = self.real._full_of(self.real.shape[:-2], 1)
        for k in range(n - 1):
            for axis, place in largest_left(work.abs(), k):
                real, turned = exchanged(work.real, k, place, axis)
                work = self.made(real, exchanged(work.imag, k, place, axis)[0])
                sign = sign * turned
            chosen, column = work[..., k : k + 1, :], work[..., :, k : k + 1]
            pivot = chosen[..., k : k + 1]
            none = pivot.abs().eq(0)
            factor = column / self.made(none.where(1, pivot.real), pivot.imag)
            low = (rows > k).unsqueeze(-1)
            factor = self.made(low.where(factor.real, 0), low.where(factor.imag, 0))
            work = (work - factor * chosen).contiguous()
            sign = sign.contiguous()
        return work.diagonal(dim1=-2, dim2=-1), sign

    # factors

    def cholesky(self, upper: bool = False) -> Any:
        """Lower triangular L with L @ L^H = self, or its conjugate transpose where `upper`."""
        n = self.square_size("cholesky")
        rest: Any = self
        rows = self.real.arange(n, device=self.real.device)
        columns: list[Any] = []
        for k in range(n):
            column = rest[..., k]
            root = column.real[..., k : k + 1].sqrt()
            below = rows >= k
            column = rest.made(
                below.where(column.real / root, 0), below.where(column.imag / root, 0)
            )
            # A pivot is real.
            column = rest.made(column.real, rows.eq(k).where(0, column.imag))
            columns.append(column)
            outer = column.unsqueeze(-1) * column.conj().unsqueeze(-2)
            rest = (rest - outer).contiguous()
        if not columns:
            return self
        lower = columns[0].stack(columns, dim=-1)
        return lower.mH if upper else lower

    def qr(self) -> tuple[Any, Any]:
        """A unitary Q [m, m] and an upper triangular R [m, n] whose product is self.

        Source: Householder 1958.
        """
        m, n = matrix_sizes(self.real, "qr")
        r: Any = self
        places = self.real.arange(m, device=self.real.device)
        one = places.unsqueeze(-1).eq(places).cast(self.real.dtype)
        one = one.expand((*self.real.shape[:-2], m, m))
        q: Any = self.made(one, one.zeros_like())
        rows, columns = places.unsqueeze(-1), self.real.arange(n, device=self.real.device)
        for k in range(min(m - 1, n)):
            column = r[..., k : k + 1]
            low = rows >= k
            below = self.made(low.where(column.real, 0), low.where(column.imag, 0))
            first = column[..., k : k + 1, :]
            size = length(below)
            none = first.abs().eq(0)
            phase = first.sign()
            phase = self.made(none.where(1, phase.real), phase.imag)
            edge = phase * size
            here = rows.eq(k)
            v: Any = self.made(
                here.where(below.real + edge.real, below.real),
                here.where(below.imag + edge.imag, below.imag),
            )
            whole = length(v)
            v = (v / whole.eq(0).where(1, whole)).contiguous()
            q = (q - (q * v.mT).sum(-1, keepdim=True) * v.mH * 2).contiguous()
            r = r - v * (v.conj() * r).sum(-2, keepdim=True) * 2
            gone = (rows > k) & columns.eq(k)
            r = r.made(gone.where(0, r.real), gone.where(0, r.imag)).contiguous()
        return q, r

    def svdvals(self) -> Any:
        """Singular values, falling: each is one of the real matrix twice."""
        return self.as_real_matrix().svd(False)[1][..., ::2]

    def svd(self, full_matrices: bool = True) -> tuple[Any, Any, Any]:
        """U, S and V^H with self = U @ diag(S) @ V^H, S falling."""
        m, n = matrix_sizes(self.real, "svd")
        if m < n:
            u, s, vh = self.mH.svd(full_matrices)
            return vh.mH, s, u.mH
        q, r = self.qr()
        a = r[..., :n, :]
        _, _, vt = a.as_real_matrix().svd(False)
        v = independent(self.made(vt[..., :n].transpose(-2, -1), vt[..., n:].transpose(-2, -1)), n)
        turned = a.times(v)
        s, order = length(turned).squeeze(-2).sort(-1, descending=True)
        pick = self.in_order(order)
        turned, v = turned @ pick, v @ pick
        u, upper = turned.qr()
        phase = upper.diagonal(dim1=-2, dim2=-1).sign().unsqueeze(-2)
        phase = self.made(phase.abs().eq(0).where(1, phase.real), phase.imag)
        thin = q[..., :n].times(u * phase)
        if full_matrices and m > n:
            thin = thin.cat([thin, q[..., n:]], -1)
        return thin, s, v.mH

    def eigh(self) -> tuple[Any, Any]:
        """Eigenvalues of a Hermitian matrix, rising, and eigenvectors as columns."""
        n = self.square_size("eigh")
        both = self.mH
        a = self.made((self.real + both.real) * 0.5, (self.imag + both.imag) * 0.5)
        _, vectors = a.as_real_matrix().eigh()
        v = independent(self.made(vectors[..., :n, :], vectors[..., n:, :]), n)
        values = (v.conj() * a.times(v)).real.sum(-2)
        values, order = values.sort(-1)
        return values, v @ self.in_order(order)

    def eigvalsh(self) -> Any:
        """Eigenvalues of a Hermitian matrix, rising."""
        return self.eigh()[0]

    def in_order(self, order: Any) -> Any:
        """The matrix that puts column order[j] at place j."""
        places = self.real.arange(order.shape[-1], device=self.real.device).unsqueeze(-1)
        return places.eq(order.unsqueeze(-2)).cast(self.real.dtype)

    def cross(self, other: Any, axis: int = -1) -> Any:
        """The vector at right angles to two of three elements each."""
        re, other_re = self.real._broadcasted(other.real)
        im, other_im = self.imag._broadcasted(other.imag)
        x: Any = self.made(re, im)
        y: Any = self.made(other_re, other_im)
        if x.shape[axis] != 3:
            raise ShapeError(f"cross: axis {axis} of {show_shape(x.shape)}; size 3 is wanted")
        return x.roll(-1, axis) * y.roll(-2, axis) - x.roll(-2, axis) * y.roll(-1, axis)


def length(x: Any) -> Any:
    """The length of columns: [*b, m, n] -> [*b, 1, n], real."""
    return root_of_sum((x.real.square() + x.imag.square()).sum(-2, keepdim=True))


def independent(columns: Any, n: int) -> Any:
    """n columns at right angles that span what 2n do, of which each has a partner like it.

    The longest one is taken, and its direction is taken out of the others.
    """
    rest = columns
    taken: list[Any] = []
    places = columns.real.arange(columns.real.shape[-1], device=columns.real.device)
    for _ in range(n):
        place = places.eq(length(rest).argmax(-1, keepdim=True))
        one = rest.made(
            place.where(rest.real, 0).sum(-1, keepdim=True),
            place.where(rest.imag, 0).sum(-1, keepdim=True),
        )
        for before in taken:
            one = one - before.times(before.mH.times(one))
        one = (one / length(one)).contiguous()
        taken.append(one)
        rest = (rest - one.times(one.mH.times(rest))).contiguous()
    return columns.cat(taken, -1)
