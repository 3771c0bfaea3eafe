"""Nodes on several devices: putting a value there, and folding what the devices have.

Receives a node and names of devices; returns nodes, MULTI among them. What each device computes of
such a value is worked out in `uop.multi`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

from aster_ml.uop.ops import MultiArg, Ops
from aster_ml.uop.sharding import MULTI_SEEN, shard_bounds


class ShardMixin:
    """Ways to make a node on several devices."""

    __slots__ = ()

    def multi(self, axis: int | None) -> Self:
        """Joins what several devices have, as parts of a value that is longer along `axis`."""
        u: Any = self
        first, *rest = u.src if u.op is Ops.MULTI else [u.copy_to(d) for d in u.device]
        made: Self = first.beside(rest, axis)
        return made

    def beside(self, others: Sequence[Any], axis: int | None) -> Self:
        """One value of self and what other devices have: equal parts of `axis`, or the same."""
        u: Any = self
        if not MULTI_SEEN:
            MULTI_SEEN.append(True)
        made: Self = u.replace(op=Ops.MULTI, src=(u, *others), arg=MultiArg(axis))
        return made

    def shard_part(self, axis: int | None, number: int, count: int) -> Any:
        """Part `number` of `count` equal ones of an axis; all of it where that is None."""
        u: Any = self
        if axis is None:
            return u
        return u.stretch(axis, *shard_bounds(u.shape[axis], count)[number])

    def shard(self, devices: tuple[str, ...], axis: int | None = None) -> Self:
        """The value copied to several devices: to each a part of `axis`, or all of it."""
        count = len(devices)
        parts = [self.shard_part(axis, i, count).copy_to(d) for i, d in enumerate(devices)]
        made: Self = parts[0].beside(parts[1:], axis)
        return made

    def allreduce(self, op: Ops, device: Any) -> Self:
        """The devices' parts folded by `op`: each device has the result in place of its part."""
        u: Any = self
        if u.device.__class__ is not tuple:
            made: Self = u.copy_to(device)
            return made
        count = len(u.device)
        totals = []
        for d in device if isinstance(device, (tuple, list)) else (device,):
            parts = [self.shard_part(u.axis, i, count).copy_to(d) for i in range(count)]
            total = parts[0]
            for part in parts[1:]:
                total = total.alu(op, part)
            totals.append(total)
        result: Self = (
            totals[0] if isinstance(device, str) else totals[0].beside(totals[1:], u.axis)
        )
        return result
