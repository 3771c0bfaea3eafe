"""DEV=METAL from tensors to messages: a part of the suite, on the libraries of the tests.

Kernels are those of the renderer, run by fibers on the CPU; buffers, command buffers and indirect
commands go through ctypes as on a Mac.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from aster_ml import Tensor, TinyJit, Variable
from tests.conformance.test_tensor_conformance import CASES, Case
from tests.shim import metal_stub

ABSENT = metal_stub.missing()
pytestmark = [pytest.mark.cc, pytest.mark.skipif(ABSENT is not None, reason=str(ABSENT))]

NAMES = ("chain", "compare", "sum rows", "softmax, odd", "matmul, odd", "linear and relu")
SHORT = [case for case in CASES if case.name in NAMES]


@pytest.fixture(scope="module", autouse=True)
def libraries() -> Iterator[metal_stub.Stub]:
    """METAL on the libraries."""
    with metal_stub.in_place() as stub:
        yield stub


@pytest.mark.parametrize("case", SHORT, ids=[case.name for case in SHORT])
def test_tensors(case: Case) -> None:
    random = np.random.default_rng(7)
    inputs = [random.standard_normal(shape).astype(np.float32) for shape in case.shapes]
    got = case.run(*[Tensor(x, device="METAL") for x in inputs]).numpy()
    want = (case.want or case.run)(*[x.astype(np.float64) for x in inputs])
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_no_case_is_missing() -> None:
    assert {case.name for case in SHORT} == set(NAMES)


def test_jitted_functions_with_variables() -> None:
    @TinyJit
    def scaled(x: Tensor, n: Variable) -> Tensor:
        return ((x * n + 1).sum(1, keepdim=True) - x).realize()

    for n in (1, 2, 3, 4, 5, 6):
        x = np.arange(21, dtype=np.float32).reshape(3, 7) * n
        bound = Variable("n", 1, 10).bind(n)
        got = scaled(Tensor(x, device="METAL").realize(), bound).numpy()
        np.testing.assert_array_equal(got, (x * n + 1).sum(1, keepdims=True) - x)
