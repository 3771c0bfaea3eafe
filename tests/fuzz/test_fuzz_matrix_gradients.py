"""Gradients of decompositions at singular points: exact zeros, equal values, missing ranks.

Determinants beside cofactors; functions of the others, which have a gradient there though not all
that they are made of has, beside differences in float64 along random directions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from aster_ml import Tensor
from aster_ml.complex import ComplexTensor
from tests.fuzz.budget import check_all, draws

Record = Callable[[str, str], None]


def cofactors(a: Any) -> Any:
    """Of a matrix of whole numbers, exactly."""
    n = len(a)
    found = np.ones((n, n), a.dtype)
    for i in range(n):
        for j in range(n):
            rest = np.delete(np.delete(a, i, 0), j, 1)
            found[i, j] = (-1) ** (i + j) * (np.linalg.det(rest) if n > 1 else 1)
    return found.round()


def whole_matrix(rng: np.random.Generator, n: int) -> Any:
    """Small whole numbers, with columns of zeros, equal rows and fewer ranks."""
    a = rng.integers(-2, 3, (n, n)).astype(float)
    if rng.random() < 0.4:
        a[:, rng.integers(n)] = 0
    if rng.random() < 0.3:
        a[rng.integers(n)] = a[rng.integers(n)]
    if rng.random() < 0.2:
        a[rng.integers(n)] = 0
    if rng.random() < 0.2:
        a = np.triu(a)
    return a


def determinant_line(seed: int) -> str | None:
    """Determinants of a stack of matrices, and their gradients."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 6))
    a = np.stack([whole_matrix(rng, n) for _ in range(3)])
    kind = [np.float64, np.float32][int(rng.integers(2))]
    weights = rng.integers(-2, 3, 3).astype(kind)
    x = Tensor(a.astype(kind), requires_grad=True)
    value = x.det()
    (grad,) = (value * Tensor(weights)).sum().gradient(x)
    want = np.stack([cofactors(m) for m in a]) * weights[:, None, None]
    atol = 1e-9 if kind is np.float64 else 1e-3
    if not np.allclose(value.numpy(), np.linalg.det(a), atol=atol):
        return f"det of {a.tolist()}: {value.tolist()}"
    if not np.allclose(grad.numpy(), want, atol=atol, rtol=1e-4):
        return f"gradient of det of {a.tolist()}: {grad.tolist()}, not {want.tolist()}"
    return None


def test_determinants(record_property: Record) -> None:
    check_all("gradients of determinants", draws(10, 2000), determinant_line, record_property)


def complex_line(seed: int) -> str | None:
    """Both parts of a complex determinant, and their gradients."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 5))
    a = whole_matrix(rng, n) + 1j * whole_matrix(rng, n)
    if rng.random() < 0.5:
        a[:, rng.integers(n)] = 0
    if rng.random() < 0.3:
        a[rng.integers(n)] = a[rng.integers(n)]
    parts = [Tensor(p.copy(), requires_grad=True) for p in (a.real, a.imag)]
    found = ComplexTensor(*parts).det()
    w, v = rng.integers(-2, 3, 2).tolist()
    root = found.real * w + found.imag * v
    got = [g.numpy() for g in root.gradient(*parts, materialize_grads=True)]
    # Of w Re d + v Im d = Re((w - i v) d).
    slope = (w - 1j * v) * cofactors(a)
    want, value = (slope.real, -slope.imag), np.linalg.det(a)
    if not np.allclose([found.real.item(), found.imag.item()], [value.real, value.imag]):
        return f"det of {a.tolist()}: {found.real.item()}, {found.imag.item()}"
    if not all([np.allclose(g, x, atol=1e-9) for g, x in zip(got, want, strict=True)]):
        return f"gradient of det of {a.tolist()}: {got}, not {want}"
    return None


def test_complex_determinants(record_property: Record) -> None:
    check_all("gradients of complex determinants", draws(4, 800), complex_line, record_property)


def rotation(rng: np.random.Generator, n: int) -> Any:
    """An orthogonal matrix, now and then one of zeros and ones."""
    if rng.random() < 0.3:
        return np.eye(n)[rng.permutation(n)]
    return np.linalg.qr(rng.standard_normal((n, n)))[0]


def drawn_values(rng: np.random.Generator, n: int, zeros: bool = True) -> Any:
    """Values of which some are equal, and some 0, falling."""
    pool = [3.0, 3.0, 2.0, 1.0, 1.0, *([0.0, 0.0] if zeros else [])]
    return np.sort(rng.choice(pool, n))[::-1]


def along(function: Callable[[Any], float], a: Any, direction: Any) -> float:
    """The slope of a function along a direction."""
    h = 1e-5
    return (function(a + h * direction) - function(a - h * direction)) / (2 * h)


class Case:
    """A function here and in NumPy, of one matrix, and the ways that this may move."""

    def __init__(
        self,
        ours: Callable[[Any], Any],
        theirs: Callable[[Any], Any],
        a: Any,
        direction: Any,
    ) -> None:
        self.ours, self.theirs, self.a, self.direction = ours, theirs, a, direction


def singular_case(rng: np.random.Generator) -> Case:
    """A function of singular values or of spaces of singular vectors."""
    m, n = (int(s) for s in rng.integers(1, 6, 2))
    k = min(m, n)
    name = ["values", "space", "polar", "complement"][int(rng.integers(4))]
    if name == "polar":
        m = n = k
    s = drawn_values(rng, k, name != "polar")
    a = rotation(rng, m)[:, :k] * s @ rotation(rng, n)[:k]
    direction = rng.standard_normal(a.shape)
    full = bool(rng.random() < 0.5)
    if name == "polar":
        w = rng.standard_normal((k, k))

        def polar(x: Any) -> Any:
            u, _, vt = np.linalg.svd(x)
            return ((u @ vt) * w).sum()

        def ours(x: Any) -> Any:
            u, _, vt = x.svd(full)
            return (u @ vt * Tensor(w)).sum()

        return Case(ours, polar, a, direction)
    if name == "values" or s[0] == 0:
        # The same weight for equal values, and none for 0, which is an edge.
        weights = np.array([{3.0: 0.7, 2.0: -1.3, 1.0: 2.1, 0.0: 0.0}[round(v)] for v in s])
        return Case(
            lambda x: (x.svd(full)[1] * Tensor(weights)).sum(),
            lambda x: (np.linalg.svd(x, compute_uv=False) * weights).sum(),
            a,
            direction,
        )
    count = int((s == s[0]).sum())
    if name == "complement":
        # What is at right angles to all columns of full rank.
        m, n = m + n, n
        s = drawn_values(rng, n, False)
        a = rotation(rng, m)[:, :n] * s @ rotation(rng, n)
        w = rng.standard_normal((m, m))

        def beside(u: Any) -> Any:
            rest = u[:, n:]
            return rest @ rest.T

        return Case(
            lambda x: (beside(x.svd()[0]) * Tensor(w)).sum(),
            lambda x: (beside(np.linalg.svd(x)[0]) * w).sum(),
            a,
            rng.standard_normal(a.shape),
        )
    w, v = rng.standard_normal((m, m)), rng.standard_normal((n, n))

    def space(svd: Any, w: Any, v: Any) -> Any:
        u, _, vt = svd
        u, vt = u[:, :count], vt[:count]
        return (u @ u.T * w).sum() + (vt.T @ vt * v).sum()

    return Case(
        lambda x: space(x.svd(full), Tensor(w), Tensor(v)),
        lambda x: space(np.linalg.svd(x), w, v),
        a,
        direction,
    )


def symmetric_case(rng: np.random.Generator) -> Case:
    """A function of eigenvalues or of a space of eigenvectors."""
    n = int(rng.integers(1, 6))
    values = np.sort(rng.choice([-2.0, -2.0, 0.0, 0.0, 1.0, 3.0], n))
    q = rotation(rng, n)
    a = q * values @ q.T
    direction = rng.standard_normal((n, n))
    weights = np.array([{-2.0: 0.7, 0.0: -1.3, 1.0: 2.1, 3.0: 0.4}[v] for v in values])
    if rng.random() < 0.5:
        return Case(
            lambda x: (x.eigvalsh() * Tensor(weights)).sum(),
            lambda x: (np.linalg.eigvalsh((x + x.T) / 2) * weights).sum(),
            a,
            direction,
        )
    count = int((values == values[0]).sum())
    w = rng.standard_normal((n, n))

    def space(vectors: Any, w: Any) -> Any:
        part = vectors[:, :count]
        return (part @ part.T * w).sum()

    return Case(
        lambda x: space(x.eigh()[1], Tensor(w)),
        lambda x: space(np.linalg.eigh((x + x.T) / 2)[1], w),
        a,
        direction,
    )


def system_case(rng: np.random.Generator) -> Case:
    """Inverses, solutions, and pseudo-inverses along ways that keep the rank."""
    m, n = (int(s) for s in rng.integers(1, 6, 2))
    name = ["inv", "solve", "pinv", "qr"][int(rng.integers(4))]
    if name in ("inv", "solve"):
        s = drawn_values(rng, n, False)
        a = rotation(rng, n) * s @ rotation(rng, n)
        w, b = rng.standard_normal((2, n, n))
        if name == "inv":
            ours, theirs = (lambda x: x.inv()), np.linalg.inv
        else:
            ours, theirs = (lambda x: x.solve(Tensor(b))), (lambda x: np.linalg.solve(x, b))
        return Case(
            lambda x: (ours(x) * Tensor(w)).sum(),
            lambda x: (theirs(x) * w).sum(),
            a,
            rng.standard_normal((n, n)),
        )
    if name == "qr":
        # A column of zeros has no direction; those before it have all that they had.
        count = int(rng.integers(1, m + 1))
        a = np.concatenate([rng.standard_normal((m, count)), np.zeros((m, 2))], 1)
        w = rng.standard_normal((count, count))
        direction = rng.standard_normal(a.shape)
        return Case(
            lambda x: (x.qr()[1][:count, :count] * Tensor(w)).sum(),
            lambda x: (np.linalg.qr(x, mode="complete")[1][:count, :count] * w).sum(),
            a,
            direction,
        )
    k = min(m, n)
    a = rotation(rng, m)[:, :k] * drawn_values(rng, k) @ rotation(rng, n)[:k]
    w = rng.standard_normal((n, m))
    rows, columns = rng.standard_normal((m, m)), rng.standard_normal((n, n))
    return Case(
        lambda x: (x.pinv() * Tensor(w)).sum(),
        lambda x: (np.linalg.pinv(x, rcond=1e-7) * w).sum(),
        a,
        rows @ a + a @ columns,
    )


def function_line(seed: int) -> str | None:
    """The gradient of one function."""
    rng = np.random.default_rng(seed)
    case = [singular_case, symmetric_case, system_case][seed % 3](rng)
    x = Tensor(case.a, requires_grad=True)
    (grad,) = case.ours(x).gradient(x)
    got = float((grad.numpy() * case.direction).sum())
    want = along(case.theirs, case.a, case.direction)
    if not abs(got - want) <= 1e-5 * (1 + abs(want) + np.abs(grad.numpy()).max()):
        where = case.theirs.__qualname__
        return f"{where} of {case.a.tolist()} along {case.direction.tolist()}: {got}, not {want}"
    return None


def test_functions_of_decompositions(record_property: Record) -> None:
    check_all("gradients at singular points", draws(9, 1200), function_line, record_property)


def second_line(seed: int) -> str | None:
    """The gradient of a slope, beside differences of slopes."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 4))
    a, direction, along_first = rng.standard_normal((3, n, n))
    a = a + 2 * np.eye(n) * rng.choice([-1, 1])
    w = rng.standard_normal((n, n))
    functions: dict[str, Callable[[Any], Any]] = {
        "det": lambda x: x.det() ** 2,
        "slogdet": lambda x: x.slogdet()[1],
        "inv": lambda x: (x.inv() * Tensor(w)).sum(),
        "solve": lambda x: (x.solve(Tensor(w)) ** 2).sum(),
        "pinv": lambda x: (x.pinv() * Tensor(w)).sum(),
        "eigvalsh": lambda x: (x.eigvalsh() ** 3).sum(),
        "eigh": lambda x: (x.eigh()[1] ** 2 * Tensor(w)).sum(),
        "svd values": lambda x: (x.svd()[1] ** 3).sum(),
        "svd": lambda x: (x.svd(False)[0] ** 2 * Tensor(w) + x.svd(False)[2] ** 2).sum(),
        "qr": lambda x: (x.qr()[1] ** 2 * Tensor(w)).sum(),
        "cholesky": lambda x: ((x @ x.mT + Tensor(np.eye(n))).cholesky() * Tensor(w)).sum(),
    }
    name = list(functions)[seed % len(functions)]

    def slope(x: Tensor) -> Tensor:
        (grad,) = functions[name](x).gradient(x)
        return (grad * Tensor(along_first)).sum()

    x = Tensor(a, requires_grad=True)
    (grad,) = slope(x).gradient(x)
    got = float((grad.numpy() * direction).sum())
    want = along(lambda v: slope(Tensor(v, requires_grad=True)).item(), a, direction)
    if not abs(got - want) <= 1e-4 * (1 + abs(want) + np.abs(grad.numpy()).max()):
        return f"second derivative of {name} at {a.tolist()}: {got}, not {want}"
    return None


def test_second_derivatives(record_property: Record) -> None:
    check_all("second derivatives of decompositions", draws(5, 550), second_line, record_property)
