"""Imports optional packages where they are used.

Receives the name of a package, or of a module of ours that imports one; returns it, or says which
extra brings the package.
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

from aster_ml.errors import ArgumentError


def needed(name: str, extra: str) -> Any:
    """An optional package. Raises: ArgumentError that says which extra installs it."""
    install = f"pip install 'aster-ml[{extra}]'"
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        package = (error.name or name).partition(".")[0]
        if package == "aster_ml":
            raise
        raise ArgumentError(f"the package {package} is absent: {install}") from error
    except ImportError as error:
        package = name.partition(".")[0]
        raise ArgumentError(f"the package {package} does not load ({error}): {install}") from error


def require(name: str, extra: str) -> None:
    """Raises ArgumentError where a package is absent, which is not imported to find out."""
    if importlib.util.find_spec(name) is None:
        raise ArgumentError(f"the package {name} is absent: pip install 'aster-ml[{extra}]'")
