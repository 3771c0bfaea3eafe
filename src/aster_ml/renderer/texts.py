"""Reads the functions that stand before kernels from files of their language.

A section of such a file ends at an empty line. It begins with heads, each with the name of a text,
the names of those that the text needs, and what words in all of these stand for, one text for each:

    //: NAME_fma needs NAME; NAME = aster_half | aster_bfloat

A line that begins with `//!` is for readers of the file.
"""

from __future__ import annotations

import importlib.resources
from typing import NamedTuple

HEAD, NOTE = "//: ", "//!"


class Texts(NamedTuple):
    """Texts by name, and the names of those that each needs."""

    texts: dict[str, str]
    needs: dict[str, tuple[str, ...]]


def read_texts(*paths: str, words: str = "") -> Texts:
    """The texts of files below this folder, with what these words stand for in all of them."""
    found = Texts({}, {})
    folder = importlib.resources.files("aster_ml.renderer")
    for path in paths:
        for section in folder.joinpath(path).read_text("utf-8").split("\n\n"):
            lines = [line for line in section.splitlines() if not line.startswith(NOTE)]
            heads = [line.removeprefix(HEAD) for line in lines if line.startswith(HEAD)]
            [text] = instances("\n".join(lines[len(heads) :]), words)
            for head in heads:
                names, _, own_words = head.partition("; ")
                for instance in instances(f"{names}\n{text}", own_words):
                    names, _, body = instance.partition("\n")
                    name, *needed = names.replace(" needs ", " ").split()
                    found.texts[name], found.needs[name] = body, tuple(needed)
    return found


def instances(text: str, words: str) -> list[str]:
    """A text with each choice of what its words stand for: `WORD = text | text, WORD = text`."""
    found = [text]
    for pair in filter(None, words.split(", ")):
        word, _, values = pair.partition(" = ")
        found = [t.replace(word, value) for t in found for value in values.split(" | ")]
    return found
