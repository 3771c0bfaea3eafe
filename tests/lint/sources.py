"""The sources as the lint tests see them: every module's name, path and syntax tree.

Nothing is imported from the package here, so a source that does not run can still be judged.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "aster_ml"


class Module(NamedTuple):
    """One source file: `name` is relative to aster_ml, and "aster_ml" for the top `__init__`."""

    name: str
    path: Path
    tree: ast.Module
    is_package: bool


def name_of(path: Path) -> str:
    """The module's name relative to the package; a package has the name of its folder."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    if parts[-1] == "__init__":
        parts = parts[:-1]
    return ".".join(parts) or "aster_ml"


@cache
def tree_of(path: Path) -> ast.Module:
    """The syntax tree of a file, which all checks of a worker share."""
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


@cache
def package_modules() -> tuple[Module, ...]:
    """Every module of the package, in the order of their paths."""
    return tuple(
        Module(
            name_of(path),
            path,
            tree_of(path),
            path.name == "__init__.py",
        )
        for path in sorted(PACKAGE.rglob("*.py"))
    )


@cache
def python_files(*folders: str) -> tuple[tuple[Path, ast.Module], ...]:
    """Every Python file below these folders of the project, with its syntax tree."""
    return tuple(
        (path, tree_of(path))
        for folder in folders
        for path in sorted((ROOT / folder).rglob("*.py"))
    )


def place(path: Path, node: ast.AST) -> str:
    """`path:line`, relative to the project, as editors open it."""
    return f"{path.relative_to(ROOT).as_posix()}:{getattr(node, 'lineno', 1)}"
