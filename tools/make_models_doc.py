"""Fills the generated tables of docs/how-to/models.md: architectures, types, pre-tokenizers.

`python -m tools.make_models_doc` writes the page; `--check` writes nothing and fails where the
committed page differs. What stands around the tables is written by hand.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from aster_ml.apps.llm.architectures import ARCHITECTURES
from aster_ml.apps.llm.pretokenizers import PATTERNS, SAME
from aster_ml.formats.ggml.blocks import NAMED
from aster_ml.formats.ggml.quantise import ENCODERS
from aster_ml.formats.interleaved import INTERLEAVED

PAGE = Path(__file__).resolve().parents[1] / "docs" / "how-to" / "models.md"
BLOCK = re.compile(r"<!-- table: (\w+) -->\n.*?<!-- end -->", re.S)


def architectures() -> list[str]:
    """A row for each architecture."""
    lines = ["| `general.architecture` | models |", "|---|---|"]
    return lines + [f"| `{row.name}` | {row.models} |" for row in ARCHITECTURES.values()]


def types() -> list[str]:
    """A row for each type of tensors."""
    lines = ["| type | elements a block | bytes a block | bits a weight | written | products |"]
    lines.append("|---|--:|--:|--:|---|---|")
    for row in NAMED.values():
        written = row.elements == 1 or row.name in ENCODERS
        bits = f"{8 * row.nbytes / row.elements:.2f}".rstrip("0").rstrip(".")
        products = "of integers" if row.name in INTERLEAVED else "of floats"
        line = (
            f"| {row.name} | {row.elements} | {row.nbytes} | {bits} | {'yes' if written else ''} "
            f"| {products} |"
        )
        lines.append(line)
    return lines


def tokenizers() -> list[str]:
    """A row for each pre-tokenizer, with the names that mean the same."""
    lines = ["| `tokenizer.ggml.pre` | others that cut alike |", "|---|---|"]
    for name in PATTERNS:
        same = ", ".join([f"`{other}`" for other, plain in SAME.items() if plain == name])
        lines.append(f"| `{name}` | {same} |")
    return lines


TABLES = {"architectures": architectures, "types": types, "tokenizers": tokenizers}


def filled(text: str) -> str:
    """The page with its tables as they should be."""

    def table(match: re.Match[str]) -> str:
        lines = "\n".join(TABLES[match[1]]())
        return f"<!-- table: {match[1]} -->\n{lines}\n<!-- end -->"

    return BLOCK.sub(table, text)


def main() -> int:
    """Writes or checks the page; 1 when the check finds a difference."""
    text = PAGE.read_text(encoding="utf-8")
    if "--check" in sys.argv[1:]:
        if filled(text) != text:
            print("docs/how-to/models.md differs; run: make docs", file=sys.stderr)
            return 1
        return 0
    PAGE.write_text(filled(text), encoding="utf-8", newline="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
