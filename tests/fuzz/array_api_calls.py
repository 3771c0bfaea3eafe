"""Random calls of the array API standard's functions, by name: arguments as NumPy arrays.

Receives a random generator; returns a name, arguments and keywords. What runs them, and what they
are compared with, stands in `test_fuzz_array_api`.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np

SIZES = (0, 1, 2, 3, 5, 7, 11, 13, 16)
INTS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
REAL, COMPLEX = ("float32", "float64"), ("complex64", "complex128")
FLOATING = REAL + COMPLEX
NUMERIC = INTS + FLOATING
EVERY = ("bool", *NUMERIC)
SPECIAL = (0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 0.5, -2.5, 1e-6, 3.0)
Call = tuple[str, list[Any], dict[str, Any]]


class Draw:
    """Arrays, axes and choices of one case."""

    def __init__(self, seed: int) -> None:
        self.r = random.Random(seed)
        self.rng = np.random.default_rng(seed)

    def shape(self, least: int = 0, most: int = 4, size: int = 0) -> tuple[int, ...]:
        """A shape, its sizes no less than `size`."""
        sizes = [s for s in SIZES if s >= size]
        rank = self.r.randint(least, most)
        found = tuple(self.r.choice(sizes[: 5 if rank > 2 else None]) for _ in range(rank))
        return found

    def broadcast(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """A shape that is broadcast to this one."""
        cut = shape[self.r.randint(0, len(shape)) :] if self.r.random() < 0.3 else shape
        return tuple(1 if self.r.random() < 0.2 else s for s in cut)

    def array(self, dtype: str, shape: tuple[int, ...], special: bool = False) -> Any:
        """Numbers of a dtype, among them those that have rules of their own."""
        if dtype == "bool":
            return np.asarray(self.rng.random(shape) < 0.5)
        if dtype in INTS:
            low = 0 if dtype[0] == "u" else -5
            return self.rng.integers(low, 8, shape).astype(dtype)
        parts = [np.asarray(self.rng.standard_normal(shape) * 2) for _ in range(2)]
        if special:
            for part in parts:
                where = self.rng.random(shape) < 0.4
                part[...] = np.where(where, self.rng.choice(SPECIAL, shape), part)
        if dtype in REAL:
            return parts[0].astype(dtype)
        made = np.empty(shape, dtype)
        made.real, made.imag = parts
        return made

    def of(self, dtypes: tuple[str, ...], *shape: Any, special: bool = False) -> Any:
        """An array of one of some dtypes, of a shape or of any."""
        return self.array(self.r.choice(dtypes), shape[0] if shape else self.shape(), special)

    def axis(self, x: Any) -> int:
        """An axis of an array that has some."""
        return self.r.randrange(-x.ndim, x.ndim)

    def axes(self, x: Any) -> Any:
        """None, an axis, or several."""
        kind = self.r.random()
        if kind < 0.3 or not x.ndim:
            return None
        if kind < 0.6:
            return self.axis(x)
        return tuple(self.r.sample(range(x.ndim), self.r.randint(0, x.ndim)))

    def keep(self) -> bool:
        """Whether axes stay."""
        return self.r.random() < 0.5


UNARY: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(
        "acos acosh asin asinh atan atanh cos cosh exp expm1 log log10 log1p log2 reciprocal "
        "sin sinh sqrt tan tanh".split(), FLOATING),
    **dict.fromkeys("abs negative positive sign square".split(), NUMERIC),
    **dict.fromkeys("ceil floor trunc".split(), INTS + REAL),
    **dict.fromkeys("isfinite isinf isnan round".split(), NUMERIC),
    **dict.fromkeys("real imag conj".split(), NUMERIC),
    "signbit": REAL, "bitwise_invert": ("bool", *INTS), "logical_not": ("bool",),
}  # fmt: skip
BINARY: dict[str, tuple[str, ...]] = {
    **dict.fromkeys("add multiply subtract".split(), NUMERIC),
    **dict.fromkeys("atan2 copysign hypot logaddexp nextafter".split(), REAL),
    "divide": FLOATING, "pow": FLOATING,
    **dict.fromkeys("equal not_equal".split(), EVERY),
    **dict.fromkeys("greater greater_equal less less_equal maximum minimum".split(), INTS + REAL),
    **dict.fromkeys("floor_divide remainder".split(), REAL),
    **dict.fromkeys("bitwise_and bitwise_or bitwise_xor".split(), ("bool", *INTS)),
    **dict.fromkeys("logical_and logical_or logical_xor".split(), ("bool",)),
}  # fmt: skip


def unary(d: Draw) -> Call:
    """A function of one array, by element."""
    name = d.r.choice(sorted(UNARY))
    dtypes = [t for t in UNARY[name] if not (name in ("negative", "abs") and t[0] == "u")]
    return name, [d.of(tuple(dtypes), special=True)], {}


def binary(d: Draw) -> Call:
    """A function of two arrays that broadcast, by element."""
    name = d.r.choice(sorted(BINARY))
    dtype, shape = d.r.choice(BINARY[name]), d.shape()
    # Infinities as factors of complex numbers are left open.
    special = dtype not in COMPLEX
    arrays = [d.array(dtype, d.broadcast(shape), special) for _ in range(2)]
    if d.r.random() < 0.2 and dtype in REAL:
        arrays[1] = d.array(d.r.choice(REAL), arrays[1].shape, special)
    d.r.shuffle(arrays)
    return name, arrays, {}


def shift(d: Draw) -> Call:
    """Bits moved."""
    dtype, shape = d.r.choice(INTS), d.shape()
    by = np.abs(d.array(dtype, shape))
    return (
        d.r.choice(["bitwise_left_shift", "bitwise_right_shift"]),
        [d.array(dtype, shape), by],
        {},
    )


def clip(d: Draw) -> Call:
    """Limits."""
    x = d.of(INTS + REAL)
    low = d.array(x.dtype.name, d.broadcast(x.shape)) if d.r.random() < 0.7 else None
    high = None if low is None and d.r.random() < 0.5 else d.array(x.dtype.name, x.shape)
    if low is not None and high is not None:
        high = (low + np.abs(high)).astype(x.dtype)
    return "clip", [x], {k: v for k, v in (("min", low), ("max", high)) if v is not None}


REDUCTIONS: dict[str, tuple[str, ...]] = {
    "all": EVERY, "any": EVERY, "sum": NUMERIC, "prod": NUMERIC, "mean": FLOATING, "std": REAL,
    "var": REAL, "max": INTS + REAL, "min": INTS + REAL, "count_nonzero": EVERY,
}  # fmt: skip


def reduction(d: Draw) -> Call:
    """A fold over axes."""
    name = d.r.choice(sorted(REDUCTIONS))
    x = d.of(REDUCTIONS[name], d.shape(size=1 if name in ("max", "min", "mean") else 0))
    keywords: dict[str, Any] = {"axis": d.axes(x), "keepdims": d.keep()}
    if name in ("std", "var"):
        x = d.of(REAL, d.shape(size=2))
        keywords = {"axis": d.axes(x), "keepdims": d.keep(), "correction": d.r.choice([0.0, 1.0])}
        if keywords["axis"] == () or not x.ndim:
            keywords["correction"] = 0.0
    return name, [x], keywords


def place(d: Draw) -> Call:
    """Places of the greatest and the least."""
    x = d.of(INTS + REAL, d.shape(size=1))
    axis = d.axis(x) if x.ndim and d.keep() else None
    return d.r.choice(["argmax", "argmin"]), [x], {"axis": axis, "keepdims": d.keep()}


def running(d: Draw) -> Call:
    """Sums and products up to each element; differences."""
    name = d.r.choice(["cumulative_sum", "cumulative_prod", "diff"])
    x = d.of(NUMERIC, d.shape(1))
    axis = d.axis(x)
    if name == "diff":
        return name, [x], {"axis": axis, "n": d.r.choice([1, 2])}
    return name, [x], {"axis": axis, "include_initial": d.keep()}


def moving(d: Draw) -> Call:
    """Another shape or order."""
    name = d.r.choice(
        "expand_dims flip permute_dims reshape roll squeeze stack concat tile "
        "repeat moveaxis unstack broadcast_to tril triu matrix_transpose take "
        "take_along_axis meshgrid broadcast_arrays where nonzero".split()
    )
    x = d.of(EVERY, d.shape(1, 3))
    axis = d.axis(x)
    if name == "expand_dims":
        return name, [x], {"axis": d.r.randint(-x.ndim - 1, x.ndim)}
    if name == "permute_dims":
        return name, [x, tuple(d.r.sample(range(x.ndim), x.ndim))], {}
    if name == "reshape":
        return name, [x, d.r.choice([(-1,) if x.size else (0,), x.shape[::-1], (1, *x.shape)])], {}
    if name == "roll":
        several = (2, tuple(range(x.ndim))[:1]) if d.keep() else (-3, axis)
        return name, [x, several[0]], {"axis": d.r.choice([None, several[1]])}
    if name == "squeeze":
        x = x.reshape((1, *x.shape))
        return name, [x, 0], {}
    if name in ("stack", "concat"):
        return name, [[x, d.array(x.dtype.name, x.shape)]], {"axis": axis}
    if name == "tile":
        return name, [x, tuple(d.r.choices([1, 2, 3], k=d.r.randint(0, 4)))], {}
    if name == "repeat":
        counts = d.rng.integers(0, 3, x.shape[axis]) if d.keep() and x.shape[axis] else 2
        return name, [x, counts], {"axis": axis}
    if name == "moveaxis":
        return name, [x, axis, d.axis(x)], {}
    if name == "unstack":
        return name, [x], {"axis": axis}
    if name == "broadcast_to":
        return name, [d.array(x.dtype.name, d.broadcast(x.shape)), (2, *x.shape)], {}
    if name in ("tril", "triu"):
        return name, [d.of(EVERY, d.shape(2, 3))], {"k": d.r.randint(-3, 3)}
    if name == "matrix_transpose":
        return name, [d.of(EVERY, d.shape(2, 4))], {}
    if name == "take":
        x = d.of(EVERY, d.shape(1, 3, 1))
        axis = d.axis(x)
        return name, [x, d.rng.integers(0, x.shape[axis], 4)], {"axis": axis}
    if name == "take_along_axis":
        x = d.of(EVERY, d.shape(1, 3, 1))
        axis = d.axis(x)
        return name, [x, d.rng.integers(0, x.shape[axis], x.shape)], {"axis": axis}
    if name in ("meshgrid", "broadcast_arrays"):
        y = d.array(x.dtype.name, (5,))
        indexing = {"indexing": d.r.choice(["ij", "xy"])} if name == "meshgrid" else {}
        return name, [x.ravel()[:5] if name == "meshgrid" else x[..., :1], y], indexing
    if name == "where":
        shape = x.shape
        return name, [d.array("bool", d.broadcast(shape)), x, d.array(x.dtype.name, shape)], {}
    return name, [x], {}


def order(d: Draw) -> Call:
    """Order, sets, places in order."""
    name = d.r.choice("sort argsort unique_all unique_counts unique_inverse unique_values "
                      "searchsorted".split())  # fmt: skip
    if name == "searchsorted":
        dtype = d.r.choice(INTS + REAL)
        x = np.sort(d.array(dtype, d.shape(1, 1)))
        return name, [x, d.array(dtype, d.shape())], {"side": d.r.choice(["left", "right"])}
    if name.startswith("unique"):
        return name, [d.of(EVERY)], {}
    x = d.of(INTS + REAL, d.shape(1))
    return name, [x], {"axis": d.axis(x), "descending": d.keep()}


def product(d: Draw) -> Call:
    """Products of matrices and vectors."""
    name, dtype = d.r.choice(["matmul", "vecdot", "tensordot", "linalg.outer"]), d.r.choice(NUMERIC)
    lead, n, k, m = d.shape(0, 2), *d.r.choices(SIZES, k=3)
    if name == "matmul":
        return name, [d.array(dtype, (*lead, n, k)), d.array(dtype, (*d.broadcast(lead), k, m))], {}
    if name == "vecdot":
        return name, [d.array(dtype, (*lead, k)), d.array(dtype, (*lead, k))], {}
    if name == "tensordot":
        return name, [d.array(dtype, (n, k)), d.array(dtype, (k, m))], {"axes": 1}
    return name, [d.array(dtype, (n,)), d.array(dtype, (m,))], {}


def matrices(d: Draw) -> Call:
    """Linear algebra with one answer."""
    name = d.r.choice("inv det solve cholesky eigvalsh svdvals matrix_norm vector_norm trace pinv "
                      "matrix_rank slogdet matrix_power cross diagonal".split())  # fmt: skip
    dtype, lead = d.r.choice(FLOATING), d.shape(0, 1, 1)
    n, m = d.r.randint(1, 5), d.r.randint(1, 5)
    square = (d.array(dtype, (*lead, n, n)) + 6 * np.eye(n)).astype(dtype)
    name = f"linalg.{name}"
    if name in ("linalg.cholesky", "linalg.eigvalsh"):
        both = square @ np.swapaxes(square.conj(), -2, -1)
        return name, [((both + np.swapaxes(both.conj(), -2, -1)) / 2).astype(dtype)], {}
    if name == "linalg.solve":
        return name, [square, d.array(dtype, (*lead, n, m))], {}
    if name == "linalg.matrix_power":
        return name, [square / 6, d.r.randint(-2, 4)], {}
    if name == "linalg.cross":
        return name, [d.array(dtype, (*lead, 3)), d.array(dtype, (*lead, 3))], {}
    if name in ("linalg.inv", "linalg.det", "linalg.slogdet"):
        return name, [square], {}
    x = d.array(dtype, (*lead, n, m))
    if name == "linalg.vector_norm":
        norm = d.r.choice([1, 2, 3, np.inf, -np.inf, 0])
        return name, [x], {"axis": d.axes(x), "keepdims": d.keep(), "ord": norm}
    if name == "linalg.matrix_norm":
        kind = d.r.choice(["fro", "nuc", 1, -1, 2, -2, np.inf, -np.inf])
        return name, [x], {"keepdims": d.keep(), "ord": kind}
    if name in ("linalg.trace", "linalg.diagonal"):
        return name, [x], {"offset": d.r.randint(-n + 1, m - 1)}
    return name, [x], {}


def transforms(d: Draw) -> Call:
    """The extension fft."""
    name = d.r.choice("fft ifft rfft irfft hfft ihfft fftn ifftn rfftn irfftn fftshift ifftshift "
                      "fftfreq rfftfreq".split())  # fmt: skip
    if name.endswith("freq"):
        return f"fft.{name}", [d.r.randint(1, 20)], {"d": d.r.choice([1.0, 0.1])}
    real = name in ("rfft", "ihfft", "rfftn")
    x = d.of(REAL if real else COMPLEX, d.shape(1, 2, 2))
    norm = {"norm": d.r.choice(["backward", "ortho", "forward"])}
    if name.endswith("shift"):
        norm = {}
    elif not name.endswith("n"):
        norm.update(axis=d.axis(x), n=d.r.choice([None, 4, 7]))  # type: ignore[call-overload]
    return f"fft.{name}", [x], norm


# Operators of Python: of two arrays, of one and a number, of one.
OPERATORS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys("add sub mul iadd isub imul".split(), NUMERIC),
    **dict.fromkeys("truediv pow itruediv".split(), FLOATING),
    **dict.fromkeys("floordiv mod".split(), REAL), "matmul": FLOATING,
    **dict.fromkeys("and_ or_ xor iand".split(), ("bool", *INTS)),
    **dict.fromkeys("eq ne".split(), EVERY), **dict.fromkeys("lt le gt ge".split(), INTS + REAL),
    "neg": FLOATING, "pos": NUMERIC, "abs": FLOATING, "invert": ("bool", *INTS),
}  # fmt: skip


def operator(d: Draw) -> Call:
    """An operator of arrays, or of an array and a number on either side."""
    name = d.r.choice(sorted(OPERATORS))
    x = d.of(OPERATORS[name])
    if name in ("neg", "pos", "abs", "invert"):
        return f"operator.{name}", [x], {}
    if name == "matmul":
        n = d.r.choice(SIZES)
        return f"operator.{name}", [d.array("float64", (3, n)), d.array("float64", (n, 2))], {}
    kind = x.dtype.kind
    number: Any = {"b": True, "i": 2, "u": 2, "f": 1.5, "c": 2 - 1j}[kind]
    if d.r.random() < 0.4:
        sides = [x, number] if name[0] == "i" or d.keep() else [number, x]
        return f"operator.{name}", sides, {}
    return f"operator.{name}", [x, d.array(x.dtype.name, x.shape)], {}


def index(d: Draw) -> Call:
    """Elements read, or written, by slices, numbers, new axes and masks."""
    x = d.of(EVERY, d.shape(1, 3))
    if d.r.random() < 0.25:
        mask = d.array("bool", x.shape)
        return (
            ("getitem", [x, mask], {}) if d.keep() else ("written", [x, mask, x.dtype.type(1)], {})
        )
    key: list[Any] = []
    for size in x.shape[: d.r.randint(0, x.ndim)]:
        low, high = sorted(d.r.choices(range(-size, size + 1), k=2))
        step = d.r.choice([1, 2, -1])
        part = slice(low, high, step) if step > 0 else slice(None, None, step)
        key.append(d.r.randrange(-size, size) if size and d.r.random() < 0.4 else part)
    if d.r.random() < 0.2:
        key.insert(d.r.randint(0, len(key)), None)
    full = x.ndim == len([k for k in key if k is not None])
    key = key if full else [*key, Ellipsis]
    if d.keep() or None in key:
        return "getitem", [x, tuple(key)], {}
    value = d.array(x.dtype.name, np.asarray(x[tuple(key)]).shape)
    return "written", [x, tuple(key), value], {}


KINDS: tuple[Callable[[Draw], Call], ...] = (
    unary, unary, binary, binary, shift, clip, reduction, reduction, place, running, moving,
    moving, order, product, matrices, transforms, operator, operator, index, index,
)  # fmt: skip


def drawn(seed: int) -> Call:
    """The call of a seed."""
    d = Draw(seed)
    return d.r.choice(KINDS)(d)
