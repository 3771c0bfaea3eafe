"""Sums of which a part is cut off, and what is stored in place of a view of it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from aster_ml import GlobalCounters, Tensor
from aster_ml.uop.graph import toposort
from aster_ml.uop.ops import Ops

RNG = np.random.default_rng(7)


def whole_numbers(*shape: int) -> Tensor:
    """A realized tensor of whole numbers: sums of them are exact."""
    return Tensor(RNG.integers(-4, 5, shape).astype(np.float32)).realize()


def operations(*results: Tensor) -> int:
    """What realizing them takes."""
    GlobalCounters.reset()
    Tensor.realize(*results)
    return int(GlobalCounters.global_ops)


@pytest.mark.parametrize(
    "between",
    [
        lambda x: x.sum(2),
        lambda x: x.sum(2).half(),
        lambda x: x.sum(2, keepdim=True),
        lambda x: x.max(2).reshape(1, 40, 30).reshape(40, 30),
        lambda x: x.sum(2).reshape(40, 1, 30).half(),
    ],
)
def test_what_is_cut_off_is_not_added_up(between: Callable[[Tensor], Tensor]) -> None:
    x = whole_numbers(40, 30, 64)
    part = between(x)[5:7]
    first, second = part + 1, part.sum()
    assert operations(first, second) < 2 * 2 * 30 * 64
    wanted = between(x).numpy()[5:7]
    np.testing.assert_array_equal(first.numpy(), wanted + 1)
    assert second.item() == wanted.sum(dtype=np.float32)


def test_a_sum_that_is_also_read_whole_is_added_up_once() -> None:
    x = whole_numbers(40, 30, 64)
    total = x.sum(2)
    part, rest = total[5:7], total * 2
    one, other = part + 1, part * 3
    assert operations(one, other, rest) < 1.2 * 40 * 30 * 64
    wanted = x.numpy().sum(2)
    for got, want in ((one, wanted[5:7] + 1), (other, wanted[5:7] * 3), (rest, wanted * 2)):
        np.testing.assert_array_equal(got.numpy(), want)


def divisions(result: Tensor) -> int:
    """Divisions and remainders in the kernels of a result; they run as well."""
    items = result.schedule()
    for item in items:
        item.run()
    nodes = [u for item in items for u in toposort(item.ast)]
    return sum(u.op in (Ops.IDIV, Ops.MOD) for u in nodes)


def test_what_a_view_shows_is_stored_in_its_own_axes() -> None:
    """Images that are flattened for a product: their kernel does not divide to find its way."""
    x, w, v = whole_numbers(8, 3, 10, 10), whole_numbers(5, 3, 3, 3), whole_numbers(320, 40)
    y = x.conv2d(w).relu().flatten(1) @ v
    assert divisions(y) == 0
    flat = x.conv2d(w).relu().numpy().reshape(8, 320)
    np.testing.assert_array_equal(y.numpy(), flat @ v.numpy())


@pytest.mark.parametrize("count", [3, 40])
def test_a_part_of_what_was_put_together_reads_no_other_part(count: int) -> None:
    parts = [whole_numbers(4, 6) for _ in range(count)]
    values = [p.numpy().copy() for p in parts]
    whole = Tensor.cat(*[p * 2 for p in parts])
    wanted = np.concatenate([2 * v for v in values])
    for i in (0, 1, count - 1):
        piece = (whole * 3)[4 * i + 1 : 4 * i + 3] + 1
        GlobalCounters.reset()
        np.testing.assert_array_equal(piece.numpy(), 3 * wanted[4 * i + 1 : 4 * i + 3] + 1)
        assert GlobalCounters.global_mem == 4 * 4 * 6
    # Across a border it reads both of the parts beside it.
    piece = (whole * 3)[2:6] + 1
    GlobalCounters.reset()
    np.testing.assert_array_equal(piece.numpy(), 3 * wanted[2:6] + 1)
    assert GlobalCounters.global_mem <= 4 * (2 * 24 + 24)


def test_what_is_all_padding_is_nothing() -> None:
    x = whole_numbers(4, 6)
    padded = (x + 1).pad(((4, 4), (2, 2)))
    for rows in (slice(0, 3), slice(8, 12)):
        assert (padded[rows] + 5).numpy().tolist() == np.full(
            (len(range(12)[rows]), 10), 5
        ).tolist()
    joined = x.pad(((0, 8), (0, 0))) + (x * 2).pad(((8, 0), (0, 0)))
    wanted = np.concatenate([x.numpy(), np.zeros((4, 6), np.float32), 2 * x.numpy()])
    for rows in (slice(4, 8), slice(3, 5), slice(0, 4), slice(7, 12)):
        np.testing.assert_array_equal((joined[rows] * 3).numpy(), 3 * wanted[rows])
