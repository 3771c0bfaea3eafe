"""Whole networks: first and warm calls of ResNet-18 and GPT-2, training steps of two small ones.

All libraries start from the same parameters, so their results and their losses must agree.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from benchmarks import models
from benchmarks.draws import Array, draw_input, draw_labels, draw_parameter, summary
from benchmarks.libraries import Lazy, Library
from benchmarks.row import Case, Row, Wanted

SUBJECT = "networks"
LIBRARIES = ("torch", "compile", "jax", "tinygrad")
# Shape of a sample, by network; GPT-2 takes as many tokens as a row says.
SAMPLES = {"ResNet18": (3, 224, 224), "Perceptron": (784,), "DigitNet": (1, 28, 28)}
LEARNING_RATE = 1e-3
# What the quick form makes of GPT-2.
SMALL_GPT2 = {"tokens": 32, "sizes": {"layers": 2, "width": 128, "heads": 4, "vocabulary": 1000}}

Sizes = dict[str, Any]


def make_lazy(library: Lazy, network: str, sizes: Sizes) -> Any:
    """A network of Aster or tinygrad, its parameters realized."""
    net = getattr(models, network)(library.nn, **sizes)
    state = library.state.get_state_dict(net)
    drawn = {n: library.tensor(draw_parameter(n, t.shape)) for n, t in state.items()}
    library.state.load_state_dict(net, drawn, verbose=False)
    library.module.Tensor.realize(*library.state.get_state_dict(net).values())
    library.wait()
    return net


def make_torch(network: str, training: bool, sizes: Sizes) -> Any:
    """The same network of PyTorch."""
    torch_models = importlib.import_module("benchmarks.torch_models")
    net = getattr(torch_models, network)(**sizes).train(training)
    torch_models.load_parameters(net, draw_parameter)
    return net


def input_of(network: str, batch: int, tokens: int, sizes: Sizes) -> Array:
    """A batch for a network."""
    if network == "GPT2":
        count = sizes.get("vocabulary", 50257)
        return draw_labels("x", batch * tokens, count).reshape(batch, tokens)
    return draw_input("x", (batch, *SAMPLES[network]))


def build_forward(
    library: Library, network: str, batch: int, tokens: int = 0, sizes: Sizes | None = None
) -> Case:
    """One forward call in evaluation mode."""
    sizes = sizes or {}
    x = library.tensor(input_of(network, batch, tokens, sizes))
    value = None
    if isinstance(library, Lazy):
        net = make_lazy(library, network, sizes)
        call = library.compiled(net)

        def value() -> Any:
            return [net(x)]
    elif library.name == "jax":
        jax_models = importlib.import_module("benchmarks.jax_models")
        params = jax_models.make_parameters(network, x, sizes)
        forward = library.compiled(jax_models.forward(network, sizes))

        def call(x: Any) -> Any:
            return forward(params, x)
    else:
        net = make_torch(network, False, sizes)
        call = library.module.inference_mode()(library.compiled(net))

    def run() -> Any:
        result = call(x)
        library.wait()
        return result

    return Case(run, lambda: summary(library.array(run())), value=value)


def lazy_step(library: Lazy, network: str) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """A training step of Aster or tinygrad recorded by TinyJit; and its values, not computed."""
    tensor = library.module.Tensor
    net = make_lazy(library, network, {})
    optimizer = library.optim.Adam(library.state.get_parameters(net), lr=LEARNING_RATE)

    def values(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        loss = net(x).sparse_categorical_crossentropy(y).backward()
        return [loss, *optimizer.schedule_step()]

    @library.module.TinyJit  # type: ignore[untyped-decorator]
    def step(x: Any, y: Any) -> Any:
        loss, *rest = values(x, y)
        return loss.realize(*rest)

    def in_training(function: Callable[..., Any]) -> Callable[..., Any]:
        def train(x: Any, y: Any) -> Any:
            with tensor.train():
                return function(x, y)

        return train

    return in_training(step), in_training(values)


def torch_step(library: Library, network: str) -> Callable[[Any, Any], Any]:
    """A training step of PyTorch, with its fused Adam."""
    net = make_torch(network, True, {})
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


def jax_step(library: Library, network: str, x: Any) -> Callable[[Any, Any], Any]:
    """A training step of JAX; a step takes over the memory of the one before."""
    jax_models = importlib.import_module("benchmarks.jax_models")
    params = jax_models.make_parameters(network, x, {})
    state = [params, jax_models.make_moments(params), library.tensor(draw_input("", ()) * 0)]
    step = library.module.jit(jax_models.adam_step(network, LEARNING_RATE), donate_argnums=(0, 1))

    def train(x: Any, y: Any) -> Any:
        *state[:], loss = step(*state, x, y)
        library.module.block_until_ready(state)
        return loss

    return train


def build_step(library: Library, network: str, batch: int) -> Case:
    """One training step with Adam on a batch that stays the same."""
    x = library.tensor(draw_input("x", (batch, *SAMPLES[network])))
    y = library.tensor(draw_labels("y", batch, 10))
    value = None
    if isinstance(library, Lazy):
        train, values = lazy_step(library, network)

        def value() -> Any:
            return values(x, y)
    elif library.name == "jax":
        train = jax_step(library, network, x)
    else:
        train = torch_step(library, network)

    def run() -> Any:
        loss = train(x, y)
        library.wait()
        return loss

    def check() -> list[float]:
        # The losses of the first steps: of forward, backward and the optimizer.
        return [float(library.array(run()).reshape(())) for _ in range(3)]

    return Case(run, check, value=value)


FORWARD = {
    "ResNet-18 forward, batch 1, 224x224": {"params": {"network": "ResNet18", "batch": 1}},
    "GPT-2 small, {tokens} tokens at once": {
        "params": {"network": "GPT2", "batch": 1, "tokens": 128, "sizes": {}},
        "quick_params": SMALL_GPT2,
    },
}
CNN = "CNN 32-32-64-64, Adam step, batch 128"
STEPS = {"MLP 784-512-512-10, Adam step, batch 256": ("Perceptron", 256), CNN: ("DigitNet", 128)}


def with_limits() -> list[tuple[str, str, dict[str, Any], dict[str, Any]]]:
    """What compile time and memory are measured on: name, case, parameters, those of quick runs."""
    network, batch = STEPS[CNN]
    return [
        *[
            (name, "forward", more["params"], more.get("quick_params", {}))
            for name, more in FORWARD.items()
        ],
        (CNN, "step", {"network": network, "batch": batch}, {}),
    ]


def first_calls(name: str, case: str, cold: float | None, warm: float | None, **more: Any) -> Any:
    """Rows for the first call in fresh processes."""
    for key, text, limit in (("cold", "caches cold", cold), ("warm", "disk cache warm", warm)):
        wanted = None if limit is None else Wanted(limit)
        yield Row(
            f"{name}: first call, {text}", SUBJECT, case, "s", wanted,
            how="fresh", key=key, libraries=LIBRARIES, **more,
        )  # fmt: skip


def rows() -> list[Row]:
    """First calls and warm ones."""
    found: list[Row] = []
    for name, more in FORWARD.items():
        found += first_calls(name, "forward", 3, 0.7, **more)
        found.append(
            Row(
                f"{name}: warm call", SUBJECT, "forward", "ms", Wanted(1.0, of_ratio=True),
                libraries=LIBRARIES, one_thread_too=True, **more,
            )
        )  # fmt: skip
    for name, (network, batch) in STEPS.items():
        params = {"network": network, "batch": batch}
        limits = (4, 1) if network == "DigitNet" else (None, None)
        found += first_calls(name, "step", *limits, params=params)
        found.append(
            Row(
                name, SUBJECT, "step", "samples/s", Wanted(1.0, of_ratio=True), params,
                work=batch, libraries=LIBRARIES, one_thread_too=True,
            )
        )  # fmt: skip
    return found


CASES = {"forward": build_forward, "step": build_step}
