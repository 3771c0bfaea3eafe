"""Answers what the core asks its plug-ins: names, attributes and paths of tinygrad, its kernels.

Programs written for tinygrad import `getenv` from `helpers`, `Device` from `tensor`, `get_program`
from `engine.realize`. The modules of these names here are lower than what they are asked for, and
know nothing of it: a name that one of them lacks is looked up in its companion, which has it in
`__all__`. `plugins` says what each function here is asked.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any

from aster_ml.backend import Backend
from aster_ml.plugins import MISSING, PACKAGE
from aster_ml.uop.node import UOp

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
# Paths that are no modules here: the names of each, by the modules that have them.
PATHS = {
    "codegen.opt": {
        "compat.kernel": "Kernel", "codegen.opts": "Opt OptOps", "errors": "KernelOptError",
    },
    "codegen.opt.kernel": {
        "compat.kernel": "Kernel", "codegen.opts": "Opt OptOps", "errors": "KernelOptError",
    },
    "engine.jit": {
        "jit.graph_runner": "GraphRunner", "errors": "JitError", "jit.tiny_jit": "TinyJit",
    },
    "engine.schedule": {"engine.items": "ExecItem run_schedule"},
    "runtime.ops_cpu": {
        "compat.cpu_programs": "CPUProgram ClangCompiler ClangJITCompiler MallocAllocator",
    },
    "uop.symbolic": {"uop.rules.symbolic": "simplify symbolic"},
}  # fmt: skip
# What nodes and backends have besides, each read by a function of the object.
ATTRIBUTES = {
    Backend: {
        "renderer": "compat.devices.RendererView",
        "compiler": "compat.devices.Compiler",
        "graph": "compat.devices.graph_class",
    },
    UOp: {
        "buffer": "compat.nodes.buffer_of",
        "realized": "compat.nodes.realized",
        "is_realized": "compat.nodes.is_realized",
    },
}
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


def module_of(name: str) -> ModuleType:
    """A module below the package, imported."""
    return importlib.import_module(f"{PACKAGE}.{name}")


def companion_of(module: str) -> ModuleType:
    """The companion of a module, imported."""
    return module_of(COMPANIONS[module])


def found_at(place: str) -> Any:
    """Finds `module.name` below the package."""
    module, _, name = place.rpartition(".")
    return getattr(module_of(module), name)


def find_name(module: str, name: str) -> Any:
    """Finds `module.name` for such a program; `__all__` is what `import *` takes of both.

    Raises: AttributeError for a name of which it is known why it is not there.
    """
    if module in COMPANIONS:
        companion = companion_of(module)
        if name == "__all__":
            own = vars(sys.modules[f"{PACKAGE}.{module}"])
            return [*{n: None for n in [*own, *companion.__all__] if n[0] != "_"}]
        if name in companion.__all__:
            return getattr(companion, name)
    reason = NOT_HERE.get(f"{module}.{name}")
    if reason is None:
        return MISSING
    text = f"module {PACKAGE}.{module} has no {name}: {reason}"
    raise AttributeError(text, name=name, obj=module_of(module))


def find_attribute(owner: Any, name: str) -> Any:
    """Finds an attribute of a node or a backend for such a program."""
    for kind, found in ATTRIBUTES.items():
        if isinstance(owner, kind) and name in found:
            return found_at(found[name])(owner)
    return MISSING


def find_module(path: str) -> Any:
    """A module of the names that such a program imports from a path."""
    if path not in PATHS:
        return MISSING
    made = ModuleType(f"{PACKAGE}.{path}", f"Passes on names under a path of tinygrad's: {path}.")
    for home, names in PATHS[path].items():
        for name in names.split():
            setattr(made, name, found_at(f"{home}.{name}"))
    return made


def declare_settings() -> Any:
    """Declares tinygrad's settings, and follows those that the environment has."""
    module_of("compat.settings")
    return MISSING


def translate(sink: Any) -> Any:
    """A hand-written kernel in kernel form."""
    return found_at("compat.translate.translate")(sink)


def simplify_lanes(node: UOp) -> Any:
    """A vector in its simplest form."""
    return found_at("compat.symbolic.simplify_lanes")(node)
