"""What the allocator's model is made of: blocks, and the free lists they wait in.

Names in quotes are those of c10/cuda/CUDACachingAllocator.cpp. A free list belongs to one stream: torch keeps one set for
all streams, ordered by (stream, size, address) and searched within one stream, which comes to the same.
"""

from __future__ import annotations

from bisect import bisect_left, insort

from loadmaster.units import MIB

FREE, LIVE, PENDING, UNMAPPED = range(4)
"""States of a block. Pending: freed, but other streams may still use it ("event_count"). Unmapped: addresses only."""

SHIFT = 64
"""A free block's key is ``size << SHIFT | address``: ordered by size, then by address ("BlockComparatorSize")."""

PoolId = tuple[int, int]
DEFAULT_POOL: PoolId = (0, 0)


class Block:
    """A piece of a segment ("Block"); ``before`` and ``after`` are its neighbours in it.

    ``pool`` is the free list it comes from; ``base`` the list's number of searches when it was freed ("gc_count_base");
    ``uses`` the other streams that use it, None if there are none ("stream_uses").
    """

    __slots__ = ("address", "after", "base", "before", "pool", "requested", "size", "state", "uses")

    def __init__(self, address: int, size: int, pool: FreeList, before: Block | None) -> None:
        self.address, self.size, self.pool, self.before = address, size, pool, before
        self.state = self.requested = self.base = 0
        self.after: Block | None = None
        self.uses: set[int] | None = None

    @property
    def split(self) -> bool:
        """Whether it is only a part of its segment ("is_split")."""
        return self.before is not None or self.after is not None


class FreeList:
    """Free blocks of one pool, stream and kind ("BlockPool"), and the unmapped parts of its expandable segments."""

    __slots__ = (
        "blocks", "expandable", "id", "keys", "least", "page", "searches", "small", "stream", "unmapped",
    )  # fmt: skip

    def __init__(
        self, id_: PoolId, stream: int, small: bool, page: int, expandable: bool, searches: list[int]
    ) -> None:
        self.id, self.stream, self.small, self.page = id_, stream, small, page
        self.expandable = expandable
        self.keys: list[int] = []
        self.blocks: dict[int, Block] = {}
        self.unmapped: list[tuple[int, Block]] = []
        self.searches = searches  # "get_free_blocks_call_count", one for all streams
        # "should_split": what must be left for the rest to be a block of its own. Sizes are multiples of 512.
        self.least = 512 if small or expandable else 1 * MIB + 512

    def put(self, block: Block) -> None:
        """Take a free block in ("insert_into_blocks")."""
        key = block.size << SHIFT | block.address
        block.base = self.searches[0]
        insort(self.keys, key)
        self.blocks[key] = block

    def drop(self, block: Block) -> None:
        """Take a free block out."""
        key = block.size << SHIFT | block.address
        del self.keys[bisect_left(self.keys, key)]
        del self.blocks[key]

    def put_unmapped(self, block: Block) -> None:
        """Take an unmapped block in; the list is ordered by address."""
        insort(self.unmapped, (block.address, block))

    def drop_unmapped(self, block: Block) -> None:
        """Take an unmapped block out."""
        del self.unmapped[bisect_left(self.unmapped, (block.address,))]
