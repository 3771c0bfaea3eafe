"""docs/how-to/interop.md is what the table of lines and the kept figures make it."""

from __future__ import annotations

from tools.make_interop_doc import PAGE, page


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run: python -m tools.make_interop_doc"
