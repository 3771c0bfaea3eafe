"""Pure functions on plain Python values, shared by every layer.

What belongs here takes and returns built-in types, touches no global state and knows nothing of
nodes, tensors or devices.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from aster_ml.errors import ArgumentError

T = TypeVar("T")
U = TypeVar("U")


def prod(values: Iterable[Any]) -> Any:
    """Product of the values, 1 when there are none."""
    result: Any = 1
    for value in values:
        result = result * value
    return result


def dedup(values: Iterable[T]) -> list[T]:
    """The values without repeats, first occurrence kept, order kept."""
    return list(dict.fromkeys(values))


def argsort(values: Sequence[Any]) -> tuple[int, ...]:
    """Positions that would sort the values; the inverse of a permutation."""
    return tuple(sorted(range(len(values)), key=values.__getitem__))


def all_int(values: Iterable[Any]) -> bool:
    """Whether every value is a Python int."""
    return all([isinstance(value, int) for value in values])


def all_same(values: Sequence[Any]) -> bool:
    """Whether all values are equal (true when there are none)."""
    return all(value == values[0] for value in values)


def argfix(*args: Any) -> tuple[Any, ...]:
    """Lets a method take `f(1, 2)` and `f((1, 2))` alike: always the tuple."""
    if len(args) == 1 and isinstance(args[0], (tuple, list)):
        return tuple(args[0])
    if args and isinstance(args[0], (tuple, list)):
        raise ValueError(f"one tuple or separate numbers are wanted, both were given: {args}")
    return args


def make_tuple(value: Any, count: int) -> tuple[Any, ...]:
    """`value` repeated `count` times, or `value` itself when it is a sequence already."""
    return tuple(value) if isinstance(value, (tuple, list)) else (value,) * count


def flatten(values: Iterable[Iterable[T]]) -> list[T]:
    """One level of nesting removed."""
    return [item for group in values for item in group]


def fully_flatten(values: Any) -> list[Any]:
    """All levels of list, tuple and array nesting removed."""
    if hasattr(values, "tolist"):
        values = values.tolist()
    if not isinstance(values, (list, tuple)):
        return [values]
    return [leaf for value in values for leaf in fully_flatten(value)]


def ceildiv(num: Any, amt: Any) -> Any:
    """`num / amt` rounded up, for ints of either sign."""
    return -(num // -amt)


def round_up(num: Any, amt: Any) -> Any:
    """The least multiple of `amt` that is not below `num`."""
    return ceildiv(num, amt) * amt


def round_down(num: int, amt: int) -> int:
    """The greatest multiple of `amt` that is not above `num`."""
    return num // amt * amt


def next_power2(value: int) -> int:
    """The least power of two that is not below `value`."""
    return 1 if value <= 1 else 1 << (value - 1).bit_length()


def cdiv(x: int, y: int) -> int:
    """Integer division that rounds towards zero, as C does; 0 when `y` is 0."""
    if y == 0:
        return 0
    quotient = abs(x) // abs(y)
    return quotient if (x < 0) == (y < 0) else -quotient


def cmod(x: int, y: int) -> int:
    """The remainder that goes with `cdiv`; it has the sign of `x`."""
    return x - cdiv(x, y) * y


def strides_for_shape(shape: Sequence[Any]) -> tuple[Any, ...]:
    """Row-major strides, in elements."""
    strides: list[Any] = []
    step: Any = 1
    for size in reversed(shape):
        strides.append(step)
        step = step * size
    return tuple(reversed(strides))


def partition(values: Iterable[T], keep: Callable[[T], bool]) -> tuple[list[T], list[T]]:
    """The values for which `keep` holds, and the others."""
    yes: list[T] = []
    no: list[T] = []
    for value in values:
        (yes if keep(value) else no).append(value)
    return yes, no


def merge_dicts(dicts: Iterable[dict[T, U]]) -> dict[T, U]:
    """One dict out of several; the same key with two values is an error."""
    result: dict[T, U] = {}
    for entry in dicts:
        for key, value in entry.items():
            if key in result and result[key] != value:
                raise ArgumentError(f"key {key!r} has two values: {result[key]!r} and {value!r}")
            result[key] = value
    return result


def polyN(x: Any, coefficients: Sequence[Any]) -> Any:
    """A polynomial at `x`, the coefficient of the highest power first."""
    return functools.reduce(lambda value, c: value * x + c, coefficients, 0.0)


def time_to_str(seconds: float, w: int = 8) -> str:
    """A time in seconds, milliseconds or microseconds, its number `w` characters wide."""
    for unit, factor in (("s ", 1.0), ("ms", 1e3)):
        if seconds * factor > 10:
            return f"{seconds * factor:{w}.2f}{unit}"
    return f"{seconds * 1e6:{w}.2f}us"


def pluralize(noun: str, count: int) -> str:
    """`1 kernel`, `2 kernels`."""
    return f"{count} {noun}" + ("" if count == 1 else "s")


@functools.cache
def divisors(value: int) -> tuple[int, ...]:
    """All divisors in ascending order."""
    small = [d for d in range(1, math.isqrt(value) + 1) if value % d == 0]
    return tuple(dict.fromkeys(small + [value // d for d in reversed(small)]))


def colored(text: str, color: str | None, background: bool = False) -> str:
    """`text` in an ANSI colour; upper-case names are the bright ones; None leaves it as it is."""
    if color is None:
        return text
    names = ["black", "red", "green", "yellow", "blue", "magenta", "cyan", "white"]
    code = 10 * background + 60 * (color.upper() == color) + 30 + names.index(color.lower())
    return f"\x1b[{code}m{text}\x1b[0m"
