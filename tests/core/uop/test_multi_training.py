"""Training over several devices: data and parameters in parts, jitted or not, beside one device."""

from __future__ import annotations

import gc
import itertools
from typing import Any

import numpy as np
import pytest

from aster_ml import Tensor, TinyJit, UOp, nn
from aster_ml.engine import storage
from aster_ml.engine.multi import PARTS
from aster_ml.nn.state import get_parameters
from aster_ml.uop.interned import UNSET
from aster_ml.uop.sharding import MULTI_SEEN

TWO = ("CPU:1", "CPU:2")
RNG = np.random.default_rng(11)
IMAGES = [RNG.standard_normal((8, 3, 8, 8)).astype(np.float32) for _ in range(5)]
LABELS = [RNG.integers(0, 4, 8).astype(np.int32) for _ in range(5)]


class Network:
    """A convolution, a normalisation and a product."""

    def __init__(self) -> None:
        Tensor.manual_seed(3)
        self.conv = nn.Conv2d(3, 8, 3, bias=False)
        self.norm = nn.BatchNorm2d(8)
        self.out = nn.Linear(8 * 6 * 6, 4)

    def __call__(self, x: Tensor) -> Tensor:
        return self.out(self.norm(self.conv(x)).relu().flatten(1))  # type: ignore[no-any-return]


def train(optimizer: Any, layout: str | None, jitted: bool) -> tuple[list[float], list[Any]]:
    """The losses and the parameters after some steps."""
    network = Network()
    for p in get_parameters(network):
        if layout is not None:
            cut = layout == "parts" and p.ndim > 0 and p.shape[0] % 2 == 0
            p.shard_(TWO, 0 if cut else None)
    steps = optimizer(get_parameters(network))

    def step(x: Tensor, y: Tensor) -> Tensor:
        steps.zero_grad()
        loss = network(x).sparse_categorical_crossentropy(y).backward()
        steps.step()
        return loss.realize()

    run: Any = TinyJit(step) if jitted else step
    losses = []
    with Tensor.train():
        for image, label in zip(IMAGES, LABELS, strict=True):
            x, y = Tensor(image), Tensor(label)
            if layout is not None:
                x, y = x.shard(TWO, 0), y.shard(TWO, 0)
            losses.append(run(x.realize(), y.realize()).item())
    return losses, [p.numpy() for p in get_parameters(network)]


@pytest.mark.parametrize("jitted", [False, True])
@pytest.mark.parametrize(
    "optimizer, layout",
    [(nn.optim.SGD, "copies"), (nn.optim.AdamW, "parts"), (nn.optim.LAMB, "parts")],
)
def test_losses_and_parameters_are_those_of_one_device(
    optimizer: Any, layout: str, jitted: bool
) -> None:
    want_losses, want = train(optimizer, None, False)
    losses, got = train(optimizer, layout, jitted)
    np.testing.assert_allclose(losses, want_losses, rtol=1e-5)
    for g, w in zip(got, want, strict=True):
        np.testing.assert_allclose(g, w, rtol=2e-3, atol=2e-5)


def test_steps_leave_nothing_behind() -> None:
    counts = []
    layer = nn.Linear(8, 4)
    for p in get_parameters(layer):
        p.shard_(TWO)
    steps = nn.optim.AdamW(get_parameters(layer))
    with Tensor.train():
        for image, label in zip(IMAGES, LABELS, strict=True):
            x, y = Tensor(image[:, 0, 0]).shard(TWO, 0), Tensor(label).shard(TWO, 0)
            steps.zero_grad()
            layer(x).sparse_categorical_crossentropy(y).backward()
            steps.step()
            del x, y
            gc.collect()
            counts.append((len(PARTS), len(storage.BUFFERS), len(storage.REALIZED_VIEWS)))
    assert counts[-1] == counts[-2] == counts[-3]


def test_averages_lie_like_their_parameters() -> None:
    w = Tensor.ones(4, 4).contiguous().shard(TWO, 0).realize()
    adam = nn.optim.Adam([w])
    assert adam.m[0].device == TWO
    assert adam.m[0].uop.axis == 0
    with Tensor.train():
        for _ in range(2):
            adam.zero_grad()
            (w * w).sum().backward()
            adam.step()
    assert w.uop.axis == 0
    assert adam.m[0].uop.axis == 0
    assert [part.shape for part in adam.v[0].uop.src] == [(2, 4), (2, 4)]


def test_momentum_may_be_elsewhere() -> None:
    results = []
    for moved in (False, True):
        w = Tensor(IMAGES[0][0, 0]).shard(TWO, 0).requires_grad_()
        steps = nn.optim.SGD([w], momentum=0.9, nesterov=True)
        if moved:
            steps.b[0].to_("CPU")
        with Tensor.train():
            for _ in range(2):
                steps.zero_grad()
                (w * w).sum().backward()
                steps.step()
        assert w.device == TWO
        results.append(w.numpy())
    np.testing.assert_allclose(results[0], results[1], rtol=1e-6)


@pytest.mark.parametrize("optimizer", [nn.optim.LAMB, nn.optim.AdamW])
def test_averages_may_be_elsewhere(optimizer: Any) -> None:
    results = []
    for moved in (False, True):
        w = Tensor(IMAGES[0][0, 0]).shard(TWO, 1).requires_grad_()
        steps = optimizer([w])
        if moved:
            for t in (*steps.m, *steps.v, steps.b1_t, steps.b2_t):
                t.to_("CPU")
        with Tensor.train():
            (w * w).sum().backward()
            steps.step()
        assert w.device == TWO
        assert steps.m[0].device == ("CPU" if moved else TWO)
        results.append(w.numpy())
    np.testing.assert_allclose(results[0], results[1], rtol=1e-6)


def test_normalisation_counts_all_devices() -> None:
    x = IMAGES[0]
    outputs = []
    for devices in (None, TWO):
        norm = nn.BatchNorm2d(3)
        t = Tensor(x)
        if devices is not None:
            t = t.shard(devices, 0)
            for p in get_parameters(norm):
                p.shard_(devices)
        with Tensor.train():
            outputs.append((norm(t).numpy(), norm.running_mean.numpy(), norm.running_var.numpy()))
    for one, several in zip(*outputs, strict=True):
        np.testing.assert_allclose(several, one, rtol=1e-5, atol=1e-6)


# replays


def test_a_replay_reads_the_parts_that_it_is_given() -> None:
    @TinyJit
    def f(x: Tensor, y: Tensor) -> Tensor:
        return (x + y.sum(0)).realize()

    for i in range(5):
        x = Tensor(np.full((4, 4), i, dtype=np.float32)).shard(TWO, 0).realize()
        y = Tensor(np.full((4, 4), 2 * i, dtype=np.float32)).shard(TWO, 1 if i < 4 else 0).realize()
        out = f(x, y)
        assert out.device == TWO
        np.testing.assert_array_equal(out.numpy(), np.full((4, 4), 9 * i))
    assert len(f.jit_cache) > 0


def test_results_of_replays_are_apart() -> None:
    f = TinyJit(lambda x: (x * 2).realize())
    given = [Tensor([i, i + 1]).shard(TWO, 0).realize() for i in range(6)]
    results = [f(x) for x in given]
    assert [r.tolist() for r in results] == [[2 * i, 2 * i + 2] for i in range(6)]


def test_a_function_may_put_its_values_on_several_devices() -> None:
    @TinyJit
    def f(x: Tensor) -> Tensor:
        return (x.shard(TWO, 0) + 1).contiguous().sum()

    for i in range(5):
        assert f(Tensor([i, 1, 2, 3]).realize()).item() == i + 10


@pytest.mark.parametrize("axis", [0, None])
def test_a_replay_writes_in_place(axis: int | None) -> None:
    out = Tensor.zeros(4, 6).contiguous().realize().shard(TWO, axis).realize()
    ones = Tensor.ones(4, 1).shard(TWO, axis).contiguous().realize()

    @TinyJit
    def f(out: Tensor, i: UOp) -> None:
        out[:, i : i + 1].assign(ones).realize()
        ones.assign(ones + 1).realize()

    for i in range(1, 5):
        f(out, UOp.variable("i", 0, 5).bind(i))
    assert out.tolist() == [[0, 1, 2, 3, 4, 0]] * 4


def test_random_numbers_of_replays_differ() -> None:
    x = Tensor.ones(256).contiguous().shard(TWO, 0).realize()

    @TinyJit
    def f(x: Tensor) -> Tensor:
        return x.dropout(0.5).realize()

    with Tensor.train():
        drawn = [f(x).numpy() for _ in range(5)]
    for a, b in itertools.pairwise(drawn):
        assert set(np.unique(a)) == {0, 2}
        assert not np.array_equal(a, b)


def test_one_device_pays_nothing_for_it() -> None:
    seen, MULTI_SEEN[:] = list(MULTI_SEEN), []
    try:
        x = Tensor(IMAGES[0]).reshape(8, -1).sum()
        node = x.uop
        x.realize()
        # Nobody has asked along which axis the value is split.
        assert node._axis is UNSET
    finally:
        MULTI_SEEN[:] = seen
