"""One unit for a whole plan, so that its columns can be compared: GiB, or MiB and TiB where all is small or huge."""

from __future__ import annotations

from typing import NamedTuple

from loadmaster.units import GIB, MIB, TIB, format_bytes

_SMALL_BYTES, _LARGE_BYTES = 2 * GIB, 1000 * TIB
"""Memory is compared in GiB: less is MiB where all of a plan is that small, more is TiB only beyond any machine."""


class Scale(NamedTuple):
    """A unit and how many digits are printed behind the point."""

    unit: str
    factor: int
    digits: int

    def number(self, size_bytes: int) -> str:
        """``1,234.5``; what is there but would print as 0.0 is ``<0.1``."""
        text = f"{size_bytes / self.factor:,.{self.digits}f}"
        least = f"{0:.{self.digits}f}"
        if text.lstrip("-") == least:
            return f"<{10**-self.digits:.{self.digits}f}" if size_bytes > 0 else least
        return text

    def size(self, size_bytes: int) -> str:
        """``1,234.5 GiB``."""
        return f"{self.number(size_bytes)} {self.unit}"


def scale_of(largest_bytes: int) -> Scale:
    """The unit in which a plan whose largest size is this one is printed."""
    if largest_bytes >= _LARGE_BYTES:
        return Scale("TiB", TIB, 2)
    if largest_bytes < _SMALL_BYTES:
        return Scale("MiB", MIB, 0)
    return Scale("GiB", GIB, 1 if largest_bytes < 10 * TIB else 0)


def apart(size_bytes: int, digits: int = 1) -> str:
    """A size in a unit of its own, so that a small one isn't 0.0 GiB: ``1,234.5 GiB``, ``41.0 MiB``; large ones are in
    GiB as the columns are."""
    if GIB <= abs(size_bytes) < _LARGE_BYTES:
        return f"{size_bytes / GIB:,.{digits}f} GiB"
    number, _, unit = format_bytes(size_bytes, digits).partition(" ")
    return f"{float(number):,.{digits}f} {unit}" if len(number) > 4 + digits else f"{number} {unit}"


def share(part: int, whole: int) -> str:
    """A part in percent: ``<1 %`` for what is there but little."""
    if whole <= 0:
        return ""
    percent = 100 * part / whole
    return "<1 %" if 0 < percent < 0.5 else f"{percent:.0f} %"
