"""Numbers at their edges: elementary functions and their gradients, beside PyTorch in float64.

Values are zeros of both signs, infinities, NaN, subnormals, ends of dtypes, ends of domains and
neighbours of poles, with random ones between.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from aster_ml import Tensor, dtypes
from aster_ml.dtype import DType, to_numpy_dtype
from tests.fuzz.budget import check_all, draws

torch = pytest.importorskip("torch", reason="needs PyTorch: `pip install torch`")
F = torch.nn.functional

Record = Callable[[str, str], None]
EDGES = [
    *(0.0, math.inf, 1e-45, 1e-40, 1.17549435e-38, 1e-30, 1e-10, 1e-4, 0.1, 0.41421356, 0.5, 0.75),
    *(0.99, 0.9999999, 1.0, 1.0000001, 1.5, 1.5707963, 1.570796, 2.0, 2.5, 3.0, 3.1415927, 4.0),
    *(4.712389, 6.0, 7.0, 10.0, 11.5, 20.0, 50.0, 88.7, 89.0, 100.0, 104.0, 128.0, 150.0, 1000.0),
    *(1e5, 1e9, 1e10, 1e19, 1e20, 1e30, 3.4028235e38),
]
FLOATS = (dtypes.float32, dtypes.float64, dtypes.float16, dtypes.bfloat16)
EPS = {
    dtypes.float16: 2**-10,
    dtypes.bfloat16: 2**-7,
    dtypes.float32: 2**-23,
    dtypes.float64: 2**-52,
}
LEAST = {
    dtypes.float16: 2**-14, dtypes.bfloat16: 2**-126, dtypes.float32: 2**-126,
    dtypes.float64: 2**-1022,
}  # fmt: skip


@dataclass
class Function:
    """A function here and there; `bounded` ones have an absolute error of some eps.

    `open_at` are points at which nothing is compared, for the reason beside them in the table.
    """

    ours: Callable[[Any], Any]
    theirs: Callable[[Any], Any]
    bounded: bool = False
    open_at: Callable[[Any], Any] = lambda x: np.zeros(x.shape, bool)


def of_name(name: str, theirs: Callable[[Any], Any], **kwargs: Any) -> Function:
    return Function(lambda x: getattr(x, name)(), theirs, **kwargs)


# PyTorch gives no gradient to a NaN that is held between bounds; here it goes on, as it does there
# through relu. Of elu it has the slope 1 at NaN, here it is NaN.
AT_NAN = {"open_at": np.isnan}
# Here PyTorch's own 1 - x**2 has few digits.
NEAR_ONE = {"open_at": lambda x: (np.abs(np.abs(x) - 1) < 1e-3) & (np.abs(x) != 1)}
FUNCTIONS: dict[str, Function] = {
    **{
        name: of_name(name, getattr(torch, name))
        for name in (
            *("exp", "exp2", "log", "log2", "log10", "tan", "atan", "sinh", "cosh", "asinh"),
            *("sqrt", "rsqrt", "reciprocal", "abs", "square", "floor", "ceil", "round", "trunc"),
        )
    },
    **{name: of_name(name, getattr(torch, name), **NEAR_ONE) for name in ("asin", "acos", "atanh")},
    # Outside of the domain PyTorch's slope at -1 has another sign than the limit.
    "acosh": of_name("acosh", torch.acosh, open_at=lambda x: NEAR_ONE["open_at"](x) | (x == -1)),
    # PyTorch has 0 for the sign of NaN, NumPy NaN.
    "sign": of_name("sign", torch.sign, **AT_NAN),
    **{
        name: of_name(name, getattr(torch, name), bounded=True)
        for name in ("sin", "cos", "tanh", "erf", "sigmoid")
    },
    "relu": of_name("relu", torch.relu),
    "relu6": of_name("relu6", F.relu6, **AT_NAN),
    "hardtanh": of_name("hardtanh", F.hardtanh, **AT_NAN),
    "hardsigmoid": of_name(
        "hardsigmoid", lambda x: F.hardtanh(x / 6 + 0.5, 0, 1), bounded=True, **AT_NAN
    ),
    "hardswish": of_name("hardswish", F.hardswish, bounded=True, **AT_NAN),
    "silu": of_name("silu", F.silu, bounded=True),
    "softplus": of_name("softplus", lambda x: F.softplus(x, threshold=600)),
    "logsigmoid": of_name("logsigmoid", F.logsigmoid),
    "softsign": of_name("softsign", F.softsign, open_at=lambda x: np.abs(x) > 1e3),
    "gelu": of_name("gelu", lambda x: F.gelu(x, approximate="tanh"), bounded=True),
    "quick_gelu": of_name("quick_gelu", lambda x: x * torch.sigmoid(1.702 * x), bounded=True),
    "elu": of_name("elu", F.elu, **AT_NAN),
    "celu": of_name("celu", F.celu, **AT_NAN),
    "selu": of_name("selu", lambda x: 1.0507 * F.elu(x, 1.67326), **AT_NAN),
    "leaky_relu": of_name("leaky_relu", F.leaky_relu),
    "mish": of_name("mish", F.mish, bounded=True),
    "neg": of_name("neg", torch.neg),
    "clamp": Function(lambda x: x.clamp(-1, 2), lambda x: x.clamp(-1, 2), **AT_NAN),
    **{
        f"pow {p}": Function(
            lambda x, p=p: x**p,
            lambda x, p=p: x**p,
            # A root of -0 and of -inf: IEEE has sqrt(-0) = -0, and C's pow no sign there.
            open_at=lambda x, p=p: np.signbit(x) & ((x == 0) | np.isinf(x)) if p % 1 else x != x,
        )
        for p in (0, 1, 2, 3, 4, 0.5, -0.5, -1, -2, -3, 1.5, 2.5, -1.5, 5, -5, 1 / 3)
    },
    **{
        f"{b} to the power": Function(lambda x, b=b: b**x, lambda x, b=b: b**x)
        for b in (2.0, 0.5, 3.0)
    },
}


def inputs(seed: int, dtype: DType, most: float) -> Any:
    """Edges of both signs and random values, as float64 numbers that the dtype holds."""
    rng = np.random.default_rng(seed)
    edges = np.array(EDGES)
    drawn = rng.standard_normal(32) * 10.0 ** rng.integers(-6, 3, 32)
    with np.errstate(over="ignore"):
        values = np.concatenate([edges, -edges, drawn, [math.nan]]).astype(to_numpy_dtype(dtype))
    found = values.astype(np.float64)
    return np.where(np.isfinite(found) & (np.abs(found) > most), 1.0, found)


def with_gradient(function: Callable[[Any], Any], x: Any) -> tuple[Any, Any]:
    """Values and slopes in PyTorch, as float64."""
    y = function(x)
    if y.requires_grad:
        y.sum().backward()
    grad = torch.zeros_like(x) if x.grad is None else x.grad
    return y.detach().double().numpy(), grad.double().numpy()


def differs(got: Any, wanted: list[Any], dtype: DType, floor: float, limit: Any) -> Any:
    """Where a value is none of those wanted, of which any will do, within rounding."""
    near = np.zeros(got.shape, bool)
    most = float(np.finfo(np.float64).max if dtype is dtypes.float64 else MOST[dtype])
    for want in wanted:
        with np.errstate(all="ignore"):
            want = np.where(np.abs(want) > most, np.copysign(math.inf, want), want)
            off = np.abs(got - want) <= limit * EPS[dtype] * np.abs(want) + floor
            # What rounds to the end or beyond it may do either.
            off |= np.isinf(got) & (want * np.sign(got) >= most * (1 - limit * EPS[dtype]))
        near |= off | (got == want) | (np.isnan(got) & np.isnan(want))
    return ~near


MOST = {dtypes.float16: 65504.0, dtypes.bfloat16: 3.3895314e38, dtypes.float32: 3.4028235e38}


def function_line(seed: int) -> str | None:
    """One function at one dtype: values, signs of zeros, and slopes."""
    names = list(FUNCTIONS)
    name = names[seed % len(names)]
    dtype = FLOATS[(seed // len(names) + seed) % len(FLOATS)]
    f = FUNCTIONS[name]
    # The error of an exponential grows with what it is raised to, in float64 beyond this test.
    data = inputs(seed, dtype, 200.0 if dtype is dtypes.float64 and "power" in name else math.inf)
    x = Tensor(data, dtype=dtype, requires_grad=True)
    y = f.ours(x)
    (grad,) = y.sum().gradient(x, materialize_grads=True)
    got = [np.asarray(t.cast("float64").numpy()) for t in (y.detach(), grad)]
    own = {"float16": torch.float16, "bfloat16": torch.bfloat16}.get(dtype.name)
    theirs = [with_gradient(f.theirs, torch.tensor(data, requires_grad=True))]
    narrow = torch.tensor(data, dtype=own or getattr(torch, dtype.name), requires_grad=True)
    theirs.append(with_gradient(f.theirs, narrow))
    skipped = f.open_at(data)
    for what, mine, wanted in zip(("value", "slope"), got, zip(*theirs, strict=True), strict=True):
        # An exponential is as wrong as what it is raised to is rounded.
        limit = 64.0 + np.minimum(np.abs(data), 1000.0) if dtype.itemsize > 2 else 4.0
        floor = LEAST[dtype] + (8 * EPS[dtype] if f.bounded else 0.0)
        wrong = differs(mine, list(wanted), dtype, floor, limit) & ~skipped
        if what == "value" and name in SIGNED:
            zero = (mine == 0) & (data == 0)
            wrong |= zero & (np.signbit(mine) != np.signbit(wanted[0]))
        if wrong.any():
            i = int(np.flatnonzero(wrong)[0])
            said = ", ".join(repr(float(w[i])) for w in wanted)
            return f"{what} of {name} at {data[i]!r} in {dtype.name}: {mine[i]!r}, PyTorch {said}"
    return None


# Odd functions keep the sign of zero.
SIGNED = {
    *("tan", "asin", "atan", "sinh", "asinh", "atanh", "sin", "tanh", "erf", "sqrt", "floor"),
    *("ceil", "round", "trunc", "silu", "softsign", "gelu", "neg", "mish", "leaky_relu"),
}


def test_elementary_functions(record_property: Record) -> None:
    check_all("elementary functions", draws(70, 4000), function_line, record_property)


def pair_line(seed: int) -> str | None:
    """Remainders and quotients rounded down, beside NumPy."""
    rng = np.random.default_rng(seed)
    name = ("float32", "float64", "float16")[seed % 3]
    edges = np.array([0.0, 1.0, 3.0, 0.1, 0.3, 5.0, 7.5, 1e10, 16777216.0, math.inf, 1e-3, 6.5e4])
    drawn = rng.standard_normal(8) * 10.0 ** rng.integers(-6, 9, 8)
    with np.errstate(over="ignore"):
        values = np.concatenate([edges, -edges, drawn, [math.nan]]).astype(name)
    a, b = (x.ravel().copy() for x in np.meshgrid(values, values))
    for what, function, right in (
        ("%", lambda x, y: x % y, np.remainder),
        ("//", lambda x, y: x // y, np.floor_divide),
    ):
        got = function(Tensor(a), Tensor(b)).numpy()
        with np.errstate(all="ignore"):
            want = right(a, b)
        same = (got == want) & ((got != 0) | (np.signbit(got) == np.signbit(want)))
        wrong = ~(same | (np.isnan(got) & np.isnan(want)))
        if wrong.any():
            i = int(np.flatnonzero(wrong)[0])
            return f"{a[i]!r} {what} {b[i]!r}: {got[i]!r}, NumPy {want[i]!r}"
    return None


def test_remainders(record_property: Record) -> None:
    check_all("remainders of floats", draws(3, 200), pair_line, record_property)
