"""Rates of memories, links, drives and networks, from ``data/memory_tiers.csv``."""

from __future__ import annotations

from functools import cache

from loadmaster.hardware.catalogue import table
from loadmaster.records import Record


class Tier(Record, kw_only=True):
    """A kind of memory or link. Rates are of one ``unit`` (``x16 one direction``, ``1 channel``) in GB/s (1e9).

    ``practical`` is what measurements reach, with ``basis`` saying which; None where none was found. ``confidence`` is
    ours: high, medium or low.
    """

    name: str
    kind: str
    unit: str
    theoretical_gb_per_s: float | None = None
    practical_gb_per_s: float | None = None
    basis: str = ""
    latency_ns: float | None = None
    confidence: str
    notes: str = ""


@cache
def tiers() -> tuple[Tier, ...]:
    """Every row of the table, in its order."""
    return tuple(
        Tier(
            name=row["tier"],
            kind=row["kind"],
            unit=row["unit"],
            theoretical_gb_per_s=_number(row["bandwidth_gbs_theoretical"]),
            practical_gb_per_s=_number(row["bandwidth_gbs_practical"]),
            basis=row["practical_basis"],
            latency_ns=_number(row["latency_ns_typical"]),
            confidence=row["confidence"],
            notes=row["notes"],
        )
        for row in table("memory_tiers.csv")
    )


def pcie_gb_per_s(generation: int, lanes: int) -> float | None:
    """What a copy between host and card reaches in one direction: the measured rate of 16 lanes of that generation, or
    0.84 of the theoretical one where none was measured (generation 4: 26.5 of 31.5), in proportion to the lanes.

    None for a generation that the table doesn't have.
    """
    for tier in tiers():
        if tier.name == f"PCIe {generation}.0 x16" and tier.theoretical_gb_per_s is not None:
            rate = tier.practical_gb_per_s or 0.84 * tier.theoretical_gb_per_s
            return rate * lanes / 16
    return None


def _number(cell: str) -> float | None:
    return float(cell) if cell else None
