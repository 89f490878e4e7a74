"""The caching allocator's model: what must hold for any sequence of allocations and frees."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadmaster.dryrun.alloc_conf import parse_alloc_conf
from loadmaster.dryrun.allocator import Allocator, Block, OutOfMemoryError
from loadmaster.dryrun.reports import segments, stats, unused
from loadmaster.memory.allocator import Allocator as Simple
from loadmaster.memory.allocator import OutOfMemoryError as SimpleOutOfMemoryError
from loadmaster.units import MIB

SIZES = st.one_of(
    st.integers(1, 4096),
    st.integers(1, 4 * MIB),
    st.integers(MIB // 2, 60 * MIB),
    st.sampled_from([512, MIB, MIB + 1, 10 * MIB, 20 * MIB]),
)
OPS = st.lists(st.one_of(st.tuples(SIZES, st.integers(0, 2)), st.integers(0, 30)), max_size=60)
CONFS = st.sampled_from(
    [
        "",
        "expandable_segments:True",
        "max_split_size_mb:20",
        "roundup_power2_divisions:4",
        "roundup_power2_divisions:[1:8,>:2],expandable_segments:True",
        "garbage_collection_threshold:0.3,per_process_memory_fraction:0.7",
        "large_segment_size_mb:11,max_split_size_mb:12",
        "large_segment_size_mb:12,expandable_segments:True",
    ]
)  # fmt: skip
Ops = list[tuple[int, int] | int]


def check(allocator: Allocator, live: list[tuple[Block, int]]) -> None:
    asked = sum(size for _block, size in live)
    capacity = allocator.capacity_bytes
    assert capacity is not None
    assert (
        asked <= allocator.allocated_bytes <= allocator.active_bytes <= allocator.reserved_bytes <= capacity
    )
    told = segments(allocator)
    assert sum(segment["total_size"] for segment in told) == allocator.reserved_bytes
    assert sum(segment["allocated_size"] for segment in told) == allocator.allocated_bytes
    assert sum(segment["active_size"] for segment in told) == allocator.active_bytes
    assert sum(segment["requested_size"] for segment in told) == allocator.requested_bytes
    for segment in told:
        states = [block["state"] for block in segment["blocks"]]
        assert ("inactive", "inactive") not in list(pairwise(states))
        ends = [block["address"] + block["size"] for block in segment["blocks"]]
        assert [block["address"] for block in segment["blocks"]] == [segment["address"], *ends[:-1]]
        if segment["is_expandable"]:
            page = 2 * MIB if segment["segment_type"] == "small" else allocator.conf.large_segment_size_bytes
            assert segment["total_size"] % page == 0
    gauges = stats(allocator)
    assert gauges["reserved_bytes.all.current"] == allocator.reserved_bytes
    assert gauges["active_bytes.all.peak"] == allocator.peak_active_bytes
    split = [
        block["size"]
        for segment in told
        for block in segment["blocks"]
        if block["state"] == "inactive" and len(segment["blocks"]) > 1 and not segment["is_expandable"]
    ]
    assert (gauges["inactive_split.all.current"], gauges["inactive_split_bytes.all.current"]) == (
        len(split),
        sum(split),
    )
    assert unused(allocator).releasable_bytes + unused(allocator).split_bytes == (
        allocator.reserved_bytes - allocator.active_bytes
    )


@given(OPS, CONFS, st.integers(40, 400), st.booleans())
def test_laws(ops: Ops, text: str, capacity_mib: int, lag: bool) -> None:
    allocator = Allocator(parse_alloc_conf(text), capacity_mib * MIB, streams_lag=lag, detail=True)
    live: list[tuple[Block, int]] = []
    for op in ops:
        if isinstance(op, tuple):
            try:
                live.append((allocator.malloc(*op), op[0]))
            except OutOfMemoryError:
                assert allocator.num_ooms
        elif live:
            block, _size = live.pop(op % len(live))
            if op % 3 == 0:
                allocator.record_stream(block, 9)
            allocator.free(block)
        check(allocator, live)
    spans = sorted((block.address, block.address + block.size) for block, _size in live)
    assert all(end <= start for (_, end), (start, _) in pairwise(spans))
    for block, _size in live:
        allocator.free(block)
    allocator.empty_cache()
    assert (allocator.allocated_bytes, allocator.reserved_bytes, allocator.requested_bytes) == (0, 0, 0)
    assert segments(allocator) == []
    assert stats(allocator)["segment.all.current"] == 0


@given(OPS, st.one_of(st.none(), st.integers(40, 400)))
def test_default_settings_agree_with_the_simple_allocator(ops: Ops, capacity_mib: int | None) -> None:
    capacity = None if capacity_mib is None else capacity_mib * MIB
    ours, simple = Allocator(capacity_bytes=capacity), Simple(capacity)
    live = []
    for op in ops:
        if isinstance(op, tuple):
            try:
                block = ours.malloc(op[0])
            except OutOfMemoryError:
                with pytest.raises(SimpleOutOfMemoryError):
                    simple.take(op[0])
                continue
            live.append((block, simple.take(op[0])))
        elif live:
            block, other = live.pop(op % len(live))
            ours.free(block)
            simple.give(other)
        assert (ours.allocated_bytes, ours.reserved_bytes) == (simple.allocated_bytes, simple.reserved_bytes)
        assert ours.peak_reserved_bytes == simple.peak_reserved_bytes
        assert ours.num_alloc_retries == simple.releases
