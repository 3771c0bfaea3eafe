"""Separates stack frames of Aster's own code from frames of the calling program.

Receives the Python stack; returns file and line. A code object has the name under which its file
was compiled, which may differ from the present path: a link, a zip, or a file without source.
"""

from __future__ import annotations

import os
import sys

# Prefix of the names of Aster's own files, as compiled.
OWN = os.path.join(os.path.dirname(sys._getframe().f_code.co_filename), "")


def is_own(file: str, package: str = "") -> bool:
    """Whether a code object's file belongs to Aster, or to this subpackage of Aster."""
    return file.startswith(os.path.join(OWN, package, "") if package else OWN)


def user_line() -> tuple[str, int]:
    """File and line of the innermost frame outside of Aster."""
    frame = sys._getframe()
    while frame.f_back is not None and is_own(frame.f_code.co_filename):
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno
