"""A score against measurements for a terminal and as JSON; no input or output here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from loadmaster.units import format_gib

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from loadmaster.calibrate import Outcome, Report, Score, Worst

SCHEMA = "loadmaster.truth/1"
"""Version of the JSON: sizes are whole bytes, errors are fractions (0.05 is 5 % too much), unknown is null."""
WIDE = 110
_REASONS = 12
_NONE = "–"


def report_json(report: Report) -> str:
    """The whole report as JSON: ``score`` and ``single_device`` by confidence, ``groups``, ``rows``, ``worst``."""
    found: dict[str, Any] = {"schema": SCHEMA, **msgspec.to_builtins(report)}
    return msgspec.json.format(msgspec.json.encode(found), indent=2).decode()


def report_text(report: Report, *, every_row: bool, width: int) -> list[RenderableType]:
    """The report in parts, to be printed one after the other: score, groups, worst rows, what has no prediction."""
    parts: list[RenderableType] = [_scores(report), ""]
    parts += [_groups(report), ""]
    if every_row:
        parts += [_rows(report.rows, width), ""]
    elif report.worst:
        parts += ["[bold]Largest errors[/]", *_worst(report, width), ""]
    reasons = _reasons(report.rows, width)
    if reasons is not None:
        parts += ["[bold]Not predicted[/]", reasons, ""]
    if report.unknown_fields:
        from rich.markup import escape

        names = ", ".join(f"{name} ({count})" for name, count in report.unknown_fields.items())
        parts += [f"Fields that nothing here reads (rows): {escape(names)}", ""]
    parts.append(
        "Error is predicted / measured - 1. Median and p90 are of the absolute error within each group, then the mean "
        "over groups; inside: the interval holds the measured figure. A false fit: on some card of the catalogue the "
        "prediction fits and the measured figure does not; refused is the reverse."
    )
    return parts


def _scores(report: Report) -> Table:
    table = _table()
    for title in ("", "rows", "predicted", "median", "p90", "inside", "false fits", "refused"):
        table.add_column(title, justify="left" if not title else "right", no_wrap=True)
    for label, scores in (("", report.score), (", 1 GPU", report.single_device)):
        for confidence, found in scores.items():
            if found.rows:
                table.add_row(confidence + label, *_score(found))
    for confidence, found in report.beside.items():
        if found.rows:
            table.add_row(f"{confidence}, same by plan", *_score(found))
    return table


def _score(found: Score) -> list[str]:
    share = f"{found.predicted} ({100 * found.predicted / found.rows:.0f} %)"
    return [
        str(found.rows),
        share,
        _percent(found.mean_of_group_medians),
        _percent(found.p90),
        _percent(found.interval_hit_rate, 0),
        str(found.false_fits),
        str(found.false_refusals),
    ]


def _groups(report: Report) -> Table:
    table = _table()
    table.add_column("group", no_wrap=True, overflow="ellipsis", max_width=20)
    table.add_column("trust", no_wrap=True)
    table.add_column("figure", no_wrap=True)
    for title in ("rows", "predicted", "median", "p90", "bias"):
        table.add_column(title, justify="right", no_wrap=True)
    before = ""
    for group in report.groups:
        table.add_row(
            group.group if group.group != before else "",
            group.confidence,
            group.convention or _NONE,
            str(group.rows),
            str(group.predicted),
            _percent(group.median),
            _percent(group.p90),
            _signed(group.bias),
        )
        before = group.group
    return table


def _rows(rows: Sequence[Outcome], width: int) -> Table:
    from rich.markup import escape

    table = _table()
    table.add_column("row", no_wrap=True, overflow="ellipsis", max_width=34 if width >= WIDE else 26)
    table.add_column("trust", no_wrap=True)
    table.add_column("figure", no_wrap=True)
    for title in ("measured", "predicted", "error"):
        table.add_column(title, justify="right", no_wrap=True)
    if width >= WIDE:
        table.add_column("", no_wrap=True, overflow="ellipsis")
    for row in rows:
        line = [
            escape(row.id),
            row.confidence,
            row.convention or _NONE,
            format_gib(row.measured_bytes, 2),
            format_gib(row.predicted.likely, 2) if row.predicted else _NONE,
            _signed(row.error),
        ]
        table.add_row(*line, *([escape(_remark(row))] if width >= WIDE else []))
    return table


def _remark(row: Outcome) -> str:
    if row.reason:
        return row.reason
    verdict = [f"{row.wrong} on {row.card}"] if row.wrong else []
    return "; ".join([*verdict, *row.assumed])


def _worst(report: Report, width: int) -> list[RenderableType]:
    from rich.markup import escape

    by_id = {row.id: row for row in report.rows}
    parts: list[RenderableType] = []
    for worst in report.worst:
        row = by_id[worst.id]
        predicted = row.predicted.likely if row.predicted else 0
        parts.append(
            f"{_signed(row.error)}  {escape(row.id)}: {row.convention} {format_gib(predicted, 2)}, "
            f"measured {format_gib(row.measured_bytes, 2)}"
        )
        parts += [f"[dim]{escape(line)}[/]" for line in _described(worst, width)]
    return parts


def _described(worst: Worst, width: int) -> list[str]:
    import textwrap

    entries = ", ".join(f"{entry.component} {format_gib(entry.bytes.likely, 2)}" for entry in worst.entries)
    lead = " " * 9
    return [
        line
        for text in (worst.job, entries)
        for line in textwrap.wrap(text, max(40, width - 1), initial_indent=lead, subsequent_indent=lead)
    ]


def _reasons(rows: Sequence[Outcome], width: int) -> Table | None:
    from rich.markup import escape

    counted = Counter(row.reason for row in rows if row.reason)
    if not counted:
        return None
    table = _table(header=False)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(no_wrap=False, max_width=max(40, width - 8))
    for reason, count in counted.most_common(_REASONS):
        table.add_row(str(count), escape(str(reason)))
    rest = counted.most_common()[_REASONS:]
    if rest:
        table.add_row(
            str(sum(count for _, count in rest)), f"for {len(rest)} other reasons (--json lists them)"
        )
    return table


def _table(*, header: bool = True) -> Table:
    from rich.table import Table

    return Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0), show_header=header)


def _percent(share: float | None, digits: int = 1) -> str:
    return _NONE if share is None else f"{100 * share:.{digits}f} %"


def _signed(share: float | None) -> str:
    return _NONE if share is None else f"{100 * share:+.1f} %"
