"""The page for users of tinygrad lists what the package declares."""

from __future__ import annotations

from aster_ml.compat.names import NOT_HERE
from aster_ml.compat.settings import MEANS, WITHOUT_EFFECT
from tools.make_compat_doc import PAGE, page_of, tables


def test_committed_page_is_up_to_date() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert text == page_of(text), "run: make docs"


def test_every_declaration_is_on_the_page() -> None:
    text = PAGE.read_text(encoding="utf-8")
    missing = [n for n in (*MEANS, *WITHOUT_EFFECT, *NOT_HERE) if f"`{n}`" not in text]
    assert not missing
    assert all(f"<!-- generated: {name} -->" in text for name in tables())
