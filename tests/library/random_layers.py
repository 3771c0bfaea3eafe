"""Random layers with their gradients, drawn from a seed: what networks are made of, at odd sizes.

Values are small integers wherever a layer only adds and multiplies, so that any order of additions
gives the same; results of other layers are compared with a tolerance.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from aster_ml import Tensor, dtypes

# Around the widths of registers, of 32 to 512 bits.
WIDE = (15, 16, 17, 31, 32, 33, 47, 48, 49, 64, 65)
NARROW_TYPES = ("int8", "uint8", "int16", "float16", "bfloat16", "float32", "float64", "int64")


class Layer(NamedTuple):
    """A drawn layer: what it is, its results, and how far these may be from the oracle's."""

    text: str
    results: list[Tensor]
    tolerance: float = 0.0


class Draw:
    """A source of random sizes and inputs."""

    def __init__(self, seed: int) -> None:
        self.random, self.rng = random.Random(seed), np.random.default_rng(seed)

    def size(self) -> int:
        """Small, middling, or around the width of a register."""
        few, some = self.random.randint(1, 7), self.random.randint(8, 40)
        return self.random.choice((few, some, self.random.choice(WIDE)))

    def integers(self, *shape: int, dtype: str = "float32") -> Tensor:
        """Memory with numbers from -2 to 2, or to 2 where a dtype has no others."""
        numbers = self.rng.integers(0 if dtype.startswith("u") else -2, 3, shape)
        return Tensor(numbers.astype(np.float32)).cast(dtype).realize()

    def normal(self, *shape: int) -> Tensor:
        """Memory with numbers that are normally distributed."""
        return Tensor(self.rng.standard_normal(shape).astype(np.float32)).realize()


def with_gradients(y: Tensor, weights: Tensor, *inputs: Tensor) -> list[Tensor]:
    """The result, and the gradients of its weighted sum."""
    return [y, *(y * weights).sum().gradient(*inputs)]


def product(draw: Draw) -> Layer:
    """Of narrow or wide operands, into a dtype of its own, written inside of a larger tensor."""
    m, k, n = draw.size(), draw.size(), draw.size()
    dtype, to = draw.random.choice(NARROW_TYPES), draw.random.choice(NARROW_TYPES)
    a, b = draw.integers(m, k, dtype=dtype), draw.integers(k, n, dtype=dtype)
    if draw.random.random() < 0.3:
        b = draw.integers(n, k, dtype=dtype).T
    result = (a.float() @ b.float()).cast(dtypes.int32) % 8
    around = Tensor.ones(m + 1, n + 3, dtype=to).contiguous().realize()
    around[:m, 1 : n + 1] = result.cast(to)
    return Layer(f"{m}x{k} @ {k}x{n}, {dtype} to {to}", [around])


def convolution(draw: Draw) -> Layer:
    """Any strides, padding, dilation and groups, with both gradients."""
    groups = draw.random.choice((1, 1, 1, 2, 3))
    inputs, outputs = groups * draw.random.randint(1, 18), groups * draw.random.randint(1, 12)
    if draw.random.random() < 0.15:
        groups = outputs = inputs
    side, kernel = draw.random.randint(4, 18), draw.random.randint(1, 4)
    stride, padding, dilation = (draw.random.randint(*r) for r in ((1, 3), (0, 2), (1, 2)))
    if side + 2 * padding < dilation * (kernel - 1) + 1:
        dilation = 1
    x = draw.integers(draw.random.randint(1, 3), inputs, side, side)
    w = draw.integers(outputs, inputs // groups, kernel, kernel)
    y = x.conv2d(w, groups=groups, stride=stride, dilation=dilation, padding=padding)
    text = f"{x.shape} * {w.shape}, {stride=} {padding=} {dilation=} {groups=}"
    return Layer(text, with_gradients(y, draw.integers(*y.shape), x, w))


def transposed_convolution(draw: Draw) -> Layer:
    """With both gradients."""
    inputs, outputs = draw.random.randint(1, 9), draw.random.randint(1, 9)
    side, kernel = draw.random.randint(2, 12), draw.random.randint(2, 4)
    stride, padding = draw.random.randint(1, 3), draw.random.randint(0, 1)
    x, w = draw.integers(2, inputs, side, side), draw.integers(inputs, outputs, kernel, kernel)
    y = x.conv_transpose2d(w, stride=stride, padding=padding)
    text = f"{x.shape} * {w.shape}, {stride=} {padding=}"
    return Layer(text, with_gradients(y, draw.integers(*y.shape), x, w))


def narrow_convolution(draw: Draw) -> Layer:
    """Of operands of a narrow dtype, added up in float32."""
    dtype = draw.random.choice(NARROW_TYPES)
    side, kernel = draw.random.randint(5, 20), draw.random.randint(1, 3)
    x = draw.integers(1, draw.random.randint(1, 20), side, side, dtype=dtype)
    w = draw.integers(draw.size(), x.shape[1], kernel, kernel, dtype=dtype)
    stride = draw.random.randint(1, 2)
    y = x.float().conv2d(w.float(), stride=stride)
    return Layer(f"{x.shape} * {w.shape}, {dtype}, {stride=}", [y])


def reduction(draw: Draw) -> Layer:
    """A sum and a maximum over any axes of a view."""
    shape = [draw.size() for _ in range(draw.random.randint(1, 3))]
    while np.prod(shape) > 30_000:
        shape.pop()
    x = draw.integers(*shape)
    axes = tuple(sorted(draw.random.sample(range(len(shape)), draw.random.randint(1, len(shape)))))
    view = x.flip(0).pad(((1, 0),) + ((0, 0),) * (len(shape) - 1))
    return Layer(f"{shape} over {axes}", [view.sum(axes), view.max(axes), x.sum(axes)])


def dense(draw: Draw) -> Layer:
    """Two layers with their gradients, down to sizes of one."""
    rows, columns, hidden = draw.size(), draw.size(), draw.size()
    outputs = draw.random.randint(1, 9)
    x, w, bias = draw.integers(rows, columns), draw.integers(columns, hidden), draw.integers(hidden)
    u = draw.integers(hidden, outputs)
    y = (x @ w + bias).relu() @ u
    text = f"{rows}x{columns} to {hidden} to {outputs}"
    return Layer(text, with_gradients(y, draw.integers(*y.shape), x, w, bias, u))


def recurrent(draw: Draw) -> Layer:
    """The same weights three times."""
    rows, side = draw.size(), draw.random.choice((1, 2, 3, 5, draw.size()))
    x, w = draw.normal(rows, side), draw.normal(side, side) * 0.2
    y = x
    for _ in range(3):
        y = (y @ w).tanh() + x
    return Layer(f"{rows}x{side}", with_gradients(y, draw.normal(*y.shape), x, w), 1e-4)


def attention(draw: Draw) -> Layer:
    """Causal or not, with its gradients."""
    rows, side = draw.size(), draw.random.choice((2, 8, 17, 32))
    causal = draw.random.random() < 0.4
    others = rows if causal else draw.size()
    q, k, v = (draw.normal(1, 2, n, side) for n in (rows, others, others))
    y = q.scaled_dot_product_attention(k, v, is_causal=causal)
    text = f"{rows} x {others}, {side} each, {causal=}"
    return Layer(text, with_gradients(y, draw.normal(*y.shape), q, k, v), 1e-4)


def normalisation(draw: Draw) -> Layer:
    """Softmax and layernorm over any axis, with gradients."""
    shape = [draw.size(), draw.size()]
    axis = draw.random.randint(0, 1)
    x = draw.normal(*shape)
    y = x.softmax(axis) + x.layernorm(axis, eps=1e-3)
    return Layer(f"{shape} over {axis}", with_gradients(y, draw.normal(*shape), x), 1e-4)


LAYERS: list[Callable[[Draw], Layer]] = [
    product, convolution, convolution, transposed_convolution, narrow_convolution, reduction, dense,
    recurrent, attention, normalisation,
]  # fmt: skip


def draw_layer(seed: int) -> Layer:
    """The layer of a seed."""
    layer = LAYERS[seed % len(LAYERS)]
    drawn = layer(Draw(seed))
    return drawn._replace(text=f"{layer.__name__.replace('_', ' ')} {drawn.text}")
