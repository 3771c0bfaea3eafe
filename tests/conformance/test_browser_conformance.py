"""The conformance suite in a browser: each case, exported as a page, gives what NumPy gives.

All cases are one module, which Chromium runs on its own WebGPU (on SwiftShader where there is no
graphics processor); dtypes and gradients are in it too. `make browser-test` runs it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aster_ml import Tensor, dtypes
from aster_ml.export.write import export
from tests.conformance.test_tensor_conformance import CASES, arrays
from tests.programs.export.pages import browser, call_module, served

# A fixture.
assert browser
pytestmark = pytest.mark.slow
# What a page has arrays and arithmetic for.
NARROW = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "bool",
          "float16", "bfloat16", "float32")  # fmt: skip
GRADIENTS = ("softmax", "linear and relu", "conv", "layernorm")


def given() -> dict[str, Any]:
    """Inputs of all cases, by names that a function may have."""
    found = {}
    for i, case in enumerate(CASES):
        for j, x in enumerate(arrays(case.name, case.shapes)):
            found[f"x{i}_{j}"] = x
    return found


def suite(**inputs: Tensor) -> dict[str, Tensor]:
    """The results of all cases, gradients of some, and sums in each dtype."""
    results = {}
    for i, case in enumerate(CASES):
        own = [inputs[f"x{i}_{j}"] for j in range(len(case.shapes))]
        results[f"case{i}"] = case.run(*own)
        if case.name in GRADIENTS:
            leaves = [x.detach() for x in own]
            for x in leaves:
                x.requires_grad_()
            total = (case.run(*leaves) * case.run(*own)).sum()
            for j, g in enumerate(total.gradient(*leaves)):
                results[f"gradient{i}_{j}"] = g
    first = inputs["x0_0"].reshape(-1)[:40]
    for name in NARROW:
        narrow = (first * 50).abs().cast(dtypes.int32).cast(name)
        results[name] = (narrow + narrow).cast(dtypes.int32)
    return results


def wanted(inputs: dict[str, Any]) -> dict[str, Any]:
    """What NumPy, and for gradients and dtypes Aster on the CPU, gives."""
    found = {
        name: t.numpy() for name, t in suite(**{k: Tensor(v) for k, v in inputs.items()}).items()
    }
    for i, case in enumerate(CASES):
        own = [x.astype(np.float64) for x in arrays(case.name, case.shapes)]
        found[f"case{i}"] = (case.want or case.run)(*own)
    return found


def test_cases_give_in_a_browser_what_numpy_gives(
    tmp_path: Path, browser: Any, record_property: Any
) -> None:
    inputs = given()
    tensors = {name: Tensor(x) for name, x in inputs.items()}
    folder = export(suite, tensors, tmp_path / "out", "web")
    plain = {name: x.reshape(-1).tolist() for name, x in inputs.items()}
    with served(folder) as address:
        found, said = call_module(browser, address, "suite", plain)
    assert [line for line in said if line.startswith("error")] == []
    right = wanted(inputs)
    clean = {name.rstrip("_"): values for name, values in found.items()}
    assert clean.keys() == right.keys()
    wrong = []
    for name, want in right.items():
        number = int(name[4:]) if name.startswith("case") else None
        label = name if number is None else CASES[number].name
        limit = 2e-5 if number is None else max(CASES[number].tolerance, 4e-6)
        got = np.array([float(x) for x in clean[name]]).reshape(np.shape(want))
        error = np.abs(got - want) - limit * (1 + np.abs(want))
        if not np.all(error <= 0):
            wrong.append(f"{label}: off by {np.abs(got - want).max():.3g}")
    record_property("browser", f"{len(right)} results in Chromium, {len(wrong)} wrong")
    assert wrong == []
