"""Asks plug-ins for what the core lacks: names, attributes, module paths, settings, kernels.

`plug_in` registers a module with the questions that it answers. The module is imported when one of
them is first asked. A question is a function of the module, which returns MISSING for what it does
not know:

    find_name(module, name)        `from aster_ml.helpers import name`; `__all__` is asked for too
    find_attribute(owner, name)    an attribute of a node or of a backend
    find_module(path)              the module of a path below `aster_ml` that has no file
    declare_settings()             declares foreign settings, in `config.FOREIGN`
    translate(sink)                a hand-written kernel in kernel form (`schedule.handwritten`)
    simplify_lanes(node)           a vector of a hand-written kernel in its simplest form

Two questions are answered by attributes of the module: `complex`, the class ComplexTensor for
complex operands of tensors; `array_api`, the namespace of a tensor, with its VERSIONS.

No plug-in is named here; the core works without any.
"""

from __future__ import annotations

import functools
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Iterable, Sequence
from types import ModuleType
from typing import Any

from aster_ml.errors import UnsupportedError

PACKAGE = "aster_ml"
MISSING = object()
# Question -> the modules that answer it, in the order in which they are asked.
PLUGGED: dict[str, list[str]] = {}
# Foreign module -> the plug-in whose function `imported` receives it after its import.
AWAITED: dict[str, str] = {}


def plug_in(
    module: str,
    *questions: str,
    settings: Iterable[str] = (),
    awaits: dict[str, str] | None = None,
) -> None:
    """Registers a module and the questions that it answers.

    The module declares `settings`: at once, if the environment has one of them. `awaits` maps
    modules of other packages to the module whose function `imported` is called with each, now or as
    soon as the program imports it.
    """
    for question in questions:
        PLUGGED.setdefault(question, []).append(module)
    if not any([isinstance(finder, Finder) for finder in sys.meta_path]):
        sys.meta_path.insert(0, Awaiting())
        sys.meta_path.append(Finder())
    if any([os.environ.get(name) for name in settings]):
        ask("declare_settings")
    for awaited, told in (awaits or {}).items():
        if awaited in sys.modules:
            importlib.import_module(told).imported(sys.modules[awaited])
        else:
            AWAITED[awaited] = told


def ask(question: str, *given: Any) -> Any:
    """The first answer of a plug-in to a question; MISSING if there is none."""
    for path in PLUGGED.get(question, ()):
        found = getattr(importlib.import_module(path), question)(*given)
        if found is not MISSING:
            return found
    return MISSING


def provider(question: str) -> Any:
    """The module that answers by its attributes. Raises: UnsupportedError where there is none."""
    paths = PLUGGED.get(question)
    if not paths:
        raise UnsupportedError(f"{question}: no plug-in has it; `import aster_ml` plugs one in")
    return importlib.import_module(paths[0])


def find_name(module: str, name: str) -> Any:
    """Asks plug-ins for a name of a core module. Raises: AttributeError where none has it."""
    owner = sys.modules[module]
    below = vars(owner).get("__path__")
    # Python and its tools look up dunder names. `from folder import file` first asks for the file
    # as a name, before the import.
    if name == "__all__" or not name.startswith("__"):
        is_file = below and importlib.machinery.PathFinder.find_spec(f"{module}.{name}", below)
        found = MISSING if is_file else ask("find_name", module.removeprefix(f"{PACKAGE}."), name)
        if found is not MISSING:
            return found
    raise AttributeError(f"module {module!r} has no attribute {name!r}", name=name, obj=owner)


def open_module(module: str) -> None:
    """Lets this core module ask plug-ins for names that it lacks."""
    vars(sys.modules[module])["__getattr__"] = functools.partial(find_name, module)


def find_attribute(owner: Any, name: str) -> Any:
    """Asks plug-ins for an attribute of an object. Raises: AttributeError where none has it."""
    found = MISSING if name.startswith("_") else ask("find_attribute", owner, name)
    if found is MISSING:
        kind = type(owner).__name__
        raise AttributeError(f"{kind!r} object has no attribute {name!r}", name=name, obj=owner)
    return found


class Given(importlib.abc.Loader):
    """Loads an existing module under the name of an import."""

    def __init__(self, module: ModuleType) -> None:
        self.module = module

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        """The module."""
        return self.module

    def exec_module(self, module: ModuleType) -> None:
        """Nothing: it has run."""


class Finder(importlib.abc.MetaPathFinder):
    """Asks plug-ins for module paths below the package that have no file."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The spec of a plug-in's module; None where no plug-in knows the path."""
        if not name.startswith(f"{PACKAGE}."):
            return None
        found = ask("find_module", name.removeprefix(f"{PACKAGE}."))
        if found is MISSING:
            return None
        return importlib.machinery.ModuleSpec(name, Given(found), is_package=True)


class Telling(importlib.abc.Loader):
    """Runs a module by its own loader, then calls the plug-in that awaits it."""

    def __init__(self, loader: Any, told: str) -> None:
        self.loader, self.told = loader, told

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> Any:
        """As its own loader does."""
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Runs the module, then calls the plug-in."""
        self.loader.exec_module(module)
        importlib.import_module(self.told).imported(module)


class Awaiting(importlib.abc.MetaPathFinder):
    """Finds awaited modules when they are imported."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The spec of an awaited module, with `Telling` as its loader; None for all others."""
        told = AWAITED.pop(name, None)
        if told is None:
            return None
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            spec.loader = Telling(spec.loader, told)
        return spec
