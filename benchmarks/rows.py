"""All rows, in the order of the table, and the builders of their cases."""

from __future__ import annotations

from benchmarks import (
    calls,
    chain,
    compiling,
    drawn,
    kernels,
    language,
    memory,
    networks,
    onnx_models,
    packed,
    sets,
    small,
    start,
    torch_backend,
)
from benchmarks.row import Builder, Row, Turns, Values

SUBJECTS = (
    start,
    networks,
    compiling,
    memory,
    small,
    calls,
    chain,
    kernels,
    packed,
    onnx_models,
    language,
    torch_backend,
)
ROWS: list[Row] = [row for subject in SUBJECTS for row in subject.rows()]


def all_rows(seed: int = sets.DEFAULT_SEED, quick: bool = False) -> list[Row]:
    """The rows of the table, and behind them the sets of random cases."""
    return [*ROWS, *sets.rows(seed, quick)]


# Cases with something to run, cases that give their values in turns, and those that do at once.
RUNS: dict[str, Builder] = {
    **networks.CASES,
    **small.CASES,
    **kernels.CASES,
    **drawn.CASES,
    **packed.CASES,
    **onnx_models.CASES,
    **torch_backend.CASES,
}
TURNS: dict[str, Turns] = {**language.TURNS}
VALUES: dict[str, Values] = {
    **calls.CASES,
    **chain.CASES,
    **compiling.CASES,
    **memory.CASES,
    **language.CASES,
}
