"""PyTorch's CUDA caching allocator on sizes alone: what stays reserved when blocks are split, cached and reused.

Rules of c10/cuda/CUDACachingAllocator.cpp (one stream, default settings): sizes round up to 512 B; up to 1 MiB come from
2 MiB segments of a small pool; others from 20 MiB segments below 10 MiB, else from a segment of their own rounded up to
2 MiB; the smallest free block that fits is taken, lowest address first, and split if what remains is at least 512 B (small)
or over 1 MiB (large); free neighbours merge; when the device has no room, whole free segments are given back and the
request is tried again.
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


class _Block:
    __slots__ = ("address", "after", "before", "free", "segment_bytes", "size", "small")

    def __init__(self, address: int, size: int, small: bool) -> None:
        self.address, self.size, self.small = address, size, small
        self.free = False
        self.before: _Block | None = None
        self.after: _Block | None = None
        self.segment_bytes = 0


class Allocator:
    """``allocated_bytes`` and ``reserved_bytes`` with their peaks; ``capacity_bytes`` None: as much as is asked for."""

    def __init__(self, capacity_bytes: int | None = None) -> None:
        self.capacity_bytes = capacity_bytes
        self.allocated_bytes = self.reserved_bytes = 0
        self.peak_allocated_bytes = self.peak_reserved_bytes = 0
        self.releases = 0
        self._next_address = 0
        self._free: dict[bool, list[tuple[int, int]]] = {True: [], False: []}
        self._blocks: dict[int, _Block] = {}
        self._live: dict[object, _Block] = {}

    def malloc(self, key: object, size_bytes: int) -> None:
        """Hand out a block under ``key``; raises OutOfMemoryError when the capacity has no room."""
        size = max(ROUND, -(-size_bytes // ROUND) * ROUND)
        small = size <= SMALL_LIMIT
        block = self._take(size, small)
        if block is None:
            block = self._grow(size, small)
        rest = block.size - size
        if rest >= ROUND if small else rest > SMALL_LIMIT:
            self._split(block, size)
        block.free = False
        self._live[key] = block
        self.allocated_bytes += block.size
        self.peak_allocated_bytes = max(self.peak_allocated_bytes, self.allocated_bytes)

    def free(self, key: object) -> None:
        """Take a block back and merge it with free neighbours."""
        block = self._live.pop(key)
        self.allocated_bytes -= block.size
        block.free = True
        before, after = block.before, block.after
        if before is not None and before.free:
            self._forget(before)
            before.size += block.size
            before.after = after
            if after is not None:
                after.before = before
            block = before
        if after is not None and after.free:
            self._forget(after)
            block.size += after.size
            block.after = after.after
            if after.after is not None:
                after.after.before = block
        self._remember(block)

    def empty_cache(self) -> None:
        """Give back every segment that is wholly free (torch.cuda.empty_cache)."""
        for small in (False, True):
            for _, address in list(self._free[small]):
                block = self._blocks[address]
                if block.before is None and block.after is None:
                    self._forget(block)
                    self.reserved_bytes -= block.segment_bytes

    def _take(self, size: int, small: bool) -> _Block | None:
        pool = self._free[small]
        at = bisect_left(pool, (size, -1))
        if at == len(pool):
            return None
        return self._blocks.pop(pool.pop(at)[1])

    def _grow(self, size: int, small: bool) -> _Block:
        segment = (
            SMALL_SEGMENT
            if small
            else LARGE_SEGMENT
            if size < OWN_SEGMENT
            else -(-size // OWN_ROUND) * OWN_ROUND
        )
        if self.capacity_bytes is not None and self.reserved_bytes + segment > self.capacity_bytes:
            self.releases += 1
            self.empty_cache()
            if self.reserved_bytes + segment > self.capacity_bytes:
                raise OutOfMemoryError(size)
        block = _Block(self._next_address, segment, small)
        block.segment_bytes = segment
        self._next_address += segment
        self.reserved_bytes += segment
        self.peak_reserved_bytes = max(self.peak_reserved_bytes, self.reserved_bytes)
        return block

    def _split(self, block: _Block, size: int) -> None:
        rest = _Block(block.address + size, block.size - size, block.small)
        rest.free, rest.before, rest.after = True, block, block.after
        if block.after is not None:
            block.after.before = rest
        block.after = rest
        block.size = size
        self._remember(rest)

    def _remember(self, block: _Block) -> None:
        insort(self._free[block.small], (block.size, block.address))
        self._blocks[block.address] = block

    def _forget(self, block: _Block) -> None:
        pool = self._free[block.small]
        del pool[bisect_left(pool, (block.size, block.address))]
        del self._blocks[block.address]
