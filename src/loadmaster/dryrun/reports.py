"""What torch tells about its allocator, told about the model: ``memory_stats`` and ``memory_snapshot``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from loadmaster.dryrun import expandable
from loadmaster.dryrun.alloc_conf import LARGEST
from loadmaster.dryrun.allocator import Allocator
from loadmaster.dryrun.blocks import FREE, LIVE, PENDING, UNMAPPED, Block

STATES = {LIVE: "active_allocated", PENDING: "active_pending_free", FREE: "inactive"}

Frames = list[dict[str, object]]


def stats(allocator: Allocator) -> dict[str, int]:
    """``torch.cuda.memory_stats()``, in its order.

    An allocator without ``detail`` knows only the bytes of all pools; what wasn't counted is absent.
    """
    lines = {
        "num_alloc_retries": allocator.num_alloc_retries,
        "num_ooms": allocator.num_ooms,
        "num_sync_all_streams": allocator.num_sync_all_streams,
        "num_device_alloc": allocator.num_device_alloc,
        "num_device_free": allocator.num_device_free,
        "num_oom_rejections": 0,
    }
    most = allocator.conf.max_split_size_bytes
    lines["max_split_size"] = -1 if most == LARGEST else most  # a size_t printed as int64_t
    counters = allocator.counters
    if counters is None:
        for name in ("allocated", "reserved", "active", "requested"):
            lines[f"{name}_bytes.all.current"] = getattr(allocator, f"{name}_bytes")
            lines[f"{name}_bytes.all.peak"] = getattr(allocator, f"peak_{name}_bytes")
    else:
        for (line, pool), gauge in counters.gauges.items():
            lines.update(gauge.lines(f"{line}.{pool}"))
        lines.update(counters.oversize_allocations.lines("oversize_allocations"))
        lines.update(counters.oversize_segments.lines("oversize_segments"))
    return dict(sorted(lines.items()))


def segments(
    allocator: Allocator, device: int = 0, frames: Mapping[int, Frames] | None = None
) -> list[dict[str, Any]]:
    """``torch.cuda.memory_snapshot()`` ("DeviceCachingAllocator::snapshot"), by address; frames by a block's address.

    An expandable range is one segment for each stretch of it that is mapped.
    """
    told = []
    for address in sorted(allocator.heads):
        stretch: list[Block] = []
        block: Block | None = allocator.heads[address]
        while block is not None:
            if block.state != UNMAPPED:
                stretch.append(block)
            elif stretch:
                told.append(_segment(stretch, device, frames or {}))
                stretch = []
            block = block.after
        if stretch:
            told.append(_segment(stretch, device, frames or {}))
    return told


def _segment(blocks: list[Block], device: int, frames: Mapping[int, Frames]) -> dict[str, Any]:
    pool = blocks[0].pool
    active = [block for block in blocks if block.state != FREE]
    return {
        "device": device,
        "address": blocks[0].address,
        "total_size": sum(block.size for block in blocks),
        "allocated_size": sum(block.size for block in active if block.state == LIVE),
        "active_size": sum(block.size for block in active),
        "requested_size": sum(block.requested for block in active),
        "stream": pool.stream,
        "segment_type": "small" if pool.small else "large",
        "segment_pool_id": pool.id,
        "is_expandable": pool.expandable,
        "frames": [],
        "blocks": [
            {
                "address": block.address,
                "size": block.size,
                "requested_size": block.requested,
                "state": STATES[block.state],
                "frames": [] if block.state == FREE else frames.get(block.address, []),
            }
            for block in blocks
        ],
    }


class Unused(NamedTuple):
    """Reserved bytes without a tensor in them."""

    releasable_bytes: int
    split_bytes: int
    largest_block_bytes: int


def unused(allocator: Allocator) -> Unused:
    """How reserved bytes that aren't allocated divide: what a release pass gives back, and what it can't.

    Releasable are whole segments, and whole pages of expandable ones, in any pool. Blocks that wait for another stream
    count as neither.
    """
    releasable = split = largest = 0
    for pool in allocator.lists.values():
        for block in pool.blocks.values():
            if pool.expandable:
                start, end = expandable.whole_pages(allocator, block)
                whole = max(end - start, 0)
            else:
                whole = 0 if block.split else block.size
            releasable += whole
            split += block.size - whole
            largest = max(largest, block.size)
    return Unused(releasable, split, largest)
