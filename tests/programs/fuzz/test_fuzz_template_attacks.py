"""Chat templates that ask for too much are refused, or write a text within the limits.

Small values go through each filter and test, each operator and method, big ones and shared ones
too. Whatever is asked, the process has its limits of time and memory left over.
"""

from __future__ import annotations

import pathlib
import random
import sys
from typing import Any

import pytest

pytest.importorskip("jinja2")

from aster_ml.apps.llm.confined import MEMORY_BYTES
from aster_ml.apps.llm.template import SANDBOX, ChatTemplate
from aster_ml.errors import AsterError
from tests.fuzz.budget import check_all, draws
from tests.programs.llm.template_attacks import attacks

HELLO = [{"role": "user", "content": "Hi"}]
MOST_TEXT = 4 << 20


def peak_bytes(number: int) -> int:
    """The most memory that a process had."""
    status = pathlib.Path(f"/proc/{number}/status").read_text(encoding="utf-8")
    lines = dict(line.split(":", 1) for line in status.splitlines())
    return int(lines["VmHWM"].split()[0]) * 1024


@pytest.mark.skipif(sys.platform != "linux", reason="memory of a process as Linux tells it")
def test_no_template_passes_the_limits(record_property: Any) -> None:
    every = list(attacks())
    assert len(every) > 1000
    random.Random(0).shuffle(every)
    seeds = draws(165, len(every))

    def check(seed: int) -> str | None:
        name, source = every[seed % len(every)]
        try:
            size = len(ChatTemplate(source).render(HELLO))
        except AsterError as error:
            size = 0
            if "process" in str(error) or "MiB of memory" in str(error):
                return f"{name} was not seen to be too much before the process was: {error}"
        if SANDBOX.process is None or SANDBOX.process.poll() is not None:
            return f"{name} ended the process"
        peak = peak_bytes(SANDBOX.process.pid)
        fine = size <= MOST_TEXT and peak <= MEMORY_BYTES
        return None if fine else f"{name}: a text of {size}, {peak} bytes of memory"

    check_all("templates that ask for too much", seeds, check, record_property)
