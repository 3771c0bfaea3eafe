"""Optional packages, imported where they are used.

Receives a package's name; returns it, or says which extra brings it.
"""

from __future__ import annotations

import importlib
from typing import Any

from aster_ml.errors import ArgumentError


def needed(name: str, extra: str) -> Any:
    """An optional package. Raises: ArgumentError that says which extra installs it."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise ArgumentError(
            f"the package {name.partition('.')[0]} is absent: pip install 'aster-ml[{extra}]'"
        ) from error
