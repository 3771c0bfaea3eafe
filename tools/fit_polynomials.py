"""Fits the polynomials of `aster_ml.codegen` and prints their coefficients, or checks those there.

`python tools/fit_polynomials.py` prints every table with the error that it has in exact
arithmetic; `--check` compares them with the sources instead and says which differ. The method is
Remez exchange over `decimal` numbers of 50 digits. Coefficients are rounded to the format of their
use one after the other, the most significant first, and the rest is fitted anew around each.
"""

from __future__ import annotations

import argparse
import struct
import sys
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal, getcontext
from importlib import import_module

getcontext().prec = 50
ONE, TWO = Decimal(1), Decimal(2)
LN2 = TWO.ln()
PI = Decimal("3.14159265358979323846264338327950288419716939937510582097494459")
GRID = 40  # points a coefficient on which extrema are looked for

Function = Callable[[Decimal], Decimal]


@dataclass(frozen=True)
class Fit:
    """A polynomial sum(c[i] * x**i), `count` coefficients, near `target` on [low, high].

    The error is divided by `weight(x)` before its greatest value is made least. `format` is the
    struct code of the type that coefficients are rounded to. `where` is "module.NAME".
    """

    where: str
    target: Function
    weight: Function
    low: Decimal
    high: Decimal
    count: int
    format: str


def exp2(x: Decimal) -> Decimal:
    """2**x."""
    return (x * LN2).exp()


def sin(x: Decimal) -> Decimal:
    """sin(x) by its series, for small x."""
    term, total, n = x, x, 1
    while abs(term) > Decimal(10) ** -55:
        term *= -x * x / ((n + 1) * (n + 2))
        total += term
        n += 2
    return total


def exp2_quotient(x: Decimal) -> Decimal:
    """(2**x - 1) / x."""
    return LN2 if x == 0 else (exp2(x) - 1) / x


def tanh_rest(z: Decimal) -> Decimal:
    """(tanh(r) - r) / r**3 for r**2 = z."""
    if z < Decimal("1e-12"):
        return -ONE / 3 + 2 * z / 15
    r = z.sqrt()
    return (ONE - 2 / ((2 * r).exp() + 1) - r) / (r * z)


def tanh_weight(z: Decimal) -> Decimal:
    """Relative error of r + r * z * p(z) as an approximation of tanh(r)."""
    return (ONE + z * tanh_rest(z)) / max(z, Decimal("1e-6"))


def log2_quotient(x: Decimal) -> Decimal:
    """log2(1 + x) / x."""
    return ONE / LN2 if x == 0 else (ONE + x).ln() / LN2 / x


def log2_rest(x: Decimal) -> Decimal:
    """(log2(1 + x) - x) / x."""
    return log2_quotient(x) - 1


def sin_quotient(z: Decimal) -> Decimal:
    """(sin(r) - r) / r**3 for r**2 = z."""
    if z < Decimal("1e-18"):
        return -ONE / 6
    r = z.sqrt()
    return (sin(r) - r) / (r * z)


def cos_quotient(z: Decimal) -> Decimal:
    """(cos(r) - 1 + r**2 / 2) / r**4 for r**2 = z, by its series."""
    term = total = ONE / 24
    n = 4
    while abs(term) > Decimal(10) ** -55:
        term *= -z / ((n + 1) * (n + 2))
        total += term
        n += 2
    return total


def atanh_quotient(z: Decimal) -> Decimal:
    """3 * (atanh(s) - s - s**3/3) / s**5 for s**2 = z."""
    total, term, n = Decimal(0), ONE, 5
    while term > Decimal(10) ** -55:
        total += 3 * term / n
        term *= z
        n += 2
    return total


def exp2_weight(x: Decimal) -> Decimal:
    """Relative error of 1 + x * p(x) as an approximation of 2**x."""
    return exp2(x) / max(abs(x), Decimal("1e-6"))


def sin_weight(z: Decimal) -> Decimal:
    """Relative error of r + r * z * p(z) as an approximation of sin(r)."""
    z = max(z, Decimal("1e-6"))
    r = z.sqrt()
    return sin(r) / (r * z)


def cos_weight(z: Decimal) -> Decimal:
    """Relative error of 1 - z / 2 + z * z * p(z) as an approximation of cos(r)."""
    z = max(z, Decimal("1e-6"))
    return sin(PI / 2 - z.sqrt()) / (z * z)


HALF_ROOT = (ONE / TWO).sqrt() - 1
FULL_ROOT = TWO.sqrt() - 1
# s = (m - 1) / (m + 1) for m = sqrt(2).
ATANH_END = (FULL_ROOT / (TWO.sqrt() + 1)) ** 2 * Decimal("1.0001")
EIGHTH_SQUARED = (PI / 4) ** 2 * Decimal("1.0001")
TANH_END = Decimal("0.625") ** 2
# Reduced arguments may lie a rounding beyond the ends.
EDGE = Decimal("1.0001")

FITS = (
    Fit("transcendental.EXP2_FLOAT32", exp2_quotient, exp2_weight, -EDGE, EDGE, 7, "f"),
    Fit("transcendental.EXP2_FLOAT64", exp2_quotient, exp2_weight, -EDGE, EDGE, 13, "d"),
    Fit("transcendental.EXP2_NEAR_FLOAT32", exp2_quotient, exp2_weight,
        -EDGE / 2, EDGE / 2, 6, "f"),
    Fit("transcendental.EXP2_32ND_FLOAT32", exp2_quotient, exp2_weight,
        -EDGE / 64, EDGE / 64, 3, "f"),
    Fit("transcendental.EXP2_32ND_SHORT_FLOAT32", exp2_quotient, exp2_weight,
        -EDGE / 64, EDGE / 64, 2, "f"),
    Fit("transcendental.EXP2_NEAR_FLOAT64", exp2_quotient, exp2_weight,
        -EDGE / 2, EDGE / 2, 11, "d"),
    Fit("transcendental.TANH_FLOAT32", tanh_rest, tanh_weight, Decimal(0), TANH_END, 5, "f"),
    Fit("transcendental.TANH_FLOAT64", tanh_rest, tanh_weight, Decimal(0), TANH_END, 11, "d"),
    Fit("transcendental.LOG2_FLOAT32", log2_rest, log2_quotient,
        HALF_ROOT * EDGE, FULL_ROOT * EDGE, 10, "f"),
    Fit("transcendental.LOG2_FLOAT64", log2_rest, log2_quotient,
        HALF_ROOT * EDGE, FULL_ROOT * EDGE, 21, "d"),
    Fit("transcendental.SIN_FLOAT32", sin_quotient, sin_weight, Decimal(0), EDGE, 4, "f"),
    Fit("transcendental.SIN_FLOAT64", sin_quotient, sin_weight, Decimal(0), EDGE, 7, "d"),
    Fit("transcendental.COS_FLOAT32", cos_quotient, cos_weight, Decimal(0), EIGHTH_SQUARED, 3, "f"),
    Fit("transcendental.COS_FLOAT64", cos_quotient, cos_weight, Decimal(0), EIGHTH_SQUARED, 6, "d"),
    Fit("power.ATANH_FLOAT32", atanh_quotient, atanh_quotient, Decimal(0), ATANH_END, 3, "f"),
    Fit("power.ATANH_FLOAT64", atanh_quotient, atanh_quotient, Decimal(0), ATANH_END, 8, "d"),
)  # fmt: skip


def solve(matrix: list[list[Decimal]], right: list[Decimal]) -> list[Decimal]:
    """The solution of a square linear system, by elimination with row exchanges."""
    n = len(right)
    rows = [[*row, value] for row, value in zip(matrix, right)]
    for column in range(n):
        pivot = max(range(column, n), key=lambda r: abs(rows[r][column]))
        rows[column], rows[pivot] = rows[pivot], rows[column]
        top = rows[column]
        for row in rows[column + 1 :]:
            factor = row[column] / top[column]
            if factor:
                for j in range(column, n + 1):
                    row[j] -= factor * top[j]
    result = [Decimal(0)] * n
    for i in reversed(range(n)):
        known = sum((rows[i][j] * result[j] for j in range(i + 1, n)), Decimal(0))
        result[i] = (rows[i][n] - known) / rows[i][i]
    return result


def polynomial(coefficients: list[Decimal], x: Decimal) -> Decimal:
    """The value at x, by Horner."""
    result = Decimal(0)
    for c in reversed(coefficients):
        result = result * x + c
    return result


def chebyshev_points(low: Decimal, high: Decimal, count: int) -> list[Decimal]:
    """The extrema of a Chebyshev polynomial, which crowd at the ends, in rising order."""
    step = PI / (count - 1)
    # cos(a) is sin(pi/2 - a).
    return [(low + high) / 2 - (high - low) / 2 * sin(PI / 2 - step * i) for i in range(count)]


def remez(
    samples: list[tuple[Decimal, Decimal, Decimal]], fixed: list[Decimal], count: int
) -> list[Decimal]:
    """All coefficients when the first are fixed and the rest make the greatest error least.

    `samples` are (x, target, weight) in rising order of x.
    """
    start = len(fixed)
    n = count - start
    # Divided by x**start the free part is a polynomial again, for which extrema alternate; the sign
    # of the weight keeps count of the sign of x**start. At 0 nothing is left to choose.
    rest = [(x, (t - polynomial(fixed, x)) / x**start, w / x**start) for x, t, w in samples if x]
    chosen = [round(i * (len(rest) - 1) / n) for i in range(n + 1)]
    free: list[Decimal] = []
    for _ in range(30):
        matrix, right = [], []
        for i, position in enumerate(chosen):
            x, t, w = rest[position]
            matrix.append([x**j for j in range(n)] + [abs(w) * (-1) ** i])
            right.append(t)
        *free, level = solve(matrix, right)
        errors = [(polynomial(free, x) - t) / abs(w) for x, t, w in rest]
        found = alternation(errors, n + 1)
        if found is None or max(abs(e) for e in errors) <= abs(level) * Decimal("1.0005"):
            break
        chosen = found
    return [*fixed, *free]


def alternation(errors: list[Decimal], wanted: int) -> list[int] | None:
    """Positions of `wanted` extrema of alternating sign, the greatest among them."""
    runs: list[int] = []
    for i, e in enumerate(errors):
        if e == 0:
            continue
        if runs and (errors[runs[-1]] > 0) == (e > 0):
            if abs(e) > abs(errors[runs[-1]]):
                runs[-1] = i
        else:
            runs.append(i)
    while len(runs) > wanted:
        if len(runs) == wanted + 1:
            ends = (0, len(runs) - 1)
            del runs[min(ends, key=lambda r: abs(errors[runs[r]]))]
        else:
            least = min(range(len(runs)), key=lambda r: abs(errors[runs[r]]))
            # Taking out an inner one leaves two neighbours of equal sign: the smaller goes too.
            if 0 < least < len(runs) - 1:
                sides = (least - 1, least + 1)
                smaller = min(sides, key=lambda r: abs(errors[runs[r]]))
                for r in sorted((least, smaller), reverse=True):
                    del runs[r]
            else:
                del runs[least]
    return runs if len(runs) == wanted else None


def rounded(value: Decimal, code: str) -> float:
    """The value in the format of the struct code."""
    return float(struct.unpack(code, struct.pack(code, float(value)))[0])


def fit(job: Fit) -> tuple[list[float], Decimal]:
    """The rounded coefficients and their greatest weighted error."""
    points = chebyshev_points(job.low, job.high, GRID * (job.count + 1))
    points[0], points[-1] = job.low, job.high
    samples = [(x, job.target(x), job.weight(x)) for x in points]
    fixed: list[Decimal] = []
    while len(fixed) < job.count:
        best = remez(samples, fixed, job.count)
        fixed.append(Decimal(rounded(best[len(fixed)], job.format)))
    error = max(abs(polynomial(fixed, x) - t) / w for x, t, w in samples)
    return [float(c) for c in fixed], error


def show(job: Fit, coefficients: list[float], error: Decimal) -> str:
    """The table as Python source."""
    bits = float(error.ln() / LN2)
    body = "".join(f"    {c!r},\n" for c in coefficients)
    name = job.where.partition(".")[2]
    return f"# Greatest weighted error 2**{bits:.1f}.\n{name} = (\n{body})"


def main() -> int:
    """Prints or checks the tables that the command line names, all of them by default."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare with the sources")
    parser.add_argument("names", nargs="*", help="such as EXP2_FLOAT32")
    args = parser.parse_args()
    wrong = 0
    for job in FITS:
        module, _, name = job.where.partition(".")
        if args.names and name not in args.names:
            continue
        coefficients, error = fit(job)
        if not args.check:
            print(show(job, coefficients, error), flush=True)
            continue
        there = getattr(import_module(f"aster_ml.codegen.{module}"), name)
        same = tuple(coefficients) == tuple(there)
        wrong += not same
        print(f"{name}: {'as fitted' if same else 'differs from the fit'}", flush=True)
    return min(wrong, 1)


if __name__ == "__main__":
    sys.exit(main())
