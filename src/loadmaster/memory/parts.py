"""What components hand to the timeline: a piece of memory with its formula and source, and a moment made of pieces."""

from __future__ import annotations

from collections.abc import Callable, Iterable
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
        return total(self.parts)


def counted(component: str, size: Size, words: str, source: str) -> Part:
    """A part whose formula is words and a size."""
    return Part(component, size, lambda: f"{words} = {commas(size)} B", source)


def work(size: Size, census: Census) -> Part:
    """A layer (or the head) at its highest point; the ledger splits it by what its tensors are."""
    source = "operators of the layer in the order of transformers' modelling code (derivatives.yaml)"
    words = f"one layer at work: {commas(size)} B"
    return Part("temporaries", size, lambda: words, source, origin="modelled", census=census)


def cached_casts(size: Size) -> Part:
    """Weights that autocast has cast; it keeps them until its block ends."""
    words = "weights that autocast has cast and cached until forward ends"
    return counted("weight copies", size, words, "autocast_mode.cpp cached_cast")


def total(parts: Iterable[Part]) -> Size:
    """Bytes of several parts together."""
    found: Size = 0
    for part in parts:
        found = found + part.size_bytes
    return found


def commas(size: Size) -> str:
    """A number for a formula: with commas if it is one number."""
    return f"{size:,}" if isinstance(size, int) else "array"
