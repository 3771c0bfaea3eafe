"""TinyJit: what a function reads besides its arguments may change; replays never use what was."""

from __future__ import annotations

import functools
import random
from typing import Any

import numpy as np
import pytest

from aster_ml import Tensor, TinyJit, nn
from aster_ml.errors import JitError
from aster_ml.nn.state import get_state_dict, load_state_dict
from tests.core.jit_helpers import ramp, vector

FACTOR = 1.0
TABLE = {"scale": 1.0}
STEPS = [1.0, 2.0]


def by_global(x: Tensor) -> Tensor:
    return x * FACTOR


def by_helper(x: Tensor) -> Tensor:
    return by_global(x) + 1


class Scale:
    def __call__(self, x: Tensor) -> Tensor:
        return x * 3


SCALE: Scale | None = Scale()


def by_optional_object(x: Tensor) -> Tensor:
    return x * 5 if SCALE is None else SCALE(x)


def test_an_object_that_is_gone_and_none_in_its_place(monkeypatch) -> None:
    jitted = TinyJit(by_optional_object)
    for _ in range(4):
        assert jitted(vector(2)).tolist() == [6.0]
    monkeypatch.setitem(globals(), "SCALE", None)
    for _ in range(4):
        assert jitted(vector(2)).tolist() == [10.0]


def test_one_element_of_a_long_list_changes() -> None:
    numbers = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    jitted = TinyJit(lambda x: x * sum(numbers))
    for _ in range(9):
        assert jitted(vector(2)).tolist() == [42.0]
    numbers[5] = 0.0
    assert jitted(vector(2)).tolist() == [30.0]


def test_a_global_that_is_deleted_is_missed(monkeypatch) -> None:
    jitted = TinyJit(by_global)
    for _ in range(4):
        jitted(vector(2))
    monkeypatch.delitem(globals(), "FACTOR")
    with pytest.raises(NameError, match="FACTOR"):
        jitted(vector(2))


@pytest.mark.parametrize("function", [by_global, by_helper])
def test_a_global_number_changes(monkeypatch, function) -> None:
    jitted = TinyJit(function)
    for factor in (1.0, 1.0, 1.0, 3.0, 3.0, 1.0, 3.0):
        monkeypatch.setitem(globals(), "FACTOR", factor)
        assert jitted(vector(2)).tolist() == function(vector(2)).tolist()


def test_a_closure_variable_changes() -> None:
    scale = 1.0

    def change(value: float) -> None:
        nonlocal scale
        scale = value

    jitted = TinyJit(lambda x: x * scale)
    for value in (1.0, 1.0, 1.0, 4.0, 4.0, 4.0, 1.0):
        change(value)
        assert jitted(vector(2)).tolist() == [2 * value]


def test_a_closure_variable_that_only_an_inner_function_reads_changes() -> None:
    scale = 1.0

    def change(value: float) -> None:
        nonlocal scale
        scale = value

    jitted = TinyJit(lambda x: x + sum(scale for _ in range(2)))
    for value in (1.0, 1.0, 1.0, 4.0, 4.0, 4.0, 1.0):
        change(value)
        assert jitted(vector(2)).tolist() == [2 + 2 * value]


class Named:
    def __init__(self) -> None:
        self.SAME_NAME = 3.0


def shares_with_a_generator(SAME_NAME: Tensor) -> Tensor:
    return sum(SAME_NAME[i] for i in range(2)) + 1  # type: ignore[return-value]


def shares_with_a_function(SAME_NAME: Tensor) -> Tensor:
    def inner() -> Tensor:
        return (lambda: SAME_NAME[0] + SAME_NAME[1])()

    return inner() + 1


def has_an_attribute(x: Tensor) -> Tensor:
    return x[0] + x[1] + (Named().SAME_NAME - 2)


@pytest.mark.parametrize(
    "function", [shares_with_a_generator, shares_with_a_function, has_an_attribute]
)
def test_a_global_with_the_name_of_something_else(monkeypatch, function) -> None:
    """The global is the argument itself, as in a script that is read from top to bottom."""
    jitted = TinyJit(function)
    for i in range(20):
        x = vector(i, 2)
        monkeypatch.setitem(globals(), "SAME_NAME", x)
        assert jitted(x).item() == i + 3
    assert jitted.captured is not None


def test_a_number_in_a_container_changes() -> None:
    jitted = TinyJit(lambda x: x * TABLE["scale"] + STEPS[1])
    try:
        for scale, step in ((1, 2), (1, 2), (1, 2), (5, 2), (5, 3), (5, 3), (1, 2)):
            TABLE["scale"], STEPS[1] = float(scale), float(step)
            assert jitted(vector(1)).tolist() == [scale + step]
    finally:
        TABLE["scale"], STEPS[1] = 1.0, 2.0


def test_a_default_value_and_a_partial_change() -> None:
    def scaled(x: Tensor, by: float = 2.0) -> Tensor:
        return x * by

    two = TinyJit(functools.partial(scaled, by=2.0))
    three = TinyJit(functools.partial(scaled, by=3.0))
    for i in range(4):
        assert two(vector(i)).tolist() == [2 * i]
        assert three(vector(i)).tolist() == [3 * i]


class Layer:
    kind_scale = 1.0

    def __init__(self, scale: float) -> None:
        self.scale = scale
        self.weight = vector(1, 2)

    @property
    def doubled(self) -> float:
        return self.scale * 2

    def __call__(self, x: Tensor) -> Tensor:
        return x * self.weight * self.doubled * self.kind_scale


class Model:
    def __init__(self) -> None:
        self.layers = [Layer(1.0), Layer(2.0)]

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x

    @TinyJit
    def run(self, x: Tensor) -> Tensor:
        return self.forward(x)


def test_attributes_below_a_jitted_method_change(monkeypatch) -> None:
    model = Model()

    def check(times: int = 3) -> None:
        for i in range(times):
            assert model.run(vector(i, 1)).tolist() == model.forward(vector(i, 1)).tolist()

    check()
    model.layers[1].scale = 7.0
    check()
    monkeypatch.setattr(Layer, "kind_scale", 3.0)
    check()
    model.layers[0].weight = vector(5, 6)
    check()
    model.layers[0].weight.assign(vector(8, 9))
    check()
    model.layers.append(Layer(0.5))
    check()
    model.layers[1].scale = 2.0
    check()
    model.layers = model.layers[1:]
    check()


def test_one_method_of_two_objects() -> None:
    a, b = Model(), Model()
    b.layers[0].weight = vector(10, 20)
    for i in range(5):
        assert a.run(vector(i, 1)).tolist() == a.forward(vector(i, 1)).tolist()
        assert b.run(vector(i, 1)).tolist() == b.forward(vector(i, 1)).tolist()
    assert a.run is not b.run
    assert a.run is a.run


def test_equal_objects_are_still_two() -> None:
    class Equal(Layer):
        def __eq__(self, other: object) -> bool:
            return isinstance(other, Equal)

        def __hash__(self) -> int:
            return 1

        @TinyJit
        def run(self, x: Tensor) -> Tensor:
            return x * self.weight * self.scale

    a, b = Equal(2.0), Equal(3.0)
    for _ in range(4):
        assert a.run(vector(1, 1)).tolist() == [2, 4]
        assert b.run(vector(1, 1)).tolist() == [3, 6]


def test_a_jitted_method_does_not_keep_its_object_alive() -> None:
    import gc
    import weakref

    model = Model()
    for i in range(4):
        model.run(vector(i, 1))
    ref, jit = weakref.ref(model), weakref.ref(model.run)
    del model
    gc.collect()
    assert ref() is None
    assert jit() is None


def test_objects_without_weak_references_are_named() -> None:
    class Bare:
        __slots__ = ()

        @TinyJit
        def run(self, x: Tensor) -> Tensor:
            return x

    with pytest.raises(JitError, match=r"Bare.*__weakref__"):
        Bare().run(vector(1))


def test_weights_that_are_loaded_after_the_recording() -> None:
    model = nn.Linear(3, 2)
    jitted = TinyJit(lambda x: model(x).relu())
    x = Tensor(ramp(3)).realize()

    def check() -> None:
        for _ in range(3):
            np.testing.assert_allclose(jitted(x).numpy(), model(x).relu().numpy(), rtol=1e-6)

    check()
    load_state_dict(model, get_state_dict(nn.Linear(3, 2)), verbose=False)
    check()
    model.weight.assign(model.weight * 2)
    check()
    model.weight.assign(model.weight + 1).realize()
    check()
    model.weight[0] = 5
    check()
    model.bias = vector(3, 4)
    check()


def test_swapping_weights_back_and_forth() -> None:
    model = nn.Linear(2, 2)
    one, two = model.weight, Tensor(ramp(4).reshape(2, 2)).realize()
    jitted = TinyJit(lambda x: model(x))
    for weight in (one, two) * 4:
        model.weight = weight
        for i in range(2):
            x = vector(i, 1)
            np.testing.assert_allclose(jitted(x).numpy(), model(x).numpy(), rtol=1e-6)


def test_recordings_of_weights_that_are_gone_do_not_pile_up() -> None:
    model = nn.Linear(64, 64, bias=False)
    jitted = TinyJit(lambda x: model(x))
    x = Tensor(ramp(64)).realize()
    for _ in range(20):
        model.weight = Tensor.randn(64, 64).realize()
        for _ in range(3):
            want = x.numpy() @ model.weight.numpy().T
            np.testing.assert_allclose(jitted(x).numpy(), want, rtol=1e-3, atol=1e-3)
    (entry,) = jitted.entries.values()
    assert len(entry.recordings) == 1


def test_a_lazy_tensor_from_outside_keeps_its_value() -> None:
    w = vector(1, 2)
    lazy = w * 10
    jitted = TinyJit(lambda x: x + lazy)
    for _ in range(2):
        assert jitted(vector(0, 0)).tolist() == [10, 20]
    w.assign(w + 5).realize()
    for _ in range(3):
        assert jitted(vector(0, 0)).tolist() == [10, 20]


def test_an_update_that_is_pending_runs_once() -> None:
    w = vector(1)
    jitted = TinyJit(lambda x: x + w)
    for i in range(6):
        assert jitted(vector(0)).tolist() == [1 + i]
        w += 1
    assert w.tolist() == [7]


def test_an_update_through_a_view() -> None:
    w = vector(1, 2, 3)
    jitted = TinyJit(lambda x: x + w)
    for i in range(5):
        assert jitted(vector(0, 0, 0)).tolist() == [1, 2 + 10 * i, 3]
        w[1:2] += 10


def test_numpy_data_that_changes() -> None:
    array = np.array([1.0, 2.0])
    jitted = TinyJit(lambda x: x + Tensor(array, dtype="float32"))
    for i in (1, 1, 1, 5, 5, 5):
        array[0] = i
        assert jitted(vector(0, 0)).tolist() == [i, 2]


def test_data_written_in_the_function_is_constant() -> None:
    jitted = TinyJit(lambda x: x + Tensor([1.0, 2.0]))
    for i in range(4):
        assert jitted(vector(i, i)).tolist() == [1 + i, 2 + i]


def test_numbers_that_nobody_can_watch_are_not_frozen() -> None:
    numbers = iter(range(100))
    jitted = TinyJit(lambda x: x * next(numbers))
    with pytest.raises(JitError, match=r"something else.*random, time, a counter"):
        for i in range(10):
            assert jitted(vector(1)).tolist() == [i]


def test_data_that_nobody_can_watch_is_not_frozen() -> None:
    jitted = TinyJit(lambda x: x + Tensor([random.random()]))
    with pytest.raises(JitError, match="something else"):
        for _ in range(10):
            jitted(vector(1))


def test_a_first_call_that_does_more_delays_the_recording() -> None:
    class Lazy:
        weight = None

        def __call__(self, x: Tensor) -> Tensor:
            if self.weight is None:
                self.weight = Tensor.full((2,), 3.0).contiguous()
            return x * self.weight

    jitted = TinyJit(Lazy())
    for i in range(6):
        assert jitted(vector(i, 1)).tolist() == [3 * i, 3]
    assert jitted.captured is not None


def test_a_counter_that_is_only_counted_does_no_harm() -> None:
    class Counting:
        calls = 0

        def __init__(self) -> None:
            self.count = 0
            self.log: list[int] = []

        def __call__(self, x: Tensor) -> Tensor:
            self.count += 1
            self.log.append(1)
            return x + 1

    counting = Counting()
    jitted = TinyJit(counting)
    for i in range(5):
        assert jitted(vector(i)).tolist() == [i + 1]
    assert counting.count == len(counting.log) == 2


def test_a_counter_that_is_used_is_named() -> None:
    class Counting:
        def __init__(self) -> None:
            self.count = 0

        def __call__(self, x: Tensor) -> Tensor:
            self.count = self.count + 1
            return x + (100 if self.count > 3 else 0)

    jitted = TinyJit(Counting())
    jitted(vector(0))
    with pytest.raises(JitError, match=r"count changes inside.*assign"):
        jitted(vector(0))


def test_state_that_is_replaced_instead_of_written_is_named() -> None:
    class Cell:
        def __init__(self) -> None:
            self.h = vector(0)

        def __call__(self, x: Tensor) -> Tensor:
            self.h = self.h * 0.5 + x
            return self.h * 1

    jitted = TinyJit(Cell())
    jitted(vector(1))
    with pytest.raises(JitError, match="assign"):
        jitted(vector(1))


def test_state_that_is_written_in_place() -> None:
    class Cell:
        def __init__(self) -> None:
            self.h = vector(0)

        def __call__(self, x: Tensor) -> Tensor:
            self.h.assign(self.h * 0.5 + x)
            return self.h * 1

    cell, plain = Cell(), Cell()
    jitted = TinyJit(cell)
    for i in range(6):
        assert jitted(vector(i)).tolist() == plain(vector(i)).tolist()
        assert cell.h.tolist() == plain.h.tolist()


def test_an_attribute_set_to_a_tensor_is_named() -> None:
    class Keeping:
        def __call__(self, x: Tensor) -> Tensor:
            self.last = x * 2
            return x + 1

    jitted = TinyJit(Keeping())
    jitted(vector(1))
    with pytest.raises(JitError, match=r"last is set to a tensor.*return"):
        jitted(vector(1))


def test_a_tensor_that_leaves_by_a_list_says_so_when_it_is_read() -> None:
    kept: list[Tensor] = []

    def function(x: Tensor) -> Tensor:
        kept.append(x * 2)
        return x + 1

    jitted = TinyJit(function)
    for i in range(4):
        assert jitted(vector(i)).tolist() == [i + 1]
    assert kept[0].tolist() == [0]
    with pytest.raises(JitError, match="none of its results"):
        kept[1].tolist()


def test_nested_jits() -> None:
    inner = TinyJit(lambda x: x * 2)
    outer = TinyJit(lambda x: inner(x) + inner(x + 1))
    for i in range(5):
        assert outer(vector(i)).tolist() == [4 * i + 2]
        assert inner(vector(i)).tolist() == [2 * i]


def test_a_nested_jit_reads_a_number_that_changes() -> None:
    scale = [1.0]
    inner = TinyJit(lambda x: x * scale[0])
    outer = TinyJit(lambda x: inner(x) + 1)
    for value in (1, 1, 1, 1, 3, 3, 3, 3):
        scale[0] = float(value)
        assert outer(vector(1)).tolist() == [value + 1]


def shown(k: Tensor) -> Any:
    """A value that is memory although the tensor names the expression still."""
    view = k.reshape(3, 1)
    view.realize()
    return k, view


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize(
    "keep",
    [
        lambda k: k,
        lambda k: k.realize(),
        lambda k: (k.numpy(), k),
        lambda k: k.relu(),
        lambda k: (k + 1, k.sum()),
        shown,
    ],
)
def test_an_expression_that_a_tensor_from_before_has_is_computed_again(keep, late) -> None:
    """A replay follows the state, and the tensor, which may be the very same node, does not."""
    state = vector(1, 2, 3)
    jitted = TinyJit(lambda x: x + state * 2)
    x = vector(0, 0, 0)
    kept = []
    for call in range(4):
        if call == late:
            kept.append(keep(state * 2))
        assert jitted(x).tolist() == [2, 4, 6]
    state.assign(vector(10, 20, 30)).realize()
    assert [jitted(x).tolist() for _ in range(2)] == [[20, 40, 60]] * 2


def test_a_tensor_from_before_keeps_its_value_beside_the_same_expression() -> None:
    state = vector(1, 2, 3)
    before = state * 2
    jitted = TinyJit(lambda x: x + before + state * 2)
    x = vector(0, 0, 0)
    for _ in range(4):
        assert jitted(x).tolist() == [4, 8, 12]
    state.assign(vector(10, 20, 30)).realize()
    assert jitted(x).tolist() == [22, 44, 66]
    assert before.tolist() == [2, 4, 6]
