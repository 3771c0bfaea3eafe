"""Small random functions exported as C, compiled with the machine's compiler, against NumPy.

A case draws inputs and a chain of operations that Aster and NumPy (in float64) both have; each
function is compiled for SIMD of one kind and run on other numbers than it was exported with.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aster_ml import Tensor
from aster_ml.export.write import export
from tests.fuzz.budget import check_all, draws
from tests.programs.export.compiled import Library
from tests.programs.export.pages import browser, call_module, served

# A fixture.
assert browser
SIZES = (1, 2, 3, 4, 5, 7, 8, 13, 16, 17, 32)
Array = np.ndarray[Any, Any]


def softmax(x: Array) -> Array:
    """The same in NumPy."""
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


# Name: what Aster does, what NumPy does; of arrays of two axes.
UNARY: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Array], Array]]] = {
    "tanh": (lambda x: x.tanh(), np.tanh),
    "exp": (lambda x: (x.clip(-4, 4)).exp(), lambda x: np.exp(np.clip(x, -4, 4))),
    "sqrt": (lambda x: (x * x + 1).sqrt(), lambda x: np.sqrt(x * x + 1)),
    "log": (lambda x: (x.abs() + 1).log(), lambda x: np.log(np.abs(x) + 1)),
    "relu": (lambda x: x.relu(), lambda x: np.maximum(x, 0)),
    "sign": (lambda x: (x > 0.5).where(x, -x), lambda x: np.where(x > 0.5, x, -x)),
    "T": (lambda x: x.T, lambda x: x.T),
    "flip": (lambda x: x.flip(0), lambda x: x[::-1]),
    "pad": (lambda x: x.pad(((1, 0), (0, 2))), lambda x: np.pad(x, ((1, 0), (0, 2)))),
    "part": (lambda x: x[: (x.shape[0] + 1) // 2], lambda x: x[: (x.shape[0] + 1) // 2]),
    "sum": (lambda x: x.sum(1, keepdim=True) * 0.1, lambda x: x.sum(1, keepdims=True) * 0.1),
    "max": (lambda x: x - x.max(0, keepdim=True), lambda x: x - x.max(0, keepdims=True)),
    "mean": (lambda x: x - x.mean(), lambda x: x - x.mean()),
    "cumsum": (lambda x: x.cumsum(1) * 0.1, lambda x: np.cumsum(x, 1) * 0.1),
    "softmax": (lambda x: x.softmax(-1), softmax),
    "cat": (lambda x: x.cat(x * 2, dim=1), lambda x: np.concatenate([x, x * 2], 1)),
    "stored": (lambda x: (x * 2).contiguous(), lambda x: x * 2),
    "gram": (lambda x: (x @ x.T) * 0.05, lambda x: (x @ x.T) * 0.05),
    "flat": (lambda x: x.reshape(1, -1), lambda x: x.reshape(1, -1)),
}


class Case:
    """A function with its example inputs, other inputs, and what it gives for them."""

    def __init__(self, seed: int) -> None:
        self.draw = draw = random.Random(seed)
        self.numbers = np.random.default_rng(seed)
        self.shape = draw.choice(SIZES), draw.choice(SIZES)
        self.weight = self.numbers.normal(size=(self.shape[1], draw.choice(SIZES)))
        self.weight = self.weight.astype(np.float32)
        self.steps = [draw.choice(list(UNARY)) for _ in range(draw.randint(1, 6))]
        self.at = draw.randint(0, len(self.steps))
        self.held = Tensor(self.weight)
        self.example, self.inputs = self.given(), self.given()

    def function(self, x: Tensor, n: Tensor) -> list[Tensor]:
        """In Aster."""
        y = x * n.float()
        first = y @ self.held
        for step in self.steps[: self.at]:
            y = UNARY[step][0](y)
        stored = y.contiguous() if self.at % 2 else y
        for step in self.steps[self.at :]:
            y = UNARY[step][0](y)
        return [first, stored, y]

    def wanted(self) -> list[Array]:
        """In NumPy, of the other inputs."""
        x, n = self.inputs
        y = x.astype(np.float64) * n
        found = [y @ self.weight.astype(np.float64)]
        for step in self.steps[: self.at]:
            y = UNARY[step][1](y)
        found.append(y)
        for step in self.steps[self.at :]:
            y = UNARY[step][1](y)
        return [*found, y]

    def given(self) -> tuple[Array, Array]:
        """Inputs."""
        x = self.numbers.normal(size=self.shape).astype(np.float32)
        return x, self.numbers.integers(-3, 4, (self.shape[0], 1)).astype(np.int32)

    def differs(self, found: list[Array], limit: float) -> str | None:
        """What is wrong with these results, if anything."""
        for i, (got, want) in enumerate(zip(found, self.wanted(), strict=True)):
            error = np.abs(got.reshape(want.shape) - want).max() / max(np.abs(want).max(), 1)
            if not error < limit:
                return f"{self.steps} on {self.shape}: result {i} differs by {error:.2g}"
        return None


def run_c(seed: int, folder: Path) -> str | None:
    """What is wrong with a case in C, if anything."""
    case = Case(seed)
    isa = case.draw.choice(("baseline", "plain", "avx2"))
    inside = case.draw.random() < 0.3
    example = [Tensor(x) for x in case.example]
    export(case.function, example, folder, isa=isa, inside=inside)
    flags = ("-O1", "-fPIC", "-shared", "-fno-math-errno", "-Wno-psabi")
    library = Library(folder, "function", flags)
    found = library(case.inputs, [w.astype(np.float32) for w in case.wanted()])
    library.close()
    return case.differs(found, 1e-5)


@pytest.mark.cc
@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler on PATH")
def test_exported_functions(record_property: Callable[[str, str], None], tmp_path: Path) -> None:
    check_all(
        "functions exported as C",
        draws(small=5, large=60),
        lambda seed: run_c(seed, tmp_path / str(seed)),
        record_property,
    )


@pytest.mark.slow
@pytest.mark.viz
def test_exported_pages(
    record_property: Callable[[str, str], None], tmp_path: Path, browser: Any
) -> None:
    """The same for WebGPU, in Chromium."""

    def run(seed: int) -> str | None:
        case, folder = Case(seed), tmp_path / str(seed)
        export(case.function, [Tensor(x) for x in case.example], folder, "web")
        with served(folder) as address:
            given = {name: x.reshape(-1).tolist() for name, x in zip("xn", case.inputs)}
            found, said = call_module(browser, address, "function", given)
        if said:
            return f"the console says {said}"
        return case.differs([np.array(x, np.float64) for x in found.values()], 1e-4)

    check_all("functions exported for WebGPU", draws(small=3, large=30), run, record_property)
