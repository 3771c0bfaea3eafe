"""Where the results of a replay lie: memory that is written again when nobody has the result.

Receives the form of a result; returns for each call a node with memory, new or that of a result
that is gone. What is computed into it, and what tensors show of it, is decided elsewhere.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from sys import getrefcount
from typing import Any
from weakref import getweakrefcount

from aster_ml.device import Buffer
from aster_ml.dtype import DType
from aster_ml.engine import storage
from aster_ml.helpers import ONE_NAME
from aster_ml.jit.replay import Replay
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import Ops

# How many results of one place are kept for later calls: one that the caller has while it asks for
# the next, and that one. Of larger results one: their memory weighs more than the time.
MAX_HELD, MAX_HELD_NBYTES = 2, 1 << 20


class CachedResult:
    """A result that was handed out: its memory, its BUFFER node and the view that a tensor names.

    Nodes that nobody else has are as good as new ones. Whether somebody has them Python counts:
    tensors and nodes hold them, tables of the engine know them weakly, and either shows. The same
    goes for `tensor`, where whoever hands the result out leaves it here (`keep`).
    """

    __slots__ = ("alone", "base", "buffer", "handle", "tensor", "view")

    def __init__(self, buffer: Buffer, shape: tuple[int, ...] | None, gradient: bool) -> None:
        self.buffer = buffer
        self.handle = buffer.handle
        self.base = UOp.new_buffer(buffer.device, buffer.size, buffer.dtype)
        self.view = self.base if shape is None else self.base._mop(Ops.RESHAPE, shape)
        storage.attach(self.base, buffer)
        if gradient:
            storage.NO_GRADIENT.add(self.base)
        self.tensor: Any = None
        self.alone = 0
        self.alone = self.others()

    def keep(self, tensor: Any) -> None:
        """Leaves the tensor here that shows the result, to be handed out again."""
        self.alone += self.others()
        self.tensor = tensor

    def others(self) -> int:
        """0 when nobody else has the result, by tensor, node or bytes, and its memory is there."""
        buffer, tensor = self.buffer, self.tensor
        if tensor is not None:
            if tensor._cell is not None:
                # A view of it that is gone has left the mark of one.
                tensor._leave()
            # Known here alone; weakly as one of all tensors.
            if getrefcount(tensor) != ONE_NAME or getweakrefcount(tensor) != 1:
                return 1
            # It may have been written to since, and name another node.
            tensor.uop = self.view
        if buffer._handle is not self.handle or (buffer._exports and buffer.is_exported()):
            return 1
        return (
            getrefcount(self.base)
            + getrefcount(self.view)
            + getweakrefcount(self.base)
            + getweakrefcount(self.view)
            - self.alone
        )


class ResultPlace:
    """One of the results that have memory of their own: input `number` of the replay.

    `shape` is that of the tensors that show all of it, None where they show it flat or otherwise.
    `last` gives the node that has the memory which stands in the replay, if it is alive.
    """

    def __init__(
        self,
        number: int,
        form: tuple[str, int, DType],
        shape: tuple[int, ...] | None,
        wants_gradient: bool,
        last: Callable[[], Any],
    ) -> None:
        self.number = number
        self.form = form
        self.shape = shape
        self.wants_gradient = wants_gradient
        self.last = last
        self.current: CachedResult | None = None
        self.held: list[CachedResult] = []
        nbytes = form[1] * form[2].itemsize
        self.most = MAX_HELD if nbytes <= MAX_HELD_NBYTES else 1

    def take(self, replay: Replay) -> CachedResult:
        """A result that nobody has, its memory put in its place in the replay."""
        for held in self.held:
            if not held.others() and storage.BUFFERS.get(held.base) is held.buffer:
                break
        else:
            held = self.make(replay)
        self.current = held
        replay.set_input(self.number, held.buffer)
        return held

    def make(self, replay: Replay) -> CachedResult:
        """A new node, with memory that was a result's if nobody needs that any more."""
        found = replay.input(self.number)
        if self.last() is not None or found.is_exported():
            found = Buffer(*self.form)
        held = CachedResult(found.ensure_allocated(), self.shape, self.wants_gradient)
        self.last = weakref.ref(held.base)
        self.held = [*self.held[len(self.held) - self.most + 1 :], held]
        return held

    def forget(self) -> None:
        """Holds the result of the last call no more; the memory in the replay is left of it."""
        self.held = [held for held in self.held if held is not self.current]
        self.current = None
