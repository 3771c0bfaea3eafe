"""Documents name what exists: links, settings, devices, commands, folders; tables are whole."""

from __future__ import annotations

import re
from pathlib import Path

from aster_ml.compat.settings import FOREIGN
from aster_ml.config import SETTINGS
from aster_ml.device import ALSO_KNOWN, KINDS, NOT_HERE
from tests.lint.sources import PACKAGE, ROOT

DOCUMENTS = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "lessons" / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]
README = ROOT / "README.md"


def python_blocks(path: Path) -> list[str]:
    """The Python code of a document, block by block; `>>>` sessions are no such blocks."""
    found = re.findall(r"^```python\n(.*?)^```", path.read_text(encoding="utf-8"), re.S | re.M)
    return [block for block in found if ">>>" not in block]


def test_links_lead_somewhere() -> None:
    for path in DOCUMENTS:
        targets = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", path.read_text(encoding="utf-8"))
        dead = [target for target in targets if not (path.parent / target).exists()]
        assert not dead, f"{path.name} links to {dead}"


def test_pages_that_texts_name_are_there() -> None:
    """Comments, messages, tables and documents name pages as `docs/reference/views.md`."""
    folders = [ROOT / name for name in ("src", "tests", "tools", "benchmarks", "lessons")]
    sources = [p for f in folders for kind in ("*.py", "*.toml") for p in f.rglob(kind)]
    for path in [*DOCUMENTS, ROOT / "Makefile", ROOT / ".ci" / "run", *sources]:
        named = set(re.findall(r"(?<![\w/])docs/[\w/-]+\.md", path.read_text(encoding="utf-8")))
        # The specification of GGUF is a page of ggml's.
        gone = {name for name in named if not (ROOT / name).exists()} - {"docs/gguf.md"}
        assert not gone, f"{path.name} names {sorted(gone)}, which are not there"


def test_readme_shows_code_and_both_commands() -> None:
    text = README.read_text(encoding="utf-8")
    assert python_blocks(README)
    first_screen = text[: text.index("```python")]
    assert "make demo" in first_screen
    assert "make test" in first_screen
    assert len(text.split()) <= 900


def test_settings_exist_where_documents_set_them() -> None:
    # In the Makefile and on command lines these are variables of make, benchmarks and generators.
    others = {"BIN", "TESTS", "TEST_EXTRAS", "BENCH_QUICK", "CI", "FUZZ"}
    devices = {*KINDS, *ALSO_KNOWN, *NOT_HERE}
    for path in DOCUMENTS:
        named = set(re.findall(r"\b([A-Z][A-Z_]{2,})=", path.read_text(encoding="utf-8")))
        unknown = named - SETTINGS.keys() - FOREIGN.keys() - devices - others
        assert not unknown, f"{path.name} sets {sorted(unknown)}, which are no settings"


def test_makefile_targets_of_documents_exist() -> None:
    targets = set(
        re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M)
    )
    for path in DOCUMENTS:
        text = path.read_text(encoding="utf-8")
        named = set(re.findall(r"(?:^|`)make (?:[A-Z_]+=\S+ )*([a-z][a-z-]*)\b", text, re.M))
        assert named <= targets, f"{path.name} calls {sorted(named - targets)}"


def test_the_layout_is_that_of_the_tree() -> None:
    """CONTRIBUTING.md names each folder and module of the package, and each folder of a clone."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    layout = text[text.index("## Layout") : text.index("## How to see")].splitlines()
    inside = [line[2:38].strip() for line in layout if line.startswith("  ")]
    named = [name.rstrip("/") for line in inside for name in line.split(", ")]
    there = [
        path.stem if path.suffix == ".py" else path.name
        for path in PACKAGE.iterdir()
        if path.name not in ("__pycache__", "__init__.py", "py.typed")
    ]
    assert sorted(named) == sorted(there)
    outside = {line.split()[0].rstrip("/") for line in layout if re.match(r"\w+/ ", line)}
    assert outside == {"lessons", "docs", "tests", "tools", "benchmarks"}
    assert all((ROOT / name).is_dir() for name in outside)


def test_modules_that_documents_name_exist() -> None:
    folders = {p.name for p in PACKAGE.iterdir() if p.is_dir()}
    for path in (*DOCUMENTS, *PACKAGE.rglob("*.py")):
        named = set(re.findall(r"`([a-z_]+/[\w/.]+)`", path.read_text(encoding="utf-8")))
        inside = [PACKAGE / name for name in named if name.partition("/")[0] in folders]
        gone = [p for p in inside if not p.exists() and not p.with_name(f"{p.name}.py").exists()]
        assert not gone, f"{path.name} names {sorted(gone)}, which src/aster_ml has not"


def test_tables_are_whole() -> None:
    for path in DOCUMENTS:
        check_tables(path)


def check_tables(path: Path) -> None:
    """A table has a head, rows of as many cells, and no row under the same heading twice."""
    text = re.sub(r"^```.*?^```", "", path.read_text(encoding="utf-8"), flags=re.S | re.M)
    for block in re.findall(r"(?:^\|.*\n)+", text, re.M):
        rows = [re.split(r"(?<!\\)\|", re.sub(r"`[^`]*`", "", r))[1:-1] for r in block.splitlines()]
        assert len(rows) > 2, f"{path.name}: no table: {block[:80]}"
        assert all(set(cell.strip()) <= set(":-") for cell in rows[1]), block[:80]
        assert {len(row) for row in rows} == {len(rows[0])}, f"{path.name}: {block[:80]}"
        first = [row[0].strip() for row in rows[2:]]
        spelled = [line.split("|")[1].strip() for line in block.splitlines()[2:]]
        if len(rows[0]) == 2 and all(first):
            assert len(set(spelled)) == len(spelled), f"{path.name}: a row stands twice: {spelled}"
