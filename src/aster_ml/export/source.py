"""Finds what to export from the words of a command line: a function of a file or module, a model.

Receives `path/to/file.py:function`, `package.module:function` or `model.onnx`; returns the function
and example inputs, which say which shapes and dtypes there are. A function has its example inputs
from one beside it: `FUNCTION_inputs()`, else `inputs()`.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from aster_ml import Tensor, TinyJit
from aster_ml.apps.run import axis_names, random_input
from aster_ml.errors import (
    ArgumentError,
    AsterError,
    FileMissingError,
    InternalError,
    UnsupportedError,
)
from aster_ml.onnx.ops.types import NUMPY, STRING
from aster_ml.onnx.runner import OnnxRunner


class Source(NamedTuple):
    """A function, its example inputs, and its name."""

    function: Callable[..., Any]
    inputs: Any
    name: str


def source_of(text: str, sizes: Mapping[str, int]) -> Source:
    """Finds the function or model that a command line names.

    Raises: ArgumentError, FileMissingError, UnsupportedError, with what would do.
    """
    if text.endswith(".onnx"):
        return onnx_source(text, sizes)
    place, colon, name = text.rpartition(":")
    if not colon or not name.isidentifier():
        raise ArgumentError(
            f"{text!r}: path/to/file.py:function, package.module:function or a file that ends in "
            ".onnx is wanted"
        )
    module = load_module(place)
    function = getattr(module, name, None)
    if not callable(function):
        known = [
            key
            for key, value in vars(module).items()
            if isinstance(value, TinyJit)
            or (inspect.isfunction(value) and value.__module__ == module.__name__)
        ]
        raise ArgumentError(
            f"{place} has no function {name}; it has {', '.join(known) or 'no function'}"
        )
    return Source(function, example_inputs(module, place, name), name)


def load_module(place: str) -> ModuleType:
    """A module by its path or its name; a file's own folder is looked in for what it imports."""
    if not place.endswith(".py"):
        try:
            return importlib.import_module(place)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{place}.".startswith(f"{error.name}."):
                raise
            raise FileMissingError(
                f"there is no module {place}; a file is named with its ending: file.py:function"
            ) from None
    path = Path(place)
    if not path.is_file():
        raise FileMissingError("there is no such file", path=place)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ArgumentError(f"{place} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)
    sys.path.insert(0, str(path.resolve().parent))
    spec.loader.exec_module(module)
    return module


def example_inputs(module: ModuleType, place: str, name: str) -> Any:
    """Calls the function that gives examples. Raises: ArgumentError where there is none."""
    for beside in (f"{name}_inputs", "inputs"):
        given = getattr(module, beside, None)
        if callable(given):
            return given()
    raise ArgumentError(
        f"{place} does not say which shapes {name} is for: write a function {name}_inputs() (or "
        "inputs()) beside it that returns an example tensor, or several in a list or dict"
    )


def onnx_source(path: str, sizes: Mapping[str, int]) -> Source:
    """A model from a file, for fixed sizes; those that have a name only are 1 or as given.

    Raises: ArgumentError for a size that the model has no axis for, and where it does not run with
    1 for those that are not given, which are named.
    """
    runner = OnnxRunner(path)
    inputs: dict[str, Any] = {}
    known = {n: None for spec in runner.graph_inputs.values() for n in axis_names(spec).values()}
    for name in sizes.keys() - known.keys():
        raise ArgumentError(
            f"export: {path} has no axis {name!r} without a size; "
            f"{'there are ' + ', '.join(known) if known else 'all axes have one'}"
        )
    taken = [name for name in known if name not in sizes]
    for name, spec in runner.graph_inputs.items():
        if spec.element == STRING or spec.element not in NUMPY or spec.kind != "tensor":
            raise UnsupportedError(f"export: input {name} of {path} is {spec}; only tensors are")
        inputs[name] = random_input(spec, dict(sizes))
    try:
        runner(inputs)
    except AsterError as error:
        if not taken or isinstance(error, InternalError):
            raise
        raise ArgumentError(
            f"export: {path} does not run where {', '.join(taken)} have 1 element each, as axes "
            f"have whose size is not given; give them with --size {taken[0]}=N: {error}"
        ) from error
    recorded = next(reversed(runner.recorded.values()), None)
    if recorded is None:
        raise UnsupportedError(
            f"export: {path} looks at numbers on the way or draws some, or has no input that is a "
            "tensor, so it is not the same program for all inputs"
        )
    values = runner.given(inputs)
    tensors = {name: value for name, value in values.items() if isinstance(value, Tensor)}
    step, outputs = recorded.jit.function, recorded.outputs

    def function(**given: Tensor) -> dict[str, Tensor]:
        found = step(*given.values())
        return dict(zip(outputs, [found] if len(outputs) == 1 else found))

    return Source(function, tensors, Path(path).stem)
