"""Checks of lesson 04: each receives what the learner wrote; its docstring is the hint."""

from types import ModuleType

import numpy as np

from aster_ml import Tensor
from aster_ml.nn.datasets import mnist_5k
from aster_ml.nn.state import get_parameters


def check_accuracy(learner: ModuleType) -> None:
    """argmax over the classes, compare, mean of floats, .item()."""
    logits = Tensor([[0.1, 0.9, 0.0], [2.0, 1.0, 0.0], [0.0, 0.1, 0.3]])
    got = learner.accuracy(logits, Tensor([1, 1, 2]))
    assert abs(got - 2 / 3) < 1e-6, f"it gave {got}, wanted 2/3"


def check_confusion(learner: ModuleType) -> None:
    """A product of two one-hot matrices counts what occurs together."""
    rng = np.random.default_rng(0)
    said, labels = rng.integers(0, 10, size=(2, 200)).astype(np.int32)
    want = np.zeros((10, 10))
    np.add.at(want, (labels, said), 1)
    got = learner.confusion(Tensor(said), Tensor(labels)).numpy()
    assert np.array_equal(got, want), "the counts differ; is it [label, said]?"


def check_SmallReader(learner: ModuleType) -> None:
    """A stride of 2 makes images smaller without a layer for it; few channels make few weights."""
    model = learner.SmallReader()
    count = sum(p.numel() for p in get_parameters(model))
    assert count <= 8000, f"it has {count} parameters"
    shape = model(Tensor.zeros(3, 1, 28, 28)).shape
    assert shape == (3, 10), f"it gives {shape}"


def check_train(learner: ModuleType) -> None:
    """zero_grad, loss, backward, step, in a function under TinyJit, within Tensor.train()."""
    Tensor.manual_seed(0)
    pixels, labels = (t.numpy() for t in mnist_5k())
    chosen = np.random.default_rng(0).permutation(len(labels))[:1500]
    x = Tensor(pixels[chosen].astype(np.float32) / 255).realize()
    y = Tensor(labels[chosen].astype(np.int32)).realize()
    model = learner.SmallReader()
    losses = learner.train(model, x[:1000], y[:1000], 6)
    assert len(losses) == 120, f"there were {len(losses)} steps, wanted 6 times 20"
    right = (model(x[1000:]).argmax(axis=1) == y[1000:]).float().mean().item()
    assert right > 0.85, f"it reads {right:.0%} of 500 other digits, wanted 85%"
