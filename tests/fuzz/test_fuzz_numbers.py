"""Numbers at their edges: elementary functions and their gradients, beside PyTorch in float64.

Values are zeros of both signs, infinities, NaN, subnormals, ends of dtypes, ends of domains and
neighbours of poles, with random ones between.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from aster_ml import Tensor, dtypes
from aster_ml.dtype import DType, to_numpy_dtype
from aster_ml.errors import NumberRangeError
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


# numbers beside tensors

INTS = (*dtypes.sints, *dtypes.uints)
COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "<": lambda x, y: x < y,
    "<=": lambda x, y: x <= y,
    ">": lambda x, y: x > y,
    ">=": lambda x, y: x >= y,
    "==": lambda x, y: x == y,
    "!=": lambda x, y: x != y,
}
ARITHMETIC: dict[str, Callable[[Any, Any], Any]] = {
    "+": lambda x, y: x + y,
    "-": lambda x, y: x - y,
    "*": lambda x, y: x * y,
    "&": lambda x, y: x & y,
    "|": lambda x, y: x | y,
    "^": lambda x, y: x ^ y,
}


def drawn_number(rng: np.random.Generator, dtype: DType) -> Any:
    """A Python number in, at or beyond the limits of a dtype."""
    most = int(dtypes.max(dtype)) if dtype.kind != "float" else int(MOST_OF[dtype])
    ints = [0, 1, -1, 2, most, most + 1, -most, -most - 1, -most - 2, 2 * most, 2**40, -(2**70)]
    others = [0.5, -0.5, 2.5, math.inf, -math.inf, math.nan, float(most), most + 0.5, -1e30, 1e300]
    pool = ints + others if rng.random() < 0.7 else [int(rng.integers(-300, 300))]
    return pool[int(rng.integers(len(pool)))]


MOST_OF = {**MOST, dtypes.float64: 2.0**1000, dtypes.fp8e4m3: 448.0, dtypes.fp8e5m2: 57344.0}


def ends(rng: np.random.Generator, dtype: DType) -> Any:
    """Values of a dtype, its ends among them."""
    if dtype.kind == "float":
        most = MOST_OF[dtype]
        drawn = [0.0, -0.0, 1.0, -2.5, most, -most, 0.5, *rng.standard_normal(5)]
        inf = [] if dtype is dtypes.fp8e4m3 else [math.inf, -math.inf]
        return np.array([*drawn, *inf, math.nan]).astype(to_numpy_dtype(dtype))
    low, high = dtypes.min(dtype), dtypes.max(dtype)
    drawn = [low, low + 1, high, high - 1, 0, 1, *rng.integers(low, high, 6, to_numpy_dtype(dtype))]
    return np.array([int(v) for v in drawn], dtype=to_numpy_dtype(dtype))


def scalar_line(seed: int) -> str | None:
    """A number beside a tensor: compared as in mathematics, refused where it does not fit."""
    rng = np.random.default_rng(seed)
    every = (*INTS, *dtypes.floats)
    dtype = every[int(rng.integers(len(every)))]
    data, number = ends(rng, dtype), drawn_number(rng, dtype)
    x = Tensor(data)
    values = [v.item() if dtype.kind != "float" else float(v) for v in data]
    if dtype.kind != "float" and isinstance(number, int) and rng.random() < 0.6:
        return int_line(rng, x, data, number)
    name = list(COMPARISONS)[int(rng.integers(6))]
    function = COMPARISONS[name]
    held: Any = number
    if dtype.kind == "float":
        # In range, a number is rounded to the dtype first, as in NumPy and PyTorch.
        with np.errstate(over="ignore"):
            rounded = float(np.array(float(number)).astype(to_numpy_dtype(dtype)))
        inside = abs(rounded) <= MOST_OF[dtype]
        held = (
            rounded
            if inside and not (dtype in dtypes.fp8s and abs(number) > MOST_OF[dtype])
            else number
        )
    for what, got, want in (
        (f"x {name} y", function(x, number), [function(v, held) for v in values]),
        (f"y {name} x", function(number, x), [function(held, v) for v in values]),
    ):
        if got.tolist() != want:
            return f"{what} of {dtype.name} {values} and {number!r}: {got.tolist()}, not {want}"
    return None


def int_line(rng: np.random.Generator, x: Tensor, data: Any, number: int) -> str | None:
    """Arithmetic of ints with a number, and bounds."""
    dtype = x.dtype
    low, high = dtypes.min(dtype), dtypes.max(dtype)
    values = [int(v) for v in data]
    bounds: dict[str, tuple[Callable[[], Tensor], list[int]]] = {
        "maximum": (lambda: x.maximum(number), [max(v, number) for v in values]),
        "minimum": (lambda: x.minimum(number), [min(v, number) for v in values]),
        "clamp": (lambda: x.clamp(min_=number), [max(v, number) for v in values]),
        "clip": (lambda: x.clip(max_=number), [min(v, number) for v in values]),
        "pad": (lambda: x.pad(((1, 0),), value=number), [number, *values]),
        "where": (lambda: (x >= 0).where(x, number), [v if v >= 0 else number for v in values]),
        "full_like": (lambda: x.full_like(number), [number] * len(values)),
    }
    name = [*bounds, *ARITHMETIC][int(rng.integers(len(bounds) + len(ARITHMETIC)))]
    if name in bounds:
        make, wanted = bounds[name]
        # A number that is not in the result need not fit.
        bad = any([not low <= v <= high for v in wanted])
        bad |= name == "where" and not low <= number <= high
    else:
        function = ARITHMETIC[name]
        # NumPy refuses a mask that has its highest bit; here its bits are what counts.
        least, most = (-(high - low + 1) // 2, high - low) if name in "&|^" else (low, high)
        bad = not least <= number <= most
        turned = rng.random() < 0.5
        make = (lambda: function(number, x)) if turned else (lambda: function(x, number))
        if not bad:
            number = (number - low) % (high - low + 1) + low
            own = data.dtype.type(number)
            with np.errstate(all="ignore"):
                wanted = (function(own, data) if turned else function(data, own)).tolist()
    try:
        got = make().tolist()
    except NumberRangeError:
        return None if bad else f"{name} of {dtype.name} {values} and {number}: refused"
    if bad or got != wanted:
        return f"{name} of {dtype.name} {values} and {number}: {got}"
    return None


def test_numbers_beside_tensors(record_property: Record) -> None:
    check_all("numbers beside tensors", draws(150, 20000), scalar_line, record_property)


# casts


def cast_right(data: Any, source: DType, target: DType) -> Any:
    """What a cast gives, by NumPy and ml_dtypes, with the rules for what does not fit."""
    kind = to_numpy_dtype(target)
    with np.errstate(all="ignore"):
        if target.kind == "float":
            wide = data.astype(np.float64)
            if target in dtypes.fp8s:
                most = MOST_OF[target]
                wide = np.where(np.isinf(wide), wide, np.clip(wide, -most, most))
            return wide.astype(kind).astype(np.float64)
        if source.kind != "float" or target is dtypes.bool:
            return data.astype(kind)
    held = target if target.bits >= 32 else dtypes.int32
    low, high = dtypes.min(held), dtypes.max(held)
    whole = [0 if v != v else int(max(min(v, 2.0**65), -(2.0**65))) for v in data.astype(float)]
    wrapped = [max(min(v, high), low) % 2**target.bits for v in whole]
    return np.array(wrapped, dtype=f"u{target.itemsize}").view(kind)


def cast_line(seed: int) -> str | None:
    """A cast between two dtypes, of stored values and of constants."""
    rng = np.random.default_rng(seed)
    every = (*INTS, *dtypes.floats, dtypes.bool)
    source, target = (every[int(i)] for i in rng.integers(len(every), size=2))
    data = np.array([True, False]) if source is dtypes.bool else ends(rng, source)
    got = Tensor(data).cast(target)
    found = got.cast(dtypes.float64).numpy() if target.kind == "float" else got.numpy()
    want = cast_right(data, source, target)
    constants = [Tensor(v).cast(target) for v in data]
    again = [
        t.cast(dtypes.float64).item() if target.kind == "float" else t.item() for t in constants
    ]
    for what, values in (("stored", found), ("constants", np.array(again, want.dtype))):
        same = (values == want) | ((values != values) & (want != want))
        if not same.all():
            return f"{what} {source.name} to {target.name} of {data}: {values}, not {want}"
    return None


def test_casts(record_property: Record) -> None:
    check_all("casts between dtypes", draws(60, 5000), cast_line, record_property)


# numbers that are stored


def stored_line(seed: int) -> str | None:
    """A number stored in a tensor of ints, by itself or in a list: as NumPy does, or refused."""
    rng = np.random.default_rng(seed)
    dtype = INTS[int(rng.integers(len(INTS)))]
    kind = to_numpy_dtype(dtype)
    number = drawn_number(rng, dtype)
    # NumPy's numbers are arrays to NumPy, and numbers here.
    given = number
    if isinstance(number, float) and rng.random() < 0.3:
        given = np.float64(number)
    x = Tensor(np.arange(3, dtype=kind)).realize()

    def written(index: Any, value: Any) -> Tensor:
        x[index] = value
        return x

    ways: dict[str, tuple[Callable[[], Tensor], list[Any]]] = {
        "Tensor": (lambda: Tensor(given, dtype=dtype).reshape(1), [number]),
        "list": (lambda: Tensor([1, given], dtype=dtype), [1, number]),
        "nested list": (lambda: Tensor([[0], [given]], dtype=dtype).flatten(), [0, number]),
        "full": (lambda: Tensor.full((2,), given, dtype=dtype), [number] * 2),
        "x[1] =": (lambda: written(1, given), [0, number, 2]),
        "x[1:] = list": (lambda: written(slice(1, None), [5, given]), [0, 5, number]),
        "x[[2, 0]] =": (lambda: written([2, 0], given), [number, 1, number]),
        "x[mask] =": (lambda: written(Tensor([True, False, True]), given), [number, 1, number]),
        "assign": (lambda: x.assign(given), [number] * 3),
        "assign a list": (lambda: x.assign([given, 1, 2]), [number, 1, 2]),
        "masked_fill": (lambda: x.masked_fill(x.eq(1), number), [0, number, 2]),
        "scatter": (lambda: x.scatter(0, Tensor([1]), number), [0, number, 2]),
    }
    name = list(ways)[int(rng.integers(len(ways)))]
    make, values = ways[name]
    fits = number - number == 0 and dtypes.min(dtype) <= int(number) <= dtypes.max(dtype)
    if name in ("masked_fill", "scatter") and isinstance(number, float):
        # A float beside ints is arithmetic, which promotes.
        return None
    # Ints of a new list wrap, as the reference's tests want them to, and somebody is told.
    wraps = isinstance(number, int) and name in ("list", "nested list")
    try:
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            got = make()
    except NumberRangeError:
        bad = fits or wraps
        return f"{name} of {dtype.name} and {given!r}: refused" if bad else None
    if bool(told) is fits or (not fits and not wraps):
        return f"{name} of {dtype.name} and {given!r}: {got.tolist()}, {len(told)} warnings"
    if not fits:
        values[1] = (number - dtypes.min(dtype)) % 2**dtype.bits + dtypes.min(dtype)
    wanted = np.array(values, dtype=kind).tolist()
    if got.dtype is not dtype or got.tolist() != wanted:
        return f"{name} of {dtype.name} and {given!r}: {got.tolist()}, not {wanted}"
    return None


def test_numbers_that_are_stored(record_property: Record) -> None:
    check_all("numbers that are stored", draws(100, 10000), stored_line, record_property)
