"""A DryRun for a terminal: verdict first, then where the bytes are and when, then what the answer rests on."""

from __future__ import annotations

from loadmaster.dryrun.result import DryRun, PhasePeak
from loadmaster.plan import Plan
from loadmaster.render import dryrun_modules, dryrun_words
from loadmaster.render.bar import bar
from loadmaster.render.dryrun_timeline import timeline
from loadmaster.render.sizes import Scale, scale_of, share
from loadmaster.render.terminal import Cell, Look, clip, plain, table, wrap

WIDE, NARROW = 100, 60
FEW_STEPS = 4
ANSWERS, SKIPPED, TENSORS, RANKS = 6, 6, 16, 8
"""Rows that are shown of each; the rest is counted."""


def dryrun_text(run: DryRun, look: Look, *, explain: bool = False, plan: Plan | None = None) -> str:
    """The whole answer as text that ends in a newline; ``plan``: the closed form's prediction to set beside it."""
    scale = dryrun_words.scale_for(run)
    sections = [
        wrap(plain(dryrun_words.title(run)), look.width),
        _headline(run, look),
        _bar(run, look, scale),
        _peaks(run, look, scale),
        timeline(run, look, scale),
        _phases(run, look, scale),
        _modules(run, look, scale),
        _ranks(run, look, scale),
        _settings(run, look, scale),
    ]
    if plan is not None:
        from loadmaster.render.dryrun_compare import comparison

        sections.append(comparison(run, plan, look, scale))
    if explain:
        sections.append(_tensors(run, look, scale))
    sections += [_asked(run, look), _small_print(run, look)]
    return look.out(line for section in sections if section for line in [*section, ""])


def _headline(run: DryRun, look: Look) -> list[str]:
    mark, style, text = dryrun_words.headline(run)
    lines = [look.paint(line, style) for line in wrap(plain(text), look.width, first=f"{mark} ", indent="  ")]
    for sentence in dryrun_words.fragmentation(run):
        lines += wrap(plain(sentence), look.width, first="  ", indent="  ")
    return lines


def _bar(run: DryRun, look: Look, scale: Scale) -> list[str]:
    found = dryrun_words.pieces(run)
    if not found:
        return []
    at = dryrun_words.place(run, run.peak_step, run.peak_phase)
    title = wrap(f"GPU memory at the peak ({at}), {scale.unit}", look.width, indent="  ", first="")
    return [*(look.paint(line, "bold") for line in title), *bar(found, run.capacity_bytes, look, scale)]


def _peaks(run: DryRun, look: Look, scale: Scale) -> list[str]:
    wide = look.width >= WIDE
    process = run.ledger.peak.process
    context = process.likely - run.peak_reserved_bytes
    total = (
        f"as nvidia-smi shows, with {scale.size(context)} of CUDA context"
        if context
        else "without the CUDA context"
    )
    rows: list[list[Cell]] = [
        [(f"Peak, {scale.unit}", "bold"), ("", ""), ("", "")],
        _peak(
            "allocated", run.peak_allocated_bytes, scale, "torch.cuda.max_memory_allocated" if wide else ""
        ),
        _peak("reserved", run.peak_reserved_bytes, scale, "torch.cuda.max_memory_reserved" if wide else ""),
        _peak("process total", process.likely, scale, ""),
    ]
    words = ("in tensors", "with PyTorch's cache", total)
    for row, text in zip(rows[1:], words, strict=True):
        row[2] = (f"{text} ({row[2][0]})" if row[2][0] else text, "dim")
    return table(rows, look, right=(1,), indent="")


def _peak(name: str, size_bytes: int, scale: Scale, text: str) -> list[Cell]:
    return [(f"  {name}", ""), (scale.number(size_bytes), "bold"), (text, "dim")]


def _phases(run: DryRun, look: Look, scale: Scale) -> list[str]:
    """Phases down, steps across: allocated; the last column is what was reserved at most."""
    if not run.phases:
        return []
    steps, left = _shown_steps(run)
    sizes = {(_step(peak), peak.phase): peak for peak in run.phases}
    head = [(dryrun_words.step_words(run, step) if len(steps) > 1 else "allocated", "dim") for step in steps]
    title = f"Phases, {scale.unit} allocated" if len(steps) > 1 else f"Phases, {scale.unit}"
    if look.width < NARROW:
        title = "Phases"
    rows: list[list[Cell]] = [[(title, "bold"), *head, ("reserved", "dim"), ("", "")]]
    for phase in dict.fromkeys(peak.phase for peak in run.phases):
        if phase in dryrun_words.STEPLESS:
            cells: list[Cell] = [_level(run, sizes.get((None, phase)), scale), *[("", "")] * (len(steps) - 1)]
        else:
            cells = [_level(run, sizes.get((step, phase)), scale) for step in steps]
        most = max(peak.reserved_bytes for peak in run.phases if peak.phase == phase)
        top = "← peak" if phase == run.peak_phase else ""
        rows.append([(f"  {phase}", ""), *cells, (scale.number(most), "dim"), (top, "")])
    lines = table(rows, look, right=tuple(range(1, len(steps) + 2)), indent="")
    return [*lines, look.paint(f"  {left:,} more steps", "dim")] if left else lines


def _step(peak: PhasePeak) -> int | None:
    return None if peak.phase in dryrun_words.STEPLESS else peak.step


def _shown_steps(run: DryRun) -> tuple[list[int], int]:
    """All steps if they are few, else the first two, the one with the peak and the last; and how many are left out."""
    steps = sorted({step for peak in run.phases if (step := _step(peak)) is not None}) or [0]
    if len(steps) <= FEW_STEPS:
        return steps, 0
    shown = sorted({*steps[:2], run.peak_step, steps[-1]} & set(steps))
    return shown, len(steps) - len(shown)


def _level(run: DryRun, peak: PhasePeak | None, scale: Scale) -> Cell:
    if peak is None:
        return ("", "")
    top = (peak.step, peak.phase) == (run.peak_step, run.peak_phase)
    return (scale.number(peak.allocated_bytes), "bold" if top else "")


def _modules(run: DryRun, look: Look, scale: Scale) -> list[str]:
    found = dryrun_modules.rows(run.modules)
    if len(found) < 2:
        return []
    total, room = run.peak_allocated_bytes, look.width - 24
    rows: list[list[Cell]] = [[(f"Whose it is at the peak, {scale.unit}", "bold"), ("", ""), ("", "")]]
    for row in found:
        times = f" ×{row.modules:,}" if row.modules > 1 else ""
        name = clip(plain(f"{'  ' * (row.depth + 1)}{row.name}"), room - len(times)) + times
        rows.append([(name, ""), (scale.number(row.size_bytes), ""), (share(row.size_bytes, total), "dim")])
    return table(rows, look, right=(1, 2), indent="")


def _ranks(run: DryRun, look: Look, scale: Scale) -> list[str]:
    if not run.ranks:
        return []
    worst = max(run.ranks, key=lambda rank: (rank.allocated_bytes, rank.reserved_bytes))
    head: list[Cell] = [(f"Ranks, {scale.unit}", "bold"), ("allocated", "dim"), ("reserved", "dim"), ("", "")]
    rows = [head]
    for rank in sorted(run.ranks, key=lambda rank: -rank.allocated_bytes)[:RANKS]:
        top = rank is worst and len(run.ranks) > 1
        numbers = _ranges(rank.ranks)
        rows.append(
            [
                (f"  {plain(rank.name)}", ""),
                (scale.number(rank.allocated_bytes), "bold" if top else ""),
                (scale.number(rank.reserved_bytes), ""),
                (f"{numbers}{'  ← the worst, shown above' if top else ''}", "" if top else "dim"),
            ]
        )
    return table(rows, look, right=(1, 2), indent="")


def _ranges(numbers: tuple[int, ...]) -> str:
    """``ranks 0, 2-7``."""
    if not numbers:
        return ""
    parts, start = [], numbers[0]
    for number, after in zip(numbers, [*numbers[1:], None], strict=True):
        if after != number + 1:
            parts.append(str(start) if start == number else f"{start}-{number}")
            start = after if after is not None else 0
    return f"rank{'s' if len(numbers) > 1 else ''} {', '.join(parts)}"


def _settings(run: DryRun, look: Look, scale: Scale) -> list[str]:
    if not run.settings:
        return []
    title = look.paint(f"Settings of the allocator, {scale.unit}", "bold")
    rows: list[list[Cell]] = [
        [
            ("  allocated", "dim"),
            ("reserved", "dim"),
            ("retries", "dim"),
            ("", ""),
            ("PYTORCH_ALLOC_CONF", "dim"),
        ]
    ]
    for setting in run.settings:
        now = " (as run)" if setting.conf == run.conf else ""
        verdict: Cell = ("", "")
        if setting.fits is not None:
            verdict = ("✓ fits", "green") if setting.fits else ("✗ runs out", "red")
        rows.append(
            [
                (scale.number(setting.allocated_bytes), ""),
                (scale.number(setting.reserved_bytes), ""),
                (f"{setting.retries:,}", "dim"),
                verdict,
                (plain(f"{setting.conf or 'none'}{now}"), "bold" if now else ""),
            ]
        )
    return [title, *table(rows, look, right=(0, 1, 2), indent=""), *_advice(run, look)]


def _advice(run: DryRun, look: Look) -> list[str]:
    """Which setting helps, in a sentence."""
    own = next((setting for setting in run.settings if setting.conf == run.conf), None)
    best = run.settings[0]
    if own is None:
        return []
    if own.fits is False:
        words = f"It fits with PYTORCH_ALLOC_CONF={best.conf}" if best.fits else "No setting makes it fit"
    elif best.reserved_bytes < own.reserved_bytes:
        saved = scale_of(own.reserved_bytes).size(own.reserved_bytes - best.reserved_bytes)
        words = f"PYTORCH_ALLOC_CONF={best.conf} reserves {saved} less"
    else:
        words = "No setting reserves less"
    return [
        look.paint(line, "bold") for line in wrap(f"{plain(words)}.", look.width, first="  ", indent="  ")
    ]


def _tensors(run: DryRun, look: Look, scale: Scale) -> list[str]:
    rows: list[list[Cell]] = [[(f"Largest tensors at the peak, {scale.unit}", "bold"), ("", "")]]
    for held in run.tensors[:TENSORS]:
        times = f"{held.count:,} × " if held.count > 1 else ""
        where = f" in {held.module}" if held.module else ""
        made = f"{held.op}{where}, {dryrun_words.place(run, held.step, held.phase)}"
        rows.append(
            [
                (f"  {scale.number(held.size_bytes)}", ""),
                (plain(f"{times}{held.shape} {held.category}: {made}"), ""),
            ]
        )
    lines = [look.paint(rows[0][0][0], "bold"), *table(rows[1:], look, right=(0,), indent="")]
    rest = len(run.tensors) - TENSORS
    return (
        [*lines, look.paint(f"  and {rest:,} groups more (--json lists them)", "dim")] if rest > 0 else lines
    )


def _asked(run: DryRun, look: Look) -> list[str]:
    """Questions for data that were answered without, and what was left out."""
    lines: list[str] = []
    if run.answers:
        count = sum(answer.count for answer in run.answers)
        times = f"{count:,} time{'s' if count > 1 else ''}"
        words = f"Answered without data, {times} (other answers may lead elsewhere)"
        lines += [look.paint(line, "bold") for line in wrap(words, look.width, indent="  ", first="")]
        rows: list[list[Cell]] = [
            [
                (f"  {answer.count:,} ×", "dim"),
                (plain(f"{answer.question}: {answer.answer}"), ""),
                (plain(answer.asker), "dim"),
            ]
            for answer in run.answers[:ANSWERS]
        ]
        lines += table(rows, look, right=(0,), indent="")
        if len(run.answers) > ANSWERS:
            lines.append(look.paint(f"  and at {len(run.answers) - ANSWERS:,} other places (--json)", "dim"))
    if run.skipped:
        told = [
            f"{plain(what)}{f' ({count:,} times)' if count > 1 else ''}"
            for what, count in run.skipped[:SKIPPED]
        ]
        rest = len(run.skipped) - SKIPPED
        words = ", ".join(told) + (f" and {rest:,} more" if rest > 0 else "")
        lines += wrap(f"Left out: {words}", look.width, indent="  ", first="")
    return lines


def _small_print(run: DryRun, look: Look) -> list[str]:
    lines: list[str] = []
    if run.attention:
        kernels = ", ".join(f"{plain(kernel)} ({count:,} times)" for kernel, count in run.attention)
        lines += [
            look.paint(line, "dim")
            for line in wrap(f"Attention kernels: {kernels}", look.width, indent="  ", first="")
        ]
    for warning in run.ledger.warnings:
        lines += [
            look.paint(line, "yellow")
            for line in wrap(f"Beware: {plain(warning)}", look.width, indent="  ", first="")
        ]
    for note in run.notes:
        lines += wrap(f"Note: {plain(note)}", look.width, indent="  ", first="")
    last = wrap(plain(dryrun_words.versions(run)), look.width, indent="  ", first="")
    return [*lines, *(look.paint(line, "dim") for line in last)]
