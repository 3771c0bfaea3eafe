"""Stand-in for `examples.hlb_cifar10`: a batch normalisation that each device has for itself."""

from __future__ import annotations

from aster_ml import Tensor


class UnsyncedBatchNorm:
    """Batch normalisation over the part of a batch that one device has.

    The running statistics have a leading axis, one entry a device.
    """

    def __init__(
        self, size: int, eps: float = 1e-5, momentum: float = 0.1, num_devices: int = 1
    ) -> None:
        self.eps, self.momentum, self.num_devices = eps, momentum, num_devices
        self.weight, self.bias = Tensor.ones(size), Tensor.zeros(size)
        self.running_mean = Tensor.zeros(num_devices, size, requires_grad=False)
        self.running_var = Tensor.ones(num_devices, size, requires_grad=False)
        self.num_batches_tracked = Tensor.zeros(1, dtype="int", requires_grad=False)

    def __call__(self, x: Tensor) -> Tensor:
        parts = x.reshape(self.num_devices, -1, *x.shape[1:]).rearrange("n b c h w -> n c b h w")
        if Tensor.training:
            mean = parts.mean((2, 3, 4))
            var = (parts - mean.reshape(*mean.shape, 1, 1, 1)).square().mean((2, 3, 4))
            for running, now in ((self.running_mean, mean), (self.running_var, var)):
                kept = (1 - self.momentum) * running
                running.assign(kept + self.momentum * now.detach().cast(running.dtype))
            self.num_batches_tracked.assign(self.num_batches_tracked + 1)
        else:
            mean, var = self.running_mean, self.running_var
        shape = (self.num_devices, -1, 1, 1, 1)
        out = (parts - mean.reshape(*shape)) * (var + self.eps).rsqrt().reshape(*shape)
        out = out * self.weight.reshape(1, -1, 1, 1, 1) + self.bias.reshape(1, -1, 1, 1, 1)
        return out.rearrange("n c b h w -> n b c h w").reshape(x.shape)
