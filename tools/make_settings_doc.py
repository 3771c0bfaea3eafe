"""Writes docs/reference/settings.md from the declarations in `aster_ml.config`.

`python tools/make_settings_doc.py` writes the page; `--check` writes nothing and fails, with the
command that would help, when the committed page differs from the declarations.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path

from aster_ml.config import SETTINGS, Setting

PAGE = Path(__file__).resolve().parents[1] / "docs" / "reference" / "settings.md"

HEAD = """\
<!-- Generated from src/aster_ml/config.py by `make docs`; edit the declarations there. -->

# Settings

Each setting is read from the environment variable of its name when Aster is imported, and
`Context` changes any of them for a while:

```python
from aster_ml import Context, Tensor

with Context(DEBUG=2, NOOPT=1):
    (Tensor.ones(4, 4) @ Tensor.ones(4, 4)).realize()
```

A setting that affects a cached stage is part of that cache's key, so a changed setting never meets
a result that was made under another value.

| name | default | what it does | is in the cache key of |
|---|---|---|---|
"""


def table_row(setting: Setting) -> str:
    """One setting as a line of the table."""
    default = f"`{setting.default}`" if setting.default != "" else "empty"
    affects = ", ".join(setting.affects) or "nothing"
    text = " ".join(setting.doc.split()).replace("|", "\\|")
    return f"| `{setting.name}` | {default} | {text} | {affects} |\n"


def settings_page(settings: Iterable[Setting]) -> str:
    """The whole page, in the order of the names."""
    return HEAD + "".join(table_row(item) for item in sorted(settings, key=lambda s: s.name))


def main() -> int:
    """Writes or checks the page; 1 when the check finds a difference."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing, fail on a difference")
    wanted = settings_page(SETTINGS.values())
    if not parser.parse_args().check:
        PAGE.parent.mkdir(exist_ok=True)
        PAGE.write_text(wanted, encoding="utf-8", newline="\n")
        print(f"{len(SETTINGS)} settings in {PAGE.name}")
    elif not PAGE.exists() or PAGE.read_text(encoding="utf-8") != wanted:
        print("docs/reference/settings.md is out of date; run: make docs", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
