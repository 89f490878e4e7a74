"""How cached memory goes back to the driver: release passes, oversize blocks, garbage collection.

Rules of c10/cuda/CUDACachingAllocator.cpp, by the names of its functions.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

from loadmaster.dryrun import expandable
from loadmaster.dryrun.blocks import DEFAULT_POOL, SHIFT, Block, FreeList, PoolId

if TYPE_CHECKING:
    from loadmaster.dryrun.allocator import Allocator


def release_cached(allocator: Allocator, pool_id: PoolId, freeable: set[PoolId]) -> None:
    """Everything that is wholly free ("release_cached_blocks"): the large pool first, then the small one.

    Of private pools only those that nobody allocates from any more, small pool first ("graph_pools_freeable").
    """
    if pool_id == DEFAULT_POOL:
        _release(allocator, DEFAULT_POOL, small=False)
        _release(allocator, DEFAULT_POOL, small=True)
    for private in sorted(freeable if pool_id == DEFAULT_POOL else freeable & {pool_id}):
        _release(allocator, private, small=True)
        _release(allocator, private, small=False)


def _release(allocator: Allocator, pool_id: PoolId, small: bool) -> None:
    """Whole free segments by stream, size and address, then whole pages of expandable ones ("release_blocks")."""
    to_unmap = []
    for pool in _lists(allocator, pool_id, small):
        for block in [pool.blocks[key] for key in pool.keys]:
            if pool.expandable:
                to_unmap.append(block)
            elif not block.split:
                _give_back(allocator, block)
    for block in to_unmap:
        expandable.unmap(allocator, block)


def _give_back(allocator: Allocator, block: Block) -> None:
    """A whole free segment goes back to the driver ("release_block")."""
    block.pool.drop(block)
    del allocator.heads[block.address]
    allocator.reserve("segment_free", block.pool, block.address, -block.size)


def release_oversize(allocator: Allocator, pool: FreeList, size: int, max_split: int) -> bool:
    """One oversize block that is large enough, else the largest ones until they are ("release_available_cached_blocks").

    Since 1.9; expandable segments are left alone since about 2.5.
    """
    if pool.expandable:
        return False
    wanted = max(size, max_split)
    at = bisect_left(pool.keys, wanted << SHIFT)
    if at < len(pool.keys):
        _give_back(allocator, pool.blocks[pool.keys[at]])
        return True
    released = 0
    while released < wanted and pool.keys and pool.keys[-1] >> SHIFT >= max_split:
        block = pool.blocks[pool.keys[-1]]
        released += block.size
        _give_back(allocator, block)
    return released >= wanted


def collect(allocator: Allocator, above: int) -> None:
    """Large segments that have been free for longest, until reserved bytes are down to ``above``.

    "garbage_collect_cached_blocks", since 1.12: an age is the number of searches in the large pool since the block was
    freed; each round gives back all blocks of at least the average age.
    """
    wanted = allocator.reserved_bytes - above
    whole = [
        pool.blocks[key]
        for pool in _lists(allocator, DEFAULT_POOL, small=False)
        for key in pool.keys
        if not pool.expandable and not pool.blocks[key].split
    ]
    while wanted > 0 and whole:
        ages = [block.pool.searches[0] - block.base for block in whole]
        average = sum(ages) / len(ages)
        left = []
        for block, age in zip(whole, ages, strict=True):
            if age < average:
                left.append(block)
                continue
            wanted -= block.size
            _give_back(allocator, block)
        whole = left


def _lists(allocator: Allocator, pool_id: PoolId, small: bool) -> list[FreeList]:
    lists = [pool for pool in allocator.lists.values() if pool.id == pool_id and pool.small == small]
    return sorted(lists, key=lambda pool: pool.stream)
