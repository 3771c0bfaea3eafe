"""docs/how-to/models.md says what the tables of the sources say."""

from __future__ import annotations

from tools.make_models_doc import PAGE, TABLES, filled


def test_the_tables_are_up_to_date() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert filled(text) == text, "run: python -m tools.make_models_doc"
    assert all(f"<!-- table: {name} -->" in text for name in TABLES)
