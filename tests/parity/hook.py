"""The import hook: serves `tinygrad` and its submodules from `aster_ml`.

`install(folder)` receives a reference source tree. From then on `import tinygrad...` never opens a
file of that tree: `ROWS` says where each module's names come from and why. `test`, `extra` and
`examples` are served from the tree, and from `standins/` where the tree has no such file.
"""

from __future__ import annotations

import functools
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from aster_ml import config
from tests.parity import counts, names, programs

STANDINS = Path(__file__).parent / "standins"


@dataclass(frozen=True)
class Row:
    """Where the names of one reference module come from: modules in order, then single names."""

    homes: tuple[str, ...]
    why: str = ""
    single: dict[str, Any] = field(default_factory=dict)


# Modules that are not listed are served from the module of the same name below aster_ml, if any.
ROWS: dict[str, Row] = {
    "tinygrad": Row(
        ("aster_ml",), "numbers of kernels compare otherwise",
        {"GlobalCounters": counts.COUNTERS_VIEW},
    ),
    "tinygrad.helpers": Row(
        ("aster_ml.helpers",), "numbers of kernels compare otherwise",
        {"GlobalCounters": counts.COUNTERS_VIEW},
    ),
    "tinygrad.tensor": Row(
        ("aster_ml.tensor",), "who sets it wants calls to be noted",
        {"_METADATA": programs.MetadataVar()},
    ),
    "tinygrad.dtype": Row(
        ("aster_ml.dtype",), "fp8 as bytes; truncate is a function there",
        {"_to_torch_dtype": names._to_torch_dtype, "truncate": names.truncate_table,
         "DTypeLike": str | names.DType},
    ),
    "tinygrad.device": Row(
        ("aster_ml.device",), "support of a dtype is no question where narrow floats are emulated",
        {"is_dtype_supported": names.is_dtype_supported},
    ),
    "tinygrad.engine.jit": Row(
        ("aster_ml.engine.jit", "aster_ml.jit.tiny_jit", "aster_ml.errors"),
        "one kind of graph serves all",
        {"graph_class": lambda device: device.graph,
         "MultiGraphRunner": programs.MultiGraphRunner},
    ),
    "tinygrad.runtime.graph.hcq": Row((), "no device has these", {"HCQGraph": programs.HCQGraph}),
    "tinygrad.engine.realize": Row(
        ("aster_ml.compat.realize", "aster_ml.engine.realize", "aster_ml.engine.launch"),
        "items and programs are made by modules of their own",
    ),
    "tinygrad.renderer.cstyle": Row(
        ("aster_ml.compat.languages",), "by the language that is written"
    ),
    "tinygrad.renderer.llvmir": Row(
        ("aster_ml.compat.languages",), "by the language that is written"
    ),
    "tinygrad.runtime.ops_python": Row(
        ("aster_ml.compat.languages",), "narrow floats are read by way of NumPy",
        {"from_storage_scalar": names.from_storage_scalar},
    ),
    "tinygrad.uop.ops": Row(
        ("aster_ml.compat.uops", "aster_ml.uop.ops", "aster_ml.uop.node", "aster_ml.uop.rewrite"),
        "one module a subject",
    ),
    "tinygrad.uop.spec": Row(
        ("aster_ml.compat.spec",),
        "rules of the specification are rows of tables, not patterns",
    ),
    "tinygrad.uop.symbolic": Row(
        ("aster_ml.compat.symbolic", "aster_ml.uop.rules.symbolic"),
        "vectors are of the dialect, whose rules stand beside those for scalars",
    ),
    "tinygrad.codegen.late.expander": Row(
        ("aster_ml.compat.symbolic",), "axes of lanes are of the dialect"
    ),
    "tinygrad.codegen.opt.search": Row(("aster_ml.codegen.opts",), "the schedule language"),
}  # fmt: skip

# Reference module -> file of ours, where the tree has none.
STANDIN_FILES = {
    "test.helpers": "helpers.py",
    "test.unit.test_dtype_spec": "dtype_spec.py",
    "extra.gradcheck": "gradcheck.py",
    "extra.lr_scheduler": "lr_scheduler.py",
    "extra.models.unet": "unet.py",
    "extra.models.resnet": "resnet.py",
    "extra.models.llama": "llama.py",
    "examples.gpt2": "gpt2.py",
    "examples.hlb_cifar10": "hlb_cifar10.py",
}


class Mirror(ModuleType):
    """A reference module whose names come from their homes; a missing one is an `Absent`."""

    def __init__(self, name: str) -> None:
        super().__init__(name, f"Names of {name}, from Aster.")
        self.__path__ = []  # every module may have submodules

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        value = look_up(self.__name__, name)
        setattr(self, name, value)
        return value


def look_up(module: str, name: str) -> Any:
    """What `module.name` of the reference is on Aster."""
    row = row_of(module)
    if name in row.single:
        return row.single[name]
    for home in row.homes:
        found = getattr(importlib.import_module(home), name, None)
        if isinstance(found, ModuleType):
            return importlib.import_module(f"{module}.{name}")
        if found is not None:
            return found
    if row_of(f"{module}.{name}").homes:
        return importlib.import_module(f"{module}.{name}")
    return names.absent(f"{module}.{name}")


def row_of(module: str) -> Row:
    """The row of a reference module, made up for one that has the same place in Aster."""
    if module in ROWS:
        return ROWS[module]
    same = "aster_ml" + module.removeprefix("tinygrad")
    try:
        found = importlib.util.find_spec(same)
    except ModuleNotFoundError:
        found = None
    return Row((same,) if found else ())


class MirrorLoader(importlib.abc.Loader):
    """Makes a `Mirror`."""

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return Mirror(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Names are looked up when they are asked for."""


class FolderLoader(importlib.abc.Loader):
    """Makes an empty package over a folder, whether or not the folder exists."""

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        """A package of this kind holds modules and nothing else."""


class Finder(importlib.abc.MetaPathFinder):
    """Answers for the reference's packages before anything else does."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The spec of a reference module; None for all that is not of the reference."""
        top = name.partition(".")[0]
        if top == "tinygrad":
            return importlib.machinery.ModuleSpec(name, MirrorLoader(), is_package=True)
        if top not in ("test", "extra", "examples"):
            return None
        place = self.folder.joinpath(*name.split("."))
        for file in (place.with_suffix(".py"), place / "__init__.py"):
            if file.is_file():
                search = [str(place)] if file.name == "__init__.py" else None
                return importlib.util.spec_from_file_location(
                    name, file, submodule_search_locations=search
                )
        if name in STANDIN_FILES and (STANDINS / STANDIN_FILES[name]).is_file():
            return importlib.util.spec_from_file_location(name, STANDINS / STANDIN_FILES[name])
        if place.is_dir() or any(known.startswith(name + ".") for known in STANDIN_FILES):
            spec = importlib.machinery.ModuleSpec(name, FolderLoader(), is_package=True)
            spec.submodule_search_locations = [str(place)]
            return spec
        return None


def install(folder: Path) -> Finder:
    """Serves the reference's packages in this process from now on."""
    for name in [n for n in sys.modules if n.partition(".")[0] in ("tinygrad", "test", "extra")]:
        del sys.modules[name]
    for owner, name, value, _ in programs.ATTRIBUTES:
        setattr(owner, name, value)
        if isinstance(value, functools.cached_property):
            value.__set_name__(owner, name)
    if not config.JIT_BATCH_SIZE.value:
        # The size there; here the limit is for devices that wait for their graphs to be made.
        config.JIT_BATCH_SIZE.value = 32
    finder = Finder(folder)
    sys.meta_path.insert(0, finder)
    return finder
