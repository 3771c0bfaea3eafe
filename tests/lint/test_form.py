"""The form every source keeps: docstrings, errors that are never swallowed, one place to print."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

from tests.lint.sources import Module, package_modules, place, python_files

# Where text goes to the user on purpose: commands, DEBUG output (the engine has every stage in its
# hands), and what loading weights was asked to say. Everything else returns values or raises.
MAY_PRINT = ("cli", "apps.", "compat.", "engine.", "export.", "jit.", "nn.state")
# Where Python is generated (rule tables compile to one matcher, a jitted call asks one function),
# and where a command line brings it.
MAY_EXEC = ("uop.pattern", "jit.guard_codegen", "compat.program")

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


class Definition(NamedTuple):
    """A public class, function or method, and the class it stands in."""

    module: Module
    node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    owner: ast.ClassDef | None


def is_public(name: str) -> bool:
    """Whether a name is meant for others; operators need no words of their own."""
    return not name.startswith("_")


def public_definitions(module: Module) -> Iterator[Definition]:
    """The public classes and functions of a module and the public methods of those classes."""
    if any(not is_public(part) for part in module.name.split(".")):
        return
    for node in module.tree.body:
        if isinstance(node, (*FUNCTIONS, ast.ClassDef)) and is_public(node.name):
            yield Definition(module, node, None)
            if isinstance(node, ast.ClassDef):
                for method in node.body:
                    if isinstance(method, FUNCTIONS) and is_public(method.name):
                        yield Definition(module, method, node)


def decorators(node: ast.AST) -> list[str]:
    """The source text of each decorator."""
    return [ast.unparse(item) for item in getattr(node, "decorator_list", ())]


def documented_methods(modules: tuple[Module, ...]) -> dict[str, set[str]]:
    """Class name -> the methods that have a docstring in a class of that name."""
    found: defaultdict[str, set[str]] = defaultdict(set)
    for module in modules:
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ClassDef):
                for method in node.body:
                    if isinstance(method, FUNCTIONS) and ast.get_docstring(method):
                        found[node.name].add(method.name)
    return found


def base_names(modules: tuple[Module, ...]) -> dict[str, list[str]]:
    """Class name -> the names of its bases."""
    return {
        node.name: [ast.unparse(base).split("[")[0].split(".")[-1] for base in node.bases]
        for module in modules
        for node in ast.walk(module.tree)
        if isinstance(node, ast.ClassDef)
    }


def says_what_it_is(
    item: Definition, documented: dict[str, set[str]], bases: dict[str, list[str]]
) -> bool:
    """Whether a docstring is there, or a base class has it for the method this one overrides."""
    if ast.get_docstring(item.node):
        return True
    marks = decorators(item.node)
    if any(mark.endswith((".setter", ".deleter")) or "overload" in mark for mark in marks):
        return True  # the getter, or the implementation, has the words
    pending = list(bases.get(item.owner.name, ())) if item.owner else []
    seen: set[str] = set()
    while pending:
        name = pending.pop()
        if item.node.name in documented.get(name, ()):
            return True
        if name not in seen:
            seen.add(name)
            pending += bases.get(name, ())
    return False


def swallowing_handlers(tree: ast.AST) -> Iterator[ast.ExceptHandler]:
    """`except:` without a class, and handlers whose body does nothing."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ExceptHandler):
            empty = all(
                isinstance(step, ast.Pass)
                or (isinstance(step, ast.Expr) and isinstance(step.value, ast.Constant))
                for step in node.body
            )
            if node.type is None or empty:
                yield node


def calls_of(tree: ast.AST, names: tuple[str, ...]) -> Iterator[ast.Call]:
    """Calls of these built-in functions by their plain names."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            if node.func.id in names:
                yield node


def calls_outside(names: tuple[str, ...], allowed: tuple[str, ...]) -> list[str]:
    """One line for each call of these built-ins in a module that no prefix of `allowed` names."""
    return [
        f"{place(module.path, call)}: {ast.unparse(call)[:60]}"
        for module in package_modules()
        if not any(module.name == name or module.name.startswith(name) for name in allowed)
        for call in calls_of(module.tree, names)
    ]


def test_every_module_says_what_it_is() -> None:
    silent = [
        place(path, tree)
        for path, tree in python_files("src", "tests", "tools", "benchmarks")
        if tree.body and not ast.get_docstring(tree)
    ]
    assert not silent, "no module docstring:\n" + "\n".join(silent)


def test_public_names_have_docstrings() -> None:
    modules = package_modules()
    documented, bases = documented_methods(modules), base_names(modules)
    silent = [
        f"{place(module.path, item.node)}: {item.owner.name + '.' if item.owner else ''}"
        f"{item.node.name}"
        for module in modules
        for item in public_definitions(module)
        if not says_what_it_is(item, documented, bases)
    ]
    assert not silent, f"{len(silent)} public names without a docstring:\n" + "\n".join(silent)


def test_no_error_is_swallowed() -> None:
    wrong = [
        place(path, handler)
        for path, tree in python_files("src", "tests", "tools", "benchmarks")
        for handler in swallowing_handlers(tree)
    ]
    assert not wrong, "an error is swallowed:\n" + "\n".join(wrong)


def test_print_only_where_output_is_meant() -> None:
    wrong = calls_outside(("print",), MAY_PRINT)
    assert not wrong, "print outside the modules that talk to the user:\n" + "\n".join(wrong)


def test_exec_only_where_code_is_generated() -> None:
    wrong = calls_outside(("eval", "exec"), MAY_EXEC)
    assert not wrong, "eval or exec where no code is generated:\n" + "\n".join(wrong)


def test_the_checks_see_what_they_look_for() -> None:
    swallowed = ast.parse("try: f()\nexcept ValueError: pass\ntry: f()\nexcept: raise\n")
    assert len(list(swallowing_handlers(swallowed))) == 2
    honest = ast.parse("try: f()\nexcept ValueError: g()\n")
    assert not list(swallowing_handlers(honest))
    assert len(list(calls_of(ast.parse("print(1); x.print(2); exec('')"), ("print", "exec")))) == 2
    tree = ast.parse("class A:\n    def f(self): 'doc'\nclass B(A):\n    def f(self): 1\n")
    module = Module("m", package_modules()[0].path, tree, False)
    documented, bases = documented_methods((module,)), base_names((module,))
    silent = [
        item.node.name
        for item in public_definitions(module)
        if not says_what_it_is(item, documented, bases)
    ]
    assert silent == ["A", "B"]
