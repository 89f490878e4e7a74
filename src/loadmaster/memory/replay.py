"""Reserved bytes: the step's blocks, in order, through the allocator's own rules.

``max_memory_reserved`` is not a percentage above ``max_memory_allocated``: it is what cannot be reused. So every block of
two steps (the second is like all later ones) is taken and given back in the order of the passes.
"""

from __future__ import annotations

from collections.abc import Iterable

from loadmaster.jobs.job import Job
from loadmaster.memory.allocator import Allocator, Block
from loadmaster.memory.components.optimizer import master_bytes, state_sizes, step_bytes
from loadmaster.memory.cost import Cost, Events
from loadmaster.memory.inventory import Held


class Replay:
    """An allocator with the persistent blocks of a job on it. Blocks that don't persist are known by a name, or within a
    layer by the key that its tape gave them."""

    def __init__(self) -> None:
        self.allocator = Allocator()
        self._named: dict[object, Block] = {}
        self._layers: dict[int, dict[object, Block]] = {}

    def keep(self, sizes: Iterable[int]) -> None:
        """Blocks that stay: weights, states, workspaces."""
        for size in sizes:
            if size > 0:
                self.allocator.take(size)

    def take(self, name: object, size: int) -> None:
        """One block until ``give`` or ``drop_rest``."""
        self._named[name] = self.allocator.take(size)

    def give(self, name: object) -> None:
        """Give a block back, if it is there."""
        block = self._named.pop(name, None)
        if block is not None:
            self.allocator.give(block)

    def run(self, events: Events, index: int) -> None:
        """Blocks of one pass through a layer: its hidden states and gradients are named, so that its neighbours know them."""
        take, give = self.allocator.take, self.allocator.give
        live = self._layers.setdefault(index, {})
        for key, size in events:
            if isinstance(key, str):
                side, step = _WORDS[key]
                if size < 0:
                    self.give((side, index + step))
                else:
                    self.take((side, index + step), size)
            elif size >= 0:
                live[key] = take(size)
            elif key in live:
                give(live.pop(key))

    def drop(self, index: int) -> None:
        """Give back what a layer's passes have left: its parameters' gradients."""
        for block in self._layers.pop(index, {}).values():
            self.allocator.give(block)

    def drop_rest(self) -> None:
        """Give back everything that does not persist: gradients at zero_grad, outputs at the end of a step."""
        for blocks in (self._named, *self._layers.values()):
            for block in blocks.values():
                self.allocator.give(block)
            blocks.clear()


_WORDS = {"x": ("h", 0), "out": ("h", 1), "gx": ("g", 0), "gout": ("g", 1)}
"""What a tape calls its layer's input, output and their gradients → hidden state or gradient, of this layer or the next."""


def training(
    replay: Replay,
    layers: list[Cost],
    head: Cost,
    embedding_bytes: int,
    tables: list[int],
    trained: list[Held],
    job: Job,
    steps: int = 2,
) -> None:
    """``steps`` steps: forward through ``layers`` in order, head and loss, back, the token table's gradient, the optimizer."""
    streamed = "gradients" in job.offload or job.optimizer_in_backward
    for step in range(steps):
        replay.take(("h", 0), embedding_bytes)
        for index, cost in enumerate(layers):
            replay.run(cost.forward_events, index)
        last = len(layers)
        replay.run(head.forward_events, last)
        replay.run(head.backward_events, last)
        for index in range(last - 1, -1, -1):
            replay.run(layers[index].backward_events, index)
            replay.give(("g", index + 1))
            replay.give(("h", index))
            if streamed:
                replay.drop(index)
        for number, size in enumerate(tables):
            replay.take(("table gradient", number), size)
        replay.give(("g", 0))
        _step(replay, trained, job, first=step == 0)
        replay.drop_rest()


def inference(
    replay: Replay, layers: list[Cost], head: Cost | None, embedding_bytes: int, cache: list[int]
) -> None:
    """One prefill: forward through ``layers``, each leaving its part of the cache, then the head."""
    replay.take("embedding", embedding_bytes)
    for index, cost in enumerate(layers):
        replay.run(cost.forward_events, index)
        if index < len(cache):
            replay.keep([cache[index] // 2, cache[index] - cache[index] // 2])
        replay.give(("h", index))
    replay.give("embedding")
    if head is not None:
        replay.run(head.forward_events, len(layers))
    replay.drop_rest()


MOST_BLOCKS = 2048
"""Equal blocks that are taken one by one; more (the adapters of every expert) are taken in lots, which moves a sum by less
than a segment."""


def lots(size: int, count: int) -> list[int]:
    """``count`` blocks of ``size`` bytes, as at most MOST_BLOCKS larger ones."""
    if count <= MOST_BLOCKS:
        return [size] * count
    return [size * -(-count // MOST_BLOCKS)] * MOST_BLOCKS


def _step(replay: Replay, trained: list[Held], job: Job, *, first: bool) -> None:
    sizes = [(int(h.size_bytes) // h.count, h.count) for h in trained]
    if first and "optimizer" not in job.offload:
        for h in trained:
            for size in (*state_sizes(job, h), int(master_bytes(job, h))):
                replay.keep(lots(int(size), h.count))
    if "optimizer" in job.offload or job.optimizer_in_backward:
        return
    total, needed = sum(one * count for one, count in sizes), int(step_bytes(job, trained))
    if needed >= total > 0:
        # Lists over all parameters: as many copies of each as there are whole ones.
        taken = [
            ("step", number, copy)
            for number, (_, count) in enumerate(sizes)
            for copy in range(len(lots(1, count)) * (needed // total))
        ]
        for key in taken:
            one, count = sizes[key[1]]
            replay.take(key, lots(one, count)[0])
        for key in taken:
            replay.give(key)
    elif needed:
        replay.take("step a", needed // 2)
        replay.take("step b", needed // 2)
        replay.give("step a")
        replay.give("step b")
