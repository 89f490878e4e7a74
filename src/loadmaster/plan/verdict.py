"""What fits: the peak against what the device leaves to a job.

PyTorch's allocator gives cached blocks back before it reports out of memory, so what decides is allocated bytes, with room
for what can't be reused between them. Reserved bytes themselves rise and fall with the sizes of blocks from one batch size
to the next (a replay shows it, and so do real runs), so they are shown but don't decide: a smaller job never gets a worse
verdict.
"""

from __future__ import annotations

from loadmaster.memory import Ledger
from loadmaster.plan.plan import Verdict
from loadmaster.records import Interval

UNUSED_PERCENT = 5
"""Reserved above allocated bytes in a steady run: 2.4, 3.2, 6.0 and 12.3 % in optimum-benchmark's four forward runs of
Llama-2, 5.4 to 7 % in agilerl-arena's table; the lower half of these, because the rest can be given back."""


def verdict(allocated: Interval, usable: Interval) -> Verdict:
    """fits: the high end of allocated bytes is within ``usable``, and the likely one leaves UNUSED_PERCENT; does_not_fit:
    the likely one is not; tight: between."""
    if allocated.likely > usable.likely:
        return "does_not_fit"
    roomy = allocated.likely * (100 + UNUSED_PERCENT) <= usable.likely * 100
    return "fits" if roomy and allocated.high <= usable.likely else "tight"


def margin_bytes(ledger: Ledger, usable: Interval) -> int:
    """Usable minus likely allocated bytes of the peak (negative: so much is missing)."""
    return usable.likely - ledger.peak.allocated.likely


def ram_verdict(ledger: Ledger, available_bytes: int | None) -> Verdict | None:
    """The same for host memory; None where it isn't known."""
    if available_bytes is None:
        return None
    if ledger.ram.low > available_bytes:
        return "does_not_fit"
    return "fits" if ledger.ram.likely <= available_bytes else "tight"
