"""Exports a function of tensors as files of a new folder, in C, WebAssembly or for WebGPU.

Receives the function and example inputs; returns the folder. Everything is made before the first
file is written, and nothing is written anywhere else.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from aster_ml.errors import ArgumentError
from aster_ml.export import c
from aster_ml.export.assets import asset
from aster_ml.export.plan import make_plan
from aster_ml.export.trace import Trace, identifier, named_inputs, trace
from aster_ml.export.wasm import wasm_files
from aster_ml.export.web import Page, web_target
from aster_ml.export.weights import file_of
from aster_ml.extend import BINDING_NBYTES
from aster_ml.helpers import pluralize

FLAGS = "-O2 -std=gnu99 -fno-math-errno -Wno-psabi"
# What can be written, and what that is.
FORMS = {
    "c": "a C file, its header, a Makefile, and the weights in a safetensors file",
    "wasm": "a WebAssembly module, its loader for browsers and Node, a page, and the weights",
    "web": "a module of JavaScript that runs on WebGPU, a page, and the weights",
}


def export(
    function: Callable[..., Any],
    inputs: Any,
    folder: str | os.PathLike[str],
    form: str = "c",
    *,
    name: str | None = None,
    isa: str = "baseline",
    inside: bool = False,
) -> Path:
    """Writes a function of tensors as a program of its own into a new folder.

    `inputs` are example tensors or arrays: one, a list in the order of the parameters, or a dict by
    name; shapes and dtypes are fixed by them. `form` is "c": NAME.c, NAME.h, a Makefile, and
    NAME.safetensors with the weights, which are part of the source with `inside`, and `isa` is one
    of `c.ISAS`; or "wasm" or "web": NAME.js, a module, with its weights and a page. NAME is that of
    the function unless `name` says another.

    Raises: ArgumentError for a folder that is there and not empty, and for inputs or results that
    are no tensors; JitError for a function that looks at values; UnsupportedError for what has no
    place in a program of its own; DTypeError for a dtype that the form lacks; DeviceError where
    clang or its linker is absent.
    """
    if form not in FORMS:
        raise ArgumentError(f"export: form {form!r}; there are {', '.join(FORMS)}")
    if isa not in c.ISAS:
        raise ArgumentError(f"export: isa {isa!r}; there are {', '.join(c.ISAS)}")
    target = new_folder(folder)
    found = traced(function, inputs, name)
    if form == "web":
        files = Page(make_plan(found, web_target(), BINDING_NBYTES)).files()
    elif form == "wasm":
        files = wasm_files(make_plan(found, c.c_target("baseline"), c.ALIGNMENT))
    else:
        files = c_files(found, isa, inside)
    target.mkdir(parents=True, exist_ok=True)
    for file, content in files.items():
        (target / file).write_bytes(content if isinstance(content, bytes) else content.encode())
    return target


def new_folder(folder: str | os.PathLike[str]) -> Path:
    """The folder that is written to. Raises: ArgumentError where something is there."""
    path = Path(folder)
    if path.is_dir():
        count = len(list(path.iterdir()))
        if count:
            raise ArgumentError(
                f"export: {path} has {pluralize('file', count)}; name a folder that is empty or "
                "not there, or remove it first"
            )
    elif path.exists() or path.is_symlink():
        raise ArgumentError(f"export: {path} is there and no folder; name one that is not there")
    return path


def traced(function: Callable[..., Any], inputs: Any, name: str | None) -> Trace:
    """The trace of a function for example inputs."""
    if not callable(function):
        raise ArgumentError(f"export: {type(function).__name__} is no function")
    try:
        names = list(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        names = []
    given = named_inputs(inputs, names)
    known: str = name or getattr(function, "__name__", "") or type(function).__name__
    known = identifier(known.replace("<lambda>", "function"))
    return trace(function, given, known, isinstance(inputs, Mapping), c.RESERVED)


def c_files(found: Trace, isa: str, inside: bool) -> dict[str, str | bytes]:
    """The files of the form "c" by name."""
    plan = make_plan(found, c.c_target(isa), c.ALIGNMENT)
    name = plan.name
    files: dict[str, str | bytes] = {
        f"{name}.c": c.Source(plan, inside).text(),
        f"{name}.h": c.header_text(plan, inside),
        "Makefile": asset(
            "native/Makefile", NAME=name, OPTIONS=" ".join([FLAGS, c.ISAS[isa].flags]).strip()
        ),
    }
    if not inside and plan.weights:
        files[f"{name}.safetensors"] = file_of(name, plan.weights)
    return files
