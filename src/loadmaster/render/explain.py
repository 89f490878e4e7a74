"""``--explain``: every entry of the ledger with its formula, its largest tensors and where it comes from."""

from __future__ import annotations

from loadmaster.memory import Entry
from loadmaster.plan import Plan
from loadmaster.records import Interval
from loadmaster.render.sizes import apart
from loadmaster.render.terminal import Look, plain, wrap

_TIERS = {"vram": "GPU memory", "ram": "RAM", "shm": "shared memory", "disk": "disk", "managed": "paged memory (card or RAM)"}
_ORIGINS = {
    "counted": "counted from shapes",
    "modelled": "modelled from saved tensors",
    "table": "from a table of measurements",
    "assumed": "assumed",
}
LARGEST = 6


def explanation(plan: Plan, look: Look) -> list[str]:
    """Phase by phase, the largest entry first; a source is written out once."""
    lines: list[str] = []
    said: set[str] = set()
    for tier, phase in dict.fromkeys((entry.tier, entry.phase) for entry in plan.ledger.entries):
        entries = plan.ledger.at(phase, tier)
        total = sum(entry.bytes.likely for entry in entries)
        lines.append(look.paint(f"{_TIERS[tier]}, {phase}: {apart(total)}", "bold"))
        for entry in entries:
            lines += _entry(entry, look, said)
    if plan.usable is not None:
        leaves = f"What the card leaves: {_span(plan.usable.usable_bytes)}"
        lines += [look.paint(line, "bold") for line in wrap(leaves, look.width, indent="  ")]
        terms = (
            ("visible to a process", plan.usable.visible_bytes),
            ("- context", plan.usable.context_bytes),
            ("- held by others", plan.usable.held_bytes),
        )
        for name, size in terms:
            lines += wrap(f"{name}: {_span(size)}", look.width, indent="    ", first="  ")
        for origin in plan.usable.origins:
            lines += [
                look.paint(line, "dim")
                for line in wrap(plain(origin), look.width, indent="    ", first="    ")
            ]
    return lines


def _entry(entry: Entry, look: Look, said: set[str]) -> list[str]:
    lines = wrap(
        f"{entry.component}: {_span(entry.bytes)}, {_ORIGINS[entry.origin]}",
        look.width,
        indent="  ",
        first="  ",
    )
    lines += wrap(f"= {plain(entry.formula)}", look.width, indent="      ", first="    ")
    if len(entry.tensors) > 1:
        largest = ", ".join(f"{name} {apart(size)}" for name, size in entry.tensors[:LARGEST])
        rest = f" and {len(entry.tensors) - LARGEST} more" if len(entry.tensors) > LARGEST else ""
        lines += wrap(f"largest: {plain(largest)}{rest}", look.width, indent="      ", first="    ")
    if entry.source not in said:
        said.add(entry.source)
        source = wrap(f"source: {plain(entry.source)}", look.width, indent="      ", first="    ")
        lines += [look.paint(line, "dim") for line in source]
    return lines


def _span(size: Interval) -> str:
    if size.low == size.high:
        return apart(size.likely, 2)
    return f"{apart(size.likely, 2)} ({apart(size.low, 2)} to {apart(size.high, 2)})"
