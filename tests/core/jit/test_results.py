"""TinyJit: results belong to whoever holds them; in-place updates are those of the function."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aster_ml import Tensor, TinyJit
from aster_ml.allocator import MEMORY
from aster_ml.errors import GradientError, JitError, ShapeError
from tests.core.jit_helpers import ramp, vector


def test_results_keep_their_values_while_they_are_held() -> None:
    jitted = TinyJit(lambda x: (x + 1, x * 2))
    held = [jitted(vector(i)) for i in range(8)]
    assert [(a.item(), b.item()) for a, b in held] == [(i + 1, 2 * i) for i in range(8)]


def test_arrays_of_results_keep_their_values() -> None:
    jitted = TinyJit(lambda x: x + 1)
    arrays = [jitted(vector(i)).numpy() for i in range(8)]
    views = [jitted(vector(i)).data() for i in range(4)]
    assert [a.tolist() for a in arrays] == [[i + 1] for i in range(8)]
    assert [list(v) for v in views] == [[i + 1] for i in range(4)]


def test_what_is_made_lazily_of_a_result_keeps_its_value() -> None:
    jitted = TinyJit(lambda x: x + 1)
    lazy = [jitted(vector(i)) * 10 for i in range(6)]
    assert [u.item() for u in lazy] == [(i + 1) * 10 for i in range(6)]


def test_memory_of_results_that_nobody_holds_is_used_again() -> None:
    jitted = TinyJit(lambda x: x + 1)
    x = Tensor.ones(1 << 16).contiguous().realize()
    for _ in range(3):
        jitted(x)
    before = MEMORY.in_use()
    for _ in range(10):
        jitted(x)
    assert MEMORY.in_use() == before


def test_a_result_goes_back_in_as_the_argument() -> None:
    jitted = TinyJit(lambda x: (x * 2).realize() + 1)
    x, want = vector(1), 1
    for _ in range(8):
        x, want = jitted(x), want * 2 + 1
        assert x.tolist() == [want]


def test_results_that_are_views() -> None:
    jitted = TinyJit(lambda x: (x.reshape(2, 2).T, x[1:3], (x + 1).reshape(2, 2)[:, 1]))
    for i in range(4):
        x = Tensor(ramp(4, i)).realize()
        a, b, c = jitted(x)
        want = ramp(4, i).reshape(2, 2)
        np.testing.assert_array_equal(a.numpy(), want.T)
        np.testing.assert_array_equal(b.numpy(), want.reshape(-1)[1:3])
        np.testing.assert_array_equal(c.numpy(), want[:, 1] + 1)


def test_an_argument_that_is_returned_is_itself() -> None:
    jitted = TinyJit(lambda x: (x, x + 1))
    for i in range(4):
        x = vector(i)
        same, other = jitted(x)
        assert same is x
        assert other.tolist() == [i + 1]


def test_one_result_twice_is_one_tensor() -> None:
    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        y = x + 1
        return y, y

    jitted = TinyJit(function)
    for i in range(4):
        a, b = jitted(vector(i))
        assert a is b


def test_none_beside_results() -> None:
    jitted = TinyJit(lambda x: {"y": x + 1, "none": None})
    for i in range(4):
        out = jitted(vector(i))
        assert (out["y"].tolist(), out["none"]) == ([i + 1], None)


@pytest.mark.parametrize("plain", [3, 1.5, True, "s", np.float32(2)])
def test_plain_results_are_refused_at_the_first_call(plain: Any) -> None:
    jitted = TinyJit(lambda x: (x + 1, plain))
    kind = type(plain).__name__
    with pytest.raises(JitError, match=rf"the result\[1\] of a jitted function is an? {kind}"):
        jitted(vector(1))


def test_shapes_that_do_not_fit_after_others_were_recorded() -> None:
    jitted = TinyJit(lambda x, y: x + y)
    with pytest.raises(ShapeError) as plain:
        jitted(vector(1, 2), vector(1, 2, 3))
    assert not isinstance(plain.value, JitError)
    for _ in range(3):
        jitted(vector(1), vector(2))
    with pytest.raises(JitError, match="recorded for other arguments fails for these: add: shapes"):
        jitted(vector(1, 2), vector(1, 2, 3))
    assert jitted(vector(1), vector(2)).tolist() == [3]


def test_constant_results_are_new_tensors_each_time() -> None:
    jitted = TinyJit(lambda x: (x + 1, Tensor.zeros(2), Tensor([1.0, 2.0])))
    for _ in range(5):
        _, zeros, data = jitted(vector(1))
        assert zeros.tolist() == [0, 0]
        assert data.tolist() == [1, 2]
        zeros += 1
        data += 1
        assert zeros.tolist() == [1, 1]
        assert data.tolist() == [2, 3]


def test_a_result_that_is_changed_in_place_later() -> None:
    jitted = TinyJit(lambda x: x + 1)
    for i in range(5):
        out = jitted(vector(i))
        out += 10
        assert out.tolist() == [i + 11]


def test_an_argument_that_is_assigned_to() -> None:
    def function(x: Tensor) -> Tensor:
        x.assign(x * 2)
        return x + 1

    jitted = TinyJit(function)
    x, y = vector(1, 2), vector(10, 20)
    for i in range(1, 6):
        assert jitted(x).tolist() == [2**i + 1, 2 * 2**i + 1]
        assert x.tolist() == [2**i, 2 * 2**i]
    assert jitted(y).tolist() == [21, 41]
    assert y.tolist() == [20, 40]
    assert x.tolist() == [32, 64]


def test_an_assigned_argument_without_a_result() -> None:
    def function(x: Tensor) -> None:
        x += 1

    jitted = TinyJit(function)
    x = vector(0)
    for i in range(5):
        jitted(x)
        assert x.tolist() == [i + 1]


def test_an_assigned_argument_that_shares_memory_with_another_tensor() -> None:
    def function(x: Tensor) -> None:
        x += 1

    jitted = TinyJit(function)
    source = vector(5)
    for _ in range(4):
        a, b = (source * 2).realize(), (source * 2).realize()
        jitted(a)
        assert a.tolist() == [11]
        assert b.tolist() == [10]


def test_an_assigned_argument_over_numpy_memory_leaves_the_array_alone() -> None:
    def function(x: Tensor) -> None:
        x += 1

    jitted = TinyJit(function)
    for _ in range(4):
        array = np.array([1.0, 2.0], dtype=np.float32)
        x = Tensor(array)
        jitted(x)
        assert x.tolist() == [2, 3]
        assert array.tolist() == [1, 2]


def test_an_assigned_view_changes_what_it_is_a_view_of() -> None:
    def function(x: Tensor) -> None:
        x.assign(x * 10)

    jitted = TinyJit(function)
    for _ in range(4):
        whole = vector(1, 2, 3)
        jitted(whole[1:])
        assert whole.tolist() == [1, 20, 30]


def test_who_read_the_old_value_lazily_keeps_it() -> None:
    w = vector(1)

    def step(x: Tensor) -> Tensor:
        w.assign(w + x)
        return w * 1

    jitted = TinyJit(step)
    seen = []
    for _ in range(6):
        seen.append(w * 100)
        jitted(vector(1))
    assert [s.item() for s in seen] == [100 * (i + 1) for i in range(6)]


def test_who_read_an_assigned_argument_lazily_keeps_the_old_value() -> None:
    def function(x: Tensor) -> None:
        x += 1

    jitted = TinyJit(function)
    for _ in range(4):
        x = vector(1)
        before = x * 10
        jitted(x)
        assert before.tolist() == [10]
        assert (x * 10).tolist() == [20]


def test_an_expression_computed_before_a_replay_is_computed_anew_after_it() -> None:
    w = vector(1)

    def step(x: Tensor) -> None:
        w.assign(w + x)

    jitted = TinyJit(step)
    keep = []
    for i in range(5):
        expression = w + 1
        keep.append((expression * 2, expression.realize()))
        jitted(vector(1))
        assert (w + 1).tolist() == [i + 3]


def test_a_pending_update_of_state_that_nobody_returns() -> None:
    count = vector(0)

    def step(x: Tensor) -> Tensor:
        count.assign(count + 1)
        return x * 2

    jitted = TinyJit(step)
    for i in range(6):
        assert jitted(vector(i)).tolist() == [2 * i]
        assert count.tolist() == [i + 1]


def test_state_that_is_a_constant_at_first() -> None:
    count = Tensor.zeros(1)

    def step(x: Tensor) -> Tensor:
        count.assign(count + x)
        return count * 1

    jitted = TinyJit(step)
    for i in range(6):
        assert jitted(vector(1)).tolist() == [i + 1]


def test_state_that_is_returned_is_itself() -> None:
    w = vector(0)

    def step(x: Tensor) -> Tensor:
        return w.assign(w + x)

    jitted = TinyJit(step)
    for i in range(5):
        assert jitted(vector(1)) is w
        assert w.tolist() == [i + 1]


def test_memory_filled_inside_starts_anew_at_each_replay() -> None:
    def function(x: Tensor) -> Tensor:
        total = Tensor([1.0, 1.0])
        total += x
        total += x
        return total

    jitted = TinyJit(function)
    for i in range(5):
        assert jitted(vector(i, 1)).tolist() == [2 * i + 1, 3]


def test_memory_filled_inside_and_not_returned_starts_anew() -> None:
    def function(x: Tensor) -> Tensor:
        total = Tensor([1.0, 1.0])
        total += x
        total.realize()
        return total * 3

    jitted = TinyJit(function)
    for i in range(5):
        assert jitted(vector(i, 1)).tolist() == [3 * (i + 1), 6]


def test_setitem_inside() -> None:
    def function(x: Tensor) -> Tensor:
        out = Tensor.zeros(4).contiguous()
        out[1:3] = x
        return out

    jitted = TinyJit(function)
    for i in range(4):
        assert jitted(vector(i, 5)).tolist() == [0, i, 5, 0]


def test_a_key_value_cache_with_a_position() -> None:
    from aster_ml import Variable

    cache = Tensor.zeros(6).contiguous().realize()
    pos = Variable("pos", 0, 5)

    def step(x: Tensor, at: object) -> Tensor:
        cache[at : at + 1].assign(x).realize()  # type: ignore[operator, misc]
        return cache.sum() * 1

    jitted = TinyJit(step)
    for i in range(6):
        assert jitted(vector(i + 1), pos.bind(i)).item() == sum(range(1, i + 2))
    assert cache.tolist() == [1, 2, 3, 4, 5, 6]


def test_no_gradient_through_a_result_is_missed_silently() -> None:
    w = Tensor([2.0], requires_grad=True).realize()
    jitted = TinyJit(lambda x: (x * w).sum())
    for _ in range(4):
        out = jitted(vector(3))
        assert out.requires_grad
        assert out.item() == 6
        with pytest.raises(GradientError, match="jitted function"):
            (out + (w * 1).sum()).backward()
        w.grad = None
        (out.detach() + (w * 1).sum()).backward()
        assert w.grad.tolist() == [1]


def test_a_gradient_of_a_result_itself() -> None:
    w = Tensor([2.0], requires_grad=True).realize()
    jitted = TinyJit(lambda x: x * w)
    for _ in range(4):
        out = jitted(vector(3))
    (grad,) = (out * out).sum().gradient(out)
    assert grad.tolist() == [12]


def test_an_error_inside_leaves_everything_usable() -> None:
    w = vector(1)
    fail = [True]

    def function(x: Tensor) -> Tensor:
        y = (x + w).realize()
        if fail[0]:
            raise ValueError("on purpose")
        return y * 2

    jitted = TinyJit(function)
    x = vector(1)
    for _ in range(3):
        with pytest.raises(ValueError, match="on purpose"):
            jitted(x)
    fail[0] = False
    jitted(x)
    fail[0] = True
    with pytest.raises(ValueError, match="on purpose"):
        jitted(x)
    assert (x + w).tolist() == [2]
    assert x.tolist() == [1]
    fail[0] = False
    for i in range(4):
        assert jitted(vector(i)).tolist() == [2 * (i + 1)]


def test_what_was_made_before_an_error_can_be_used() -> None:
    kept: list[Tensor] = []
    fail = [False]

    def function(x: Tensor) -> Tensor:
        if fail[0]:
            kept.append(x * 2)
            raise ValueError("on purpose")
        return x + 1

    jitted = TinyJit(function)
    jitted(vector(1))
    fail[0] = True
    with pytest.raises(ValueError):
        jitted(vector(5))
    assert kept[0].tolist() == [10]


def test_reset_forgets() -> None:
    count = []
    jitted = TinyJit(lambda x: count.append(1) or x + 1)
    for _ in range(4):
        jitted(vector(1))
    jitted.reset()
    assert jitted.captured is None
    for _ in range(4):
        assert jitted(vector(1)).tolist() == [2]
    assert len(count) == 4


def test_a_result_of_another_kind_is_named() -> None:
    class Box:
        def __init__(self, x: Tensor) -> None:
            self.x = x

    jitted = TinyJit(lambda x: Box(x + 1))
    with pytest.raises(JitError, match=r"result of a jitted function is a Box"):
        jitted(vector(1))


def test_what_repeats_is_not_written_out() -> None:
    """As outside of a recording: a part is computed, and shown as often as it is there."""

    def function(x: Tensor) -> list[Tensor]:
        sums = x.sum(1, keepdim=True).expand(4, 1000)
        return [sums, (x + 1).reshape(4, 1, 3).expand(4, 50, 3) * 2, x.mean().expand(70, 1)]

    jitted = TinyJit(function)
    kept: list[tuple[list[Tensor], list[Any]]] = []
    for i in range(7):
        x = Tensor(np.arange(12, dtype=np.float32).reshape(4, 3) + i).realize()
        kept.append((jitted(x), [t.numpy() for t in function(x)]))
    for got, want in kept:
        for t, a in zip(got, want, strict=True):
            np.testing.assert_allclose(t.numpy(), a)
    assert [size for _, size, _ in jitted.latest.fresh] == [4, 12, 1]
    # Written to, it is another value; its memory is still that of what was returned beside it.
    last, beside = kept[-1][0][0], kept[-2][0][0]
    before = beside.numpy()
    last.assign(Tensor.ones(4, 1000))
    assert (last.numpy() == 1).all()
    np.testing.assert_array_equal(beside.numpy(), before)
