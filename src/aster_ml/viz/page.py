"""Writes the page: data, scripts and styles as one HTML file that needs nothing else.

Receives the data of a run; returns HTML, and reads the data of such a file again. Data and the
layout library are compressed, in base64: nothing that a program has named can end the element that
it stands in. What the page shows is made of texts alone (no markup is ever built of data), and a
policy in its head refuses every connection.
"""

from __future__ import annotations

import base64
import gzip
import html
import importlib.resources
import json
import re
from pathlib import Path
from typing import Any

from aster_ml.errors import FormatError

ASSETS = importlib.resources.files("aster_ml.viz") / "assets"
SCRIPTS = (
    "data.js", "text.js", "links.js", "dom.js", "columns.js", "steps.js", "graph.js", "layout.js",
    "why.js", "access.js", "timeline.js", "memory.js", "compare.js", "main.js",
)  # fmt: skip
POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; worker-src blob:; "
    "style-src 'unsafe-inline'; img-src data: blob:; connect-src {connect}"
)
HOLDER = re.compile(r'<script type="application/gzip" id="run-data">([A-Za-z0-9+/=\s]*)</script>')
# Fast: a tenth of the time of the best, for a tenth more bytes.
LEVEL = 6


def packed(text: str) -> str:
    """Text compressed, in base64."""
    return base64.b64encode(gzip.compress(text.encode(), LEVEL, mtime=0)).decode()


def asset(name: str) -> str:
    """The text of a file of the package."""
    return (ASSETS / name).read_text(encoding="utf-8")


def holder(name: str, text: str) -> str:
    """An element that holds compressed text."""
    return f'<script type="application/gzip" id="{name}">{packed(text)}</script>'


def title_of(data: dict[str, Any]) -> str:
    """Title of the window."""
    return f"Aster: {Path(data['made']['script']).name or 'a run'}"


def page_of(data: dict[str, Any], other: dict[str, Any] | None = None, live: bool = False) -> str:
    """The page of a run, or of a run beside an `other` one; a `live` one asks for newer data."""
    scripts = "\n".join([asset(name) for name in SCRIPTS])
    policy = POLICY.format(connect="'self'" if live else "'none'")
    parts = [
        "<!doctype html>",
        '<html lang="en">',
        "<head>",
        '<meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{html.escape(title_of(data))}</title>",
        '<link rel="icon" href="data:,">',
        f"<style>\n{asset('page.css')}</style>",
        "</head>",
        f'<body data-live="{int(live)}">',
        asset("page.html"),
        holder("run-data", json.dumps(data, separators=(",", ":"))),
    ]
    if other is not None:
        parts.append(holder("other-data", json.dumps(other, separators=(",", ":"))))
    parts += [
        holder("elk", asset("elk-worker.min.js")),
        f"<script>\n{scripts}\n</script>",
        "</body>",
        "</html>",
        "",
    ]
    return "\n".join(parts)


def data_of(text: str) -> dict[str, Any]:
    """The data of a page, or of a file of data alone.

    Raises: FormatError where it is neither, or of another version.
    """
    found = HOLDER.search(text)
    try:
        if found is not None:
            text = gzip.decompress(base64.b64decode(found[1])).decode()
        data = json.loads(text)
    except (ValueError, OSError, EOFError) as error:
        raise FormatError(f"this is no recorded run: {error}") from None
    if not isinstance(data, dict) or data.get("format") != "aster-viz":
        raise FormatError("this is no recorded run: it has no data of the visualiser")
    if data.get("version") != 1:
        raise FormatError(
            f"the run was recorded in version {data.get('version')!r} of the format, 1 is wanted: "
            "record it again"
        )
    return data
