"""The run over its events as a picture of block characters, phases marked underneath."""

from __future__ import annotations

from loadmaster.dryrun.result import DryRun
from loadmaster.render.dryrun_words import STEPLESS, Column, columns, step_words
from loadmaster.render.sizes import Scale
from loadmaster.render.terminal import Look, wrap

HEIGHT = 8
LEAST = 3
"""Columns of a phase, however short it is."""
_EIGHTHS = " ▁▂▃▄▅▆▇█"
_SHORT = {
    "optimizer step": "step",
    "forward": "fwd",
    "backward": "bwd",
    "evaluate": "eval",
    "prefill": "pre",
    "decode": "dec",
}
Point = tuple[int, int]
"""Allocated and reserved bytes."""


def timeline(run: DryRun, look: Look, scale: Scale) -> list[str]:
    """The picture with its title; empty where nothing was allocated."""
    stretches = columns(run)
    top = max([run.peak_reserved_bytes, *(m.reserved_bytes for m in run.timeline)], default=0)
    if not stretches or not top:
        return []
    capacity = run.capacity_bytes
    whole = max(top, capacity) if capacity is not None and capacity < 1.5 * top else top
    label = max(len(scale.number(whole)), len(scale.number(0)))
    widths = _widths([len(each.moments) for each in stretches], look.width - label - 5)
    points = [point for each, width in zip(stretches, widths, strict=True) for point in _sampled(each, width)]
    limit = None if capacity is None or capacity > whole else capacity
    lines = _title(look, scale, limit is not None)
    for row in range(HEIGHT - 1, -1, -1):
        text = scale.number(whole * (row + 1) // HEIGHT) if row in (HEIGHT - 1, HEIGHT // 2 - 1) else ""
        lines.append(
            f"  {text:>{label}} {_bar('┤' if text else '│', look)}" + _row(points, row, whole, limit, look)
        )
    lines.append(f"  {scale.number(0) if label else '':>{label}} {_axis(widths, look)}")
    return [*lines, *_labels(run, stretches, widths, label + 4, look)]


def _title(look: Look, scale: Scale, limited: bool) -> list[str]:
    full, kept = ("█", "░") if look.unicode else ("#", ".")
    card = f", {'─' if look.unicode else '-'} what the card leaves" if limited else ""
    name = "Over the run"
    first, *rest = wrap(
        f"{name}, {scale.unit}: {full} allocated, {kept} cached by PyTorch{card}",
        look.width,
        indent="  ",
        first="",
    )
    painted = look.paint(name, "bold") + look.paint(first[len(name) :], "dim")
    return [painted, *(look.paint(line, "dim") for line in rest)]


def _bar(mark: str, look: Look) -> str:
    return look.paint(mark if look.unicode else "|", "dim")


def _widths(lengths: list[int], room: int) -> list[int]:
    """Columns of each phase: by its number of events, but a few at least; they and a border between them sum to ``room``."""
    room -= len(lengths) - 1
    least = LEAST if LEAST * len(lengths) <= room else 1
    if least * len(lengths) > room:
        return [1] * len(lengths)
    spare, total = room - least * len(lengths), sum(lengths)
    ends, at = [], 0
    for length in lengths:
        at += length
        ends.append(round(spare * at / total))
    return [least + end - start for start, end in zip([0, *ends], ends, strict=False)]


def _sampled(stretch: Column, width: int) -> list[Point | None]:
    """The highest of the moments that each column stands for, and a border behind the last."""
    moments, count = stretch.moments, len(stretch.moments)
    found: list[Point | None] = []
    for at in range(width):
        part = moments[at * count // width : max((at + 1) * count // width, at * count // width + 1)]
        found.append((max(m.allocated_bytes for m in part), max(m.reserved_bytes for m in part)))
    return [*found, None]


def _row(points: list[Point | None], row: int, whole: int, limit: int | None, look: Look) -> str:
    """One line of the picture: eighths of a line for what is allocated, what is cached above it faint."""
    cells: list[tuple[str, str]] = []
    for point in points[:-1]:
        cells.append(_cell(point, row, whole, limit, look))
    text, start = "", 0
    for end in range(1, len(cells) + 1):
        if end == len(cells) or cells[end][1] != cells[start][1]:
            text += look.paint("".join(mark for mark, _ in cells[start:end]), cells[start][1])
            start = end
    return text


def _cell(point: Point | None, row: int, whole: int, limit: int | None, look: Look) -> tuple[str, str]:
    at_limit = limit is not None and row == min(limit * HEIGHT // whole, HEIGHT - 1)
    line = ("─" if look.unicode else "-", "red")
    if point is None:
        return line if at_limit else (" ", "")
    filled = point[0] * HEIGHT * 8 // whole - row * 8
    cached = point[1] * HEIGHT * 8 // whole - row * 8
    if filled >= 8:
        over = limit is not None and row * whole // HEIGHT >= limit
        return ("█" if look.unicode else "#", "red" if over else "cyan")
    if look.unicode and filled > 0 and (cached < 8 or filled >= 4):
        return (_EIGHTHS[filled], "cyan")
    if not look.unicode and filled >= 4:
        return ("#", "cyan")
    if at_limit:
        return line
    return ("░" if look.unicode else ".", "bright black") if cached >= 4 else (" ", "")


def _axis(widths: list[int], look: Look) -> str:
    if look.unicode:
        return look.paint("└" + "┴".join("─" * width for width in widths), "dim")
    return "+" + "+".join("-" * width for width in widths)


def _labels(run: DryRun, stretches: list[Column], widths: list[int], indent: int, look: Look) -> list[str]:
    """Phases under their columns, shortened where they must be, and steps where they begin."""
    phases, steps, before = " " * indent, " " * indent, None
    place = indent
    for stretch, width in zip(stretches, widths, strict=True):
        name = next(
            (
                n
                for n in (stretch.phase, _SHORT.get(stretch.phase, ""), stretch.phase[:3])
                if n and len(n) <= width
            ),
            "",
        )
        phases = f"{phases.ljust(place)}{name}"
        if stretch.phase not in STEPLESS and stretch.step != before:
            before, text = stretch.step, step_words(run, stretch.step)
            if len(steps) <= place:
                steps = f"{steps.ljust(place)}{text}"
        place += width + 1
    return [look.paint(line.rstrip(), "dim") for line in (phases, steps) if line.strip()]
