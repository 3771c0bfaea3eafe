"""Asks plug-ins for what the core lacks: names, attributes, module paths, settings, kernels.

A plug-in is a module that `plug_in` names, with the questions that it answers. It is imported when
one of them is first asked. Each is a function of it, which gives MISSING for what it does not know:

    find_name(module, name)        `from aster_ml.helpers import name`; `__all__` is asked for too
    find_attribute(owner, name)    an attribute of a node or of a backend
    find_module(path)              the module of a path below `aster_ml` that has no file
    declare_settings()             declares settings of its own, which stand in `config.FOREIGN`
    translate(sink)                a hand-written kernel in kernel form (`schedule.handwritten`)
    simplify_lanes(node)           a vector of a hand-written kernel in its simplest form

Two are answered by what the module has: `complex`, the class ComplexTensor for complex operands of
tensors; `array_api`, the namespace that a tensor gives, with its VERSIONS.

Nothing here knows a plug-in; the core works without any.
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
# By question, the modules that answer it, first asked first.
PLUGGED: dict[str, list[str]] = {}
# Modules of others, and the module whose `imported` gets each when it has been imported.
AWAITED: dict[str, str] = {}


def plug_in(
    module: str,
    *questions: str,
    settings: Iterable[str] = (),
    awaits: dict[str, str] | None = None,
) -> None:
    """Names a module and the questions that it answers.

    `settings` are those that it declares: where the environment has one, it does so at once.
    `awaits` are modules of other packages, and the module of the plug-in whose function `imported`
    is called with each, now or as soon as the program imports it.
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
    """The first answer of a plug-in to one of the questions above; MISSING if none knows one."""
    for path in PLUGGED.get(question, ()):
        found = getattr(importlib.import_module(path), question)(*given)
        if found is not MISSING:
            return found
    return MISSING


def provider(question: str) -> Any:
    """The module that answers by what it has. Raises: UnsupportedError where none is plugged in."""
    paths = PLUGGED.get(question)
    if not paths:
        raise UnsupportedError(f"{question}: no plug-in has it; `import aster_ml` plugs one in")
    return importlib.import_module(paths[0])


def find_name(module: str, name: str) -> Any:
    """Asks plug-ins for a name of a core module. Raises: AttributeError where none has it."""
    owner = sys.modules[module]
    below = vars(owner).get("__path__")
    # Names between underscores are those that Python and its tools try. `from folder import file`
    # asks for the file as a name, before it imports that.
    if name == "__all__" or not name.startswith("__"):
        is_file = below and importlib.machinery.PathFinder.find_spec(f"{module}.{name}", below)
        found = MISSING if is_file else ask("find_name", module.removeprefix(f"{PACKAGE}."), name)
        if found is not MISSING:
            return found
    raise AttributeError(f"module {module!r} has no attribute {name!r}", name=name, obj=owner)


def open_module(module: str) -> None:
    """Has plug-ins asked for names that this module of the core lacks."""
    vars(sys.modules[module])["__getattr__"] = functools.partial(find_name, module)


def find_attribute(owner: Any, name: str) -> Any:
    """Asks plug-ins for an attribute of an object. Raises: AttributeError where none has it."""
    found = MISSING if name.startswith("_") else ask("find_attribute", owner, name)
    if found is MISSING:
        kind = type(owner).__name__
        raise AttributeError(f"{kind!r} object has no attribute {name!r}", name=name, obj=owner)
    return found


class Given(importlib.abc.Loader):
    """Puts a module that exists in the place of the one that is imported."""

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
        """The spec of what a plug-in gives; None for what none knows."""
        if not name.startswith(f"{PACKAGE}."):
            return None
        found = ask("find_module", name.removeprefix(f"{PACKAGE}."))
        if found is MISSING:
            return None
        return importlib.machinery.ModuleSpec(name, Given(found), is_package=True)


class Telling(importlib.abc.Loader):
    """Runs a module as its own loader does, and hands it to who awaits it."""

    def __init__(self, loader: Any, told: str) -> None:
        self.loader, self.told = loader, told

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> Any:
        """As its own loader does."""
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Runs the module, then tells of it."""
        self.loader.exec_module(module)
        importlib.import_module(self.told).imported(module)


class Awaiting(importlib.abc.MetaPathFinder):
    """Stands by until a module that a plug-in awaits is imported."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The module as others find it, told of when it has run; None for all others."""
        told = AWAITED.pop(name, None)
        if told is None:
            return None
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            spec.loader = Telling(spec.loader, told)
        return spec
