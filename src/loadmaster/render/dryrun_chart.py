"""The run over its events as a chart in HTML: stacked categories, reserved, what the card leaves, phases; no script needed.

The drawing is an SVG that stretches with the page; words lie over it as HTML, so that they keep their size on a telephone.
"""

from __future__ import annotations

from loadmaster.dryrun.events import CATEGORIES
from loadmaster.dryrun.result import DryRun
from loadmaster.render.dryrun_words import STEPLESS, columns, peak_moment, step_words
from loadmaster.render.html_parts import text
from loadmaster.render.sizes import Scale

COLOURS = {
    "parameters": "#4a78c8", "buffers": "#7f8fa6", "gradients": "#45a87f", "optimizer states": "#3fb3c9", "gathered": "#6f9be8",
    "inputs": "#9a8f80", "kv cache": "#2f9e9e", "activations": "#e0a93b", "temporaries": "#b87fd9", "workspace": "#a0a0a0",
}  # fmt: skip
"""Of each category, on light and dark pages."""
CARD = "#d6453d"
HEIGHT = 320
"""Units of the drawing; its width is the number of moments."""
HEADROOM = 1.06


def shown_categories(run: DryRun) -> list[int]:
    """Places in CATEGORIES of those that are ever there."""
    return [at for at in range(len(CATEGORIES)) if any(moment.by_category[at] for moment in run.timeline)]


def top_bytes(run: DryRun) -> int:
    """Where the chart ends: above all that was reserved, and the card's limit where it is near."""
    top = max([run.peak_reserved_bytes, *(m.reserved_bytes for m in run.timeline)], default=0)
    capacity = run.capacity_bytes or 0
    return int(HEADROOM * max(top, capacity if capacity < 1.6 * top else 0, 1))


def chart(run: DryRun, scale: Scale) -> str:
    """The chart; empty without a timeline."""
    if not run.timeline:
        return ""
    top, count = top_bytes(run), len(run.timeline)
    svg = (
        f'<svg viewBox="0 0 {count} {HEIGHT}" preserveAspectRatio="none" role="img" aria-label="memory over the run" '
        f'style="position:absolute;inset:0;width:100%;height:100%">{_bands(run)}{_areas(run, top)}{_lines(run, top)}</svg>'
    )
    edge = "1px solid currentColor"
    frame = f"position:relative;height:20em;margin:.5em 0 0 0;border-bottom:{edge};border-left:{edge}"
    return f'<div class="chart" style="{frame}">{svg}{_levels(run, top, scale)}{_words(run, top, scale)}</div>{_phases(run)}'


def _y(size_bytes: int, top: int) -> str:
    return f"{HEIGHT - HEIGHT * size_bytes / top:.1f}"


def _bands(run: DryRun) -> str:
    """Every second phase a little darker."""
    parts, at = [], 0
    for number, column in enumerate(columns(run)):
        width = len(column.moments)
        if number % 2:
            parts.append(
                f'<rect x="{at}" y="0" width="{width}" height="{HEIGHT}" fill="currentColor" opacity=".05"/>'
            )
        at += width
    return "".join(parts)


def _areas(run: DryRun, top: int) -> str:
    """One area for each category on those before it, in steps: between two moments nothing is known to be in between."""
    below = [0] * len(run.timeline)
    parts = []
    for place in shown_categories(run):
        above = [base + moment.by_category[place] for base, moment in zip(below, run.timeline, strict=True)]
        path = _stairs(above, top) + _stairs(below, top, back=True)
        parts.append(f'<path d="M{path}Z" fill="{COLOURS[CATEGORIES[place]]}"/>')
        below = above
    return "".join(parts)


def _stairs(levels: list[int], top: int, *, back: bool = False) -> str:
    points = [f"{x} {_y(level, top)}" for at, level in enumerate(levels) for x in (at, at + 1)]
    return "L".join(reversed(points) if back else points) if not back else "L" + "L".join(reversed(points))


def _lines(run: DryRun, top: int) -> str:
    style = 'fill="none" vector-effect="non-scaling-stroke" stroke-width="1.5"'
    reserved = _stairs([moment.reserved_bytes for moment in run.timeline], top)
    found = f'<path d="M{reserved}" stroke="currentColor" stroke-dasharray="4 3" opacity=".75" {style}/>'
    if run.capacity_bytes is not None and run.capacity_bytes < top:
        y = _y(run.capacity_bytes, top)
        found += f'<path d="M0 {y}L{len(run.timeline)} {y}" stroke="{CARD}" {style}/>'
    return found


def _levels(run: DryRun, top: int, scale: Scale) -> str:
    """Faint words at round levels, but not where the card's limit is named."""
    step = 1.0
    while step * 5 < top / scale.factor:  # 1, 2, 5, 10, ...
        step *= 2.5 if f"{step:.0e}".startswith("2") else 2
    levels = [int(step * scale.factor) * part for part in range(1, 6)]
    limit = run.capacity_bytes or 0
    return "".join(
        f'<div style="position:absolute;left:.3em;bottom:{100 * level / top:.1f}%;font-size:80%;opacity:.7;line-height:1">'
        f"{text(f'{level / scale.factor:,.0f} {scale.unit}')}</div>"
        for level in levels
        if level < 0.95 * top and abs(level - limit) > 0.06 * top
    )


def _words(run: DryRun, top: int, scale: Scale) -> str:
    """The peak and the card's limit, named where they are."""
    found = ""
    peak = peak_moment(run)
    if peak is not None:
        share = 100 * (run.timeline.index(peak) + 0.5) / len(run.timeline)
        side = f"left:{share:.1f}%;border-left" if share < 50 else f"right:{100 - share:.1f}%;border-right"
        found += (
            f'<div style="position:absolute;bottom:{100 * peak.allocated_bytes / top:.1f}%;{side}:2px solid currentColor;'
            f'padding:0 .4em;font-size:85%;white-space:nowrap;line-height:1.1">peak {scale.size(run.peak_allocated_bytes)}</div>'
        )
    if run.capacity_bytes is not None and run.capacity_bytes < top:
        found += (
            f'<div style="position:absolute;left:.3em;bottom:{100 * run.capacity_bytes / top:.1f}%;font-size:80%;color:{CARD}">'
            f"{text(f'{scale.size(run.capacity_bytes)} usable')}</div>"
        )
    return found


def _phases(run: DryRun) -> str:
    """Names of phases and steps under their stretches, cut where there is no room."""
    cell = "overflow:hidden;text-overflow:ellipsis;white-space:nowrap;padding:0 .15em;box-sizing:border-box"
    phases, steps, before = "", "", None
    for column in columns(run):
        share = 100 * len(column.moments) / len(run.timeline)
        name = text(column.phase)
        phases += (
            f'<div title="{name}" style="width:{share:.3f}%;border-left:1px solid #8888;{cell}">{name}</div>'
        )
        new = column.phase not in STEPLESS and column.step != before
        before = column.step if new else before
        named = text(step_words(run, column.step)) if new else ""
        steps += (
            f'<div style="width:{share:.3f}%;white-space:nowrap;{"" if new else "min-width:0"}">{named}</div>'
        )
    row = "display:flex;font-size:80%"
    return f'<div style="{row}">{phases}</div><div style="{row};opacity:.7">{steps}</div>'
