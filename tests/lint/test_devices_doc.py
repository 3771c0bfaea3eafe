"""docs/reference/devices.md says what the runtimes have."""

from __future__ import annotations

from aster_ml.device import KINDS, STORAGE_KINDS
from tools.make_devices_doc import PAGE, RAN, page


def test_the_page_is_up_to_date() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert page() == text, "run: python -m tools.make_devices_doc"
    assert set(RAN) == set(KINDS) - STORAGE_KINDS
