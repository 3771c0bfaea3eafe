"""Compares a tensor with what it should be, by the oracle first and then as it really runs."""

from __future__ import annotations

from typing import Any

import numpy as np

from aster_ml import Tensor
from tests.oracle import evaluate


def check_tensor(
    got: Tensor, want: Any, rtol: float = 2e-6, atol: float = 1e-7, dtype: str | None = None
) -> None:
    """Asserts shape, values and, where given, dtype; the graph in NumPy, then compiled."""
    wanted = np.asarray(want)
    if dtype is not None:
        assert got.dtype.name == dtype
    assert got.shape == wanted.shape, f"shape {got.shape}, wanted {wanted.shape}"
    expected = evaluate(got.uop)
    assert_near(expected, wanted, rtol, atol, "the graph")
    assert_near(got.numpy(), wanted, rtol, atol, "the compiled graph")


def assert_near(got: Any, want: Any, rtol: float, atol: float, what: str) -> None:
    """Asserts that two arrays are close; complains in the name of `what`."""
    np.testing.assert_allclose(
        np.asarray(got).astype(np.float64), np.asarray(want).astype(np.float64),
        rtol=rtol, atol=atol, err_msg=what,
    )  # fmt: skip


def int_tensor(values: Any) -> Tensor:
    """An int32 tensor of any integers."""
    return Tensor(np.asarray(values).astype(np.int32))
