"""TRACEMETA: names of Tensor methods on nodes and kernels."""

from __future__ import annotations

import threading

import pytest

from aster_ml import Context, Tensor
from aster_ml.trace import OPERATORS, UNTRACED
from tests.core.jit_helpers import vector


def names(x: Tensor) -> list[set[str]]:
    """For each kernel of a value the methods that it comes from."""
    return [{m.name for m in item.metadata} for item in x.schedule()]


def test_nodes_carry_the_outermost_call() -> None:
    x, y = vector(1, 2), vector(3, 4)
    with Context(TRACEMETA=1):
        z = x.relu() * y.sigmoid()
        assert z.uop.metadata is not None
        assert [m.name for m in z.uop.metadata] == ["__mul__"]
        assert [s.metadata[0].name for s in z.uop.src] == ["relu", "sigmoid"]
        assert __file__ in z.uop.metadata[0].caller
        assert x.uop.metadata is None
        assert names(z) == [{"relu", "sigmoid", "__mul__"}]


def test_kernels_carry_what_they_compute() -> None:
    a = Tensor.randn(64, 64).realize()
    with Context(TRACEMETA=1):
        x = ((a.exp() @ a).contiguous() - 1).sum(1)
        found = names(x)
    assert any("__matmul__" in names_of_kernel for names_of_kernel in found)
    assert {"sum", "__sub__"} <= found[-1]
    assert "exp" not in found[-1]


def test_created_values_and_nested_results() -> None:
    with Context(TRACEMETA=1):
        x = Tensor.arange(6)
        first, second = x.reshape(2, 3).chunk(2)
        assert [m.name for m in x.uop.metadata or ()] == ["arange"]
        assert {m.name for t in (first, second) for m in t.uop.metadata or ()} == {"chunk"}


def test_nothing_is_left_behind() -> None:
    before = dict(Tensor.__dict__)
    with Context(TRACEMETA=1):
        assert Tensor.__dict__["relu"] is not before.get("relu")
        with Context(TRACEMETA=0):
            assert dict(Tensor.__dict__) == before
            assert (vector(1) + 1).uop.metadata is None
        assert "__add__" in Tensor.__dict__
    assert dict(Tensor.__dict__) == before
    x = vector(1, 2) + 1
    assert x.uop.metadata is None
    assert names(x) == [set()]


def test_values_are_the_same() -> None:
    x = vector(3, -1, 2)
    want = (x.softmax() + x.max()).tolist()
    with Context(TRACEMETA=1):
        assert (x.softmax() + x.max()).tolist() == want
        x[0] = 5
        x += 1
        assert x.tolist() == [6, 0, 3]
        y = x * x
        y.requires_grad = True
        assert (y.square().sum().gradient(y)[0]).tolist() == [72, 0, 18]


def test_debug_2_shows_them(capsys: pytest.CaptureFixture[str]) -> None:
    with Context(TRACEMETA=1, DEBUG=2):
        (vector(1, 2) * 3).exp().realize()
    assert " exp" in capsys.readouterr().out


def test_names_in_the_tables_exist() -> None:
    assert all(hasattr(Tensor, name) for name in UNTRACED)
    assert all(hasattr(Tensor, name) for name in ("__add__", "__radd__", "__getitem__"))
    assert {"__add__", "__radd__", "__getitem__", "__setitem__"} <= OPERATORS


def test_one_thread_does_not_end_the_tracing_of_another() -> None:
    before = dict(Tensor.__dict__)
    inside, done = threading.Event(), threading.Event()
    seen = []

    def other() -> None:
        with Context(TRACEMETA=1):
            inside.set()
            done.wait(60)
            seen.append((vector(1) + 1).uop.metadata)

    thread = threading.Thread(target=other)
    thread.start()
    inside.wait(60)
    with Context(TRACEMETA=1):
        assert (vector(1) + 2).uop.metadata
    assert (vector(1) + 3).uop.metadata is None
    done.set()
    thread.join()
    assert seen[0] is not None
    assert [m.name for m in seen[0]] == ["__add__"]
    assert dict(Tensor.__dict__) == before
