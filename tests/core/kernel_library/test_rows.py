"""The table of rows: what several keep inside of kernels, and rules that none has."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from aster_ml import Tensor
from aster_ml.errors import GradientError
from aster_ml.kernel_library import rows
from aster_ml.kernel_library.rows import Kept
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import Ops, RuleArg


def test_of_rows_that_match_the_same_nodes_the_first_has_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    a, b, c, d = (Tensor.empty(n).uop for n in (2, 3, 5, 7))
    first = Kept(frozenset({a}), frozenset({b}), ((b, a),))
    apart = Kept(frozenset({c}), frozenset({b, d}))
    for inside, stored in (({a}, {d}), ({c}, {a}), ({b}, {d})):
        second = Kept(frozenset(inside), frozenset(stored))
        made = [SimpleNamespace(keep=lambda *_, k=k: k) for k in (first, second, apart)]
        monkeypatch.setattr(rows, "parts_of", lambda _, made=made: made)
        kept = rows.keep([], {"CUDA": frozenset({"half"})})
        assert kept == Kept(frozenset({a, c}), frozenset({b, d}), ((b, a),))


def test_a_rule_that_no_row_has_is_an_error() -> None:
    x = Tensor([1.0, 2.0], requires_grad=True)
    node = UOp(Ops.DETACH, x.dtype, (x.uop, x.uop), RuleArg("nothing"))
    assert rows.gradient_rule("nothing") is None
    with pytest.raises(GradientError, match="no rule is named 'nothing'; detach the value"):
        x.derive(node).sum().backward()
