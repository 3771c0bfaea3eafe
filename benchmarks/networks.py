"""Whole networks: first call and warm call of ResNet-18, training steps of two small networks.

All libraries start from the same parameters, so their results and their losses must agree.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from benchmarks import models
from benchmarks.draws import draw_input, draw_labels, draw_parameter, summary
from benchmarks.libraries import Lazy, Library
from benchmarks.row import Case, Row, Wanted

SUBJECT = "networks"
LIBRARIES = ("torch", "compile", "tinygrad")
# Shape of a sample and the loss that is checked, by network.
SAMPLES = {"ResNet18": (3, 224, 224), "Perceptron": (784,), "DigitNet": (1, 28, 28)}
LEARNING_RATE = 1e-3


def make_lazy(library: Lazy, network: str) -> Any:
    """A network of Aster or tinygrad, its parameters realized."""
    net = getattr(models, network)(library.nn)
    state = library.state.get_state_dict(net)
    drawn = {n: library.tensor(draw_parameter(n, t.shape)) for n, t in state.items()}
    library.state.load_state_dict(net, drawn, verbose=False)
    library.module.Tensor.realize(*library.state.get_state_dict(net).values())
    library.wait()
    return net


def make_torch(network: str, training: bool) -> Any:
    """The same network of PyTorch."""
    torch_models = importlib.import_module("benchmarks.torch_models")
    net = getattr(torch_models, network)().train(training)
    torch_models.load_parameters(net, draw_parameter)
    return net


def build_forward(library: Library, network: str, batch: int) -> Case:
    """One forward call in evaluation mode."""
    x = library.tensor(draw_input("x", (batch, *SAMPLES[network])))
    if isinstance(library, Lazy):
        call = library.compiled(make_lazy(library, network))
    else:
        net = make_torch(network, training=False)
        call = library.module.inference_mode()(library.compiled(net))

    def run() -> Any:
        result = call(x)
        library.wait()
        return result

    return Case(run, lambda: summary(library.array(run())))


def lazy_step(library: Lazy, network: str) -> Callable[[Any, Any], Any]:
    """A training step of Aster or tinygrad, recorded by TinyJit."""
    tensor = library.module.Tensor
    net = make_lazy(library, network)
    optimizer = library.optim.Adam(library.state.get_parameters(net), lr=LEARNING_RATE)

    @library.module.TinyJit  # type: ignore[untyped-decorator]
    def step(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        loss = net(x).sparse_categorical_crossentropy(y).backward()
        return loss.realize(*optimizer.schedule_step())

    def train(x: Any, y: Any) -> Any:
        with tensor.train():
            return step(x, y)

    return train


def torch_step(library: Library, network: str) -> Callable[[Any, Any], Any]:
    """A training step of PyTorch, with its fused Adam."""
    net = make_torch(network, training=True)
    optimizer = library.module.optim.Adam(net.parameters(), lr=LEARNING_RATE, fused=True)
    loss_of = library.compiled(
        lambda x, y: library.module.nn.functional.cross_entropy(net(x), y.long())
    )

    def train(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        loss = loss_of(x, y)
        loss.backward()
        optimizer.step()
        return loss

    return train


def build_step(library: Library, network: str, batch: int) -> Case:
    """One training step with Adam on a batch that stays the same."""
    if isinstance(library, Lazy):
        train = lazy_step(library, network)
    else:
        train = torch_step(library, network)
    x = library.tensor(draw_input("x", (batch, *SAMPLES[network])))
    y = library.tensor(draw_labels("y", batch, 10))

    def run() -> Any:
        loss = train(x, y)
        library.wait()
        return loss

    def check() -> list[float]:
        # The losses of the first steps: of forward, backward and the optimizer.
        return [float(library.array(run())) for _ in range(3)]

    return Case(run, check)


def rows() -> list[Row]:
    """ResNet-18 first and warm, and the two training steps."""
    forward = {"network": "ResNet18", "batch": 1}
    found = [
        Row(
            "ResNet-18 forward, batch 1, 224x224: first call, caches cold",
            SUBJECT,
            "forward",
            "s",
            Wanted(6),
            forward,
            how="fresh",
            key="cold",
            libraries=LIBRARIES,
        ),
        Row(
            "ResNet-18 forward, batch 1, 224x224: first call, disk cache warm",
            SUBJECT,
            "forward",
            "s",
            None,
            forward,
            how="fresh",
            key="warm",
            libraries=LIBRARIES,
        ),
        Row(
            "ResNet-18 forward, batch 1, 224x224: warm call",
            SUBJECT,
            "forward",
            "ms",
            Wanted(1.0, of_ratio=True),
            forward,
            libraries=LIBRARIES,
        ),
    ]
    steps = [
        ("MLP 784-512-512-10, Adam step, batch 256", "Perceptron", 256),
        ("CNN 32-32-64-64, Adam step, batch 128", "DigitNet", 128),
    ]
    for name, network, batch in steps:
        params = {"network": network, "batch": batch}
        found.append(
            Row(
                f"{name}: first call, caches cold",
                SUBJECT,
                "step",
                "s",
                None,
                params,
                how="fresh",
                key="cold",
                libraries=LIBRARIES,
            )
        )
        found.append(
            Row(
                name,
                SUBJECT,
                "step",
                "samples/s",
                Wanted(1.0, of_ratio=True),
                params,
                work=batch,
                libraries=LIBRARIES,
            )
        )
    return found


CASES = {"forward": build_forward, "step": build_step}
