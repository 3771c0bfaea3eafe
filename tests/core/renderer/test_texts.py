"""Files of functions in the languages of kernels: how they are read, and that they count as code."""

from __future__ import annotations

from pathlib import Path

import pytest

import aster_ml
from aster_ml.engine.sources import code_files
from aster_ml.renderer import texts
from aster_ml.renderer.cuda.renderer import FUNCTIONS as CUDA
from aster_ml.renderer.metal.renderer import FUNCTIONS as METAL
from aster_ml.renderer.texts import Texts, instances, read_texts
from aster_ml.renderer.wgsl.renderer import HELPERS as WGSL

PACKAGE = Path(aster_ml.__file__).parent
FILE = """\
//! About the file.

//: one
//! About one.
FN one() {
  // Kept.
}

//: NAME_two needs one NAME; NAME = a | b
//: last needs one; NAME = c d
NAME
"""


def test_sections_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file.cuh").write_text(FILE)
    monkeypatch.setattr(texts.importlib.resources, "files", lambda name: tmp_path)
    assert read_texts("file.cuh", words="FN = static") == Texts(
        {"one": "static one() {\n  // Kept.\n}", "a_two": "a", "b_two": "b", "last": "c d"},
        {"one": (), "a_two": ("one", "a"), "b_two": ("one", "b"), "last": ("one",)},
    )


def test_words_stand_for_all_choices_in_turn() -> None:
    assert instances("A B", "A = B, B = x | y") == ["x x", "y y"]
    assert instances("A B", "") == ["A B"]


@pytest.mark.parametrize("found", [CUDA, METAL, WGSL], ids=["CUDA", "Metal", "WGSL"])
def test_what_is_needed_is_there_and_no_head_is_left(found: Texts) -> None:
    assert found.texts.keys() == found.needs.keys()
    for name, text in found.texts.items():
        assert set(found.needs[name]) <= found.texts.keys(), name
        assert text, name
        assert not {"//:", "//!", "NAME", "SPACE", "KIND"} & set(text.split()), name


def test_files_of_languages_count_as_code() -> None:
    files = [p for p in (PACKAGE / "renderer").rglob("*.*") if p.parent.name != "__pycache__"]
    assert len({p.suffix for p in files}) > 4
    assert {str(p) for p in files} <= set(code_files(str(PACKAGE)))
