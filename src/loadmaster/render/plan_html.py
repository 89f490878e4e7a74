"""A Plan as one piece of HTML for notebooks: inline styles that suit light and dark themes, no scripts."""

from __future__ import annotations

from html import escape

from loadmaster.plan import Plan
from loadmaster.records import Interval
from loadmaster.render.plan import headline, job_words, parameters_words
from loadmaster.render.sizes import Scale, scale_of, share

_COLOURS = {"bold,green": "#2e9e4f", "bold,yellow": "#c98a00", "bold,red": "#d6453d", "bold": "inherit"}
_CELL = "padding:.15em .8em .15em 0;text-align:left;vertical-align:top;background:none"
_NUMBER = _CELL.replace("left", "right") + ";font-variant-numeric:tabular-nums"
_FAINT = "opacity:.65"


def plan_html(plan: Plan) -> str:
    """The verdict, the ledger of the peak, the three conventions, the host and what would help, as nested tables."""
    peak = plan.ledger.peak
    scale = scale_of(max(peak.process.high, plan.usable_bytes.likely if plan.usable_bytes else 0))
    about = escape(f"{parameters_words(plan)}: {job_words(plan)}")
    parts = [
        f"<div><strong>{escape(plan.model.name)}</strong> {about}</div>",
        *(
            f'<div style="color:{_COLOURS[style]};font-weight:bold">{escape(mark)} {escape(text)}</div>'
            for mark, style, text in headline(plan)
        ),
        _ledger(plan, scale),
        _conventions(plan, scale),
        _changes(plan, scale),
        _assumptions(plan),
    ]
    return f'<div style="max-width:60em;line-height:1.4">{"".join(parts)}</div>'


def _table(title: str, rows: list[list[str]], numbers: tuple[int, ...] = ()) -> str:
    """Cells are HTML already."""
    body = "".join(
        "<tr>"
        + "".join(
            f'<td style="{_NUMBER if i in numbers else _CELL}">{cell}</td>' for i, cell in enumerate(row)
        )
        + "</tr>"
        for row in rows
    )
    caption = f'<caption style="text-align:left;font-weight:bold;color:inherit">{escape(title)}</caption>'
    return f'<table style="border-collapse:collapse;margin:.6em 0;color:inherit">{caption}{body}</table>'


def _ledger(plan: Plan, scale: Scale) -> str:
    peak = plan.ledger.peak
    whole = max(peak.allocated.likely, plan.usable_bytes.likely if plan.usable_bytes else 0) or 1
    rows = []
    for entry in plan.ledger.at(peak.phase):
        percent = 100 * entry.bytes.likely / whole
        block = f'<div style="width:{percent / 8:.2f}em;min-width:1px;height:.8em;background:#4a90d9"></div>'
        rows.append(
            [
                f'<span title="{escape(entry.formula)}">{escape(entry.component)}</span>',
                scale.size(entry.bytes.likely),
                share(entry.bytes.likely, peak.allocated.likely),
                block,
            ]
        )
    return _table(f"GPU memory at {peak.phase} ({peak.moment})", rows, (1, 2))


def _conventions(plan: Plan, scale: Scale) -> str:
    ledger, peak = plan.ledger, plan.ledger.peak
    faint = f'style="{_FAINT}"'
    rows = [["", f"<span {faint}>low</span>", "likely", f"<span {faint}>high</span>"]]
    named: list[tuple[str, Interval]] = [
        ("allocated", peak.allocated),
        ("reserved", peak.reserved),
        ("process total (nvidia-smi)", peak.process),
        (f"RAM ({ledger.ram_phase})", ledger.ram),
    ]
    if plan.usable_bytes is not None:
        named.append(("usable on the card", plan.usable_bytes))
    for name, size in named:
        rows.append(
            [
                escape(name),
                f"<span {faint}>{scale.size(size.low)}</span>",
                f"<strong>{scale.size(size.likely)}</strong>",
                f"<span {faint}>{scale.size(size.high)}</span>",
            ]
        )
    return _table("Peak", rows, (1, 2, 3))


def _changes(plan: Plan, scale: Scale) -> str:
    if not plan.ladder and plan.fitting is None:
        return ""
    rows = [
        [
            "✓" if rung.fits else "",
            f"−{scale.size(rung.saved_bytes)}",
            f"→ {scale.size(rung.allocated_bytes)}",
            f'{escape(rung.text)} <span style="{_FAINT}">{escape(rung.speed)}</span>',
        ]
        for rung in plan.ladder
    ]
    if plan.fitting is not None:
        together = escape(" + ".join(plan.fitting.texts))
        at = scale.size(plan.fitting.ledger.peak.allocated.likely)
        rows.append(["✓", "", f"→ <strong>{at}</strong>", f"<strong>{together}</strong>"])
    return _table("What would help, one change at a time, and the first combination that fits", rows, (1, 2))


def _assumptions(plan: Plan) -> str:
    said = [a.text for a in plan.ledger.assumptions] + list(plan.notes) + list(plan.ledger.warnings)
    return f'<div style="{_FAINT};font-size:90%">Assumed: {escape("; ".join(said))}</div>' if said else ""
