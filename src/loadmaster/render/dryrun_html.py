"""A DryRun as one piece of HTML for notebooks: inline styles that suit light and dark themes and narrow windows, no scripts."""

from __future__ import annotations

from collections.abc import Iterator

from loadmaster.dryrun.result import DryRun
from loadmaster.render import dryrun_modules, dryrun_words
from loadmaster.render.dryrun_chart import COLOURS, chart
from loadmaster.render.html_parts import STYLES, box, faint, table, text, title
from loadmaster.render.sizes import Scale, share

_KEPT = "repeating-linear-gradient(45deg,#8888,#8888 3px,transparent 3px,transparent 6px)"
FEW = 8


def dryrun_html(run: DryRun) -> str:
    """The verdict, the run over time, what is there at the peak, phases, whose it is, settings and what the answer rests on."""
    scale = dryrun_words.scale_for(run)
    mark, style, words = dryrun_words.headline(run)
    parts = [
        f"<div>{text(dryrun_words.title(run))}</div>",
        box(
            STYLES[style],
            f"<strong>{text(f'{mark} {words}')}</strong>"
            + "".join(f"<div>{text(sentence)}</div>" for sentence in dryrun_words.fragmentation(run)),
        ),
        title("Over the run"),
        chart(run, scale),
        _legend(run, scale),
        _peaks(run, scale),
        _phases(run, scale),
        _modules(run, scale),
        _ranks(run, scale),
        _settings(run, scale),
        _small_print(run),
    ]
    return f'<div style="max-width:70em;line-height:1.45;overflow-wrap:break-word">{"".join(parts)}</div>'


def _legend(run: DryRun, scale: Scale) -> str:
    pieces = dryrun_words.pieces(run)
    whole = sum(piece.size_bytes for piece in pieces)
    rows = [
        [
            f'<div style="width:.8em;height:.8em;margin-top:.3em;background:{COLOURS.get(piece.name, _KEPT)}"></div>',
            text(piece.name),
            scale.size(piece.size_bytes),
            faint(share(piece.size_bytes, whole)),
        ]
        for piece in sorted(pieces, key=lambda piece: (piece.kept, -piece.size_bytes))
        if piece.size_bytes
    ]
    at = dryrun_words.place(run, run.peak_step, run.peak_phase)
    return title(f"At the peak ({at})") + table(rows, (2, 3))


def _peaks(run: DryRun, scale: Scale) -> str:
    named = (
        ("allocated", run.peak_allocated_bytes, "in tensors"),
        ("reserved", run.peak_reserved_bytes, "with PyTorch's cache (dashed)"),
        ("process total", run.ledger.peak.process.likely, "as nvidia-smi shows"),
    )
    rows = [
        [f"{name} {faint(text(words))}", f"<strong>{scale.size(size)}</strong>"]
        for name, size, words in named
    ]
    return title("Peak") + table(rows, (1,))


def _phases(run: DryRun, scale: Scale) -> str:
    rows = [["", faint("allocated"), faint("reserved")]]
    shown = run.phases if len(run.phases) <= 4 * FEW else (*run.phases[: 2 * FEW], *run.phases[-FEW:])
    for peak in shown:
        size = scale.size(peak.allocated_bytes)
        top = (peak.step, peak.phase) == (run.peak_step, run.peak_phase)
        name = text(dryrun_words.place(run, peak.step, peak.phase))
        rows.append(
            [
                f"{name} ← peak" if top else name,
                f"<strong>{size}</strong>" if top else size,
                scale.size(peak.reserved_bytes),
            ]
        )
    return title("Phases") + table(rows, (1, 2))


def _modules(run: DryRun, scale: Scale) -> str:
    found = dryrun_modules.rows(run.modules)
    if len(found) < 2:
        return ""
    rows = []
    for row in found:
        times = f" ×{row.modules:,}" if row.modules > 1 else ""
        name = f'<span style="padding-left:{1.2 * row.depth:.1f}em">{text(row.name)}{times}</span>'
        rows.append(
            [name, scale.size(row.size_bytes), faint(share(row.size_bytes, run.peak_allocated_bytes))]
        )
    return title("Whose it is at the peak") + table(rows, (1, 2))


def _ranks(run: DryRun, scale: Scale) -> str:
    if not run.ranks:
        return ""
    rows = [["", faint("allocated"), faint("reserved"), faint("ranks")]]
    rows += [
        [
            text(rank.name),
            scale.size(rank.allocated_bytes),
            scale.size(rank.reserved_bytes),
            f"{len(rank.ranks):,}",
        ]
        for rank in sorted(run.ranks, key=lambda rank: -rank.allocated_bytes)[:FEW]
    ]
    return title("Ranks") + table(rows, (1, 2, 3))


def _settings(run: DryRun, scale: Scale) -> str:
    if not run.settings:
        return ""
    verdicts = {
        True: f'<span style="color:{STYLES["bold,green"]}">✓ fits</span>',
        False: "✗ runs out",
        None: "",
    }
    rows = [["", faint("allocated"), faint("reserved"), faint("retries"), ""]]
    for each in run.settings:
        name = text(each.conf or "none") + (" (as run)" if each.conf == run.conf else "")
        sizes = [scale.size(each.allocated_bytes), scale.size(each.reserved_bytes)]
        rows.append([name, *sizes, f"{each.retries:,}", verdicts[each.fits]])
    return title("PYTORCH_ALLOC_CONF") + table(rows, (1, 2, 3))


def _small_print(run: DryRun) -> str:
    lines = list(_rests_on(run))
    return "".join(f'<div style="font-size:90%;margin-top:.3em">{text(line)}</div>' for line in lines)


def _rests_on(run: DryRun) -> Iterator[str]:
    for answer in run.answers[:FEW]:
        yield f"Answered without data {answer.count:,} ×: {answer.question}: {answer.answer} ({answer.asker})"
    if run.skipped:
        yield "Left out: " + ", ".join(f"{what} ({count:,} ×)" for what, count in run.skipped[:FEW])
    if run.attention:
        yield "Attention kernels: " + ", ".join(f"{kernel} ({count:,} ×)" for kernel, count in run.attention)
    for warning in run.ledger.warnings:
        yield f"Beware: {warning}"
    for note in run.notes:
        yield f"Note: {note}"
    yield dryrun_words.versions(run)
