"""Random programs realized again and again: the look-up gives the bits of the long way.

A case is a program with other memory each time. The oracle is the same program when no form is
known, so that all hops are gone through.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from aster_ml.engine import recorded
from aster_ml.engine.caches import CACHES
from tests.fuzz.budget import check_all, draws
from tests.fuzz.random_kernels import Drawing

# Realized so often with memory of its own; the third time is the first look-up.
TURNS = 4


def bits(program: object, seed: int) -> tuple[bytes, str]:
    """What the program makes of memory that is drawn from a seed."""
    found = program.on_memory(seed).realize()  # type: ignore[attr-defined]
    values = np.ascontiguousarray(found.numpy())
    return values.tobytes(), f"{values.dtype} {values.shape}"


def differences(seed: int) -> str | None:
    """What is otherwise than by the long way."""
    program = Drawing(seed).program()
    wanted = []
    for turn in range(TURNS):
        CACHES.graphs.clear()
        wanted.append(bits(program, 100 * seed + turn))
    CACHES.graphs.clear()
    for turn in range(TURNS):
        if bits(program, 100 * seed + turn) != wanted[turn]:
            return f"turn {turn} differs: {program.text}"
    return None


def test_looked_up_is_what_the_long_way_computes(
    record_property: Callable[[str, str], None], monkeypatch
) -> None:
    hits = []
    real = recorded.run_recorded

    def count(tensor: object) -> object:
        memory = real(tensor)
        hits.append(memory is not None)
        return memory

    monkeypatch.setattr("aster_ml.tensor.run_recorded", count)
    seeds = draws(25, 2000)
    check_all("programs looked up", seeds, differences, record_property)
    assert sum(hits) >= len(seeds) // 3
