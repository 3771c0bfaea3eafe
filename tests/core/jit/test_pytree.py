"""TinyJit: what arguments may be, and that replays follow them."""

from __future__ import annotations

import itertools
from collections import namedtuple

import numpy as np
import pytest

from aster_ml import Context, GlobalCounters, Tensor, TinyJit, Variable, dtypes
from tests.core.jit_helpers import check_jit, ramp, values, vector

Pair = namedtuple("Pair", "left right")


def test_the_function_runs_twice_and_replays_from_the_third_call_on() -> None:
    check_jit(lambda a, b: (a + b) * 2, [(vector(i, 2), vector(3, i)) for i in range(5)])


def test_a_result_that_is_not_realized_is_realized() -> None:
    jitted = TinyJit(lambda a: a + 1)
    for i in range(4):
        out = jitted(vector(i))
        before = GlobalCounters.kernel_count
        assert out.tolist() == [i + 1]
        assert GlobalCounters.kernel_count == before


def test_several_kernels_in_order() -> None:
    def function(a: Tensor) -> Tensor:
        b = (a + 1).realize()
        c = (b * b).realize()
        return (c - a).realize()

    check_jit(function, [(vector(i, i + 1, 3),) for i in range(5)])


@pytest.mark.parametrize(
    "wrap",
    [
        lambda a, b: [a, b],
        lambda a, b: (a, b),
        lambda a, b: {"left": a, "right": b},
        lambda a, b: [[a], {"x": (b,)}],
        Pair,
    ],
    ids=["list", "tuple", "dict", "nested", "namedtuple"],
)
def test_nested_arguments_and_results(wrap) -> None:
    def function(nest):
        if isinstance(nest, dict):
            nest = list(nest.values())
        a, b = nest
        a = a[0] if isinstance(a, list) else a
        b = b["x"][0] if isinstance(b, dict) else b
        return wrap(a + b, a - b)

    check_jit(function, [(wrap(vector(i, 1), vector(2, i)),) for i in range(4)])
    jitted = TinyJit(function)
    results = [jitted(wrap(vector(i), vector(1))) for i in range(4)]
    assert {type(r) for r in results} == {type(wrap(vector(0), vector(0)))}


def test_keyword_arguments_may_change_their_order() -> None:
    jitted = TinyJit(lambda a, b=None, c=None: a * 100 + b * 10 + c)
    a, b, c = vector(1), vector(2), vector(3)
    for _ in range(3):
        assert jitted(a, b=b, c=c).tolist() == [123]
        assert jitted(a, c=b, b=c).tolist() == [132]


def test_the_same_tensor_twice_then_two() -> None:
    a, b, c = vector(1, 2), vector(10, 20), vector(100, 200)
    calls = [(a, a), (a, a), (b, b), (a, b), (b, c), (c, a), (c, c), (b, a)]
    check_jit(lambda x, y: x - 2 * y, calls, runs=4)


def test_views_of_one_memory_are_one_argument_structure() -> None:
    memory = Tensor(ramp(12)).realize()
    other = Tensor(ramp(12, 50)).realize()
    calls = [(m[0:4], m[2:6]) for m in (memory, other, memory, other)]
    check_jit(lambda x, y: x * y, calls, runs=2)
    separate = [(memory[0:4], other[2:6]), (other[0:4], memory[2:6])] * 2
    check_jit(lambda x, y: x * y, separate, runs=2)


def test_other_offsets_and_strides_are_other_recordings() -> None:
    memory = Tensor(ramp(24).reshape(4, 6)).realize()
    views = [memory, memory[1:], memory[:, ::2], memory.T, memory.flip(0), memory[2]]
    jitted = TinyJit(lambda x: x * 2 + 1)
    for _ in range(3):
        for view in views:
            np.testing.assert_array_equal(jitted(view).numpy(), view.numpy() * 2 + 1)


def test_the_same_view_of_other_memory_replays() -> None:
    calls = [(Tensor(ramp(24, i).reshape(4, 6)).realize()[1:3, ::2].T,) for i in range(5)]
    check_jit(lambda x: x.sum(0) + 1, calls)


def test_expanded_and_padded_views() -> None:
    def views(i: int) -> tuple[Tensor, Tensor]:
        x = vector(i, i + 1)
        return x.reshape(2, 1).expand(2, 3), x.pad(((1, 1),))

    check_jit(lambda a, b: a.sum() + b * 2, [views(i) for i in range(4)])


def test_an_unrealized_argument_is_computed_first() -> None:
    check_jit(lambda a: a * 3, [(vector(i, 2) + 1,) for i in range(4)])
    a = vector(1, 2)
    lazy = a + 5
    jitted = TinyJit(lambda x: x * 2)
    for _ in range(4):
        assert jitted(lazy).tolist() == [12, 14]


def test_an_argument_with_a_pending_update() -> None:
    jitted = TinyJit(lambda x: x + 1)
    x = vector(0)
    for i in range(5):
        assert jitted(x).tolist() == [i + 1]
        x += 1


def test_other_shapes_and_dtypes_are_other_recordings() -> None:
    jitted = TinyJit(lambda x: x * 2 + 1)
    inputs = [
        vector(1, 2),
        vector(1, 2, 3),
        Tensor([[1.0, 2.0]]).realize(),
        Tensor([1, 2]).realize(),
        Tensor([1, 2], dtype=dtypes.int64).realize(),
    ]
    for _ in range(3):
        for x in inputs:
            out = jitted(x)
            assert out.shape == x.shape
            assert out.dtype is x.dtype
            np.testing.assert_array_equal(out.numpy(), x.numpy() * 2 + 1)


@pytest.mark.parametrize(
    "plain",
    [
        (1, 2),
        (1.0, 1),
        (True, 1),
        (0.0, -0.0),
        ("add", "mul"),
        (None, 3),
        ((1, 2), (2, 1)),
        (np.float32(1), np.float32(2)),
        (slice(0, 1), slice(1, 2)),
        ({1, 2}, {3}),
        (float, int),
        (dtypes.int32, dtypes.float32),
        (b"a", b"b"),
        ([], {}),
    ],
    ids=repr,
)
def test_plain_arguments_are_never_frozen(plain) -> None:
    seen = []

    def function(x: Tensor, p: object) -> Tensor:
        seen.append(repr(p))
        return x + float(len(repr(p))) + (1 if p == plain[0] else 0)

    jitted = TinyJit(function)
    for _ in range(3):
        for p in plain:
            assert jitted(vector(1), p).tolist() == function(vector(1), p).tolist()
    assert seen.count(repr(plain[0])) == 5  # two of the jit, three of ours


def test_negative_zero_is_a_value_of_its_own() -> None:
    jitted = TinyJit(lambda x, p: x.copysign(p))
    for _ in range(3):
        assert jitted(vector(1), 0.0).tolist() == [1.0]
        assert jitted(vector(1), -0.0).tolist() == [-1.0]


def test_objects_are_told_apart_also_when_memory_is_reused() -> None:
    class Scale:
        def __init__(self, by: float) -> None:
            self.by = by

    jitted = TinyJit(lambda x, scale: x * scale.by)
    for i in range(40):
        assert jitted(vector(1), Scale(i)).tolist() == [i]


def test_attributes_of_an_argument_are_watched() -> None:
    class Scale:
        by = 1.0

    scale = Scale()
    jitted = TinyJit(lambda x, scale: x * scale.by)
    for i in (1, 1, 1, 1, 2, 2, 2, 1, 3, 3):
        scale.by = float(i)
        assert jitted(vector(1), scale).tolist() == [i]


def test_variables_take_other_values_at_each_call() -> None:
    n = Variable("n", 1, 10)
    data = Tensor(ramp(10)).realize()

    def function(x: Tensor, i: object) -> Tensor:
        return x[:i].sum() * 1.0

    jitted = TinyJit(function)
    for i in (3, 5, 1, 10, 7, 2):
        assert jitted(data, n.bind(i)).item() == ramp(10)[:i].sum()
    assert len(jitted.entries) == 1


def test_a_view_of_variable_size_is_one_recording() -> None:
    n = Variable("n", 1, 8)
    data, other = Tensor(ramp(8)).realize(), Tensor(ramp(8, 5)).realize()
    jitted = TinyJit(lambda x: x.sum() + 1)
    for x, i in itertools.product((data, other), (2, 5, 8, 1)):
        assert jitted(x[: n.bind(i)]).item() == x.numpy()[:i].sum() + 1
    assert len(jitted.entries) == 1


def test_a_variable_beside_numbers() -> None:
    n = Variable("n", 0, 100)
    jitted = TinyJit(lambda x, i: x + Tensor(i))
    for i in (0, 7, 7, 100, 3):
        assert jitted(Tensor([1]).realize(), n.bind(i)).tolist() == [1 + i]


def test_two_variables_in_one_call() -> None:
    n, m = Variable("n", 1, 4), Variable("m", 1, 4)
    data = Tensor(ramp(16).reshape(4, 4)).realize()
    jitted = TinyJit(lambda x, i, j: x[:i, :j].sum() * 1.0)
    for i, j in ((1, 1), (2, 3), (4, 4), (3, 1), (1, 4)):
        assert jitted(data, n.bind(i), m.bind(j)).item() == ramp(16).reshape(4, 4)[:i, :j].sum()


def test_settings_of_the_program_are_part_of_the_call() -> None:
    jitted = TinyJit(lambda x: x.dropout(0.5) * 1 if Tensor.training else x * 2)
    for _ in range(3):
        assert jitted(vector(1, 1)).tolist() == [2, 2]
        with Tensor.train():
            assert set(jitted(vector(*[1] * 64)).tolist()) == {0, 2}


def test_default_float_is_part_of_the_call(monkeypatch) -> None:
    jitted = TinyJit(lambda x: x + Tensor([0.5]))
    ints = Tensor([1]).realize()
    for _ in range(3):
        assert jitted(ints).dtype is dtypes.float32
    monkeypatch.setattr(dtypes, "default_float", dtypes.float64)
    assert jitted(ints).dtype is dtypes.float64


def test_jit_0_calls_the_function() -> None:
    count = []
    jitted = TinyJit(lambda x: count.append(1) or x + 1)
    with Context(JIT=0):
        for i in range(4):
            assert jitted(vector(i)).tolist() == [i + 1]
    assert len(count) == 4


def test_numpy_memory_that_changes_is_read_anew() -> None:
    array = ramp(4)
    jitted = TinyJit(lambda x: x * 2)
    for i in range(4):
        array[:] = i
        assert jitted(Tensor(array)).tolist() == [2 * i] * 4


def test_other_devices_are_other_recordings() -> None:
    jitted = TinyJit(lambda x: x + 1)
    for _ in range(3):
        for device in ("CPU", "CPU:1", "PYTHON"):
            out = jitted(Tensor([1.0], device=device).realize())
            assert out.device == device
            assert out.tolist() == [2]


def test_copies_between_devices_are_recorded() -> None:
    def function(a: Tensor, b: Tensor) -> Tensor:
        there = a.to("CPU:1") * 2 + b
        return there.to("CPU") + a

    calls = [(vector(i, 1), Tensor([float(i), 5.0], device="CPU:1").realize()) for i in range(5)]
    jitted = check_jit(function, calls)
    assert jitted.captured is not None


def test_the_interpreter_replays() -> None:
    calls = [(Tensor([float(i), 2.0], device="PYTHON").realize(),) for i in range(4)]
    check_jit(lambda x: (x + 1).realize() * x, calls)


def test_kernels_are_counted_on_replay() -> None:
    def function(a: Tensor) -> Tensor:
        return (a + 1).realize() * 2

    jitted = TinyJit(function)
    counts, ops = [], []
    for i in range(5):
        x = vector(i, 2)
        GlobalCounters.reset()
        jitted(x)
        counts.append(GlobalCounters.kernel_count)
        ops.append((GlobalCounters.global_ops, GlobalCounters.global_mem))
    assert counts == [2] * 5
    assert ops == [(4, 32)] * 5


def test_memory_does_not_grow_over_replays() -> None:
    from aster_ml.allocator import MEMORY
    from aster_ml.uop.interned import NODES

    weight = Tensor(ramp(256)).realize()
    jitted = TinyJit(lambda x: (x * weight).realize() + x.sum())
    for _ in range(4):
        jitted(Tensor(ramp(256)).realize())
    memory, nodes = MEMORY.in_use(), len(NODES)
    for i in range(1000):
        out = jitted(Tensor(ramp(256, i)).realize())
    assert MEMORY.in_use() - memory <= 4 * 256 * 4
    assert len(NODES) - nodes < 40
    np.testing.assert_allclose(
        out.numpy(), ramp(256, 999) * ramp(256) + ramp(256, 999).sum(), rtol=1e-5
    )


def test_arguments_are_not_kept_alive() -> None:
    from aster_ml.allocator import MEMORY

    jitted = TinyJit(lambda x: x.sum())
    before = MEMORY.in_use()
    for _ in range(4):
        jitted(Tensor.ones(1 << 20).contiguous().realize())
    assert MEMORY.in_use() - before < 1 << 20


def test_empty_tensors() -> None:
    jitted = TinyJit(lambda a, b: (a.cat(b) * 2, b.sum()))
    for i in range(4):
        assert values(jitted(Tensor.empty(0).realize(), vector(i, 1))) == [2 * i, 2, i + 1]
