"""Reading small kernel files that may be missing, unreadable or not what they should be."""

from __future__ import annotations

from pathlib import Path

from loadmaster.units import KIB, MIB

_MOST = MIB
"""Kernel files are small; whatever pretends to be one is read no further than 1 MiB."""


def text(path: Path) -> str | None:
    """The stripped text of a file, or None when it can't be read."""
    try:
        with path.open("rb") as file:
            return file.read(_MOST).decode("utf-8", "replace").strip()
    except OSError:
        return None


def number(path: Path) -> int | None:
    """The whole number in a file, or None when there is none."""
    found = text(path)
    return int(found) if found is not None and found.isascii() and found.isdigit() else None


def fields(path: Path) -> dict[str, int]:
    """``name number`` or ``Name:  number kB`` lines as a dict; kB lines give bytes, other lines are passed by."""
    found: dict[str, int] = {}
    for line in (text(path) or "").splitlines():
        words = line.replace(":", " ").split()
        if len(words) >= 2 and words[1].isascii() and words[1].isdigit():
            found[words[0]] = int(words[1]) * (KIB if words[2:] == ["kB"] else 1)
    return found
