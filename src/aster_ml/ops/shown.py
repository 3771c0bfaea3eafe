"""Shows a tensor to Python's own functions: as a number, as text, as something that contains.

Receives what `float()`, `format()`, `repr()`, `in` and a notebook ask; returns numbers and text.
Text shows values only where they have been computed and lie on the host: to look at a tensor
computes nothing. Operations do not belong here.
"""

from __future__ import annotations

import html
from typing import Any

import numpy as np

from aster_ml.dtype import NUMPY_TYPES, DType
from aster_ml.engine import storage
from aster_ml.engine.launch import is_recording
from aster_ml.engine.realized import find_realized
from aster_ml.helpers import all_int, prod
from aster_ml.ops import Self
from aster_ml.ops.handle import described
from aster_ml.ops.views import MOVES
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import GRADIENT_MARKS, MOVEMENT, Ops

# Nothing of the value: a mark on it, or when it is read.
UNSEEN = GRADIENT_MARKS | {Ops.AFTER, Ops.NAME}
# From so many elements on only the edges are shown, and so many of each axis.
MANY, EDGE = 100, 3
# A table has rows and columns, and so many of each at most.
MOST_CELLS = 20


def as_float(self: Self) -> float:
    """A tensor of one element as a number: `float(self)`."""
    return float(self.item())


def as_int(self: Self) -> int:
    """A tensor of one element as a number: `int(self)`."""
    return int(self.item())


def as_index(self: Self) -> int:
    """A tensor of one int as an index."""
    if self.dtype.kind not in ("int", "uint"):
        raise TypeError(f"a Tensor of {self.dtype.name} is no index; one of ints is wanted")
    return int(self.item())


def as_complex(self: Self) -> complex:
    """A tensor of one element as a number: `complex(self)`."""
    return complex(self.item())


def formatted(self: Self, spec: str) -> str:
    """A tensor of one element as text by a format; without one as `repr` has it."""
    return format(self.item(), spec) if spec else repr(self)


def contains(self: Self, x: Any) -> bool:
    """Whether some element equals `x`, repeated to our shape; computes it."""
    return bool(self.eq(x).any().item())


def text_of(self: Self) -> str:
    """Shape, dtype, place, and the values where they are known: `repr(self)`."""
    head, array = described(self), known_values(self)
    if array is None:
        return head
    text = np.array2string(array, threshold=MANY, edgeitems=EDGE, separator=", ")
    if array.ndim < 2:
        return f"{head[:-1]}: {text}>"
    return f"{head[:-1]}:\n {text.replace(chr(10), chr(10) + ' ')}>"


def _repr_html_(self: Self) -> str:
    """Text for a notebook: the values of one or two axes as a table."""
    array = known_values(self)
    if array is None or array.ndim not in (1, 2) or not array.size:
        return f"<pre>{html.escape(repr(self))}</pre>"
    head = html.escape(described(self)[1:-1])
    rows = [table_row(row) for row in cut(np.atleast_2d(array))]
    return f"<div>{head}<table>{''.join(rows)}</table></div>"


def cut(items: Any) -> list[Any]:
    """The items, or the first and last with None between them where they are too many."""
    half = MOST_CELLS // 2
    if len(items) <= MOST_CELLS:
        return list(items)
    return [*items[:half], None, *items[-half:]]


def table_row(row: Any) -> str:
    """A row of numbers in HTML; of None, dots."""
    cells = ["…"] if row is None else ["…" if v is None else f"{v:.6g}" for v in cut(row)]
    return "<tr>" + "".join([f"<td>{cell}</td>" for cell in cells]) + "</tr>"


def numpy_dtype(dtype: DType) -> Any:
    """The NumPy dtype of `numpy()`: float32 for bfloat16 and fp8."""
    return np.dtype(np.float32) if dtype.fmt is None else NUMPY_TYPES[dtype]


def without_marks(u: UOp) -> UOp:
    """The memory under a view."""
    while u.op is not Ops.BUFFER:
        u = u.src[0]
    return u


def array_through(
    memory: np.ndarray[Any, Any], u: UOp, repeats: bool = False
) -> np.ndarray[Any, Any] | None:
    """Flat memory as the view `u` of it shows it; None where no strides do.

    What shows an element several times is such a view only where it `repeats`.
    """
    chain: list[UOp] = []
    while u.op is not Ops.BUFFER:
        chain.append(u)
        u = u.src[0]
    array = memory
    for step in reversed(chain):
        if step.op is Ops.BITCAST:
            array = array.view(NUMPY_TYPES[step.dtype])
        elif step.op is Ops.PAD or (step.op is Ops.EXPAND and not repeats):
            return None
        elif step.op in MOVEMENT and len(step.src) > 1:
            return None
        elif step.op not in UNSEEN:
            array = MOVES[step.op](array, step.arg)
    return array if repeats or np.may_share_memory(array, memory) else None


def known_values(x: Any) -> np.ndarray[Any, Any] | None:
    """The values of a tensor that has been computed; None where something is left to do."""
    device = x.device
    if device.__class__ is tuple or is_recording() or not all_int(x.shape):
        return None
    node = find_realized(x.uop)
    if node is None:
        return None
    number = node.base
    if number.op is Ops.CONST:
        return np.broadcast_to(np.array(number.arg, dtype=numpy_dtype(x.dtype)), x.shape)
    if not storage.is_memory_view(node) or not prod(x.shape):
        return None
    base = without_marks(node)
    buffer = storage.BUFFERS.get(base)
    if buffer is None or base in storage.DUE or device.startswith("DISK"):
        return None
    if not buffer.is_allocated() or not buffer.is_seen_by_host():
        return None
    array = array_through(buffer.numpy(copy=False), node, repeats=True)
    return None if array is None else array.astype(numpy_dtype(x.dtype), copy=False)
