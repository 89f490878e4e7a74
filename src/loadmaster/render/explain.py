"""``--explain``: every entry of the ledger with its formula, its largest tensors and where it comes from."""

from __future__ import annotations

from loadmaster.jobs.job import Job
from loadmaster.memory import Entry
from loadmaster.memory.spread import reason
from loadmaster.plan import Plan
from loadmaster.records import Interval
from loadmaster.render.sizes import apart
from loadmaster.render.terminal import Look, plain, wrap

_TIERS = {
    "vram": "GPU memory",
    "ram": "RAM",
    "shm": "shared memory",
    "disk": "disk",
    "managed": "paged memory (card or RAM)",
}
_ORIGINS = {
    "counted": "counted from shapes",
    "modelled": "modelled from saved tensors",
    "table": "from a table of measurements",
    "assumed": "assumed",
}
LARGEST = 6


def explanation(plan: Plan, look: Look) -> list[str]:
    """Phase by phase, the largest entry first; a source is written out once. Then how the sums come about."""
    lines: list[str] = []
    said: set[str] = set()
    for tier, phase in dict.fromkeys((entry.tier, entry.phase) for entry in plan.ledger.entries):
        entries = plan.ledger.at(phase, tier)
        total = sum(entry.bytes.likely for entry in entries)
        lines.append(look.paint(f"{_TIERS[tier]}, {phase}: {apart(total)}", "bold"))
        for entry in entries:
            lines += _entry(entry, look, said, plan.job)
    return [*lines, *_sums(plan, look), *_usable(plan, look)]


_REPLAY = (
    "a replay of two steps (one pass for inference) through its rules, c10/cuda/CUDACachingAllocator.cpp; low: with "
    "expandable segments; high: twice as much unused, for lengths that change"
)


def _sums(plan: Plan, look: Look) -> list[str]:
    """How the three conventions follow from the entries."""
    peak, job = plan.ledger.peak, plan.job
    bounds = "bounds are the sums of theirs, the highest of any phase"
    if job.training and not job.outputs_held:
        bounds += "; high also covers a loop that keeps the model's outputs"
    unused = apart(peak.reserved.likely - peak.allocated.likely, 2)
    rest = apart(peak.process.likely - peak.reserved.likely, 2)
    reserved = f"allocated + {unused} that PyTorch's allocator holds and cannot use just then, by {_REPLAY}"
    if job.facts.engine is not None and not job.training:
        reserved = "as allocated: a server makes its pools at once"
    paged = " and paged optimizer states" if any(e.tier == "managed" for e in plan.ledger.entries) else ""
    card = " (below)" if plan.usable is not None else ""
    lines = [look.paint("How the peak comes about", "bold")]
    for name, size, text in (
        ("allocated", peak.allocated, f"the entries of {peak.phase}; {bounds}"),
        ("reserved", peak.reserved, reserved),
        ("process total", peak.process, f"reserved + {rest} of CUDA context{card}{paged}"),
    ):
        lines += wrap(f"{name}: {_span(size)}", look.width, first="  ", indent="    ")
        lines += wrap(f"= {text}", look.width, first="    ", indent="      ")
    return lines


def _usable(plan: Plan, look: Look) -> list[str]:
    """The terms of what the card leaves to a job."""
    usable = plan.usable
    if usable is None:
        return []
    leaves = f"What the card leaves: {_span(usable.usable_bytes)}"
    lines = [look.paint(line, "bold") for line in wrap(leaves, look.width, indent="  ", first="")]
    terms = (
        ("visible to a process", usable.visible_bytes),
        ("- context", usable.context_bytes),
        ("- held by others", usable.held_bytes),
    )
    for name, size in terms:
        lines += wrap(f"{name}: {_span(size)}", look.width, indent="    ", first="  ")
    for origin in usable.origins:
        found = wrap(f"source of {plain(origin)}", look.width, indent="      ", first="    ")
        lines += [look.paint(line, "dim") for line in found]
    return lines


def _entry(entry: Entry, look: Look, said: set[str], job: Job) -> list[str]:
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
    if entry.tier == "vram" and entry.bytes.low != entry.bytes.high and (why := reason(entry.component, job)):
        lines += wrap(f"bounds: {why}", look.width, indent="      ", first="    ")
    source = "as above" if entry.source in said else plain(entry.source)
    said.add(entry.source)
    found = wrap(f"source: {source}", look.width, indent="      ", first="    ")
    return lines + [look.paint(line, "dim") for line in found]


def _span(size: Interval) -> str:
    if size.low == size.high:
        return apart(size.likely, 2)
    return f"{apart(size.likely, 2)} ({apart(size.low, 2)} to {apart(size.high, 2)})"
