"""Computes gradients of matrix decompositions from their results.

Receives the gradient of a result and the CUSTOM_GRADIENT of that result (RuleArg); returns the
gradients of its sources. Rules refer to results as nodes with rules of their own, so that
higher-order gradients are right too.

Terms with a division by a difference of equal eigenvalues, or by a zero one, are dropped: vectors
are then not unique and have no gradient. So gradients are right for functions that are symmetric in
equal values, and for functions of the subspace that their vectors span. Each result needs as little
as possible: values have gradients where vectors have none.

Source: Giles 2008, "Collected matrix derivative results"; Townsend 2016, "Differentiating the
singular value decomposition"; Golub and Pereyra 1973, pseudo-inverses. The terms of singular
vectors are here in sums and differences of a matrix and its transpose, which leaves one division
by s_j - s_i and one by s_j + s_i.
"""

from __future__ import annotations

from collections.abc import Callable

from aster_ml.dtype import dtypes
from aster_ml.uop.gradient_terms import Term
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import Ops

# Rounding error of one operation, and the number of them by which equal values may differ.
EPS = {dtypes.float32: 2.0**-23, dtypes.float64: 2.0**-52}
NEAR = 8


class Matrix:
    """A node [*b, n, m] with the arithmetic of matrices."""

    __slots__ = ("node",)

    def __init__(self, node: UOp) -> None:
        self.node = node

    @property
    def rank(self) -> int:
        """Number of axes."""
        return len(self.node.shape)

    @property
    def sizes(self) -> tuple[int, int]:
        """Rows and columns."""
        n, m = self.node.shape[-2:]
        return n, m

    @property
    def T(self) -> Matrix:
        """The last two axes exchanged."""
        lead = tuple(range(self.rank - 2))
        return Matrix(self.node._mop(Ops.PERMUTE, (*lead, self.rank - 1, self.rank - 2)))

    def __matmul__(self, other: Matrix) -> Matrix:
        *lead, n, k = self.node.shape
        m = other.node.shape[-1]
        shape = (*lead, n, k, m)
        a = self.node._mop(Ops.RESHAPE, (*lead, n, k, 1))._broadcast_to(shape)
        b = other.node._mop(Ops.RESHAPE, (*lead, 1, k, m))._broadcast_to(shape)
        total = a.alu(Ops.MUL, b)._rop(Ops.ADD, (len(lead) + 1,))
        return Matrix(total._mop(Ops.RESHAPE, (*lead, n, m)))

    def alu(self, op: Ops, other: Matrix) -> Matrix:
        """An operation on each element; sizes of 1 are repeated."""
        shape = tuple([max(s) for s in zip(self.node.shape, other.node.shape, strict=True)])
        src = [x.node._broadcast_to(shape) for x in (self, other)]
        return Matrix(src[0].alu(op, src[1]))

    def __add__(self, other: Matrix) -> Matrix:
        return self.alu(Ops.ADD, other)

    def __sub__(self, other: Matrix) -> Matrix:
        return self.alu(Ops.SUB, other)

    def __mul__(self, other: Matrix) -> Matrix:
        return self.alu(Ops.MUL, other)

    def __neg__(self) -> Matrix:
        return Matrix(self.node.alu(Ops.NEG))

    def part(self, rows: tuple[int, int], columns: tuple[int, int]) -> Matrix:
        """Some rows and columns."""
        whole = [(0, s) for s in self.node.shape[:-2]]
        return Matrix(self.node._mop(Ops.SHRINK, (*whole, rows, columns)))

    def inverse_above(self, limit: Matrix) -> Matrix:
        """1 over each element, and 0 where its size is at most the limit."""
        x = self.node
        bound = limit.node._broadcast_to(x.shape)
        one, none = UOp.const(x.dtype, 1), UOp.const(x.dtype, 0)
        large = bound.alu(Ops.CMPLT, x.alu(Ops.MAX, x.alu(Ops.NEG)))
        safe = large.alu(Ops.WHERE, x, one)
        return Matrix(large.alu(Ops.WHERE, one._broadcast_to(x.shape).alu(Ops.FDIV, safe), none))

    def column_sums(self) -> Matrix:
        """[*b, 1, m]."""
        return Matrix(self.node._rop(Ops.ADD, (self.rank - 2,)))


def rounding(values: Matrix, size: int) -> Matrix:
    """Distance below which values [*b, 1, n] of a matrix of this size are equal: [*b, 1, 1]."""
    x = values.node
    greatest = x.alu(Ops.MAX, x.alu(Ops.NEG))._rop(Ops.MAX, (len(x.shape) - 1,))
    factor = UOp.const(x.dtype, NEAR * size * EPS[x.dtype])
    return Matrix(UOp(Ops.DETACH, x.dtype, (greatest.alu(Ops.MUL, factor),)))


def less_identity(x: Matrix) -> Matrix:
    """1 - x."""
    n = x.sizes[0]
    row = UOp.iota(n)._mop(Ops.RESHAPE, (n, 1))._broadcast_to((n, n))
    column = UOp.iota(n)._mop(Ops.RESHAPE, (1, n))._broadcast_to((n, n))
    eye = row.alu(Ops.CMPEQ, column).cast(x.node.dtype)
    return Matrix(eye._broadcast_to(x.node.shape)) - x


def of_inverse(g: Matrix, u: UOp, i: int) -> Matrix | None:
    """X = inverse of A: -X^T g X^T."""
    x = Matrix(u).T
    return -(x @ g @ x)


def of_solution(g: Matrix, u: UOp, i: int) -> Matrix | None:
    """X with A X = B, sources A, B and the inverse of A: -(Y X^T) and Y = inverse^T g."""
    if i == 3:
        return None
    y = Matrix(u.src[3]).T @ g
    return y if i == 2 else -(y @ Matrix(u).T)


def of_pseudo_inverse(g: Matrix, u: UOp, i: int) -> Matrix | None:
    """P of A: the change within row and column space, and the change of these spaces."""
    p, a = Matrix(u), Matrix(u.src[1])
    within = -(p.T @ g @ p.T)
    rows = less_identity(a @ p) @ g.T @ (p @ p.T)
    columns = (p.T @ p) @ g.T @ less_identity(p @ a)
    return within + rows + columns


def of_eigenvalues(g: Matrix, u: UOp, i: int) -> Matrix | None:
    """Values [*b, 1, n] of a symmetric matrix A, sources A and its vectors V: V diag(g) V^T."""
    v = Matrix(u.src[2])
    return (v * g) @ v.T if i == 1 else None


def of_eigenvectors(g: Matrix, u: UOp, i: int) -> Matrix | None:
    """V of a symmetric A: V (F * V^T g) V^T with F = 1 / (w_j - w_i)."""
    v, a = Matrix(u), Matrix(u.src[1])
    values = (v * (a @ v)).column_sums()
    turn = (values - values.T).inverse_above(rounding(values, v.sizes[0]))
    return v @ (turn * (v.T @ g)) @ v.T


def of_singular_values(g: Matrix, u: UOp, i: int) -> Matrix | None:
    """Values [*b, 1, n] of A [*b, m, n], sources A and its vectors: U diag(g) V^T."""
    if i != 1:
        return None
    left, right, _ = sides(u.src[2], u.src[1])
    return (left * g) @ right.T


def sides(vectors: UOp, a: UOp) -> tuple[Matrix, Matrix, Matrix | None]:
    """The first n left vectors of a matrix [*b, m, n], the right ones, and the other left ones."""
    both = Matrix(vectors)
    m, n = a.shape[-2:]
    columns = both.sizes[1]
    more = both.part((0, m), (n, columns)) if columns > n else None
    return both.part((0, m), (0, n)), both.part((m, m + n), (0, n)), more


def of_singular_vectors(g: Matrix, u: UOp, i: int) -> Matrix | None:
    """Vectors of A [*b, m, n], m >= n: U [*b, m, n or m] above V, which is padded with zeros."""
    a = Matrix(u.src[1])
    left, right, more = sides(u, a.node)
    slope, of_right, of_more = sides(g.node, a.node)
    values = (left * (a @ right)).column_sums()
    limit = rounding(values, a.sizes[0])
    # U^T dU and V^T dV of a change P = U^T dA V are ((P + P^T) / (s_j - s_i) +- (P - P^T) / (s_i +
    # s_j)) / 2; the lines below are its adjoint.
    one, two = left.T @ slope, right.T @ of_right
    even = (one + two) * (values - values.T).inverse_above(limit)
    odd = (one - two) * (values + values.T).inverse_above(limit)
    half = Matrix(UOp.const(u.dtype, 0.5)._mop(Ops.RESHAPE, (1,) * a.rank))
    turned = (even + even.T + odd - odd.T) * half
    inverse = values.inverse_above(limit)
    outside = slope - left @ one
    if more is not None and of_more is not None:
        outside = outside - more @ (of_more.T @ left)
    return (left @ turned + outside * inverse) @ right.T


Rule = Callable[[Matrix, UOp, int], "Matrix | None"]
RULES: dict[str, Rule] = {
    "inverse": of_inverse,
    "solution": of_solution,
    "pseudo-inverse": of_pseudo_inverse,
    "eigenvalues": of_eigenvalues,
    "eigenvectors": of_eigenvectors,
    "singular values": of_singular_values,
    "singular vectors": of_singular_vectors,
}


def of_matrices(g: Term, u: UOp, i: int) -> Term | None:
    """Gradient of source i of a result."""
    if i == 0:
        return None
    found = RULES[u.arg.rule](Matrix(g.spread(u.shape).node), u, i)
    return None if found is None else g.of(found.node)
