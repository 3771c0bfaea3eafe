"""Builds the command and environment of a Python subprocess that imports this same package.

Receives arguments of Python; returns a command and an environment for `subprocess`. The package may
be in a zip or in a folder that only this process has on its path; children of an isolated process
are isolated, too.
"""

from __future__ import annotations

import errno
import os
import sys

OPTIMIZED = ("", "-O", "-OO")


def python_command(*arguments: str) -> list[str]:
    """This Python's command line with its present options, and these arguments.

    Raises: FileNotFoundError where this process has no Python executable.
    """
    if getattr(sys, "frozen", False) or not sys.executable:
        raise FileNotFoundError(errno.ENOENT, "this program has no Python to start", sys.executable)
    flags = sys.flags
    chosen = {
        OPTIMIZED[flags.optimize]: flags.optimize > 0,
        "-B": flags.dont_write_bytecode,
        "-s": flags.no_user_site,
        # Modules of the working folder do not hide modules of Python or Aster.
        "-P": flags.safe_path or arguments[:1] == ("-m",),
        "-Xutf8": flags.utf8_mode,
    }
    given = [option for option, is_given in chosen.items() if is_given]
    return [sys.executable, *given, *[f"-W{option}" for option in sys.warnoptions], *arguments]


def python_environment(**more: str) -> dict[str, str]:
    """The environment of such a process, with `more` variables and this package on its path."""
    # -I and -E ignore PYTHONPATH, too.
    isolated = sys.flags.ignore_environment
    given = {k: v for k, v in os.environ.items() if not (isolated and k.startswith("PYTHON"))}
    package = os.path.dirname(os.path.abspath(__file__))
    paths = [os.path.dirname(package), *given.get("PYTHONPATH", "").split(os.pathsep)]
    return {**given, "PYTHONPATH": os.pathsep.join([path for path in paths if path]), **more}
