"""How many cases a generator draws, where its seeds begin, and the line that tells what was run.

`make test` draws a few of each generator, `make fuzz` (FUZZ=large) draws many. A case is made from
one whole number, its seed, so `FUZZ_SEED=n FUZZ=1` draws the very case again that a failure names.
"""

from __future__ import annotations

import os
from collections.abc import Callable


def draws(small: int, large: int) -> range:
    """The seeds of a generator's cases: `small` of them, `large` with FUZZ=large, n with FUZZ=n.

    They begin at FUZZ_SEED, or at 0.
    """
    budget = os.environ.get("FUZZ", "small")
    count = {"small": small, "": small, "large": large}.get(budget)
    if count is None:
        if not budget.isdigit():
            raise ValueError(f"FUZZ={budget!r}: wanted small, large, or a number of cases")
        count = int(budget)
    start = int(os.environ.get("FUZZ_SEED", "0"))
    return range(start, start + count)


def check_all(
    name: str, seeds: range, check: Callable[[int], str | None], record: Callable[[str, str], None]
) -> None:
    """Runs `check` on each seed, records the count, and fails with what was wrong of any.

    `check` returns None where the case is right and a line that says what is wrong otherwise; an
    exception counts as a crash. `record` is pytest's `record_property`: what is recorded is printed
    at the end of the run.
    """
    wrong: list[str] = []
    for seed in seeds:
        try:
            said = check(seed)
        except Exception as error:
            said = f"{type(error).__name__}: {str(error)[:300]}"
        if said is not None:
            wrong.append(f"FUZZ=1 FUZZ_SEED={seed}: {said}")
    record("fuzz", f"{name}: {len(seeds)} cases, {len(wrong)} wrong")
    shown = "\n".join(wrong[:20])
    assert not wrong, f"{name}: {len(wrong)} of {len(seeds)} wrong\n{shown}"
