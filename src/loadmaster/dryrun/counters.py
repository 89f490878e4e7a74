"""The counters behind ``torch.cuda.memory_stats``, for every block: "DeviceStats" of c10/core/CachingDeviceAllocator.h.

Where each changes is in c10/cuda/CUDACachingAllocator.cpp: "alloc_found_block", "free", "free_block", "alloc_block",
"release_block", "map_block", "unmap_block".
"""

from __future__ import annotations

from loadmaster.dryrun.blocks import FREE, Block, FreeList

LINES = (
    "allocation", "segment", "active", "inactive_split",
    "allocated_bytes", "reserved_bytes", "active_bytes", "inactive_split_bytes", "requested_bytes",
)  # fmt: skip
POOLS = ("all", "small_pool", "large_pool")


class Gauge:
    """One line: ``current``, its ``peak``, and all that was ever added ("Stat")."""

    __slots__ = ("added", "current", "peak")

    def __init__(self) -> None:
        self.current = self.peak = self.added = 0

    def change(self, amount: int) -> None:
        """Count an increase or a decrease."""
        self.current += amount
        if amount > 0:
            self.added += amount
            self.peak = max(self.peak, self.current)

    def lines(self, name: str) -> dict[str, int]:
        """As ``torch.cuda.memory_stats`` prints it."""
        return {
            f"{name}.current": self.current,
            f"{name}.peak": self.peak,
            f"{name}.allocated": self.added,
            f"{name}.freed": self.added - self.current,
        }


class Counters:
    """One gauge for each line and kind of pool."""

    def __init__(self, max_split_size_bytes: int) -> None:
        self.gauges = {(line, pool): Gauge() for line in LINES for pool in POOLS}
        self.oversize_allocations, self.oversize_segments = Gauge(), Gauge()
        self._max_split = max_split_size_bytes

    def _change(self, pool: FreeList, **amounts: int) -> None:
        kind = "small_pool" if pool.small else "large_pool"
        for line, amount in amounts.items():
            if amount:
                self.gauges[line, "all"].change(amount)
                self.gauges[line, kind].change(amount)

    def taken(self, block: Block, whole: int, was_split: bool) -> None:
        """A block was handed out; ``whole`` is the size of the free block it was cut from."""
        size, pool = block.size, block.pool
        if not pool.expandable:
            if not was_split:
                self._change(pool, inactive_split=int(whole > size), inactive_split_bytes=whole - size)
            else:
                self._change(pool, inactive_split=-int(whole == size), inactive_split_bytes=-size)
        self._change(pool, allocation=1, allocated_bytes=size, active=1, active_bytes=size)
        self._change(pool, requested_bytes=block.requested)
        if size >= self._max_split:
            self.oversize_allocations.change(1)

    def freed(self, block: Block) -> None:
        """The program gave a block back."""
        self._change(block.pool, allocation=-1, allocated_bytes=-block.size)
        if block.size >= self._max_split:
            self.oversize_allocations.change(-1)

    def completed(self, block: Block) -> None:
        """A block is about to be merged with its free neighbours."""
        self._change(block.pool, active=-1, active_bytes=-block.size, requested_bytes=-block.requested)
        if block.pool.expandable:
            return
        before, after = block.before, block.after
        count = size = 0
        for near in (before, after):
            if near is not None and near.state == FREE:
                count, size = count - 1, size - near.size
        first = before.before if before is not None and before.state == FREE else before
        last = after.after if after is not None and after.state == FREE else after
        if first is not None or last is not None:
            count, size = count + 1, block.size
        self._change(block.pool, inactive_split=count, inactive_split_bytes=size)

    def reserved(self, action: str, pool: FreeList, size: int) -> None:
        """The driver gave memory, or took it back (a negative size)."""
        self._change(pool, reserved_bytes=size)
        if action in {"segment_alloc", "segment_free"}:
            self._change(pool, segment=1 if size > 0 else -1)
            if abs(size) >= self._max_split:
                self.oversize_segments.change(1 if size > 0 else -1)
