"""Random functions of PyTorch compiled by Aster, forwards and backwards, against eager PyTorch."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest

from tests.core.torch_checks import compiled, difference, doubled, gradients, inexact
from tests.fuzz.budget import check_all, draws
from tests.programs.fuzz.torch_functions import Maker

torch = pytest.importorskip("torch", reason="what is compiled are functions of PyTorch")
pytestmark = pytest.mark.torch


def check(seed: int) -> str | None:
    """One function: three calls without gradients, three with."""
    function = Maker(seed, torch).function()
    with torch.no_grad():
        wanted = function.run(*function.args)
        slack = 20 * inexact(function.run, function.args, wanted)
    y, grads = gradients(function.run, function.args, seed)
    _, exact = gradients(function.run, doubled(function.args), seed)
    run = compiled(function.run)
    for call in range(3):
        with torch.no_grad():
            wrong = difference(run(*function.args), wanted, 1e-5 + slack)
        if wrong is not None:
            return f"call {call}: {wrong}: {function.text}"
    backwards = compiled(function.run)
    for call in range(3):
        found_y, found = gradients(backwards, function.args, seed)
        wrong = difference(found_y, y, 1e-5 + slack)
        if wrong is None and len(found) != len(grads):
            wrong = f"{len(found)} gradients, wanted {len(grads)}"
        for a, b, true in zip(found, grads, exact):
            own = (
                float(((b - true).abs().max() / b.abs().max().clamp(min=1.0)).item())
                if b.numel()
                else 0.0
            )
            wrong = wrong or difference(a, b, 1e-4 + 20 * own)
        if wrong is not None:
            return f"training call {call}: {wrong}: {function.text}"
    return None


def test_random_functions(record_property: Callable[[str, str], None]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        check_all("torch.compile", draws(8, 2_000), check, record_property)
