"""Every test can fail, and runs with what `make test` installs.

Each test function, and each helper that says it checks, asserts; no test file needs a package at
its top that only further extras bring.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.lint.sources import place, python_files

CHECKING = ("assert_", "check_", "assert")
# Packages of extras that `make test` does not install, and peers of the benchmarks.
FURTHER = ("torch", "gguf", "pyopencl", "wgpu", "jax", "tinygrad")
RAISING = ("raises", "warns", "fail", "deprecated_call")


def called_name(call: ast.Call) -> str:
    """The last part of the name that is called: `np.testing.assert_equal` -> `assert_equal`."""
    function = call.func
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def is_assertion(node: ast.AST) -> bool:
    """An assert of something that is not a constant, or a call that asserts or expects an error."""
    if isinstance(node, ast.Assert):
        return not isinstance(node.test, ast.Constant)
    if isinstance(node, ast.Call):
        name = called_name(node)
        return name.startswith(CHECKING) or name in RAISING
    if isinstance(node, ast.Raise):
        return "AssertionError" in ast.unparse(node)
    return False


def is_skipped(function: ast.AST) -> bool:
    """Whether a function is no test: a fixture that happens to be named like one."""
    return any("fixture" in ast.unparse(item) for item in getattr(function, "decorator_list", ()))


def functions_that_must_assert(tree: ast.Module) -> Iterator[ast.FunctionDef]:
    """Test functions and methods, and helpers whose name says that they check."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            if node.name.startswith(("test_", "assert_", "check_")) and not is_skipped(node):
                yield node


def silent_functions(tree: ast.Module) -> list[ast.FunctionDef]:
    """Those of them in which nothing is asserted."""
    return [
        function
        for function in functions_that_must_assert(tree)
        if not any(is_assertion(node) for node in ast.walk(function))
    ]


def imports_at_the_top(tree: ast.Module) -> Iterator[tuple[ast.stmt, str]]:
    """What a file imports when it is imported itself: top-level packages."""
    for node in tree.body:
        if isinstance(node, ast.Import):
            yield from [(node, alias.name.partition(".")[0]) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            yield node, (node.module or "").partition(".")[0]


def test_every_test_asserts() -> None:
    wrong = [
        f"{place(path, function)}: {function.name}"
        for path, tree in python_files("tests")
        for function in silent_functions(tree)
    ]
    assert not wrong, "nothing is asserted in:\n" + "\n".join(wrong)


def test_no_test_file_needs_a_further_extra() -> None:
    """Without PyTorch the rest of a file runs: what compares with it uses pytest.importorskip."""
    wrong = [
        f"{place(path, node)}: {name}"
        for path, tree in python_files("tests")
        for node, name in imports_at_the_top(tree)
        if name in FURTHER
    ]
    assert not wrong, "pytest.importorskip inside of the tests would do:\n" + "\n".join(wrong)


def test_the_check_sees_imports() -> None:
    tree = ast.parse("import os, torch.nn\nfrom gguf import x\ndef f():\n    import jax\n")
    assert [name for _, name in imports_at_the_top(tree)] == ["os", "torch", "gguf"]


def test_the_check_sees_what_it_looks_for() -> None:
    silent = ast.parse(
        "def test_a():\n    f()\ndef test_b():\n    assert True\ndef check_c(): f()\n"
    )
    assert [function.name for function in silent_functions(silent)] == [
        "test_a",
        "test_b",
        "check_c",
    ]
    honest = ast.parse(
        "def test_a():\n    assert f() == 1\n"
        "def test_b():\n    with pytest.raises(ValueError): f()\n"
        "def test_c():\n    np.testing.assert_allclose(f(), 1)\n"
        "def test_d():\n    check_same(f(), 1)\n"
        "def helper(): f()\n"
    )
    assert not silent_functions(honest)
