"""The run over its events as PNG: stacked categories, reserved, what the card leaves, phases, the peak. Needs matplotlib."""

from __future__ import annotations

import io
from typing import Any

from loadmaster.dryrun.events import CATEGORIES
from loadmaster.dryrun.result import DryRun
from loadmaster.errors import MissingExtraError
from loadmaster.render.dryrun_chart import CARD, COLOURS, shown_categories, top_bytes
from loadmaster.render.dryrun_words import (
    STEPLESS,
    columns,
    headline,
    peak_moment,
    scale_for,
    step_words,
    title,
)
from loadmaster.render.terminal import plain

SIZE_INCHES, DPI = (12.0, 6.2), 120
WORDS = 118
"""Characters of a line of the heading."""


def dryrun_png(run: DryRun) -> bytes:
    """The picture's file; raises MissingExtraError without matplotlib."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtraError("a PNG picture", "picture") from None
    figure = Figure(figsize=SIZE_INCHES, dpi=DPI, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    scale = scale_for(run)
    edges = list(range(len(run.timeline) + 1))
    below = [0.0] * len(run.timeline)
    handles: list[Any] = []
    for place in shown_categories(run):
        name = CATEGORIES[place]
        above = [
            base + m.by_category[place] / scale.factor for base, m in zip(below, run.timeline, strict=True)
        ]
        handles.append(axes.stairs(above, edges, baseline=below, fill=True, color=COLOURS[name], label=name))
        below = above
    reserved = [moment.reserved_bytes / scale.factor for moment in run.timeline]
    handles.append(
        axes.stairs(
            reserved, edges, baseline=None, color="#333333", linestyle="--", linewidth=1, label="reserved"
        )
    )
    top = top_bytes(run)
    axes.set_ylim(0, top / scale.factor)
    axes.set_xlim(0, max(len(run.timeline), 1))
    if run.capacity_bytes is not None and run.capacity_bytes < top:
        label = f"the card leaves {scale.size(run.capacity_bytes)}"
        handles.append(
            axes.axhline(run.capacity_bytes / scale.factor, color=CARD, linewidth=1.5, label=label)
        )
    _phases(run, axes)
    _peak(run, axes, scale.factor, scale.size(run.peak_allocated_bytes))
    axes.set_ylabel(scale.unit)
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(handles=handles, loc="outside right upper", frameon=False, fontsize=9)
    heading = "\n".join((*_lines(title(run)), *_lines(headline(run)[2])))
    figure.suptitle(heading, fontsize=10, x=0.01, ha="left", parse_math=False)
    file = io.BytesIO()
    figure.savefig(file, format="png")
    return file.getvalue()


def _lines(words: str) -> list[str]:
    from textwrap import wrap

    return wrap(plain(words), WORDS)


def _phases(run: DryRun, axes: Any) -> None:
    """Bands with names under them; a name that has no room goes without."""
    at, before, ticks, names = 0, None, [], []
    total = max(len(run.timeline), 1)
    for number, column in enumerate(columns(run)):
        width = len(column.moments)
        if number % 2:
            axes.axvspan(at, at + width, color="#000000", alpha=0.05, linewidth=0, zorder=0)
        new = column.phase not in STEPLESS and column.step != before
        before = column.step if new else before
        named = (
            column.phase
            if width / total * 95 > len(column.phase)
            else column.phase[:3]
            if width / total > 0.03
            else ""
        )
        ticks.append(at + width / 2)
        names.append(f"{named}\n{step_words(run, column.step)}" if new and named else named)
        at += width
    axes.set_xticks(ticks, names, fontsize=8)
    axes.tick_params(axis="x", length=0)


def _peak(run: DryRun, axes: Any, factor: int, words: str) -> None:
    peak = peak_moment(run)
    if peak is None:
        return
    at = run.timeline.index(peak) + 0.5
    left = at < len(run.timeline) / 2
    axes.annotate(
        f"peak {words}", (at, peak.allocated_bytes / factor), xytext=(-14 if not left else 14, 9), textcoords="offset points",
        ha="left" if left else "right", fontsize=9, arrowprops={"arrowstyle": "-", "linewidth": 0.8},
    )  # fmt: skip
