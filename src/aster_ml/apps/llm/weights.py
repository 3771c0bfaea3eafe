"""Reads a model's weights from a GGUF file, and defines the products with them.

Receives the quantised tensors of a file by name; returns `Weights`. All else asks for a product
(`linear`) or for rows (`rows`) and does not know how a weight is kept, as floats or in its blocks.
Which weights a layer has is in `model`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from tqdm import tqdm

from aster_ml import Device, Tensor, dtypes
from aster_ml.errors import FormatError
from aster_ml.extend import forget_pages
from aster_ml.formats.fileio import show_value
from aster_ml.formats.interleaved import Interleaved, Interleaver, can_interleave
from aster_ml.formats.packed_prices import prefers_integers
from aster_ml.formats.quantised import QuantTensor

DTYPES = {"f16": dtypes.float16, "bf16": dtypes.bfloat16, "f32": dtypes.float32}
# As a file has them: unpacked in each product, and no float copy is kept.
PACKED = "packed"
# Products of packed weights: of int8, of floats, or for each matrix of what is quicker here.
INT8, FLOAT, AUTO = "int8", "float", "auto"
# Bytes that are read and unpacked together: one schedule for many tensors, and a bar that moves.
BATCH_BYTES = 32 << 20
# Bytes that are interleaved together: so many of a file are in memory twice.
PART_BYTES = 8 << 20
F16_MAX = 65504.0
# Types whose numbers can be beyond those of float16.
WIDE = frozenset({"F32", "BF16", "F64"})


class Adapter(NamedTuple):
    """Addition to a matrix: scale * up @ down.

    `down` is [r, n] and `up` [m, r] for a matrix [m, n].

    Source: Hu et al., LoRA (2021).
    """

    down: Tensor
    up: Tensor
    scale: float = 1.0


class Adapted(NamedTuple):
    """A matrix with an adapter beside it; their sum is never made."""

    base: Tensor | Interleaved
    adapter: Adapter

    def part(self, rows: slice) -> Adapted:
        """Some of the rows."""
        down, up, scale = self.adapter
        return Adapted(plain_part(self.base, rows), Adapter(down, up[rows], scale))


Matrix = Tensor | Interleaved | Adapted


def linear(x: Tensor, weight: Matrix, bias: Tensor | None = None) -> Tensor:
    """x times the transposed weight, in x's dtype.

    Shapes: x [*b, n], weight [m, n], bias [m] -> [*b, m].
    """
    base = weight.base if isinstance(weight, Adapted) else weight
    result = product(x, base) if bias is None else product(x, base) + bias
    if isinstance(weight, Adapted):
        down, up, scale = weight.adapter
        result = result + product(product(x, down), up) * scale
    return result


def product(x: Tensor, weight: Tensor | Interleaved) -> Tensor:
    """x times the transposed weight. Shapes: x [*b, n], weight [m, n] -> [*b, m]."""
    if isinstance(weight, Interleaved):
        return weight.product(x)
    return x @ weight.cast(x.dtype).transpose()


def part_of(weight: Matrix, rows: slice) -> Matrix:
    """Some of the rows of a matrix."""
    return weight.part(rows) if isinstance(weight, Adapted) else plain_part(weight, rows)


def plain_part(weight: Tensor | Interleaved, rows: slice) -> Tensor | Interleaved:
    """Some of the rows of a matrix without an adapter."""
    return weight.part(rows) if isinstance(weight, Interleaved) else weight[rows]


def rows(weight: Tensor | Interleaved, index: Tensor) -> Tensor:
    """The rows at an index, as float32.

    Shapes: weight [r, *c], index int [*b] -> [*b, *c].
    """
    if isinstance(weight, Interleaved):
        return weight.rows(index)
    return weight[index].float()


def experts(x: Tensor, weight: Tensor | Interleaved, chosen: Tensor) -> Tensor:
    """x times the transposed matrices of the chosen experts; no others are read.

    Shapes: x [n, u or 1, k], weight [e, m, k], chosen int [n, u] -> [n, u, m].
    """
    if isinstance(weight, Interleaved):
        return weight.chosen(x, chosen)
    return (rows(weight, chosen) * x.unsqueeze(-2)).sum(-1)


class Weights:
    """The weights by name, in memory; `take` hands each out once, so that none is left unread."""

    def __init__(
        self,
        tensors: Mapping[str, Tensor],
        packed: Mapping[str, int] = {},
        interleaved: Mapping[str, Interleaved] = {},
    ) -> None:
        self.tensors = dict(tensors)
        # By name, those whose products are of integers; `tensors` has all others.
        # why: a lazy tensor that lives is asked about at each write to memory, so none waits here
        self.interleaved = dict(interleaved)
        # By the tensor, the bytes of those that stay packed.
        self.packed = {id(self.tensors[name]): nbytes for name, nbytes in packed.items()}
        self.left = {*self.tensors, *self.interleaved}
        # By the name of the matrix that each is added to.
        self.adapters: dict[str, Adapter] = {}

    def adapt(self, name: str, adapter: Adapter) -> None:
        """Adds an adapter to a matrix. Raises: FormatError where they do not fit."""
        found = self.shape_of(name)
        want = (*adapter.up.shape[:1], *adapter.down.shape[1:])
        if found != want or adapter.up.shape[1:] != (adapter.down.shape[0],):
            shape = "absent" if found is None else f"of shape {list(found)}"
            raise FormatError(
                f"an adapter of {list(adapter.up.shape)} times {list(adapter.down.shape)} is for "
                f"{show_value(name)}, which is {shape} in this model"
            )
        self.adapters[name] = adapter

    def matrix(self, name: str, *shape: int) -> Matrix:
        """A matrix of this shape, with its adapter where it has one."""
        found = self.plain(name, *shape)
        return Adapted(found, self.adapters[name]) if name in self.adapters else found

    def plain(self, name: str, *shape: int) -> Tensor | Interleaved:
        """A matrix of this shape without an adapter."""
        if name not in self.interleaved:
            return self.take(name, *shape)
        self.note(name, shape)
        return self.interleaved[name]

    def shape_of(self, name: str) -> tuple[int, ...] | None:
        """A weight's shape, None where the file has none of this name."""
        found = self.interleaved.get(name) or self.tensors.get(name)
        return None if found is None else tuple([int(n) for n in found.shape])

    def named(self) -> dict[str, Tensor]:
        """All memory by name, that of adapters too."""
        words = {
            f"{name} {i}": t
            for name, matrix in self.interleaved.items()
            for i, t in enumerate(matrix.memory())
        }
        added = {
            f"{name} {part} {adapter.scale}": t
            for name, adapter in self.adapters.items()
            for part, t in (("down", adapter.down), ("up", adapter.up))
        }
        return {**self.tensors, **words, **added}

    def take(self, name: str, *shape: int) -> Tensor:
        """A weight of this shape. Raises: FormatError where it is absent or has another."""
        found = self.maybe(name, *shape)
        if found is None:
            raise FormatError(
                f"tensor {show_value(name)} is absent; the architecture has it", "gguf"
            )
        return found

    def maybe(self, name: str, *shape: int) -> Tensor | None:
        """A weight of this shape, or None where the file has none of this name."""
        if self.shape_of(name) is None:
            return None
        self.note(name, shape)
        if name in self.interleaved:
            return self.interleaved[name].dequantize()
        return self.tensors[name]

    def note(self, name: str, shape: tuple[int, ...]) -> None:
        """Takes note that a weight has a place. Raises: FormatError where its shape differs."""
        found = self.shape_of(name)
        if found != shape:
            raise FormatError(
                f"tensor {show_value(name)} has shape {list(found or ())}, the metadata want "
                f"{list(shape)}",
                "gguf",
            )
        self.left.discard(name)

    def nbytes(self) -> int:
        """Number of bytes in memory."""
        weights: list[Tensor | Interleaved] = [*self.tensors.values(), *self.interleaved.values()]
        return sum(map(self.nbytes_of, weights))

    def nbytes_of(self, weight: Tensor | Interleaved) -> int:
        """Number of bytes of one weight in memory."""
        if isinstance(weight, Interleaved):
            return weight.nbytes()
        return self.packed.get(id(weight), int(weight.nbytes()))


def load_weights(
    tensors: Mapping[str, QuantTensor],
    dtype: str = PACKED,
    progress: bool = False,
    products: str = FLOAT,
) -> Weights:
    """Reads all weights: matrices in the dtype, all that has one axis in float32.

    With the dtype "packed" quantised matrices stay in their blocks, and others are float16. With
    `products` "int8" what those in blocks multiply is two digits of int8, where type and shape
    allow it and the device multiplies int8 (`formats.interleaved`); with "auto" where that is
    quicker, too (`formats.packed_prices`).

    Raises: FormatError for a weight that float16 cannot hold.
    """
    found: dict[str, Tensor] = {}
    interleaved: dict[str, Interleaved] = {}
    waiting: list[tuple[str, QuantTensor]] = []
    integers = {
        name: packed
        for name, packed in tensors.items()
        if stays_packed(packed, dtype) and multiplies_integers(packed, products)
    }
    interleave, nbytes = Interleaver(), 0
    total = sum([packed.nbytes() for packed in tensors.values()])
    with tqdm(
        total=total, unit="B", unit_scale=True, desc="weights", disable=not progress, leave=False
    ) as bar:
        for name, packed in tensors.items():
            if name in integers:
                continue
            waiting.append((name, packed))
            nbytes += packed.nbytes()
            if nbytes >= BATCH_BYTES:
                found.update(read(waiting, dtype))
                bar.update(nbytes)
                waiting, nbytes = [], 0
        found.update(read(waiting, dtype))
        bar.update(nbytes)
        # Afterwards, since of many small tensors many pages are read at a time.
        for name, packed in integers.items():
            here = packed.to(Device.DEFAULT).realize()
            interleaved[name] = interleave.by_parts(here, PART_BYTES, partial(forget, here))
            bar.update(packed.nbytes())
    sizes = {name: tensors[name].nbytes() for name in found if stays_packed(tensors[name], dtype)}
    return Weights(found, sizes, interleaved)


def forget(packed: QuantTensor) -> None:
    """Gives pages of a mapped file back that were read to make a weight."""
    memory = packed.blocks._memory()
    if memory.is_seen_by_host():
        forget_pages(memory.as_memoryview())


def multiplies_integers(packed: QuantTensor, products: str) -> bool:
    """Whether products with a matrix are of integers on the default device."""
    target = Device[Device.DEFAULT].target
    if products == FLOAT or "int8" not in target.dot_dtypes or not can_interleave(packed):
        return False
    m, k = packed.shape[-2:]
    return products == INT8 or prefers_integers(packed.type, m, k, target)


def stays_packed(weight: QuantTensor, dtype: str) -> bool:
    """Whether a weight is kept in its blocks."""
    return dtype == PACKED and len(weight.shape) > 1 and weight.format.elements > 1


def read(waiting: Sequence[tuple[str, QuantTensor]], dtype: str) -> dict[str, Tensor]:
    """These weights in memory; of those that stay packed, the floats lazily.

    why: what is not packed is copied even where the file has it so, since floats that are a view of
    bytes are stored by the first product that has them, beside the bytes
    """
    result: dict[str, Tensor] = {}
    largest: dict[str, Tensor] = {}
    held: list[Tensor] = []
    made: list[Tensor] = []
    for name, packed in waiting:
        here = packed.to(Device.DEFAULT)
        value = here.dequantize()
        if stays_packed(packed, dtype):
            held.append(here.blocks)
            result[name] = value
            continue
        kept: Any = DTYPES.get(dtype, dtypes.float16) if value.ndim > 1 else dtypes.float32
        if kept is dtypes.float16 and packed.type in WIDE:
            largest[name] = value.float().abs().max()
        made.append(value.clone() if kept is value.dtype else value.cast(kept).contiguous())
        result[name] = made[-1]
    if result:
        Tensor.realize(*made, *held, *largest.values())
        for _, packed in waiting:
            forget(packed)
    for name, most in largest.items():
        if not most.item() <= F16_MAX:
            raise FormatError(
                f"tensor {show_value(name)} has numbers up to {most.item():g}, float16 ends at "
                f"{F16_MAX:g}; --dtype f32 holds them",
                "gguf",
            )
    return result
