"""From a trace to a DryRun: the peak and who holds it, the timeline, the ledger. No torch here."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

from loadmaster.dryrun.events import CATEGORIES, Block, Trace
from loadmaster.dryrun.result import Held, Moment, PhasePeak, Share
from loadmaster.memory.ledger import Entry, Ledger, Peak, PhaseTotal
from loadmaster.records import Interval

POINTS = 480
"""Stretches of a timeline."""
TENSORS = 40
"""Groups of blocks at the peak that are named."""
COMPONENTS = {
    "parameters": "weights", "buffers": "buffers", "gradients": "gradients", "optimizer states": "optimizer states",
    "gathered": "gathered parameters", "inputs": "inputs", "kv cache": "kv cache", "activations": "activations",
    "temporaries": "temporaries", "workspace": "workspace",
}  # fmt: skip
"""What the plan's ledger calls them."""
_NUMBER = re.compile(r"(?<![^.])\d+(?![^.])")
SOURCE = "dry run: blocks alive at the phase's highest moment"


def peak_index(trace: Trace) -> int:
    """Where allocated bytes are highest, first of equals; 0 of an empty trace."""
    return max(range(len(trace.allocated_bytes)), key=lambda at: trace.allocated_bytes[at], default=0)


def categories(trace: Trace, alive: Iterable[Block]) -> tuple[Share, ...]:
    """Blocks by what they are, in the order of CATEGORIES."""
    sums: Counter[str] = Counter()
    for block in alive:
        sums[trace.kind(block)] += block.size_bytes
    return tuple(Share(name=name, size_bytes=sums[name]) for name in CATEGORIES if sums[name])


def modules(alive: Iterable[Block]) -> tuple[Share, ...]:
    """Blocks by the module they belong to, largest first."""
    sums: Counter[str] = Counter()
    for block in alive:
        sums[block.module] += block.size_bytes
    return tuple(Share(name=name, size_bytes=size) for name, size in sums.most_common())


def tensors(trace: Trace, alive: Iterable[Block]) -> tuple[Held, ...]:
    """The largest groups of equal blocks; layers that are alike are one: ``model.layers.*.mlp``."""
    sizes: Counter[tuple[str, str, str, str, str, int]] = Counter()
    counts: Counter[tuple[str, str, str, str, str, int]] = Counter()
    for block in alive:
        key = (
            trace.kind(block),
            _NUMBER.sub("*", block.module),
            block.op,
            block.shape,
            block.phase,
            block.step,
        )
        sizes[key] += block.size_bytes
        counts[key] += 1
    return tuple(
        Held(
            category=key[0], module=key[1], op=key[2], shape=key[3], phase=key[4], step=key[5], size_bytes=size,
            count=counts[key],
        )
        for key, size in sizes.most_common(TENSORS)
    )  # fmt: skip


def phase_peaks(trace: Trace) -> tuple[PhasePeak, ...]:
    """The highest moment of each phase of each step, in the order of the program."""
    found: dict[tuple[int, str], tuple[int, int]] = {}
    for mark, first, beyond in stretches(trace):
        if mark[1] == "forward" and not any(
            each is not None and each >= 0 for each in trace.events[first:beyond]
        ):
            continue  # between phases something is given back, but nothing runs
        allocated = max(trace.allocated_bytes[first:beyond], default=0)
        reserved = max(trace.reserved_bytes[first:beyond], default=0)
        before = found.get(mark, (0, 0))
        found[mark] = max(before[0], allocated), max(before[1], reserved)
    return tuple(
        PhasePeak(step=step, phase=phase, allocated_bytes=size[0], reserved_bytes=size[1])
        for (step, phase), size in found.items()
        if size[0]
    )


def stretches(trace: Trace) -> Iterable[tuple[tuple[int, str], int, int]]:
    """Step and phase with the events that belong to them, from the first to beyond the last. The level that a phase begins at
    is its own too."""
    marks = [(0, "load", 0), *((m.at, m.phase, m.step) for m in trace.marks)]
    for (first, phase, step), (beyond, _, _) in zip(
        marks, [*marks[1:], (len(trace.events), "", 0)], strict=True
    ):
        if beyond > first:
            yield (step, phase), first, beyond


def timeline(trace: Trace) -> tuple[Moment, ...]:
    """The whole run in at most POINTS stretches, each at its highest moment."""
    total = len(trace.events)
    if not total:
        return ()
    width = -(-total // POINTS)
    order = {name: place for place, name in enumerate(CATEGORIES)}
    sums = [0] * len(CATEGORIES)
    kinds = [order[trace.kind(block)] for block in trace.blocks]
    marks = iter([*trace.marks, None])
    mark, place = next(marks), (0, "load")
    found: list[Moment] = []
    best: Moment | None = None
    for at, event in enumerate(trace.events):
        while mark is not None and mark.at <= at:
            place, mark = (mark.step, mark.phase), next(marks)
        if event is not None:
            block = trace.blocks[event if event >= 0 else ~event]
            sums[kinds[block.number]] += block.size_bytes if event >= 0 else -block.size_bytes
        if best is None or trace.allocated_bytes[at] > best.allocated_bytes:
            best = Moment(
                event=at, step=place[0], phase=place[1], allocated_bytes=trace.allocated_bytes[at],
                reserved_bytes=trace.reserved_bytes[at], by_category=tuple(sums),
            )  # fmt: skip
        if at % width == width - 1 or at == total - 1:
            found.append(best)
            best = None
    return tuple(found)


def ledger(trace: Trace, context_bytes: Interval | None = None, warnings: tuple[str, ...] = ()) -> Ledger:
    """The same record as the plan's: what each phase holds at its highest moment, over all steps."""
    places: dict[str, int] = {}
    for (_, phase), first, beyond in stretches(trace):
        at = max(range(first, beyond), key=lambda i: trace.allocated_bytes[i])
        if phase not in places or trace.allocated_bytes[at] > trace.allocated_bytes[places[phase]]:
            places[phase] = at
    entries: list[Entry] = []
    for phase, at in places.items():
        alive = list(trace.alive(at))
        for share in categories(trace, alive):
            entries.append(_entry(trace, phase, share, alive))
    totals = tuple(
        PhaseTotal(
            phase=phase, moment=_moment(trace, at), allocated=Interval.exact(trace.allocated_bytes[at])
        )
        for phase, at in places.items()
    )
    top = max(totals, key=lambda t: t.allocated.likely, default=None)
    reserved = Interval.exact(max(trace.reserved_bytes, default=0))
    return Ledger(
        entries=tuple(entries),
        phases=totals,
        peak=Peak(
            phase=top.phase if top else "load",
            moment=top.moment if top else "",
            allocated=top.allocated if top else Interval.exact(0),
            reserved=reserved,
            process=reserved + (context_bytes or Interval.exact(0)),
        ),
        ram=Interval.exact(0),
        ram_phase="",
        disk=Interval.exact(0),
        warnings=warnings,
    )


def _moment(trace: Trace, at: int) -> str:
    event = trace.events[at]
    block = trace.blocks[event] if event is not None and event >= 0 else None
    return f"{block.op} in {block.module or 'the program'}" if block else ""


def _entry(trace: Trace, phase: str, share: Share, alive: list[Block]) -> Entry:
    held = [block for block in alive if trace.kind(block) == share.name]
    sizes: Counter[str] = Counter()
    for block in held:
        sizes[f"{block.module or block.op} {block.shape}"] += block.size_bytes
    return Entry(
        component=COMPONENTS[share.name],
        tier="vram",
        phase=phase,
        bytes=Interval.exact(share.size_bytes),
        formula=f"{len(held):,} blocks",
        source=SOURCE,
        origin="counted",
        tensors=tuple(sizes.most_common(12)),
    )
