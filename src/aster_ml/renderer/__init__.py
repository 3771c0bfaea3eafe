"""Renders linear programs as source text, one module a language."""

from __future__ import annotations

from aster_ml.plugins import open_module

open_module(__name__)
