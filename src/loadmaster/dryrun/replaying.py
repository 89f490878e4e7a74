"""Allocations and frees of a run played through the allocator, and which of its settings would help."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from loadmaster.dryrun.alloc_conf import AllocConf
from loadmaster.dryrun.allocator import Allocator, Block, OutOfMemoryError
from loadmaster.dryrun.reports import unused
from loadmaster.records import Record

FREE_EVENT, ALLOC_EVENT, EMPTY_CACHE_EVENT = range(3)

Event = tuple[int, int, int, int]
"""(kind, key, bytes, stream): kind 1 allocates under a key, 0 frees it, 2 empties the cache. Of a free only the key counts."""


class Replayed(Record, kw_only=True):
    """What a run took. Indices are those of events, -1 before the first; None is a thing that didn't happen.

    After an out-of-memory error the replay ends, and the last fields tell how reserved bytes divide at that point.
    """

    peak_allocated_bytes: int
    peak_allocated_at: int
    peak_reserved_bytes: int
    peak_reserved_at: int
    allocated_bytes: int
    reserved_bytes: int
    num_alloc_retries: int
    oom_at: int | None = None
    oom_requested_bytes: int | None = None
    releasable_bytes: int
    split_bytes: int
    largest_free_bytes: int


class Tried(Record, kw_only=True):
    """One setting and what came of it."""

    conf: AllocConf
    replayed: Replayed


def replay(
    events: Iterable[Event], conf: AllocConf | None = None, capacity_bytes: int | None = None
) -> Replayed:
    """Play events through an allocator; ends at the first out-of-memory error."""
    allocator = Allocator(conf, capacity_bytes)
    malloc, free = allocator.malloc, allocator.free
    live: dict[int, Block] = {}
    peak_allocated = peak_reserved = 0
    allocated_at = reserved_at = -1
    oom_at = oom_bytes = None
    for at, (kind, key, size, stream) in enumerate(events):
        if kind == ALLOC_EVENT:
            if not size:
                continue  # torch takes no block for 0 bytes
            try:
                live[key] = malloc(size, stream)
            except OutOfMemoryError:
                oom_at, oom_bytes = at, size
                break
            if allocator.allocated_bytes > peak_allocated:
                peak_allocated, allocated_at = allocator.allocated_bytes, at
            if allocator.reserved_bytes > peak_reserved:
                peak_reserved, reserved_at = allocator.reserved_bytes, at
        elif kind == FREE_EVENT:
            block = live.pop(key, None)
            if block is not None:
                free(block)
        else:
            allocator.empty_cache()
    left = unused(allocator)
    return Replayed(
        peak_allocated_bytes=allocator.peak_allocated_bytes,
        peak_allocated_at=allocated_at,
        peak_reserved_bytes=allocator.peak_reserved_bytes,
        peak_reserved_at=reserved_at,
        allocated_bytes=allocator.allocated_bytes,
        reserved_bytes=allocator.reserved_bytes,
        num_alloc_retries=allocator.num_alloc_retries,
        oom_at=oom_at,
        oom_requested_bytes=oom_bytes,
        releasable_bytes=left.releasable_bytes,
        split_bytes=left.split_bytes,
        largest_free_bytes=left.largest_block_bytes,
    )


def try_confs(
    events: Sequence[Event], confs: Iterable[AllocConf], capacity_bytes: int | None = None
) -> list[Tried]:
    """Play the same events with each setting; best first.

    Better is: no out-of-memory error, or a later one; then fewer retries, fewer reserved bytes at the peak, fewer allocated
    ones. Settings that come out equal keep the order they were given in.
    """
    tried = [Tried(conf=conf, replayed=replay(events, conf, capacity_bytes)) for conf in confs]

    def rank(one: Tried) -> tuple[int, int, int, int]:
        got = one.replayed
        reached = len(events) if got.oom_at is None else got.oom_at
        return -reached, got.num_alloc_retries, got.peak_reserved_bytes, got.peak_allocated_bytes

    return sorted(tried, key=rank)
