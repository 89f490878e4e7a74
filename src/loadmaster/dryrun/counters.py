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


class _Pair:
    """The gauges of one line for one kind of pool and for both kinds together; they change as one."""

    __slots__ = ("both", "kind")

    def __init__(self, both: Gauge, kind: Gauge) -> None:
        self.both, self.kind = both, kind

    def change(self, amount: int) -> None:
        for gauge in (self.both, self.kind):
            current = gauge.current = gauge.current + amount
            if amount > 0:
                gauge.added += amount
                if current > gauge.peak:  # noqa: PLR1730 - this is most of what counting costs
                    gauge.peak = current


class _Kind:
    """All lines of one kind of pool."""

    __slots__ = LINES

    def __init__(self, gauges: dict[tuple[str, str], Gauge], pool: str) -> None:
        for line in LINES:
            setattr(self, line, _Pair(gauges[line, "all"], gauges[line, pool]))

    allocation: _Pair
    segment: _Pair
    active: _Pair
    inactive_split: _Pair
    allocated_bytes: _Pair
    reserved_bytes: _Pair
    active_bytes: _Pair
    inactive_split_bytes: _Pair
    requested_bytes: _Pair


class Counters:
    """One gauge for each line and kind of pool."""

    def __init__(self, max_split_size_bytes: int) -> None:
        self.gauges = {(line, pool): Gauge() for line in LINES for pool in POOLS}
        self.oversize_allocations, self.oversize_segments = Gauge(), Gauge()
        self._small, self._large = _Kind(self.gauges, "small_pool"), _Kind(self.gauges, "large_pool")
        self._max_split = max_split_size_bytes

    def taken(self, block: Block, whole: int, was_split: bool) -> None:
        """A block was handed out; ``whole`` is the size of the free block it was cut from."""
        size, pool = block.size, block.pool
        kind = self._small if pool.small else self._large
        if pool.expandable:
            pass  # "inactive_split" leaves these out: their whole pages can always be given back
        elif was_split:
            kind.inactive_split_bytes.change(-size)
            if whole == size:
                kind.inactive_split.change(-1)
        elif whole > size:
            kind.inactive_split_bytes.change(whole - size)
            kind.inactive_split.change(1)
        kind.allocation.change(1)
        kind.allocated_bytes.change(size)
        kind.active.change(1)
        kind.active_bytes.change(size)
        kind.requested_bytes.change(block.requested)
        if size >= self._max_split:
            self.oversize_allocations.change(1)

    def freed(self, block: Block) -> None:
        """The program gave a block back."""
        kind = self._small if block.pool.small else self._large
        kind.allocation.change(-1)
        kind.allocated_bytes.change(-block.size)
        if block.size >= self._max_split:
            self.oversize_allocations.change(-1)

    def completed(self, block: Block) -> None:
        """A block is about to be merged with its free neighbours."""
        kind = self._small if block.pool.small else self._large
        kind.active.change(-1)
        kind.active_bytes.change(-block.size)
        kind.requested_bytes.change(-block.requested)
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
        kind.inactive_split.change(count)
        kind.inactive_split_bytes.change(size)

    def reserved(self, action: str, pool: FreeList, size: int) -> None:
        """The driver gave memory, or took it back (a negative size)."""
        kind = self._small if pool.small else self._large
        kind.reserved_bytes.change(size)
        if action in {"segment_alloc", "segment_free"}:
            kind.segment.change(1 if size > 0 else -1)
            if abs(size) >= self._max_split:
                self.oversize_segments.change(1 if size > 0 else -1)
