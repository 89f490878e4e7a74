"""What fits: the peak in its conventions against what the device leaves to a job.

PyTorch's allocator gives cached blocks back before it reports out of memory, so a job fails only if its allocated bytes,
with what stays unusable between them, exceed the device; it runs without trouble if its reserved bytes fit too.
"""

from __future__ import annotations

from loadmaster.jobs.job import Job
from loadmaster.memory import Ledger
from loadmaster.memory.allocator import OutOfMemoryError
from loadmaster.memory.reserve import replayed
from loadmaster.models.spec import ModelSpec
from loadmaster.plan.plan import Verdict
from loadmaster.records import Interval


def verdict(
    spec: ModelSpec, job: Job, ledger: Ledger, usable: Interval, compute_capability: str | None = None
) -> Verdict:
    """fits: likely reserved and highest allocated bytes are within ``usable``; does_not_fit: likely allocated bytes are
    not, or the allocator runs out of room in a replay at that capacity; tight: between."""
    peak = ledger.peak
    if peak.allocated.likely > usable.likely:
        return "does_not_fit"
    if peak.reserved.likely <= usable.likely and peak.allocated.high <= usable.likely:
        return "fits"
    if peak.reserved.likely <= usable.likely:
        return "tight"
    try:
        replayed(spec, job, compute_capability, capacity_bytes=usable.likely)
    except OutOfMemoryError:
        return "does_not_fit"
    return "tight"


def margin_bytes(ledger: Ledger, usable: Interval, result: Verdict) -> int:
    """Usable minus likely peak: allocated where that doesn't fit, reserved otherwise."""
    peak = ledger.peak
    over = result == "does_not_fit" and peak.allocated.likely > usable.likely
    return usable.likely - (peak.allocated.likely if over else peak.reserved.likely)


def ram_verdict(ledger: Ledger, available_bytes: int | None) -> Verdict | None:
    """The same for host memory; None where it isn't known."""
    if available_bytes is None:
        return None
    if ledger.ram.low > available_bytes:
        return "does_not_fit"
    return "fits" if ledger.ram.likely <= available_bytes else "tight"
