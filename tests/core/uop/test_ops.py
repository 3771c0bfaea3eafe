"""The ops as an Enum: a metaclass of ours takes nothing away."""

from __future__ import annotations

import copy
import pickle

import pytest

from aster_ml.uop.ops import AxisType, Ops


@pytest.mark.parametrize("kind", [Ops, AxisType])
def test_members_are_those_of_an_enum(kind) -> None:
    members = list(kind)
    assert len(members) == len(kind) == len(set(members))
    for member in members:
        assert kind[member.name] is kind(member.value) is member
        assert getattr(kind, member.name) is member
        assert pickle.loads(pickle.dumps(member)) is copy.deepcopy(member) is member
        assert member in kind
        assert repr(member)
    assert list(kind.__members__.values()) == members
    assert list(reversed(kind)) == members[::-1]


@pytest.mark.parametrize("kind", [Ops, AxisType])
def test_there_are_no_others(kind) -> None:
    with pytest.raises(KeyError):
        kind["NOTHING"]
    with pytest.raises(ValueError, match="is not a valid"):
        kind(-1)
    with pytest.raises(AttributeError):
        kind.NOTHING  # noqa: B018
    with pytest.raises(AttributeError, match="cannot"):
        setattr(kind, next(iter(kind)).name, 1)
