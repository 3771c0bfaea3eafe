"""Calls of Tensor's methods on random numbers of every dtype, as functions of tensors by name.

What a method takes is drawn from the `Shapes:` line of its docstring; tensors whose kind the line
leaves open get the dtype that is asked for.
"""

from __future__ import annotations

import random
from functools import cache
from typing import Any

import numpy as np

from aster_ml import Tensor, dtypes
from tests.lint.shapes import Draw, draw, parse_line
from tests.lint.test_docstring_shapes import Case, fill_parameters, tensor_cases

DTYPES = [
    "bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16",
    "bfloat16", "float32", "float64",
]  # fmt: skip
NAMED = {"double": "float64", "half": "float16", "int": "int32"}


@cache
def method_cases() -> list[Case]:
    """The methods with a `Shapes:` line, by name."""
    return sorted(tensor_cases(), key=lambda case: case.name)


class MethodCall:
    """A method, what it is called with, and tensors of it by name."""

    def __init__(self, seed: int) -> None:
        cases = method_cases()
        self.case = cases[seed % len(cases)]
        self.dtype = DTYPES[(seed // len(cases) + seed) % len(DTYPES)]
        rng = random.Random(seed)
        self.numbers = np.random.default_rng(seed)
        line = parse_line(self.case.text)
        self.drawn: Draw = draw(line, rng.choice(line.forms), rng)
        self.given: dict[str, Any] = {}
        self.tensors: dict[str, Tensor] = {}
        sizes = [s for v, value in self.drawn.arguments if v.kind for s in value]
        least = max(1, min(sizes, default=1))
        for value, shape in self.drawn.arguments:
            if not value.kind:
                self.given[value.name] = shape
                continue
            names = [f"{value.name}_{i}" for i in range(2)] if value.is_pair else [value.name]
            for name in names:
                dtype = self.dtype if value.kind == "float" else NAMED.get(value.kind, value.kind)
                array = (
                    self.numbers.integers(0, least, tuple(shape)).astype(dtype)
                    if value.kind == "int"
                    else self.array(tuple(shape), dtype, value.name != "self")
                )
                self.tensors[name] = Tensor(array, dtype=getattr(dtypes, dtype)).realize()

    def array(self, shape: tuple[int, ...], dtype: str, is_divisor: bool) -> Any:
        """Numbers of a dtype; integers that may be divided by are not 0."""
        if dtype == "bool":
            return np.asarray((self.numbers.random(shape) < 0.5) | is_divisor)
        if "float" in dtype:
            return np.asarray(self.numbers.normal(size=shape), np.float32)
        low = 0 if dtype.startswith("u") else -4
        values = np.asarray(self.numbers.integers(low, 6, shape))
        return (
            np.where(values == 0, 1, values).astype(dtype) if is_divisor else values.astype(dtype)
        )

    def __call__(self, **tensors: Tensor) -> list[Tensor]:
        """The results for tensors of these names."""
        given = dict(self.given)
        for value, _ in self.drawn.arguments:
            if value.is_pair:
                given[value.name] = tuple([tensors[f"{value.name}_{i}"] for i in range(2)])
            elif value.kind:
                given[value.name] = tensors[value.name]
        found = getattr(given.pop("self", Tensor), self.case.name)
        if callable(found):
            args, kwargs = fill_parameters(found, given)
            found = found(*args, **kwargs)
        return list(found) if isinstance(found, (tuple, list)) else [found]

    def __str__(self) -> str:
        return f"{self.case.name} of {self.dtype} {[(v.name, x) for v, x in self.drawn.arguments]}"
