"""From the parts of a moment to ledger entries: by component, with interval, formula, source and largest tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from loadmaster.jobs.job import Job
from loadmaster.memory.ledger import Entry, Tier
from loadmaster.memory.parts import Moment, Part
from loadmaster.memory.spread import spread
from loadmaster.records import Interval, replace

ORIGINS = ("counted", "modelled", "table", "assumed")
NAMES = {"autocast copies": "weight copies", "dequantised weights": "temporaries"}
"""Tags of the tape that are part of a component of another name."""
LARGEST = 12
"""Tensors that an entry names."""


def entries(moment: Moment, job: Job) -> list[Entry]:
    """Pieces of one moment by component, largest first; a layer at work is split by what its tensors are."""
    grouped: dict[str, list[Part]] = {}
    for part in moment.parts:
        for piece in _split(part):
            if int(piece.size_bytes):
                grouped.setdefault(piece.component, []).append(piece)
    found = [_merged(component, parts, moment.phase, job) for component, parts in grouped.items()]
    return sorted(found, key=lambda entry: (-entry.bytes.likely, entry.component))


def entry(part: Part, tier: Tier, phase: str) -> Entry:
    """One part as an entry, with its own bounds."""
    size = int(part.size_bytes)
    low = size if part.low_bytes is None else int(part.low_bytes)
    high = size if part.high_bytes is None else int(part.high_bytes)
    return Entry(
        component=part.component,
        tier=tier,
        phase=phase,
        bytes=Interval(low=min(low, size), likely=size, high=max(high, size)),
        formula=part.formula(),
        source=part.source,
        origin=part.origin,  # type: ignore[arg-type]
    )


def summed(intervals: Iterable[Interval]) -> Interval:
    """The sum of intervals, bound by bound."""
    total = Interval.exact(0)
    for interval in intervals:
        total = total + interval
    return total


def _split(part: Part) -> list[Part]:
    if part.component != "temporaries" or part.census is None:
        return [part]
    by_component: dict[str, dict[tuple[str, str], int]] = {}
    for (tag, name), size in part.census.items():
        by_component.setdefault(NAMES.get(tag, tag), {})[tag, name] = size
    return [
        Part(component, sum(pieces.values()), _words(pieces), part.source, part.origin, census=pieces)
        for component, pieces in by_component.items()
    ]


def _words(pieces: dict[tuple[str, str], int]) -> Callable[[], str]:
    top = sorted(pieces.items(), key=_largest)[:4]
    rest = sum(pieces.values()) - sum(size for _, size in top)
    words = " + ".join(f"{name} {size:,} B" for (_, name), size in top)
    return lambda: f"the layer at work: {words}" + (f" + others {rest:,} B" if rest else "")


def _largest(item: tuple[object, int]) -> tuple[int, str]:
    """Largest first; equal sizes by name, so that the order is the same in every run."""
    return -item[1], str(item[0])


def _merged(component: str, parts: list[Part], phase: str, job: Job) -> Entry:
    tensors: dict[str, int] = {}
    for part in parts:
        for (_, name), size in (part.census or {}).items():
            tensors[name] = tensors.get(name, 0) + size
    return replace(
        entry(parts[0], "vram", phase),
        component=component,
        bytes=summed(spread(part, job) for part in parts),
        formula=" + ".join(part.formula() for part in parts),
        tensors=tuple(sorted(tensors.items(), key=_largest)[:LARGEST]),
        origin=max((part.origin for part in parts), key=ORIGINS.index),
    )
