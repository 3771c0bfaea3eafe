"""Every module of the package is named in docs/reference, and what is generated there is true."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tools import make_reference
from tools.make_reference import FOLDER, PACKAGE, filled, modules_of, pages, parts_of, unnamed

TUNING = FOLDER.parent / "explanation" / "tuning"
RUN = "run: python -m tools.make_reference (with PYTHONPATH=src:.)"


def test_every_module_is_named() -> None:
    assert not unnamed(), f"name them in a page of docs/reference, or {RUN}"


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.name)
def test_generated_parts_are_up_to_date(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert filled(text) == text, RUN


def test_what_the_glossary_names_is_there() -> None:
    text = (FOLDER / "glossary.md").read_text(encoding="utf-8")
    rows = [line.split(" | ") for line in text.splitlines() if line.startswith("| ")][1:]
    assert len(rows) > 50
    words = [row[0].removeprefix("| ") for row in rows]
    assert words == sorted(words, key=str.lower), "the glossary is in alphabetical order"
    for word, _, where in rows:
        homes = re.findall(r"`([\w/]+)`", where)
        assert homes, f"{word} has no home"
        missing = [home for home in homes if not (PACKAGE / f"{home}.py").exists()]
        assert not missing, f"{word}: {missing} is no module"


def test_a_module_that_no_page_names_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "page.md").write_text("only `codegen/kernel.py`", encoding="utf-8")
    monkeypatch.setattr(make_reference, "FOLDER", tmp_path)
    assert "codegen/opts" in unnamed()
    assert "codegen/kernel" not in unnamed()


def test_a_page_cannot_name_what_is_no_module() -> None:
    with pytest.raises(FileNotFoundError, match="no module"):
        modules_of("codegen/nothing")


def test_a_module_shows_its_sentence_and_its_rewrite() -> None:
    parts = list(parts_of("schedule/rewrites/copies"))
    assert [kind for kind, _ in parts] == ["", "rewrite", "when", "why"]
    assert parts[1][1].startswith("COPY(f(x)) -> f(COPY(x))")


def test_findings_that_comments_name_are_there() -> None:
    named = {
        name
        for path in PACKAGE.rglob("*.py")
        for name in re.findall(r"docs/explanation/tuning/([\w.-]+\.md)", path.read_text("utf-8"))
    }
    there = {path.name for path in TUNING.glob("*.md")}
    assert len(named) > 5
    assert named <= there


def test_every_finding_is_listed() -> None:
    listed = set(re.findall(r"\]\(([\w-]+\.md)\)", (TUNING / "README.md").read_text("utf-8")))
    assert listed == {path.name for path in TUNING.glob("*.md")} - {"README.md"}
