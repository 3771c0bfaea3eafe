"""Writes ES modules and the page around them, for the forms of export that run in browsers.

Receives a `Plan` and what a form adds to it; returns texts and bytes by file name. The JavaScript
stands in the folder `web`, each runtime behind the constant PLAN that it runs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from aster_ml import __version__
from aster_ml.allocator import format_bytes
from aster_ml.dtype import dtypes
from aster_ml.errors import DTypeError
from aster_ml.export.assets import asset
from aster_ml.export.plan import Blob, Plan
from aster_ml.export.trace import Value
from aster_ml.export.weights import file_of

# Weights beyond this are in several files, since browsers keep a file in one piece of memory.
FILE_NBYTES = 1 << 28
# What JavaScript has arrays of.
ARRAYS = {*dtypes.ints, dtypes.bool, dtypes.float16, dtypes.bfloat16, dtypes.float32}


def check_dtypes(values: Sequence[Value]) -> None:
    """Raises DTypeError for inputs and outputs that JavaScript has no array of."""
    for value in values:
        if value.dtype not in ARRAYS:
            raise DTypeError(
                f"export: {value} has a dtype that a page has no array of; cast it to float32 in "
                "the function"
            )


def described(values: Sequence[Value]) -> list[dict[str, object]]:
    """Inputs or outputs for JavaScript."""
    return [
        {"name": v.name, "dtype": v.dtype.name, "shape": list(v.shape), "nbytes": v.nbytes}
        for v in values
    ]


def tensor_files(name: str, blobs: Sequence[Blob]) -> dict[str, bytes]:
    """The safetensors files that these are in; none without any."""
    groups: list[list[Blob]] = []
    room = 0
    for blob in blobs:
        if len(blob.data) > room or not groups:
            groups.append([])
            room = FILE_NBYTES
        groups[-1].append(blob)
        room -= len(blob.data)
    names = [
        f"{name}.safetensors" if len(groups) == 1 else f"{name}-{i}-of-{len(groups)}.safetensors"
        for i in range(1, len(groups) + 1)
    ]
    return {file: file_of(name, group) for file, group in zip(names, groups)}


def module_text(plan: Plan, fields: Mapping[str, Any], rest: Sequence[str]) -> str:
    """An ES module: PLAN with these fields, then other texts."""
    shown = []
    for key, value in fields.items():
        if isinstance(value, list) and value and isinstance(value[0], (dict, list)):
            rows = "".join([f"    {json.dumps(row)},\n" for row in value])
            shown.append(f"  {key}: [\n{rows}  ],\n")
        else:
            shown.append(f"  {key}: {json.dumps(value)},\n")
    return "\n".join(
        [
            f"// {plan.name}: a function of tensors, exported by Aster ML {__version__}.",
            f"// {len(plan.kernels)} kernels, {len(plan.steps)} steps, "
            f"{format_bytes(plan.weight_nbytes)} of weights.",
            "",
            f"const PLAN = {{\n{''.join(shown)}}};",
            "",
            *rest,
        ]
    )


def page_files(plan: Plan, about: str) -> dict[str, str | bytes]:
    """The page that shows a function, whichever runs it."""
    return {
        "index.html": asset("web/index.html", NAME=plan.name, ABOUT=about),
        "page.js": asset("web/page.js", MODULE=f"{plan.name}.js"),
    }


def script(plan: Plan, runtime: str) -> str:
    """The part of a module that runs its plan."""
    example = ", ".join([f"{v.name}: ..." for v in plan.inputs])
    words = {"NAME": plan.name, "EXAMPLE": f"{{ {example} }}"}
    return asset(f"web/{runtime}", **words) + "\n" + asset("web/common.js")
