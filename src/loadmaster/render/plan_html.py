"""A Plan as one piece of HTML for notebooks: inline styles that suit light and dark themes and narrow windows, no scripts."""

from __future__ import annotations

from html import escape

from loadmaster.plan import Plan, Verdict
from loadmaster.records import Interval
from loadmaster.render.bar import Piece, grouped, pieces
from loadmaster.render.command import command, command_line
from loadmaster.render.html_parts import STYLES as _STYLES
from loadmaster.render.html_parts import box as _box
from loadmaster.render.html_parts import faint as _faint
from loadmaster.render.html_parts import table as _table
from loadmaster.render.html_parts import text as _text
from loadmaster.render.html_parts import title as _title
from loadmaster.render.ladder import effect
from loadmaster.render.plan import headline, job_words, parameters_words
from loadmaster.render.serving import holds, terms
from loadmaster.render.sizes import Scale, apart, scale_of, share
from loadmaster.render.terminal import plain

_PALETTE = ("#4a90d9", "#e0a93b", "#b87fd9", "#45a87f", "#d96a5b", "#5bb8c4", "#9a8f80")
_KEPT = "repeating-linear-gradient(45deg,#8888,#8888 3px,transparent 3px,transparent 6px)"
_ALONE: dict[Verdict, str] = {
    "fits": f'<span style="color:{_STYLES["bold,green"]}">✓ fits</span>',
    "tight": f'<span style="color:{_STYLES["bold,yellow"]}">! tight</span>',
    "does_not_fit": "",
}


def plan_html(plan: Plan) -> str:
    """The verdict and what to beware of, then the ledger of the peak, conventions, phases, host and what would help."""
    scale = scale_of(max(plan.ledger.peak.process.high, plan.usable_bytes.likely if plan.usable_bytes else 0))
    card = f", on {plan.device.name}" if plan.device is not None else ""
    about = _text(f"{parameters_words(plan)}: {job_words(plan)}{card}")
    parts = [
        f"<div><strong>{_text(plan.model.name)}</strong> {about}</div>",
        *(
            _box(_STYLES[style], f"<strong>{_text(f'{mark} {text}')}</strong>")
            for mark, style, text in headline(plan)
        ),
        *(_box(_STYLES["bold,yellow"], f"Beware: {_text(warning)}") for warning in plan.ledger.warnings),
        _ledger(plan, scale),
        _conventions(plan, scale),
        _phases(plan, scale),
        _serving(plan),
        _host(plan),
        _changes(plan, scale),
        _fitting(plan),
        _small_print(plan),
    ]
    return f'<div style="max-width:60em;line-height:1.45;overflow-wrap:break-word">{"".join(parts)}</div>'


def _ledger(plan: Plan, scale: Scale) -> str:
    peak = plan.ledger.peak
    total = sum(piece.size_bytes for piece in pieces(plan))
    if total <= 0:
        return ""
    shown = grouped(pieces(plan), total)
    colours = [_KEPT if piece.kept else _PALETTE[min(i, len(_PALETTE) - 1)] for i, piece in enumerate(shown)]
    formulas = {entry.component: entry.formula for entry in plan.ledger.at(peak.phase)}
    rows = [
        [
            f'<div style="width:.8em;height:.8em;margin-top:.3em;background:{colour}"></div>',
            f'<span title="{escape(plain(formulas.get(piece.name, "")))}">{_text(piece.name)}</span>',
            scale.size(piece.size_bytes),
            _faint(share(piece.size_bytes, total)),
        ]
        for piece, colour in zip(shown, colours, strict=True)
    ]
    where = "Memory" if plan.device is not None and plan.device.gpu.vendor == "CPU" else "GPU memory"
    title = f"{where} at {peak.phase} ({peak.moment})"
    return _title(title) + _bar(plan, shown, colours, total, scale) + _table(rows, (2, 3))


def _bar(plan: Plan, shown: list[Piece], colours: list[str], total: int, scale: Scale) -> str:
    """The pieces to scale, and a line where the card ends."""
    limit = plan.usable_bytes.likely if plan.usable_bytes else 0
    whole = max(total, limit)
    parts = "".join(
        f'<div style="width:{100 * piece.size_bytes / whole:.2f}%;background:{colour}"></div>'
        for piece, colour in zip(shown, colours, strict=True)
    )
    mark = note = ""
    if limit:
        at = 100 * limit / whole
        side, way = (f"left:{at:.2f}%", "left") if at < 50 else (f"right:{100 - at:.2f}%", "right")
        mark = f'<div style="position:absolute;top:-.2em;bottom:-.2em;{side};border-{way}:2px solid currentColor"></div>'
        pad = f"padding-left:{at:.2f}%" if at < 50 else f"padding-right:{100 - at:.2f}%;text-align:right"
        note = f'<div style="{pad};font-size:85%;white-space:nowrap">{scale.size(limit)} usable</div>'
    frame = "position:relative;height:1.1em;margin:.4em 0 .3em 0;background:rgba(128,128,128,.18)"
    return f'<div style="{frame}"><div style="display:flex;height:100%">{parts}</div>{mark}</div>{note}'


def _conventions(plan: Plan, scale: Scale) -> str:
    peak = plan.ledger.peak
    named: list[tuple[str, Interval, str]] = [
        ("allocated", peak.allocated, "in tensors"),
        ("reserved", peak.reserved, "with PyTorch's cache"),
        ("process total", peak.process, "as nvidia-smi shows"),
    ]
    if plan.usable_bytes is not None:
        named.append(("the card leaves", plan.usable_bytes, "to a job"))
    rows = [["", _faint("low"), _faint("likely"), _faint("high")]]
    rows += [
        [
            f"{_text(name)} {_faint(_text(words))}",
            _faint(scale.size(size.low)),
            f"<strong>{scale.size(size.likely)}</strong>",
            _faint(scale.size(size.high)),
        ]
        for name, size, words in named
    ]
    return _title("Peak") + _table(rows, (1, 2, 3))


def _phases(plan: Plan, scale: Scale) -> str:
    rows = []
    for phase in plan.ledger.phases:
        size, moment = scale.size(phase.allocated.likely), _text(phase.moment)
        top = phase.phase == plan.ledger.peak.phase
        rows.append(
            [
                _text(phase.phase),
                f"<strong>{size}</strong>" if top else size,
                f"{moment} ← peak" if top else _faint(moment),
            ]
        )
    return _title("Phases, allocated") + _table(rows, (1,))


def _serving(plan: Plan) -> str:
    if plan.budget is None:
        return ""
    pool = f"{terms(plan, plan.budget)} = {apart(plan.budget.pool.likely)} for KV cache"
    words = f"<strong>{_text(plan.budget.engine)}</strong> {_text(pool)}: {_text(holds(plan, plan.budget))}"
    return f'<div style="margin:.9em 0 0 0">{words}</div>'


def _host(plan: Plan) -> str:
    ledger = plan.ledger
    ram = f"{apart(ledger.ram.likely)} ({apart(ledger.ram.low)} to {apart(ledger.ram.high)}) at {ledger.ram_phase}"
    there = plan.host.usable_ram_bytes if plan.host is not None else None
    if there is not None:
        ram += f"; {apart(there)} available here"
    disk = (
        f" <strong>Disk</strong> {_text(apart(ledger.disk.likely))} a checkpoint."
        if ledger.disk.likely
        else ""
    )
    return f'<div style="margin:.9em 0"><strong>RAM</strong> {_text(ram)}.{disk}</div>'


def _changes(plan: Plan, scale: Scale) -> str:
    if not plan.ladder:
        return ""
    rows = [[_faint("saves"), _faint("peak"), _faint("alone"), ""]]
    rows += [
        [
            scale.size(rung.saved_bytes),
            scale.size(rung.allocated_bytes),
            _ALONE[rung.verdict],
            f"{_text(rung.text)}: {_faint(_text(effect(rung.numerics, rung.speed)))}",
        ]
        for rung in plan.ladder
    ]
    return _title("One change at a time, allocated") + _table(rows, (0, 1, 2))


def _fitting(plan: Plan) -> str:
    found = plan.fitting
    if found is None:
        if plan.verdict != "does_not_fit":
            return ""
        least = plan.least_bytes
        left = f": all of them together leave {apart(least)} allocated" if least is not None else ""
        return _box(
            _STYLES["bold,red"], _text(f"No change or combination here makes it fit this card{left}.")
        )
    how = "fits" if found.verdict == "fits" else "fits tightly"
    peak = found.ledger.peak
    words = f"{apart(peak.allocated.likely)} allocated at {peak.phase}"
    asked = command(plan, found.job)
    paste = ""
    if asked is not None:
        style = "white-space:pre-wrap;background:rgba(128,128,128,.15);color:inherit;padding:.4em .6em;margin:.4em 0 0 0"
        paste = f'<pre style="{style}">{escape(plain(command_line(asked)))}</pre>'
    together = _text(f"It {how} with {' + '.join(found.texts)}")
    colour = _STYLES["bold,green" if found.verdict == "fits" else "bold,yellow"]
    return _box(colour, f"<strong>{together}</strong>: {_text(words)}{paste}")


def _small_print(plan: Plan) -> str:
    notes = "".join(f"<div>Note: {_text(note)}</div>" for note in plan.notes)
    said = "; ".join(a.text for a in plan.ledger.assumptions)
    assumed = (
        f'<div style="opacity:.7;font-size:90%;margin-top:.5em">Assumed: {_text(said)}</div>' if said else ""
    )
    return notes + assumed
