"""Interns nodes (hash consing), and caches what is inferred of a node.

`Interned` is the part of a UOp that knows no op's meaning: building, forgetting and copying nodes,
and slots that are filled once from those of the sources. What can be made of nodes is in
`uop/node.py`.
"""

from __future__ import annotations

import hashlib
import struct
import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self

from aster_ml.dtype import DType, dtypes
from aster_ml.interrupts import listen
from aster_ml.uop.infer import infer_bounds, infer_device, infer_shape
from aster_ml.uop.ops import Ops
from aster_ml.uop.sharding import PLAIN, infer_axis, own_axis, shard_bounds

if TYPE_CHECKING:
    from aster_ml.uop.node import UOp

BIND, CONST, RANGE = Ops.BIND, Ops.CONST, Ops.RANGE
new_object, new_ref = object.__new__, weakref.ref
pack_float = struct.Struct("<d").pack
# Every live node by (op, dtype, src, arg); entries leave with their node.
NODES: dict[Any, weakref.ref[Any]] = {}
UNSET: Any = object()


# Nodes end in a function of Python, by the million.
listen()


def unnamed(u: UOp) -> frozenset[UOp]:
    """Ranges that a node is inside of: those of its sources, less those that it closes."""
    op, src = u.op, u.src
    if op is RANGE:
        return frozenset((u, *src[0]._ranges))
    # Sources have theirs by now.
    result = NO_RANGES
    for s in src:
        more = s._ranges
        if more and not more <= result:
            result = result | more if result else more
    if op not in LEAVES_RANGES:
        return result
    if op in CLOSES_RANGES and len(src) > 1:
        return result.difference([r for r in src[1:] if r.op is RANGE])
    if op is Ops.AFTER and any([s.op is Ops.END for s in src[1:]]):
        # Behind the end of a loop there is what the last turn has left.
        return result.difference([r for s in src[1:] if s.op is Ops.END for r in s.src[1:]])
    if op is Ops.BARRIER:
        # What lanes did before it is done: whatever comes after depends on the loops alone.
        return frozenset([r for r in result if not r.arg.kind.is_lane])
    if op is Ops.MMA:
        # Of the lanes of its operands the result has those that are its own.
        count = 2 + u.arg.a + u.arg.b
        return result.difference(src[2:count]).union(src[count:])
    return result


CLOSES_RANGES = frozenset({Ops.REDUCE, Ops.STAGE, Ops.END})
# What may be inside of fewer ranges than its sources.
LEAVES_RANGES = CLOSES_RANGES | {Ops.AFTER, Ops.BARRIER, Ops.MMA}
NO_RANGES: frozenset[Any] = frozenset()


class Interned:
    """An op, a dtype, sources and a small argument: the same four are the same object."""

    __slots__ = (
        "__weakref__",
        "_at",
        "_axis",
        "_bounds",
        "_device",
        "_digest",
        "_is_linked",
        "_key",
        "_owner",
        "_ranges",
        "_shape",
        "_simple",
        "_users",
        "arg",
        "dtype",
        "op",
        "src",
        "tag",
    )
    op: Ops
    dtype: DType
    src: tuple[UOp, ...]
    arg: Any
    tag: Any
    _axis: Any
    _key: Any
    _shape: Any
    _device: Any
    _bounds: Any
    _ranges: Any
    _digest: Any
    # What `simplify` has made of the node; None where that is the node itself.
    _simple: Any
    # When the value was computed, or the write of a STORE has happened (`engine.storage.WRITES`).
    _at: Any
    # A reference to the tensor that was the first to have this node (`mixin.handle`).
    _owner: Any
    # Who uses the node, and whether its sources know the node as a user (`uop.users`).
    _users: Any
    _is_linked: bool

    def __new__(
        cls,
        op: Ops,
        dtype: DType = dtypes.void,
        src: tuple[UOp, ...] = (),
        arg: Any = None,
        tag: Any = None,
    ) -> Self:
        # Equal floats may differ (0.0, -0.0) and unequal ones be the same (NaN): bits decide.
        if op is CONST and arg.__class__ is float:
            key: Any = (op, dtype, src, pack_float(arg))
        else:
            key = (op, dtype, src, arg)
        if tag is not None:
            key = (*key, tag)
        ref = NODES.get(key)
        if ref is not None:
            found = ref()
            if found is not None:
                return found  # type: ignore[no-any-return]
        self = new_object(cls)
        self.op = op
        self.dtype = dtype
        self.src = src
        self.arg = arg
        self.tag = tag
        self._key = key
        self._shape = self._device = self._bounds = self._ranges = self._digest = self._axis = UNSET
        self._simple = self._at = self._owner = self._users = UNSET
        self._is_linked = False
        ref = new_ref(self)
        other = NODES.setdefault(key, ref)
        if other is not ref:
            return take_place(key, self, ref)  # type: ignore[no-any-return]
        return self

    def __del__(self, nodes: dict[Any, weakref.ref[Any]] = NODES) -> None:
        # Some nodes go after the names of this module have gone, when the process ends.
        try:
            ref = nodes.get(self._key)
        except AttributeError:
            return  # Ctrl-C has ended the making of self.
        if ref is not None:
            # A newer node may have taken the place while this one was dying.
            found = ref()
            if found is None or found is self:
                gone = nodes.pop(self._key, None)
                if gone is not None and gone is not ref:
                    # Another thread has put a newer node there just now.
                    nodes.setdefault(self._key, gone)

    def forget(self) -> None:
        """From now on the same expression is another node; this one stays what it was.

        why: memory below it has changed, so its value is that of a time that is past
        """
        ref = NODES.get(self._key)
        if ref is not None and ref() is self:
            NODES.pop(self._key, None)

    @property
    def is_current(self) -> bool:
        """Whether the same expression, built now, is this node: see `forget`."""
        ref = NODES.get(self._key)
        return ref is not None and ref() is self

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: Any) -> Self:
        return self

    # inferred

    @property
    def shape(self) -> Any:
        """Sizes of the value, outermost first; () of a scalar; None of what has no value."""
        if self._shape is UNSET:
            infer_iteratively(self, "_shape", infer_shape)
        return self._shape

    @property
    def device(self) -> Any:
        """Where a tensor-stage value lives, a name or several; None for what lives anywhere."""
        if self._device is UNSET:
            infer_iteratively(self, "_device", infer_device)
        return self._device

    @property
    def axis(self) -> int | None:
        """Of a value on several devices: the axis that it is split along; None if it is not."""
        if self._axis is UNSET:
            infer_iteratively(self, "_axis", infer_axis)
        return own_axis(self)  # type: ignore[arg-type]

    @property
    def has_multi(self) -> bool:
        """Whether a value on several devices stands here or below."""
        if self._axis is UNSET:
            infer_iteratively(self, "_axis", infer_axis)
        return bool(self._axis != PLAIN)

    @property
    def bounds(self) -> tuple[Any, ...]:
        """Least and greatest value, inclusive; of a MULTI, where the part of each device lies."""
        if self.op is Ops.MULTI and self.arg.axis is not None:
            return tuple(shard_bounds(self.shape[self.arg.axis], len(self.src)))
        if self._bounds is UNSET:
            infer_iteratively(self, "_bounds", infer_bounds)
        bounds: tuple[Any, Any] = self._bounds
        return bounds

    @property
    def vmin(self) -> Any:
        """Least value."""
        if self._bounds is UNSET:
            infer_iteratively(self, "_bounds", infer_bounds)
        return self._bounds[0]

    @property
    def vmax(self) -> Any:
        """Greatest value."""
        if self._bounds is UNSET:
            infer_iteratively(self, "_bounds", infer_bounds)
        return self._bounds[1]

    @property
    def ranges(self) -> frozenset[UOp]:
        """The ranges that the value changes with and that it does not close itself."""
        if self._ranges is UNSET:
            infer_ranges(self)
        ranges: frozenset[UOp] = self._ranges
        return ranges

    @property
    def digest(self) -> bytes:
        """A hash of the whole expression that is the same in every process."""
        if self._digest is UNSET:
            infer_iteratively(self, "_digest", compute_digest)
        digest: bytes = self._digest
        return digest

    @property
    def key(self) -> str:
        """`digest` as text."""
        return self.digest.hex()


# Held by who decides which of several objects a node is.
PLACES = threading.Lock()


def take_place(key: Any, made: Any, ref: weakref.ref[Any]) -> Any:
    """The node of a key that has an entry: one that another thread has just made, or this one.

    One that is dying may have its entry still.
    """
    with PLACES:
        other = NODES.setdefault(key, ref)
        found = other()
        if found is not None:
            return found
        NODES[key] = ref
    return made


def infer_iteratively(root: Any, slot: str, rule: Callable[[UOp], Any]) -> None:
    """Fills `slot` of `root`, first of everything below it that lacks it, without recursion."""
    stack = [root]
    while stack:
        u = stack[-1]
        for s in u.src:
            if getattr(s, slot) is UNSET:
                stack.append(s)
        if stack[-1] is u:
            stack.pop()
            if getattr(u, slot) is UNSET:
                setattr(u, slot, rule(u))


def infer_ranges(root: Any) -> None:
    """`infer_iteratively` for ranges.

    why: most nodes are asked for them, and an attribute is found faster by a name that is written
    """
    stack = [root]
    while stack:
        u = stack[-1]
        for s in u.src:
            if s._ranges is UNSET:
                if s.src:
                    stack.append(s)
                else:
                    s._ranges = NO_RANGES
        if stack[-1] is u:
            stack.pop()
            if u._ranges is UNSET:
                u._ranges = unnamed(u)


def compute_digest(u: UOp) -> bytes:
    """Hash over op, dtype, argument and the digests of the sources.

    A bound variable has that of the variable: sums and products are ordered by it, and must not be
    ordered by values, or each would be compiled apart.
    """
    if u.op is BIND:
        return u.src[0].digest
    made = hashlib.blake2b(f"{u.op._name_} {u.dtype.name} {u.arg!r}".encode(), digest_size=16)
    for s in u.src:
        made.update(s._digest)
    return made.digest()
