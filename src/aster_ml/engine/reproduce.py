"""Failures of the compiler again, from the texts that `fallback` writes.

Receives the path of a text; raises what failed then, as it is, or returns a line that says that
nothing does any more. What a text holds is said in `fallback`.
"""

from __future__ import annotations

from pathlib import Path

from aster_ml.config import Context
from aster_ml.device import Device
from aster_ml.engine.compile import load_alone, write_kernel
from aster_ml.engine.fallback import Failure, read_failure
from aster_ml.engine.planning import plan_body
from aster_ml.engine.search.beam import find_opts


def reproduce(path: str | Path) -> str:
    """Does again what failed: plans a body, or writes a kernel and compiles it where it can run.

    Raises: the error of the failure; FormatError for another text.
    """
    failure = read_failure(Path(path).read_text(encoding="utf-8"))
    with Context(**(failure.settings | {"STRICT": 1, "CACHE": 0})):
        if failure.stage == "plan":
            schedule = plan_body(failure.root)
            return f"planned in {len(schedule.steps)} steps: this does not fail any more"
        return compiled_again(failure)


def compiled_again(failure: Failure) -> str:
    """Writes and, if the Target is that of a device here, compiles the kernel of a failure."""
    device = failure.target.device if failure.target is not None else "CPU"
    backend = Device[device]
    target = failure.target or backend.target
    if failure.stage == "search":
        found = find_opts(failure.root, backend.name, target)
        return f"a search finds {found}: this does not fail any more"
    fields = write_kernel(failure.root, backend, target)
    if target != backend.target:
        return f"{fields['name']} is written for {target.arch}: this does not fail any more"
    load_alone(backend, fields)
    return f"{fields['name']} is compiled: this does not fail any more"
