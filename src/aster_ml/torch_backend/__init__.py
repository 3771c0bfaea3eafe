"""Registers the backend "aster" of torch.compile.

Receives graphs from PyTorch, which finds it by the entry point `torch_dynamo_backends`; returns
compiled functions. PyTorch is imported when a graph is compiled.
"""

from __future__ import annotations

from aster_ml.torch_backend.compiler import aster

__all__ = ["aster"]
