"""Starts Python again in a process of its own that finds this very package, however it came here.

Receives arguments of Python; returns a command and an environment for `subprocess`. The package may
lie in a zip or in a folder that only this process has on its path, and an isolated process has
children that are no less isolated.
"""

from __future__ import annotations

import errno
import os
import sys

OPTIMIZED = ("", "-O", "-OO")


def python_command(*arguments: str) -> list[str]:
    """This Python, with the options that it was started with, and these arguments.

    Raises: FileNotFoundError where this process is no interpreter that could be started again.
    """
    if getattr(sys, "frozen", False) or not sys.executable:
        raise FileNotFoundError(errno.ENOENT, "this program has no Python to start", sys.executable)
    flags = sys.flags
    chosen = {
        OPTIMIZED[flags.optimize]: flags.optimize > 0,
        "-B": flags.dont_write_bytecode,
        "-s": flags.no_user_site,
        # A module of the working folder is not taken for one of Python's or of ours.
        "-P": flags.safe_path or arguments[:1] == ("-m",),
        "-Xutf8": flags.utf8_mode,
    }
    given = [option for option, is_given in chosen.items() if is_given]
    return [sys.executable, *given, *[f"-W{option}" for option in sys.warnoptions], *arguments]


def python_environment(**more: str) -> dict[str, str]:
    """The environment for such a process, with `more`: this package is found there."""
    # As -I and -E have it, which would leave out PYTHONPATH too.
    isolated = sys.flags.ignore_environment
    given = {k: v for k, v in os.environ.items() if not (isolated and k.startswith("PYTHON"))}
    package = os.path.dirname(os.path.abspath(__file__))
    paths = [os.path.dirname(package), *given.get("PYTHONPATH", "").split(os.pathsep)]
    return {**given, "PYTHONPATH": os.pathsep.join([path for path in paths if path]), **more}
