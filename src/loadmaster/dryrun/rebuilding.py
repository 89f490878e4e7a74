"""The allocator's state at the start of a snapshot's trace, worked out backwards from the state at its end.

A snapshot stores the end. Undoing every event gives which blocks lived at the start and which segments there were; what lay
between them was free. The one thing that isn't stored is the size of a block that is older than the trace and freed in it:

- small pool and expandable segments: the rounded size, certain;
- large pool: what is behind the rounded size up to the next block belongs to it if it is at most 1 MiB (no free block of the
  large pool is that small, "should_split"). Where no block is known that close, the block is counted as ambiguous.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

from loadmaster.dryrun import expandable
from loadmaster.dryrun.alloc_conf import INTERVALS, LARGEST, AllocConf, round_size
from loadmaster.dryrun.allocator import Allocator
from loadmaster.dryrun.blocks import DEFAULT_POOL, FREE, LIVE, PENDING, UNMAPPED, Block, FreeList, PoolId
from loadmaster.errors import UsageError
from loadmaster.units import MIB

Dict = dict[str, Any]


class Lived:
    """A block at some moment: bytes as asked for, its size (None: not known), whether it waits for a stream.

    ``freed_at`` is the index of the event that freed a block of unknown size.
    """

    __slots__ = ("freed_at", "pending", "requested", "size")

    def __init__(self, requested: int, size: int | None, pending: bool, freed_at: int = 0) -> None:
        self.requested, self.size, self.pending, self.freed_at = requested, size, pending, freed_at


class Region:
    """Mapped addresses of one pool and stream: a segment, or a stretch of an expandable one."""

    __slots__ = ("address", "pool_id", "size", "small", "stream")

    def __init__(self, address: int, size: int, stream: int, small: bool, pool_id: PoolId) -> None:
        self.address, self.size, self.stream, self.small, self.pool_id = address, size, stream, small, pool_id


class Start:
    """State before the first event. ``first`` says at which event a block was first at an address, -1 for before."""

    def __init__(self, segments: Iterable[Dict], conf: AllocConf) -> None:
        self.conf = conf
        self.live: dict[int, Lived] = {}
        self.regions: dict[int, Region] = {}
        self.first: dict[int, int] = {}
        self.ranges: dict[
            tuple[PoolId, int, bool], list[int]
        ] = {}  # every address known of an expandable pool
        self.unknown = self.ambiguous = 0
        for segment in segments:
            small = segment["segment_type"] == "small"
            pool_id = tuple(segment.get("segment_pool_id", DEFAULT_POOL))
            pool_id = DEFAULT_POOL if pool_id == DEFAULT_POOL else pool_id
            address = segment["address"]
            region = Region(address, segment["total_size"], segment["stream"], small, pool_id)
            self.regions[address] = region
            if conf.expandable_segments:
                self._known(region, address)
                self._known(region, address + region.size)
            for block in segment["blocks"]:
                at = block.get("address", address)
                if block["state"] != "inactive":
                    pending = block["state"] != "active_allocated"
                    self.live[at] = Lived(block.get("requested_size", block["size"]), block["size"], pending)
                    self.first[at] = -1
                address = at + block["size"]

    def undo(self, trace: list[Dict]) -> None:
        """Take back every event, the last one first."""
        self._learn_pools(trace)
        for index in range(len(trace) - 1, -1, -1):
            event = trace[index]
            action, size = event["action"], event["size"]
            address = event.get("addr", 0)
            if action == "alloc":
                self.first[address] = index
                if self.live.pop(address, None) is None:
                    raise _gap("an allocation leaves no block")
            elif action == "free_completed":
                if address in self.live:
                    raise _gap("a freed block is still there")
                self.first[address] = -1
                self.live[address] = Lived(size, None, True, index)
            elif action == "free_requested":
                if address not in self.live:
                    raise _gap("a block is freed that has never been there")
                self.live[address].pending = False
            elif action in {"segment_alloc", "segment_map"}:
                self._shrink(address, size)
            elif action in {"segment_free", "segment_unmap"}:
                stream, pool_id = event["stream"], tuple(event.get("pool_id", DEFAULT_POOL))
                pool_id = DEFAULT_POOL if pool_id == DEFAULT_POOL else pool_id
                small = self._is_small(event)
                self.regions[address] = Region(address, size, stream, small, pool_id)

    def build(self, allocator: Allocator) -> dict[int, Block]:
        """Put this state into an allocator that has none yet; its living blocks by address."""
        blocks: dict[int, Block] = {}
        ordered = sorted(self.regions.values(), key=lambda region: region.address)
        starts = sorted(self.first)
        living = sorted(self.live)
        if not self.conf.expandable_segments:
            for region in ordered:
                pool = allocator.list_of(region.pool_id, region.stream, region.small)
                chain = self._fill(region, pool, starts, living)
                _adopt(allocator, chain, blocks)
            return blocks
        for (owner, begin), end in self._ranges_to_make().items():
            pool = allocator.list_of(*owner)
            inside = [
                r for r in ordered if begin <= r.address < end and (r.pool_id, r.stream, r.small) == owner
            ]
            _adopt(allocator, self._fill_range(begin, end, inside, pool, starts, living), blocks)
            allocator.ranges.append(begin)
        allocator.ranges.sort()
        return blocks

    # Expandable segments

    def _known(self, region: Region, address: int) -> None:
        self.ranges.setdefault((region.pool_id, region.stream, region.small), []).append(address)

    def _learn_pools(self, trace: list[Dict]) -> None:
        """Addresses of map and unmap events; which pool one belongs to isn't stored before 2.12."""
        mapping = [event for event in trace if event["action"] in {"segment_map", "segment_unmap"}]
        for event in sorted(
            mapping, key=lambda event: event["size"] % self.conf.large_segment_size_bytes == 0
        ):
            region = Region(
                event["addr"], event["size"], event["stream"], self._is_small(event), DEFAULT_POOL
            )
            self._known(region, region.address)

    def _is_small(self, event: Dict) -> bool:
        """Whether a segment event is one of a small pool: by size, or by the nearest address of which that is known."""
        if event["action"] in {"segment_alloc", "segment_free"}:
            return int(event["size"]) == 2 * MIB
        if event["size"] % self.conf.large_segment_size_bytes:
            return True
        nearest = [
            (min(abs(known - event["addr"]) for known in addresses), small)
            for (_pool, stream, small), addresses in self.ranges.items()
            if stream == event["stream"]
        ]
        return min(nearest)[1] if nearest else False

    def _shrink(self, address: int, size: int) -> None:
        """Undo that memory was mapped: cut it out of the region that holds it."""
        region = self.regions.get(address)
        if region is None:
            holding = [r for r in self.regions.values() if r.address <= address < r.address + r.size]
            if not holding:
                raise _gap("a segment that was allocated isn't there")
            region = holding[0]
        covered = [region]
        while region.address + region.size < address + size:  # stretches that touch are one
            following = self.regions.get(region.address + region.size)
            if following is None:
                raise _gap("a segment that was mapped isn't there")
            covered.append(following)
            region = following
        for region in covered:
            del self.regions[region.address]
            end = region.address + region.size
            kept = ((region.address, min(address, end)), (max(address + size, region.address), end))
            for start, stop in kept:
                if start < stop:
                    self.regions[start] = Region(
                        start, stop - start, region.stream, region.small, region.pool_id
                    )

    def _ranges_to_make(self) -> dict[tuple[tuple[PoolId, int, bool], int], int]:
        """Start and end of every range: from the lowest address known of a pool to the next pool's, or 1 1/8 of a device."""
        longest = expandable.TOTAL_UNKNOWN + expandable.TOTAL_UNKNOWN // 8
        starts: list[tuple[int, tuple[PoolId, int, bool]]] = []
        for key, addresses in self.ranges.items():
            begin = None
            for address in sorted(addresses):
                if begin is None or address > begin + longest:
                    begin = address
                    starts.append((begin, key))
        starts.sort()
        made = {}
        for at, (begin, key) in enumerate(starts):
            page = 2 * MIB if key[2] else self.conf.large_segment_size_bytes
            end = min(starts[at + 1][0] if at + 1 < len(starts) else begin + longest, begin + longest)
            made[key, begin] = begin + (end - begin) // page * page
        return made

    def _fill_range(
        self,
        begin: int,
        end: int,
        regions: list[Region],
        pool: FreeList,
        starts: list[int],
        living: list[int],
    ) -> list[Block]:
        chain: list[Block] = []
        at = begin
        for region in [*_joined(regions), None]:
            stop = end if region is None else region.address
            if stop > at:
                hole = Block(at, stop - at, pool, None)
                hole.state = UNMAPPED
                chain.append(hole)
            if region is not None:
                chain += self._fill(region, pool, starts, living)
                at = region.address + region.size
        return chain

    # Blocks

    def _fill(self, region: Region, pool: FreeList, starts: list[int], living: list[int]) -> list[Block]:
        """The living blocks of a region with the free ones between them."""
        end = region.address + region.size
        chain: list[Block] = []
        at = region.address
        for address in living[bisect_left(living, region.address) : bisect_left(living, end)]:
            if address > at:
                chain.append(Block(at, address - at, pool, None))
            lived = self.live[address]
            size = lived.size
            if size is None:
                size = self._size(address, lived, end, pool, starts)
            block = Block(address, size, pool, None)
            block.state, block.requested = PENDING if lived.pending else LIVE, lived.requested
            chain.append(block)
            at = address + size
        if at < end:
            chain.append(Block(at, end - at, pool, None))
        if at > end:
            raise _gap("a block reaches over its segment's end")
        return chain

    def _size(self, address: int, lived: Lived, end: int, pool: FreeList, starts: list[int]) -> int:
        """Size of a block that was there before the trace and is gone after it.

        What bounds it is the nearest block that was behind it while it lived. One that came later is a hint, no proof.
        """
        size = round_size(self.conf, lived.requested)
        self.unknown += 1
        if pool.least == 512:
            return size
        near = starts[bisect_left(starts, address + size) : bisect_left(starts, address + size + pool.least)]
        bounds = [start for start in near if self.first[start] < lived.freed_at and start <= end]
        if end - address - size < pool.least:
            bounds.append(end)
        if bounds:
            return bounds[0] - address
        self.ambiguous += 1
        return near[0] - address if near and near[0] < end else size


def _joined(regions: list[Region]) -> list[Region]:
    """Regions by address, those that touch made one: a block may lie across pages that were mapped at different times."""
    joined: list[Region] = []
    for region in regions:
        last = joined[-1] if joined else None
        if last is not None and last.address + last.size == region.address:
            size = last.size + region.size
            joined[-1] = Region(last.address, size, last.stream, last.small, last.pool_id)
        else:
            joined.append(region)
    return joined


def _adopt(allocator: Allocator, chain: list[Block], blocks: dict[int, Block]) -> None:
    """Link the blocks of a segment or range and put them where the allocator looks for them."""
    allocator.heads[chain[0].address] = chain[0]
    for before, after in pairwise(chain):
        before.after, after.before = after, before
    for block in chain:
        pool = block.pool
        if block.state == UNMAPPED:
            pool.put_unmapped(block)
            continue
        allocator.reserved_bytes += block.size
        if block.state == FREE:
            pool.put(block)
            continue
        blocks[block.address] = block
        allocator.requested_bytes += block.requested
        if block.state == LIVE:
            allocator.allocated_bytes += block.size
        else:
            block.uses = set()
            allocator.waiting.append(block)
    allocator.peak_reserved_bytes = allocator.reserved_bytes
    allocator.peak_allocated_bytes = allocator.allocated_bytes
    allocator.peak_requested_bytes = allocator.requested_bytes


def conf_of(snapshot: Dict) -> AllocConf:
    """The settings that a snapshot says were in effect; before 2.3 it doesn't say, and only the segments tell."""
    settings = snapshot.get("allocator_settings") or {}
    split = settings.get("max_split_size", -1)
    divisions = settings.get("roundup_power2_divisions") or {}
    return AllocConf(
        max_split_size_bytes=LARGEST if split in {-1, LARGEST} else split,
        roundup_power2_divisions=tuple(int(divisions.get(str(1 << at), 0)) for at in range(INTERVALS)),
        garbage_collection_threshold=float(settings.get("garbage_collection_threshold", 0.0)),
        expandable_segments=any(segment.get("is_expandable") for segment in snapshot["segments"])
        or bool(settings.get("expandable_segments")),
        text=str(settings.get("PYTORCH_CUDA_ALLOC_CONF", "")),
    )


def _gap(what: str) -> UsageError:
    return UsageError(
        f"the trace of this snapshot has gaps ({what}), so it can't be replayed",
        hint="record it without skip_actions, and don't change allocator settings while it records",
    )
