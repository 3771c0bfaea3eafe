"""Describes hardware (`target.target`) and the costs of operations on it (`target.costs`)."""

from __future__ import annotations

from aster_ml.target.target import (
    BLOCK_NBYTES,
    CPU,
    GPU,
    IDLE,
    INTEGERS,
    INTERPRETER,
    LINE_NBYTES,
    PLAIN_DTYPES,
    PLAIN_OPS,
    UNTRIED,
    Target,
)

__all__ = [
    "BLOCK_NBYTES",
    "CPU",
    "GPU",
    "IDLE",
    "INTEGERS",
    "INTERPRETER",
    "LINE_NBYTES",
    "PLAIN_DTYPES",
    "PLAIN_OPS",
    "UNTRIED",
    "Target",
]
