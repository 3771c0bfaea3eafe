"""All rows, in the order of the table, and the builders of their cases."""

from __future__ import annotations

from benchmarks import calls, chain, kernels, networks, small, start
from benchmarks.row import Builder, Row, Values

ROWS: list[Row] = [
    row for subject in (start, networks, small, calls, chain, kernels) for row in subject.rows()
]
# Cases with something to run, and cases that give their values at once.
RUNS: dict[str, Builder] = {**networks.CASES, **small.CASES, **kernels.CASES}
VALUES: dict[str, Values] = {**calls.CASES, **chain.CASES}
