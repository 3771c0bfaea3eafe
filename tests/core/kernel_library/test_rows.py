"""The table of rows: what several keep inside of kernels, and rules that none has."""

from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from aster_ml import Tensor
from aster_ml.errors import GradientError
from aster_ml.kernel_library import rows
from aster_ml.kernel_library.rows import Kept
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import Ops, RuleArg
from tests.lint.sources import ROOT

ON_CPU = """
import sys
from aster_ml import Tensor, dtypes
q = Tensor.ones(1, 32, 16, dtype=dtypes.float16, device="CPU", requires_grad=True)
o = q.scaled_dot_product_attention(q, q)
(g,) = o.sum().gradient(q)
print(abs(o.numpy() - 1).max() < 1e-3, abs(g.numpy() - 1).max() < 1e-2)
print([name for name in sys.modules if name.startswith("aster_ml.kernel_library.")])
"""


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
    node = UOp(Ops.CUSTOM_GRADIENT, x.dtype, (x.uop, x.uop), RuleArg("nothing"))
    assert rows.gradient_rule("nothing") is None
    with pytest.raises(GradientError, match="no rule is named 'nothing'; detach the value"):
        x._derive(node).sum().backward()


def test_a_device_that_chains_no_products_loads_no_row() -> None:
    run = subprocess.run(
        [sys.executable, "-c", ON_CPU],
        capture_output=True, text=True, check=True,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
    )  # fmt: skip
    right, loaded = run.stdout.splitlines()
    assert right == "True True"
    assert "kernel_library.formulas" in loaded
    assert "kernel_library.attention" not in loaded
