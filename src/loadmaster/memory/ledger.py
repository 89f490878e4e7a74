"""Ledger: what lives where and when, with formula and source for every entry.

The entries of a phase are those alive at that phase's highest moment, so the vram entries of the peak phase sum to the
peak's allocated bytes.
"""

from __future__ import annotations

from typing import Literal

from loadmaster.records import Interval, Record

Tier = Literal["vram", "ram", "shm", "disk", "managed"]
"""``managed``: memory that the driver moves between card and host (cudaMallocManaged)."""


class Entry(Record, kw_only=True):
    """One component in one tier at one phase's highest moment. ``origin``: counted from shapes, modelled from saved
    tensors, taken from a table of measurements, or assumed. ``tensors`` names the largest pieces, in bytes."""

    component: str
    tier: Tier
    phase: str
    bytes: Interval
    formula: str
    source: str
    origin: Literal["counted", "modelled", "table", "assumed"] = "counted"
    tensors: tuple[tuple[str, int], ...] = ()


class PhaseTotal(Record, kw_only=True):
    """Allocated bytes at the highest moment of a phase, and what that moment is."""

    phase: str
    moment: str
    allocated: Interval


class Peak(Record, kw_only=True):
    """The worst phase in the three conventions: ``allocated`` (torch.cuda.max_memory_allocated), ``reserved``
    (max_memory_reserved) and ``process`` (what nvidia-smi shows: reserved and the CUDA context)."""

    phase: str
    moment: str
    allocated: Interval
    reserved: Interval
    process: Interval


class Assumption(Record, kw_only=True):
    """Something that moves the answer and was not said: what was taken, and how to say otherwise."""

    field: str
    value: str
    text: str


class Ledger(Record, kw_only=True):
    """Everything predicted for one job. ``ram`` is the highest of the host phases; ``disk`` what a save writes."""

    entries: tuple[Entry, ...]
    phases: tuple[PhaseTotal, ...]
    peak: Peak
    ram: Interval
    ram_phase: str
    disk: Interval
    assumptions: tuple[Assumption, ...] = ()
    warnings: tuple[str, ...] = ()
    lower_bound: bool = False
    """The network that does the work isn't run here (UNets yet): the peak is what the weights take, more comes on top."""

    def at(self, phase: str, tier: Tier = "vram") -> tuple[Entry, ...]:
        """The entries of one phase in one tier, largest first."""
        found = [e for e in self.entries if e.phase == phase and e.tier == tier]
        return tuple(sorted(found, key=lambda e: -e.bytes.likely))
