"""Tensors and kernels that are written by hand.

Receives tensors and a function that builds a kernel over placeholders for them; gives tensors of
what the kernel leaves in each. How a kernel is built stands in `mixin/kernel`, what becomes of it
in `compat/translate`, when it runs in `engine/calls`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from aster_ml.compat.translate import translate
from aster_ml.engine.calls import new_calls
from aster_ml.engine.multi import parts
from aster_ml.errors import ArgumentError, DeviceError
from aster_ml.mixin.handle import Flag, Handle, either_flag
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import CallArg


class CustomMixin(Handle):
    """Hand-written kernels."""

    __slots__ = ()

    def custom_kernel(
        self, *lst: Any, fxn: Callable[..., UOp], grad_fxn: Callable[..., Any] | None = None
    ) -> list[Any]:
        """What self and the others are after a kernel that `fxn` writes has run on them.

        `fxn` gets one placeholder for each tensor and returns a sink of stores. The kernel works in
        place: what it writes to is overwritten where it is memory (`Tensor.empty`), a copy of it
        otherwise. `grad_fxn(gradient, call)` gives the gradient node of each tensor, or None;
        `call.src` are their nodes.

        Raises: ArgumentError for what is no kernel; DeviceError for tensors on several devices.
        """
        tensors = (self, *lst)
        nodes = tuple([t.uop for t in tensors])
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
        written = translate(kernel)
        calls = new_calls(nodes, CallArg(written.ast, written.slots, 0, grad_fxn, written.values))
        flag: Flag = False
        for t in tensors:
            flag = either_flag(flag, t._requires_grad)
        return [self.from_uop(u, flag) for u in calls]
