"""Every function, class and constant of the package is used, or named, somewhere."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator

from tests.lint.sources import PACKAGE, ROOT, tree_of

# Text in which a name may stand: whoever uses it, tests it or writes of it.
PLACES = ("src", "tests", "tools", "docs", "benchmarks", "lessons", "README.md", "Makefile")
KINDS = {".py", ".md", ".toml", ".txt", ".c", ".h", ""}
# Names that other packages call: tinygrad's programs and tests, the module pickle, einops, jinja2.
CALLED_ELSEWHERE = {
    "copy_to_device", "get_empty_input_data", "persistent_id", "persistent_load", "pyrender",
    "wrap_str_format",
}  # fmt: skip


def defined(tree: ast.Module) -> Iterator[str]:
    """Names that a module defines. What has a decorator is in the hands of that."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            if not node.decorator_list:
                yield node.name
    for node in tree.body:
        # One name alone: of those that are unpacked together some may only hold a place.
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            yield node.targets[0].id
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id


def test_no_name_is_used_nowhere() -> None:
    words: Counter[str] = Counter()
    for place in PLACES:
        root = ROOT / place
        for path in [root] if root.is_file() else sorted(root.rglob("*")):
            if path.is_file() and path.suffix in KINDS:
                words.update(re.findall(r"\w+", path.read_text(encoding="utf-8", errors="replace")))
    unused = []
    for path in sorted(PACKAGE.rglob("*.py")):
        # Names of other frameworks are there for programs that are not here.
        if "compat" in path.relative_to(PACKAGE).parts:
            continue
        names = Counter(defined(tree_of(path)))
        unused += [
            f"{path.relative_to(ROOT)}: {name}"
            for name, count in names.items()
            if words[name] <= count and not name.startswith("__") and name not in CALLED_ELSEWHERE
        ]
    assert not unused, "\n".join(unused)
