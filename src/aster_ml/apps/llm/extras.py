"""Optional packages, imported where they are used.

Receives a package's name; returns it, or says which extra brings it.
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

from aster_ml.errors import ArgumentError


def needed(name: str, extra: str) -> Any:
    """An optional package. Raises: ArgumentError that says which extra installs it."""
    require(name.partition(".")[0], extra)
    return importlib.import_module(name)


def require(name: str, extra: str) -> None:
    """Raises ArgumentError where a package is absent, which is not imported to find out."""
    if importlib.util.find_spec(name) is None:
        raise ArgumentError(f"the package {name} is absent: pip install 'aster-ml[{extra}]'")
