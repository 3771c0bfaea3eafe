"""Views of buffers that are let go and taken again, references, copies by option, pickling."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest

from aster_ml import Tensor
from aster_ml.device import Buffer, Device
from aster_ml.dtype import dtypes
from aster_ml.errors import DTypeError, InternalError


def counted(n: int = 10) -> Buffer:
    """A buffer of 0, 1, 2, ..."""
    return Buffer("CPU", n, dtypes.uint8, initial_value=bytes(range(n)))


def test_a_view_is_initialized_when_it_has_a_handle() -> None:
    base = Buffer("CPU", 10, dtypes.uint8)
    view = base.view(3, dtypes.uint8, offset=4)
    assert not base.is_initialized()
    assert not view.is_initialized()
    base.allocate()
    assert view.is_allocated()
    assert not view.is_initialized()
    view.allocate()
    assert view.is_initialized()
    with pytest.raises(InternalError, match="allocated twice"):
        view.allocate()
    base.deallocate()
    assert not view.is_initialized()
    view.ensure_allocated()
    assert base.is_initialized()


def test_a_view_that_was_let_go_sees_nothing() -> None:
    base = counted()
    view = base.view(4, dtypes.uint8, 3).ensure_allocated()
    assert view.as_buffer().tolist() == [3, 4, 5, 6]
    view.deallocate()
    with pytest.raises(InternalError, match="before it was allocated"):
        view.as_buffer()
    with pytest.raises(InternalError, match="no memory of its own"):
        view.deallocate()
    assert base.as_buffer().tolist() == list(range(10))
    assert view.ensure_allocated().as_buffer().tolist() == [3, 4, 5, 6]


def test_memory_as_a_copy_or_itself() -> None:
    base = counted()
    copied, shared = base.as_buffer(), base.as_buffer(allow_zero_copy=True)
    base.copyin(bytes(10))
    assert copied.tolist() == list(range(10))
    assert shared.tolist() == [0] * 10
    assert base.as_buffer(force_zero_copy=True).tolist() == [0] * 10
    words = base.view(2, dtypes.uint16, 2).as_typed_buffer()
    assert (words.format, len(words)) == ("H", 2)
    assert base.as_typed_buffer((2, 5)).shape == (2, 5)
    with pytest.raises(DTypeError, match="bfloat16"):
        base.view(2, dtypes.bfloat16).as_typed_buffer()


def test_references_are_nodes_and_what_is_counted_by_hand() -> None:
    buffer = Buffer("CPU", 4, dtypes.float32, uop_refcount=2)
    assert buffer.uop_refcount == 2
    assert buffer.ref(-1) is buffer
    assert buffer.uop_refcount == 1
    x = Tensor([1.0, 2.0]).realize()
    buffers = [item.bufs[1] for item in (x + 1).schedule()]
    assert buffers[0] is not None
    assert buffers[0].uop_refcount == 1
    del x
    assert buffers[0].uop_refcount == 0


def test_memory_from_the_start() -> None:
    assert Buffer("CPU", 4, dtypes.float32, preallocate=True).is_allocated()
    assert counted(3).numpy().tolist() == [0, 1, 2]


def test_buffers_are_pickled_with_their_views() -> None:
    base = counted()
    parts = [base, base.view(3, dtypes.uint8, 4), Buffer("CPU", 4, dtypes.float32)]
    again, view, empty = pickle.loads(pickle.dumps(parts))
    assert view.base is again
    assert view.as_buffer().tolist() == [4, 5, 6]
    assert not empty.is_allocated()
    base.copyin(bytes(10))
    assert again.as_buffer().tolist() == list(range(10))


def test_nodes_of_memory_are_pickled_with_it() -> None:
    x = Tensor(np.arange(6, dtype=np.float32).reshape(2, 3)).realize()
    again = Tensor.from_uop(pickle.loads(pickle.dumps(x.T.uop)))
    assert again.tolist() == x.T.tolist()
    assert again.uop.base is not x.uop.base
    x.assign(x * 0).realize()
    assert again.sum().item() == 15
    assert copy.copy(x.uop) is x.uop
    assert copy.deepcopy(x).uop.base is not x.uop.base


def test_a_device_without_views_of_the_host_says_so() -> None:
    buffer = Buffer("PYTHON", 4, dtypes.uint8, initial_value=b"abcd")
    seen = Device["PYTHON"].allocator.as_memoryview(buffer.handle, 4)
    assert buffer.as_buffer(allow_zero_copy=True).tobytes() == b"abcd"
    assert seen is None or seen.tobytes() == b"abcd"
