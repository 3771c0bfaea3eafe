"""The code of documents runs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.lint.sources import ROOT
from tests.lint.test_documents import DOCUMENTS, python_blocks

RUN_BLOCKS = """
import json, linecache, sys
sys.path.insert(0, "src")
names = {"__name__": "__main__"}
for name, block in json.loads(sys.argv[1]):
    linecache.cache[name] = len(block), None, block.splitlines(True), name
    exec(compile(block, name, "exec"), names)
"""


@pytest.mark.parametrize("path", list(filter(python_blocks, DOCUMENTS)), ids=lambda path: path.name)
def test_code_runs(path: Path) -> None:
    """One after the other, as a reader runs them, in a process of their own."""
    blocks = python_blocks(path)
    names = [f"{path.name}, block {i}" for i in range(1, len(blocks) + 1)]
    command = [sys.executable, "-c", RUN_BLOCKS, json.dumps([*zip(names, blocks, strict=True)])]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, f"{path.name}:\n{done.stderr}"
