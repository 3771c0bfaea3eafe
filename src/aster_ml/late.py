"""Imports a module lazily, when one of its names is first read.

    if TYPE_CHECKING:
        from aster_ml.codegen import passes
    else:
        passes = late("codegen.passes")

Type checkers and the table of layers see a plain import. At run time `passes` is a `LateModule`;
once one of its names is read, it shares the namespace of the module, so that a later read costs no
more than a read of the module.
"""

from __future__ import annotations

import importlib
from typing import Any

from aster_ml.uop.gc_pause import uncollected

PACKAGE = "aster_ml"


class LateModule:
    """A module that is imported when one of its names is first read."""

    __slots__ = ("__dict__", "_path")
    _path: str

    def __init__(self, path: str) -> None:
        self._path = path

    def __getattr__(self, name: str) -> Any:
        with uncollected():
            module = importlib.import_module(self._path)
        self.__dict__ = vars(module)
        # Read from the module: what it lacks is its own error.
        return getattr(module, name)

    def __repr__(self) -> str:
        return f"<late import of {self._path}>"


class LateFunction:
    """A function of a late module, for tables of functions: the first call imports the module."""

    __slots__ = ("_module", "_name")

    def __init__(self, module: Any, name: str) -> None:
        self._module, self._name = module, name

    @property
    def __wrapped__(self) -> Any:
        return getattr(self._module, self._name)

    def __call__(self, *args: Any) -> Any:
        return self.__wrapped__(*args)


def late(name: str) -> Any:
    """The module of that name below the package, imported when one of its names is read."""
    return LateModule(f"{PACKAGE}.{name}")


def late_function(name: str, function: str) -> Any:
    """A function of the module of that name, which is imported when the function is called."""
    return LateFunction(late(name), function)
