"""Memory that begins as one number: filled without a kernel, and never what a recording repeats."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import aster_ml
from aster_ml import Tensor, TinyJit, nn
from aster_ml.dtype import DType, dtypes
from aster_ml.engine.counters import TOTALS
from aster_ml.engine.fills import MOST_NBYTES

NUMBERS = [
    *[(d, x) for d in dtypes.floats for x in (0, 1, -0.0, 3.5, -2, float("inf"), float("nan"))],
    *[(d, x) for d in (*dtypes.ints, dtypes.bool) for x in (0, 1)],
    *[(d, -2) for d in dtypes.sints],
]


def launched(before: int) -> int:
    """Kernels that ran since."""
    return TOTALS.kernel_count - before


@pytest.mark.parametrize(("dtype", "number"), NUMBERS)
def test_a_number_of_each_dtype(dtype: DType, number: float) -> None:
    filled = Tensor.full((3, 5), number, dtype=dtype).contiguous().realize()
    computed = Tensor.full((3, 5), number, dtype=dtype) + Tensor.zeros(3, 5, dtype=dtype)
    shown = filled.cast(dtypes.float64).numpy()
    np.testing.assert_array_equal(shown, computed.cast(dtypes.float64).numpy())
    if number == 0 and dtype.kind == "float":
        assert np.signbit(shown).all() == np.signbit(number)


def test_it_takes_no_kernel_and_is_its_own_memory() -> None:
    before = TOTALS.kernel_count
    x, y = (Tensor.zeros(7, 9).contiguous() for _ in range(2))
    Tensor.realize(x, y)
    assert launched(before) == 0
    x += 1
    assert (x.numpy() == 1).all()
    assert (y.numpy() == 0).all()


def test_the_first_step_of_an_optimiser_runs_what_all_later_ones_run() -> None:
    weights = [Tensor.rand(n, 8).realize() for n in (3, 5, 7)]
    for w in weights:
        w.requires_grad = True
    optimizer = nn.optim.Adam(weights, lr=0.1)
    counts = []
    with Tensor.train():
        for _ in range(3):
            optimizer.zero_grad()
            sum([w.square().sum() for w in weights], Tensor.zeros(())).backward()
            before = TOTALS.kernel_count
            optimizer.step()
            counts.append(launched(before))
    assert counts[0] == counts[1] == counts[2], counts


def test_large_memory_is_filled_by_a_kernel() -> None:
    before = TOTALS.kernel_count
    x = Tensor.ones(MOST_NBYTES // 4 + 1).contiguous().realize()
    assert launched(before) == 1
    assert (x.numpy() == 1).all()


def test_writes_to_a_part_come_behind() -> None:
    x = Tensor.full((4, 4), 2.0).contiguous()
    x[1] = 5
    expected = np.full((4, 4), 2.0)
    expected[1] = 5
    np.testing.assert_array_equal(x.numpy(), expected)


def test_memory_that_had_a_value_is_no_such_memory() -> None:
    x = Tensor([1.0, 2.0, 3.0]).contiguous().realize()
    y = x * 2
    x.assign(Tensor.zeros(3)).realize()
    assert y.tolist() == [2, 4, 6]
    assert x.tolist() == [0, 0, 0]


def test_a_recording_fills_in_each_replay() -> None:
    @TinyJit
    def count(x: Tensor) -> Tensor:
        total = Tensor.zeros(3).contiguous()
        total += x
        total += x
        return total.realize()

    for i in range(5):
        assert count(Tensor([1.0, 2.0, float(i)])).tolist() == [2, 4, 2 * i]


@pytest.mark.parametrize("device", ["CPU", "PYTHON"])
def test_on_other_devices(device: str) -> None:
    x = Tensor.full((2, 3), 1.5, device=device).contiguous()
    x += 1
    assert x.tolist() == [[2.5] * 3] * 2


# Memory that other tests have used would be filled, so this runs in a process of its own.
ZEROS = """
from pathlib import Path
from aster_ml import Tensor, dtypes
from aster_ml.engine.counters import TOTALS
from aster_ml.engine.fills import MOST_NBYTES

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

sizes = [size - 4099 - n for size in (MOST_NBYTES, 3 * MOST_NBYTES) for n in range(4)]
x = [Tensor.zeros(size, dtype=dtypes.uint8).contiguous() for size in sizes]
Tensor.zeros(3).contiguous().realize()
before, kernels = resident(), TOTALS.kernel_count
Tensor.realize(*x)
assert resident() - before < MOST_NBYTES, resident() - before
assert TOTALS.kernel_count == kernels
for i in (1, 5):
    x[i][5:7] = 9
    assert x[i][:9].tolist() == [0] * 5 + [9] * 2 + [0] * 2
    assert x[i + 1].max().item() == 0
"""


@pytest.mark.skipif(sys.platform != "linux", reason="pages of a process are counted by /proc")
def test_zeros_take_no_pages_before_their_use() -> None:
    source = str(Path(aster_ml.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", ZEROS],
        env={**os.environ, "PYTHONPATH": source}, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("size", [MOST_NBYTES // 4 - 777, MOST_NBYTES // 2 - 777])
def test_memory_that_was_used_is_filled_with_zeros(size: int) -> None:
    x = Tensor.ones(size).contiguous().realize()
    del x
    assert Tensor.zeros(size).contiguous().realize().abs().max().item() == 0
