"""Finds which lines and which modules of a program a node comes from.

Receives the Python stack; returns frames, innermost first, and for each the object of the program
that is called in it, as a path of attributes (`ResNet18.layer1[0].conv1`).
"""

from __future__ import annotations

import sys
import sysconfig
from types import FrameType
from typing import Any, NamedTuple

from aster_ml.extend import is_own
from aster_ml.tensor import Tensor
from aster_ml.uop.node import UOp

INSTALLED = tuple({sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")})
# Frames of a program that are kept of one call, and entries of a list that are looked through.
MOST_FRAMES, MOST_ENTRIES = 24, 1000


class Frame(NamedTuple):
    """A line of the program that is being run, and the module (layer) that runs it, if any."""

    file: str
    line: int
    function: str
    module: str


def is_installed(file: str) -> bool:
    """Whether a file is Python's own, or of an installed package, or is no file."""
    return file.startswith((*INSTALLED, "<"))


def owner_of(frame: FrameType) -> Any:
    """The object whose method a frame is, where that is part of a model."""
    code = frame.f_code
    if not code.co_argcount or code.co_varnames[0] != "self":
        return None
    found = frame.f_locals.get("self")
    if found is None or isinstance(found, (Tensor, UOp)) or not hasattr(found, "__dict__"):
        return None
    file = code.co_filename
    return found if not is_own(file) or is_own(file, "nn") else None


def name_within(parent: Any, child: Any) -> str | None:
    """Under which attribute, or entry of one, an object has another; None where it has it not."""
    for name, value in vars(parent).items():
        if value is child:
            return f".{name}"
        if isinstance(value, (list, tuple)):
            for i, entry in enumerate(value[:MOST_ENTRIES]):
                if entry is child:
                    return f".{name}[{i}]"
                if isinstance(entry, (list, tuple)):
                    for j, inner in enumerate(entry[:MOST_ENTRIES]):
                        if inner is child:
                            return f".{name}[{i}][{j}]"
        elif isinstance(value, dict):
            for key, entry in value.items():
                if entry is child:
                    return f".{name}[{key!r}]"
    return None


def call_stack() -> tuple[Frame, ...]:
    """The frames of the program around the call that is going on, innermost first."""
    frames: list[tuple[FrameType, Any]] = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and len(frames) < MOST_FRAMES:
        owner = owner_of(frame)
        if owner is not None or not is_own(frame.f_code.co_filename):
            frames.append((frame, owner))
        frame = frame.f_back
    # What has started the program (a runner, a debugger) is no part of it.
    while len(frames) > 1 and is_installed(frames[-1][0].f_code.co_filename):
        frames.pop()
    result: list[Frame] = []
    path, parent = "", None
    for found, owner in reversed(frames):
        if owner is not None and owner is not parent:
            inside = name_within(parent, owner) if parent is not None else None
            path = path + inside if inside is not None else type(owner).__name__
            parent = owner
        code = found.f_code
        if not is_own(code.co_filename):
            line = found.f_lineno or code.co_firstlineno
            result.append(Frame(code.co_filename, line, code.co_qualname, path))
        elif result:
            # A layer of Aster's own: the line of the program that calls it, within that layer.
            result.append(result[-1]._replace(module=path))
    return tuple(reversed(result))
