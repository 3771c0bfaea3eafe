"""Loads and stores of 16 bytes: where they are taken, and where single elements are."""

from __future__ import annotations

import numpy as np
import pytest

from aster_ml import Tensor, dtypes
from aster_ml.codegen.passes import lower
from aster_ml.runtime.interpreter.run import Interpreter
from aster_ml.uop.ops import AxisType, Ops
from tests.core.kernel_checks import kernel_of, memory
from tests.fuzz.random_kernels import GROUPS


def widths(t: Tensor) -> set[int]:
    """How many elements loads and stores of buffers take at a time."""
    linear, _ = lower(kernel_of(t), GROUPS)
    found = set()
    for u in linear.uops:
        if u.op in (Ops.LOAD, Ops.STORE) and u.src[0].src[0].op is Ops.PARAM:
            lanes = [r for r in u.src[0].ranges if r.arg.kind is AxisType.VECTOR]
            found.add(max([int(r.src[0].arg) for r in lanes], default=1))
    return found


@pytest.mark.parametrize(
    ("dtype", "lanes"), [(dtypes.float32, 4), (dtypes.int64, 2), (dtypes.uint8, 16)]
)
def test_as_many_as_there_are_in_16_bytes(dtype: object, lanes: int) -> None:
    x = Tensor.empty(64, 256, dtype=dtype)
    assert widths(x + x) == {lanes}


def test_reductions_load_wide_and_store_one() -> None:
    assert widths(memory(1024, 1024).sum(1)) == {1, 4}
    assert widths(memory(1024, 1024).sum(0)) == {4}


def test_what_does_not_begin_at_a_multiple_is_loaded_one_by_one() -> None:
    assert widths(memory(64, 256)[:, 3:131] * 2) == {1}
    assert widths(memory(64, 256)[:, 4:132] * 2) == {4}
    assert widths(memory(64, 255) * 2) == {4}
    assert widths(memory(64, 256)[:, :255] * 2) == {1}
    assert widths(memory(64, 256).T + 1) == {1}


@pytest.mark.parametrize("shape", [(8, 128), (64, 68), (3, 512)])
def test_wide_programs_give_what_numpy_gives(shape: tuple[int, int]) -> None:
    x = np.random.default_rng(5).standard_normal(shape).astype(np.float32)
    for t, wanted in (
        (memory(*shape) * 3 + 1, x * np.float32(3) + np.float32(1)),
        (memory(*shape).sum(1), x.sum(1)),
        (memory(*shape).sum(0), x.sum(0)),
        (memory(*shape).max(1), x.max(1)),
    ):
        linear, _ = lower(kernel_of(t), GROUPS)
        out = np.full(wanted.size, np.nan, np.float32)
        Interpreter(linear).run([out, x.reshape(-1).copy()], ())
        np.testing.assert_allclose(out.reshape(wanted.shape), wanted, rtol=1e-4, atol=1e-4)


def test_parts_of_a_sum_are_read_once() -> None:
    """64 parts are in local memory, of which 8 work-items read 8 each; one reads these 8 sums."""
    linear, _ = lower(kernel_of(memory(4, 4096).sum(1)), GROUPS)
    loops = [u for u in linear.uops if u.op is Ops.RANGE and u.arg.kind is AxisType.REDUCE]
    assert [u.src[0].op for u in loops[1:]] == [Ops.WHERE, Ops.WHERE]
