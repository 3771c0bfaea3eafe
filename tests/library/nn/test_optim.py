"""Optimisers beside PyTorch's where it has them, beside the papers' formulas in NumPy elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from aster_ml import GlobalCounters, Tensor, TinyJit, dtypes
from aster_ml.errors import ArgumentError, GradientError
from aster_ml.nn import optim
from aster_ml.nn.state import get_state_dict
from tests.fuzz.budget import draws

SHAPES = ((4, 3), (3,), (2, 3, 2))
Arrays = list[np.ndarray]
Rule = Callable[[int, np.ndarray, np.ndarray, dict[str, Any]], np.ndarray]


def start_and_gradients(
    shapes: tuple[tuple[int, ...], ...] = SHAPES, steps: int = 5
) -> tuple[Arrays, list[Arrays]]:
    """First values of the parameters, and their gradients at each step."""
    rng = np.random.default_rng(7)
    start = [rng.standard_normal(s).astype(np.float32) for s in shapes]
    return start, [
        [rng.standard_normal(s).astype(np.float32) for s in shapes] for _ in range(steps)
    ]


def run_ours(make: Callable[[list[Tensor]], optim.Optimizer], **draw: Any) -> Arrays:
    """The parameters after steps with the drawn gradients."""
    start, gradients = start_and_gradients(**draw)
    params = [Tensor(a, requires_grad=True) for a in start]
    optimizer = make(params)
    with Tensor.train():
        for step in gradients:
            optimizer.zero_grad()
            for t, g in zip(params, step):
                t.grad = Tensor(g)
            optimizer.step()
    return [t.numpy() for t in params]


def run_formula(rule: Rule, **draw: Any) -> Arrays:
    """The same in float64 with a rule: index, parameter, gradient, its own state -> new value."""
    start, gradients = start_and_gradients(**draw)
    params = [a.astype(np.float64) for a in start]
    states: list[dict[str, Any]] = [{} for _ in params]
    for step in gradients:
        params = [
            rule(i, t, g.astype(np.float64), states[i])
            for i, (t, g) in enumerate(zip(params, step))
        ]
    return params


def assert_all_close(got: Arrays, want: Arrays, **tolerance: float) -> None:
    """Every parameter within a few float32 roundings."""
    assert len(got) == len(want)
    for a, b in zip(got, want):
        np.testing.assert_allclose(a, b, **{"atol": 2e-6, "rtol": 1e-5, **tolerance})


TORCH_CASES: list[tuple[str, dict[str, Any], str, dict[str, Any]]] = [
    ("SGD", {"lr": 0.1}, "SGD", {"lr": 0.1}),
    (
        "SGD",
        {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.05},
        "SGD",
        {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.05},
    ),
    (
        "SGD",
        {"lr": 0.1, "momentum": 0.8, "nesterov": True},
        "SGD",
        {"lr": 0.1, "momentum": 0.8, "nesterov": True},
    ),
    (
        "SGD",
        {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.05, "classic": True},
        "SGD",
        {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.05},
    ),
    ("Adam", {"lr": 0.05}, "Adam", {"lr": 0.05}),
    (
        "Adam",
        {"lr": 0.05, "b1": 0.8, "b2": 0.95, "eps": 1e-4},
        "Adam",
        {"lr": 0.05, "betas": (0.8, 0.95), "eps": 1e-4},
    ),
    ("AdamW", {"lr": 0.05}, "AdamW", {"lr": 0.05}),
    ("AdamW", {"lr": 0.05, "weight_decay": 0.2}, "AdamW", {"lr": 0.05, "weight_decay": 0.2}),
]


@pytest.mark.torch
@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize(("name", "ours", "twin", "theirs"), TORCH_CASES)
def test_beside_torch(
    name: str, ours: dict[str, Any], twin: str, theirs: dict[str, Any], fused: bool
) -> None:
    torch = pytest.importorskip("torch")
    start, gradients = start_and_gradients()
    params = [torch.tensor(a, requires_grad=True) for a in start]
    optimizer = getattr(torch.optim, twin)(params, **theirs)
    for step in gradients:
        for t, g in zip(params, step):
            t.grad = torch.tensor(g)
        optimizer.step()
    got = run_ours(lambda p: getattr(optim, name)(p, fused=fused, **ours))
    assert_all_close(got, [t.detach().numpy() for t in params])


def lamb_rule(lr: float, wd: float) -> Rule:
    """Algorithm 2 of You et al. 2019 with the identity as phi and bias correction."""
    b1, b2, eps = 0.9, 0.999, 1e-6

    def rule(i: int, t: np.ndarray, g: np.ndarray, s: dict[str, Any]) -> np.ndarray:
        s["n"] = s.get("n", 0) + 1
        s["m"] = b1 * s.get("m", 0) + (1 - b1) * g
        s["v"] = b2 * s.get("v", 0) + (1 - b2) * g**2
        step = s["m"] / (1 - b1 ** s["n"]) / (np.sqrt(s["v"] / (1 - b2 ** s["n"])) + eps) + wd * t
        return t - lr * np.linalg.norm(t) / np.linalg.norm(step) * step

    return rule


def lars_rule(lr: float, wd: float, momentum: float, tcoef: float) -> Rule:
    """Algorithm 1 of You, Gitman and Ginsburg 2017."""

    def rule(i: int, t: np.ndarray, g: np.ndarray, s: dict[str, Any]) -> np.ndarray:
        size = np.linalg.norm(t)
        local = tcoef * size / (np.linalg.norm(g) + wd * size)
        s["b"] = momentum * s.get("b", 0) + lr * local * (g + wd * t)
        return t - s["b"]

    return rule


def muon_rule(lr: float, wd: float, momentum: float, nesterov: bool) -> Rule:
    """Jordan et al. 2024: momentum, quintic Newton-Schulz on the matrix, decoupled decay."""

    def rule(i: int, t: np.ndarray, g: np.ndarray, s: dict[str, Any]) -> np.ndarray:
        s["b"] = momentum * s.get("b", 0) + g
        g = g + momentum * s["b"] if nesterov else s["b"]
        x = g.reshape(g.shape[0], -1)
        x = x / np.linalg.norm(x)
        tall = x.shape[0] > x.shape[1]
        x = x.T if tall else x
        for _ in range(5):
            a = x @ x.T
            x = 3.4445 * x + (-4.775 * a + 2.0315 * a @ a) @ x
        return t * (1 - lr * wd) - lr * (x.T if tall else x).reshape(t.shape)

    return rule


@pytest.mark.parametrize("fused", [False, True])
def test_lamb_is_the_paper_s(fused: bool) -> None:
    got = run_ours(lambda p: optim.LAMB(p, lr=0.05, weight_decay=0.1, fused=fused))
    assert_all_close(got, run_formula(lamb_rule(0.05, 0.1)))


@pytest.mark.parametrize("fused", [False, True])
def test_lars_is_the_paper_s(fused: bool) -> None:
    got = run_ours(lambda p: optim.LARS(p, lr=2.0, weight_decay=0.01, tcoef=0.02, fused=fused))
    assert_all_close(got, run_formula(lars_rule(2.0, 0.01, 0.9, 0.02)))


@pytest.mark.parametrize("nesterov", [False, True])
def test_muon_is_its_author_s(nesterov: bool) -> None:
    shapes = ((4, 3), (3, 5), (2, 3, 2))
    got = run_ours(lambda p: optim.Muon(p, lr=0.05, nesterov=nesterov), shapes=shapes)
    want = run_formula(muon_rule(0.05, 0.1, 0.95, nesterov), shapes=shapes)
    assert_all_close(got, want, atol=2e-5)


# What the reference (tinygrad 0.12.0) gives for a parameter of shape [3] after four steps with
# these settings, from the values and gradients of `start_and_gradients(((4, 3), (3,)), 4)`.
GOLDEN: list[tuple[str, dict[str, Any], list[float]]] = [
    ("SGD", {"lr": 0.1}, [0.2613814, -1.0673555, -0.2346003]),
    ("SGD", {"lr": 0.1, "weight_decay": 0.05}, [0.2575965, -1.0481625, -0.232833]),
    (
        "SGD",
        {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.05},
        [0.5330523, -1.1555897, -0.4297217],
    ),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True}, [0.6544893, -1.3081461, -0.5986807]),
    (
        "SGD",
        {"lr": 0.1, "momentum": 0.9, "classic": True, "weight_decay": 0.05},
        [0.5330523, -1.1555897, -0.4297217],
    ),
    ("Adam", {"lr": 0.05}, [0.2447602, -0.9510115, -0.1595169]),
    ("AdamW", {"lr": 0.05, "weight_decay": 0.1}, [0.241354, -0.9329913, -0.1577252]),
    ("LAMB", {"lr": 0.05, "weight_decay": 0.1}, [0.2161295, -0.9688265, -0.1336989]),
    ("LARS", {"lr": 0.5}, [0.1076506, -0.9310879, -0.0306138]),
    (
        "LARS",
        {"lr": 0.5, "classic": False, "nesterov": True, "weight_decay": 0.01},
        [0.1075475, -0.9314691, -0.0310906],
    ),
    (
        "LARS",
        {"lr": 0.5, "pre_wd": False, "weight_decay": 0.1},
        [0.0876687, -0.7584007, -0.0249571],
    ),
]


@pytest.mark.parametrize(("name", "settings", "want"), GOLDEN)
def test_beside_the_reference(name: str, settings: dict[str, Any], want: list[float]) -> None:
    got = run_ours(lambda p: getattr(optim, name)(p, **settings), shapes=((4, 3), (3,)), steps=4)
    np.testing.assert_allclose(got[1], want, atol=1e-6)


def test_state_has_the_names_of_checkpoints() -> None:
    params = [Tensor([1.0, 2.0]), Tensor([[3.0]])]
    assert list(get_state_dict(optim.Adam(params)))[:2] == ["params.0", "params.1"]
    assert {"lr", "b1_t", "b2_t", "m.0", "m.1", "v.0", "v.1"} <= set(
        get_state_dict(optim.Adam(params))
    )
    assert {"lr", "b.0", "b.1"} <= set(get_state_dict(optim.SGD(params, momentum=0.9)))
    assert get_state_dict(optim.SGD(params, momentum=0.9, fused=True))["b.0"].shape == (3,)


def test_parameters_and_buffers_are_told_apart() -> None:
    undecided, yes, no = Tensor([1.0]), Tensor([2.0], requires_grad=True), Tensor([3.0])
    no.requires_grad = False
    optimizer = optim.SGD([undecided, yes, no, yes])
    assert [id(t) for t in optimizer.params] == [id(undecided), id(yes)]
    assert [id(t) for t in optimizer.buffers] == [id(no)]
    assert undecided.requires_grad is True
    assert optimizer.lr.shape == (1,)


def test_zero_grad_forgets() -> None:
    t = Tensor([1.0, 2.0])
    optimizer = optim.SGD([t])
    (t * t).sum().backward()
    assert t.grad is not None
    optimizer.zero_grad()
    assert t.grad is None


def test_assigned_learning_rate_is_used() -> None:
    t = Tensor([1.0, 2.0])
    optimizer = optim.SGD([t], lr=1.0)
    optimizer.lr.assign(Tensor([0.25]))
    with Tensor.train():
        t.grad = Tensor([2.0, 4.0])
        optimizer.step()
    assert t.tolist() == [0.5, 1.0]
    assert optimizer.lr.tolist() == [0.25]


def test_step_keeps_the_parameters_tensors_and_writes_buffers() -> None:
    t, running = Tensor([1.0]), Tensor([0.0], requires_grad=False)
    optimizer = optim.SGD([t, running], lr=0.5)
    with Tensor.train():
        (t * 3).sum().backward()
        running.assign(running + 7)
        optimizer.step()
    assert t.tolist() == [-0.5]
    assert running.tolist() == [7.0]


def test_half_precision_parameters_keep_wide_state() -> None:
    t = Tensor([1.0, 2.0], dtype=dtypes.float16)
    optimizer = optim.AdamW([t], lr=0.5, weight_decay=0.0)
    with Tensor.train():
        t.grad = Tensor([1.0, -1.0], dtype=dtypes.float16)
        optimizer.step()
    assert t.dtype == dtypes.float16
    assert optimizer.m[0].dtype == dtypes.float32
    np.testing.assert_allclose(t.numpy(), [0.5, 2.5], atol=1e-3)


def test_group_steps_every_optimizer() -> None:
    a, b = Tensor([1.0]), Tensor([1.0])
    group = optim.OptimizerGroup(optim.SGD([a], lr=0.5), optim.SGD([b], lr=0.25))
    assert [id(t) for t in group.params] == [id(a), id(b)]
    with Tensor.train():
        (a * 2 + b * 4).sum().backward()
        group.step()
    assert a.tolist() == [0.0]
    assert b.tolist() == [0.0]
    assert group[1].lr.tolist() == [0.25]
    group.zero_grad()
    assert a.grad is None
    assert b.grad is None


def test_schedule_step_realizes_nothing_by_itself() -> None:
    t = Tensor([1.0])
    optimizer = optim.SGD([t], lr=0.5, momentum=0.5)
    t.grad = Tensor([1.0])
    tensors = optimizer.schedule_step()
    ids = {id(x) for x in tensors}
    assert {id(t), id(optimizer.b[0])} <= ids
    Tensor.realize(*tensors)
    assert t.tolist() == [0.5]


def test_step_outside_training_says_what_to_do() -> None:
    t = Tensor([1.0])
    optimizer = optim.Adam([t])
    t.grad = Tensor([1.0])
    with pytest.raises(RuntimeError, match=r"Adam.step\(\) with Tensor.training=False.*train"):
        optimizer.step()
    assert t.tolist() == [1.0]


def test_parameter_without_gradient_is_named() -> None:
    a, b = Tensor([1.0]), Tensor([[1.0, 2.0]])
    optimizer = optim.SGD([a, b])
    a.grad = Tensor([1.0])
    with (
        Tensor.train(),
        pytest.raises(GradientError, match=r"parameter 1 of 2, shape \[1, 2\], has no gradient"),
    ):
        optimizer.step()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: optim.SGD([]), "none of the 0 tensors given takes a gradient"),
        (
            lambda: optim.SGD([Tensor([1.0], requires_grad=False)]),
            "none of the 1 tensors given takes a gradient",
        ),
        (lambda: optim.SGD([Tensor([1])]), r"parameter 0 of shape \[1\] has dtype .*int"),
        (lambda: optim.SGD([Tensor([1.0])], lr=-1.0), "SGD: lr=-1.0 is negative"),
        (lambda: optim.SGD([Tensor([1.0])], momentum=1.0), r"momentum=1.0 is not in \[0, 1\)"),
        (lambda: optim.Adam([Tensor([1.0])], b2=1.5), r"Adam: b2=1.5 is not in \[0, 1\)"),
        (lambda: optim.AdamW([Tensor([1.0])], weight_decay=-1.0), "weight_decay=-1.0 is negative"),
        (lambda: optim.Muon([Tensor(1.0)]), "parameter 0 is a single number"),
        (lambda: optim.OptimizerGroup(), "at least one optimizer"),
    ],
)
def test_senseless_arguments_are_named(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        make()


@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW", "LAMB", "LARS", "Muon"])
@pytest.mark.parametrize("fused", [False, True])
def test_making_an_optimizer_computes_nothing(name: str, fused: bool) -> None:
    GlobalCounters.reset()
    weights = [Tensor.rand(4, 3), Tensor.rand(3, 2)]
    made = getattr(optim, name)(weights, fused=fused)
    assert GlobalCounters.kernel_count == 0
    for w in weights:
        w.grad = w * 0.5
    with Tensor.train():
        made.step()
    assert all(t.uop.is_realized for t in [*weights, *made.state(), made.lr])


@pytest.mark.parametrize("name", ["SGD", "Adam", "LAMB"])
@pytest.mark.parametrize("jit", [False, True])
def test_weights_that_were_not_computed_before(name: str, jit: bool) -> None:
    def train(first: bool) -> list[np.ndarray]:
        Tensor.manual_seed(5)
        weights = [Tensor.rand(4, 3), Tensor.rand(3, 2)]
        x = Tensor.rand(8, 4).realize()
        if first:
            Tensor.realize(*weights)
        made = getattr(optim, name)(weights, lr=0.1)

        def step() -> Tensor:
            made.zero_grad()
            loss = ((x @ weights[0]).relu() @ weights[1]).square().mean().backward()
            made.step()
            return loss.realize()

        run = TinyJit(step) if jit else step
        with Tensor.train():
            losses = [run().numpy() for _ in range(4)]
        return [*losses, *[w.numpy() for w in weights]]

    for got, want in zip(train(False), train(True)):
        # The first step computes the weights too, in kernels that round in another order.
        np.testing.assert_allclose(got, want, rtol=1e-5)


@pytest.mark.parametrize("b2", [0.9, 0.99, 0.999, 0.9999, 0.99999])
@pytest.mark.parametrize("jitted", [False, True])
def test_corrections_of_the_start_lose_no_digits(b2: float, jitted: bool) -> None:
    """Steps along a constant gradient are lr / (1 + eps) long, all of them."""
    x = Tensor([0.0], requires_grad=True)
    optimizer = optim.Adam([x], lr=0.05, b2=b2)

    def step() -> Tensor:
        optimizer.zero_grad()
        (x * 1.0).sum().backward()
        optimizer.step()
        return x.clone().realize()

    run = TinyJit(step) if jitted else step
    rate = float(np.float32(0.05)) / (1 + 1e-8)
    with Tensor.train():
        for i in range(1, 9):
            assert abs(run().item() + i * rate) < i * 1e-8 + 4e-8 * (i > 1)


@pytest.mark.parametrize("name", ["Adam", "AdamW", "LAMB"])
@pytest.mark.parametrize("seed", draws(3, 60))
def test_steps_of_float64_are_those_of_the_formula(name: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    lr = 2.0 ** -int(rng.integers(1, 9))
    b1, b2 = float(1 - 10 ** -rng.uniform(0.3, 2)), float(1 - 10 ** -rng.uniform(1, 6))
    eps, decay = 10.0 ** -rng.integers(4, 9), float(rng.choice([0.0, 0.1]))
    settings = {"lr": lr, "b1": b1, "b2": b2, "eps": eps}
    if name != "Adam":
        settings["weight_decay"] = decay
    decay = settings.get("weight_decay", 0.0)
    start = rng.standard_normal((3, 2))
    x = Tensor(start, requires_grad=True)
    optimizer = getattr(optim, name)([x], **settings)
    want, m, v = start.copy(), np.zeros((3, 2)), np.zeros((3, 2))
    for t in range(1, 6):
        g = rng.standard_normal((3, 2)) * 10.0 ** rng.integers(-3, 3)
        x.grad = Tensor(g)
        with Tensor.train():
            optimizer.step()
        m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g * g
        update = (m / -np.expm1(t * np.log(b1))) / (np.sqrt(v / -np.expm1(t * np.log(b2))) + eps)
        update += decay * want
        ratio = np.linalg.norm(want) / np.linalg.norm(update) if name == "LAMB" else 1.0
        want -= lr * ratio * update
        np.testing.assert_allclose(x.numpy(), want, rtol=1e-10, atol=1e-13)
