"""Words, colours and columns for a terminal. No library: a plan is printed in less time than one takes to load."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple, TextIO

WIDEST = 120
NARROWEST = 44
_LEAST_ROOM = 20  # columns; with less, the last cell of a row goes on lines of its own
_CODES = {
    "bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "blue": "34", "magenta": "35",
    "cyan": "36", "bright black": "90", "bright blue": "94", "bright magenta": "95", "bright cyan": "96",
}  # fmt: skip
GLUE = "\u00a0"
"""Holds a number and its unit on one line; printed as a space."""
_TOGETHER = re.compile(r"(?<=[\d)]) (?=(?:[KMGT]iB|GB|TB|MB|B|bytes|tokens|%|×|layers)\b|%|×)|(?<=×) (?=\d)")
_ASCII = str.maketrans(
    {
        "×": "x", "–": "-", "—": "-", "−": "-", "·": ".", "→": "->", "←": "<-", "≤": "<=", "≥": ">=", "…": "...", "’": "'",
        "█": "#", "▓": "=", "▒": "+", "░": "-", "▚": "%", "▞": "o", "▘": "'", "│": "|", "└": "^", "┘": "^", "─": "-",
        "✓": "+", "✗": "x", "≈": "~", GLUE: " ", "²": "2", "³": "3", "√": "sqrt", "±": "+-", "µ": "u", "Σ": "sum",
    }
)  # fmt: skip


class Look(NamedTuple):
    """How the output may look: ``width`` columns, colour codes or none, characters beyond ASCII or none."""

    width: int = 80
    colour: bool = False
    unicode: bool = True

    def paint(self, text: str, style: str = "") -> str:
        """Text in a style such as ``bold,red``, and in itself where there are no colours."""
        if not self.colour or not style or not text:
            return text
        codes = ";".join(_CODES[name] for name in style.split(","))
        return f"\x1b[{codes}m{text}\x1b[0m"

    def out(self, lines: Iterable[str]) -> str:
        """Lines as they are written: glue becomes a space, and what the terminal can't show its likeness."""
        text = "".join(f"{line.rstrip()}\n" for line in lines)
        if self.unicode:
            return text.replace(GLUE, " ")
        return likeness(text)


def look_of(stream: TextIO) -> Look:
    """What a stream can show: the terminal's width (COLUMNS wins; 80 when piped), colours on a terminal unless
    NO_COLOR is set, characters that its encoding has."""
    terminal = stream.isatty()
    columns = os.environ.get("COLUMNS", "")
    if columns.isascii() and columns.isdigit() and int(columns):
        width = int(columns[:6])
    elif terminal:
        try:
            width = os.get_terminal_size(stream.fileno()).columns or 80
        except (OSError, ValueError):
            width = 80
    else:
        width = 80
    dumb = os.environ.get("TERM") == "dumb"
    colour = terminal and not dumb and not os.environ.get("NO_COLOR")
    encoding = (stream.encoding or "").lower().replace("-", "").replace("_", "")
    return Look(max(NARROWEST, min(width, WIDEST)), colour, encoding.startswith("utf"))


def likeness(text: str) -> str:
    """Text in ASCII: what it lacks is written as something that looks or means alike, or as a question mark."""
    return text.translate(_ASCII).encode("ascii", "replace").decode("ascii")


def plain(text: str) -> str:
    """Text from outside (a name in a file) without characters that a terminal would obey."""
    return "".join(char if char.isprintable() else "?" for char in text)


def glued(text: str) -> str:
    """Text in which a number and its unit are held together by GLUE."""
    return _TOGETHER.sub(GLUE, text)


def cells(text: str) -> int:
    """Columns that a text takes: East Asian wide characters take two, combining ones none."""
    if text.isascii():
        return len(text)
    import unicodedata

    return sum(
        0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in "WF" else 1
        for char in text
    )


def wrap(text: str, width: int, *, indent: str = "", first: str | None = None) -> list[str]:
    """Lines of at most ``width`` columns, broken at spaces, but never between a number and its unit; longer words are
    cut."""
    lines: list[str] = []
    line = indent if first is None else first
    empty = True
    for word in glued(text).split(" "):
        while True:
            room = width - cells(line) - (0 if empty else 1)
            if cells(word) <= room:
                line += word if empty else f" {word}"
                empty = False
                break
            if not empty:
                lines.append(line)
                line, empty = indent, True
                continue
            part, word = _cut(word, max(room, 1))
            lines.append(line + part)
            line = indent
    if not empty or not lines:
        lines.append(line)
    return lines


def _cut(word: str, room: int) -> tuple[str, str]:
    """The start of a word that fits, at a slash, comma or dash if there is one, and the rest."""
    end = room
    while cells(word[:end]) > room:
        end -= 1
    for at in range(end, end // 2, -1):
        if word[at - 1] in "/,-_.|":
            return word[:at], word[at:]
    return word[: max(end, 1)], word[max(end, 1) :]


def clip(text: str, width: int) -> str:
    """A text cut to ``width`` columns, with an ellipsis where something is missing."""
    if cells(text) <= width:
        return text
    end = min(len(text), width)
    while cells(text[:end]) > width - 1:
        end -= 1
    return text[:end] + "…"


Cell = tuple[str, str]
"""A text and its style."""


def table(
    rows: Sequence[Sequence[Cell]], look: Look, *, right: Sequence[int] = (), indent: str = "  ", gap: int = 2
) -> list[str]:
    """Rows in columns as wide as their widest cell; those in ``right`` are flush right. The last column is wrapped
    into what is left of the width."""
    if not rows:
        return []
    count = max(len(row) for row in rows)
    widths = [max((cells(row[i][0]) for row in rows if i < len(row) - 1), default=0) for i in range(count)]
    lines = []
    narrow = look.width - cells(indent) - sum(widths[:-1]) - gap * (count - 1) < _LEAST_ROOM
    for row in rows:
        line, used = indent, cells(indent)
        for i, (text, style) in enumerate(row[:-1]):
            pad = " " * (widths[i] - cells(text))
            painted = look.paint(text, style)
            line += (pad + painted if i in right else painted + pad) + " " * gap
            used += widths[i] + gap
        text, style = row[-1]
        if narrow and cells(text) > look.width - used:
            lines.append(line)
            lines += [look.paint(part, style) for part in wrap(text, look.width, indent="    ", first="    ")]
            continue
        parts = wrap(text, max(look.width - used, 8))
        lines.append(line + look.paint(parts[0], style))
        lines += [" " * used + look.paint(part, style) for part in parts[1:]]
    return lines
