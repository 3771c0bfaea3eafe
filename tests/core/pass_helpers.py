"""Another function in the place of one of the compiler's, in the tables of passes too."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import pytest

from aster_ml.uop.passes import Pass


def replaced(step: Any, old: Callable[..., Any], new: Callable[..., Any]) -> Any:
    """A row of a table, which runs the new function where it ran the old one."""
    return step._replace(run=new) if isinstance(step, Pass) and step.run is old else step


def put_in_place(monkeypatch: pytest.MonkeyPatch, place: str, new: Callable[..., Any]) -> None:
    """`place` is a module below aster_ml and a function that it runs, by itself or as a pass."""
    path, name = place.rsplit(".", 1)
    module = importlib.import_module(f"aster_ml.{path}")
    old = getattr(module, name)
    for key, value in list(vars(module).items()):
        if isinstance(value, tuple) and any(isinstance(v, Pass) for v in value):
            monkeypatch.setattr(module, key, tuple(replaced(v, old, new) for v in value))
    monkeypatch.setattr(module, name, new)
