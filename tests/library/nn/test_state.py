"""State dicts: which names tensors get, and what loading accepts and refuses."""

from __future__ import annotations

import collections
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from aster_ml import Tensor, TinyJit, dtypes, nn
from aster_ml.errors import ShapeError
from aster_ml.nn.state import get_parameters, get_state_dict, load_state_dict
from aster_ml.uop.graph import without_names


class Block:
    """A model with every kind of container."""

    def __init__(self) -> None:
        self.conv = nn.Conv2d(1, 2, 3)
        self.layers = [nn.Linear(2, 3), Tensor.relu, nn.Linear(3, 1, bias=False)]
        self.table = {"a": Tensor([1.0]), 3: (Tensor([2.0]),)}
        self.name, self.count, self.none = "block", 3, None


def quietly_load(model: Any, state: dict[str, Tensor], **options: Any) -> list[Tensor]:
    """Load without a progress bar."""
    return load_state_dict(model, state, verbose=False, **options)


def test_names_are_the_way_to_each_tensor() -> None:
    assert list(get_state_dict(Block())) == [
        "conv.weight",
        "conv.bias",
        "layers.0.weight",
        "layers.0.bias",
        "layers.2.weight",
        "table.a",
        "table.3.0",
    ]


def test_tensors_are_the_same_objects() -> None:
    model = Block()
    state = get_state_dict(model)
    assert state["conv.weight"] is model.conv.weight
    assert state["table.3.0"] is model.table[3][0]


def test_named_tuples_dataclasses_and_slots() -> None:
    pair_type = collections.namedtuple("pair_type", "x y")

    @dataclass
    class Data:
        a: Tensor
        b: list[Tensor]

    class Slotted:
        __slots__ = ("empty", "w")

        def __init__(self) -> None:
            self.w = Tensor([1.0])

    class Child(Slotted):
        def __init__(self) -> None:
            super().__init__()
            self.v = Tensor([2.0])

    t = Tensor([1.0])
    assert list(get_state_dict(pair_type(t, [t]))) == ["x", "y.0"]
    assert list(get_state_dict(Data(t, [t]))) == ["a", "b.0"]
    assert list(get_state_dict(Child())) == ["w", "v"]


def test_a_tensor_alone_and_a_prefix() -> None:
    t = Tensor([1.0])
    assert list(get_state_dict(t)) == [""]
    assert list(get_state_dict({"a": [t]}, prefix="model.")) == ["model.a.0"]
    assert list(get_state_dict([t, t])) == ["0", "1"]


def test_other_types_can_be_collected() -> None:
    assert get_state_dict({"a": 1.5, "b": [2.5]}, tensor_type=float) == {"a": 1.5, "b.0": 2.5}


def test_circles_and_jitted_functions_hold_no_state() -> None:
    model = Block()
    model.itself = model
    model.parts = [model.conv]
    model.conv.parent = model
    model.step = TinyJit(lambda x: x + 1)
    names = list(get_state_dict(model))
    assert "parts.0.weight" in names
    assert not any("itself" in name or "parent" in name or "step" in name for name in names)


def test_parameters_include_running_statistics() -> None:
    assert len(get_parameters(nn.BatchNorm(3))) == 5
    assert len(get_parameters([nn.Linear(2, 2), nn.Linear(2, 2, bias=False)])) == 3


def test_loading_gives_one_model_the_values_of_another() -> None:
    one, other = Block(), Block()
    loaded = quietly_load(other, get_state_dict(one))
    assert len(loaded) == 7
    for name, t in get_state_dict(other).items():
        np.testing.assert_array_equal(t.numpy(), get_state_dict(one)[name].numpy())
    assert loaded[0] is other.conv.weight


def test_loaded_values_are_copies_by_assign() -> None:
    one, other = nn.Linear(2, 2), nn.Linear(2, 2)
    quietly_load(other, get_state_dict(one))
    before = other.weight.numpy().copy()
    one.weight.replace(one.weight + 1)
    np.testing.assert_array_equal(other.weight.numpy(), before)


def test_requires_grad_stays_the_model_s() -> None:
    layer = nn.BatchNorm(2)
    layer.weight.requires_grad = True
    quietly_load(layer, {name: t.detach() + 0 for name, t in get_state_dict(layer).items()})
    assert layer.weight.requires_grad is True
    assert layer.running_mean.requires_grad is False


def test_dtype_is_that_of_the_value() -> None:
    layer = nn.Linear(2, 2, bias=False)
    quietly_load(layer, {"weight": Tensor.ones(2, 2, dtype=dtypes.float64)})
    assert layer.weight.dtype == dtypes.float64


def test_single_numbers_with_and_without_an_axis_fit() -> None:
    model = {"a": Tensor(0.0), "b": Tensor([0.0])}
    quietly_load(model, {"a": Tensor([1.0]), "b": Tensor(2.0)})
    assert model["a"].shape == ()
    assert model["a"].item() == 1.0
    assert model["b"].tolist() == [2.0]


def test_consume_empties_the_state_dict() -> None:
    state = {"weight": Tensor.ones(2, 2), "bias": Tensor.ones(2)}
    quietly_load(nn.Linear(2, 2), state, consume=True)
    assert state == {}


def test_missing_and_unexpected_names_are_listed() -> None:
    layer = nn.Linear(3, 2)
    before = layer.weight.numpy().copy()
    with pytest.raises(KeyError, match=r"lacks bias; it has, and the model has not, offset, extra"):
        quietly_load(
            layer, {"weight": Tensor.ones(2, 3), "offset": Tensor([1.0]), "extra": Tensor([1.0])}
        )
    np.testing.assert_array_equal(layer.weight.numpy(), before)


def test_unexpected_names_alone_are_a_warning() -> None:
    layer = nn.Linear(3, 2, bias=False)
    state = {"weight": Tensor.ones(2, 3), "bias": Tensor.ones(2)}
    with pytest.warns(UserWarning, match="the model has no tensor for bias"):
        quietly_load(layer, state)
    assert layer.weight.numpy().all()


def test_without_strict_missing_names_keep_their_values() -> None:
    layer = nn.Linear(3, 2)
    before = layer.bias.numpy().copy()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loaded = quietly_load(
            layer, {"weight": Tensor.ones(2, 3), "more": Tensor([1.0])}, strict=False
        )
    assert [id(t) for t in loaded] == [id(layer.weight)]
    np.testing.assert_array_equal(layer.bias.numpy(), before)


def test_shapes_that_differ_are_both_named() -> None:
    layer = nn.Linear(3, 2)
    with pytest.raises(
        ShapeError, match=r"`bias`: Expected shape \(2,\), but found \(3,\) in state dict"
    ):
        quietly_load(layer, {"weight": Tensor.ones(2, 3), "bias": Tensor.ones(3)})
    assert not (layer.weight.numpy() == 1).all(), "nothing is loaded when something does not fit"


def test_progress_names_what_was_loaded(capsys: pytest.CaptureFixture[str]) -> None:
    load_state_dict(nn.Linear(3, 2), {"weight": Tensor.ones(2, 3), "bias": Tensor.ones(2)})
    assert "2 tensors" in capsys.readouterr().err


def test_long_lists_of_names_are_cut() -> None:
    with pytest.raises(KeyError, match=r"lacks 0, 1, .*9 and 5 more;"):
        quietly_load([Tensor([1.0]) for _ in range(15)], {})


def test_what_is_loaded_has_memory_of_its_own() -> None:
    source = nn.Linear(2, 2)
    state = {name: t.realize() for name, t in get_state_dict(source).items()}
    want = {name: t.numpy().copy() for name, t in state.items()}
    first, second = nn.Linear(2, 2), nn.Linear(2, 2)
    for model in (first, second):
        load_state_dict(model, state, verbose=False)
    first.weight.assign(first.weight + 1).realize()
    assert np.array_equal(state["weight"].numpy(), want["weight"])
    assert np.array_equal(second.weight.numpy(), want["weight"])
    state["weight"].assign(state["weight"] * 0).realize()
    assert np.array_equal(second.weight.numpy(), want["weight"])
    # A scalar that has one axis in the model, and weights that nothing has computed yet.
    lazy = {name: t * 2 for name, t in get_state_dict(nn.Linear(2, 2)).items()}
    load_state_dict(second, lazy, verbose=False)
    before = second.weight.numpy().copy()
    lazy["weight"].assign(lazy["weight"] + 1).realize()
    assert np.array_equal(second.weight.numpy(), before)


def test_a_state_dict_that_is_consumed_gives_its_memory_away() -> None:
    model, weight = nn.Linear(2, 2, bias=False), Tensor.ones(2, 2).contiguous().realize()
    state = {"weight": weight}
    load_state_dict(model, state, verbose=False, consume=True)
    assert not state
    assert without_names(model.weight.uop) is without_names(weight.uop)
