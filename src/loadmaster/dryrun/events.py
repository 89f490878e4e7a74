"""What happened on the simulated device, in order: blocks taken and given back, and where the program was. No torch here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

CATEGORIES = (
    "parameters", "buffers", "gradients", "optimizer states", "gathered", "inputs", "kv cache", "activations", "temporaries",
    "workspace",
)  # fmt: skip
"""What a block can be, in the order they are shown."""
ALLOC, FREE, EMPTY_CACHE = 1, 0, 2
"""Kinds of events of ``Trace.replayable``."""


class Block:
    """One block: who asked for it (operator, module, phase, step), how much, and when it was there.

    ``born`` and ``died`` are places in the trace's events; ``died`` is None while it lives. ``size_bytes`` is what the
    allocator handed out, ``requested_bytes`` what was asked for.
    """

    __slots__ = (
        "born", "call", "category", "died", "held", "module", "number", "op", "phase", "requested_bytes", "shape",
        "size_bytes", "step", "stream",
    )  # fmt: skip

    def __init__(self, number: int, born: int, requested_bytes: int, stream: int) -> None:
        self.number, self.born, self.requested_bytes, self.stream = number, born, requested_bytes, stream
        self.died: int | None = None
        self.category: str | None = None
        self.held: Any = None
        self.size_bytes = requested_bytes
        self.op = self.module = self.phase = self.shape = ""
        self.step = self.call = 0


class Mark(NamedTuple):
    """From this place in the events on, the program is in ``phase`` of ``step``."""

    at: int
    phase: str
    step: int


class Trace:
    """Every block and every event of one device. An event is the number of a block taken, or ``~number`` of one given back;
    None stands for ``torch.cuda.empty_cache()``."""

    def __init__(self) -> None:
        self.blocks: list[Block] = []
        self.events: list[int | None] = []
        self.allocated_bytes: list[int] = []
        self.reserved_bytes: list[int] = []
        """Right after each event."""
        self.marks: list[Mark] = []
        self.call_ends: list[int | None] = [None]
        """Of each call of a module, by number, where it ended in the events; number 0 is outside any."""

    def taken(self, requested_bytes: int, stream: int) -> Block:
        """A new block."""
        block = Block(len(self.blocks), len(self.events), requested_bytes, stream)
        self.blocks.append(block)
        self.events.append(block.number)
        return block

    def given(self, block: Block) -> None:
        """A block is given back."""
        block.died = len(self.events)
        self.events.append(~block.number)

    def level(self, allocated_bytes: int, reserved_bytes: int) -> None:
        """What the allocator holds after the event just recorded."""
        self.allocated_bytes.append(allocated_bytes)
        self.reserved_bytes.append(reserved_bytes)

    def mark(self, phase: str, step: int) -> None:
        """The program enters a phase of a step."""
        self.marks.append(Mark(len(self.events), phase, step))

    def alive(self, index: int) -> Iterator[Block]:
        """Blocks that are there right after the event at this place."""
        for block in self.blocks:
            if block.born > index:
                return
            if block.died is None or block.died > index:
                yield block

    def kind(self, block: Block) -> str:
        """What a block is: as tagged, or by how long it lived: what outlives the call of the module that made it in a forward
        pass (or in a recomputation) is an activation, anything else a temporary."""
        if block.category is not None:
            return block.category
        if not block.call or block.phase == "optimizer step":
            return "temporaries"
        end = self.call_ends[block.call]
        outlives = end is not None and (block.died is None or block.died > end)
        return "activations" if outlives else "temporaries"

    def replayable(self) -> Iterator[tuple[int, int, int, int]]:
        """Events as (kind, key, requested bytes, stream)."""
        for event in self.events:
            if event is None:
                yield EMPTY_CACHE, 0, 0, 0
            elif event >= 0:
                block = self.blocks[event]
                yield ALLOC, event, block.requested_bytes, block.stream
            else:
                block = self.blocks[~event]
                yield FREE, ~event, block.requested_bytes, block.stream
