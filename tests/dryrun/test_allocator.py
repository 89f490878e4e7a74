"""The caching allocator's model: rules by hand, and what must hold for any sequence."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadmaster.dryrun.alloc_conf import AllocConf, parse_alloc_conf
from loadmaster.dryrun.allocator import Allocator, Block, OutOfMemoryError
from loadmaster.dryrun.replaying import replay, try_confs
from loadmaster.dryrun.reports import segments, stats, unused
from loadmaster.errors import UsageError
from loadmaster.memory.allocator import Allocator as Simple
from loadmaster.memory.allocator import OutOfMemoryError as SimpleOutOfMemoryError
from loadmaster.units import GIB, MIB

EXPANDABLE = parse_alloc_conf("expandable_segments:True")


def mib(*sizes: int) -> list[int]:
    return [size * MIB for size in sizes]


# Splitting, fitting, merging


def test_a_large_remainder_of_one_mib_belongs_to_the_block_and_more_is_split_off() -> None:
    allocator = Allocator()
    assert allocator.malloc(11 * MIB).size == 12 * MIB
    assert allocator.malloc(11 * MIB - 512).size == 11 * MIB - 512


def test_a_small_remainder_of_512_bytes_is_kept() -> None:
    allocator = Allocator()
    first, second = allocator.malloc(MIB - 512), allocator.malloc(MIB)
    assert second.address == first.address + MIB - 512
    assert allocator.malloc(1).address == second.address + MIB
    assert allocator.reserved_bytes == 2 * MIB


def test_best_fit_goes_by_size_then_by_address() -> None:
    allocator = Allocator()
    blocks = [allocator.malloc(size) for size in mib(40, 30, 24, 30)]
    for block in blocks:
        allocator.free(block)
    assert allocator.malloc(29 * MIB).address == blocks[1].address
    assert allocator.malloc(29 * MIB).address == blocks[3].address
    assert allocator.malloc(29 * MIB).address == blocks[0].address


def test_a_block_is_freed_once() -> None:
    allocator = Allocator()
    block = allocator.malloc(1)
    allocator.free(block)
    with pytest.raises(ValueError, match="isn't allocated"):
        allocator.free(block)


# Capacity


def test_a_refused_request_releases_the_cache_and_is_tried_again() -> None:
    allocator = Allocator(capacity_bytes=60 * MIB, log=[])
    first, second = allocator.malloc(30 * MIB), allocator.malloc(20 * MIB)
    allocator.free(first)
    third = allocator.malloc(40 * MIB)
    assert allocator.log == [
        ("segment_alloc", first.address, 30 * MIB, 0),
        ("segment_alloc", second.address, 20 * MIB, 0),
        ("segment_free", first.address, 30 * MIB, 0),
        ("segment_alloc", third.address, 40 * MIB, 0),
    ]
    assert (allocator.num_alloc_retries, allocator.num_ooms, allocator.num_sync_all_streams) == (1, 0, 1)
    assert (allocator.reserved_bytes, allocator.peak_reserved_bytes) == (60 * MIB, 60 * MIB)


def test_out_of_memory_says_what_was_asked_and_what_is_free() -> None:
    allocator = Allocator(capacity_bytes=60 * MIB)
    held = [allocator.malloc(size) for size in mib(30, 20)]
    with pytest.raises(OutOfMemoryError, match="tried to allocate") as caught:
        allocator.malloc(10 * MIB + 1)
    error = caught.value
    assert (error.requested_bytes, error.rounded_bytes, error.segment_bytes) == (
        10 * MIB + 1,
        10 * MIB + 512,
        12 * MIB,
    )
    assert (error.free_bytes, error.allocated_bytes, error.reserved_bytes) == (10 * MIB, 50 * MIB, 50 * MIB)
    assert (allocator.num_alloc_retries, allocator.num_ooms) == (1, 1)
    allocator.free(held[0])
    assert allocator.malloc(10 * MIB + 1).size == 10 * MIB + 512  # the block of 30 MiB is split


def test_the_large_pool_is_released_first_by_size() -> None:
    allocator = Allocator(log=[])
    blocks = [allocator.malloc(size) for size in (100, 30 * MIB, 12 * MIB)]
    for block in blocks:
        allocator.free(block)
    assert allocator.log is not None
    allocator.log.clear()
    allocator.empty_cache()
    assert [size for _action, _address, size, _stream in allocator.log] == mib(12, 30, 2)


# max_split_size, garbage collection, memory fraction


def test_blocks_of_max_split_size_are_neither_split_nor_given_to_smaller_requests() -> None:
    allocator = Allocator(parse_alloc_conf("max_split_size_mb:100"))
    big = allocator.malloc(150 * MIB)
    allocator.free(big)
    assert allocator.malloc(90 * MIB).address != big.address  # below: not from an oversize block
    assert allocator.malloc(130 * MIB).address != big.address  # 150 >= 130 + 20
    taken = allocator.malloc(131 * MIB)  # 150 < 131 + 20: whole
    assert (taken.address, taken.size) == (big.address, 150 * MIB)
    assert stats(allocator)["max_split_size"] == 100 * MIB


def test_max_non_split_rounding_widens_what_an_oversize_request_takes() -> None:
    allocator = Allocator(parse_alloc_conf("max_split_size_mb:100,max_non_split_rounding_mb:40"))
    big = allocator.malloc(150 * MIB)
    allocator.free(big)
    assert allocator.malloc(111 * MIB).address == big.address


def test_oversize_blocks_are_released_before_everything() -> None:
    allocator = Allocator(parse_alloc_conf("max_split_size_mb:100"), capacity_bytes=400 * MIB, log=[])
    blocks = [allocator.malloc(size) for size in mib(110, 120, 90)]
    for block in blocks:
        allocator.free(block)
    assert allocator.log is not None
    allocator.log.clear()
    allocator.malloc(
        200 * MIB
    )  # 80 MiB are free; no block has 200: the largest, then the next, until 200 are released
    assert [(action, size) for action, _address, size, _stream in allocator.log] == [
        ("segment_free", 120 * MIB),
        ("segment_free", 110 * MIB),
        ("segment_alloc", 200 * MIB),
    ]
    assert allocator.num_alloc_retries == 0


def test_one_oversize_block_that_is_large_enough_is_released_alone() -> None:
    allocator = Allocator(parse_alloc_conf("max_split_size_mb:100"), capacity_bytes=400 * MIB, log=[])
    blocks = [allocator.malloc(size) for size in mib(110, 180)]
    for block in blocks:
        allocator.free(block)
    allocator.malloc(150 * MIB)  # 180 >= 150 + 20: not taken, but released
    assert [entry[0] for entry in allocator.log or []][2:] == ["segment_free", "segment_alloc"]
    assert allocator.reserved_bytes == 260 * MIB


def test_garbage_collection_frees_what_has_not_been_used_for_long() -> None:
    conf = parse_alloc_conf("garbage_collection_threshold:0.5,per_process_memory_fraction:0.8")
    allocator = Allocator(conf, total_bytes=250 * MIB)  # allowed 200 MiB, collected above 100 MiB
    old, _young, _live = (allocator.malloc(size) for size in mib(40, 42, 44))  # searches 1, 2, 3
    allocator.free(old)
    allocator.malloc(30 << 20)  # search 4 finds it: nothing is collected
    allocator.free(allocator.malloc(1 << 20))  # the small pool's segments are never collected
    assert allocator.reserved_bytes == 128 * MIB
    other = allocator.malloc(46 * MIB)
    allocator.free(other)
    allocator.malloc(50 * MIB)  # 174 MiB reserved, 46 of them free: they go before the driver is asked
    assert allocator.reserved_bytes == 178 * MIB
    assert allocator.num_alloc_retries == 0


def test_garbage_collection_takes_ages_above_the_average_round_by_round() -> None:
    conf = parse_alloc_conf("garbage_collection_threshold:0.5")
    allocator = Allocator(conf, total_bytes=400 * MIB, log=[])
    allocator.set_memory_fraction(0.5)  # allowed 200, collected above 100
    first, second, third = (allocator.malloc(size) for size in mib(30, 40, 50))
    allocator.free(first)  # base 3
    held = allocator.malloc(29 * MIB)  # search 4, takes first's block whole but for 1 MiB
    assert held.address == first.address
    allocator.free(second)  # base 4
    allocator.malloc(38 * MIB)  # search 5: second's, split: 2 MiB are left
    allocator.free(third)  # base 5
    allocator.free(held)  # base 5
    assert allocator.log is not None
    allocator.log.clear()
    allocator.malloc(60 * MIB)  # search 6: 120 - 100 = 20 MiB wanted; ages 1 and 1, average 1: both go
    assert [(entry[0], entry[2]) for entry in allocator.log] == [
        ("segment_free", 30 * MIB),
        ("segment_free", 50 * MIB),
        ("segment_alloc", 60 * MIB),
    ]


def test_a_memory_fraction_limits_what_is_reserved() -> None:
    allocator = Allocator(capacity_bytes=100 * MIB)
    allocator.set_memory_fraction(0.5)
    allocator.malloc(40 * MIB)
    with pytest.raises(OutOfMemoryError) as caught:
        allocator.malloc(12 * MIB)
    assert caught.value.free_bytes == 60 * MIB
    allocator.set_memory_fraction(1)
    allocator.malloc(12 * MIB)
    with pytest.raises(UsageError, match="total"):
        Allocator(parse_alloc_conf("per_process_memory_fraction:0.5"))


def test_without_a_fraction_nothing_is_collected() -> None:
    allocator = Allocator(parse_alloc_conf("garbage_collection_threshold:0.1"), total_bytes=200 * MIB)
    allocator.free(allocator.malloc(100 * MIB))
    allocator.malloc(120 * MIB)
    assert allocator.reserved_bytes == 220 * MIB


# Streams and private pools


def test_streams_share_nothing() -> None:
    allocator = Allocator()
    allocator.free(allocator.malloc(30 * MIB, stream=1))
    allocator.malloc(30 * MIB, stream=2)
    assert allocator.reserved_bytes == 60 * MIB
    allocator.malloc(30 * MIB, stream=1)
    assert allocator.reserved_bytes == 60 * MIB


def test_a_block_that_another_stream_used_is_free_at_the_next_malloc() -> None:
    allocator = Allocator()
    block = allocator.malloc(30 * MIB)
    allocator.record_stream(block, 0)  # its own stream: nothing
    allocator.record_stream(block, 7)
    allocator.record_stream(block, 8)
    allocator.free(block)
    assert (allocator.allocated_bytes, allocator.active_bytes, allocator.requested_bytes) == (
        0,
        30 * MIB,
        30 * MIB,
    )
    assert segments(allocator)[0]["blocks"][0]["state"] == "active_pending_free"
    assert allocator.malloc(30 * MIB).address == block.address
    assert allocator.peak_active_bytes == 30 * MIB


def test_streams_that_lag_keep_their_blocks() -> None:
    allocator = Allocator(streams_lag=True)
    block = allocator.malloc(30 * MIB)
    allocator.record_stream(block, 7)
    allocator.free(block)
    assert allocator.malloc(30 * MIB).address != block.address
    assert (allocator.active_bytes, allocator.peak_active_bytes) == (60 * MIB, 60 * MIB)
    allocator.synchronize()
    assert allocator.malloc(30 * MIB).address == block.address
    assert allocator.reserved_bytes == 60 * MIB


def test_a_release_pass_waits_for_streams_that_lag() -> None:
    allocator = Allocator(capacity_bytes=50 * MIB, streams_lag=True, log=[])
    block = allocator.malloc(30 * MIB)
    allocator.record_stream(block, 7)
    allocator.free(block)
    allocator.malloc(40 * MIB)
    assert [entry[0] for entry in allocator.log or []] == [
        "segment_alloc", "free_completed", "segment_free", "segment_alloc",
    ]  # fmt: skip


def test_a_private_pool_keeps_its_memory_until_it_is_released() -> None:
    allocator = Allocator()
    block = allocator.malloc(30 * MIB, pool_id=(0, 1))
    allocator.free(block)
    assert allocator.malloc(30 * MIB).address != block.address
    allocator.empty_cache()
    assert allocator.reserved_bytes == 60 * MIB
    assert segments(allocator)[0]["segment_pool_id"] == (0, 1)
    allocator.release_pool((0, 1))
    allocator.empty_cache((0, 1))
    assert allocator.reserved_bytes == 30 * MIB


# Expandable segments


def test_an_expandable_segment_grows_by_pages_where_it_ends() -> None:
    allocator = Allocator(EXPANDABLE, log=[])
    first = allocator.malloc(30 * MIB)
    second = allocator.malloc(15 * MIB)  # 10 MiB are free behind: only a page more is mapped
    small = allocator.malloc(100)
    assert second.address == first.address + 30 * MIB
    assert [(entry[0], entry[2]) for entry in allocator.log or []] == [
        ("segment_map", 40 * MIB),
        ("segment_map", 20 * MIB),
        ("segment_map", 2 * MIB),
    ]
    assert (first.size, second.size, small.size) == (30 * MIB, 15 * MIB, 512)
    assert len(segments(allocator)) == 2


def test_the_growing_end_is_used_last() -> None:
    allocator = Allocator(EXPANDABLE)
    blocks = [allocator.malloc(20 * MIB) for _ in range(4)]
    allocator.malloc(5 * MIB)  # 15 MiB are left at the end
    allocator.free(blocks[1])
    # Best fit by plain size would be the 15 MiB at the end, but with the room behind it that one is larger.
    assert allocator.malloc(12 * MIB).address == blocks[1].address


def test_pages_inside_free_blocks_are_unmapped_and_mapped_again() -> None:
    allocator = Allocator(EXPANDABLE, capacity_bytes=100 * MIB, log=[])
    first, second, _third = (allocator.malloc(size) for size in mib(10, 60, 30))
    allocator.free(second)  # from 10 to 70 MiB: whole pages from 20 to 60
    assert unused(allocator) == (40 * MIB, 20 * MIB, 60 * MIB)
    assert allocator.log is not None
    allocator.log.clear()
    allocator.empty_cache()
    assert allocator.log == [("segment_unmap", first.address + 20 * MIB, 40 * MIB, 0)]
    assert [segment["total_size"] for segment in segments(allocator)] == [20 * MIB, 40 * MIB]
    allocator.log.clear()
    again = allocator.malloc(25 * MIB)  # starts in the free 10 MiB before the hole: 15 MiB more, one page
    assert again.address == first.address + 10 * MIB
    assert allocator.log == [("segment_map", first.address + 20 * MIB, 20 * MIB, 0)]


def test_a_range_with_nothing_in_it_is_given_up() -> None:
    allocator = Allocator(EXPANDABLE)
    allocator.free(allocator.malloc(30 * MIB))
    allocator.empty_cache()
    assert (allocator.reserved_bytes, allocator.heads, allocator.ranges, segments(allocator)) == (
        0,
        {},
        [],
        [],
    )


def test_what_a_refused_request_had_mapped_stays() -> None:
    allocator = Allocator(EXPANDABLE, capacity_bytes=50 * MIB)
    allocator.malloc(15 * MIB)
    with pytest.raises(OutOfMemoryError):
        allocator.malloc(50 * MIB)
    assert (allocator.num_ooms, allocator.reserved_bytes) == (1, 20 * MIB)


def test_a_full_range_is_followed_by_another() -> None:
    allocator = Allocator(EXPANDABLE, total_bytes=160 * MIB)  # ranges of 180 MiB
    first = allocator.malloc(170 * MIB)
    second = allocator.malloc(30 * MIB)
    assert second.address >= first.address + 180 * MIB
    assert len(allocator.ranges) == 2


# Reports


def test_stats_are_those_of_torch() -> None:
    allocator = Allocator(detail=True)
    large, small = allocator.malloc(12 * MIB + 100), allocator.malloc(1000)
    other = allocator.malloc(1000)
    allocator.free(small)
    told = stats(allocator)
    wanted = {
        "allocation.all.current": 2, "allocation.all.peak": 3, "allocation.all.allocated": 3, "allocation.all.freed": 1,
        "allocated_bytes.small_pool.current": 1024, "allocated_bytes.small_pool.peak": 2048,
        "allocated_bytes.large_pool.current": 12 * MIB + 512, "requested_bytes.all.current": 12 * MIB + 1100,
        "reserved_bytes.all.current": 16 * MIB, "segment.all.current": 2, "segment.small_pool.peak": 1,
        "active.all.current": 2, "active_bytes.all.freed": 1024, "num_device_alloc": 2, "num_ooms": 0,
        # 1.5 MiB behind the large block; 1024 bytes and the rest in the small segment
        "inactive_split.all.current": 3, "inactive_split.large_pool.current": 1,
        "inactive_split_bytes.all.current": 16 * MIB - (12 * MIB + 512) - 1024,
        "oversize_allocations.current": 0, "max_split_size": -1,
    }  # fmt: skip
    assert {key: told[key] for key in wanted} == wanted
    for block in (large, other):
        allocator.free(block)
    told = stats(allocator)
    assert told["inactive_split.all.current"] == told["inactive_split_bytes.all.current"] == 0
    brief = stats(Allocator())
    assert set(brief) < set(told)


def test_stats_have_the_keys_that_torch_prints() -> None:
    # torch/cuda/memory.py, memory_summary: the metrics and the counters of its table.
    told = stats(Allocator(detail=True))
    lines = (
        "allocated_bytes", "active_bytes", "requested_bytes", "reserved_bytes", "inactive_split_bytes",
        "allocation", "active", "segment", "inactive_split",
    )  # fmt: skip
    for line in lines:
        for pool in ("all", "large_pool", "small_pool"):
            assert {f"{line}.{pool}.{metric}" for metric in ("current", "peak", "allocated", "freed")} <= set(
                told
            )
    assert {"oversize_allocations.current", "oversize_segments.peak", "num_alloc_retries", "num_ooms"} <= set(
        told
    )


def test_a_segment_lists_its_blocks() -> None:
    allocator = Allocator()
    first, second = allocator.malloc(3 * MIB + 1), allocator.malloc(4 * MIB)
    allocator.free(first)
    (segment,) = segments(allocator, frames={second.address: [{"filename": "a.py", "line": 1, "name": "f"}]})
    assert (segment["total_size"], segment["allocated_size"], segment["requested_size"]) == tuple(
        mib(20, 4, 4)
    )
    assert [(block["size"], block["requested_size"], block["state"]) for block in segment["blocks"]] == [
        (3 * MIB + 512, 3 * MIB + 1, "inactive"),
        (4 * MIB, 4 * MIB, "active_allocated"),
        (13 * MIB - 512, 0, "inactive"),
    ]
    assert segment["blocks"][1]["frames"][0]["name"] == "f"


# Replays


def test_a_replay_says_where_peaks_are_and_where_memory_ends() -> None:
    events = [
        (1, 0, 30 * MIB, 0),
        (1, 1, 5 * MIB, 0),
        (0, 0, 0, 0),
        (1, 2, 16 * MIB, 0),
        (1, 3, 0, 0),
        (0, 3, 0, 0),
    ]
    done = replay(events, capacity_bytes=60 * MIB)
    assert (done.peak_allocated_bytes, done.peak_allocated_at) == (35 * MIB, 1)
    assert (done.peak_reserved_bytes, done.peak_reserved_at) == (50 * MIB, 1)
    assert (done.allocated_bytes, done.reserved_bytes, done.oom_at) == (21 * MIB, 50 * MIB, None)
    done = replay([*events, (1, 4, 40 * MIB, 0)], capacity_bytes=60 * MIB)
    assert (done.oom_at, done.oom_requested_bytes, done.num_alloc_retries) == (6, 40 * MIB, 1)
    # 30 MiB with 16 in it and 20 MiB with 5 in it: nothing is whole
    assert (done.releasable_bytes, done.split_bytes, done.largest_free_bytes) == tuple(mib(0, 29, 15))


def test_emptying_the_cache_is_an_event() -> None:
    assert replay([(1, 0, 30 * MIB, 0), (0, 0, 0, 0), (2, 0, 0, 0)]).reserved_bytes == 0


def test_the_setting_that_helps_comes_first() -> None:
    # Two segments of 30 MiB with 11 and 20 MiB living in them: 49 of 80 MiB are free, but no 36 in a row.
    events = [(1, 0, 30 * MIB, 0), (1, 1, 30 * MIB, 0), (0, 0, 0, 0), (1, 2, 11 * MIB, 0), (0, 1, 0, 0)]
    events += [(1, 3, 20 * MIB, 0), (1, 4, 36 * MIB, 0)]
    confs = [AllocConf(), EXPANDABLE]
    tried = try_confs(events, confs, 80 * MIB)
    assert [one.conf for one in tried] == [EXPANDABLE, AllocConf()]
    assert [one.replayed.oom_at for one in tried] == [None, 6]


# Laws

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


def test_without_a_capacity_nothing_is_refused() -> None:
    assert Allocator().malloc(500 * GIB).size == 500 * GIB
    assert Allocator(EXPANDABLE).malloc(500 * GIB).size == 500 * GIB
