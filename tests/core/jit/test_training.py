"""TinyJit: random numbers and training steps are those of the plain function, step by step."""

from __future__ import annotations

import numpy as np
import pytest

from aster_ml import GlobalCounters, Tensor, TinyJit, nn
from aster_ml.errors import JitError
from aster_ml.nn.state import get_parameters, get_state_dict
from tests.core.jit_helpers import vector


def draws(function, jit: bool, calls: int = 6) -> list[list[float]]:
    Tensor.manual_seed(7)
    called = TinyJit(function) if jit else function
    return [called(vector(1)).numpy().copy().tolist() for _ in range(calls)]


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x + Tensor.rand(4),
        lambda x: x + Tensor.randn(3, 3).sum() + Tensor.rand(5).sum(),
        lambda x: (x + Tensor.rand(4)).realize() * Tensor.rand(4),
        lambda x: x.expand(64).dropout(0.5) if Tensor.training else x + Tensor.randint(5),
        lambda x: Tensor.rand(12).argsort() + x,
    ],
    ids=["rand", "two draws", "two kernels", "randint", "permutation"],
)
def test_random_numbers_are_those_of_drawing_anew(function) -> None:
    plain, jitted = draws(function, jit=False), draws(function, jit=True)
    assert plain == jitted
    assert len({tuple(np.ravel(row)) for row in plain}) == len(plain)


def test_draws_outside_between_replays() -> None:
    def run(jit: bool) -> list[float]:
        Tensor.manual_seed(3)
        function = lambda x: x + Tensor.rand(2)  # noqa: E731
        called = TinyJit(function) if jit else function
        out = []
        for _ in range(5):
            out += called(vector(0)).tolist() + Tensor.rand(1).tolist()
        return out

    assert run(True) == run(False)


def test_seeding_between_replays_repeats_the_numbers() -> None:
    jitted = TinyJit(lambda x: x + Tensor.rand(2))
    seen = []
    for _ in range(5):
        Tensor.manual_seed(11)
        seen.append(jitted(vector(0)).tolist())
    assert all(row == seen[0] for row in seen)


def test_a_random_tensor_from_outside_stays_what_it_is() -> None:
    outside = Tensor.rand(3)
    jitted = TinyJit(lambda x: x + outside)
    seen = [jitted(vector(0)).tolist() for _ in range(4)]
    assert all(row == seen[0] == outside.tolist() for row in seen)


def test_seeding_inside_is_named() -> None:
    def function(x: Tensor) -> Tensor:
        Tensor.manual_seed(5)
        return x + Tensor.rand(1)

    jitted = TinyJit(function)
    jitted(vector(1))
    with pytest.raises(JitError, match=r"seed is set inside.*outside"):
        jitted(vector(1))


class Net:
    """Convolution, batch norm, dropout and two linear layers."""

    def __init__(self) -> None:
        self.conv = nn.Conv2d(1, 4, 3)
        self.norm = nn.BatchNorm(4)
        self.hidden = nn.Linear(4 * 4 * 4, 8)
        self.out = nn.Linear(8, 3)

    def __call__(self, x: Tensor) -> Tensor:
        x = self.norm(self.conv(x)).relu().flatten(1)
        return self.out(self.hidden(x).relu().dropout(0.25))


OPTIMIZERS = {
    "sgd": lambda p: nn.optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=1e-3),
    "adam": lambda p: nn.optim.Adam(p, lr=0.01),
    "adamw fused": lambda p: nn.optim.AdamW(p, lr=0.01, fused=True),
    "lamb": lambda p: nn.optim.LAMB(p, lr=0.01),
}


def train(make_optimizer, jit: bool, steps: int = 6) -> list[np.ndarray]:
    """Losses, and all weights and statistics after each step."""
    Tensor.manual_seed(1)
    rng = np.random.default_rng(0)
    batches = [
        (
            rng.standard_normal((8, 1, 6, 6)).astype(np.float32),
            rng.integers(0, 3, 8).astype(np.int32),
        )
        for _ in range(steps)
    ]
    net = Net()
    optimizer = make_optimizer(get_parameters(net))

    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = net(x).sparse_categorical_crossentropy(y).backward()
        optimizer.step()
        return loss

    called = TinyJit(step) if jit else step
    seen = []
    with Tensor.train():
        for x, y in batches:
            loss = called(Tensor(x).realize(), Tensor(y).realize())
            seen.append(
                np.concatenate(
                    [loss.numpy().reshape(-1)]
                    + [
                        t.numpy().astype(np.float64).reshape(-1)
                        for t in get_state_dict(net).values()
                    ]
                )
            )
    return seen


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_jitted_training_step_is_the_plain_one(name: str) -> None:
    plain, jitted = train(OPTIMIZERS[name], jit=False), train(OPTIMIZERS[name], jit=True)
    for i, (a, b) in enumerate(zip(plain, jitted, strict=True)):
        np.testing.assert_allclose(b, a, rtol=2e-4, atol=2e-6, err_msg=f"step {i}")
    assert plain[0][0] != plain[-1][0]


def test_evaluation_between_training_steps() -> None:
    net = Net()
    optimizer = nn.optim.SGD(get_parameters(net), lr=0.1)
    x = Tensor.randn(4, 1, 6, 6).realize()
    y = Tensor([0, 1, 2, 0]).realize()

    @TinyJit
    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = net(x).sparse_categorical_crossentropy(y).backward()
        optimizer.step()
        return loss

    evaluate = TinyJit(lambda x: net(x))
    for _ in range(6):
        with Tensor.train():
            step(x, y)
        np.testing.assert_allclose(evaluate(x).numpy(), net(x).numpy(), rtol=1e-5, atol=1e-6)


def test_gradients_of_a_replay_are_not_those_of_another_step() -> None:
    w = Tensor([1.0], requires_grad=True).realize()
    optimizer = nn.optim.SGD([w], lr=0.1)

    @TinyJit
    def step(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = (w * x).sum().backward()
        optimizer.step()
        return loss

    with Tensor.train():
        for i in range(4):
            step(vector(i))
    with pytest.raises(JitError, match="none of its results"):
        w.grad.numpy()


def test_gradients_add_up_over_calls() -> None:
    w = Tensor([1.0], requires_grad=True).realize()

    @TinyJit
    def accumulate(x: Tensor) -> Tensor:
        return (w * x).sum().backward()

    for i in range(6):
        accumulate(vector(i))
        assert w.grad.item() == sum(range(i + 1))


def test_gradients_may_be_returned() -> None:
    w = Tensor([1.0, 2.0], requires_grad=True).realize()

    @TinyJit
    def gradient(x: Tensor) -> list[Tensor]:
        return (w * w * x).sum().gradient(w)

    for i in range(5):
        assert gradient(vector(i, 3))[0].tolist() == [2 * i, 12]


def test_the_learning_rate_is_a_tensor_that_may_change() -> None:
    w = vector(1)
    w.requires_grad = True
    optimizer = nn.optim.SGD([w], lr=1.0)

    @TinyJit
    def step(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = (w * x).sum().backward()
        optimizer.step()
        return loss

    want = 1.0
    with Tensor.train():
        for i in range(6):
            rate = 1.0 if i < 4 else 0.5
            optimizer.lr.assign(Tensor([rate]))
            step(vector(2))
            want -= rate * 2
            assert w.tolist() == [want]


def test_a_replay_is_one_native_call_and_no_compilation() -> None:
    net = nn.Linear(4, 4)
    jitted = TinyJit(lambda x: net(net(x).relu().realize()).relu())
    for i in range(3):
        jitted(vector(i, 1, 2, 3))
    GlobalCounters.reset()
    jitted(vector(5, 1, 2, 3))
    assert GlobalCounters.kernel_count == 2
    assert GlobalCounters.schedule_hits == GlobalCounters.schedule_misses == 0
    assert GlobalCounters.compiled_kernels == 0


def adversaries(jit: bool) -> tuple[list[float], nn.Linear]:
    """Losses of a generator and its judge, trained in turn, each by a step of its own."""
    Tensor.manual_seed(3)
    maker, judge = nn.Linear(2, 3), nn.Linear(3, 1)
    of_maker = nn.optim.Adam(get_parameters(maker), lr=0.01)
    of_judge = nn.optim.Adam(get_parameters(judge), lr=0.01)

    def train_judge(noise: Tensor, real: Tensor) -> Tensor:
        of_judge.zero_grad()
        loss = (judge(maker(noise).detach()).sigmoid() - judge(real).sigmoid()).mean()
        loss.backward()
        of_judge.step()
        return loss.realize()

    def train_maker(noise: Tensor) -> Tensor:
        # Adds to the gradients of the judge too, which nothing uses.
        of_maker.zero_grad()
        loss = -judge(maker(noise)).sigmoid().mean()
        loss.backward()
        of_maker.step()
        return loss.realize()

    first, second = (
        (TinyJit(train_judge), TinyJit(train_maker)) if jit else (train_judge, train_maker)
    )
    losses = []
    with Tensor.train():
        for _ in range(6):
            noise, real = Tensor.randn(8, 2).realize(), Tensor.randn(8, 3).realize()
            losses += [first(noise, real).item(), second(noise).item()]
    return losses, judge


def test_two_steps_that_share_a_network_train_it_in_turn() -> None:
    plain, _ = adversaries(jit=False)
    losses, judge = adversaries(jit=True)
    assert losses == pytest.approx(plain, rel=1e-5)
    # What one recording left behind and the other added to is computed by no replay.
    with pytest.raises(JitError, match="none of its results"):
        judge.weight.grad.numpy()


@pytest.mark.parametrize("realizes", [False, True])
@pytest.mark.parametrize("begins", [False, True])
def test_gradients_add_up_where_a_jitted_step_goes_on(realizes: bool, begins: bool) -> None:
    w = Tensor([1.0, 2.0]).realize().requires_grad_()

    @TinyJit
    def step(x: Tensor) -> Tensor:
        loss = (w * x).sum()
        loss.backward()
        if realizes:
            w.grad.realize()
        return loss.realize()

    wanted = 0
    if begins:
        (w * 5).sum().backward()
        wanted = 5
    for turn in range(3):
        for _ in range(3 + turn):
            step(vector(1, 1))
            wanted += 1
        assert w.grad.tolist() == [wanted, wanted]
        # A plain step leaves a gradient that is still to be computed, or nobody leaves any.
        w.grad, wanted = None, 0
        if turn == 0:
            (w * 5).sum().backward()
            wanted = 5
