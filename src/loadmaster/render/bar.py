"""A bar of a ledger against a limit, and its legend."""

from __future__ import annotations

from typing import NamedTuple

from loadmaster.plan import Plan
from loadmaster.render.sizes import Scale, share
from loadmaster.render.terminal import Cell, Look, clip, table

_COLOURS = {
    "weights": "blue",
    "activations": "yellow",
    "logits": "magenta",
    "optimizer states": "cyan",
    "gradients": "green",
    "kv cache": "bright cyan",
    "temporaries": "bright magenta",
    "weight copies": "bright blue",
    "adapters": "bright blue",
    "parameters": "blue",
    "gathered": "bright blue",
}
_OTHER = "bright black"
_MARKS = "█▓▒░▚▞▘"
_FEW_MARKS = "#=+-%o'"
CACHED = "cached by PyTorch, not in use"
POOL = "rest of the KV pool"
LONGEST_NAME = 54
"""Columns of a legend's name: as many small components are named together as fit, more are counted."""
SMALL = 0.005
"""Below this share of the whole a component has no line of its own in the legend."""


class Piece(NamedTuple):
    """A component with its bytes; ``kept``: not in use, but not free either."""

    name: str
    size_bytes: int
    kept: bool = False


def pieces(plan: Plan) -> list[Piece]:
    """What is in GPU memory at the peak's moment: the ledger's components, and what PyTorch keeps cached beside them."""
    peak = plan.ledger.peak
    found = [Piece(entry.component, entry.bytes.likely) for entry in plan.ledger.at(peak.phase)]
    kept = peak.reserved.likely - peak.allocated.likely
    rest = POOL if plan.budget is not None and plan.budget.engine == "vllm" else CACHED
    return [*found, Piece(rest, kept, kept=True)] if kept > 0 else found


def bar(pieces: list[Piece], limit_bytes: int | None, look: Look, scale: Scale) -> list[str]:
    """The pieces to scale, a mark where the limit is, and a legend with sizes and shares."""
    total = sum(piece.size_bytes for piece in pieces)
    if total <= 0:
        return []
    room = min(look.width - 26, LONGEST_NAME)
    shown = grouped(pieces, total, room)
    width = look.width - 4
    whole = max(total, limit_bytes or 0)
    filled = round(width * total / whole)
    lengths = _lengths([piece.size_bytes for piece in shown], filled)
    limit = None if limit_bytes is None else max(min(round(width * limit_bytes / whole), width - 1), 0)
    cells = [
        (mark, style)
        for (mark, style), n in zip(_swatches(shown, look), lengths, strict=True)
        for _ in range(n)
    ]
    cells += [(" ", "")] * (width - len(cells))
    if limit is not None:
        cells[limit] = ("│", "bold")
    lines = ["  " + _run(cells, look)]
    if limit is not None and limit_bytes is not None:
        text = f"{scale.size(limit_bytes)} usable"
        lines.append(
            "  "
            + (f"{' ' * limit}└ {text}" if limit + len(text) + 2 <= width else f"{text} ┘".rjust(limit + 1))
        )
    rows: list[list[Cell]] = []
    for piece, (mark, style) in zip(shown, _swatches(shown, look), strict=True):
        rows.append(
            [
                (mark, style),
                (clip(piece.name, room), "dim" if piece.kept else ""),
                (scale.number(piece.size_bytes), ""),
                (share(piece.size_bytes, total), "dim"),
            ]
        )
    return [*lines, *table(rows, look, right=(2, 3))]


def grouped(pieces: list[Piece], total: int, room: int = LONGEST_NAME) -> list[Piece]:
    """Largest first; what is too small to be seen together as one."""
    seen = [piece for piece in pieces if piece.size_bytes >= SMALL * total and not piece.kept]
    rest = [
        piece for piece in pieces if piece.size_bytes < SMALL * total and not piece.kept and piece.size_bytes
    ]
    shown = sorted(seen, key=lambda piece: -piece.size_bytes)
    if len(rest) == 1:
        shown += rest
    elif rest:
        name = _together([piece.name for piece in rest], room)
        shown.append(Piece(name, sum(piece.size_bytes for piece in rest)))
    return shown + [piece for piece in pieces if piece.kept and piece.size_bytes]


def _together(names: list[str], room: int) -> str:
    """``adapters + workspace + 2 more``: all names if there is room, else as many as leave room for the count."""
    for named in range(len(names), 0, -1):
        more = f" + {len(names) - named} more" if named < len(names) else ""
        text = " + ".join(names[:named]) + more
        if len(text) <= room:
            return text
    return f"{len(names)} small ones"


def _lengths(sizes: list[int], columns: int) -> list[int]:
    """Columns of each piece, summing to ``columns``: borders are rounded, not lengths, so that errors don't add up."""
    total, ends, at = sum(sizes), [], 0
    for size in sizes:
        at += size
        ends.append(round(columns * at / total))
    return [end - start for start, end in zip([0, *ends], ends, strict=False)]


def _swatches(shown: list[Piece], look: Look) -> list[tuple[str, str]]:
    marks = _MARKS if look.unicode else _FEW_MARKS
    if look.colour:
        return [("░", _OTHER) if piece.kept else ("█", _COLOURS.get(piece.name, _OTHER)) for piece in shown]
    return [
        (("·", "") if piece.kept else (marks[min(i, len(marks) - 1)], "")) for i, piece in enumerate(shown)
    ]


def _run(cells: list[tuple[str, str]], look: Look) -> str:
    """Cells with one colour code for each stretch of one style."""
    parts, start = [], 0
    for end in range(1, len(cells) + 1):
        if end == len(cells) or cells[end][1] != cells[start][1]:
            parts.append(look.paint("".join(mark for mark, _ in cells[start:end]), cells[start][1]))
            start = end
    return "".join(parts)
