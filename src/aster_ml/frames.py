"""Tells frames of Aster's own code from those of a program that calls it.

Receives the Python stack; returns file and line. Code knows by which name its file was compiled,
which is another one than where the file is now: behind a link, in a zip, or without its source.
"""

from __future__ import annotations

import os
import sys

# What names of Aster's own files begin with, as they were when they were compiled.
OWN = os.path.join(os.path.dirname(sys._getframe().f_code.co_filename), "")


def is_own(file: str, package: str = "") -> bool:
    """Whether a file, as code names it, is Aster's own: of a package of it, where one is named."""
    return file.startswith(os.path.join(OWN, package, "") if package else OWN)


def user_line() -> tuple[str, int]:
    """File and line of the innermost frame outside of Aster."""
    frame = sys._getframe()
    while frame.f_back is not None and is_own(frame.f_code.co_filename):
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno
