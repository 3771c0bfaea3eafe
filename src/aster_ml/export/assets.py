"""Reads texts in other languages that stand in folders beside this module."""

from __future__ import annotations

import importlib.resources


def asset(path: str, **words: str) -> str:
    """A text below this folder, with words in the places of `{{WORD}}`."""
    text = importlib.resources.files("aster_ml.export").joinpath(path).read_text("utf-8")
    for key, word in words.items():
        text = text.replace(f"{{{{{key}}}}}", word)
    return text
