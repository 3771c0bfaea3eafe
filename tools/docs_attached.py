"""Shows functions that a class attaches (`dot = contract.dot`) as its methods in the site.

An extension of griffe, which reads the sources for the page of the API and takes such a line for
an attribute without a docstring.
"""

from __future__ import annotations

import copy
from typing import Any

import griffe


def attached(value: Any, module: Any) -> Any:
    """The function that a value of a class body stands for; None where it is none."""
    if isinstance(value, griffe.ExprCall) and str(value.function) == "staticmethod":
        value = value.arguments[0]
    if not isinstance(value, (griffe.ExprAttribute, griffe.ExprName)):
        return None
    path = value.canonical_path
    if isinstance(value, griffe.ExprName):
        path = f"{module.path}.{value.name}"
    package = f"{module.package.path}."
    if not path.startswith(package):
        return None
    try:
        found = module.package[path.removeprefix(package)]
    except KeyError:
        # A member of something else than a module or class.
        return None
    return found if found.is_function else None


class AttachedFunctions(griffe.Extension):
    """Puts a function in the place of each attribute that is one."""

    def on_package(self, *, pkg: Any, **_: Any) -> None:
        """Goes over the classes of `ops`."""
        for module in pkg["ops"].modules.values():
            for cls in module.classes.values():
                for name, member in list(cls.members.items()):
                    found = attached(member.value, module) if member.is_attribute else None
                    if found is not None:
                        method = copy.copy(found)
                        method.name, method.parent = name, cls
                        cls.members[name] = method
