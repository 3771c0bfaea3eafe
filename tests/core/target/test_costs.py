"""Rows of costs: which a processor has, and where each says that its figures come from."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from aster_ml.target import Target, costs
from aster_ml.target.costs import A100, H100, ROWS, ZEN4, costs_of


@pytest.mark.parametrize("name", ROWS)
def test_a_processor_has_its_row(name: str) -> None:
    target = Target("CPU", "llvm", arch=f"{name}-llvm22.1.0-0123456789ab", vector_bits=256)
    assert target.costs is ROWS[name]


@pytest.mark.parametrize("arch", ["generic", "x86_64-any", "aarch64-apple-m1", "x86_64-znver5"])
def test_others_have_the_row_that_was_measured(arch: str) -> None:
    assert costs_of(arch) is ZEN4


def test_each_row_of_a_document_names_it() -> None:
    text = Path(costs.__file__).read_text(encoding="utf-8")
    made = re.findall(r"((?:^#.*\n)*)^(\w+) = (?:Costs|Card)\(", text, re.M)
    rows = {name: comment for comment, name in made}
    assert len(rows) >= 6
    assert [name for name, comment in rows.items() if "Source:" not in comment] == ["ZEN4"]


def test_prices_of_cards_follow_from_their_documents() -> None:
    # 19.5 TFLOPS of float32 against 312 of 16 bits (A100), of which an H100 has twice a clock.
    assert A100.on_cores / A100.multiplications == pytest.approx(312 / 19.5)
    assert H100.on_cores == 2 * A100.on_cores
    # A processor reads 32 words of local memory while it multiplies 64 numbers.
    assert A100.multiplications / (A100.local_nbytes // 4) == 2
