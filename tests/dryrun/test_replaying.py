"""Replays, and what torch prints about its allocator, told about the model."""

from __future__ import annotations

from loadmaster.dryrun.alloc_conf import AllocConf, parse_alloc_conf
from loadmaster.dryrun.allocator import Allocator
from loadmaster.dryrun.replaying import replay, try_confs
from loadmaster.dryrun.reports import segments, stats
from loadmaster.units import MIB

EXPANDABLE = parse_alloc_conf("expandable_segments:True")


def mib(*sizes: int) -> list[int]:
    return [size * MIB for size in sizes]


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
