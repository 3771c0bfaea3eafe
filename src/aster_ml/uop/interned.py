"""Interns nodes (hash consing), and caches what is inferred of a node.

`Interned` is the part of a UOp that is independent of ops: building, forgetting and copying nodes,
and lazily inferred properties, each computed once from those of the sources. Methods that build
other nodes are in `uop/node.py`.
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
# (op, dtype, src, arg) -> the live node; an entry is removed with its node.
NODES: dict[Any, weakref.ref[Any]] = {}
UNSET: Any = object()


# Nodes have a finaliser in Python, which may receive Ctrl-C.
listen()


def unnamed(u: UOp) -> frozenset[UOp]:
    """The open ranges of a node: those of its sources, without those that it closes."""
    op, src = u.op, u.src
    if op is RANGE:
        return frozenset((u, *src[0]._ranges))
    # Ranges of the sources are known by now.
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
        # After the end of a loop, a value is that of the last iteration.
        return result.difference([r for s in src[1:] if s.op is Ops.END for r in s.src[1:]])
    if op is Ops.BARRIER:
        # All lanes are done at a barrier; nodes after it depend on loops only.
        return frozenset([r for r in result if not r.arg.kind.is_lane])
    if op is Ops.MMA:
        # The result has its own lanes, not those of the operands.
        count = 2 + u.arg.a + u.arg.b
        return result.difference(src[2:count]).union(src[count:])
    return result


CLOSES_RANGES = frozenset({Ops.REDUCE, Ops.STAGE, Ops.END})
# Ops that may have fewer open ranges than their sources.
LEAVES_RANGES = CLOSES_RANGES | {Ops.AFTER, Ops.BARRIER, Ops.MMA}
NO_RANGES: frozenset[Any] = frozenset()


class Interned:
    """An op, a dtype, sources and a small argument: equal fields are the same object."""

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
    # The result of `simplify`; None if it is the node itself.
    _simple: Any
    # When the value was computed, or the write of a STORE has happened (`engine.storage.WRITES`).
    _at: Any
    # A reference to the first tensor with this node (`ops.handle`).
    _owner: Any
    # The users of the node, and whether its sources list the node as a user (`uop.users`).
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
        # Floats are keyed by bits: 0.0 == -0.0 are different nodes, NaN != NaN the same.
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
        # At exit a node may be freed after the globals of this module.
        try:
            ref = nodes.get(self._key)
        except AttributeError:
            return  # Ctrl-C has interrupted the construction of self.
        if ref is not None:
            # A newer node may have taken the place while this one was dying.
            found = ref()
            if found is None or found is self:
                gone = nodes.pop(self._key, None)
                if gone is not None and gone is not ref:
                    # Another thread has just inserted a newer node.
                    nodes.setdefault(self._key, gone)

    def forget(self) -> None:
        """Removes the node from the table, so that the same expression builds a new node.

        why: memory below it has changed, so its value belongs to an earlier time
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
        """Sizes of the value, outermost first; () for a scalar; None without a value."""
        if self._shape is UNSET:
            infer_iteratively(self, "_shape", infer_shape)
        return self._shape

    @property
    def device(self) -> Any:
        """The device of a tensor-stage value, or several; None if it has none, as constants."""
        if self._device is UNSET:
            infer_iteratively(self, "_device", infer_device)
        return self._device

    @property
    def axis(self) -> int | None:
        """The axis along which a value is sharded over devices; None if it is not sharded."""
        if self._axis is UNSET:
            infer_iteratively(self, "_axis", infer_axis)
        return own_axis(self)  # type: ignore[arg-type]

    @property
    def has_multi(self) -> bool:
        """Whether this node, or one below it, is a value on several devices."""
        if self._axis is UNSET:
            infer_iteratively(self, "_axis", infer_axis)
        return bool(self._axis != PLAIN)

    @property
    def bounds(self) -> tuple[Any, ...]:
        """Least and greatest value, inclusive; of a MULTI, (start, stop) of each device's part."""
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
        """The open ranges on which the value depends."""
        if self._ranges is UNSET:
            infer_ranges(self)
        ranges: frozenset[UOp] = self._ranges
        return ranges

    @property
    def digest(self) -> bytes:
        """A hash of the whole expression, the same in every process."""
        if self._digest is UNSET:
            infer_iteratively(self, "_digest", compute_digest)
        digest: bytes = self._digest
        return digest

    @property
    def key(self) -> str:
        """`digest` as text."""
        return self.digest.hex()


# Held while two threads build the same node.
PLACES = threading.Lock()


def take_place(key: Any, made: Any, ref: weakref.ref[Any]) -> Any:
    """The node of a key with an entry: the live node of another thread, or else `made`.

    A dying node may still have its entry.
    """
    with PLACES:
        other = NODES.setdefault(key, ref)
        found = other()
        if found is not None:
            return found
        NODES[key] = ref
    return made


def infer_iteratively(root: Any, slot: str, rule: Callable[[UOp], Any]) -> None:
    """Fills `slot` of all nodes at and below `root` that lack it, sources first, iteratively."""
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

    why: ranges of most nodes are needed, and a literal attribute is faster than `getattr`
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

    A bound variable has the digest of its variable: sums and products are ordered by digest, and an
    order by values would compile a kernel for each value.
    """
    if u.op is BIND:
        return u.src[0].digest
    made = hashlib.blake2b(f"{u.op._name_} {u.dtype.name} {u.arg!r}".encode(), digest_size=16)
    for s in u.src:
        made.update(s._digest)
    return made.digest()
