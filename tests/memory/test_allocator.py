"""The caching allocator's rules by hand, and what must hold for any sequence."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadmaster.memory.allocator import Allocator, OutOfMemoryError
from loadmaster.units import MIB


@pytest.mark.parametrize(
    ("size", "segment"),
    [
        (1, 2 * MIB),  # small pool
        (1 * MIB, 2 * MIB),
        (1 * MIB + 1, 20 * MIB),  # large pool, below 10 MiB
        (10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB),  # its own segment, rounded up to 2 MiB
        (10 * MIB + 1, 12 * MIB),
        (101 * MIB, 102 * MIB),
    ],
)
def test_segment_sizes(size: int, segment: int) -> None:
    allocator = Allocator()
    allocator.malloc("a", size)
    assert allocator.reserved_bytes == segment


def test_a_large_remainder_of_one_mib_belongs_to_the_block_and_more_is_split_off() -> None:
    allocator = Allocator()
    allocator.malloc("a", 11 * MIB)  # 12 MiB segment: 1 MiB is left, not more than the limit
    assert allocator.allocated_bytes == 12 * MIB
    allocator.malloc("b", 10 * MIB + 512)  # 12 MiB segment: over 1 MiB is left and split off
    assert allocator.allocated_bytes == 12 * MIB + 10 * MIB + 512


def test_best_fit_takes_the_smallest_free_block_that_fits() -> None:
    allocator = Allocator()
    for key, size in (("big", 40), ("wall", 30), ("small", 24)):
        allocator.malloc(key, size * MIB)
    allocator.free("big")
    allocator.free("small")
    allocator.malloc("new", 23 * MIB)
    assert allocator.reserved_bytes == 94 * MIB
    allocator.malloc("rest", 40 * MIB)  # the 40 MiB block is still whole
    assert allocator.reserved_bytes == 94 * MIB


def test_neighbours_merge_but_segments_do_not() -> None:
    allocator = Allocator()
    allocator.malloc("a", 5 * MIB)
    allocator.malloc("b", 5 * MIB)  # both in one 20 MiB segment
    allocator.free("a")
    allocator.free("b")
    allocator.malloc("c", 20 * MIB)
    assert allocator.reserved_bytes == 20 * MIB
    allocator.malloc("d", 12 * MIB)
    allocator.free("c")
    allocator.free("d")
    allocator.malloc("e", 30 * MIB)  # 20 + 12 MiB are free in two segments: neither holds 30
    assert allocator.reserved_bytes == 62 * MIB


def test_a_full_device_gives_back_cached_segments_before_it_fails() -> None:
    allocator = Allocator(capacity_bytes=100 * MIB)
    allocator.malloc("a", 60 * MIB)
    allocator.free("a")
    allocator.malloc("b", 80 * MIB)
    assert (allocator.reserved_bytes, allocator.releases) == (80 * MIB, 1)
    with pytest.raises(OutOfMemoryError):
        allocator.malloc("c", 40 * MIB)


steps = st.lists(st.tuples(st.integers(0, 12), st.integers(1, 64 * MIB)), max_size=120)


@given(steps)
def test_live_blocks_never_exceed_what_is_reserved_and_all_comes_back(moves: list[tuple[int, int]]) -> None:
    allocator, live = Allocator(), {}
    for slot, size in moves:
        if slot in live:
            allocator.free(slot)
            del live[slot]
        else:
            allocator.malloc(slot, size)
            live[slot] = size
        assert sum(live.values()) <= allocator.allocated_bytes <= allocator.reserved_bytes
        assert allocator.reserved_bytes % (2 * MIB) == 0
    for slot in live:
        allocator.free(slot)
    assert allocator.allocated_bytes == 0
    allocator.empty_cache()
    assert allocator.reserved_bytes == 0
