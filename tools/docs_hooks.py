"""Hooks of the documents' site: links that leave the folder of documents become names of files.

The documents link to lessons, sources and CONTRIBUTING.md beside them, which a reader of the
repository follows; the site has only the documents.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

LINK = re.compile(r"\[([^\]]+)\]\((?!\w+:|#)([^)#]+)(#[^)]*)?\)")


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """The text of a page with links to what the site has not written as text."""
    docs = Path(config["docs_dir"]).resolve()
    here = Path(page.file.abs_src_path).resolve().parent

    def mend(found: re.Match[str]) -> str:
        target = (here / found[2]).resolve()
        if target.is_relative_to(docs) and target.is_file():
            return found[0]
        inside = target.relative_to(docs.parent) if target.is_relative_to(docs.parent) else target
        return f"{found[1]} (`{inside.as_posix()}`)"

    return LINK.sub(mend, markdown)
