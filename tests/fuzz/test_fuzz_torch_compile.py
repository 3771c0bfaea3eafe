"""Random functions of PyTorch compiled by Aster, forwards and backwards, against eager PyTorch."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest

from aster_ml.torch_backend.compiler import compile_graph, decompositions
from tests.fuzz.budget import check_all, draws
from tests.fuzz.torch_functions import Maker

torch = pytest.importorskip("torch", reason="what is compiled are functions of PyTorch")
pytestmark = pytest.mark.torch


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """What torch.compile makes of a function, without Dynamo: one graph forwards, one back."""
    from functorch.compile import aot_function
    from torch._functorch.partitioners import min_cut_rematerialization_partition

    made: Callable[..., Any] = aot_function(
        function,
        fw_compiler=compile_graph,
        bw_compiler=compile_graph,
        partition_fn=min_cut_rematerialization_partition,
        decompositions=decompositions(),
    )
    return made


def difference(found: Any, wanted: Any, most: float) -> str | None:
    """What is wrong with a result; None if nothing is."""
    if found.shape != wanted.shape or found.dtype != wanted.dtype:
        return f"{found.dtype} {tuple(found.shape)}, wanted {wanted.dtype} {tuple(wanted.shape)}"
    if not wanted.numel() or not wanted.is_floating_point():
        return None if torch.equal(found, wanted) else "numbers differ"
    if not torch.equal(found.isfinite(), wanted.isfinite()):
        return "inf or nan in other places"
    finite = wanted.isfinite()
    away = (found - wanted)[finite].abs()
    scale = wanted[finite].abs().max().clamp(min=1.0) if finite.any() else 1.0
    worst = float(away.max() / scale) if finite.any() else 0.0
    return f"differs by {worst:.1e} of the greatest" if worst > most else None


def doubled(args: list[Any]) -> list[Any]:
    """Floats as float64."""
    return [a.double() if a.is_floating_point() else a for a in args]


def inexact(run: Callable[..., Any], args: list[Any], wanted: Any) -> float:
    """How far eager PyTorch itself is from float64: what a comparison cannot ask less of."""
    exact = run(*doubled(args))
    if not wanted.numel() or not wanted.is_floating_point() or exact.shape != wanted.shape:
        return 0.0
    away = (exact.double() - wanted.double()).abs()
    scale = wanted.abs().max().clamp(min=1.0)
    return float((away.nan_to_num(0, 0, 0).max() / scale).item())


def gradients(run: Callable[..., Any], args: list[Any], seed: int) -> tuple[Any, list[Any]]:
    """The result of a function, and the gradients of a weighted sum of it."""
    given = [a.detach().requires_grad_(a.is_floating_point()) for a in args]
    y = run(*given)
    if not y.requires_grad:
        return y, []
    weights = torch.randn(
        y.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    )
    wanted = [a for a in given if a.requires_grad]
    found = torch.autograd.grad(y, wanted, weights.to(y.dtype), allow_unused=True)
    return y.detach(), [g for g in found if g is not None]


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
        check_all("torch.compile", draws(12, 2_000), check, record_property)
