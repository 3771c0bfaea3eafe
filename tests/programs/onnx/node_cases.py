"""The node tests that the package `onnx` carries: which there are, and what Aster makes of each.

A case is a model of one node (or of the nodes by which ONNX defines an operator), inputs, and the
outputs that the reference implementation gives. They are read module by module, since making all
of them takes half a minute. `differs.toml` has those that do not come out so, with the reason.
"""

from __future__ import annotations

import importlib
import pkgutil
import tomllib
import warnings
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
import onnx.backend.test.case.node as node_package

from aster_ml import Tensor
from aster_ml.nn.onnx import OnnxRunner
from aster_ml.onnx.ops.types import ASTER, numpy_type

HERE = Path(__file__).parent
GROUPS = 8


class Case(NamedTuple):
    """One case; `is_ours` is whether Aster has the dtypes of all that goes in and comes out."""

    name: str
    model: Any
    data: list[tuple[list[Any], list[Any]]]
    rtol: float
    atol: float
    is_ours: bool


def modules() -> list[str]:
    """The modules with cases, by name; a folder counts as one."""
    return sorted([m.name for m in pkgutil.iter_modules(node_package.__path__)])


@cache
def made_by(name: str) -> tuple[Any, ...]:
    """What a module makes when it is imported, which happens once."""
    path = f"{node_package.__name__}.{name}"
    node_package._NodeTestCases.clear()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        folder = getattr(importlib.import_module(path), "__path__", None)
        for inner in pkgutil.iter_modules(folder) if folder else ():
            importlib.import_module(f"{path}.{inner.name}")
    return tuple({case.name: case for case in node_package._NodeTestCases}.values())


def group(number: int) -> list[str]:
    """Every eighth module, from `number` on."""
    return modules()[number::GROUPS]


def element_types(tp: Any) -> Iterator[int]:
    """The numbers of the element types in a TypeProto."""
    which = tp.WhichOneof("value")
    if which in ("sequence_type", "optional_type"):
        yield from element_types(getattr(tp, which).elem_type)
    elif which in ("tensor_type", "sparse_tensor_type"):
        yield getattr(tp, which).elem_type


def cases(names: list[str]) -> list[Case]:
    """The cases of some modules."""
    found = [case for name in names for case in made_by(name)]
    result = []
    for case in found:
        graph = case.model.graph
        types = {t for value in (*graph.input, *graph.output) for t in element_types(value.type)}
        is_ours = types <= ASTER.keys()
        result.append(Case(case.name, case.model, case.data_sets, case.rtol, case.atol, is_ours))
    return result


def plain(value: Any) -> Any:
    """A value of a case as arrays."""
    if isinstance(value, onnx.TensorProto):
        return onnx.numpy_helper.to_array(value)
    return [plain(item) for item in value] if isinstance(value, list) else value


def difference(given: Any, wanted: Any, case: Case) -> str | None:
    """What is wrong with an output; None where it is right."""
    if wanted is None or isinstance(wanted, (list, tuple)):
        if wanted is None or not isinstance(given, list) or len(given) != len(wanted):
            return None if given is wanted else f"given {given!r}, wanted {wanted!r}"
        found = [difference(g, w, case) for g, w in zip(given, wanted)]
        return next((text for text in found if text), None)
    wanted = np.asarray(wanted)
    dtype = numpy_type(given.dtype) if isinstance(given, Tensor) else np.asarray(given).dtype
    values = given.numpy() if isinstance(given, Tensor) else np.asarray(given)
    if wanted.dtype.kind in "OUST":
        same = values.shape == wanted.shape and (values == wanted.astype(object)).all()
        return None if same else f"given {values!r}, wanted {wanted!r}"
    if dtype != wanted.dtype or values.shape != wanted.shape:
        return f"given {dtype}{list(values.shape)}, wanted {wanted.dtype}{list(wanted.shape)}"
    if wanted.dtype.kind not in "biuf":
        values, wanted = values.astype(np.float64), wanted.astype(np.float64)
    if np.allclose(values, wanted, case.rtol, case.atol, equal_nan=True):
        return None
    return f"values differ by at most {np.nanmax(np.abs(values - np.asarray(wanted, np.float64)))}"


def outcome(case: Case, device: str) -> str | None:
    """What is wrong with Aster's outputs of a case; None where all are right."""
    try:
        runner = OnnxRunner(case.model, device=device)
        for inputs, outputs in case.data:
            names = [value.name for value in case.model.graph.input]
            found = runner(dict(zip(names, map(plain, inputs))))
            for name, wanted in zip(found, map(plain, outputs)):
                said = difference(found[name], wanted, case)
                if said is not None:
                    return f"output {name!r}: {said}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"[:300]
    return None


def known_differences() -> dict[str, str]:
    """Name of a case -> why Aster gives something else."""
    table = tomllib.loads((HERE / "differs.toml").read_text(encoding="utf-8"))
    return {name: row["why"] for row in table["differs"] for name in row["cases"]}
