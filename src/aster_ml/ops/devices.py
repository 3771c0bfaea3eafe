"""Moves tensors to other devices, and shards them over several.

Receives names of devices; returns tensors whose values are there. On several devices a value is
either on each as a whole, or cut into equal parts of one axis; operations go on from there with the
same meaning as on one (`uop.multi`).
"""

from __future__ import annotations

from typing import Any

from aster_ml.device import Device
from aster_ml.errors import ArgumentError, DeviceError, ShapeError
from aster_ml.helpers import kind_of
from aster_ml.ops import Self
from aster_ml.ops.handle import number_everywhere
from aster_ml.uop.infer import show_shape
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import Ops

Place = str | tuple[str, ...]


def check_device(device: Any) -> Any:
    """A device name, several or None; raises for what is none of these."""
    if device is None or isinstance(device, str):
        return device
    if isinstance(device, (tuple, list)) and device and all(isinstance(d, str) for d in device):
        return tuple(device)
    raise ArgumentError(
        f"device {device!r} is {kind_of(device)}; a name such as 'CPU' is wanted, or a "
        "tuple of them"
    )


def move(x: Any, device: Place) -> Any:
    """`x` on the device (or as a whole on each of several) with this canonical name."""
    if x.device == device:
        return x
    if isinstance(device, str) and device.startswith("DISK"):
        # A file is filled from memory: nothing is computed there, and a number takes memory too.
        apart = x.device.__class__ is tuple or x.device.startswith(("DISK", "NPY"))
        uop = (move(x, "CPU") if apart else x).uop
        return x._derive(UOp(Ops.CONTIGUOUS, uop.dtype, (uop,)).copy_to(device))
    if number_everywhere(x.uop):
        value = x.full(x.shape, x.uop.base.arg, dtype=x.dtype, device=device)
        value._requires_grad = x._requires_grad
        return value
    return x._derive(x.uop.copy_to(device) if isinstance(device, str) else x.uop.shard(device))


def to(self: Self, device: Any) -> Self:
    """The value on another device, or as a whole on each of several; None is the default one.

    Shapes: self [*s], device="CPU" -> [*s].
    """
    moved: Self = move(self, Device.canonicalize(check_device(device)))
    return moved


def to_(self: Self, device: Any) -> Self:
    """Moves self to another device, or several; returns self.

    Shapes: self [*s], device="CPU" -> [*s].
    """
    self._rename(self.to(device).uop)
    return self


def shard(self: Self, devices: Any, axis: int | None = None) -> Self:
    """The value on several devices: each has an equal part of `axis`, or all where it is None.

    Shapes: self [n, m], devices=("CPU", "CPU:1") -> [n, m].
    Raises: ShapeError where the axis does not divide evenly; DeviceError where self is on
    several devices already.
    """
    if self.device.__class__ is tuple:
        raise DeviceError(
            f"shard: the tensor is on several devices already, {', '.join(self.device)}; "
            ".to('CPU') brings it to one"
        )
    place = Device.canonicalize(check_device(devices))
    if isinstance(place, str):
        return self.to(place)
    count = len(place)
    if axis is not None:
        axis = self._resolve_axis(axis, "shard")
        size = self.shape[axis]
        if not isinstance(size, int) or size % count:
            raise ShapeError(
                f"shard: axis {axis} of {show_shape(self.shape)} does not divide evenly over "
                f"{count} devices; pad it to a multiple of {count}, or take another number of "
                "devices"
            )
    if not number_everywhere(self.uop):
        return self._derive(self.uop.shard(place, axis))
    local = tuple([s // count if i == axis else s for i, s in enumerate(self.shape)])
    value = self.uop.base.arg
    parts = [self.full(local, value, dtype=self.dtype, device=d).uop for d in place]
    return self.from_uop(parts[0].beside(parts[1:], axis), self._requires_grad)


def shard_(self: Self, devices: Any, axis: int | None = None) -> Self:
    """Puts self on several devices, as `shard` does; returns self.

    Shapes: self [n, m], devices=("CPU", "CPU:1") -> [n, m].
    """
    self._rename(self.shard(devices, axis).uop)
    return self


def shard_like(self: Self, y: Any) -> Self:
    """The value on the devices of `y`, cut along the same axis.

    Shapes: self [n, m], y [n, m] -> [n, m].
    """
    if isinstance(y.device, str):
        return self.to(y.device)
    if self.device == y.device and self.uop.axis == y.uop.axis:
        return self
    return self.shard(y.device, y.uop.axis)
