"""Normalises by mean and variance, drops elements out, applies functions in turn.

Receives Tensors, returns Tensors. Layers, which hold weights, are in `nn`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

from aster_ml.dtype import dtypes
from aster_ml.errors import ArgumentError
from aster_ml.ops import Self
from aster_ml.ops.activations import widened

# normalisation and dropout


def layernorm(self: Self, axis: int | tuple[int, ...] = -1, eps: float = 1e-5) -> Self:
    """Zero mean and unit variance over `axis`.

    Shapes: self [*b, n] -> [*b, n].
    Dtype: that of self; computed in at least float32.
    Source: Ba, Kiros and Hinton 2016.
    """
    x, result = widened(self, None)
    centred = x - x.mean(axis, keepdim=True)
    scale = ((centred * centred).mean(axis, keepdim=True) + eps).rsqrt()
    return (centred * scale).cast(result)


def batchnorm(
    self: Self,
    weight: Self | None,
    bias: Self | None,
    mean: Self,
    invstd: Self,
    axis: int | tuple[int, ...] = 1,
) -> Self:
    """`(x - mean) * invstd * weight + bias`, all of them along `axis`.

    Shapes: self [n, c, *s], weight [c], bias [c], mean [c], invstd [c] -> [n, c, *s].
    """
    axes = self._resolve_axes(axis, "batchnorm")
    shape = tuple([s if a in axes else 1 for a, s in enumerate(self.shape)])
    # Factors are joined before they meet the large operand.
    factor = invstd.reshape(shape) if len(invstd.shape) == len(axes) else invstd
    if weight is not None:
        factor = factor * weight.reshape(shape)
    out = (self - mean.reshape(shape)) * factor
    return out if bias is None else out + bias.reshape(shape)


def dropout(self: Self, p: float = 0.5) -> Self:
    """Each element 0 with probability `p`, else divided by 1 - p, while `Tensor.training`.

    Shapes: self [*s] -> [*s].
    Raises: ArgumentError unless 0 <= p <= 1.
    Source: Srivastava et al. 2014.
    """
    if not isinstance(p, (int, float)) or not 0 <= p <= 1:
        raise ArgumentError(f"dropout: p is {p!r}; a probability from 0 to 1 is wanted")
    if not self.training or p == 0:
        return self._own()
    if p == 1:
        return self.zeros_like()
    # Stored: the gradient asks for the same numbers, which cost more than a byte each.
    kept = (self.rand_like(dtype=dtypes.default_float, contiguous=False) >= p).contiguous()
    return kept.where(self * (1 / (1 - p)), 0)


def sequential(self: Self, ll: Sequence[Callable[[Self], Self]]) -> Self:
    """Self, passed through every function of the list in turn.

    Raises: ArgumentError for what cannot be called.
    """
    steps = list(ll) if hasattr(ll, "__iter__") else [ll]
    for i, step in enumerate(steps):
        if not callable(step):
            raise ArgumentError(f"sequential: step {i} is {step!r}; a function is wanted")
    return functools.reduce(lambda x, f: f(x), steps, self)
