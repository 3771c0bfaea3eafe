"""Arithmetic of NaN, infinities, zeros of both signs and subnormals under EXACT=1, beside NumPy.

Programs of a few operations with tensors and with numbers: each element has to be what IEEE 754
gives operation by operation, bit for bit but for what a NaN says.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from aster_ml import Context, Tensor
from aster_ml.runtime.cpu.clang import find_compiler
from tests.fuzz.budget import check_all, draws

Record = Callable[[str, str], None]
NUMBERS = [0.0, -0.0, 1.0, -1.0, 2.0, -0.5, 3.0, math.inf, -math.inf, math.nan, 1e-40, 3e38, 0, 1]
SPECIAL = [0.0, -0.0, math.inf, -math.inf, math.nan, 1e-45, -1e-40, 1.2e-38, 3.4e38, -3.4e38]
PLAIN = [1.0, -1.0, 1.5, -2.5, 1e-3, 7.0]
KINDS = ("float32", "float64", "float16")


class Pair:
    """A value here and in NumPy."""

    def __init__(self, ours: Any, theirs: Any) -> None:
        self.ours, self.theirs = ours, theirs


def largest(x: Any, y: Any) -> Any:
    """The larger of two; of zeros of different sign any will do, so the second is made alike."""
    return np.maximum(x, y)


BINARY: list[tuple[str, Callable[[Any, Any], Any], Callable[[Any, Any], Any]]] = [
    ("+", lambda x, y: x + y, np.add),
    ("-", lambda x, y: x - y, np.subtract),
    ("*", lambda x, y: x * y, np.multiply),
    ("/", lambda x, y: x / y, np.divide),
]
UNARY: list[tuple[str, Callable[[Any], Any], Callable[[Any], Any]]] = [
    ("neg", lambda x: -x, np.negative),
    ("abs", lambda x: x.abs(), np.abs),
    ("sqrt", lambda x: x.sqrt(), np.sqrt),
    ("reciprocal", lambda x: x.reciprocal(), lambda x: np.divide(x.dtype.type(1), x)),
    ("itself", lambda x: x - x, lambda x: x - x),
    ("quotient", lambda x: x / x, lambda x: x / x),
    ("square", lambda x: x * x, lambda x: x * x),
    ("power 1", lambda x: x**1, lambda x: x),
    ("power 0", lambda x: x**0, lambda x: np.ones_like(x)),
    ("twice", lambda x: x.neg().neg() if isinstance(x, Tensor) else x, lambda x: x),
    ("moved", lambda x: x.reshape(2, -1).permute(1, 0).contiguous().permute(1, 0).flatten(),
     lambda x: x),
    ("padded", lambda x: x.pad(((2, 1),)).shrink(((2, 2 + x.shape[0]),)), lambda x: x),
    ("stored", lambda x: x.contiguous(), lambda x: x),
]  # fmt: skip


def program_line(seed: int) -> str | None:
    """A program of a few steps."""
    rng = np.random.default_rng(seed)
    kind = KINDS[int(rng.integers(len(KINDS)))]
    count = 24
    text: list[str] = []
    with np.errstate(all="ignore"):
        pool = []
        for _ in range(2):
            data = rng.choice(SPECIAL + PLAIN, count).astype(kind)
            pool.append(Pair(Tensor(data), data))
        for _ in range(int(rng.integers(1, 7))):
            x = pool[-1] if rng.random() < 0.6 else pool[int(rng.integers(len(pool)))]
            pool.append(drawn_step(rng, x, pool, text))
    last = pool[-1]
    got, want = last.ours.numpy(), last.theirs
    same = (got == want) & (np.signbit(got) == np.signbit(want))
    same |= np.isnan(got) & np.isnan(want)
    if got.dtype != want.dtype or not same.all():
        i = int(np.flatnonzero(~same)[0]) if got.dtype == want.dtype else 0
        inputs = [p.theirs[i] for p in pool]
        return f"{kind} {'; '.join(text)}: {got[i]!r}, not {want[i]!r}; values {inputs}"
    return None


def drawn_step(rng: np.random.Generator, x: Pair, pool: list[Pair], text: list[str]) -> Pair:
    """One more value."""
    form = rng.random()
    if form < 0.3:
        name, ours, theirs = UNARY[int(rng.integers(len(UNARY)))]
        text.append(name)
        return Pair(ours(x.ours), theirs(x.theirs))
    if form < 0.4:
        # What is chosen keeps the sign of its zero.
        y = pool[int(rng.integers(len(pool)))]
        number = NUMBERS[int(rng.integers(len(NUMBERS)))]
        text.append(f"where(x < {number}, x, y)")
        chosen = np.where(x.theirs < x.theirs.dtype.type(number), x.theirs, y.theirs)
        return Pair((x.ours < number).where(x.ours, y.ours), chosen)
    name, ours, theirs = BINARY[int(rng.integers(len(BINARY)))]
    if form < 0.55:
        y = pool[int(rng.integers(len(pool)))]
        text.append(f"x {name} y")
        return Pair(ours(x.ours, y.ours), theirs(x.theirs, y.theirs))
    number = NUMBERS[int(rng.integers(len(NUMBERS)))]
    own = x.theirs.dtype.type(number)
    # Zeros and ones come as numbers, as tensors of one number, and as what is worked out to one.
    given = [
        number,
        Tensor.full((x.theirs.size,), number, dtype=x.ours.dtype),
        Tensor(number, dtype=x.ours.dtype) * 1,
    ][int(rng.integers(3))]
    if rng.random() < 0.3:
        text.append(f"{number} {name} x")
        return Pair(ours(given, x.ours), theirs(own, x.theirs))
    text.append(f"x {name} {number}")
    return Pair(ours(x.ours, given), theirs(x.theirs, own))


def test_special_floats(record_property: Record) -> None:
    with Context(EXACT=1):
        check_all("special floats", draws(60, 5000), program_line, record_property)


@pytest.mark.skipif(find_compiler() is None, reason="no C compiler on PATH: cc")
def test_special_floats_in_c(record_property: Record) -> None:
    with Context(EXACT=1, CLANG=1):
        check_all("special floats in C", draws(10, 1000), program_line, record_property)


@pytest.mark.skipif(find_compiler() is None, reason="no C compiler on PATH: cc")
def test_products_in_c_are_rounded_before_they_are_added() -> None:
    """Of the kinds of the programs above, the two that a contraction gives another result."""
    big, small = np.float32([-3.4e38, 3e38]), np.float32([1e-45, 3e-45])
    with Context(EXACT=1, CLANG=1):
        x, y = Tensor(big), Tensor(small)
        assert (x * 2 - x).tolist() == [-math.inf, math.inf]
        assert (y * -0.5 + y).tolist() == (small * np.float32(-0.5) + small).tolist()


def gradient_line(seed: int) -> str | None:
    """Gradients of sums, products and choices, beside PyTorch's."""
    torch = pytest.importorskip("torch", reason="needs PyTorch: `pip install torch`")
    rng = np.random.default_rng(seed)
    data = [rng.choice(SPECIAL + PLAIN, 24).astype(np.float32) for _ in range(2)]
    given = rng.choice(SPECIAL + PLAIN, 24).astype(np.float32)
    if rng.random() < 0.3:
        given[:] = rng.choice([0.0, 1.0, -1.0, 2.0])
    ours = [Tensor(d, requires_grad=True) for d in data]
    theirs = [torch.tensor(d, requires_grad=True) for d in data]
    x, y = [list(v) for v in zip(ours, theirs, strict=True)]
    text: list[str] = []
    for _ in range(int(rng.integers(1, 5))):
        number = NUMBERS[int(rng.integers(len(NUMBERS)))]
        form = int(rng.integers(8))
        text.append(f"{FORMS[form]} ({number})")
        x, y = y, [gradient_step(form, a, b, number) for a, b in zip(x, y, strict=True)]
    root, other = y
    # A gradient that is one number everywhere is a number here.
    plain = bool((given == given[0]).all()) and given[0] == given[0]
    mine = Tensor(float(given[0])).expand(24) if plain else Tensor(given)
    got = root.gradient(*ours, gradient=mine, materialize_grads=True)
    other.backward(torch.tensor(given))
    for i, (g, t) in enumerate(zip(got, theirs, strict=True)):
        found = g.numpy()
        want = np.zeros(24, np.float32) if t.grad is None else t.grad.numpy()
        # PyTorch adds gradients up in another order, so zeros may have another sign.
        same = (found == want) | (np.isnan(found) & np.isnan(want))
        if not same.all():
            j = int(np.flatnonzero(~same)[0])
            return (
                f"{'; '.join(text)}: gradient {i} {found[j]!r}, not {want[j]!r}, for x "
                f"{data[0][j]!r}, y {data[1][j]!r}, gradient {given[j]!r}"
            )
    return None


FORMS = ["x * n", "n * y", "x + n", "x * y", "x - y", "-y", "y * n * x", "(x + y) / 4"]


def gradient_step(form: int, x: Any, y: Any, n: float) -> Any:
    """One more value, of either package."""
    return [
        lambda: x * n, lambda: n * y, lambda: x + n, lambda: x * y, lambda: x - y, lambda: -y,
        lambda: y * n * x, lambda: (x + y) / 4,
    ][form]()  # fmt: skip


def test_gradients_of_special_floats(record_property: Record) -> None:
    # Compilers of C round a product and a sum once.
    with Context(EXACT=1, CLANG=0):
        check_all("gradients of special floats", draws(40, 4000), gradient_line, record_property)
