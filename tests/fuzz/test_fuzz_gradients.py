"""Gradients of whole programs are those of PyTorch, jitted or not, realized together or apart."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from aster_ml import Context, Tensor, dtypes
from tests.fuzz.budget import check_all, draws

torch = pytest.importorskip("torch", reason="PyTorch is the oracle")

from tests.fuzz.programs import Program  # noqa: E402

CONFIGS: list[dict[str, int | str]] = [
    {},
    {"THREADS": 1},
    {"THREADS": 3},
    {"ISA": "avx2"},
    {"NOOPT": 1},
    {"FUSE": 0},
]
# Against the greatest of a gradient: float32 on the way there and back.
RTOL = 2e-3


def check(seed: int) -> str | None:
    """What is wrong with the gradients of a program; None if nothing is."""
    with Context(**CONFIGS[seed % len(CONFIGS)]):
        p = Program(seed, smooth=True)
        p.track()
        p.grow(p.random.choice((3, 6, 12)))
        last = p.values[-1]
        if len(p.values) == len(p.inputs) or not last.want.requires_grad:
            return None
        text = "\n  ".join(p.text)
        weights = p.rng.standard_normal(last.shape)
        wanted = [v for v in p.inputs if v.want.requires_grad]
        (last.want * torch.from_numpy(weights)).sum().backward()
        reached = [v for v in wanted if v.want.grad is not None]
        try:
            ours = Tensor(weights.astype(np.float32))
            loss = (last.tensor.cast(dtypes.float32) * ours).sum()
            found = loss.gradient(*[v.tensor for v in reached])
            if seed % 2:
                Tensor.realize(loss, *found)
            for number, (v, g) in enumerate(zip(reached, found, strict=True)):
                assert v.want.grad is not None
                want, got = v.want.grad.numpy(), g.cast(dtypes.float64).numpy()
                if got.shape != want.shape:
                    return (
                        f"gradient {number} has shape {got.shape}, not {want.shape}, in\n  {text}"
                    )
                if not want.size:
                    continue
                allowed = RTOL * max(float(np.abs(want).max()), 1e-2)
                gap = float(np.abs(got - want).max())
                if not gap <= allowed:
                    return f"gradient {number} is off by {gap:.3g} of {allowed:.3g} in\n  {text}"
        except Exception as error:
            raise AssertionError(
                f"{type(error).__name__}: {str(error)[:200]} in\n  {text}"
            ) from error
    return None


def test_gradients(record_property: Callable[[str, str], None]) -> None:
    check_all("gradients of whole programs", draws(6, 2000), check, record_property)
