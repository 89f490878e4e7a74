"""How a verb writes: text in characters that standard output has, JSON in ASCII where it must be, tables without padding."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from loadmaster.render.terminal import likeness, look_of

if TYPE_CHECKING:
    from rich.console import RenderableType

PIPED_WIDTH = 200
"""Columns of a table for a file or the next program, where nothing should be cut or wrapped."""


def put(text: str) -> None:
    """Write text; what the encoding of standard output lacks is written as its likeness (``×`` as ``x``)."""
    sys.stdout.write(text if look_of(sys.stdout).unicode else likeness(text))


def put_json(text: str) -> None:
    """Write JSON and a line's end; beyond ASCII as ``\\u00d7`` where the encoding isn't UTF-8."""
    if not look_of(sys.stdout).unicode and not text.isascii():
        import json

        text = "".join(char if char.isascii() else json.dumps(char)[1:-1] for char in text)
    sys.stdout.write(f"{text}\n")


def columns(*, whole: bool = False) -> int:
    """Columns of a table on standard output; ``whole``: many where it is no terminal and nobody said."""
    from rich.console import Console

    console = Console()
    return PIPED_WIDTH if whole and not console.is_terminal and "COLUMNS" not in os.environ else console.width


def put_parts(*parts: RenderableType, width: int) -> None:
    """Write rich's tables and texts, for a pipe without the blanks that pad their lines."""
    from rich.console import Console

    console = Console(highlight=False, width=width)
    with console.capture() as captured:
        for part in parts:
            console.print(part)
    text = captured.get()
    if not console.is_terminal:
        text = "".join(f"{line.rstrip()}\n" for line in text.splitlines())
    put(text)
