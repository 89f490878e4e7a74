"""A model of PyTorch's CUDA caching allocator that answers as the real one does, block by block, without torch or a GPU.

Every rule is a function of c10/cuda/CUDACachingAllocator.cpp, named where it is used; rules without a version are as old as
the allocator's present form (2019). Checked against real memory snapshots of 2023 to 2026: every address handed out, every
segment taken from or given back to the driver (tests/dryrun). What no recording shows yet (several streams, private pools,
max_split_size, garbage collection, a memory fraction) follows the source alone.

A model has no clock. A block that another stream has used ("recordStream") is free again at the next malloc, as if that
stream's work were done by then; with ``streams_lag`` it stays until ``synchronize``, a release pass or ``empty_cache``, as if
that work never ended by itself. The truth lies between the two.

Not modelled: pools used on OOM, CUDA graphs' rule that a block freed in a capture on several streams waits for its end,
throw_on_cudamalloc_oom (an error that comes earlier), a driver that refuses although it has room.
"""

from __future__ import annotations

from bisect import bisect_left, insort

from loadmaster.dryrun import expandable, releasing
from loadmaster.dryrun.alloc_conf import LARGEST, AllocConf, round_size, segment_size
from loadmaster.dryrun.blocks import (
    DEFAULT_POOL,
    FREE,
    LIVE,
    PENDING,
    SHIFT,
    Block,
    FreeList,
    PoolId,
)
from loadmaster.dryrun.counters import Counters
from loadmaster.errors import UsageError
from loadmaster.units import MIB, format_bytes

__all__ = ["Allocator", "Block", "OutOfMemoryError"]

LogEntry = tuple[str, int, int, int]
"""What happened, as a memory snapshot names it: action, address, bytes, stream."""


class OutOfMemoryError(Exception):
    """The device has no room, even after every cached segment was given back: ``torch.cuda.OutOfMemoryError``.

    ``requested_bytes`` as asked, ``rounded_bytes`` as a snapshot's oom event has it, ``segment_bytes`` what the driver was
    asked for (torch's message prints that one), ``free_bytes`` what the device still has (None without a capacity, where
    only the memory fraction can refuse).
    """

    def __init__(
        self, allocator: Allocator, requested_bytes: int, rounded_bytes: int, segment_bytes: int
    ) -> None:
        self.requested_bytes, self.rounded_bytes = requested_bytes, rounded_bytes
        self.segment_bytes = segment_bytes
        self.allocated_bytes, self.reserved_bytes = allocator.allocated_bytes, allocator.reserved_bytes
        capacity = allocator.capacity_bytes
        self.free_bytes = None if capacity is None else capacity - self.reserved_bytes
        free = "" if self.free_bytes is None else f"; {format_bytes(self.free_bytes)} are free"
        super().__init__(
            f"CUDA out of memory: tried to allocate {format_bytes(segment_bytes)}{free}, {format_bytes(self.allocated_bytes)} "
            f"are allocated and {format_bytes(self.reserved_bytes - self.allocated_bytes)} reserved but unallocated"
        )


class Allocator:
    """The allocator of one device ("DeviceCachingAllocator").

    ``capacity_bytes`` is what the device gives to this process's allocator, None for as much as is asked for.
    ``total_bytes`` is the device's total, of which a memory fraction is a part; without it the capacity is taken.
    ``log``, when it is a list, gets every segment event and every free that completes late. With ``detail`` every line of
    ``torch.cuda.memory_stats`` is counted (see ``reports.stats``).
    """

    def __init__(
        self,
        conf: AllocConf | None = None,
        capacity_bytes: int | None = None,
        total_bytes: int | None = None,
        *,
        streams_lag: bool = False,
        log: list[LogEntry] | None = None,
        detail: bool = False,
    ) -> None:
        self.conf = conf = AllocConf() if conf is None else conf
        self.capacity_bytes, self.total_bytes = capacity_bytes, total_bytes
        self.streams_lag, self.log = streams_lag, log
        self.counters = Counters(conf.max_split_size_bytes) if detail else None
        self.allocated_bytes = self.peak_allocated_bytes = 0  # torch.cuda.memory_allocated(), max_...
        self.reserved_bytes = self.peak_reserved_bytes = 0  # memory_reserved(), max_memory_reserved()
        self.requested_bytes = self.peak_requested_bytes = 0  # active blocks, as they were asked for
        self.num_alloc_retries = self.num_ooms = self.num_sync_all_streams = 0
        self.num_device_alloc = self.num_device_free = 0
        self._peak_active_bytes = 0
        self.heads: dict[int, Block] = {}  # the first block of every segment or range, by its address
        self.ranges: list[int] = []  # addresses at which expandable segments' ranges start
        self.waiting: list[Block] = []  # "outstanding_events"
        self.lists: dict[tuple[PoolId, int, bool], FreeList] = {}
        self._freeable: set[PoolId] = set()  # "graph_pools_freeable"
        self._searches: dict[tuple[PoolId, bool], list[int]] = {}
        self._next_address = 1 << 32
        self._rounds = conf.rounds_to_divisions
        self._max_split = conf.max_split_size_bytes
        self._split_below = LARGEST if conf.expandable_segments else self._max_split
        self._allowed: int | None = None  # "allowed_memory_maximum"
        self._collect_above: int | None = None
        self._plain = True
        self.set_memory_fraction(conf.per_process_memory_fraction)
        self._small, self._large = self.list_of(DEFAULT_POOL, 0, True), self.list_of(DEFAULT_POOL, 0, False)

    @property
    def active_bytes(self) -> int:
        """Allocated bytes and those that wait for another stream."""
        return self.allocated_bytes + sum(block.size for block in self.waiting)

    @property
    def peak_active_bytes(self) -> int:
        """The most that ``active_bytes`` has been."""
        return max(self._peak_active_bytes, self.peak_allocated_bytes)

    # What a program does

    def malloc(self, size_bytes: int, stream: int = 0, pool_id: PoolId = DEFAULT_POOL) -> Block:
        """Hand out a block ("malloc"); raises OutOfMemoryError.

        A tensor of 0 bytes takes no block: torch returns before it asks here ("NativeCachingAllocator::allocate").
        """
        if self.waiting and not self.streams_lag and pool_id == DEFAULT_POOL:
            self._complete()  # "process_events"
        size = round_size(self.conf, size_bytes) if self._rounds else (size_bytes + 511) & -512 or 512
        if stream or pool_id is not DEFAULT_POOL:
            pool = self.list_of(pool_id, stream, size <= MIB)
        else:
            pool = self._small if size <= MIB else self._large  # "get_pool"
        if self._plain:
            keys = pool.keys
            at = bisect_left(keys, size << SHIFT)
            block = pool.blocks.pop(keys.pop(at)) if at < len(keys) else self._grow(pool, size, size_bytes)
        else:
            block = self._find(pool, size) or self._grow(pool, size, size_bytes)
        whole, was_split = block.size, self.counters is not None and block.split
        left = whole - size
        if left >= pool.least and size < self._split_below:  # "should_split"
            address = block.address + size
            rest = Block(address, left, pool, block)
            after = rest.after = block.after
            if after is not None:
                after.before = rest
            block.after, block.size = rest, size
            rest.base, rest.requested = pool.searches[0], block.requested
            key = left << SHIFT | address
            insort(pool.keys, key)
            pool.blocks[key] = rest
        block.state, block.requested = LIVE, size_bytes
        allocated = self.allocated_bytes = self.allocated_bytes + block.size
        if allocated > self.peak_allocated_bytes:  # noqa: PLR1730 - a call to max would be a tenth of the whole
            self.peak_allocated_bytes = allocated
        requested = self.requested_bytes = self.requested_bytes + size_bytes
        if requested > self.peak_requested_bytes:  # noqa: PLR1730
            self.peak_requested_bytes = requested
        if self.waiting:
            self._peak_active_bytes = max(self._peak_active_bytes, self.active_bytes)
        if self.counters is not None:
            self.counters.taken(block, whole, was_split)
        return block

    def free(self, block: Block) -> None:
        """Take a block back ("free"): at once, unless another stream still uses it."""
        if block.state != LIVE:
            raise ValueError("a block is freed that isn't allocated")
        self.allocated_bytes -= block.size
        if self.counters is not None:
            self.counters.freed(block)
        if block.uses is None:
            self._give(block)
        else:
            block.state = PENDING
            self.waiting.append(block)

    def record_stream(self, block: Block, stream: int) -> None:
        """Say that another stream uses a block ("recordStream"): once freed, it waits for that stream."""
        if stream != block.pool.stream:
            block.uses = {stream} if block.uses is None else block.uses | {stream}

    def synchronize(self) -> None:
        """Every stream has done its work: what waits for one is free at the next malloc, here at once."""
        self._complete()

    def empty_cache(self, pool_id: PoolId = DEFAULT_POOL) -> None:
        """Give back what is wholly free: ``torch.cuda.empty_cache()`` ("emptyCache", "release_cached_blocks")."""
        self.num_sync_all_streams += 1
        self._complete()
        releasing.release_cached(self, pool_id, self._freeable)

    def release_pool(self, pool_id: PoolId) -> None:
        """Nobody allocates from a private pool any more: release passes may give it back ("releasePool")."""
        self._freeable.add(pool_id)

    def set_memory_fraction(self, fraction: float) -> None:
        """``torch.cuda.set_per_process_memory_fraction`` ("setMemoryFraction"). 1 is no limit (since about 2.10).

        Garbage collection works only with a fraction below 1.
        """
        total = self.total_bytes if self.total_bytes is not None else self.capacity_bytes
        if fraction < 1 and total is None:
            raise UsageError("a memory fraction needs the device's total memory")
        self._allowed = None if total is None or fraction >= 1 else int(fraction * total)
        threshold = self.conf.garbage_collection_threshold
        self._collect_above = (
            int(threshold * self._allowed) if threshold and self._allowed is not None else None
        )
        self._plain = (
            not self.conf.expandable_segments and self._max_split == LARGEST and self._collect_above is None
        )

    # Where a block comes from

    def _find(self, pool: FreeList, size: int) -> Block | None:
        """Best fit ("get_free_block"), with the rules of expandable segments (2.1) and max_split_size (1.9)."""
        if self._collect_above is not None:
            pool.searches[0] += 1
        keys, blocks = pool.keys, pool.blocks
        at = bisect_left(keys, size << SHIFT)
        if at == len(keys):
            return None
        block = blocks[keys[at]]
        if self.conf.expandable_segments:
            while at + 1 < len(keys):
                following = blocks[keys[at + 1]]
                if expandable.room_with(following) >= expandable.room_with(block):
                    break
                block, at = following, at + 1
        most = self._max_split
        if size < most <= block.size:
            return None
        if size >= most and block.size >= size + self.conf.max_non_split_rounding_bytes:
            return None
        del blocks[keys.pop(at)]
        return block

    def _grow(self, pool: FreeList, size: int, requested_bytes: int) -> Block:
        """A block from the driver ("malloc", from "Can't reuse an existing block" on)."""
        if self._collect_above is not None:
            releasing.collect(self, self._collect_above)
        segment = segment_size(self.conf, size)
        block = self._new(pool, size, segment)
        most = self._max_split
        if block is None and most != LARGEST and releasing.release_oversize(self, pool, size, most):
            block = self._new(pool, size, segment)
        if block is None and pool.id == DEFAULT_POOL:  # "captures_underway.empty()"
            self.empty_cache()
            self.num_alloc_retries += 1
            block = self._new(pool, size, segment)
        if block is None:
            self.num_ooms += 1
            raise OutOfMemoryError(self, requested_bytes, size, segment)
        return block

    def _new(self, pool: FreeList, size: int, segment: int) -> Block | None:
        """A new segment, or more of an expandable one ("alloc_block"); None if there is no room."""
        if self._allowed is not None and self.reserved_bytes + segment > self._allowed:
            return None
        if self.conf.expandable_segments:
            return expandable.take(self, pool, size)
        if not self.has_room(segment):
            return None
        address = self.new_address(pool, segment)
        block = self.heads[address] = Block(address, segment, pool, None)
        self.reserve("segment_alloc", pool, address, segment)
        return block

    def has_room(self, size: int) -> bool:
        """Whether the driver has this much ("cudaMalloc", "cuMemCreate")."""
        return self.capacity_bytes is None or self.reserved_bytes + size <= self.capacity_bytes

    def new_address(self, pool: FreeList, size: int) -> int:
        """Where the driver puts a segment or a range; nothing that is compared depends on it."""
        address = self._next_address
        self._next_address += -(-size // (2 * MIB)) * 2 * MIB
        return address

    def reserve(self, action: str, pool: FreeList, address: int, size: int) -> None:
        """Count what the driver gave, or with a negative size took back."""
        reserved = self.reserved_bytes = self.reserved_bytes + size
        self.peak_reserved_bytes = max(self.peak_reserved_bytes, reserved)
        if size > 0:
            self.num_device_alloc += 1
        else:
            self.num_device_free += 1
        if self.counters is not None:
            self.counters.reserved(action, pool, size)
        if self.log is not None:
            self.log.append((action, address, abs(size), pool.stream))

    # How a block goes back

    def _give(self, block: Block) -> None:
        """Merge with free neighbours and put into the free list ("free_block", "try_merge_blocks")."""
        self.requested_bytes -= block.requested
        pool, before, after = block.pool, block.before, block.after
        if self.counters is not None:
            self.counters.completed(block)
        keys = pool.keys
        block.state = FREE
        if before is not None and before.state == FREE:
            key = before.size << SHIFT | before.address
            del keys[bisect_left(keys, key)]
            del pool.blocks[key]
            before.size += block.size
            before.requested = block.requested
            before.after = after
            if after is not None:
                after.before = before
            block = before
        if after is not None and after.state == FREE:
            key = after.size << SHIFT | after.address
            del keys[bisect_left(keys, key)]
            del pool.blocks[key]
            block.size += after.size
            beyond = block.after = after.after
            if beyond is not None:
                beyond.before = block
        block.base = pool.searches[0]
        key = block.size << SHIFT | block.address
        insort(keys, key)
        pool.blocks[key] = block

    def complete(self, block: Block) -> None:
        """The other streams are done with one block: if it waits for them it is free."""
        if block.state != PENDING:
            return
        self.waiting.remove(block)
        block.uses = None
        if self.log is not None:
            self.log.append(("free_completed", block.address, block.requested, block.pool.stream))
        self._give(block)

    def _complete(self) -> None:
        """The other streams are done with every block ("process_events", "synchronize_and_free_events")."""
        for block in list(self.waiting):
            self.complete(block)

    # Helpers

    def list_of(self, pool_id: PoolId, stream: int, small: bool) -> FreeList:
        """The free blocks of one pool, stream and kind."""
        pool = self.lists.get((pool_id, stream, small))
        if pool is None:
            conf = self.conf
            page = 2 * MIB if small else conf.large_segment_size_bytes
            searches = self._searches.setdefault((pool_id, small), [0])
            pool = FreeList(pool_id, stream, small, page, conf.expandable_segments, searches)
            self.lists[pool_id, stream, small] = pool
        return pool
