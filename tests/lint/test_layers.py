"""Holds the sources to the table of layers in `src/aster_ml/layers.toml`."""

from __future__ import annotations

import ast
import fnmatch
import tomllib
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any, NamedTuple, TypeGuard

from tests.lint.sources import PACKAGE, Module, package_modules, place

Names = frozenset[str]


class Import(NamedTuple):
    """One import of a module of ours: who, whom, where; in a function, or for types alone."""

    importer: str
    imported: str
    where: str
    in_function: bool = False
    type_only: bool = False


def read_table() -> dict[str, Any]:
    """The table as `tomllib` reads it."""
    return tomllib.loads((PACKAGE / "layers.toml").read_text(encoding="utf-8"))


def rows(table: dict[str, Any]) -> dict[str, int]:
    """Each row's name or glob -> layer number."""
    found: dict[str, int] = {}
    for layer in table["layer"]:
        for name in layer["modules"]:
            assert name not in found, f"layers.toml names {name} twice"
            found[name] = layer["number"]
    return found


def layer_of(name: str, table_rows: dict[str, int]) -> int | None:
    """The module's layer: its own row, else the glob row of the nearest package, else None."""
    if name in table_rows:
        return table_rows[name]
    globs = [row for row in table_rows if row.endswith(".*") and fnmatch.fnmatch(name, row)]
    return table_rows[max(globs, key=len)] if globs else None


def own_target(dotted: str, names: Names) -> str | None:
    """`aster_ml.uop.node.UOp` -> `uop.node`: the longest prefix that is a module of ours."""
    parts = dotted.split(".")
    if parts[0] != "aster_ml":
        return None
    for end in range(len(parts), 1, -1):
        name = ".".join(parts[1:end])
        if name in names:
            return name
    return "aster_ml"


def imports_of(module: Module, names: Names) -> Iterator[Import]:
    """Every import of our own modules in `module`, wherever it stands."""

    def visit(node: ast.AST, in_function: bool, type_only: bool) -> Iterator[Import]:
        dotted: list[str] = []
        if isinstance(node, ast.Import):
            dotted = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{place(module.path, node)}: a relative import"
            dotted = [f"{node.module}.{alias.name}" for alias in node.names]
        for name in dotted:
            target = own_target(name, names)
            if target is not None and target != module.name:
                where = place(module.path, node)
                yield Import(module.name, target, where, in_function, type_only)
        if is_late(node):
            # It runs when something of it is read.
            target = own_target(f"aster_ml.{node.args[0].value}", names)
            assert target != "aster_ml", f"{place(module.path, node)}: a late import of no module"
            yield Import(module.name, str(target), place(module.path, node), in_function, True)
        in_function |= isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        for field, value in ast.iter_fields(node):
            types = type_only or (field == "body" and is_type_checking(node))
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from visit(child, in_function, types)

    yield from visit(module.tree, False, False)


def is_late(node: ast.AST) -> TypeGuard[Any]:
    """Whether this is `late("module")`, an import that waits."""
    is_call = isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    return is_call and node.func.id == "late" and isinstance(node.args[0], ast.Constant)


def is_type_checking(node: ast.AST) -> bool:
    """Whether this is `if TYPE_CHECKING:`."""
    return isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")


@cache
def all_imports(modules: tuple[Module, ...]) -> tuple[Import, ...]:
    """Every import of our own modules in all of `modules`."""
    names = frozenset(module.name for module in modules)
    return tuple([found for module in modules for found in imports_of(module, names)])


def package_of(name: str) -> str:
    """The package below aster_ml that a module is in, "" for one that is in none.

    The folders of a package are parts of it: they share its layer.
    """
    in_package = "." in name or any(m.name == name and m.is_package for m in package_modules())
    return name.partition(".")[0] if in_package else ""


def upward_imports(
    imports: Iterable[Import], table_rows: dict[str, int], type_only: dict[str, list[str]]
) -> list[str]:
    """One line for each import that goes up, or sideways between packages."""
    wrong = []
    for found in imports:
        if found.type_only and found.imported in type_only.get(found.importer, ()):
            continue
        own = layer_of(found.importer, table_rows)
        other = layer_of(found.imported, table_rows)
        if own is None or other is None:
            continue  # test_every_module_has_a_layer names it
        same_package = package_of(found.importer) == package_of(found.imported)
        if other > own or (other == own and not same_package):
            wrong.append(
                f"{found.where}: {found.importer} (layer {own}) imports "
                f"{found.imported} (layer {other})"
            )
    return wrong


def circles(imports: Iterable[Import]) -> list[str]:
    """The circles among imports that run, each as `a -> b -> a`, found by depth-first search."""
    graph: dict[str, list[str]] = {}
    for found in imports:
        if not found.type_only:
            graph.setdefault(found.importer, []).append(found.imported)
    done: set[str] = set()
    found_circles = []

    def walk(name: str, trail: list[str]) -> None:
        if name in trail:
            found_circles.append(" -> ".join([*trail[trail.index(name) :], name]))
        elif name not in done:
            for other in graph.get(name, ()):
                walk(other, [*trail, name])
            done.add(name)

    for name in graph:
        walk(name, [])
    return found_circles


def test_every_module_has_a_layer() -> None:
    table_rows = rows(read_table())
    names = frozenset(module.name for module in package_modules())
    missing = [
        f"{module.path.relative_to(PACKAGE)}: no row in layers.toml"
        for module in package_modules()
        if layer_of(module.name, table_rows) is None
        and not (module.is_package and not list(imports_of(module, names)))
    ]
    assert not missing, "\n".join(missing)


def test_every_row_names_a_module() -> None:
    names = [module.name for module in package_modules()]
    stale = [row for row in rows(read_table()) if not fnmatch.filter(names, row)]
    assert not stale, f"rows of layers.toml that name no module: {stale}"


def test_imports_go_down() -> None:
    table = read_table()
    wrong = upward_imports(all_imports(package_modules()), rows(table), table["type_only"])
    assert not wrong, "\n".join(wrong)


def test_every_permission_is_used() -> None:
    used = {(i.importer, i.imported) for i in all_imports(package_modules()) if i.type_only}
    granted = {
        (importer, imported)
        for importer, names in read_table()["type_only"].items()
        for imported in names
    }
    assert granted <= used, f"permissions of layers.toml that nothing uses: {granted - used}"


def test_no_circles() -> None:
    found = circles(all_imports(package_modules()))
    assert not found, "\n".join(found)


def test_no_own_import_inside_a_function() -> None:
    wrong = [
        f"{found.where}: {found.importer} imports {found.imported} inside a function"
        for found in all_imports(package_modules())
        if found.in_function and not found.type_only
    ]
    assert not wrong, "\n".join(wrong)


def test_late_imports_are_typed() -> None:
    names = frozenset(module.name for module in package_modules())
    wrong = []
    for module in package_modules():
        if module.name == "aster_ml":
            continue  # It only calls what it imports late.
        late = {str(node.args[0].value) for node in ast.walk(module.tree) if is_late(node)}
        blocks = [node for node in module.tree.body if is_type_checking(node)]
        typed = {
            found.imported
            for node in blocks
            for found in imports_of(module._replace(tree=ast.Module([node], [])), names)
        }
        wrong += [f"{module.name}: {name}" for name in sorted(late - typed)]
    assert not wrong, "late imports that type checkers do not see:\n" + "\n".join(wrong)


def test_lookup_by_name_only_where_the_table_says() -> None:
    allowed = read_table()["lookup"]
    wrong = []
    for module in package_modules():
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Call):
                called = node.func
                name = called.attr if isinstance(called, ast.Attribute) else None
                name = called.id if isinstance(called, ast.Name) else name
                # A literal name of another's module (an optional dependency) is no lookup of ours.
                literal = node.args and isinstance(node.args[0], ast.Constant)
                foreign = literal and not str(node.args[0].value).startswith("aster_ml")
                if name in ("import_module", "__import__") and not foreign:
                    if module.name not in allowed:
                        wrong.append(f"{place(module.path, node)}: {module.name} calls {name}")
    assert not wrong, "\n".join(wrong)


def test_packages_that_stay_apart() -> None:
    apart = read_table()["apart"]
    wrong = []
    for found in all_imports(package_modules()):
        own, other = found.importer.split(".")[0], found.imported.split(".")[0]
        if own != other and own in apart and other in apart:
            wrong.append(f"{found.where}: {found.importer} imports {found.imported}")
    assert not wrong, "\n".join(wrong)


def passes_on(module: Module) -> bool:
    """Whether a module is nothing but imports and the list of what it passes on."""
    rest = [
        node
        for node in module.tree.body
        if not isinstance(node, (ast.Import, ast.ImportFrom)) and not is_text(node)
    ]
    said = [
        ast.unparse(target)
        for node in rest
        for target in (node.targets if isinstance(node, ast.Assign) else [node])
    ]
    # Recordings of functions are told of a package by the other.
    return "__all__" in said and set(said) <= {"__all__", "__guarded__"}


def is_text(node: ast.stmt) -> bool:
    """Whether a statement is a docstring."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def test_only_passing_modules_pass_on() -> None:
    granted = set(read_table()["passing"])
    # The top of the package has a version and installs what lower modules are asked for.
    found = {module.name for module in package_modules() if passes_on(module)} | {"aster_ml"}
    assert found == granted, "modules of imports alone, against `passing` of layers.toml"


def test_the_checks_see_what_they_look_for() -> None:
    table_rows = {"low": 0, "high": 1, "a.*": 2, "b.*": 2, "a.top": 3}
    assert layer_of("a.one", table_rows) == 2
    assert layer_of("a.top", table_rows) == 3
    assert layer_of("absent", table_rows) is None

    def line(importer: str, imported: str) -> Import:
        return Import(importer, imported, "file:1")

    assert upward_imports([line("low", "high")], table_rows, {"low": ["high"]})
    assert upward_imports([line("a.one", "b.one")], table_rows, {})
    assert not upward_imports([line("a.one", "a.two"), line("high", "low")], table_rows, {})
    for_types = Import("low", "high", "file:1", type_only=True)
    assert upward_imports([for_types], table_rows, {})
    assert not upward_imports([for_types], table_rows, {"low": ["high"]})
    assert circles([line("x", "y"), line("y", "z"), line("z", "x")]) == ["x -> y -> z -> x"]
    assert not circles([line("x", "y"), line("y", "z"), line("x", "z")])
