"""Gradients of what was realized on the way: they go on to what it was computed from."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

from aster_ml import Context, Tensor, TinyJit, nn
from aster_ml.engine import history, storage
from aster_ml.errors import GradientError
from aster_ml.uop.interned import NODES

torch = pytest.importorskip("torch")

VALUES = [1.0, 2.0, 3.0]


def leaf() -> Tensor:
    return Tensor(VALUES, requires_grad=True)


def torch_leaf() -> Any:
    return torch.tensor(VALUES, requires_grad=True)


def check_same(tensor: Tensor | None, wanted: Any) -> None:
    assert tensor is not None
    np.testing.assert_allclose(tensor.numpy(), wanted.numpy(), rtol=1e-3, atol=1e-4)


COMPUTED = {
    "square": lambda a: a * a,
    "copy": lambda a: (a * a).clone(),
    "contiguous": lambda a: (a * a).contiguous(),
    "expanded": lambda a: (a * a).reshape(3, 1).expand(3, 4),
    "part": lambda a: a.exp()[1:],
    "sum": lambda a: (a * a).sum(),
    "view": lambda a: a.reshape(3, 1),
    "flipped": lambda a: a.exp().reshape(1, 3).flip((1,)),
    "zeros": lambda a: a * 0,
}


@pytest.mark.parametrize("name", COMPUTED)
def test_gradients_go_through_what_was_realized(name: str) -> None:
    a, b = leaf(), torch_leaf()
    h = COMPUTED[name](a).realize()
    k = (h * h + h).realize()
    (k * h).sum().realize().backward()
    if name == "flipped":
        t = b.exp().reshape(1, 3).flip(1)
    else:
        t = COMPUTED[name](b)
    t.retain_grad()
    u = t * t + t
    u.retain_grad()
    (u * t).sum().backward()
    check_same(a.grad, b.grad)
    check_same(h.grad, t.grad)
    check_same(k.grad, u.grad)


def test_loss_and_value_realized_together() -> None:
    a = leaf()
    h = a * a
    loss = (h * 2).sum()
    Tensor.realize(loss, h)
    loss.backward()
    assert a.grad is not None
    assert h.grad is not None
    assert a.grad.tolist() == [4, 8, 12]
    assert h.grad.tolist() == [2, 2, 2]


@pytest.mark.parametrize("way", ["realize", "numpy", "numpy, realize", "guard"])
def test_state_realized_at_each_step(way: str) -> None:
    start = np.random.RandomState(0).randn(4, 4).astype(np.float32) / 2
    w, v = Tensor(start, requires_grad=True), torch.tensor(start, requires_grad=True)
    h, t = Tensor.ones(2, 4), torch.ones(2, 4)
    with Context(GRAPH_GUARD=2 * (way == "guard"), GRAPH_LIMIT=40):
        for _ in range(20):
            h, t = (h @ w + 1).tanh(), (t @ v + 1).tanh()
            if "numpy" in way:
                h.numpy()
            if "realize" in way:
                h.realize()
    (h * h).sum().backward()
    (t * t).sum().backward()
    check_same(w.grad, v.grad)


def test_past_of_many_steps_is_walked_and_freed() -> None:
    count, nodes = len(history.PASTS.data), None
    for _ in range(3):
        a = leaf()
        h = a
        for _ in range(1500):
            h = (h + 1).realize()
        assert len(history.PASTS.data) == count + 1500
        h.sum().backward()
        assert a.grad is not None
        assert a.grad.tolist() == [1, 1, 1]
        del a, h
        gc.collect()
        assert len(history.PASTS.data) == count
        assert nodes is None or len(NODES) <= nodes
        nodes = len(NODES) + 10


def test_second_derivative() -> None:
    a = leaf()
    h = (a * a).realize()
    (first,) = (h * h).sum().gradient(a)
    (second,) = first.sum().gradient(a)
    assert second.tolist() == [12, 48, 108]


@pytest.mark.parametrize("axis", [None, 0])
def test_on_several_devices(axis: int | None) -> None:
    values = np.arange(1, 5, dtype=np.float32)
    a = Tensor(values).shard(("CPU:0", "CPU:1"), axis=axis).requires_grad_()
    h = (a * a).realize()
    (h.reshape(4, 1) + 1).log().realize().sum().realize().backward()
    b = torch.tensor(values, requires_grad=True)
    (b * b + 1).log().sum().backward()
    check_same(a.grad, b.grad)


def test_in_a_jitted_function() -> None:
    a = leaf()

    @TinyJit
    def step(x: Tensor) -> Tensor:
        a.grad = None
        h = (a * x).realize()
        k = (h * h).realize()
        (k * a).sum().backward()
        assert a.grad is not None
        return a.grad.realize()

    for i in range(5):
        b = torch_leaf()
        ((b * torch.tensor([1.0, i, 2.0])) ** 2 * b).sum().backward()
        check_same(step(Tensor([1.0, i, 2.0]).realize()), b.grad)


def test_result_of_a_jitted_function_has_no_past() -> None:
    double = TinyJit(lambda x: (x * 2).realize())
    for _ in range(4):
        a = leaf()
        h = (a * a).realize()
        with pytest.raises(GradientError, match="jitted function"):
            (double(h).realize() + 1).realize().sum().backward()
        (h * 2).sum().backward()
        assert a.grad is not None
        assert a.grad.tolist() == [4, 8, 12]


def test_dropped_out_values_stay_the_same() -> None:
    with Tensor.train():
        a = Tensor.ones(1000).contiguous().realize().requires_grad_()
        h = (a * 1).dropout(0.5).realize()
        Tensor.rand(4).realize()
        h.sum().backward()
    assert a.grad is not None
    np.testing.assert_array_equal(a.grad.numpy(), h.numpy())


@pytest.mark.parametrize("together", [False, True])
def test_memory_that_was_written_to_since_is_an_error(together: bool) -> None:
    a = leaf()
    h = a * a
    if not together:
        h.realize()
    Tensor.realize(h, a.assign(Tensor([5.0, 5.0, 5.0])))
    with pytest.raises(GradientError, match="written to"):
        (h * 2).sum().backward()


def test_memory_that_the_gradient_does_not_read_may_be_written_to() -> None:
    a = leaf()
    h = (a * 3).realize()
    a.assign(Tensor([5.0, 5.0, 5.0])).realize()
    (h * 2).sum().backward()
    assert a.grad is not None
    assert a.grad.tolist() == [6, 6, 6]


def test_writes_to_what_was_realized() -> None:
    a, b = leaf(), torch_leaf()
    h, t = a.exp().realize(), b.exp()
    k, u = h.sin(), t.sin()
    h += 1
    t = t + 1
    h.realize()
    ((h * h).realize() + k).sum().backward()
    (t * t + u).sum().backward()
    check_same(a.grad, b.grad)
    a = leaf()
    h = a.exp().realize()
    h.assign(a * 3).realize()
    (h * 2).sum().backward()
    assert a.grad is not None
    assert a.grad.tolist() == [6, 6, 6]
    a = leaf()
    h = (a * a).realize()
    h[1] = 7.0
    h.realize()
    (h * 2).sum().backward()
    assert a.grad is not None
    assert a.grad.tolist() == [4, 0, 12]


def test_nothing_is_kept_where_nothing_wants_a_gradient() -> None:
    before = dict(history.PASTS.data)
    a, frozen = leaf(), Tensor([1.0, 2.0])
    held = [
        (frozen * 2).realize(),
        (a.detach() * 2).realize(),
        (a > 1).float().mean().realize(),
        (a.argmax() + 1).realize(),
        a.reshape(3, 1).realize(),
    ]
    assert history.PASTS.data == before
    held.append((a * 2).realize())
    assert len(history.PASTS.data) == len(before) + 1
    assert len(held) == 6


def test_a_loop_of_training_does_not_grow() -> None:
    rng = np.random.RandomState(0)
    first, second = nn.Linear(4, 8), nn.Linear(8, 1)
    optimiser = nn.optim.Adam(nn.state.get_parameters([first, second]), lr=0.01)
    running, right = Tensor([0.0]), Tensor([0.0])
    seen = []
    with Tensor.train():
        for i in range(500):
            x = Tensor(rng.randn(3, 4).astype(np.float32))
            optimiser.zero_grad()
            h = first(x).relu().realize()
            y = second(h).realize()
            loss = (y * y).mean().realize()
            loss.backward()
            optimiser.step()
            running = (running * 0.9 + loss.detach()).realize()
            right = (right + (y > 0).float().mean()).realize()
            if i % 50 == 49:
                gc.collect()
                seen.append((len(NODES), len(storage.BUFFERS), len(history.PASTS.data)))
    assert max(seen[1:]) <= max(seen[:2])
    assert seen[-1][2] <= 6


READ = {
    "numpy": lambda h: h.numpy(),
    "realize": lambda h: h.realize(),
    "loss read": lambda h: (h * 1).sum().item(),
    "schedule": lambda h: [item.lower().run() for item in h.schedule()],
}


@pytest.mark.parametrize("late", [False, True], ids=["write lazy", "write run"])
@pytest.mark.parametrize("way", [None, *READ])
@pytest.mark.parametrize("on", ["CPU", "PYTHON", ("CPU:0", "CPU:1")], ids=str)
def test_gradients_of_what_was_built_before_a_write(way: str | None, late: bool, on: Any) -> None:
    a = Tensor([1.0, 2.0, 3.0, 4.0]).to(on).realize().requires_grad_()
    h = a * a
    if way is not None:
        READ[way](h)
    a.assign(Tensor([5.0, 6.0, 7.0, 8.0]).to(on))
    if late:
        a.realize()
    loss = (h * 2).sum()
    if late:
        with pytest.raises(GradientError, match="written to"):
            loss.backward()
    else:
        loss.backward()
        assert a.grad is not None
        assert a.grad.tolist() == [4, 8, 12, 16]
    assert h.tolist() == [1, 4, 9, 16]


def test_gradients_before_and_after_a_write_reach_the_same_tensor() -> None:
    a, b = leaf(), torch_leaf()
    h, t = a * 3, b * 3
    a.assign(Tensor([5.0, 5.0, 5.0]))
    h.realize()
    k = a * a
    a.realize()
    a += 1
    with torch.no_grad():
        u = torch.full((3,), 5.0, requires_grad=True)
    (h + k).sum().realize().backward()
    (t.sum() + (u * u).sum()).backward()
    assert a.grad is not None
    np.testing.assert_allclose(a.grad.numpy(), (b.grad + u.grad).numpy())


def test_a_step_of_an_optimiser_between_loss_and_backward() -> None:
    for reads in (False, True):
        layer = nn.Linear(3, 2)
        optimiser = nn.optim.SGD(nn.state.get_parameters(layer), lr=0.1)
        with Tensor.train():
            layer(Tensor([VALUES])).sum().backward()
            optimiser.step()
            optimiser.zero_grad()
            out = layer(Tensor([VALUES]))
            loss = (out * layer.weight.sum() if reads else out).sum()
            first = loss.item()
            for p in optimiser.params:
                p.grad = p * 0 + 1
            optimiser.step()
            optimiser.zero_grad()
            if reads:
                with pytest.raises(GradientError, match="written to"):
                    loss.backward()
            else:
                loss.backward()
                assert layer.weight.grad is not None
                assert layer.weight.grad.tolist() == [VALUES, VALUES]
            assert loss.item() == first


def test_a_jitted_write_between_loss_and_backward() -> None:
    w = Tensor(VALUES).realize()
    w.requires_grad = True

    @TinyJit
    def step() -> None:
        w.assign(w.detach() * 2).realize()

    for _ in range(4):
        h = w * w
        loss = h.sum()
        loss.realize()
        step()
        with pytest.raises(GradientError, match="written to"):
            loss.backward()
        w.grad = None
        (w * 3).sum().backward()
        assert w.grad is not None
        assert w.grad.tolist() == [3, 3, 3]


def test_a_parameter_that_had_no_memory_when_the_loss_was_built() -> None:
    layer = nn.Linear(3, 2)
    layer.weight.requires_grad = True
    out = layer(Tensor([VALUES])).sum()
    layer.weight.assign(Tensor.ones(2, 3)).realize()
    out.backward()
    assert layer.weight.grad is not None
    assert layer.weight.grad.tolist() == [VALUES, VALUES]


def test_requiring_a_gradient_of_a_value_on_the_way_does_not_cut_it_off() -> None:
    for realized in (False, True):
        a, b = leaf(), torch_leaf()
        h, t = (a * a).requires_grad_(True), (b * b).requires_grad_(True)
        t.retain_grad()
        if realized:
            h.realize()
        (h * h).sum().backward()
        (t * t).sum().backward()
        check_same(a.grad, b.grad)
        check_same(h.grad, t.grad)


def test_writes_to_a_leaf_are_no_step_of_the_gradient() -> None:
    a, b = leaf(), leaf()
    a.assign(b * 2)
    (a * a).sum().backward()
    assert b.grad is None
    assert a.grad is not None
    assert a.grad.tolist() == [4, 8, 12]


def test_what_was_read_between_two_writes_that_run_together() -> None:
    for together in (False, True):
        a = leaf()
        a.detach()[1:] = Tensor([5.0, 6.0])
        if not together:
            a.realize()
        first = a.sin()
        a.detach().assign(a.detach() + 1)
        second = a.sin()
        a.assign(a.detach() * 2).realize()
        third = a.sin()
        for h in (first, second):
            with pytest.raises(GradientError, match="written to"):
                h.sum().backward()
        third.sum().backward()
        assert a.grad is not None
        np.testing.assert_allclose(a.grad.numpy(), np.cos([4.0, 12.0, 14.0]), rtol=1e-5)


MADE = {
    "zeros": lambda: Tensor.zeros(3),
    "memory": lambda: Tensor([0.0, 0.0, 0.0]),
    "realized": lambda: Tensor([0.0, 0.0, 0.0]).realize(),
}


@pytest.mark.parametrize("made", MADE)
def test_what_a_loss_is_added_up_in_may_be_read(made: str) -> None:
    a, b = leaf(), torch_leaf()
    total, want = MADE[made](), torch.zeros(3)
    for i in range(3):
        total += a * a * i
        want = want + b * b * i
        np.testing.assert_allclose(total.numpy(), want.detach().numpy())
    assert total.requires_grad
    (total * a).sum().backward()
    (want * b).sum().backward()
    check_same(a.grad, b.grad)


def test_what_was_written_to_data_is_read_by_gradients_until_it_is_realized() -> None:
    a = leaf()
    rows = Tensor.zeros(3).contiguous().realize()
    rows[0] = a[0] * 2
    rows.numpy()
    rows.sum().backward()
    assert a.grad is not None
    assert a.grad.tolist() == [2, 0, 0]
    rows.realize()
    assert not rows.requires_grad
    with pytest.raises(GradientError, match="does not keep"):
        (rows * a).sum().backward()
    (rows.detach() * a).sum().backward()
    assert a.grad.tolist() == [4, 0, 0]
    rows.assign(Tensor(VALUES)).realize()
    (rows * a).sum().backward()
    assert a.grad.tolist() == [5, 2, 3]


def test_a_moving_average_that_is_not_detached_keeps_one_step() -> None:
    w = leaf()
    average = Tensor([0.0, 0.0, 0.0]).realize()
    seen = []
    for _ in range(8):
        for _ in range(4):
            average.assign(average * 0.5 + w * 0.5).realize()
        gc.collect()
        seen.append((len(NODES), len(storage.BUFFERS), len(history.PASTS.data)))
    assert max(seen[2:]) <= max(seen[:2])


def test_a_view_of_a_clone_that_is_computed_with_it() -> None:
    a = leaf()
    v = a.clone().flip(0)
    h = (v * v).sin()
    v.realize()
    h.realize()
    h.sum().backward()
    b = torch_leaf()
    (b.flip(0) ** 2).sin().sum().backward()
    check_same(a.grad, b.grad)


@pytest.mark.parametrize("made", ["x + 1", "x.cast('float64')", "x.exp()"])
def test_equal_values_that_require_gradients_are_two(made: str) -> None:
    x = Tensor(VALUES).realize()
    first, second = eval(made, {"x": x}), eval(made, {"x": x})
    first.requires_grad = True
    (first * 2 + second * 3).sum().backward()
    assert first.grad is not None
    assert first.grad.tolist() == [2, 2, 2]
    second.requires_grad = True
    (first * 2 + second * 3).sum().backward()
    assert second.grad is not None
    assert first.grad.tolist() == [4, 4, 4]
    assert second.grad.tolist() == [3, 3, 3]


def test_a_write_that_waits_runs_once_whatever_gradients_read() -> None:
    x, p = Tensor([1.0, 2.0]).clone(), Tensor([1.0, 1.0], requires_grad=True)
    h = p * x
    reader = (h.detach() + x) * 2
    x.assign(h.detach() * 3)
    for item in h.schedule():
        item.lower().run()
    (h * x).sum().backward()
    assert p.grad is not None
    assert p.grad.tolist() == [3, 12]
    assert reader.tolist() == [4, 8]
    assert x.tolist() == [3, 6]


def test_a_write_that_hands_no_gradient_down_is_passed_by() -> None:
    """Power iteration of spectral norms: the vector is written each step, all of it detached."""
    w = Tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], requires_grad=True)
    theirs = torch.tensor(w.tolist(), requires_grad=True)
    u, v = Tensor([1.0, 2.0]).realize(), torch.tensor([1.0, 2.0])
    for _ in range(3):
        loss = step_of_norm(w, u)
        right = theirs.detach().T @ v
        v = theirs.detach() @ right / 100
        want = v @ (theirs @ right)
        np.testing.assert_allclose(loss.item(), want.item(), rtol=1e-5)
    step_of_norm(w, u).backward()
    right = theirs.detach().T @ v
    (theirs.detach() @ right / 100 @ (theirs @ right)).backward()
    assert w.grad is not None
    assert theirs.grad is not None
    np.testing.assert_allclose(w.grad.numpy(), theirs.grad.numpy(), rtol=1e-5)


def step_of_norm(w: Tensor, u: Tensor) -> Tensor:
    right = w.detach().T @ u
    u.assign(w.detach() @ right / 100)
    return u @ (w @ right)


def gradients_of(loss: Tensor, *tensors: Tensor) -> list[Any]:
    return [g.tolist() for g in loss.gradient(*tensors, materialize_grads=True)]


def test_two_views_of_one_tensor_have_their_own_gradients() -> None:
    a = Tensor.full((2, 1), 3.0, requires_grad=True)
    first = a.reshape(2).realize()
    second = a.reshape(2)
    flipped = second.flip(0).realize()
    loss = first.sum() * 3 + flipped.sum()
    assert gradients_of(loss, first, second) == [[3, 3], [1, 1]]
    assert gradients_of(loss, a) == [[[4], [4]]]


def test_a_view_made_before_its_memory_is_none_made_after() -> None:
    a = leaf()
    h = a * 2
    before = h.reshape(3, 1)
    h.realize()
    after = h.reshape(3, 1)
    Tensor.realize(before, after)
    assert gradients_of(before.sum() * 3, before, after) == [[[3]] * 3, [[0]] * 3]


def test_an_equal_tensor_that_shows_a_leaf_hands_its_gradient_on() -> None:
    a = Tensor.full((), 3.0, requires_grad=True)
    first, second = a.contiguous(), a.contiguous()
    a.realize(second)
    assert gradients_of(second * 7 + first * 5, a, first, second) == [12, 5, 7]


def test_a_view_of_an_equal_tensor_is_no_view_of_the_other() -> None:
    a = leaf()
    first, second = a * 2, a * 2
    part = second[0:1]
    Tensor.realize(first, part)
    assert gradients_of(part.sum() * 7, first, second, a) == [[0, 0, 0], [7, 0, 0], [14, 0, 0]]


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("is_kept", [True, False])
def test_no_gradient_goes_through_what_was_detached_and_realized(count: int, is_kept: bool) -> None:
    a = leaf()
    h = (a * 2).realize()
    last = [h.detach() for _ in range(count)][-1]
    if not is_kept:
        del h
    last.realize()
    assert gradients_of((last * a).sum(), a, last) == [[2, 4, 6], VALUES]


def test_a_detached_leaf_keeps_its_name_when_it_is_realized() -> None:
    a = leaf()
    h = (a * 2).realize()
    first, second = h.detach().requires_grad_(), h.detach().requires_grad_()
    loss = (first * 3 + second * 5 + h).sum()
    Tensor.realize(first, second, h)
    loss.backward()
    assert [t.grad.tolist() for t in (first, second, a) if t.grad is not None] == [
        [3, 3, 3],
        [5, 5, 5],
        [2, 2, 2],
    ]


def test_what_was_made_of_a_leaf_that_is_gone_has_a_gradient() -> None:
    a = leaf()
    h = a * 2
    del a
    loss = (h.realize() * h).sum().realize()
    assert gradients_of(loss, h) == [[4, 8, 12]]


@pytest.mark.parametrize(
    "make",
    [
        lambda a: a**0,
        lambda a: a[3:].sum(),
        lambda a: a[3:].realize().sum(),
        lambda a: a[3:].realize().pad((1, 2)),
    ],
)
def test_a_number_made_of_a_leaf_has_a_gradient(make: Any) -> None:
    a = leaf()
    h = make(a)
    loss = (h * 5).sum().realize()
    assert gradients_of(loss, h) == [np.full(h.shape, 5.0).tolist()]


def test_a_detached_view_of_what_a_write_fills_is_read_as_it_was_written() -> None:
    a = Tensor.full((2,), 3.0, requires_grad=True)
    first, second = a.detach().requires_grad_(), a.detach().requires_grad_()
    product = first * second
    Tensor.realize(first, product)
    assert gradients_of(product.sum(), first, second) == [[3, 3], [3, 3]]


@pytest.mark.parametrize("is_first", [True, False])
def test_what_a_slice_has_on_its_way_is_no_other_tensor(is_first: bool) -> None:
    """A slice with a step is a reshape and two cuts, and the reshape is a view by itself too."""
    a = Tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
    first = a[None] if is_first else a[::2]
    second = a[::2] if is_first else a[None]
    whole, part = (first, second) if is_first else (second, first)
    loss = part.sum() * 5 + whole.sum() * 6
    assert gradients_of(loss, whole, part) == [[[[6, 6], [6, 6]]], [[5, 5]]]
    assert gradients_of(loss, a) == [[[11, 11], [6, 6]]]
