"""What TinyJit cannot honour, and what it says."""

from __future__ import annotations

import pickle
import types
from typing import Any

import numpy as np
import pytest

from aster_ml import Tensor, TinyJit, Variable
from aster_ml.errors import DeviceError, JitError
from tests.core.jit_helpers import vector


def assert_fails_at_second_call(function, *args: Any, match: str) -> None:
    jitted = TinyJit(function)
    jitted(*args)
    for _ in range(2):
        with pytest.raises(JitError, match=match):
            jitted(*args)
    # Nothing is left half done: other work goes on.
    assert (vector(1) + 1).tolist() == [2]


@pytest.mark.parametrize(
    "read",
    [
        lambda x: x.sum().item(),
        lambda x: x.tolist(),
        lambda x: x.numpy(),
        lambda x: x.data(),
        lambda x: np.asarray(x),
        lambda x: float(x.sum().item()),
    ],
)
def test_a_value_read_inside(read) -> None:
    def function(x: Tensor) -> Tensor:
        return x + 1 if read(x) is not None else x

    assert_fails_at_second_call(
        function, vector(1), match=r"value is read.*while TinyJit records.*where"
    )


def test_a_branch_on_data() -> None:
    def function(x: Tensor) -> Tensor:
        if (x.sum() > 0).item():
            return x + 1
        return x - 1

    jitted = TinyJit(function)
    assert jitted(vector(1)).tolist() == [2]
    with pytest.raises(JitError, match="decide on tensors with where"):
        jitted(vector(-1))
    with pytest.raises(TypeError, match="truth of a Tensor"):
        TinyJit(lambda x: x + 1 if x.sum() > 0 else x)(vector(1))


def test_a_constant_argument() -> None:
    jitted = TinyJit(lambda x: x + 1)
    for constant in (Tensor.ones(3), Tensor(3.0), Tensor.zeros(2, 2)):
        with pytest.raises(JitError, match=r"constant without memory; pass x\.contiguous\(\)"):
            jitted(constant)
    for i in range(4):
        assert jitted(Tensor.full((2,), float(i)).contiguous().realize()).tolist() == [i + 1] * 2


def test_arrays_as_arguments() -> None:
    jitted = TinyJit(lambda x, a: x + Tensor(a))
    with pytest.raises(JitError, match=r"argument 1 of a jitted function is a ndarray.*Tensor\("):
        jitted(vector(1), np.zeros(1, np.float32))
    with pytest.raises(JitError, match=r"argument options\['mask'\]\[0\]"):
        jitted(vector(1), options={"mask": [np.zeros(1)]})


def test_a_variable_without_a_value() -> None:
    with pytest.raises(JitError, match=r"argument 1 is .*n.*takes bound variables.*bind\(value\)"):
        TinyJit(lambda x, i: x[:i])(vector(1, 2), Variable("n", 1, 2))


def test_two_values_of_one_variable() -> None:
    n = Variable("n", 1, 9)
    with pytest.raises(JitError, match="argument 2 binds n to 5, another argument binds it to 4"):
        TinyJit(lambda x, i, j: x + Tensor(i))(vector(1), n.bind(4), n.bind(5))


def test_a_variable_bound_inside() -> None:
    n = Variable("n", 1, 2)
    assert_fails_at_second_call(
        lambda x: x[: n.bind(1)].sum() * 1,
        vector(1, 2),
        match="variable n is bound inside.*pass the bound variable",
    )


def test_nothing_to_record() -> None:
    assert_fails_at_second_call(lambda x: None, vector(1), match="ran no kernel")
    assert_fails_at_second_call(lambda x: [None, {}], vector(1), match="ran no kernel")


def test_a_plain_value_that_changes_with_every_call() -> None:
    jitted = TinyJit(lambda x, i: x + i)
    with pytest.raises(JitError, match=r"64 different combinations.*number as a Tensor"):
        for i in range(100):
            assert jitted(vector(1), i).tolist() == [i + 1]


def test_an_argument_that_the_function_also_writes_in_a_hidden_way() -> None:
    """A look at the function's code does not find it."""
    hidden = types.SimpleNamespace(ww=vector(1, 2))

    def function(x: Tensor) -> Tensor:
        y = x * 2
        w = getattr(hidden, "".join(["w", "w"]))
        w.assign(w + 1)
        return y

    jitted = TinyJit(function)
    assert jitted(hidden.ww[:1]).tolist() == [2]
    with pytest.raises(JitError, match="argument of a jitted function, which also uses it"):
        jitted(hidden.ww[:1])


def test_an_argument_that_the_function_also_reads_is_fine() -> None:
    w = vector(3)
    jitted = TinyJit(lambda x: x * 10 + w)
    for x in (w, w, w, vector(1), w, vector(2)):
        assert jitted(x).tolist() == [10 * x.item() + 3]


@pytest.mark.parametrize("first", [0, 1])
def test_an_argument_that_the_function_also_reads_is_recorded_as_well(first: int) -> None:
    """For that very tensor; another in its place is told from what is read, in any order."""
    w, others, ran = vector(3), [vector(1), vector(2)], []

    def function(x: Tensor) -> Tensor:
        ran.append(x)
        return x * 10 + w

    jitted = TinyJit(function)
    calls = [[w] * 20, others * 10][:: 1 if first else -1]
    for x in [*calls[0], *calls[1], w, *others, w, w]:
        assert jitted(x).tolist() == [10 * x.item() + 3]
    assert len(ran) <= 5


def test_an_argument_that_the_function_also_reads_may_be_changed() -> None:
    w, v = vector(3), vector(4)
    jitted = TinyJit(lambda x: x * 10 + w)
    for i in range(6):
        assert jitted(w).tolist() == [11 * w.item()]
        if i % 2:
            w.assign(w + 1).realize()
        else:
            w.replace(vector(i))
    same = Tensor.from_uop(w.uop)
    w.replace(v)
    assert jitted(same).tolist() == [10 * same.item() + 4]


def test_an_argument_that_the_function_also_writes_from_the_first_call_on() -> None:
    """Both names are one tensor: a replay writes it as the function does."""
    w = vector(1)

    def function(x: Tensor) -> Tensor:
        w.assign(w * 2)
        return x + 1

    jitted = TinyJit(function)
    for i in range(5):
        assert jitted(w).tolist() == [2 ** (i + 1) + 1]
        assert w.tolist() == [2 ** (i + 1)]


def test_a_recording_of_an_argument_that_is_also_read_stays_here() -> None:
    w = vector(1)
    jitted = TinyJit(lambda x: x * 10 + w)
    for _ in range(4):
        jitted(w)
    with pytest.raises(JitError, match="none that another process could use"):
        pickle.dumps(jitted)


def test_replacing_an_argument() -> None:
    def function(x: Tensor) -> Tensor:
        x.replace(x + 1)
        return x * 2

    jitted = TinyJit(function)
    jitted(vector(1))
    with pytest.raises(JitError, match=r"replaces its argument.*assign"):
        jitted(vector(1))


def test_replacing_a_tensor_from_outside() -> None:
    w = vector(1)

    def function(x: Tensor) -> Tensor:
        w.replace(w + x)
        return w * 2

    jitted = TinyJit(function)
    jitted(vector(1))
    with pytest.raises(JitError, match=r"replaces <Tensor.*assign"):
        jitted(vector(1))


def test_an_argument_whose_memory_is_read_only() -> None:
    def function(x: Tensor) -> None:
        x += 1

    jitted = TinyJit(function)
    for _ in range(3):
        x = Tensor(np.frombuffer(bytes(8), dtype=np.float32))
        jitted(x)
        assert x.tolist() == [1, 1]


def test_state_that_differs_with_every_call() -> None:
    tensors = [vector(i) for i in range(40)]
    model = {"w": tensors[0]}
    jitted = TinyJit(lambda x: x + model["w"])
    with pytest.raises(JitError, match=r"recorded 16 times in a row.*model.*arguments"):
        for t in tensors:
            model["w"] = t
            assert jitted(vector(0)).tolist() == t.tolist()


def test_not_a_function() -> None:
    with pytest.raises(JitError, match="TinyJit wants a function, given 3"):
        TinyJit(3)  # type: ignore[arg-type]


def test_a_device_that_cannot_compute_inside() -> None:
    jitted = TinyJit(lambda x: x.to("NPY") + 1)
    with pytest.raises(DeviceError, match="NPY"):
        jitted(vector(1))
    assert (vector(1) + 1).tolist() == [2]
