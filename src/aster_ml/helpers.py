"""Provides pure functions on plain Python values, shared by every layer.

They take and return built-in types, touch no global state and know nothing of nodes, tensors or
devices.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Sequence
from sys import getrefcount
from typing import Any, TypeVar

from aster_ml.errors import ArgumentError
from aster_ml.plugins import open_module

T = TypeVar("T")
U = TypeVar("U")


def prod(x: Iterable[Any]) -> Any:
    """Product of the values, 1 when there are none."""
    result: Any = 1
    for value in x:
        result = result * value
    return result


def kind_of(value: Any) -> str:
    """The type of a value for a message, with its article: `an int`, `a list`; `None` of None."""
    if value is None:
        return "None"
    name = type(value).__name__
    # UOp is pronounced with a consonant first.
    vowel = name[0] in "aeioAEIO" or (name[0] == "u" and not name.startswith("uni"))
    return f"{'an' if vowel else 'a'} {name}"


def dedup(x: Iterable[T]) -> list[T]:
    """The values without repeats, first occurrence kept, order kept."""
    return list(dict.fromkeys(x))


def argsort(x: Sequence[Any]) -> tuple[int, ...]:
    """Positions that would sort the values; the inverse of a permutation."""
    return tuple(sorted(range(len(x)), key=x.__getitem__))


def all_int(t: Iterable[Any]) -> bool:
    """Whether every value is a Python int."""
    return all([isinstance(value, int) for value in t])


def all_same(items: Sequence[Any]) -> bool:
    """Whether all values are equal (true when there are none)."""
    return all(value == items[0] for value in items)


def argfix(*x: Any) -> tuple[Any, ...]:
    """The arguments as a tuple, for methods that take `f(1, 2)` and `f((1, 2))` alike."""
    if len(x) == 1 and isinstance(x[0], (tuple, list)):
        return tuple(x[0])
    if x and isinstance(x[0], (tuple, list)):
        raise ValueError(f"one tuple or separate numbers are wanted, both were given: {x}")
    return x


def make_tuple(x: Any, cnt: int) -> tuple[Any, ...]:
    """`x` repeated `cnt` times, or `x` itself when it is a sequence already."""
    return tuple(x) if isinstance(x, (tuple, list)) else (x,) * cnt


def flatten(l: Iterable[Iterable[T]]) -> list[T]:  # noqa: E741
    """One level of nesting removed."""
    return [item for group in l for item in group]


def fully_flatten(l: Any) -> list[Any]:  # noqa: E741
    """All levels of list, tuple and array nesting removed."""
    if hasattr(l, "tolist"):
        l = l.tolist()  # noqa: E741
    if not isinstance(l, (list, tuple)):
        return [l]
    return [leaf for value in l for leaf in fully_flatten(value)]


def ceildiv(num: Any, amt: Any) -> Any:
    """`num / amt` rounded up, for ints of either sign."""
    return -(num // -amt)


def round_up(num: Any, amt: Any) -> Any:
    """The least multiple of `amt` that is not below `num`."""
    return ceildiv(num, amt) * amt


def round_down(num: int, amt: int) -> int:
    """The greatest multiple of `amt` that is not above `num`."""
    return num // amt * amt


def next_power2(x: int) -> int:
    """The least power of two that is not below `x`."""
    return 1 if x <= 1 else 1 << (x - 1).bit_length()


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


def partition(itr: Iterable[T], fxn: Callable[[T], bool]) -> tuple[list[T], list[T]]:
    """The values for which `fxn` holds, and the others."""
    yes: list[T] = []
    no: list[T] = []
    for value in itr:
        (yes if fxn(value) else no).append(value)
    return yes, no


def merge_dicts(ds: Iterable[dict[T, U]]) -> dict[T, U]:
    """One dict out of several; the same key with two values is an error."""
    result: dict[T, U] = {}
    for entry in ds:
        for key, value in entry.items():
            if key in result and result[key] != value:
                raise ArgumentError(f"key {key!r} has two values: {result[key]!r} and {value!r}")
            result[key] = value
    return result


def polyN(x: Any, p: Sequence[Any]) -> Any:
    """A polynomial at `x`, the coefficient of the highest power first."""
    return functools.reduce(lambda value, c: value * x + c, p, 0.0)


def time_to_str(t: float, w: int = 8) -> str:
    """A time in seconds, milliseconds or microseconds, its number `w` characters wide."""
    for unit, factor in (("s ", 1.0), ("ms", 1e3)):
        if t * factor > 10:
            return f"{t * factor:{w}.2f}{unit}"
    return f"{t * 1e6:{w}.2f}us"


def pluralize(st: str, cnt: int) -> str:
    """`1 kernel`, `2 kernels`."""
    return f"{cnt} {st}" + ("" if cnt == 1 else "s")


@functools.cache
def divisors(value: int) -> tuple[int, ...]:
    """All divisors in ascending order."""
    small = [d for d in range(1, math.isqrt(value) + 1) if value % d == 0]
    return tuple(dict.fromkeys(small + [value // d for d in reversed(small)]))


def colored(st: str, color: str | None, background: bool = False) -> str:
    """`st` in an ANSI colour; upper-case names are the bright ones; None leaves it as it is."""
    if color is None:
        return st
    names = ["black", "red", "green", "yellow", "blue", "magenta", "cyan", "white"]
    code = 10 * background + 60 * (color.upper() == color) + 30 + names.index(color.lower())
    return f"\x1b[{code}m{st}\x1b[0m"


class Alone:
    """An object that is known by an attribute here and by nothing else."""

    def __init__(self) -> None:
        self.known = object()

    def count(self) -> int:
        """Reference count, as whoever has just read the attribute sees it.

        why: from Python 3.14 on a local name that is handed on as an argument counts once, not
        twice
        """
        known = self.known
        return getrefcount(known)


# Python's count of an object that one attribute has, and the name of who asks.
ONE_NAME = Alone().count()


open_module(__name__)
