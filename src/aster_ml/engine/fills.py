"""Memory that begins as one number is filled with it by the host: no kernel is made for it.

Receives AFTER nodes whose effects are due; those that write one number to all of a buffer that has
no memory yet have happened afterwards. So the state of an optimiser costs no kernel for each of its
shapes, and the first step has the schedule of all later ones; zeros take no pages before their use.
What a recording has to repeat does not belong here.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

import numpy as np

from aster_ml.device import Buffer
from aster_ml.dtype import DType, dtypes
from aster_ml.engine import storage
from aster_ml.helpers import all_int
from aster_ml.schedule.rewrites.fold_numbers import NUMBERS_ALONE, number_of
from aster_ml.uop.evaluate import evaluate
from aster_ml.uop.movement import is_whole_memory
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import Ops

# Past this size the threads that share a kernel are quicker than making it is slow; memory that is
# zeros as the system gives it is not written at any size.
MOST_NBYTES = 4 << 20


def fill_memory(afters: Iterable[UOp]) -> set[UOp]:
    """The STOREs that have happened by this: each writes a number to memory that had no content."""
    done = set()
    for after in afters:
        number = number_for(after)
        if number is None:
            continue
        place, store = after.src
        buffer = storage.buffer_of(place)
        if fill(buffer, number):
            storage.set_computed([(after, place)], [buffer])
            done.add(store)
    if done:
        storage.note_happened(done)
    return done


def number_for(after: UOp) -> Any:
    """The number that an AFTER's only effect writes to all of a new buffer; None for others."""
    if len(after.src) != 2:
        return None
    place, store = after.src
    if store.op is not Ops.STORE or store.src[0] is not place or len(store.src) != 2:
        return None
    base, value = place.base, store.src[1]
    if base.op is not Ops.BUFFER or value.op not in NUMBERS_ALONE or not all_int(place.shape):
        return None
    if not (base.arg.size > 0 and is_without_content(base) and is_whole_memory(place)):
        return None
    return number_of(value)


def is_without_content(base: UOp) -> bool:
    """Whether nobody has had anything in a BUFFER so far, nor will by what is left to run."""
    buffer = storage.BUFFERS.data.get(weakref.ref(base))
    if buffer is None:
        return True
    is_plain = buffer.__class__ is Buffer and buffer.base is buffer and buffer.opaque is None
    return is_plain and not buffer.is_allocated() and base not in storage.DUE


def fill(buffer: Buffer, number: Any) -> bool:
    """Writes a number of the buffer's dtype to all of it; False where that is left to a kernel."""
    dtype = buffer.dtype
    kind = np.dtype(f"u{dtype.itemsize}")
    if bits_of(number, dtype) == 0 and buffer.allocate_zeros():
        return True
    if buffer.nbytes > MOST_NBYTES:
        return False
    buffer.ensure_allocated()
    assert buffer.allocator is not None
    view = buffer.allocator.as_memoryview(buffer.handle, buffer.nbytes)
    if view is None:
        buffer.copyin(np.full(buffer.size, bits_of(number, dtype), kind).data)
    else:
        np.frombuffer(view, dtype=kind).fill(bits_of(number, dtype))
    return True


def bits_of(number: Any, dtype: DType) -> int:
    """Bits in memory of a number of this dtype, read as a whole number."""
    if dtype is dtypes.bool:
        return int(number)
    kinds = {1: dtypes.uint8, 2: dtypes.uint16, 4: dtypes.uint32, 8: dtypes.uint64}
    return int(evaluate(Ops.BITCAST, kinds[dtype.itemsize], (number,), (dtype,)))
