"""Defines the graph: ops, nodes, patterns, rewriting, and the meaning of every op."""

from __future__ import annotations

from aster_ml.plugins import open_module

open_module(__name__)
