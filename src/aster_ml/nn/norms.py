"""Defines layers that normalise: batch, group, instance, layer and root mean square.

A layer is a plain object whose tensors are attributes; calling it maps one tensor to another.
`BatchNorm` is the only one with state that changes in use: while `Tensor.training` holds it updates
its running statistics by assign.
"""

from __future__ import annotations

from aster_ml import Tensor, dtypes
from aster_ml.errors import ArgumentError, ShapeError


def affine_pair(shape: tuple[int, ...] | int, affine: bool) -> tuple[Tensor | None, Tensor | None]:
    """Scale (ones) and offset (zeros) of a normalisation, or no such tensors."""
    if not affine:
        return None, None
    # Memory of their own: equal constants are one node, which gradients could not tell apart.
    return Tensor.ones(shape).contiguous(), Tensor.zeros(shape).contiguous()


def scale_channels(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """`x * weight + bias` with one weight and bias a channel, axis 1."""
    shape = (1, -1) + (1,) * (x.ndim - 2)
    if weight is not None:
        x = x * weight.reshape(shape)
    if bias is not None:
        x = x + bias.reshape(shape)
    return x


class BatchNorm:
    """Zero mean and unit variance for every channel, over the batch and all other axes.

    While `Tensor.training` holds, the statistics are those of the batch, and the running ones move
    towards them by `momentum` (the variance without bias). Otherwise the running ones are used.

    Shapes: x [n, sz, *s] -> [n, sz, *s].
    Raises: ShapeError when axis 1 is not sz, or training sees one value a channel.
    Source: Ioffe and Szegedy 2015.
    """

    def __init__(
        self,
        sz: int,
        eps: float = 1e-5,
        affine: bool = True,
        track_running_stats: bool = True,
        momentum: float = 0.1,
    ) -> None:
        self.eps, self.track_running_stats, self.momentum = eps, track_running_stats, momentum
        self.weight, self.bias = affine_pair(sz, affine)
        self.num_batches_tracked = Tensor.zeros(dtype=dtypes.int64, requires_grad=False)
        if track_running_stats:
            self.running_mean = Tensor.zeros(sz, requires_grad=False)
            self.running_var = Tensor.ones(sz, requires_grad=False)

    def calc_stats(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and biased variance to normalise `x` with, one value a channel."""
        if self.track_running_stats and not Tensor.training:
            return self.running_mean, self.running_var
        axes = tuple(i for i in range(x.ndim) if i != 1)
        mean = x.mean(axis=axes)
        # The same difference is what `Tensor.batchnorm` scales, so the graph holds it once and the
        # gradient reaches the mean through one sum.
        centred = x - mean.reshape((1, -1) + (1,) * (x.ndim - 2))
        return mean, (centred * centred).mean(axis=axes)

    def track(self, x: Tensor, mean: Tensor, var: Tensor) -> None:
        """Move the running statistics towards those of this batch."""
        count = x.numel() // x.shape[1]
        if isinstance(count, int) and count < 2:
            raise ShapeError(
                f"BatchNorm: training needs more than one value a channel, x is {list(x.shape)}: "
                "use a larger batch, or Tensor.training = False"
            )
        if isinstance(count, int):
            unbiased = var.detach() * (count / (count - 1))
        else:
            unbiased = var.detach() * count / (count - 1)
        mean = mean.detach()
        self.running_mean.assign(self.running_mean + (mean - self.running_mean) * self.momentum)
        self.running_var.assign(self.running_var + (unbiased - self.running_var) * self.momentum)
        self.num_batches_tracked.assign(self.num_batches_tracked + 1)

    def __call__(self, x: Tensor) -> Tensor:
        channels = self.running_mean.shape[0] if self.track_running_stats else None
        if x.ndim < 2 or (channels is not None and x.shape[1] != channels):
            raise ShapeError(
                f"BatchNorm: x is {list(x.shape)}, [n, {'sz' if channels is None else channels}, "
                "...] is wanted (channels on axis 1)"
            )
        mean, var = self.calc_stats(x)
        if self.track_running_stats and Tensor.training:
            self.track(x, mean, var)
        return x.batchnorm(self.weight, self.bias, mean, (var + self.eps).rsqrt())


BatchNorm2d = BatchNorm3d = BatchNorm


class GroupNorm:
    """Zero mean and unit variance for every sample and group of channels.

    Groups are equal parts of a sample's elements in row-major order, so there may be more of them
    than channels.

    Shapes: x [n, num_channels, *s] -> [n, num_channels, *s].
    Source: Wu and He 2018.
    """

    def __init__(
        self, num_groups: int, num_channels: int, eps: float = 1e-5, affine: bool = True
    ) -> None:
        if num_groups < 1:
            raise ArgumentError(f"GroupNorm: {num_groups} groups; a positive number is wanted")
        self.num_groups, self.num_channels, self.eps = num_groups, num_channels, eps
        self.weight, self.bias = affine_pair(num_channels, affine)

    def __call__(self, x: Tensor) -> Tensor:
        if x.ndim < 2 or x.shape[1] != self.num_channels:
            raise ShapeError(
                f"GroupNorm: x is {list(x.shape)}, [n, {self.num_channels}, ...] is wanted"
            )
        grouped = x.reshape(x.shape[0], self.num_groups, -1).layernorm(eps=self.eps)
        return scale_channels(grouped.reshape(x.shape), self.weight, self.bias)


class InstanceNorm:
    """Zero mean and unit variance for every sample and channel.

    Shapes: x [n, num_features, *s] -> [n, num_features, *s]; len(s) >= 1.
    Source: Ulyanov, Vedaldi and Lempitsky 2016.
    """

    def __init__(self, num_features: int, eps: float = 1e-5, affine: bool = True) -> None:
        self.num_features, self.eps = num_features, eps
        self.weight, self.bias = affine_pair(num_features, affine)

    def __call__(self, x: Tensor) -> Tensor:
        if x.ndim < 3 or x.shape[1] != self.num_features:
            raise ShapeError(
                f"InstanceNorm: x is {list(x.shape)}, [n, {self.num_features}, ...] with at least "
                "one axis after the channels is wanted"
            )
        flat = x.reshape(x.shape[0], self.num_features, -1).layernorm(eps=self.eps)
        return scale_channels(flat.reshape(x.shape), self.weight, self.bias)


class LayerNorm:
    """Zero mean and unit variance over the last axes, those of `normalized_shape`.

    Shapes: x [*b, *normalized_shape] -> [*b, *normalized_shape]; len(normalized_shape) >= 1.
    Source: Ba, Kiros and Hinton 2016.
    """

    def __init__(
        self,
        normalized_shape: int | tuple[int, ...],
        eps: float = 1e-5,
        elementwise_affine: bool = True,
    ) -> None:
        self.normalized_shape: tuple[int, ...] = (
            (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
        )
        if not self.normalized_shape:
            raise ArgumentError("LayerNorm: normalized_shape is empty, at least one axis is wanted")
        self.axis = tuple(-1 - i for i in range(len(self.normalized_shape)))
        self.eps = eps
        self.weight, self.bias = affine_pair(self.normalized_shape, elementwise_affine)

    def __call__(self, x: Tensor) -> Tensor:
        if x.shape[-len(self.normalized_shape) :] != self.normalized_shape:
            raise ShapeError(
                f"LayerNorm: the last axes of x {list(x.shape)} must be "
                f"{list(self.normalized_shape)}"
            )
        x = x.layernorm(axis=self.axis, eps=self.eps)
        if self.weight is None or self.bias is None:
            return x
        return x * self.weight + self.bias


class LayerNorm2d(LayerNorm):
    """Layer normalisation over the channels of an image.

    Shapes: x [n, c, h, w] -> [n, c, h, w].
    """

    def __call__(self, x: Tensor) -> Tensor:
        return super().__call__(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class RMSNorm:
    """Division by the root of the mean square over the last axis, computed in float32.

    Shapes: x [*b, dim] -> [*b, dim].
    Dtype: that of x before the weight, which may promote it.
    Source: Zhang and Sennrich 2019.
    """

    def __init__(self, dim: int, eps: float = 1e-6, elementwise_affine: bool = True) -> None:
        self.eps = eps
        self.weight = Tensor.ones(dim).contiguous() if elementwise_affine else None

    def __call__(self, x: Tensor) -> Tensor:
        if self.weight is not None and x.shape[-1] != self.weight.shape[0]:
            raise ShapeError(
                f"RMSNorm: the last axis of x is {x.shape[-1]}, dim is {self.weight.shape[0]}"
            )
        wide = x if x.dtype == dtypes.float64 else x.float()
        scaled = (wide * (wide.square().mean(-1, keepdim=True) + self.eps).rsqrt()).cast(x.dtype)
        return scaled if self.weight is None else scaled * self.weight
