"""What components hand to the timeline: a piece of memory with its formula and source, and a moment made of pieces."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from loadmaster.arrays import Size

Census = dict[tuple[str, str], int]


@dataclass(slots=True)
class Part:
    """``size_bytes`` of one component. ``low`` and ``high`` where it isn't certain; ``formula`` is only called for jobs
    that somebody looks at; ``census`` splits a layer's peak by (component, tensor)."""

    component: str
    size_bytes: Size
    formula: Callable[[], str]
    source: str
    origin: str = "counted"
    low_bytes: Size | None = None
    high_bytes: Size | None = None
    census: Census | None = None


@dataclass(slots=True)
class Moment:
    """One instant of a phase and everything that lives at it."""

    phase: str
    name: str
    parts: list[Part] = field(default_factory=list)

    @property
    def total_bytes(self) -> Size:
        """Allocated bytes at this instant."""
        total: Size = 0
        for part in self.parts:
            total = total + part.size_bytes
        return total


def commas(size: Size) -> str:
    """A number for a formula: with commas if it is one number."""
    return f"{size:,}" if isinstance(size, int) else "array"
