"""Random stacks of layers, each built for Aster and for PyTorch with the same weights.

Receives a source of random numbers; returns a pair of networks. Each kind of layer is drawn from
the shape of what comes in, and gives the shape of what goes out.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pytest

from aster_ml import Tensor, nn

if TYPE_CHECKING:
    import torch
else:
    torch = pytest.importorskip("torch", reason="PyTorch is the oracle")

Shape = tuple[int, ...]
BATCHES = (1, 2, 3, 5, 7, 8, 16, 17, 31, 32, 33, 64, 65, 96, 127, 128, 200, 256, 257)
# Elements of what goes from layer to layer.
MOST = 60_000


class Pair(NamedTuple):
    """A layer of ours and of PyTorch's, with the pairs of weights of both."""

    text: str
    ours: Callable[[Tensor], Tensor]
    theirs: Callable[[torch.Tensor], torch.Tensor]
    weights: list[tuple[Tensor, torch.Tensor]]


def same(ours: Any, theirs: torch.nn.Module, *names: str) -> list[tuple[Tensor, torch.Tensor]]:
    """Gives a layer of PyTorch the weights of ours."""
    pairs = []
    for name in names or ("weight", "bias"):
        mine, other = getattr(ours, name, None), getattr(theirs, name, None)
        if mine is None or other is None:
            continue
        mine.realize()
        with torch.no_grad():
            other.copy_(torch.from_numpy(np.array(mine.numpy())))
        pairs.append((mine, other))
    return pairs


class Stack:
    """Draws layers one behind the other."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.batch = self.random.choice(BATCHES)
        kind = self.random.choice(("rows", "images", "images", "signals", "tokens"))
        pick = self.random.choice
        channels = pick((1, 2, 3, 8, 16))
        self.shape: Shape = {
            "rows": (pick((1, 3, 8, 17, 64, 100)),),
            "images": (channels, pick((4, 7, 8, 14, 28)), pick((4, 7, 8, 14, 28))),
            "signals": (channels, pick((5, 16, 33, 100))),
            "tokens": (pick((1, 4, 7, 16)), pick((4, 8, 32))),
        }[kind]
        while math.prod(self.shape) * self.batch > MOST:
            self.batch = max(self.batch // 2, 1)
        self.first = self.shape
        self.layers: list[Pair] = []
        for _ in range(self.random.randint(1, 6)):
            self.random.choice(LAYERS[len(self.shape)])(self)

    def add(self, text: str, ours: Any, theirs: Any, weights: Any, shape: Shape) -> None:
        """One more layer, unless what it gives is too large."""
        if math.prod(shape) * self.batch <= MOST and 0 not in shape:
            self.layers.append(Pair(text, ours, theirs, weights))
            self.shape = shape

    @property
    def weights(self) -> list[tuple[Tensor, torch.Tensor]]:
        """Of all layers."""
        return [pair for layer in self.layers for pair in layer.weights]

    @property
    def text(self) -> str:
        """What it is."""
        return f"{self.batch} x {self.first}: " + " -> ".join([x.text for x in self.layers])

    def ours(self, x: Tensor) -> Tensor:
        """Forward."""
        for layer in self.layers:
            x = layer.ours(x)
        return x

    def theirs(self, x: torch.Tensor) -> torch.Tensor:
        """Forward."""
        for layer in self.layers:
            x = layer.theirs(x)
        return x


def linear(s: Stack) -> None:
    """A dense layer along the last axis."""
    n = s.random.choice((1, 2, 5, 10, 16, 33, 64, 128))
    bias = s.random.random() < 0.7
    ours, theirs = nn.Linear(s.shape[-1], n, bias=bias), torch.nn.Linear(s.shape[-1], n, bias=bias)
    s.add(f"linear {n}", ours, theirs, same(ours, theirs), (*s.shape[:-1], n))


def activation(s: Stack) -> None:
    """One of many."""
    f = torch.nn.functional
    name, theirs = s.random.choice(
        [
            ("relu", torch.relu),
            ("tanh", torch.tanh),
            ("sigmoid", torch.sigmoid),
            ("silu", f.silu),
            ("elu", f.elu),
            ("softplus", f.softplus),
            ("mish", f.mish),
            ("hardswish", f.hardswish),
        ]
    )
    s.add(name, lambda x: getattr(x, name)(), theirs, [], s.shape)


def residual(s: Stack) -> None:
    """What comes in is added to what goes out."""
    n = s.shape[-1]
    ours, theirs = nn.Linear(n, n), torch.nn.Linear(n, n)
    weights = same(ours, theirs)
    s.add(
        "residual", lambda x: x + ours(x).tanh(), lambda x: x + theirs(x).tanh(), weights, s.shape
    )


def flatten(s: Stack) -> None:
    """All axes but that of the batch as one."""
    s.add("flatten", lambda x: x.flatten(1), lambda x: x.flatten(1), [], (math.prod(s.shape),))


def mean(s: Stack) -> None:
    """Over the last axis."""
    s.add("mean", lambda x: x.mean(-1), lambda x: x.mean(-1), [], s.shape[:-1])


def layer_norm(s: Stack) -> None:
    """Over the last axis."""
    ours, theirs = nn.LayerNorm(s.shape[-1]), torch.nn.LayerNorm(s.shape[-1])
    s.add("layer norm", ours, theirs, same(ours, theirs), s.shape)


def rms_norm(s: Stack) -> None:
    """Over the last axis."""
    ours, theirs = nn.RMSNorm(s.shape[-1], eps=1e-5), torch.nn.RMSNorm(s.shape[-1], eps=1e-5)
    s.add("rms norm", ours, theirs, same(ours, theirs), s.shape)


def group_norm(s: Stack) -> None:
    """Over groups of channels."""
    groups = s.random.choice([g for g in (1, 2, 4, 8) if s.shape[0] % g == 0])
    if math.prod(s.shape) == groups:
        return
    ours, theirs = nn.GroupNorm(groups, s.shape[0]), torch.nn.GroupNorm(groups, s.shape[0])
    s.add(f"group norm {groups}", ours, theirs, same(ours, theirs), s.shape)


def batch_norm(s: Stack) -> None:
    """Over the batch and what is behind the channels."""
    if s.batch * math.prod(s.shape[1:]) < 4:
        return
    ours: Any = nn.BatchNorm(s.shape[0])
    kinds = (torch.nn.BatchNorm1d, torch.nn.BatchNorm1d, torch.nn.BatchNorm2d)
    theirs = kinds[len(s.shape) - 1](s.shape[0])
    s.add("batch norm", ours, theirs, same(ours, theirs), s.shape)


def convolution(s: Stack) -> None:
    """Of one or two axes, plain or transposed."""
    axes, channels = len(s.shape) - 1, s.shape[0]
    groups = s.random.choice([g for g in (1, 1, 1, 2, channels) if channels % g == 0])
    outputs = groups * s.random.choice((1, 2, 4, 8, 16))
    k, stride = s.random.randint(1, 4), s.random.choice((1, 1, 1, 2, 3))
    padding = s.random.randint(0, 2)
    transposed = s.random.random() < 0.25
    if transposed:
        sizes = [(n - 1) * stride - 2 * padding + k for n in s.shape[1:]]
    else:
        sizes = [(n + 2 * padding - k) // stride + 1 for n in s.shape[1:]]
    if min(sizes) < 1 or math.prod(sizes) * outputs * s.batch > MOST:
        return
    if s.batch * math.prod(sizes) * outputs * channels // groups * k**axes > 40_000_000:
        return
    name = f"Conv{'Transpose' * transposed}{axes}d"
    config = {"stride": stride, "padding": padding, "groups": groups}
    ours = getattr(nn, name)(channels, outputs, k, **config)
    theirs = getattr(torch.nn, name)(channels, outputs, k, **config)
    s.add(
        f"{name}({channels}, {outputs}, {k}, {config})",
        ours,
        theirs,
        same(ours, theirs),
        (outputs, *sizes),
    )


def pool(s: Stack) -> None:
    """The greatest or the mean of squares."""
    channels, height, width = s.shape
    if min(height, width) < 2:
        return
    f = torch.nn.functional
    shape = (channels, height // 2, width // 2)
    if s.random.random() < 0.5:
        s.add("max pool", lambda x: x.max_pool2d(2), lambda x: f.max_pool2d(x, 2), [], shape)
    else:
        s.add("avg pool", lambda x: x.avg_pool2d(2), lambda x: f.avg_pool2d(x, 2), [], shape)


def attention(s: Stack) -> None:
    """Of rows to one another, in one or two heads."""
    rows, side = s.shape
    heads = s.random.choice((1, 2))
    if side % heads:
        return
    causal = s.random.random() < 0.5
    layers = [(nn.Linear(side, side), torch.nn.Linear(side, side)) for _ in range(3)]
    weights = [pair for ours, theirs in layers for pair in same(ours, theirs)]

    def split(x: Any) -> Any:
        return x.reshape(x.shape[0], rows, heads, side // heads).transpose(1, 2)

    def ours(x: Tensor) -> Tensor:
        q, k, v = [split(a(x)) for a, _ in layers]
        y = q.scaled_dot_product_attention(k, v, is_causal=causal)
        return x + y.transpose(1, 2).reshape(x.shape)

    def theirs(x: torch.Tensor) -> torch.Tensor:
        q, k, v = [split(b(x)) for _, b in layers]
        y = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
        return x + y.transpose(1, 2).reshape(x.shape)

    s.add(f"attention {heads} {causal}", ours, theirs, weights, s.shape)


def recurrent(s: Stack) -> None:
    """An LSTM cell over the rows."""
    rows, side = s.shape
    hidden = s.random.choice((1, 4, 16))
    ours, theirs = nn.LSTMCell(side, hidden), torch.nn.LSTMCell(side, hidden)
    weights = same(ours, theirs, "weight_ih", "weight_hh", "bias_ih", "bias_hh")

    def run(x: Any, cell: Any) -> Any:
        state = None
        for i in range(rows):
            state = cell(x[:, i], state)
        assert state is not None
        return state[0]

    if rows <= 16:
        s.add(
            f"lstm {hidden}", lambda x: run(x, ours), lambda x: run(x, theirs), weights, (hidden,)
        )


COMMON = [activation, activation, linear, linear, residual, layer_norm, rms_norm]
SIGNALS = [convolution, batch_norm, group_norm, mean, flatten]
LAYERS: dict[int, list[Callable[[Stack], None]]] = {
    1: [*COMMON, batch_norm],
    2: [
        *COMMON,
        convolution,
        convolution,
        batch_norm,
        group_norm,
        attention,
        recurrent,
        mean,
        flatten,
    ],
    3: [
        activation,
        convolution,
        convolution,
        convolution,
        batch_norm,
        group_norm,
        pool,
        flatten,
        mean,
    ],
}
