"""Decomposes matrices: QR, singular values, and the nearest orthogonal matrix.

Receives Tensors whose last two axes are matrices; returns Tensors. The steps that depend on one
another are stored one by one; none of them depends on the data, so that all can be captured.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from aster_ml.dtype import dtypes
from aster_ml.errors import ArgumentError, ShapeError
from aster_ml.helpers import next_power2
from aster_ml.ops import Self
from aster_ml.uop.infer import show_shape
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import Ops, RuleArg


def qr(self: Self) -> tuple[Self, Self]:
    """An orthogonal Q [m, m] and an upper triangular R [m, n] whose product is self.

    Shapes: self [*b, m, n] -> [*b, m, m], [*b, m, n].
    Dtype: that of self for floats, else the default float; steps have at least float32.
    Raises: ShapeError for fewer than two axes.
    Source: Householder 1958; signs as LAPACK's geqrf has them.
    """
    m, n = matrix_sizes(self, "qr")
    r = wide_floats(self)
    lead = r.shape[:-2]
    rows = self.arange(m, device=self.device).reshape((m, 1))
    columns = self.arange(n, device=self.device)
    q = rows.eq(rows.reshape((1, m))).cast(r.dtype).expand((*lead, m, m))
    # A last row alone has nothing below it to be made zero.
    for k in range(min(m - 1, n)):
        column = r.shrink([*[None] * len(lead), None, (k, k + 1)])
        below = (rows >= k).where(column, 0)
        first = column.shrink([*[None] * len(lead), (k, k + 1), None])
        size = root_of_sum(below.square().sum(-2, keepdim=True))
        # Away from zero, so that no digits are lost; a zero column stays as it is.
        edge = (first < 0).where(-size, size)
        v = rows.eq(k).where(below + edge, below)
        square = v.square().sum(-2, keepdim=True)
        v = (v / square.eq(0).where(1, square).sqrt()).contiguous()
        across = v.transpose(-2, -1)
        q = (q - (q * across).sum(-1, keepdim=True) * across * 2).contiguous()
        r = r - v * (v * r).sum(-2, keepdim=True) * 2
        # What the reflection makes zero is zero, not what rounding leaves of it.
        r = ((rows > k) & columns.eq(k)).where(0, r).contiguous()
    dtype = self._floating().dtype
    return q.cast(dtype), r.cast(dtype)._own()


def svd(self: Self, full_matrices: bool = True) -> tuple[Self, Self, Self]:
    """U, S and V^T with self = U @ diag(S) @ V^T, S falling.

    Columns are turned against each other until they are at right angles, all pairs in turn, in
    rounds of pairs that do not share a column. Gradients are those of the result
    (`matrix_gradient`).

    Shapes: self [*b, m, n], full_matrices=False -> [*b, m, min(m, n)], [*b, min(m, n)],
        [*b, min(m, n), n].
    Dtype: that of self for floats, else the default float; steps have at least float32.
    Raises: ShapeError for fewer than two axes.
    Source: Hestenes 1958, one-sided Jacobi; Brent and Luk 1985, order of the rounds.
    """
    m, n = matrix_sizes(self, "svd")
    if m < n:
        u, s, vt = self.transpose(-2, -1).svd(full_matrices)
        return vt.transpose(-2, -1), s, u.transpose(-2, -1)
    none = [None] * (len(self.shape) - 2)
    given = wide_floats(self)
    q, r = given.detach().qr()
    a = r.shrink([*none, (0, n), None])
    turned, v = orthogonalize_columns(a, n)
    sizes = turned.square().sum(-2).sqrt()
    s, order = sizes.sort(-1, descending=True)
    # Column j of the result is column order[j]: a product with ones at those places.
    places = self.arange(n, device=self.device).reshape((n, 1))
    pick = places.eq(order.unsqueeze(-2)).cast(a.dtype)
    turned, v = turned.dot(pick), v.dot(pick)
    # Q of orthogonal columns is their directions, and completes them where a size is 0.
    u, diagonal = turned.qr()
    eye = places.eq(places.reshape((1, n)))
    flipped = eye.where(diagonal, 0).sum(-2, keepdim=True) < 0
    u = flipped.where(-u, u)
    thin = q.shrink([*none, None, (0, n)]).dot(u)
    if full_matrices and m > n:
        thin = thin.cat(q.shrink([*none, None, (n, m)]), dim=-1)
    more = thin.shape[-1] - n
    below = v._pad_zeros([*[(0, 0)] * (len(self.shape) - 1), (0, more)]) if more else v
    both = with_rule("singular vectors", thin.cat(below, dim=-2), given)
    s = with_rule("singular values", s.unsqueeze(-2), given, both).squeeze(-2)
    u, v = both.shrink([*none, (0, m), None]), both.shrink([*none, (m, m + n), (0, n)])
    dtype = self._floating().dtype
    return u.cast(dtype), s.cast(dtype), v.transpose(-2, -1).cast(dtype)


def newton_schulz(self: Self, steps: int, params: Sequence[float], eps: float = 1e-7) -> Self:
    """Self with its singular values driven by an odd polynomial, `steps` times over.

    Of x = self / |self|, each step makes p[0] * x + p[1] * (x x^T) x + p[2] * (x x^T)^2 x ...

    Shapes: self [*b, m, n], steps=2, params=(2, -1.5, 0.5) -> [*b, m, n].
    Raises: ShapeError for fewer than two axes.
    Source: Jordan et al. 2024, Muon.
    """
    m, n = matrix_sizes(self, "newton_schulz")
    if not params:
        raise ArgumentError(
            "newton_schulz: params is empty; one number for each odd power is wanted"
        )
    x = self / (self.square().sum((-2, -1), keepdim=True).sqrt() + eps)
    # The product of x with itself is the smaller one.
    x = x.transpose(-2, -1) if m > n else x
    for _ in range(steps):
        square = x.dot(x.transpose(-2, -1))
        power, total = x, x * params[0]
        for p in params[1:]:
            power = square.dot(power)
            total = total + power * p
        x = total
    return x.transpose(-2, -1) if m > n else x


def with_rule(rule: str, value: Self, source: Self, *others: Self) -> Self:
    """`value`, which the source and the others decide, with the gradients of `matrix_gradient`."""
    nodes = tuple([x.uop for x in (value.detach(), source, *others)])
    return source._derive_with(UOp(Ops.CUSTOM_GRADIENT, value.dtype, nodes, RuleArg(rule)), *others)


def wide_floats(x: Self) -> Self:
    """The value as floats of at least 32 bits, since a step loses what it rounds away."""
    x = x._floating()
    return x.cast(dtypes.float32) if x.dtype.itemsize < 4 else x


def root_of_sum(x: Self) -> Self:
    """The square root, whose gradient at 0 is 0."""
    none = x.eq(0)
    return none.where(0, none.where(1, x).sqrt())


def matrix_sizes(x: Any, what: str) -> tuple[int, int]:
    """Rows and columns.

    Raises: ShapeError where there are none, or where they are symbolic.
    """
    if len(x.shape) < 2 or not all(isinstance(s, int) for s in x.shape[-2:]):
        raise ShapeError(
            f"{what}: {show_shape(x.shape)}; [..., rows, columns] is wanted, rows and "
            "columns plain ints"
        )
    return x.shape[-2], x.shape[-1]


def orthogonalize_columns(a: Self, n: int) -> tuple[Self, Self]:
    """`a` [*b, n, n] times a rotation that makes its columns orthogonal, and the rotation.

    Columns sit in two rows of seats, and those that face each other are turned. After each round
    all but the first move on by one seat, so that each meets each other in n - 1 rounds.
    """
    lead = a.shape[:-2]
    eye = a.arange(n, device=a.device)
    eye = eye.reshape((n, 1)).eq(eye).cast(a.dtype).expand((*lead, n, n))
    if n == 1:
        return a, eye
    both = a.cat(eye, dim=-2)
    if n % 2:
        both = both._pad_zeros([*[(0, 0)] * (len(lead) + 1), (0, 1)])
    half = (n + n % 2) // 2
    for _ in range(sweeps_needed(n)):
        for _ in range(2 * half - 1):
            both = move_seats(turn_pairs(both, half, n), half).contiguous()
    # Whole sweeps bring every column back to its seat, and an empty one with them.
    both = both.shrink([*[None] * (len(lead) + 1), (0, n)])
    return (
        both.shrink([*[None] * len(lead), (0, n), None]),
        both.shrink([*[None] * len(lead), (n, 2 * n), None]),
    )


def sweeps_needed(n: int) -> int:
    """Rounds over all pairs until float64 has converged; the last ones square the error."""
    return 6 + int(math.log2(next_power2(n)))


def turn_pairs(both: Self, half: int, n: int) -> Self:
    """Each column of the left half turned against its partner in the right half."""
    none = [None] * (len(both.shape) - 1)
    x, y = both.shrink([*none, (0, half)]), both.shrink([*none, (half, 2 * half)])
    top = [*none[:-1], (0, n), None]
    p, q = x.shrink(top), y.shrink(top)
    shared = (p * q).sum(-2, keepdim=True)
    off = (q * q).sum(-2, keepdim=True) - (p * p).sum(-2, keepdim=True)
    apart = shared.ne(0)
    ratio = off / apart.where(shared * 2, 1)
    tangent = (ratio < 0).where(ratio.ufix(-1.0), 1.0) / (ratio.abs() + (ratio * ratio + 1).sqrt())
    tangent = apart.where(tangent, 0)
    cosine = (tangent * tangent + 1).rsqrt()
    sine = cosine * tangent
    return (x * cosine - y * sine).cat(x * sine + y * cosine, dim=-1)


def move_seats(both: Self, half: int) -> Self:
    """All columns but the first one seat on: right along the first row, left along the second."""
    none = [None] * (len(both.shape) - 1)
    runs = [(0, 1), (half, half + 1), (1, half - 1), (half + 1, 2 * half), (half - 1, half)]
    first, *rest = [both.shrink([*none, run]) for run in runs if run[0] < run[1]]
    return both if half == 1 else first.cat(*rest, dim=-1)
