"""PyTorch's CUDA caching allocator on sizes alone: what stays reserved when blocks are split, cached and reused.

Rules of c10/cuda/CUDACachingAllocator.cpp (one stream, default settings): sizes round up to 512 B; up to 1 MiB come from
2 MiB segments of a small pool; others from 20 MiB segments below 10 MiB, else from a segment of their own rounded up to
2 MiB; the smallest free block that fits is taken, lowest address first, and split if what remains is at least 512 B (small)
or over 1 MiB (large); free neighbours merge; when the device has no room, whole free segments are given back and the
request is tried again.

A step has tens of thousands of blocks, and a plan replays several: ``take`` and ``give`` are written out for speed.
"""

from __future__ import annotations

from bisect import bisect_left, insort

from loadmaster.units import MIB

ROUND = 512
SMALL_LIMIT = 1 * MIB
SMALL_SEGMENT = 2 * MIB
LARGE_SEGMENT = 20 * MIB
OWN_SEGMENT = 10 * MIB
OWN_ROUND = 2 * MIB


class OutOfMemoryError(Exception):
    """The device has no room for a request, even after every free segment was given back; carries requested bytes."""

    def __init__(self, requested_bytes: int) -> None:
        super().__init__(f"{requested_bytes} bytes")
        self.requested_bytes = requested_bytes


class Block:
    """A piece of a segment; ``before`` and ``after`` are its neighbours in it, ``pool`` the free blocks of its kind."""

    __slots__ = ("address", "after", "before", "free", "pool", "segment_bytes", "size")

    def __init__(self, address: int, size: int, pool: Pool) -> None:
        self.address, self.size, self.pool = address, size, pool
        self.free = False
        self.before: Block | None = None
        self.after: Block | None = None
        self.segment_bytes = 0


Pool = list[tuple[int, int, Block]]
"""Free blocks by size and address."""


class Allocator:
    """``allocated_bytes`` and ``reserved_bytes`` with their peaks; ``capacity_bytes`` None: as much as is asked for."""

    def __init__(self, capacity_bytes: int | None = None) -> None:
        self.capacity_bytes = capacity_bytes
        self.allocated_bytes = self.reserved_bytes = 0
        self.peak_allocated_bytes = self.peak_reserved_bytes = 0
        self.releases = 0
        self._next_address = 0
        self._small: Pool = []
        self._large: Pool = []
        self._live: dict[object, Block] = {}

    def malloc(self, key: object, size_bytes: int) -> None:
        """Hand out a block under ``key``; raises OutOfMemoryError when the capacity has no room."""
        self._live[key] = self.take(size_bytes)

    def free(self, key: object) -> None:
        """Take the block under ``key`` back."""
        self.give(self._live.pop(key))

    def take(self, size_bytes: int) -> Block:
        """A block of this size; raises OutOfMemoryError when the capacity has no room."""
        size = (size_bytes + 511) & -512 or 512
        small = size <= SMALL_LIMIT
        pool = self._small if small else self._large
        at = bisect_left(pool, (size,))
        block = pool.pop(at)[2] if at < len(pool) else self._grow(size, pool)
        left = block.size - size
        if left >= ROUND if small else left > SMALL_LIMIT:
            address = block.address + size
            rest = Block(address, left, pool)
            rest.free, rest.before, after = True, block, block.after
            rest.after = after
            if after is not None:
                after.before = rest
            block.after = rest
            block.size = size
            insort(pool, (left, address, rest))
        block.free = False
        allocated = self.allocated_bytes = self.allocated_bytes + block.size
        self.peak_allocated_bytes = max(self.peak_allocated_bytes, allocated)
        return block

    def give(self, block: Block) -> None:
        """Take a block back and merge it with free neighbours."""
        pool = block.pool
        self.allocated_bytes -= block.size
        before, after = block.before, block.after
        if before is not None and before.free:
            del pool[bisect_left(pool, (before.size, before.address))]
            before.size += block.size
            before.after = after
            if after is not None:
                after.before = before
            block = before
        else:
            block.free = True
        if after is not None and after.free:
            del pool[bisect_left(pool, (after.size, after.address))]
            block.size += after.size
            beyond = block.after = after.after
            if beyond is not None:
                beyond.before = block
        insort(pool, (block.size, block.address, block))

    def empty_cache(self) -> None:
        """Give back every segment that is wholly free (torch.cuda.empty_cache)."""
        for pool in (self._large, self._small):
            whole = [entry for entry in pool if entry[2].before is None and entry[2].after is None]
            for entry in whole:
                pool.remove(entry)
                self.reserved_bytes -= entry[2].segment_bytes

    def _grow(self, size: int, pool: Pool) -> Block:
        segment = (
            SMALL_SEGMENT
            if pool is self._small
            else LARGE_SEGMENT
            if size < OWN_SEGMENT
            else -(-size // OWN_ROUND) * OWN_ROUND
        )
        if self.capacity_bytes is not None and self.reserved_bytes + segment > self.capacity_bytes:
            self.releases += 1
            self.empty_cache()
            if self.reserved_bytes + segment > self.capacity_bytes:
                raise OutOfMemoryError(size)
        block = Block(self._next_address, segment, pool)
        block.segment_bytes = segment
        self._next_address += segment
        self.reserved_bytes += segment
        self.peak_reserved_bytes = max(self.peak_reserved_bytes, self.reserved_bytes)
        return block
