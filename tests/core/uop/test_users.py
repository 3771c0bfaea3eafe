"""Nodes that were linked know who uses them, and forget users that are gone."""

from __future__ import annotations

import gc

from aster_ml.dtype import dtypes
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import Ops
from aster_ml.uop.users import SWEEP_AT, link, users_of


def leaf() -> UOp:
    return UOp.new_buffer("CPU", 4, dtypes.float32)


def test_a_linked_graph_leads_from_memory_to_its_root() -> None:
    x = leaf()
    y = x.alu(Ops.NEG)
    z = y.alu(Ops.MUL, x)
    assert users_of(x) == []
    link(z)
    assert users_of(x) == [z, y]
    assert users_of(y) == [z]
    link(z)
    assert users_of(y) == [z]


def test_numbers_note_no_users() -> None:
    two = UOp.const(dtypes.float32, 2.0)
    x = leaf()
    link(x.alu(Ops.MUL, two))
    assert users_of(two) == []


def test_what_is_below_a_computed_node_is_left_out() -> None:
    x = leaf()
    y = x.alu(Ops.NEG)
    y._at = 0
    link(y.alu(Ops.NEG))
    assert users_of(x) == []


def test_users_that_are_gone_take_no_room() -> None:
    x = leaf()
    for i in range(10 * SWEEP_AT):
        link(x.alu(Ops.MUL, UOp.const(dtypes.float32, float(i))))
    gc.collect()
    assert users_of(x) == []
    assert len(x._users) <= SWEEP_AT + 1
