"""The networks of `models` as functions of JAX, with the same names of parameters.

A network is a function (p, x, training) -> (result, running statistics). It asks for its parameters
as `p(name, *shape)`, so that the same words draw them the first time and read them afterwards.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.draws import draw_parameter

Parameters = dict[str, Any]
Ask = Callable[..., Any]
Network = Callable[[Ask, Any, bool, dict[str, Any]], tuple[Any, Parameters]]

RUNNING = ("running_mean", "running_var")
MOMENTUM = 0.1


def conv(p: Ask, name: str, x: Any, c_out: int, k: int, **options: Any) -> Any:
    """A convolution over two axes."""
    stride, padding = options.get("stride", 1), options.get("padding", 0)
    w = p(f"{name}.weight", c_out, x.shape[1], k, k)
    y = jax.lax.conv_general_dilated(x, w, (stride, stride), [(padding, padding)] * 2)
    return y + p(f"{name}.bias", c_out)[:, None, None] if options.get("bias") else y


def batch_norm(p: Ask, name: str, x: Any, training: bool, running: Parameters) -> Any:
    """Batch normalization; in training the new running statistics come out in `running`."""
    c = x.shape[1]
    mean, variance = p(f"{name}.running_mean", c), p(f"{name}.running_var", c)
    if training:
        count = x.size / c
        now, spread = x.mean((0, 2, 3)), x.var((0, 2, 3))
        running[f"{name}.running_mean"] = mean * (1 - MOMENTUM) + now * MOMENTUM
        running[f"{name}.running_var"] = variance * (1 - MOMENTUM) + spread * MOMENTUM * count / (
            count - 1
        )
        mean, variance = now, spread
    scale = p(f"{name}.weight", c) * jax.lax.rsqrt(variance + 1e-5)
    shift = p(f"{name}.bias", c) - mean * scale
    return x * scale[:, None, None] + shift[:, None, None]


def max_pool(x: Any, k: int, stride: int, padding: int) -> Any:
    """The largest of each window."""
    pads = [(0, 0), (0, 0), (padding, padding), (padding, padding)]
    return jax.lax.reduce_window(
        x, -jnp.inf, jax.lax.max, (1, 1, k, k), (1, 1, stride, stride), pads
    )


def linear(p: Ask, name: str, x: Any, c_out: int) -> Any:
    """A dense layer."""
    return x @ p(f"{name}.weight", c_out, x.shape[-1]).T + p(f"{name}.bias", c_out)


def layer_norm(p: Ask, name: str, x: Any) -> Any:
    """Layer normalization over the last axis."""
    width = x.shape[-1]
    mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    normal = (x - mean) * jax.lax.rsqrt(variance + 1e-5)
    return normal * p(f"{name}.weight", width) + p(f"{name}.bias", width)


def resnet18(p: Ask, x: Any, training: bool, sizes: dict[str, Any]) -> tuple[Any, Parameters]:
    """ResNet-18."""
    running: Parameters = {}

    def norm(name: str, x: Any) -> Any:
        return batch_norm(p, name, x, training, running)

    x = jax.nn.relu(norm("bn1", conv(p, "conv1", x, 64, 7, stride=2, padding=3)))
    x = max_pool(x, 3, 2, 1)
    for layer, c_out in enumerate((64, 128, 256, 512), 1):
        for block in range(2):
            name = f"layer{layer}.{block}"
            stride = 2 if layer > 1 and block == 0 else 1
            y = conv(p, f"{name}.conv1", x, c_out, 3, stride=stride, padding=1)
            y = jax.nn.relu(norm(f"{name}.bn1", y))
            y = norm(f"{name}.bn2", conv(p, f"{name}.conv2", y, c_out, 3, padding=1))
            if stride != 1 or x.shape[1] != c_out:
                x = conv(p, f"{name}.downsample.0", x, c_out, 1, stride=stride)
                x = norm(f"{name}.downsample.1", x)
            x = jax.nn.relu(x + y)
    return linear(p, "fc", x.mean((2, 3)), 1000), running


def perceptron(p: Ask, x: Any, training: bool, sizes: dict[str, Any]) -> tuple[Any, Parameters]:
    """784-512-512-10."""
    x = jax.nn.relu(linear(p, "l1", x, 512))
    x = jax.nn.relu(linear(p, "l2", x, 512))
    return linear(p, "l3", x, 10), {}


def digit_net(p: Ask, x: Any, training: bool, sizes: dict[str, Any]) -> tuple[Any, Parameters]:
    """The network for digits."""
    running: Parameters = {}
    x = jax.nn.relu(conv(p, "conv1", x, 32, 5, bias=True))
    x = jax.nn.relu(conv(p, "conv2", x, 32, 5, bias=True))
    x = max_pool(batch_norm(p, "bn1", x, training, running), 2, 2, 0)
    x = jax.nn.relu(conv(p, "conv3", x, 64, 3, bias=True))
    x = jax.nn.relu(conv(p, "conv4", x, 64, 3, bias=True))
    x = max_pool(batch_norm(p, "bn2", x, training, running), 2, 2, 0)
    return linear(p, "fc", x.reshape(x.shape[0], -1), 10), running


def gpt2(p: Ask, x: Any, training: bool, sizes: dict[str, Any]) -> tuple[Any, Parameters]:
    """GPT-2."""
    layers, width = sizes.get("layers", 12), sizes.get("width", 768)
    heads, vocabulary = sizes.get("heads", 12), sizes.get("vocabulary", 50257)
    b, t = x.shape
    table = p("wte.weight", vocabulary, width)
    x = table[x] + p("wpe.weight", 1024, width)[:t]
    for i in range(layers):
        y = linear(p, f"h.{i}.c_attn", layer_norm(p, f"h.{i}.ln_1", x), 3 * width)
        y = y.reshape(b, t, 3, heads, width // heads)
        y = jax.nn.dot_product_attention(y[:, :, 0], y[:, :, 1], y[:, :, 2], is_causal=True)
        x = x + linear(p, f"h.{i}.c_proj", y.reshape(b, t, width), width)
        y = linear(p, f"h.{i}.c_fc", layer_norm(p, f"h.{i}.ln_2", x), 4 * width)
        x = x + linear(p, f"h.{i}.c_out", jax.nn.gelu(y, approximate=True), width)
    return layer_norm(p, "ln_f", x) @ table.T, {}


NETWORKS: dict[str, Network] = {
    "ResNet18": resnet18,
    "Perceptron": perceptron,
    "DigitNet": digit_net,
    "GPT2": gpt2,
}


def make_parameters(network: str, x: Any, sizes: dict[str, Any]) -> Parameters:
    """All parameters of a network, as every library has them. Nothing of it is computed."""
    found: Parameters = {}

    def ask(name: str, *shape: int) -> Any:
        if name not in found:
            found[name] = draw_parameter(name, shape)
        return jnp.asarray(found[name])

    jax.eval_shape(lambda x: NETWORKS[network](ask, x, False, sizes)[0], x)
    return {name: jnp.array(value) for name, value in found.items()}


def forward(network: str, sizes: dict[str, Any]) -> Callable[[Parameters, Any], Any]:
    """The network in evaluation mode as a function of its parameters."""
    return lambda params, x: NETWORKS[network](lambda n, *s: params[n], x, False, sizes)[0]


def adam_step(network: str, rate: float) -> Callable[..., Any]:
    """(parameters, moments, count, x, y) -> the same after a step, and the loss before it."""

    def loss_of(weights: Parameters, rest: Parameters, x: Any, y: Any) -> tuple[Any, Parameters]:
        params = {**weights, **rest}
        out, running = NETWORKS[network](lambda n, *s: params[n], x, True, {})
        logs = jax.nn.log_softmax(out)
        return -logs[jnp.arange(y.shape[0]), y].mean(), running

    def step(params: Parameters, moments: Any, count: Any, x: Any, y: Any) -> Any:
        rest = {n: v for n, v in params.items() if n.endswith(RUNNING)}
        weights = {n: v for n, v in params.items() if n not in rest}
        (loss, running), grads = jax.value_and_grad(loss_of, has_aux=True)(weights, rest, x, y)
        count = count + 1
        new, kept = {}, {}
        for n, g in grads.items():
            first, second = moments[n]
            first, second = 0.9 * first + 0.1 * g, 0.999 * second + 0.001 * g * g
            kept[n] = first, second
            size = jnp.sqrt(second / (1 - 0.999**count)) + 1e-8
            new[n] = weights[n] - rate * first / (1 - 0.9**count) / size
        return {**new, **rest, **running}, kept, count, loss

    return step


def make_moments(params: Parameters) -> Any:
    """Zeros for Adam."""
    return {
        n: (jnp.zeros_like(v), jnp.zeros_like(v))
        for n, v in params.items()
        if not n.endswith(RUNNING)
    }
