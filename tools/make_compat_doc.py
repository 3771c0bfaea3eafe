"""Writes the tables of docs/how-to/coming-from-tinygrad.md from what `aster_ml.compat` declares.

`python tools/make_compat_doc.py` writes the page; `--check` writes nothing and fails, with the
command that would help, when the committed page differs.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable
from pathlib import Path

from aster_ml.compat.names import NOT_HERE
from aster_ml.compat.settings import MEANS, WITHOUT_EFFECT

PAGE = Path(__file__).resolve().parents[1] / "docs" / "how-to" / "coming-from-tinygrad.md"


def table(heads: tuple[str, str], rows: Iterable[tuple[str, str]]) -> str:
    """A table of two columns."""
    lines = [f"| {heads[0]} | {heads[1]} |", "|---|---|"]
    return "\n".join([*lines, *[f"| `{name}` | {text} |" for name, text in rows]])


def tables() -> dict[str, str]:
    """Each generated part by its name."""
    reasons: dict[str, list[str]] = {}
    for name, (_, reason) in WITHOUT_EFFECT.items():
        reasons.setdefault(reason, []).append(name)
    return {
        "not here": table(("module or name", "why"), sorted(NOT_HERE.items())),
        "means": table(
            ("setting", "here"), [(name, f"`{text}`") for name, (_, _, text) in MEANS.items()]
        ),
        "without effect": table(
            ("settings", "why"),
            [("`, `".join(sorted(names)), reason) for reason, names in sorted(reasons.items())],
        ),
    }


def page_of(text: str) -> str:
    """The page with its generated parts written anew."""
    for name, content in tables().items():
        text = re.sub(
            rf"(<!-- generated: {name} -->\n).*?(<!-- end -->)",
            lambda found, content=content: f"{found[1]}{content}\n{found[2]}",
            text,
            flags=re.DOTALL,
        )
    return text


def main() -> int:
    """Writes or checks the page; 1 when the check finds a difference."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing, fail on a difference")
    text = PAGE.read_text(encoding="utf-8")
    wanted = page_of(text)
    if not parser.parse_args().check:
        PAGE.write_text(wanted, encoding="utf-8", newline="\n")
    elif text != wanted:
        print(f"{PAGE.name} differs; run: make docs", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
