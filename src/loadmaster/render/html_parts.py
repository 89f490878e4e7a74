"""Pieces of HTML that suit light and dark pages and narrow windows: text, boxes, tables, titles."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from loadmaster.render.terminal import glued, plain

STYLES = {"bold,green": "#2e9e4f", "bold,yellow": "#d79a00", "bold,red": "#d6453d", "bold": "#888888"}
"""Colours of a verdict's styles."""
_CELL = "padding:.15em .9em .15em 0;text-align:left;vertical-align:top;background:none;border:none"
_NUMBER = f"{_CELL.replace('left', 'right')};white-space:nowrap;font-variant-numeric:tabular-nums"
_FAINT = "opacity:.7"


def text(words: str) -> str:
    """Text as HTML: from outside or not, and no line breaks between a number and its unit."""
    return escape(glued(plain(words)))


def box(colour: str, content: str) -> str:
    """Something with a coloured edge; the content is HTML."""
    return f'<div style="border-left:.3em solid {colour};padding:.2em .7em;margin:.5em 0">{content}</div>'


def faint(content: str) -> str:
    """HTML that stands back."""
    return f'<span style="{_FAINT}">{content}</span>'


def table(rows: Iterable[Sequence[str]], numbers: tuple[int, ...] = ()) -> str:
    """Cells are HTML already. A table that is too wide for the window scrolls by itself."""
    body = "".join(
        '<tr style="background:none">'
        + "".join(
            f'<td style="{_NUMBER if i in numbers else _CELL}">{cell}</td>' for i, cell in enumerate(row)
        )
        + "</tr>"
        for row in rows
    )
    style = "border-collapse:collapse;margin:0;color:inherit;font-size:inherit"
    return f'<div style="overflow-x:auto"><table style="{style}">{body}</table></div>'


def title(words: str) -> str:
    """A section's title."""
    return f'<div style="margin:.9em 0 .2em 0"><strong>{text(words)}</strong></div>'
