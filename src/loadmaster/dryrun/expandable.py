"""Expandable segments: one range of addresses per stream and pool, into which memory is mapped page by page.

Rules of c10/cuda/CUDACachingAllocator.cpp, "ExpandableSegment" and the functions named below, since PyTorch 2.1 (in private
pools since about 2.5). Pages are 2 MiB in the small pool and the large segment's size (20 MiB) in the large one.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from typing import TYPE_CHECKING

from loadmaster.dryrun.blocks import FREE, UNMAPPED, Block, FreeList
from loadmaster.units import GIB

if TYPE_CHECKING:
    from loadmaster.dryrun.allocator import Allocator

TOTAL_UNKNOWN = 256 * GIB
"""Taken for the device's total where nobody said it: it only says how long a range is."""


def room_with(block: Block) -> int:
    """A block's size with the unmapped room right behind it ("expandable_size")."""
    after = block.after
    return block.size + (after.size if after is not None and after.state == UNMAPPED else 0)


def take(allocator: Allocator, pool: FreeList, size: int) -> Block | None:
    """Map what is missing for a block ("try_allocate_expandable_block"); None if the driver refuses.

    What had been mapped before a refusal stays mapped and free.
    """
    block: Block | None = _place(allocator, pool, size)
    assert block is not None
    if block.state == UNMAPPED:
        block = _map(allocator, block, min(block.size, size))
    while block is not None and block.size < size:
        behind = block.after
        assert behind is not None
        block = _map(allocator, behind, min(size - block.size, behind.size))
    if block is not None:
        pool.drop(block)
    return block


def _place(allocator: Allocator, pool: FreeList, size: int) -> Block:
    """The lowest address with room enough in a row, free or unmapped ("find_expandable_block"); else a new range."""
    for _address, unmapped in pool.unmapped:
        before = unmapped.before
        start = before if before is not None and before.state == FREE else unmapped
        room, block = 0, start
        while block is not None and block.state in (FREE, UNMAPPED) and room < size:
            room += block.size
            block = block.after  # type: ignore[assignment]
        if room >= size:
            return start
    return add_range(allocator, pool, size)


def add_range(allocator: Allocator, pool: FreeList, least: int = 0) -> Block:
    """Reserve addresses for 1 1/8 of the device's memory ("ExpandableSegment::ExpandableSegment")."""
    known = (allocator.total_bytes, allocator.capacity_bytes, TOTAL_UNKNOWN)
    total = next(size for size in known if size is not None)
    pages = -(-max(total + total // 8, least) // pool.page)
    address = allocator.new_address(pool, pages * pool.page)
    block = allocator.heads[address] = Block(address, pages * pool.page, pool, None)
    block.state = UNMAPPED
    insort(allocator.ranges, address)
    pool.put_unmapped(block)
    return block


def _map(allocator: Allocator, block: Block, size: int) -> Block | None:
    """Back the front of an unmapped block with memory, in whole pages ("map_block"); the free block it is then part of."""
    pool = block.pool
    mapped = -(-size // pool.page) * pool.page
    if not allocator.has_room(mapped):
        return None
    pool.drop_unmapped(block)
    _cut(block, mapped)
    address = block.address
    block.state = FREE
    block = _merge(block)
    pool.put(block)
    allocator.reserve("segment_map", pool, address, mapped)
    return block


def unmap(allocator: Allocator, block: Block) -> None:
    """Give back the whole pages inside a free block ("unmap_block"), and its range if nothing is left of it."""
    pool = block.pool
    start, end = whole_pages(allocator, block)
    if start >= end:
        return
    pool.drop(block)
    if start > block.address:
        _cut(block, start - block.address)
        front, block = block, _behind(block)
        pool.put(front)
    _cut(block, end - start)
    if block.after is not None and block.after.state == FREE:
        pool.put(block.after)
    block.state = UNMAPPED
    block = _merge(block)
    pool.put_unmapped(block)
    allocator.reserve("segment_unmap", pool, start, start - end)
    if not block.split:  # "release_expandable_segment"
        pool.drop_unmapped(block)
        allocator.ranges.remove(block.address)
        del allocator.heads[block.address]


def whole_pages(allocator: Allocator, block: Block) -> tuple[int, int]:
    """Start and end of the pages that lie wholly in a block, counted from its range's start ("ExpandableSegment::unmap")."""
    base = allocator.ranges[bisect_right(allocator.ranges, block.address) - 1]
    page = block.pool.page
    return base - (base - block.address) // page * page, base + (
        block.address + block.size - base
    ) // page * page


def _behind(block: Block) -> Block:
    assert block.after is not None
    return block.after


def _cut(block: Block, size: int) -> None:
    """Cut a block after ``size`` bytes; the rest is unmapped or free as the block is, and in its list if unmapped."""
    left = block.size - size
    if not left:
        return
    rest = Block(block.address + size, left, block.pool, block)
    rest.state = block.state
    rest.after = block.after
    if rest.after is not None:
        rest.after.before = rest
    block.after, block.size = rest, size
    if rest.state == UNMAPPED:
        block.pool.put_unmapped(rest)


def _merge(block: Block) -> Block:
    """Join a block that is in no list with neighbours of its state ("try_merge_blocks")."""
    before, after, pool = block.before, block.after, block.pool
    if before is not None and before.state == block.state:
        _drop(pool, before)
        before.size += block.size
        before.after = after
        if after is not None:
            after.before = before
        block = before
    if after is not None and after.state == block.state:
        _drop(pool, after)
        block.size += after.size
        block.after = after.after
        if block.after is not None:
            block.after.before = block
    return block


def _drop(pool: FreeList, block: Block) -> None:
    if block.state == UNMAPPED:
        pool.drop_unmapped(block)
    else:
        pool.drop(block)
