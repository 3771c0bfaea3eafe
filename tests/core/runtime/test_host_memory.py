"""Memory of the host: blocks that are cut from slabs, and when slabs go."""

from __future__ import annotations

import weakref

from aster_ml.runtime.host_memory import (
    HUGE_PAGE_BYTES,
    PAGE_BYTES,
    SLAB_BYTES,
    SLAB_FROM,
    HostAllocator,
)


def test_blocks_of_weights_lie_side_by_side_and_go_together() -> None:
    allocator = HostAllocator("CPU", 0)
    sizes = [SLAB_FROM, 1 << 20, SLAB_FROM + (1 << 14)]
    blocks = [allocator.alloc_block(n) for n in sizes]
    ends = [b.address + b.nbytes for b in blocks]
    assert [b.address for b in blocks[1:]] == ends[:-1]
    assert not any(b.address % PAGE_BYTES for b in blocks)
    slab = weakref.ref(allocator.slab.owner)
    while allocator.slab.owner is slab():
        blocks.append(allocator.alloc_block(HUGE_PAGE_BYTES))
    assert sum(b.nbytes for b in blocks[:-1]) <= SLAB_BYTES < sum(b.nbytes for b in blocks)
    for b in blocks[:-1]:
        assert slab() is not None
        allocator.free_block(b, b.nbytes)
    assert slab() is None


def test_blocks_of_a_slab_do_not_share_bytes() -> None:
    allocator = HostAllocator("CPU", 0)
    sizes = [SLAB_FROM + 1, 70_001, 99_999, SLAB_FROM]
    blocks = [allocator.alloc_block(n) for n in sizes]
    for i, b in enumerate(blocks):
        b.memoryview(b.nbytes)[:] = bytes([i]) * b.nbytes
    assert all(bytes(b.memoryview(b.nbytes)) == bytes([i]) * b.nbytes for i, b in enumerate(blocks))


def test_smaller_and_larger_blocks_have_memory_of_their_own() -> None:
    allocator = HostAllocator("CPU", 0)
    for n in (SLAB_FROM - 1, 2 * HUGE_PAGE_BYTES):
        allocator.alloc_block(n)
        assert allocator.slab is None
