"""Functions of PyTorch compiled by Aster without Dynamo, and how results are compared."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from aster_ml.torch_backend.compiler import compile_graph, decompositions

torch = pytest.importorskip("torch", reason="what is compiled are functions of PyTorch")


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
