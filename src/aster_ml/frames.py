"""Tells frames of Aster's own code from those of a program that calls it.

Receives the Python stack; returns file and line. Code knows by which name its file was compiled,
which is another one than where the file is now: behind a link, in a zip, or without its source.
"""

from __future__ import annotations

import os
import sys


def name_of_code() -> str:
    """The file that this very function was compiled from."""
    return name_of_code.__code__.co_filename


# What names of Aster's own files begin with.
OWN = os.path.join(os.path.dirname(name_of_code()), "")


def is_own(file: str) -> bool:
    """Whether a file, as code names it, is Aster's own."""
    return file.startswith(OWN)


def user_line() -> tuple[str, int]:
    """File and line of the innermost frame outside of Aster."""
    frame = sys._getframe()
    while frame.f_back is not None and is_own(frame.f_code.co_filename):
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno
