"""Whole programs give what PyTorch gives, each on three of the ways through the compiler.

Shapes have sizes of 0, 1, primes, powers of two and beyond the caches; dtypes are mixed.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from typing import Any

import pytest

from aster_ml import Context, Tensor
from tests.fuzz.budget import check_all, draws

pytest.importorskip("torch", reason="PyTorch is the oracle")

from tests.fuzz.programs import draw_program

# Settings by how often they are drawn; what compiles slowly seldom.
CONFIGS: list[dict[str, Any]] = [
    {},
    {},
    {"THREADS": 1},
    {"THREADS": 3},
    {"ISA": "avx2"},
    {"ISA": "avx2", "THREADS": 3},
    {"NOOPT": 1},
    {"FUSE": 0},
    {"DETERMINISTIC": 1},
    {"DEPTH_FIRST": 2},
    {"SPEC": 1},
    {"SPEC": 2, "CACHE": 0},
    {"DEVICE": "PYTHON"},
]
if shutil.which("cc"):
    CONFIGS.append({"CLANG": 1})


def wrong_under(seed: int, config: dict[str, Any]) -> str | None:
    """What is wrong with a program under some settings; None if nothing is."""
    settings = {k: v for k, v in config.items() if k != "DEVICE"}
    device = config.get("DEVICE")
    with Context(**settings):
        p, results = draw_program(seed, device)
        if device == "PYTHON" and sum([v.want.numel() for v in p.values]) > 3000:
            return None
        try:
            if seed % 3 and results:
                Tensor.realize(*[p.values[i].tensor for i in results])
            for i in results:
                said = p.values[i].wrong(in_order=bool(config.get("NOOPT")))
                if said is not None:
                    return f"v{i} {said} under {config} in\n  " + "\n  ".join(p.text)
        except Exception as error:
            text = "\n  ".join(p.text)
            raise AssertionError(
                f"{type(error).__name__}: {str(error)[:200]} under {config}, results {results} of\n"
                f"  {text}"
            ) from error
    return None


def check(seed: int) -> str | None:
    """A program under three of the configurations."""
    configs = random.Random(seed + 1).sample(CONFIGS, 3)
    return next((said for c in configs if (said := wrong_under(seed, c)) is not None), None)


def test_programs(record_property: Callable[[str, str], None]) -> None:
    check_all(
        "whole programs, each on three configurations", draws(6, 5000), check, record_property
    )
