"""Connects tensors with hand-written kernels, and makes graphs of functions over parameters.

Receives tensors and a function that builds a kernel over placeholders for them; gives tensors of
what the kernel leaves in each. How a kernel is built stands in `ops/kernel`, what becomes of it
in `schedule/handwritten`, when it runs in `engine/calls`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from aster_ml.dtype import dtypes
from aster_ml.engine.calls import new_calls
from aster_ml.engine.multi import parts
from aster_ml.errors import ArgumentError, DeviceError, DTypeError, ShapeError
from aster_ml.helpers import prod
from aster_ml.ops import Self
from aster_ml.ops.handle import Flag, Handle, either_flag
from aster_ml.ops.sizes import same_size
from aster_ml.ops.symbol import ABOVE
from aster_ml.schedule.handwritten import translated
from aster_ml.uop.graph import substitute, toposort
from aster_ml.uop.infer import show_shape
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import CallArg, Ops


def argument(param: UOp, tensors: tuple[Any, ...]) -> UOp:
    """Node in the place of a parameter, as one row."""
    slot, size = param.arg.slot, param.arg.size
    if slot >= len(tensors):
        raise ArgumentError(f"call: parameter {slot} of {len(tensors)} tensors; there is none")
    given = tensors[slot]
    if given.dtype is not param.dtype:
        raise DTypeError(
            f"call: parameter {slot} is {param.dtype.name}, the tensor {given.dtype.name}; cast it"
        )
    if not same_size(prod(given.shape), size):
        raise ShapeError(
            f"call: parameter {slot} has {size} elements, the tensor {show_shape(given.shape)}; "
            "equally many are wanted"
        )
    row: UOp = given.uop.reshape((size,))
    return row


def custom_nodes(
    *nodes: UOp, fxn: Callable[..., UOp], grad_fxn: Callable[..., Any] | None = None
) -> list[UOp]:
    """Runs a kernel that `fxn` writes; returns the nodes after it: `Tensor.custom_kernel`."""
    devices = {u.device for u in nodes if u.device is not None}
    if len(devices) > 1:
        raise DeviceError(
            f"custom_kernel: the tensors are on {', '.join(sorted(map(str, devices)))}; "
            "move them to one device"
        )
    # Of several devices, each runs it on its part.
    kernel = fxn(*[parts(u)[0].placeholder_like(i) for i, u in enumerate(nodes)])
    if not isinstance(kernel, UOp):
        raise ArgumentError(
            f"custom_kernel: fxn gives {kernel!r}; a sink is wanted, "
            "C[i].store(x).end(i).sink(arg=KernelInfo(name=...))"
        )
    written = translated(kernel)
    return new_calls(nodes, CallArg(written.ast, written.slots, 0, grad_fxn, written.values))


ABOVE["custom_kernel"] = custom_nodes


def as_param(self: Self, slot: int) -> Self:
    """Parameter `slot` of a function, of our shape, dtype and device; see `call`."""
    size = prod(self.shape)
    if not isinstance(size, int):
        raise ShapeError(f"as_param: {show_shape(self.shape)} has a symbolic size")
    if not isinstance(self.device, str):
        raise DeviceError("as_param: of a tensor on several devices; one is wanted")
    param = UOp.param(slot, size, self.dtype, self.device)
    return self.from_uop(param.reshape(self.shape), self._requires_grad)


def call(self: Self, *lst: Any, fxn: Any, grad_fxn: Callable[..., Any] | None = None) -> Self:
    """The value of `fxn`, a tensor made of parameters, for self and the others in their places.

    `Tensor.call(a, b, fxn=a.as_param(0) @ b.as_param(1))` is `a @ b`. Its gradients are those
    of `fxn`, unless `grad_fxn(gradient, call)` gives a gradient node for each of the tensors,
    or None; `call.src` are the value and the tensors.

    Raises: ArgumentError for a parameter without a tensor; ShapeError or DTypeError for one of
    another size or dtype.
    """
    tensors = (self, *lst)
    body: UOp = fxn.uop if isinstance(fxn, Handle) else fxn
    if not isinstance(body, UOp):
        raise ArgumentError(f"call: fxn is {fxn!r}; a tensor of as_param(...) is wanted")
    arguments = {u: argument(u, tensors) for u in toposort(body) if u.op is Ops.PARAM}
    value = substitute(body, arguments)
    flag: Flag = False
    for t in tensors:
        flag = either_flag(flag, t._requires_grad)
    if grad_fxn is None:
        return self.from_uop(value, flag)
    asked = grad_fxn

    def gradients(gradient: UOp, node: UOp) -> tuple[Any, ...]:
        return (None, *asked(gradient, node))

    # A kernel that does nothing, and hands its first source on.
    nothing = UOp(Ops.SINK, dtypes.void, ())
    sources = (value, *[t.uop for t in tensors])
    return self.from_uop(new_calls(sources, CallArg(nothing, (), 0, gradients))[0], flag)


def custom_kernel(
    self: Self, *lst: Any, fxn: Callable[..., UOp], grad_fxn: Callable[..., Any] | None = None
) -> list[Any]:
    """Runs a kernel that `fxn` writes; returns self and the others after it.

    `fxn` gets one placeholder for each tensor and returns a sink of stores. The kernel works in
    place: what it writes to is overwritten where it is memory (`Tensor.empty`), a copy of it
    otherwise. `grad_fxn(gradient, call)` gives the gradient node of each tensor, or None;
    `call.src` are their nodes.

    Raises: ArgumentError for what is no kernel; DeviceError for tensors on several devices.
    """
    tensors = (self, *lst)
    calls = custom_nodes(*[t.uop for t in tensors], fxn=fxn, grad_fxn=grad_fxn)
    flag: Flag = False
    for t in tensors:
        flag = either_flag(flag, t._requires_grad)
    return [self.from_uop(u, flag) for u in calls]
