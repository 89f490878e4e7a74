"""The caching allocator's model: its rules, worked out by hand."""

from __future__ import annotations

import pytest

from loadmaster.dryrun.alloc_conf import parse_alloc_conf
from loadmaster.dryrun.allocator import Allocator, OutOfMemoryError
from loadmaster.dryrun.reports import segments, stats, unused
from loadmaster.errors import UsageError
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


def test_garbage_collection_frees_the_oldest_and_goes_on_until_it_is_enough() -> None:
    conf = parse_alloc_conf("garbage_collection_threshold:0.5,per_process_memory_fraction:0.5")
    for size, freed in ((40, [20]), (70, [20, 30])):
        allocator = Allocator(conf, total_bytes=400 * MIB, log=[])  # allowed 200, collected above 100
        first, _second, third = (allocator.malloc(size) for size in mib(20, 24, 30))  # searches 1, 2, 3
        allocator.free(first)
        allocator.free(third)
        allocator.free(allocator.malloc(30 * MIB))  # search 4 finds the third, which is a search younger then
        allocator.malloc(size * MIB)  # search 5; 74 MiB are reserved: nothing is collected yet
        assert allocator.log is not None
        allocator.log.clear()
        # Search 6: 14 or 44 MiB are wanted. Ages are 3 and 2, 2.5 on average; then 2 alone.
        allocator.malloc(42 * MIB)
        assert [entry[2] // MIB for entry in allocator.log if entry[0] == "segment_free"] == freed


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


def test_without_a_capacity_nothing_is_refused() -> None:
    assert Allocator().malloc(500 * GIB).size == 500 * GIB
    assert Allocator(EXPANDABLE).malloc(500 * GIB).size == 500 * GIB
