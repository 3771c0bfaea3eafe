"""Where a module passes on names that are at home above it.

Programs written for tinygrad import `getenv` from `helpers`, `Device` from `tensor`, `get_program`
from `engine.realize`. The modules of these names here are lower than what they are asked for, and
know nothing of it. So the top of the package calls `install`, which gives each module of
`COMPANIONS` a `__getattr__`: a name that the module itself does not have is looked up in its
companion, which is imported then and has it in `__all__`. Module paths that exist for such
programs alone (`engine.jit`, `codegen.opt`) are files that import and pass on; they need no row.
"""

from __future__ import annotations

import functools
import importlib
import sys
from types import ModuleType
from typing import Any

from aster_ml.compat import settings
from aster_ml.compat.dialect import DialectOps
from aster_ml.uop.ops import Ops

PACKAGE = "aster_ml"
# Module, and the module that has the names which programs expect of it beside its own.
COMPANIONS = {
    "codegen": "compat.realize",
    "device": "compat.devices",
    "dtype": "compat.dtypes",
    "engine.memory": "compat.memory",
    "engine.realize": "compat.realize",
    "helpers": "compat.helpers",
    "renderer": "compat.realize",
    "tensor": "compat.tensors",
    "uop": "compat.ops_folder",
    "uop.ops": "compat.uops",
}
# What objects have besides, each read by a function: class, attribute, function.
ATTRIBUTES = (
    ("backend.Backend", "renderer", "compat.devices.RendererView"),
    ("backend.Backend", "compiler", "compat.devices.Compiler"),
    ("backend.Backend", "graph", "compat.devices.graph_class"),
    ("uop.node.UOp", "buffer", "compat.nodes.buffer_of"),
    ("uop.node.UOp", "realized", "compat.nodes.realized"),
    ("uop.node.UOp", "is_realized", "compat.nodes.is_realized"),
)
# Names that are not passed on, and why: what an import of them says.
NOT_HERE: dict[str, str] = {
    "nn.torch": 'Aster is no device of PyTorch; torch.compile(model, backend="aster") is there',
    "nn.onnx.OnnxValue": "values of a graph are Tensors and arrays",
    "uop.ops.RewriteTrace": "VIZ=1 records rewrites, in a form of its own",
    **{
        f"runtime.ops_{device}": f"Aster has no device {device.upper()}"
        for device in ("amd", "dsp", "hip", "qcom")
    },
    **{
        f"runtime.ops_{device}": f"Device[{name!r}] is there, made of other classes"
        for device, name in (
            ("cl", "OPENCL"),
            ("cuda", "CUDA"),
            ("metal", "METAL"),
            ("nv", "CUDA"),
            ("webgpu", "WEBGPU"),
        )
    },
}


def companion_of(module: str) -> ModuleType:
    """The companion of a module, imported."""
    return importlib.import_module(f"{PACKAGE}.{COMPANIONS[module]}")


def passed_on(module: str, name: str) -> Any:
    """Finds `module.name` for such a program; `__all__` is what `import *` takes of both.

    Raises: AttributeError for a name that neither the module nor its companion has.
    """
    if name == "__all__":
        own = vars(sys.modules[f"{PACKAGE}.{module}"])
        return [*{n: None for n in [*own, *companion_of(module).__all__] if n[0] != "_"}]
    if not name.startswith("__"):
        companion = companion_of(module)
        if name in companion.__all__:
            return getattr(companion, name)
    reason = NOT_HERE.get(f"{module}.{name}", "")
    raise AttributeError(
        f"module {PACKAGE}.{module} has no {name}" + (f": {reason}" if reason else ""),
        name=name,
        obj=None,
    )


def found_at(place: str) -> Any:
    """Finds `module.name` below the package."""
    module, _, name = place.rpartition(".")
    return getattr(importlib.import_module(f"{PACKAGE}.{module}"), name)


def read_by(function: str) -> property:
    """An attribute that a function of the object gives; its module is imported when it is read."""
    return property(lambda self: found_at(function)(self), doc=f"See `{PACKAGE}.{function}`.")


def install() -> None:
    """Gives modules and classes their further names, and Ops those of the dialect."""
    settings.declare()
    for name in COMPANIONS:
        module = importlib.import_module(f"{PACKAGE}.{name}")
        vars(module)["__getattr__"] = functools.partial(passed_on, name)
    for owner, name, function in ATTRIBUTES:
        setattr(found_at(owner), name, read_by(function))
    for op in DialectOps:
        # An Enum sets attributes by way of its own metaclass, which Ops may not have.
        type.__setattr__(Ops, op.name, op)
    found_at("compat.opts.install")()
    found_at("compat.einops.install")()
