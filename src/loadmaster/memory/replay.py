"""Reserved bytes: the step's blocks, in order, through the allocator's own rules.

``max_memory_reserved`` is not a percentage above ``max_memory_allocated``: it is what cannot be reused. So every block of
two steps (the second is like all later ones) is taken and given back in the order of the passes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from loadmaster.jobs import optimizers
from loadmaster.jobs.job import Job
from loadmaster.memory.allocator import Allocator
from loadmaster.memory.components.optimizer import state_bytes
from loadmaster.memory.inventory import Held
from loadmaster.memory.passes import Cost, Events


class Replay:
    """An allocator with the persistent blocks of a job on it."""

    def __init__(self, capacity_bytes: int | None = None) -> None:
        self.allocator = Allocator(capacity_bytes)
        self._kept: set[object] = set()
        self._live: set[object] = set()

    def keep(self, name: object, sizes: Iterable[int]) -> None:
        """Blocks that stay: weights, states, workspaces."""
        for index, size in enumerate(sizes):
            if size > 0:
                self.allocator.malloc((name, index), size)
                self._kept.add((name, index))

    def take(self, key: object, size: int) -> None:
        """One block until ``give`` or ``drop_rest``."""
        self.allocator.malloc(key, size)
        self._live.add(key)

    def give(self, key: object) -> None:
        """Give a block back, if it is there."""
        if key in self._live:
            self._live.discard(key)
            self.allocator.free(key)

    def run(self, events: Events, name: Callable[[object], object]) -> None:
        """Blocks of one pass; ``name`` makes a tape's keys unique."""
        for key, size in events:
            if size < 0:
                self.give(name(key))
            else:
                self.take(name(key), size)

    def drop(self, index: int) -> None:
        """Give back what a layer's passes have left: its parameters' gradients."""
        for key in [k for k in self._live if isinstance(k, tuple) and k[0] == index]:
            self.give(key)

    def drop_rest(self) -> None:
        """Give back everything that does not persist: gradients at zero_grad, outputs at the end of a step."""
        for key in sorted(self._live, key=repr):
            self.allocator.free(key)
        self._live.clear()


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
            replay.run(cost.forward_events, _layer(index))
        last = len(layers)
        replay.run(head.forward_events, _layer(last))
        replay.run(head.backward_events, _layer(last))
        for index in range(last - 1, -1, -1):
            replay.run(layers[index].backward_events, _layer(index))
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
        replay.run(cost.forward_events, _layer(index))
        replay.keep(
            ("cache", index),
            [cache[index] // 2, cache[index] - cache[index] // 2] if index < len(cache) else [],
        )
        replay.give(("h", index))
    replay.give("embedding")
    if head is not None:
        replay.run(head.forward_events, _layer(len(layers)))
    replay.drop_rest()


def _layer(index: int) -> Callable[[object], object]:
    words = {"x": ("h", index), "out": ("h", index + 1), "gx": ("g", index), "gout": ("g", index + 1)}

    def name(key: object) -> object:
        return words[key] if isinstance(key, str) else (index, key)

    return name


def _step(replay: Replay, trained: list[Held], job: Job, *, first: bool) -> None:
    module = optimizers.find(job.optimizer.name)
    sizes = [(int(h.size_bytes) // h.count, int(state_bytes(job, h)), h.count) for h in trained]
    if first and module.STATES and "optimizer" not in job.offload:
        for number, (_, state, count) in enumerate(sizes):
            replay.keep(("state", number), [state // module.STATES] * (module.STATES * count))
    total, largest = sum(one * count for one, _, count in sizes), max((one for one, _, _ in sizes), default=0)
    if "optimizer" in job.offload or job.optimizer_in_backward:
        return
    needed = module.step_bytes(job.optimizer.implementation, total, largest)
    if needed >= total > 0:
        taken = [
            ("step", number, copy) for number, (_, _, count) in enumerate(sizes) for copy in range(count)
        ]
        for key in taken:
            replay.take(key, sizes[key[1]][0])
        for key in taken:
            replay.give(key)
    elif needed:
        replay.take("step a", needed // 2)
        replay.take("step b", needed // 2)
        replay.give("step a")
        replay.give("step b")
