"""Lowering of indices: lanes are set apart, and addresses are simplified while they are."""

from __future__ import annotations

import numpy as np

from aster_ml import Context, Tensor
from aster_ml.codegen.lower.indices import lower_indices, split_lanes
from aster_ml.codegen.transforms.axes import loads_places, simplify_indices
from aster_ml.dtype import dtypes
from aster_ml.uop.graph import toposort
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import AxisType, Ops

ROW = UOp.range(6, 0)
LANE = UOp.range(4, 1, AxisType.VECTOR)
DATA = UOp.param(0, 64, dtypes.float32)


def number(value: int) -> UOp:
    return UOp.index_const(value)


def raw(op: Ops, x: UOp, y: UOp) -> UOp:
    """Index arithmetic that nothing has put in order."""
    return UOp(op, dtypes.index, (x, y))


def scattered() -> UOp:
    """(lane + (row + 1)) * 4 - lane * 3, which is row * 4 + lane + 4."""
    both = raw(Ops.ADD, LANE, raw(Ops.ADD, ROW, number(1)))
    return raw(Ops.SUB, raw(Ops.MUL, both, number(4)), raw(Ops.MUL, LANE, number(3)))


def copy_of(index: UOp) -> UOp:
    """A kernel that doubles what lies at an index."""
    value = DATA.index(index).load()
    return DATA.index(index).store(value + value).end(ROW, LANE).sink()


def test_a_plain_index_is_put_in_order_as_its_lanes_are_set_apart() -> None:
    base, offset = split_lanes(scattered())
    assert base is raw(Ops.MUL, ROW, number(4))
    assert offset is raw(Ops.ADD, LANE, number(4))


def test_an_index_without_lanes_is_put_in_order() -> None:
    index = raw(Ops.ADD, raw(Ops.MUL, number(2), ROW), raw(Ops.MUL, ROW, number(3)))
    assert split_lanes(index) == (raw(Ops.MUL, ROW, number(5)), number(0))


def test_an_index_that_is_no_plain_sum_is_simplified_first() -> None:
    far = raw(Ops.IDIV, raw(Ops.ADD, raw(Ops.MUL, ROW, number(4)), LANE), number(4))
    base, offset = split_lanes(raw(Ops.ADD, far, LANE))
    assert base is ROW
    assert offset is LANE


def test_addresses_come_out_the_same_whether_they_were_simplified_before_or_not() -> None:
    kernel = copy_of(scattered())
    simple = simplify_indices(kernel)
    assert simple is not kernel
    assert simplify_indices(kernel, addresses=False) is kernel
    lowered = lower_indices(kernel, dtypes.int64)
    assert lowered is lower_indices(simple, dtypes.int64)
    assert lowered is lower_indices(kernel, dtypes.int64, toposort(kernel))


def test_an_index_in_which_a_loaded_value_stands_is_told_from_others() -> None:
    place = UOp.param(1, 8, dtypes.int32).index(ROW).load().cast(dtypes.index)
    assert loads_places(toposort(copy_of(raw(Ops.ADD, place, LANE))))
    assert not loads_places(toposort(copy_of(scattered())))


def test_what_is_loaded_in_an_index_stays_one_node_as_lanes_are_set_apart() -> None:
    slot = raw(Ops.ADD, raw(Ops.MUL, LANE, number(2)), raw(Ops.MUL, LANE, number(1)))
    place = UOp.param(1, 64, dtypes.int32).index(slot).load().cast(dtypes.index)
    base, offset = split_lanes(raw(Ops.ADD, raw(Ops.MUL, place, number(4)), ROW))
    assert place in toposort(base)
    assert offset is number(0)


def test_addresses_within_addresses_are_lowered_with_the_kernel() -> None:
    """What an index reads is at an address of its own, with a base and an offset as any other."""
    rng = np.random.default_rng(3)
    table, values = rng.integers(0, 31, (31, 128)), rng.standard_normal((31, 128))
    # A reduction of loaded numbers says which number is loaded, which says what is loaded.
    marks = np.argsort(rng.standard_normal((31, 128)), axis=0)
    with Context(SPEC=2, CACHE=0):
        slots = (Tensor(marks.astype(np.int32)) == Tensor.arange(31).reshape(31, 1)).where(
            Tensor.arange(31).reshape(31, 1), 0
        )
        places = Tensor(table.astype(np.int32)).gather(0, slots)
        got = Tensor(values).gather(0, places).numpy()
    said = np.where(marks == np.arange(31)[:, None], np.arange(31)[:, None], 0)
    want = np.take_along_axis(values, np.take_along_axis(table, said, 0), 0)
    assert np.array_equal(got, want)
