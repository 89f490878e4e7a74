"""How many allocations and frees a second the allocator's model replays on one core, on real traces and a made-up one.

python benchmarks/allocator.py [--repeats 9]
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import time
from pathlib import Path

from loadmaster.dryrun.alloc_conf import parse_alloc_conf
from loadmaster.dryrun.allocator import Allocator
from loadmaster.dryrun.replaying import Event, replay
from loadmaster.memory.allocator import Allocator as Simple

FIXTURES = Path(__file__).parent.parent / "tests" / "dryrun" / "fixtures"
ALLOC, FREE = "0", "1"


def recorded(name: str) -> list[Event]:
    """Allocations and frees of a fixture's first device; frees of older blocks are left out."""
    numbers = json.loads(gzip.decompress((FIXTURES / f"{name}.json.gz").read_bytes()))
    actions, sizes, steps, _streams = numbers["traces"][0]
    events: list[Event] = []
    live: dict[int, int] = {}
    address = 0
    for action, size, step in zip(actions, sizes, steps, strict=True):
        address += step
        if action == ALLOC:
            live[address] = len(events)
            events.append((1, len(events), size, 0))
        elif action == FREE and address in live:
            events.append((0, live.pop(address), 0, 0))
    return events


def made_up(count: int = 100_000) -> list[Event]:
    """A fragmented heap: up to 2,000 blocks of 512 B to 32 MiB that live for random times."""
    chance = random.Random(0)
    events: list[Event] = []
    live: list[int] = []
    for key in range(count):
        if len(live) > 2000 or (live and chance.random() < 0.49):
            events.append((0, live.pop(chance.randrange(len(live))), 0, 0))
        else:
            events.append((1, key, int(2 ** chance.uniform(9, 25)), 0))
            live.append(key)
    return events


def simple(events: list[Event]) -> int:
    """The same through ``memory.allocator``, which the planner uses."""
    allocator = Simple()
    live = {}
    for kind, key, size, _stream in events:
        if kind:
            live[key] = allocator.take(size)
        else:
            allocator.give(live.pop(key))
    return allocator.peak_reserved_bytes


def detailed(events: list[Event]) -> int:
    """With every line of ``torch.cuda.memory_stats`` counted."""
    allocator = Allocator(detail=True)
    live = {}
    for kind, key, size, stream in events:
        if kind:
            live[key] = allocator.malloc(size, stream)
        else:
            allocator.free(live.pop(key))
    return allocator.peak_reserved_bytes


def main() -> None:
    """Print the best rate of each."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=9)
    arguments = parser.parse_args()
    traces = {
        "inference, 2023": recorded("inference_2023"),
        "AdamW step": recorded("adamw_step"),
        "expandable, 3 GPUs": recorded("oom_expandable"),
        "made-up, fragmented": made_up(),
    }
    expandable = parse_alloc_conf("expandable_segments:True")
    ways = {
        "default": replay,
        "expandable": lambda events: replay(events, expandable),
        "all counters": detailed,
        "simple": simple,
    }
    print(f"{'events/s':22}{'events':>8}" + "".join(f"{way:>14}" for way in ways))
    for name, events in traces.items():
        rates = []
        for way in ways.values():
            best = float("inf")
            for _ in range(arguments.repeats):
                start = time.perf_counter()
                way(events)
                best = min(best, time.perf_counter() - start)
            rates.append(len(events) / best)
        print(f"{name:22}{len(events):8,}" + "".join(f"{rate:14,.0f}" for rate in rates))


if __name__ == "__main__":
    main()
