"""Tensors that boxes are copied from (TMA): what a kernel's source says of them to its launch.

A `TensorMap` is data: which argument, where in it a tensor begins, its sizes and strides, and the
box that a copy moves. A source has a line for each; a launch finds an address, encodes the maps for
it in the driver's form and passes them behind all other arguments. Nothing here calls a driver.
"""

from __future__ import annotations

import re
from typing import NamedTuple

MARK = "// Tensor: "
LINE = re.compile(
    rf"^{MARK}buf(\d+) (\w+) from (\d+), sizes ([\d ]+), strides ([\d ]+), box ([\d ]+)$",
    re.MULTILINE,
)
# Addresses and strides are multiples of so many bytes, rows of a box have as many at most.
ALIGNMENT, ROW_NBYTES = 16, 128
# The dtypes of tensors; numbers of 8 bits are copied as integers.
DTYPES = ("float16", "bfloat16", "float32", "uint8")
# Sizes of a box, and dimensions.
MOST_BOX, MOST_DIMS = 256, 5


class TensorMap(NamedTuple):
    """A tensor in the buffer `slot`; neighbours are the first dimension, whose stride is 1.

    `start`, `sizes`, `strides` and `box` count elements of `dtype`.
    """

    slot: int
    dtype: str
    start: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]

    def line(self) -> str:
        """The line of a source."""
        sizes, strides, box = (
            " ".join([str(n) for n in numbers]) for numbers in (self.sizes, self.strides, self.box)
        )
        return (
            f"{MARK}buf{self.slot} {self.dtype} from {self.start}, sizes {sizes}, "
            f"strides {strides}, box {box}"
        )

    def at(self, address: int, itemsize: int) -> tuple[int, int]:
        """Where the form of a tensor begins that lies in memory at `address`, and how many
        elements before the tensor that is.
        """
        first = address + self.start * itemsize
        before = first % ALIGNMENT
        return first - before, before // itemsize


def tensor_maps(source: str) -> tuple[TensorMap, ...]:
    """The maps that launches of a kernel pass on, in order."""
    found = []
    for slot, dtype, start, *numbers in LINE.findall(source):
        sizes, strides, box = (tuple([int(n) for n in text.split()]) for text in numbers)
        found.append(TensorMap(int(slot), dtype, int(start), sizes, strides, box))
    return tuple(found)
