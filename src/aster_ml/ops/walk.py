"""Asks the graph below a node, and marks nodes.

Walks are `uop/graph`'s, which stands above and is reached by `ABOVE`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self, TypeVar

from aster_ml.dtype import DType, dtypes
from aster_ml.late import late
from aster_ml.ops.symbol import ABOVE
from aster_ml.uop.dialect import Dialect
from aster_ml.uop.ops import DeviceArg, Ops

if TYPE_CHECKING:
    from aster_ml.uop.print import python
else:
    python = late("uop.print.python")

T = TypeVar("T")


class WalkMixin:
    """The graph below a node, and marks on it."""

    __slots__ = ()
    op: Any
    dtype: DType
    src: tuple[Any, ...]
    arg: Any

    def toposort(self, gate: Callable[[Any], bool] | None = None) -> dict[Self, None]:
        """Self and every node below, sources first; with `gate` not below nodes that fail it."""
        if gate is not None and not gate(self):
            return {}
        order: dict[Self, None] = ABOVE["toposort"](self, enter=gate)
        return order if gate is None else {u: None for u in order if gate(u)}

    def topovisit(self, visitor: Callable[[Any], T], cache: dict[Any, T]) -> T:
        """Visits nodes below, then self; returns `visitor`'s result for self; fills `cache`."""
        for u in ABOVE["toposort"](self, enter=lambda u: u not in cache):
            if u not in cache:
                cache[u] = visitor(u)
        return cache[self]

    @property
    def backward_slice(self) -> dict[Self, None]:
        """Every node below."""
        order = self.toposort()
        del order[self]
        return order

    @property
    def backward_slice_with_self(self) -> dict[Self, None]:
        """Self and every node below."""
        return {self: None, **self.backward_slice}

    def op_in_backward_slice_with_self(self, *ops: Any) -> bool:
        """Whether self or a node below has one of these ops."""
        return any([u.op in ops for u in self.toposort()])

    def get_consumer_map(self) -> dict[Self, dict[Self, None]]:
        """For self and each node below, the nodes that have it as a source."""
        found: dict[Self, list[Self]] = ABOVE["consumers"](self.toposort())
        return {u: dict.fromkeys(users) for u, users in found.items()}

    @property
    def ended_ranges(self) -> tuple[Self, ...]:
        """The axes that this node closes."""
        found: list[Self] = []
        stack: list[Self] = [self]
        while stack:
            u = stack.pop()
            if u.op is Ops.AFTER:
                stack.extend(reversed(u.src[1:]))
            elif u.op in (Ops.END, Ops.REDUCE, Ops.STAGE):
                found.extend(u.src[1:])
        return tuple(found)

    def f(self, op: Any, **kwargs: Any) -> Self:
        """A node of `op` over self."""
        kind: Any = self.__class__
        dtype = kwargs.get("dtype", self.dtype)
        src = (self, *kwargs.get("src", ()))
        return kind(op, dtype, src, kwargs.get("arg"), kwargs.get("tag"))  # type: ignore[no-any-return]

    def contiguous(self) -> Self:
        """Self, stored row-major in memory of its own."""
        return self if self.op in (Ops.CONTIGUOUS, Ops.BUFFER) else self.f(Ops.CONTIGUOUS)

    def contiguous_backward(self) -> Self:
        """Self; its gradient is stored."""
        return self.f(Ops.CONTIGUOUS_BACKWARD)

    def detach(self) -> Self:
        """Self; no gradient passes."""
        return self.f(Ops.DETACH)

    def copy_to_device(self, device: str, arg: Any = None) -> Self:
        """Self on another device."""
        return self.f(Ops.COPY, arg=DeviceArg(device))

    def sintify(self) -> Any:
        """A constant as its number, anything else as it is."""
        return self.arg if self.op is Ops.CONST else self

    def sgep(self, i: int) -> Any:
        """The number in lane `i` of a constant vector, or the node in it."""
        lane: Any = self.gep(i)  # type: ignore[attr-defined]
        return lane.sintify()

    def pyrender(self) -> str:
        """Self as Python text that gives it again."""
        return python.python_text(self)

    @classmethod
    def unique(cls, arg: int) -> Self:
        """A node that is like no other with another number."""
        kind: Any = cls
        return kind(Dialect.UNIQUE, dtypes.void, (), arg)  # type: ignore[no-any-return]

    @property
    def ptrdtype(self) -> Any:
        """The dtype of memory as a pointer."""
        plain = self.dtype.__class__ is DType
        return self.dtype.ptr(self.size) if plain else self.dtype  # type: ignore[attr-defined]
