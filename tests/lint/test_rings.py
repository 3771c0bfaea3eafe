"""Holds imports to the rings of `src/aster_ml/layers.toml`: core, library, programs."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable
from typing import Any

from tests.lint.sources import package_modules
from tests.lint.test_layers import Import, all_imports, layer_of, read_table, rows

# What each ring may import of another; the core's interface is open to all.
MAY_IMPORT = {
    "core": {"core"},
    "library": {"library"},
    "programs": {"library", "programs"},
    "top": {"core", "library", "programs", "top"},
}


def ring_rows(table: dict[str, Any]) -> dict[str, str]:
    """Each row's name or glob -> ring."""
    return {name: layer["ring"] for layer in table["layer"] for name in layer["modules"]}


def ring_of(name: str, rings: dict[str, str]) -> str:
    """The ring of a module, by the row that says its layer."""
    if name in rings:
        return rings[name]
    globs = [row for row in rings if row.endswith(".*") and fnmatch.fnmatch(name, row)]
    # A package without a row imports nothing.
    return rings[max(globs, key=len)] if globs else "core"


def breaks(imports: Iterable[Import], table: dict[str, Any]) -> set[tuple[str, str]]:
    """Which module imports which other that its ring may not."""
    rings, interface = ring_rows(table), {"aster_ml", *table["interface"]}
    found = set()
    for one in imports:
        importer, imported = ring_of(one.importer, rings), ring_of(one.imported, rings)
        is_open = importer != "core" and one.imported in interface
        if imported not in MAY_IMPORT[importer] and not is_open:
            found.add((one.importer, one.imported))
    return found


def granted(table: dict[str, Any]) -> set[tuple[str, str]]:
    """The breaks that the table lists."""
    return {(who, whom) for who, names in table["ring_breaks"].items() for whom in names}


def test_every_row_names_its_ring() -> None:
    table = read_table()
    assert {layer["ring"] for layer in table["layer"]} == MAY_IMPORT.keys()
    assert ring_rows(table).keys() == rows(table).keys()


def test_imports_stay_within_their_ring() -> None:
    table = read_table()
    found = breaks(all_imports(package_modules()), table)
    new = sorted(f"{who} imports {whom}" for who, whom in found - granted(table))
    assert not new, "imports across rings (see `interface` in layers.toml):\n" + "\n".join(new)
    mended = sorted(f"{who}: {whom}" for who, whom in granted(table) - found)
    assert not mended, "`ring_breaks` of layers.toml lists what is mended:\n" + "\n".join(mended)


def test_no_break_is_of_the_core_or_the_library() -> None:
    table = read_table()
    rings = ring_rows(table)
    assert {ring_of(who, rings) for who, _ in granted(table)} <= {"programs"}


def test_the_interface_names_modules_of_the_core() -> None:
    table = read_table()
    names = {module.name for module in package_modules()}
    assert set(table["interface"]) <= names
    assert {ring_of(name, ring_rows(table)) for name in table["interface"]} == {"core"}


def test_the_checks_see_what_they_look_for() -> None:
    table = {
        "interface": ["open"],
        "layer": [
            {"ring": "core", "modules": ["open", "closed"]},
            {"ring": "library", "modules": ["nn.*"]},
            {"ring": "programs", "modules": ["nn.onnx", "apps.*"]},
            {"ring": "top", "modules": ["aster_ml"]},
        ],
    }

    def broken(importer: str, imported: str) -> bool:
        return bool(breaks([Import(importer, imported, "file:1")], table))

    assert not broken("nn.layers", "open")
    assert broken("nn.layers", "closed")
    assert broken("open", "nn.layers")
    assert broken("open", "apps.run")
    assert broken("nn.layers", "nn.onnx")
    assert not broken("apps.run", "nn.layers")
    assert broken("apps.run", "closed")
    assert not broken("aster_ml", "apps.run")
    assert broken("closed", "aster_ml")
    assert layer_of("apps.run", {"apps.*": 3}) == 3
