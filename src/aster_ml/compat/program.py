"""Runs a program that says `import tinygrad` on Aster: modules of that name are Aster's own.

`install()` makes `import tinygrad.x.y` give the very module `aster_ml.x.y`, so that what both names
lead to is the same object. `run(arguments)` runs a file, a module (`-m`) or a text (`-c`) as Python
itself would.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import runpy
import sys
import types
from collections.abc import Sequence

from aster_ml.compat.names import NOT_HERE
from aster_ml.plugins import PACKAGE

FOREIGN = "tinygrad"
CHILDREN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "children")
USAGE = """\
usage: python -m aster_ml.compat PROGRAM.py [ARGUMENT ...]
       python -m aster_ml.compat -m MODULE [ARGUMENT ...]
       python -m aster_ml.compat -c TEXT [ARGUMENT ...]

Runs a Python program in which `import tinygrad` means Aster."""


def own_name(name: str) -> str:
    """The name of the module here: `tinygrad.helpers` -> `aster_ml.helpers`."""
    return PACKAGE + name.removeprefix(FOREIGN)


class OwnModule(importlib.abc.Loader):
    """Puts the module of our own in the place of the one that was asked for."""

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> None:
        """None: the import system makes an empty module, which does not stay."""

    def exec_module(self, module: types.ModuleType) -> None:
        """Imports our own; the import system returns what stands in `sys.modules` afterwards."""
        name = module.__name__
        sys.modules[name] = importlib.import_module(own_name(name))


class Finder(importlib.abc.MetaPathFinder):
    """Answers for tinygrad and what is below it."""

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,
        target: types.ModuleType | None = None,
    ) -> importlib.machinery.ModuleSpec | None:
        """The spec of a module of that name; None for all others.

        Raises: ModuleNotFoundError for a module that Aster does not have, with the reason.
        """
        if fullname.partition(".")[0] != FOREIGN:
            return None
        own = own_name(fullname)
        if importlib.util.find_spec(own) is None:
            reason = NOT_HERE.get(own.removeprefix(f"{PACKAGE}."), "Aster has no such module")
            raise ModuleNotFoundError(f"{fullname} is not there: {reason}", name=fullname)
        return importlib.machinery.ModuleSpec(fullname, OwnModule(), is_package=True)


def install() -> None:
    """From now on `tinygrad` is Aster in this process; a second time does nothing."""
    if not any(isinstance(finder, Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, Finder())


def install_in_children() -> None:
    """Processes that this one starts find tinygrad in a folder that does the same for them."""
    # multiprocessing hands its children this list, others inherit the variable.
    sys.path.insert(1, CHILDREN)
    found = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = CHILDREN + (os.pathsep + found if found else "")


def run(arguments: Sequence[str]) -> int:
    """Runs what the arguments name, with those behind it as its own; returns an exit status."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(USAGE, file=sys.stdout if arguments else sys.stderr)
        return 0 if arguments else 2
    what, *rest = arguments
    if what in ("-m", "-c") and not rest:
        print(f"{what} wants an argument\n{USAGE}", file=sys.stderr)
        return 2
    install()
    install_in_children()
    if what == "-m":
        sys.path[0] = os.getcwd()
        sys.argv = rest
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    elif what == "-c":
        sys.path[0] = ""
        sys.argv = ["-c", *rest[1:]]
        module = types.ModuleType("__main__")
        sys.modules["__main__"] = module
        exec(compile(rest[0], "<string>", "exec"), vars(module))
    else:
        sys.path[0] = os.path.dirname(os.path.abspath(what))
        sys.argv = [what, *rest]
        runpy.run_path(what, run_name="__main__")
    return 0
