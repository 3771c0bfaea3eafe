"""Defines layers that multiply by a weight: linear, convolutions, embedding, LSTM cell.

A layer is a plain object whose tensors are attributes; calling it maps tensors to tensors. The
attribute names are those of checkpoints in the wild (`weight`, `bias`, ...). Normalisation is in
`nn.norms`; nothing here knows of optimisers or files.
"""

from __future__ import annotations

import math

from aster_ml import Tensor, dtypes
from aster_ml.errors import ArgumentError, DTypeError, ShapeError
from aster_ml.extend import check_tensor
from aster_ml.helpers import make_tuple


def uniform_weight(*shape: int, bound: float) -> Tensor:
    """A weight drawn from the uniform distribution over [-bound, bound)."""
    return Tensor.uniform(*shape, low=-bound, high=bound)


def fan_in_bound(fan_in: int) -> float:
    """1/sqrt(fan_in): the bound that keeps the variance of a layer's output near its input's.

    Raises: ArgumentError for what is no number.
    """
    if not isinstance(fan_in, int):
        raise ArgumentError(f"a layer of {fan_in!r} inputs; a whole number is wanted")
    return 1 / math.sqrt(fan_in) if fan_in > 0 else 0.0


class Linear:
    """Product with a weight over the last axis, plus a bias.

    Weight and bias start uniform in +-1/sqrt(in_features).

    Shapes: x [*b, in_features] -> [*b, out_features].
    """

    def __init__(self, in_features: int, out_features: int, bias: bool = True) -> None:
        bound = fan_in_bound(in_features)
        self.weight = uniform_weight(out_features, in_features, bound=bound)
        self.bias = uniform_weight(out_features, bound=bound) if bias else None

    def __call__(self, x: Tensor) -> Tensor:
        return x.linear(self.weight.transpose(), self.bias)


def check_groups(layer: str, in_channels: int, out_channels: int, groups: int) -> None:
    """Both channel counts split evenly into the groups."""
    if groups < 1 or in_channels % groups or out_channels % groups:
        raise ArgumentError(
            f"{layer}: groups={groups} must divide in_channels={in_channels} and "
            f"out_channels={out_channels}"
        )


def resolve_padding(
    padding: int | tuple[int, ...] | str,
    kernel_size: tuple[int, ...],
    stride: int | tuple[int, ...],
    dilation: int | tuple[int, ...],
) -> int | tuple[int, ...]:
    """The padding in numbers: `"same"` becomes (left, right) a spatial axis, last axis first.

    Raises: ArgumentError for another word, and for "same" with a stride other than 1.
    """
    if not isinstance(padding, str):
        return padding
    if padding.lower() != "same":
        raise ArgumentError(
            f"padding={padding!r}: a number, a tuple of numbers or 'same' is wanted"
        )
    if any(s != 1 for s in make_tuple(stride, len(kernel_size))):
        raise ArgumentError(
            f"padding='same' is not supported for strided convolutions (stride={stride}): "
            "give the padding in numbers"
        )
    pads: list[int] = []
    for size, step in zip(reversed(kernel_size), reversed(make_tuple(dilation, len(kernel_size)))):
        total = step * (size - 1)
        pads += [total // 2, total - total // 2]
    return tuple(pads)


class Conv2d:
    """Cross-correlation of the axes after the channels with a weight, plus a bias.

    The number of spatial axes is that of `kernel_size` (a single number means two). Weight and bias
    start uniform in +-1/sqrt(n), n being in_channels times the kernel's size, whatever `groups` is.

    Shapes: x [n, in_channels, *s] -> [n, out_channels, *t].
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int, ...],
        stride: int | tuple[int, ...] = 1,
        padding: int | tuple[int, ...] | str = 0,
        dilation: int | tuple[int, ...] = 1,
        groups: int = 1,
        bias: bool = True,
    ) -> None:
        check_groups("Conv2d", in_channels, out_channels, groups)
        self.kernel_size: tuple[int, ...] = make_tuple(kernel_size, 2)
        self.stride, self.dilation, self.groups = stride, dilation, groups
        self.padding = resolve_padding(padding, self.kernel_size, stride, dilation)
        bound = fan_in_bound(in_channels * math.prod(self.kernel_size))
        shape = (out_channels, in_channels // groups, *self.kernel_size)
        self.weight = uniform_weight(*shape, bound=bound)
        self.bias = uniform_weight(out_channels, bound=bound) if bias else None

    def __call__(self, x: Tensor) -> Tensor:
        return x.conv2d(
            self.weight, self.bias, self.groups, self.stride, self.dilation, self.padding
        )


def Conv1d(
    in_channels: int,
    out_channels: int,
    kernel_size: int,
    stride: int = 1,
    padding: int | str = 0,
    dilation: int = 1,
    groups: int = 1,
    bias: bool = True,
) -> Conv2d:
    """A convolution over one spatial axis.

    Shapes: x [n, in_channels, s] -> [n, out_channels, t].
    """
    return Conv2d(
        in_channels, out_channels, (kernel_size,), stride, padding, dilation, groups, bias
    )


class ConvTranspose2d(Conv2d):
    """The transpose of a convolution, as its gradient towards the input is, plus a bias.

    Weight and bias start as those of `Conv2d`. The weight is drawn last, after one of a Conv2d that
    is never computed, so that a seed gives the numbers that it gives in the reference.

    Shapes: x [n, in_channels, *s] -> [n, out_channels, *t].
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int, ...],
        stride: int | tuple[int, ...] = 1,
        padding: int | tuple[int, ...] = 0,
        output_padding: int | tuple[int, ...] = 0,
        dilation: int | tuple[int, ...] = 1,
        groups: int = 1,
        bias: bool = True,
    ) -> None:
        check_groups("ConvTranspose2d", in_channels, out_channels, groups)
        if isinstance(padding, str):
            raise ArgumentError(
                f"ConvTranspose2d: padding={padding!r} is a word; give numbers, and "
                "output_padding where the size stays ambiguous"
            )
        super().__init__(
            in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias
        )
        self.output_padding = output_padding
        shape = (in_channels, out_channels // groups, *self.kernel_size)
        bound = fan_in_bound(in_channels * math.prod(self.kernel_size))
        self.weight = uniform_weight(*shape, bound=bound)

    def __call__(self, x: Tensor) -> Tensor:
        return x.conv_transpose2d(
            self.weight,
            self.bias,
            self.groups,
            self.stride,
            self.dilation,
            self.padding,
            self.output_padding,
        )


def ConvTranspose1d(
    in_channels: int,
    out_channels: int,
    kernel_size: int,
    stride: int = 1,
    padding: int = 0,
    output_padding: int = 0,
    dilation: int = 1,
    groups: int = 1,
    bias: bool = True,
) -> ConvTranspose2d:
    """A transposed convolution over one spatial axis.

    Shapes: x [n, in_channels, s] -> [n, out_channels, t].
    """
    return ConvTranspose2d(
        in_channels,
        out_channels,
        (kernel_size,),
        stride,
        padding,
        output_padding,
        dilation,
        groups,
        bias,
    )


class Embedding:
    """A row of the weight for every integer of the input.

    The weight starts Glorot-uniform. Rows are read where they lie, so the cost is that of the rows
    asked for and not of the vocabulary.

    Shapes: idx int [*b] -> [*b, embed_size].
    Raises: DTypeError when idx does not hold integers.
    """

    def __init__(self, vocab_size: int, embed_size: int) -> None:
        self.vocab_sz, self.embed_sz = vocab_size, embed_size
        self.weight = Tensor.glorot_uniform(vocab_size, embed_size)

    def __call__(self, idx: Tensor) -> Tensor:
        check_tensor(idx, "Embedding")
        if not dtypes.is_int(idx.dtype):
            raise DTypeError(
                f"Embedding: the index has dtype {idx.dtype}, an integer dtype is wanted: "
                "cast it, for example with .int()"
            )
        return self.weight[idx]


class LSTMCell:
    """One step of a long short-term memory; gates in the order input, forget, cell, output.

    Weights start uniform in +-1/sqrt(hidden_size), biases at zero.

    Shapes: x [n, input_size], hc a pair of [n, hidden_size] -> a pair of [n, hidden_size].
    Source: Hochreiter and Schmidhuber 1997, with the forget gate of Gers et al. 2000.
    """

    def __init__(self, input_size: int, hidden_size: int, bias: bool = True) -> None:
        bound = fan_in_bound(hidden_size)
        self.weight_ih = uniform_weight(hidden_size * 4, input_size, bound=bound)
        self.weight_hh = uniform_weight(hidden_size * 4, hidden_size, bound=bound)
        self.bias_ih = Tensor.zeros(hidden_size * 4).contiguous() if bias else None
        self.bias_hh = Tensor.zeros(hidden_size * 4).contiguous() if bias else None

    def __call__(self, x: Tensor, hc: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, Tensor]:
        input_size, hidden = self.weight_ih.shape[1], self.weight_hh.shape[1]
        if x.shape[-1] != input_size:
            raise ShapeError(
                f"LSTMCell: the last axis of x is {x.shape[-1]}, input_size is {input_size}"
            )
        if hc is None:
            # Zeros, with which nothing is computed; the weights have gradients all the same.
            nothing = x._full_of((*x.shape[:-1], hidden), 0)
            hc = nothing, nothing
        gates = x.linear(self.weight_ih.transpose(), self.bias_ih)
        gates = gates + hc[0].linear(self.weight_hh.transpose(), self.bias_hh)
        i, f, g, o = gates.split(hidden, dim=-1)
        new_c = f.sigmoid() * hc[1] + i.sigmoid() * g.tanh()
        new_h = o.sigmoid() * new_c.tanh()
        return new_h.contiguous(), new_c.contiguous()
