"""docs/reference/settings.md says what the declarations say, and every setting says something."""

from __future__ import annotations

from pathlib import Path

import pytest

from aster_ml.config import SETTINGS, Setting
from tests.lint.sources import ROOT
from tools import make_settings_doc
from tools.make_settings_doc import settings_page, table_row

STAGES = {"schedule", "codegen"}


def test_committed_page_is_up_to_date() -> None:
    page = (ROOT / "docs" / "reference" / "settings.md").read_text(encoding="utf-8")
    assert page == settings_page(SETTINGS.values()), "run: make docs"


def test_every_setting_has_words_and_known_stages() -> None:
    silent = [name for name, setting in SETTINGS.items() if len(setting.doc.split()) < 3]
    assert not silent
    strange = {name: s.affects for name, s in SETTINGS.items() if not set(s.affects) <= STAGES}
    assert not strange


def test_the_page_follows_a_declaration() -> None:
    setting = Setting("ASTER_LINT_EXAMPLE", 3, "Does a | thing.", ("no_stage",))
    try:
        row = table_row(setting)
        assert row == "| `ASTER_LINT_EXAMPLE` | `3` | Does a \\| thing. | no_stage |\n"
        assert row in settings_page(SETTINGS.values())
    finally:
        del SETTINGS["ASTER_LINT_EXAMPLE"]


def test_check_finds_a_difference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(make_settings_doc, "PAGE", tmp_path / "settings.md")
    monkeypatch.setattr("sys.argv", ["make_settings_doc.py"])
    assert make_settings_doc.main() == 0
    monkeypatch.setattr("sys.argv", ["make_settings_doc.py", "--check"])
    assert make_settings_doc.main() == 0
    (tmp_path / "settings.md").write_text("older\n")
    assert make_settings_doc.main() == 1
    assert "make docs" in capsys.readouterr().err
