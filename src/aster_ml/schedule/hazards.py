"""Resolves write-after-read hazards: stores a value before a write destroys its source.

Receives a body and a hazard that ordering has found; returns a body without the hazard.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from aster_ml.errors import InternalError
from aster_ml.uop.graph import substitute_all, toposort
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import Ops


class Happened(int):
    """A set of STOREs as a bit set: the n-th write to memory comes after all earlier ones.

    `number` has the bit of each STORE. Two sets can be compared and joined if both belong to the
    same `Effects`, or are empty. An int hashes and compares without a Python call.
    """

    number: dict[UOp, int]

    def __new__(cls, bits: int, number: dict[UOp, int]) -> Happened:
        self = super().__new__(cls, bits)
        self.number = number
        return self

    @property
    def bits(self) -> int:
        """The bits as an int."""
        return int(self)

    def __contains__(self, store: UOp | None) -> bool:
        bit = self.number.get(store)  # type: ignore[arg-type]
        return bit is not None and bool(self.bits >> bit & 1)

    def __or__(self, other: Happened) -> Happened:  # type: ignore[override]
        return Happened(self.bits | other.bits, self.number or other.number)

    def stores(self) -> set[UOp]:
        """The STOREs themselves."""
        return {s for s, bit in self.number.items() if self.bits >> bit & 1}

    def is_part_of(self, other: Happened) -> bool:
        """Whether this is a subset of another set."""
        return not self.bits & ~other.bits


NOTHING = Happened(0, {})


class Version(NamedTuple):
    """Content of an argument once these STOREs have happened, and before any other."""

    param: UOp
    after: Happened


class Effects:
    """For STOREs, the set of STOREs that have happened after them: with all earlier ones."""

    def __init__(self) -> None:
        self.known: dict[UOp, int] = {}
        self.number: dict[UOp, int] = {}

    def of(self, stores: tuple[UOp, ...]) -> Happened:
        """The STOREs and all STOREs before them."""
        bits = 0
        for s in stores:
            bits |= self.bits_below(s)
        return Happened(bits, self.number)

    def below(self, root: UOp) -> Happened:
        """The STOREs at and below a STORE, a target or an AFTER, along memory only."""
        return Happened(self.bits_below(root), self.number)

    def set_of(self, stores: Iterable[UOp]) -> Happened:
        """These STOREs alone."""
        bits = 0
        for s in stores:
            bits |= 1 << self.number.setdefault(s, len(self.number))
        return Happened(bits, self.number)

    def bits_below(self, root: UOp) -> int:
        """`below` as bits."""
        stack = [root]
        while stack:
            u = stack[-1]
            sources = u.src if u.op is Ops.AFTER else u.src[:1]
            missing = [s for s in sources if s not in self.known]
            if missing:
                stack.extend(missing)
                continue
            stack.pop()
            seen = 0
            for s in sources:
                seen |= self.known[s]
            if u.op is Ops.STORE:
                seen |= 1 << self.number.setdefault(u, len(self.number))
            self.known[u] = seen
        return self.known[root]


def base_param(u: UOp) -> UOp:
    """The PARAM below views and effects."""
    while u.op is not Ops.PARAM:
        u = u.src[0]
    return u


def snapshot_value(body: UOp, value: UOp) -> UOp:
    """The body with `value` stored to a temporary before any STORE of it reaches its target."""
    changes = {}
    for u in toposort(body):
        if u.op is Ops.STORE and u.src[1] is value:
            if value.op is Ops.COPY:
                raise InternalError(f"effects: {value!r} collides although it is stored apart")
            # CONTIGUOUS of memory would be the same memory again.
            if value.op is Ops.CONTIGUOUS or value.base.op in (Ops.PARAM, Ops.AFTER):
                apart = value.copy_to(str(base_param(u).arg.device))
            else:
                apart = UOp(Ops.CONTIGUOUS, value.dtype, (value,))
            changes[u] = u.replace(src=(u.src[0], apart, *u.src[2:]))
    return substitute_all([body], changes)[0]


def snapshot_version(body: UOp, version: Version) -> UOp:
    """The body in which readers of this content of memory read a copy of it.

    Only targets of STOREs, and memory below an AFTER, keep the memory itself. If every version of
    all memory is copied, program order is a valid order.
    """
    effects, wanted = Effects(), version.after.stores()
    new: dict[UOp, UOp] = {}
    for u in toposort(body):
        if u.op in (Ops.STORE, Ops.AFTER):
            new[u] = u.replace(src=(keep_place(u.src[0], new), *[new[s] for s in u.src[1:]]))
        elif u.src:
            new[u] = u.replace(src=tuple([new[s] for s in u.src]))
        else:
            new[u] = u
        if u.op not in (Ops.PARAM, Ops.AFTER) or base_param(u) is not version.param:
            continue
        if effects.below(u).stores() == wanted:
            new[u] = new[u].copy_to(str(version.param.device))
    if new[body] is body:
        raise InternalError(f"effects: nothing reads {version.param!r} as the steps say")
    return new[body]


def keep_place(u: UOp, new: dict[UOp, UOp]) -> UOp:
    """The target of a write: the memory itself under its views, with updated effects."""
    stack: list[UOp] = []
    while u.op is not Ops.PARAM:
        stack.append(u)
        u = u.src[0]
    for v in reversed(stack):
        u = v.replace(src=(u, *[new[s] for s in v.src[1:]]))
    return u
