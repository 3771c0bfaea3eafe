"""Describes quantised values as they lie in a file: bytes of blocks, type, shape.

`QuantTensor` keeps the blocks as a uint8 tensor, so weights stay as small as they are stored; rows
are picked before they are decoded. How a type packs its numbers is in `formats/ggml/blocks`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from aster_ml import Tensor, dtypes
from aster_ml.errors import ArgumentError
from aster_ml.extend import check_tensor
from aster_ml.formats.ggml.blocks import BlockFormat, format_named, ggml_data_to_tensor
from aster_ml.helpers import prod


@dataclass(frozen=True, eq=False)
class QuantTensor:
    """Blocks of a type of GGUF ("Q4_K", "F16"), as uint8 [*rows, blocks in a row, bytes a block].

    Types that are stored as they are, such as F16, have blocks of one element. Values without axes
    have blocks [bytes a block].

    Raises: ArgumentError for an unknown type, and for blocks of another dtype or size.
    """

    type: str
    blocks: Tensor

    def __post_init__(self) -> None:
        row = self.format
        check_tensor(self.blocks, f"QuantTensor of {row.name}")
        shape, dtype = self.blocks.shape, self.blocks.dtype
        scalar = len(shape) == 1 and row.elements == 1
        if dtype != dtypes.uint8 or not (scalar or len(shape) > 1) or shape[-1] != row.nbytes:
            raise ArgumentError(
                f"QuantTensor: blocks are {dtype} {list(shape)}; those of {row.name} are wanted as "
                f"uint8 [*rows, blocks, {row.nbytes}], {row.elements} elements a block"
            )

    @property
    def format(self) -> BlockFormat:
        """The elements and bytes of a block, and how it is decoded."""
        return format_named(self.type, "QuantTensor")

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the values."""
        if self.blocks.ndim == 1:
            return ()
        *rows, count, _ = self.blocks.shape
        return (*rows, count * self.format.elements)

    @property
    def device(self) -> Any:
        """Where the blocks are."""
        return self.blocks.device

    def nbytes(self) -> int:
        """Number of bytes of the blocks."""
        return int(self.blocks.nbytes())

    def dequantize(self) -> Tensor:
        """The values: float32, or the dtype of a type that is stored as it is; lazy.

        Blocks in a file come to the default device when they are used.
        """
        row, shape = self.format, self.shape
        if 0 in shape:
            return Tensor.empty(*shape, dtype=row.dtype)
        return ggml_data_to_tensor(self.blocks.flatten(), prod(shape), row.kind).reshape(shape)

    def __getitem__(self, index: Any) -> QuantTensor:
        """The rows at an index, as packed as they are: `embedding[tokens].dequantize()`.

        Raises: ArgumentError where the index reaches the last axis, which has whole blocks.
        """
        items = index if isinstance(index, tuple) else (index,)
        axes = sum([item is not None for item in items])
        if axes > self.blocks.ndim - 2 or any([item is Ellipsis for item in items]):
            raise ArgumentError(
                f"QuantTensor {list(self.shape)}: the index reaches the last axis, where "
                f"{self.type} has blocks of {self.format.elements}; index the axes before it, or "
                "dequantize() first"
            )
        return QuantTensor(self.type, self.blocks[index])

    def to(self, device: Any) -> QuantTensor:
        """The same on another device; the default one for None."""
        return QuantTensor(self.type, self.blocks.to(device))

    def realize(self) -> QuantTensor:
        """Reads the blocks now."""
        self.blocks.realize()
        return self

    def __repr__(self) -> str:
        return f"<QuantTensor {self.type} {list(self.shape)} on {self.device}>"
